"""From which new head should fine-tuning start, and does the measure that ranks sources have to start there too?

    python benchmarks/head_start.py [--cache FOLDER] [--offline] [--page]

Networks that learned a source are fine-tuned on a target with three starts of the new head: zeros, drawn as `nn.Linear`
draws it, and drawn then divided by the root mean square of its inputs. Sources and starts of one target see the same
batches and the same draw, and are trained side by side as one stack of networks. About 20 minutes of one core. Every
result is stored in the cache at once, so an interrupted command can be run again; `--offline` measures nothing and
leaves unfinished seeds out; `--page` writes the page alone. The start is chosen on half of the pairs (even SHA-256 of
the pair's name) and confirmed on the other half.
"""

import argparse
import hashlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nearkin as nk
from head_start_baseline import SEEDS as FEW_SEEDS
from head_start_baseline import SHOTS, baseline
from head_start_page import write
from nearkin.core.rng import Streams, derived_seed
from nearkin.distance.short_finetune import short_finetune_loss
from nearkin.nets.heads import HEAD_STARTS, SCALE_SAMPLES, with_start
from nearkin.nets.recipe import Recipe
from nearkin.nets.training import Training
from nearkin.nets.training_loop import fit
from nearkin.solver.allocation import cnn_recipe
from nearkin.tasks.augment import augmentation
from nearkin.tasks.batches import epoch_batches, num_batches
from nearkin.tasks.derive import limited
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.task import Task
from prediction_tasks import QUESTIONS, SHAPE, Name, pools
from prediction_truth import Stack, held_out_scores, kept
from results import keep

NETWORKS = {"mlp": "mlp?hidden=128-64", "lenet": "lenet?width=0.5", "cnn": "cnn?width=0.25"}
DATA = ("mnist", "fashion", "cifar10")
SOURCES = (*(Name(data, QUESTIONS[data][1]) for data in DATA), Name("mnist", "parity"))
TARGETS = tuple(Name(data, "") for data in DATA)
SEEDS, LABELS, OPTIMISERS = (0, 1, 2), (200, 1000), ("adam", "sgd")
FEW = tuple(itertools.product(SHOTS, FEW_SEEDS))  # labels a class and seed of the baseline of `transfer`
SOURCE_SAMPLES, SOURCE_STEPS, HELD_OUT = 2000, 300, 500
GRID = (0, 1 / 12, 1 / 4, 1 / 2, 1)  # parts of a run after which the test loss is measured


@dataclass(frozen=True)
class Cell:
    """What is trained at once: all sources and starts of one target."""

    network: str
    seed: int
    target: Name
    labels: int

    def __str__(self) -> str:
        return f"{self.network}|{self.seed}|{self.target}|{self.labels}"


class SideBySide(nn.Module):
    """A stack of networks as one: inputs `[B, ...]` to outputs `[S, B, C]`."""

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        found = Stack.of(networks)
        params = {name: nn.Parameter(value) for name, value in found.params.items()}
        for name, value in params.items():
            self.register_parameter(name.replace(".", "_"), value)
        self.stack = [Stack(found.module, params, found.buffers)]  # in a list, so that its module is no child

    def forward(self, x: Tensor) -> Tensor:
        """`[B, ...]` to `[S, B, C]`."""
        return self.stack[0].outputs(x)


