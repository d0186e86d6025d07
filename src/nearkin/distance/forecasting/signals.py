"""What is measured of a network and a target before fine-tuning, to forecast it."""

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nearkin.core.errors import DataError, require
from nearkin.core.events import Work, operation
from nearkin.core.plain import typed
from nearkin.distance.baselines.logme import logme, logme_regression
from nearkin.distance.measure import LABELLED
from nearkin.distance.short_finetune import short_finetune_losses
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.nets.heads import HEAD_START
from nearkin.tasks.metrics import ACCURACY

PARTS = 4  # of the short fine-tuning, of equal length
TIMED_STEPS = 3


@dataclass(frozen=True)
class Signals:
    """Measurements of a network on a target before fine-tuning.

    Attributes:
        losses: of the steps of a short fine-tuning, from a head as `solve` starts from one.
        constant_loss: loss of outputs that are all zero.
        complexity: minus the log evidence for each sample of a linear model on the features: C₁ for each sample of
            Bayesian linear regression; None for targets without labels or values.
        guess: metric of the best constant answer on the training samples.
        num_samples: training samples of the target.
        step_seconds: time of a training step of the source's network.
    """

    losses: tuple[float, ...]
    constant_loss: float
    complexity: float | None
    guess: float
    num_samples: int
    step_seconds: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.losses)
        require(count > 0 and count % PARTS == 0, f"got {count} losses, expected a multiple of {PARTS}", DataError)
        known = [self.constant_loss, *self.losses, *([] if self.complexity is None else [self.complexity])]
        require(all(map(math.isfinite, known)), "a measurement before fine-tuning is not finite", DataError)
        require(
            self.constant_loss > 0,
            f"a constant answer has a loss of {self.constant_loss:g}, expected more than 0: the target has one value",
            DataError,
        )

    @property
    def distance(self) -> float:
        """Mean loss of the short fine-tuning."""
        return sum(self.losses) / len(self.losses)

    @property
    def barrier(self) -> float:
        """How far the loss of the short fine-tuning rises above that of a constant answer, 0 if it does not."""
        return max(0.0, max(self.losses) - self.constant_loss)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "losses": list(self.losses)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Signals":
        """The inverse of `to_dict`."""
        return typed(cls, dict(facts), "a recorded run")


@operation
def measure_signals(view: SourceOnTarget, batch_size: int = 32) -> Work[Signals]:
    """Measure a network on a target: a short fine-tuning from a new head, and one pass for the features.

    Args:
        view: the network that fine-tuning starts from, and the target.
        batch_size: of the steps whose time is measured.
    """
    task, (x, y) = view.task, view.train
    with torch.no_grad():
        constant = float(task.form.loss(torch.zeros(len(x), *_output_shape(view)), y))
    losses = yield from short_finetune_losses.work(
        view.model, x, y, num_outputs=task.num_outputs, likelihood=task.likelihood, head=HEAD_START, num_heads=1
    )
    return Signals(
        tuple(losses.tolist()), constant, _complexity(view), _guess(view), len(task.train),
        _step_seconds(view, batch_size),
    )  # fmt: skip


def _step_seconds(view: SourceOnTarget, batch_size: int) -> float:
    """Shortest time of a training step of the source's network, of three."""
    model, x = copy.deepcopy(view.model).train(), view.train.x
    index = torch.arange(batch_size) % len(x)
    optimiser = torch.optim.Adam(model.parameters(), fused=x.device.type in ("cpu", "cuda"))
    spent = []
    for _ in range(TIMED_STEPS):
        begun = time.perf_counter()
        optimiser.zero_grad()
        model(x[index]).square().mean().backward()
        optimiser.step()
        spent.append(time.perf_counter() - begun)
    return min(spent)


def _guess(view: SourceOnTarget) -> float:
    """Metric of the best constant answer on the training samples."""
    if view.task.form.metric != ACCURACY:
        return 0.0
    labels = view.train.y.flatten()
    return float(torch.bincount(labels).max()) / len(labels)


def _complexity(view: SourceOnTarget) -> float | None:
    task, y = view.task, view.train.y
    if task.likelihood not in LABELLED:
        return None
    if task.likelihood == "categorical":
        return -logme(view.train_features, y, len(task.classes))
    return -logme_regression(view.train_features, y)


def _output_shape(view: SourceOnTarget) -> tuple[int, ...]:
    """Shape of the outputs for one sample."""
    task = view.task
    return tuple(view.train_outputs.shape[1:]) if task.likelihood in ("dense", "language") else (task.num_outputs,)
