r"""How much architectures that share weights forget within an epoch.

$e_1$ is the error of an architecture right after it was trained, $e_2$ its error at the end of the epoch, after the
others were trained. A positive $e_2 - e_1$ means that the others overwrote weights that it needs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from nearkin.core.errors import DataError, require
from nearkin.core.events import Progress
from nearkin.core.plain import typed

BEST = 5


@dataclass(frozen=True)
class Forgetting:
    """Differences between the error at the end of an epoch and the error right after training.

    Attributes:
        mean: over all architectures.
        best: mean over the five with the lowest error right after training.
        maximum: largest difference.
        architectures: their number.
    """

    mean: float
    best: float
    maximum: float
    architectures: int

    def event(self, epoch: int, epochs: int | None = None) -> Progress:
        """The event of an epoch, counted from 1.

        >>> Forgetting(0.5, 0.25, 1.0, 8).event(2, 10)
        Progress(stage='forgetting', done=2, total=10, values={'mean': 0.5, 'best': 0.25, 'maximum': 1.0})
        """
        values = {"mean": self.mean, "best": self.best, "maximum": self.maximum}
        return Progress("forgetting", epoch, epochs, values)

    def to_dict(self) -> dict[str, float]:
        """The values for a JSON file, read by `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Forgetting":
        """The inverse of `to_dict`."""
        return typed(cls, dict(facts), "the forgetting of an epoch")


def measure_forgetting(after_training: Sequence[float], at_the_end: Sequence[float], best: int = BEST) -> Forgetting:
    """Mean, best five and maximum of the error differences.

    Args:
        after_training: error of each architecture right after it was trained.
        at_the_end: error of the same architectures at the end of the epoch, on the same samples.
        best: how many architectures with the lowest error right after training count as the best.

    >>> measure_forgetting([0.25, 0.75, 0.5], [0.5, 0.5, 1.0], best=2)
    Forgetting(mean=0.16666666666666666, best=0.375, maximum=0.5, architectures=3)
    """
    first, last = np.array(after_training, dtype=float), np.array(at_the_end, dtype=float)
    require(
        len(first) == len(last) and len(first) > 0,
        f"{len(first)} errors after training and {len(last)} at the end; expected one pair for each architecture",
        DataError,
    )
    require(
        bool(np.isfinite(first).all() and np.isfinite(last).all()),
        "an error of an architecture is NaN or infinite; leave diverged architectures out",
        DataError,
    )
    change = last - first
    chosen = np.argsort(first, kind="stable")[:best]
    return Forgetting(float(change.mean()), float(change[chosen].mean()), float(change.max()), len(change))


def summary(epochs: Sequence[Forgetting]) -> dict[str, Any] | None:
    """Forgetting over a whole search for a JSON file: means over epochs, the largest maximum, and every epoch.

    >>> facts = summary([Forgetting(0.5, 0.25, 1.0, 8), Forgetting(0.25, 0.25, 2.0, 8)])
    >>> facts["mean"], facts["best"], facts["maximum"], len(facts["epochs"])
    (0.375, 0.25, 2.0, 2)
    >>> summary([]) is None
    True
    """
    if not epochs:
        return None
    return {
        "mean": float(np.mean([epoch.mean for epoch in epochs])),
        "best": float(np.mean([epoch.best for epoch in epochs])),
        "maximum": max(epoch.maximum for epoch in epochs),
        "epochs": [epoch.to_dict() for epoch in epochs],
    }


@dataclass
class ForgettingLog:
    """Errors of the architectures that were trained in the present epoch, and the forgetting of the epochs before.

    Attributes:
        trained: error right after training, by genotype.
        epochs: forgetting of each epoch.

    >>> log = ForgettingLog()
    >>> log.add("a", 0.25)
    >>> log.add("b", math.nan)  # diverged: left out
    >>> log.end_epoch({"a": 0.5})
    Forgetting(mean=0.25, best=0.25, maximum=0.25, architectures=1)
    """

    trained: dict[str, float] = field(default_factory=dict)
    epochs: list[Forgetting] = field(default_factory=list)

    def add(self, genotype: str, error: float) -> None:
        """Record the error of an architecture right after its training."""
        if math.isfinite(error):
            self.trained[genotype] = error

    def end_epoch(self, errors: Mapping[str, float]) -> Forgetting | None:
        """Forgetting of the epoch from the present errors of the recorded architectures; None without any."""
        first = {name: error for name, error in self.trained.items() if math.isfinite(errors[name])}
        self.trained = {}
        if not first:
            return None
        self.epochs.append(measure_forgetting(list(first.values()), [errors[name] for name in first]))
        return self.epochs[-1]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, read by `from_dict`."""
        return {"trained": dict(self.trained), "epochs": [epoch.to_dict() for epoch in self.epochs]}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "ForgettingLog":
        """The inverse of `to_dict`."""
        return typed(cls, dict(facts), "the forgetting of a search")


def reduction(without: float, with_plasticity: float) -> float:
    r"""Share of the forgetting that plasticity prevents, $(d - d_{plasticity}) / d$; above 1 if models improve.

    >>> reduction(0.5, 0.125)
    0.75
    >>> reduction(-0.5, 0.0)
    nan
    """
    return (without - with_plasticity) / without if without > 0 else math.nan