@dataclass(frozen=True)
class SumOfLosses:
    """Sum of the losses of stacked networks, so that each has the gradient that it has alone."""

    form: Likelihood

    def loss(self, outputs: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
        """Of outputs `[S, B, C]` and targets `[B]`."""
        return len(outputs) * self.form.loss(outputs.flatten(0, 1), y.repeat(len(outputs)), smoothing)


@cache
def source_network(folder: Path, network: str, source: Name, seed: int) -> nn.Module:
    """The network that learned a source, from the cache if it is there."""
    task = limited(pools(source)["source"], SOURCE_SAMPLES, seed)
    model = nk.build(NETWORKS[network], SHAPE, task.num_outputs, seed)

    def made() -> dict[str, Tensor]:
        fit(model, task, Recipe(steps=SOURCE_STEPS), seed=seed)
        return dict(model.state_dict())

    number = SOURCES.index(source)
    model.load_state_dict(kept(folder / "sources" / f"{network}-{number}-{seed}.pt", made))
    return model.eval()


@cache
def target_task(target: Name, labels: int, seed: int) -> Task:
    """A target with some labels and 500 test samples."""
    task = limited(pools(target)["target"], labels, seed)
    index = torch.randperm(len(task.test), generator=Streams(0).at("held out"))[:HELD_OUT]
    return replace(task, train=task.train.ready(), test=task.test.chosen(index))


def recipe_of(optimiser: str, task: Task, steps: int) -> Recipe:
    """Adam as `solve` fine-tunes, or SGD as `solve` trains its CNN."""
    return Recipe(steps=steps) if optimiser == "adam" else replace(cnn_recipe(task, flip=False), steps=steps)


def fine_tuned(folder: Path, cell: Cell, optimiser: str, steps: int) -> dict[str, dict[str, list[float]]]:
    """Test error after fine-tuning and mean test loss over the run, by source and start."""
    task = target_task(cell.target, cell.labels, cell.seed)
    seed, x = derived_seed(cell.seed, "head start", str(cell.target)), task.train.first(SCALE_SAMPLES).x
    ways = [(source, start) for source in SOURCES for start in HEAD_STARTS]
    models = [
        with_start(source_network(folder, cell.network, source, cell.seed), task.num_outputs, seed, x, start)
        for source, start in ways
    ]
    network, recipe = SideBySide(models), recipe_of(optimiser, task, steps)
    run = Training(network, SumOfLosses(task.form), recipe, steps, seed, torch.device("cpu"))  # type: ignore[arg-type]
    per_epoch, points = num_batches(len(task.train), recipe.batch_size), [round(part * steps) for part in GRID]
    losses, accuracy = [], torch.zeros(len(ways))
    while True:
        epoch, first = divmod(run.done, per_epoch)
        batches = epoch_batches(task.train, recipe.batch_size, run.streams, epoch, start=first,
                                augment=augmentation(recipe.augment))  # fmt: skip
        for batch in batches:
            if run.done in points:
                loss, accuracy = held_out_scores(network.stack[0], *task.test.all())
                losses.append(loss)
            if run.done == steps:
                break
            network.stack[0].module.train()
            run.step(batch)
        if len(losses) == len(points):
            break
    area = torch.trapezoid(torch.stack(losses), torch.tensor(points, dtype=torch.float32), dim=0) / steps
    found: dict[str, dict[str, list[float]]] = {}
    for (source, start), wrong, mean in zip(ways, (1 - accuracy).tolist(), area.tolist(), strict=True):
        found.setdefault(str(source), {})[start] = [round(wrong, 4), round(mean, 4)]
    return found


def scores(folder: Path, cell: Cell) -> dict[str, dict[str, float]]:
    """The measure `short-finetune` of every source with every start."""
    task = target_task(cell.target, cell.labels, cell.seed)
    (x, y), seed = task.train.all(), derived_seed(cell.seed, "score", str(cell.target))
    return {
        str(source): {
            start: round(
                short_finetune_loss(
                    source_network(folder, cell.network, source, cell.seed),
                    *(x, y), num_outputs=task.num_outputs, head=start, seed=seed,
                ), 5,
            )
            for start in HEAD_STARTS
        }
        for source in SOURCES
    }  # fmt: skip


def rounds() -> Iterator[tuple[Cell, str, int]]:
    """Cells with optimiser and steps; 0 steps and no optimiser: the measure. The most needed come first."""
    small, both = ("mlp", "lenet"), tuple(OPTIMISERS)
    for networks, optimisers, steps in (
        (small, both, 60), (("mlp",), both, 300), (small, ("",), 0), (("lenet",), ("adam",), 300),
        (("cnn",), both, 60), (("cnn",), ("",), 0), (("lenet",), ("sgd",), 300), (("cnn",), both, 300),
    ):  # fmt: skip
        for seed, network, target, labels in itertools.product(SEEDS, networks, TARGETS, LABELS):
            for optimiser in optimisers:
                yield Cell(network, seed, target, labels), optimiser, steps


def chooses(source: str, target: str) -> bool:
    """Whether a pair belongs to the half that chooses the start."""
    return int(hashlib.sha256(f"{source} -> {target}".encode()).hexdigest(), 16) % 2 == 0


def measured(folder: Path, offline: bool) -> dict[str, Any]:
    """All results by their key; what is not in the cache is measured, unless offline."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.jsonl"
    found: dict[str, Any] = dict(map(json.loads, file.read_text().splitlines())) if file.exists() else {}
    work: dict[str, Callable[[], Any]] = {few_key(*how): partial(baseline, *how) for how in FEW}
    for cell, optimiser, steps in rounds():
        done = partial(fine_tuned, folder, cell, optimiser, steps) if steps else partial(scores, folder, cell)
        work[f"{cell}|{optimiser}|{steps}"] = done
    for key in [] if offline else [key for key in work if key not in found]:
        begun = time.process_time()
        found[key] = work[key]()
        with file.open("a") as out:
            out.write(json.dumps([key, found[key]]) + "\n")
        now = time.process_time()
        print(f"  {key}: {now - begun:.1f} s of {now:.0f} s", file=sys.stderr, flush=True)
    return found


def few_key(shots: int, seed: int) -> str:
    return f"few labels|{seed}|{shots}"


def collected(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for every pair, network, number of labels, optimiser and number of steps: values by start and seed.

    A seed of a network, an optimiser and a number of steps counts only if all its targets are measured.
    """
    done = {f"{cell}|{optimiser}|{steps}": (cell, optimiser, steps) for cell, optimiser, steps in rounds()}
    missing = {(cell.network, cell.seed, *recipe) for key, (cell, *recipe) in done.items() if key not in found}
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key, (cell, optimiser, steps) in done.items():
        if (cell.network, cell.seed, optimiser, steps) in missing:
            continue
        for source, by_start in found[key].items():
            place = (source, str(cell.target), cell.network, cell.labels, optimiser, steps)
            names = ("source", "target", "network", "labels", "optimiser", "steps")
            row = rows.setdefault(place, dict(zip(names, place, strict=True)))
            for start, value in by_start.items():
                row.setdefault(start, []).append(value)
    return list(rows.values())


def main() -> None:
    """Measure what is missing, then write figures and page."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "head_start_cache")
    asked.add_argument("--offline", action="store_true", help="measure nothing, use what is in the cache")
    asked.add_argument("--page", action="store_true")
    given = asked.parse_args()
    file = Path(__file__).with_suffix(".json")
    if not given.page:
        torch.set_num_threads(1)
        found = measured(given.cache, given.offline)
        rows = collected(found)
        few = {str(shots): [found[few_key(shots, seed)] for seed in FEW_SEEDS] for shots in SHOTS}
        pairs = {f"{source} -> {target}": "choosing" if chooses(str(source), str(target)) else "confirming"
                 for target in TARGETS for source in SOURCES}  # fmt: skip
        keep(__file__, {"networks": NETWORKS, "seeds": list(SEEDS), "pairs": pairs, "rows": rows, "few": few})
    write(json.loads(file.read_text()), file)


if __name__ == "__main__":
    main()
