"""Does simulated diffusion in analytic wells follow the formulas of reachability? Four experiments and their pictures.

    python benchmarks/wells.py [--draw]

Writes `benchmarks/wells.json` and the pictures `docs/images/wells-*.svg` of the page on reachability; `--draw` draws
them again from the stored figures.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearkin.distance.reachability.escape import effective_potential, kramers_time
from nearkin.distance.reachability.onsager_machlup import minimise_action, path_action, straight_line
from nearkin.distance.reachability.string_method import StringOptions, minimum_energy_path, path_profile
from nearkin.distance.reachability.wells import (
    curved_double_well,
    double_well,
    first_passage_times,
    mean_first_passage_time,
    narrowing_channel,
    simulate_langevin,
)
from results import keep
from wells_pictures import draw_all

SEED = 0
STEP = 0.02
BINS = 60
SEGMENTS = 60  # of a path
SHOWN = [0, 1, 4]  # particles that are drawn; the last one changes wells


def rounded(values: Tensor, places: int = 4) -> list[Any]:
    """Values as plain numbers."""
    result: list[Any] = values.double().round(decimals=places).tolist()
    return result


def histogram(values: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Centres of the bins and the density in them."""
    counts = torch.histc(values.flatten(), BINS, low, high)
    width = (high - low) / BINS
    return low + width * (torch.arange(BINS) + 0.5).double(), counts / values.numel() / width


def normalised(log_weight: Tensor, x: Tensor) -> Tensor:
    """A density on a grid from the logarithm of its weight."""
    weight = (log_weight - log_weight.max()).exp()
    return weight / torch.trapezoid(weight, x)


def bin_means(density: Tensor, x: Tensor, centres: Tensor) -> Tensor:
    """Mean of a density on a grid in each bin."""
    width = float(centres[1] - centres[0])
    return torch.stack([density[(x - centre).abs() <= width / 2].mean() for centre in centres])


def distance(found: Tensor, wanted: Tensor, centres: Tensor) -> float:
    """Total variation distance of two densities."""
    return float((found - wanted).abs().sum() / 2 * (centres[1] - centres[0]))


