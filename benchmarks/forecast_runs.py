"""Runs of the forecast benchmark: every source fine-tuned on every target by the package's own training loop.

Tasks, networks and data are those of `prediction_tasks.py`. Half of a target's samples are its validation set. Every
run starts from a new head as `solve` does, has a constant learning rate and never stops early, so that it has a step
for every threshold that it reaches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.rng import derived_seed
from nearkin.distance.short_finetune import short_finetune_losses
from nearkin.nets.heads import SCALE_SAMPLES, with_start
from nearkin.nets.history import History
from nearkin.nets.recipe import Recipe
from nearkin.nets.training_loop import fit
from nearkin.tasks import derive
from nearkin.tasks.task import Task
from prediction_tasks import NAMES, NETWORKS, SHAPE, SOURCE_SAMPLES, pools
from prediction_truth import kept

SCRATCH = len(NAMES)  # row of the network before training
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


def fine_tuned(setting: Setting, model: nn.Module, target: int, source: int) -> History:
    """The history of one run."""
    data = task(target, "target", setting.seed)
    seed = derived_seed(setting.seed, "fine-tuned", target, source)
    x = data.train.fixed_subset(SCALE_SAMPLES).x
    start = with_start(model, data.num_outputs, seed, x)
    return fit(start, data, setting.recipe, seed=seed).history


def runs(cache: Path, setting: Setting) -> Iterator[tuple[int, int, History]]:
    """Target, source and history of every run, each target stored when it is finished."""
    models: list[nn.Module] = []
    for target in range(SCRATCH):

        def compute(target: int = target) -> dict[str, Tensor]:
            if not models:
                models.extend(sources(cache, setting))
            found = [fine_tuned(setting, model, target, row) for row, model in enumerate(models)]
            tables = [history.to_tensors() for history in found]
            return {name: torch.stack([table[name] for table in tables]) for name in tables[0]}

        tensors = kept(cache / "runs" / str(setting) / f"{target}.pt", compute)
        for source in range(SCRATCH + 1):
            if source != target:
                yield target, source, History.from_tensors({name: value[source] for name, value in tensors.items()})
