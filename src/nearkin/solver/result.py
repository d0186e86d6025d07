"""Results of a contest: what each contender achieved, and their order."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nearkin.core.plain import typed

KINDS = {
    "searched": "a searched architecture",
    "tuned": "a fine-tuned kin",
    "made": "a hand-made network",
    "simple": "a simple model",
    "transfer": "closed-form transfer",
}
"""What a contestant can be, in words."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one contender achieved.

    It learned from one part of the training data and was judged on another, `validation`; by that the answer was
    chosen. Its `test` metric is told beside it and decided nothing.

    Attributes:
        name: one word that names it, such as `kin-search` or `resnet18`.
        title: the same for readers: `search in the cells of six`.
        kind: one of `KINDS`.
        validation: accuracy or R² on the data by which the answer was chosen; None where it did not run.
        loss: mean loss there.
        test: accuracy or R² on the test part, of the same weights.
        parameters: numbers that it has learned.
        multiply_adds: for one input.
        seconds: all that it took, search and training.
        samples: training samples that it learned from; None where that was not recorded.
        network: the network string.
        genotype: in the form that is printed and parsed; empty where it has none.
        curve: training losses, thinned out, as pairs of step and loss.
        search: what its search told (`Outcome.to_dict`), None where it had none.
        settings: what was decided for it: steps, width, regularisation.
        refused: why it did not run, in one line; empty where it did.
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
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Result.from_dict` makes it again."""
        return {**asdict(self), "curve": [list(pair) for pair in self.curve]}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Result":
        """The inverse of `to_dict`.

        >>> one = Result(name="svm", title="RBF SVM", kind="simple", validation=0.9, curve=((0, 1.5),))
        >>> Result.from_dict(one.to_dict()) == one
        True
        """
        return typed(cls, dict(facts), "a contestant")


def ordered(standings: Sequence[Result]) -> list[Result]:
    """Those that ran, best on the data of the choice first; a tie goes to the smaller loss, then to fewer parameters.

    >>> few, many = (Result(name=n, title=n, kind="made", validation=0.9, loss=1.0, parameters=p)
    ...              for n, p in (("few", 10), ("many", 99)))
    >>> [one.name for one in ordered([many, few, Result(name="none", title="", kind="made", refused="no time")])]
    ['few', 'many']
    """
    ran = [one for one in standings if one.validation is not None]
    return sorted(ran, key=lambda one: (-(one.validation or 0.0), one.loss or 0.0, one.parameters))