def double_well_density(particles: int = 4000, duration: float = 60.0) -> dict[str, Any]:
    """Particles in the double well: three paths, and the density against exp(−U/D)."""
    diffusion, well = 0.1, double_well()
    rng = torch.Generator().manual_seed(SEED)
    start = torch.where(torch.arange(particles) % 2 == 0, -1.0, 1.0).double()[:, None]
    path = simulate_langevin(well, start, diffusion, duration, STEP, rng)[..., 0]
    centres, density = histogram(path[len(path) // 4 :: 50], -2, 2)
    x = torch.linspace(-2, 2, 1201, dtype=torch.float64)
    predicted = normalised(-well.value(x[:, None]) / diffusion, x)
    return {
        "diffusion": diffusion, "particles": particles, "duration": duration,
        "times": rounded(torch.arange(len(path))[::10] * STEP, 2),
        "paths": rounded(path[::10, SHOWN].T, 3),
        "centres": rounded(centres), "density": rounded(density),
        "x": rounded(x[::12]), "predicted": rounded(predicted[::12]),
        "total_variation": distance(density, bin_means(predicted, x, centres), centres),
    }  # fmt: skip


def slope(inverse: list[float], times: list[float]) -> float:
    """Slope of log τ against 1/D by least squares."""
    x, y = torch.tensor(inverse).double(), torch.tensor(times).double().log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def escape_times(particles: int = 400, inverse: tuple[float, ...] = (8.0, 10.0, 12.0, 16.0, 20.0)) -> dict[str, Any]:
    """Mean times from −1 to 1 in the double well: simulated, exact, and Kramers' formula."""
    well, rows = double_well(), []
    for number in inverse:
        rng = torch.Generator().manual_seed(SEED)
        start, low, top = torch.full((particles, 1), -1.0).double(), torch.tensor([-1.0]), torch.tensor([0.0])
        kramers = kramers_time(well, low.double(), top.double(), 1 / number).time
        exact = mean_first_passage_time(well, -1.0, 1.0, -4.0, 1 / number)
        times = first_passage_times(well, start, 1.0, 1 / number, STEP, 30 * exact, rng)
        error = float(times.std() / math.sqrt(particles))
        rows.append({"inverse": number, "simulated": float(times.mean()), "error": error, "exact": exact,
                     "kramers": kramers})  # fmt: skip
    slopes = {kind: slope(list(inverse), [row[kind] for row in rows]) for kind in ("simulated", "exact", "kramers")}
    return {"particles": particles, "barrier": 0.25, "rows": rows, "slopes": slopes}


def curved_well() -> dict[str, Any]:
    """Straight line, minimum energy path and path of least action between the minima of the curved well."""
    well, start, end = curved_double_well(), torch.tensor([-1.0, 0.0]).double(), torch.tensor([1.0, 0.0]).double()
    found = minimum_energy_path(well, start, end, StringOptions(images=SEGMENTS + 1))
    line, diffusion, duration = straight_line(start, end, SEGMENTS), 0.1, 4.0
    least = minimise_action(well, found.points, diffusion, duration)
    paths = {"straight line": line, "minimum energy path": found.points, "least action": least}
    return {
        "paths": {name: rounded(path) for name, path in paths.items()},
        "profiles": {name: rounded(path_profile(well, path)) for name, path in paths.items()},
        "actions": {name: path_action(well, path, diffusion, duration).action for name, path in paths.items()},
        "diffusion": diffusion, "duration": duration,
        "saddle": rounded(found.saddle, 6), "residual": found.residual,
        "barrier": found.barrier, "straight_barrier": found.straight_barrier,
    }  # fmt: skip


def channel(particles: int = 4000, duration: float = 40.0) -> dict[str, Any]:
    """Density along a channel that narrows: simulated, exp(−U_eff/D), and exp(−U/D) of its floor."""
    diffusion, well = 0.4, narrowing_channel()
    rng = torch.Generator().manual_seed(SEED)
    path = simulate_langevin(well, torch.zeros(particles, 2).double(), diffusion, duration, STEP, rng)
    points = path[len(path) // 10 :: 50]
    centres, density = histogram(points[..., 0], -2.5, 2.5)
    x = torch.linspace(-2.5, 2.5, 1201, dtype=torch.float64)
    floor = torch.stack([x, torch.zeros_like(x)], 1)
    along = torch.tensor([1.0, 0.0]).double()
    effective = torch.tensor([effective_potential(well, w, diffusion, along).value for w in floor]).double()
    potential = well.value(floor)
    curves = {"effective": effective, "floor": potential, "printed": 2 * effective - potential}
    densities = {name: normalised(-value / diffusion, x) for name, value in curves.items()}
    shares = {name: float(torch.trapezoid(value[x >= 0], x[x >= 0])) for name, value in densities.items()}
    by_particle = (points[..., 0] > 0).double().mean(0)
    return {
        "diffusion": diffusion, "particles": particles, "duration": duration,
        "centres": rounded(centres), "density": rounded(density), "x": rounded(x[::12]),
        "points": rounded(path[-1, :500], 3),
        "densities": {name: rounded(value[::12]) for name, value in densities.items()},
        "right": {"simulated": float(by_particle.mean()),
                  "error": float(by_particle.std() / math.sqrt(particles)), **shares},
        "total_variation": {name: distance(density, bin_means(value, x, centres), centres)
                            for name, value in densities.items()},
    }  # fmt: skip


def main() -> None:
    """Measure, or read the stored figures, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="Draw the stored figures again.")
    torch.set_num_threads(1)
    if not parser.parse_args().draw:
        start = time.process_time()
        experiments = (double_well_density, escape_times, curved_well, channel)
        figures = {experiment.__name__: experiment() for experiment in experiments}
        figures["seconds"] = {"cpu": round(time.process_time() - start, 1)}
        print(f"wrote {keep(__file__, figures)}, {figures['seconds']['cpu']} s of processor time")
    draw_all(json.loads(Path(__file__).with_suffix(".json").read_text()))


if __name__ == "__main__":
    main()
