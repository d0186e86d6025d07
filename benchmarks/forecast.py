"""How well are the steps of fine-tuning predicted, and do the 80 % intervals hold?

    python benchmarks/forecast.py [--cache FOLDER] [--only runs,ship,complexity,tables]

Runs are those of `forecast_runs.py`: 24 tasks, three networks, nine starts for each target, 400 steps. Everything was
chosen on seed 0, whose runs are also shipped with the package (`ship`); the tables are of seed 1, with other samples,
initial weights and batches. A run is forecast without the runs of its target, shipped ones included, and without the
shipped runs of its network. Finished runs are kept in the cache. About 50 minutes on one core. Figures go to
`benchmarks/forecast.json`, the page to `docs/figures/forecast-benchmark.md`.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forecast_runs import SCRATCH, STEPS, Setting, measured, runs, sources, sources_of, task
from forecast_tables import page, pictures
from nearkin.distance.forecasting.censored import Array, Times, fit_log_times
from nearkin.distance.forecasting.curve import WINDOW
from nearkin.distance.forecasting.model import TimeModel
from nearkin.distance.forecasting.past_runs import Goal, RecordedRun
from nearkin.distance.forecasting.prior import FILE, packed
from nearkin.distance.information.task_complexity import complexity
from nearkin.distance.short_finetune import FinetuneSchedule, short_finetune_loss, short_finetune_losses
from nearkin.nets.heads import HEAD_START
from nearkin.nets.history import History
from prediction_tasks import NAMES
from prediction_truth import kept
from results import keep

NETWORKS = ("mlp", "lenet", "cnn")
CHOSEN_ON, MEASURED_ON = 0, 1
GOALS = (Goal(0.5), Goal(0.2), Goal(0.1), Goal(0.5, metric=True), Goal(0.3, metric=True))
ZOOS = (0, 5, 10, 20)
DRAWS = 8  # zoos of each size
SEEN = (
    40  # real steps of an extrapolated curve, 1,280 samples: the short fine-tuning sees 1,024, and features cost a pass
)
BUDGETS = (50, 100, 200)
SLOWEST = 0.02  # exponent of an extrapolated power law, at least
FARTHEST = 1e6  # steps
SHIPPED_POINTS = 32
COMPLEXITY_SAMPLES = 300


class Runs:
    """Recorded runs of one network and seed, with their histories."""

    def __init__(self, cache: Path, network: str, seed: int, optimiser: str = "adam", rate: float = 1e-3) -> None:
        self.setting = Setting(network, seed, optimiser, rate)
        rows = list(runs(cache, self.setting))
        self.records = [record for _, _, record, _ in rows]
        self.histories = [history for _, _, _, history in rows]
        self.targets = np.array([target for target, _, _, _ in rows])
        self.pilots = pilots(cache, self.setting) if seed == MEASURED_ON else []


def ship(cache: Path) -> None:
    """Write the runs of the first seed into the package."""
    settings = [*((name, "adam", 1e-3) for name in NETWORKS), ("mlp", "sgd", 1e-2)]
    found = [Runs(cache, name, CHOSEN_ON, optimiser, rate) for name, optimiser, rate in settings]
    records = [replace(record, curve=record.curve.thinned(SHIPPED_POINTS)) for part in found for record in part.records]
    FILE.write_bytes(packed(records).to_bytes())
    print(f"{len(records)} runs, {FILE.stat().st_size:,} bytes")


def own_complexity(cache: Path, network: str, seed: int) -> dict[int, float]:
    """C₁ of every target for the network that learned other samples of the same task, by index of the task."""

    def compute() -> dict[str, torch.Tensor]:
        setting = Setting(network, seed)
        values = []
        for index, model in enumerate(sources(cache, setting)[:SCRATCH]):
            data = task(index, "target", seed)
            x, y = data.train.fixed_subset(COMPLEXITY_SAMPLES)
            values.append(complexity(model, x, y).complexity / len(x))
            print(network, NAMES[index], f"complexity {values[-1]:.2f}", flush=True)
        return {"values": torch.tensor(values)}

    return dict(enumerate(kept(cache / "complexity" / f"{network}-{seed}.pt", compute)["values"].tolist()))


def extrapolated(history: History, record: RecordedRun, goal: Goal, rate: float) -> float:
    """Log time by a power law through the first real steps; exact if the goal is reached in them."""
    width = min(WINDOW, history.steps_per_epoch)
    losses = np.convolve(history.losses.double().numpy(), np.ones(width) / width, "valid")
    seen, steps = np.minimum.accumulate(losses)[: SEEN - width + 1], np.arange(width, SEEN + 1)
    value = goal.value(record.signals)
    if seen[-1] <= value:
        return math.log(steps[int(np.argmax(seen <= value))] * rate)
    slope, level = np.polyfit(np.log(steps), np.log(seen), 1)
    found = (math.log(value) - level) / min(slope, -SLOWEST)
    return float(np.clip(found, math.log(SEEN), math.log(FARTHEST))) + math.log(rate)


def pilots(cache: Path, setting: Setting) -> list[History]:
    """Short fine-tunings at the pace of the runs, with other heads and batches, as they can be done before a run."""
    schedule = FinetuneSchedule(steps=SEEN, batch_size=setting.recipe.batch_size, learning_rate=setting.rate)

    def compute() -> dict[str, torch.Tensor]:
        models, rows = sources(cache, setting), []
        for target in range(SCRATCH):
            data = task(target, "target", setting.seed)
            x, y = data.train.fixed_subset(1000)
            for row in sources_of(target):
                rows.append(short_finetune_losses(
                    models[row], x, y, num_outputs=data.num_outputs, head=HEAD_START, num_heads=1, schedule=schedule
                ))  # fmt: skip
        return {"losses": torch.stack(rows)}

    losses = kept(cache / "pilots" / f"{setting}.pt", compute)["losses"]
    return [History(row, (), WINDOW) for row in losses]


def regressed(features: Array, times: Times, targets: Array) -> Array:
    """Predictions of a regression without the runs of each target."""
    mean, std = features.mean(0), features.std(0)
    rows = np.column_stack([np.ones(len(features)), (features - mean) / np.where(std > 0, std, 1)])
    found = np.empty(len(rows))
    for target in np.unique(targets):
        others = targets != target
        model = fit_log_times(rows[others], times.chosen(others), np.append(0.0, np.full(features.shape[1], 0.1)))
        found[~others] = model.log_time(rows[~others])
    return found


def predictions(
    part: Runs, shipped: list[RecordedRun], goal: Goal, own: dict[int, float]
) -> tuple[Times, dict[str, Array]]:
    """Log times of the runs, and what every method predicts without the runs of their targets."""
    pairs = [record.log_time(goal) for record in part.records]
    times = Times(np.array([x for x, _ in pairs]), np.array([x for _, x in pairs]), np.ones(len(pairs)))
    signals, targets = [record.signals for record in part.records], part.targets
    logme = np.array([item.complexity for item in signals])
    of_task = np.array([own[target] for target in targets])
    rate = part.setting.rate
    found = {
        "mean of the zoo": regressed(np.empty((len(pairs), 0)), times, targets),
        "complexity of the target, a·C^b": regressed(np.log(of_task)[:, None], times, targets),
        "Kramers form, a·exp(b·C)": regressed(of_task[:, None], times, targets),
        "LogME": regressed(np.stack([logme, logme**2], 1), times, targets),
    }
    if not goal.metric:
        for name, histories in (("own curve", part.histories), ("pilot curve", part.pilots)):
            pairs_of = zip(histories, part.records, strict=True)
            curve = np.array([extrapolated(history, record, goal, rate) for history, record in pairs_of])
            found[f"{name}, extrapolated"] = curve
            found[f"{name}, corrected"] = regressed(np.stack([curve, curve**2], 1), times, targets)
    ours, alone = np.empty(len(pairs)), np.empty(len(pairs))
    for target in np.unique(targets):
        rows = np.flatnonzero(targets == target)
        rest = [record for record, at in zip(part.records, targets, strict=True) if at != target]
        others = [record for record in shipped if record.target != part.records[rows[0]].target]
        for answers, zoo in ((ours, rest), (alone, [])):
            model = TimeModel.of(others, zoo, goal)
            answers[rows] = [model.forecast(signals[row]).quantile(0.5) for row in rows]
    return times, found | {"forecast, empty zoo": alone, "forecast": ours}


def auroc(times: Times, predicted: Array, steps: int, rate: float) -> float | None:
    """Whether runs that reach the goal within a budget are predicted to be faster than the others."""
    within = times.reached & (times.log_times <= math.log(steps * rate) + 1e-9)
    fast, slow = predicted[within], predicted[~within]
    if min(len(fast), len(slow)) < 10:
        return None
    return float((fast[:, None] < slow).mean() + (fast[:, None] == slow).mean() / 2)


def coverage(part: Runs, shipped: list[RecordedRun], goal: Goal, size: int) -> dict[str, Any]:
    """Share of runs in the 80 % interval, for targets outside of drawn zoos of some size."""
    rng, inside, widths, errors = np.random.default_rng(0), [], [], []
    names = sorted({record.target for record in part.records})
    for _ in range(DRAWS):
        zoo = set(rng.choice(names, size, replace=False))
        own = [run for run in part.records if run.target in zoo and (run.source in zoo or not run.source)]
        for target in rng.permutation([name for name in names if name not in zoo])[:4]:
            model = TimeModel.of([run for run in shipped if run.target != target], own, goal)
            for run in part.records:
                if run.target == target and (run.source in zoo or not run.source or not size):
                    found, (log_time, reached) = model.forecast(run.signals), run.log_time(goal)
                    low, high = found.quantile(0.1), found.quantile(0.9)
                    inside.append(low <= log_time <= high if reached else high >= log_time)
                    widths.append(high - low)
                    if reached:
                        errors.append(abs(found.quantile(0.5) - log_time))
    return {"runs": len(inside), "inside": float(np.mean(inside)), "ratio": float(np.exp(np.median(widths))),
            "error": float(np.mean(errors))}  # fmt: skip


def speed(cache: Path, network: str) -> dict[str, float]:
    """Time of a forecast relative to the measurement of `near`, for one pair of tasks, medians of several."""
    setting = Setting(network, MEASURED_ON)
    model, data = sources(cache, setting)[0], task(3, "target", MEASURED_ON)
    shipped = [record for name in NETWORKS for record in Runs(cache, name, CHOSEN_ON).records]
    x, y = data.train.fixed_subset(1000)

    def forecast() -> None:
        signals = measured(setting, model, 3)
        TimeModel.of(shipped, [], Goal()).forecast(signals).quantile(0.9)

    def near() -> None:
        short_finetune_loss(model, x, y, num_outputs=data.num_outputs)

    spent = {name: [_seconds(work) for _ in range(7)] for name, work in (("near", near), ("forecast", forecast))}
    medians = {name: float(np.median(values)) for name, values in spent.items()}
    return {**medians, "ratio": medians["forecast"] / medians["near"]}


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def tables(cache: Path) -> dict[str, Any]:
    """All figures."""
    seen = {name: Runs(cache, name, CHOSEN_ON).records for name in NETWORKS}
    results: dict[str, Any] = {
        "goals": [],
        "coverage": [],
        "speed": {name: speed(cache, name) for name in NETWORKS[:2]},
    }
    for network in NETWORKS:
        part = Runs(cache, network, MEASURED_ON)
        shipped = [record for name in NETWORKS if name != network for record in seen[name]]
        own = own_complexity(cache, network, MEASURED_ON)
        for goal in GOALS:
            facts = {"network": network, "share": goal.share, "metric": goal.metric}
            times, found = predictions(part, shipped, goal, own)
            errors = {name: np.abs(values - times.log_times)[times.reached] for name, values in found.items()}
            results["goals"].append({
                **facts,
                "reached": float(times.reached.mean()),
                "errors": {name: float(values.mean()) for name, values in errors.items()},
                "auroc": {name: [auroc(times, values, steps, part.setting.rate) for steps in BUDGETS]
                          for name, values in found.items()},
                "pairs": [[float(times.log_times[row]), float(found["forecast"][row]), bool(times.reached[row])]
                          for row in range(len(part.records))],
            })  # fmt: skip
            for size in ZOOS:
                results["coverage"].append({**facts, "size": size, **coverage(part, shipped, goal, size)})
            print(network, goal, {name: round(float(values.mean()), 3) for name, values in errors.items()}, flush=True)
    return results


def every_setting() -> Iterator[Setting]:
    """Settings of all runs."""
    yield from (Setting(name, seed) for seed in (CHOSEN_ON, MEASURED_ON) for name in NETWORKS)
    yield Setting("mlp", CHOSEN_ON, "sgd", 1e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "nearkin-forecast")
    parser.add_argument("--only", default="runs,tables", help="stages: runs, ship, complexity, tables")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    stages = chosen.only.split(",")
    if "runs" in stages:
        for setting in every_setting():
            for number, _ in enumerate(runs(chosen.cache, setting), 1):
                if number % len(sources_of(0)) == 0:
                    print(setting, number, "runs of", STEPS, "steps", flush=True)
    if "ship" in stages:
        ship(chosen.cache)
    if "complexity" in stages:
        for network in NETWORKS:
            own_complexity(chosen.cache, network, MEASURED_ON)
    if "tables" in stages:
        results = tables(chosen.cache)
        keep(__file__, results)
        docs = Path(__file__).parents[1] / "docs"
        (docs / "figures" / "forecast-benchmark.md").write_text(page(results))
        pictures(results, docs / "images")


if __name__ == "__main__":
    main()
