"""Results of a contest: what each contender achieved, and their order."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nearkin.core.plain import typed
from nearkin.tasks.metrics import gain

KINDS = {
    "searched": "a searched architecture",
    "tuned": "a fine-tuned network of other data",
    "frozen": "a frozen network of other data with a new head",
    "made": "a hand-made network",
    "simple": "a simple model",
    "transfer": "closed-form transfer",
    "ensemble": "an average of several models",
}
"""Kinds of contenders, for readers."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one contender achieved.

    It was trained on one part of the training data and scored on another. The answer is selected by `validation`; the
    `test` metric is reported only.

    Attributes:
        name: short name, such as `kin-search` or `resnet18`.
        title: name for readers: `search from the cells of 'six'`.
        kind: one of `KINDS`.
        validation: metric on the validation set (default: accuracy or R²); None if it did not run.
        loss: mean loss on the validation set.
        test: metric of the same weights on the test set.
        parameters: number of fitted values.
        multiply_adds: multiply-adds for one input.
        seconds: search and training together.
        samples: number of training samples that it used; None if not recorded.
        network: the network string.
        genotype: the cell as text; empty without one.
        curve: training loss, as few pairs of step and loss.
        search: result of its search as a dict; None without one.
        settings: steps, width, regularisation and other settings.
        starved: it used fewer samples or steps than it needs, so its result says little about its kind.
        refused: why it did not run, in one line; empty if it ran.
        metric: identifier of the metric; empty if not recorded.
        forecast: of its training, made before, with the steps that were measured; None without one.
    """

    name: str
    title: str
    kind: str
    validation: float | None = None
    loss: float | None = None
    test: float | None = None
    parameters: int = 0
    multiply_adds: int = 0
    seconds: float = 0.0
    samples: int | None = None
    network: str = ""
    genotype: str = ""
    curve: tuple[tuple[float, float], ...] = ()
    search: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    starved: bool = False
    refused: str = ""
    metric: str = ""
    forecast: Mapping[str, Any] | None = None

    @property
    def gain(self) -> float:
        """The validation metric, negated if lower is better; minus infinity if it did not run."""
        return -math.inf if self.validation is None else gain(self.metric, self.validation)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Result.from_dict` makes it again."""
        return {**asdict(self), "curve": [list(pair) for pair in self.curve]}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Result":
        """The inverse of `to_dict`.

        >>> result = Result(name="svm", title="RBF SVM", kind="simple", validation=0.9, curve=((0, 1.5),))
        >>> Result.from_dict(result.to_dict()) == result
        True
        """
        return typed(cls, dict(facts), "a contender")


def ordered(results: Sequence[Result]) -> list[Result]:
    """Results with a validation metric, best first; ties are broken by the smaller loss, then by fewer parameters.

    >>> few, many = (Result(name=n, title=n, kind="made", validation=0.9, loss=1.0, parameters=p)
    ...              for n, p in (("few", 10), ("many", 99)))
    >>> [result.name for result in ordered([many, few, Result(name="none", title="", kind="made", refused="no time")])]
    ['few', 'many']
    """
    ran = [result for result in results if result.validation is not None]
    return sorted(ran, key=lambda result: (-result.gain, result.loss or 0.0, result.parameters))
