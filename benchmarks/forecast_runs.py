"""Runs of the forecast benchmark: every source fine-tuned on every target by the package's own training loop.

Tasks, networks and data are those of `prediction_tasks.py`. Half of a target's samples are its validation set. Every
run starts from a new head as `solve` does, has a constant learning rate and never stops early, so that it has a step
for every threshold that it reaches.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.rng import Streams, derived_seed
from nearkin.distance.forecasting.curve import RunCurve
from nearkin.distance.forecasting.past_runs import RecordedRun
from nearkin.distance.forecasting.signals import Signals, measure_signals
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.nets.heads import SCALE_SAMPLES, with_start
from nearkin.nets.history import History
from nearkin.nets.recipe import Recipe
from nearkin.nets.training_loop import fit
from nearkin.tasks import derive
from nearkin.tasks.task import Task
from prediction_tasks import NAMES, NETWORKS, SHAPE, SOURCE_SAMPLES, pools
from prediction_truth import kept

SCRATCH = len(NAMES)  # row of the network before training
SOURCES = 8  # trained networks that are fine-tuned on each target
TARGET_SAMPLES = 600
STEPS = 400
NEVER = 2.0  # an accuracy that stops no run, so that every epoch is validated
SOURCE = Recipe(steps=300, learning_rate=2e-3)


@dataclass(frozen=True)
class Setting:
    """A network, a seed of weights, data and batches, and a recipe of fine-tuning."""

    network: str
    seed: int
    optimiser: str = "adam"
    rate: float = 1e-3

    def __str__(self) -> str:
        return f"{self.network}-{self.seed}-{self.optimiser}-{self.rate:g}"

    @property
    def recipe(self) -> Recipe:
        """Of fine-tuning."""
        return Recipe(
            steps=STEPS, batch_size=32, optimiser=self.optimiser, learning_rate=self.rate, schedule="constant",
            warmup=0.0, validation=0.5, target=NEVER,
        )  # fmt: skip


@cache
def task(index: int, role: str, seed: int) -> Task:
    """Data of a task as a source or as a target."""
    count = SOURCE_SAMPLES if role == "source" else TARGET_SAMPLES
    return derive.limited(pools(NAMES[index])[role], count, seed=seed)


def network(setting: Setting, num_outputs: int) -> nn.Module:
    """The network before training."""
    return nk.build(NETWORKS[setting.network], SHAPE, num_outputs, setting.seed)


def sources(cache: Path, setting: Setting) -> list[nn.Module]:
    """Trained networks of all tasks, and the network before training as the last."""
    models = []
    for index in range(SCRATCH):
        data = task(index, "source", setting.seed)
        model = network(setting, data.num_outputs)

        def trained(model: nn.Module = model, data: Task = data, index: int = index) -> dict[str, Tensor]:
            fit(model, data, SOURCE, seed=derived_seed(setting.seed, "source", index))
            return dict(model.state_dict())

        model.load_state_dict(kept(cache / "sources" / f"{setting.network}-{setting.seed}-{index}.pt", trained))
        models.append(model.eval())
    return [*models, network(setting, 10).eval()]


def sources_of(target: int) -> list[int]:
    """Rows of the networks that are fine-tuned on a target; the last is that before training."""
    others = [row for row in range(SCRATCH) if row != target]
    order = torch.randperm(len(others), generator=Streams(0).at("forecast sources", target)).tolist()
    return [*sorted(others[index] for index in order[:SOURCES]), SCRATCH]


def fine_tuned(setting: Setting, model: nn.Module, target: int, source: int) -> History:
    """The history of one run."""
    data = task(target, "target", setting.seed)
    seed = derived_seed(setting.seed, "fine-tuned", target, source)
    x = data.train.fixed_subset(SCALE_SAMPLES).x
    start = with_start(model, data.num_outputs, seed, x)
    return fit(start, data, setting.recipe, seed=seed).history


def measured(setting: Setting, model: nn.Module, target: int) -> Signals:
    """What is measured before a run."""
    data = task(target, "target", setting.seed)
    return measure_signals(SourceOnTarget(model, data, data.form))


def runs(cache: Path, setting: Setting) -> Iterator[tuple[int, int, RecordedRun, History]]:
    """Target, source, record and history of every run, each target stored when it is finished."""
    models: list[nn.Module] = []
    for target in range(SCRATCH):
        rows = sources_of(target)

        def compute(target: int = target, rows: list[int] = rows) -> dict[str, Tensor]:
            if not models:
                models.extend(sources(cache, setting))
            parts: dict[str, Tensor] = {}
            for row in rows:
                history = fine_tuned(setting, models[row], target, row)
                parts |= {f"{row} {name}": value for name, value in history.to_tensors().items()}
                found = measured(setting, models[row], target)
                parts[f"{row} signals"] = torch.tensor(list(json.dumps(found.to_dict()).encode()), dtype=torch.uint8)
            return parts

        tensors = kept(cache / "runs" / str(setting) / f"{target}.pt", compute)
        for row in rows:
            named = {name: tensors[f"{row} {name}"] for name in ("losses", "measured", "steps_per_epoch")}
            history = History.from_tensors(named)
            signals = Signals.from_dict(json.loads(bytes(tensors[f"{row} signals"].tolist())))
            source = "" if row == SCRATCH else str(NAMES[row])
            recipe = setting.recipe
            yield target, row, RecordedRun(
                source, str(NAMES[target]), NETWORKS[setting.network], recipe.optimiser, recipe.batch_size, signals,
                RunCurve.of(history, recipe),
            ), history  # fmt: skip
