"""Ranking of trained networks for a target by their features, best first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nearkin.core.errors import optional
from nearkin.core.text import counted

BASELINES = ("parameters", "source accuracy", "random")
"""Columns that do not look at the target: a measure that does not beat them is of no use."""


@dataclass(frozen=True, kw_only=True)
class RankedCandidate:
    """A network with its score for a target.

    Attributes:
        name: of the candidate.
        score: larger is better; it can be compared within one ranking only.
        std: standard error of the score over samples of the target.
        measures: values of the measures, larger is better.
        errors: their standard errors.
        num_features: number of features.
        seconds: time for its features and scores.
        mebibytes: memory that it needed at most.
        cached: whether its features were read from the cache.
        label: of its network.
        parameters: number of its weights; 0 for raw inputs.
        source_metric: metric on the task it was trained on; None if it is not known.
        licence: empty if it is not known.
        random: a random number, as a baseline.
        fisher: Fréchet distance of Fisher information, among networks of one architecture; smaller is nearer.
    """

    name: str
    score: float
    std: float
    measures: Mapping[str, float]
    errors: Mapping[str, float]
    num_features: int
    seconds: float
    mebibytes: float
    cached: bool
    label: str
    parameters: int
    source_metric: float | None
    licence: str
    random: float
    fisher: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The candidate as plain JSON values."""
        return {**vars(self), "measures": dict(self.measures), "errors": dict(self.errors)}


@dataclass(frozen=True)
class CandidateRanking:
    """Trained networks in the order of their scores for a target, best first.

    Attributes:
        target: name of the target.
        question: that the order answers.
        candidates: the networks.
        refused: networks that could not be ranked, with the reason.
        samples: number of the target's samples.
        seconds: duration.
    """

    target: str
    question: str
    candidates: tuple[RankedCandidate, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    samples: int = 0
    seconds: float = 0.0

    def __iter__(self) -> Iterator[RankedCandidate]:
        return iter(self.candidates)

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def best(self) -> RankedCandidate:
        """The network with the highest score."""
        return self.candidates[0]

    def to_dict(self) -> dict[str, Any]:
        """The ranking as plain JSON values."""
        return {
            "target": self.target,
            "question": self.question,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "refused": dict(self.refused),
            "samples": self.samples,
            "seconds": self.seconds,
        }

    def to_pandas(self) -> Any:
        """A data frame with one row for each candidate."""
        pandas = optional("pandas", "frames", "a data frame")
        rows = [{**candidate.to_dict(), **candidate.measures} for candidate in self.candidates]
        return pandas.DataFrame(rows).drop(columns=["measures", "errors"]).set_index("name")

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of a table; the columns `candidate` and `network` are text, all others numbers."""
        names = list(self.candidates[0].measures) if self.candidates else []
        geometry = any(candidate.fisher is not None for candidate in self.candidates)
        head = ["", "candidate", "network", "score", "±", *names, *(["fisher"] if geometry else []), "features",
                "seconds", "MiB", *BASELINES]  # fmt: skip
        rows = []
        for rank, one in enumerate(self.candidates, 1):
            rows.append([
                str(rank), one.name, one.label, f"{one.score:.3f}", f"{one.std:.3f}",
                *(f"{one.measures[name]:.3f}" for name in names),
                *([_figure(one.fisher)] if geometry else []),
                counted(one.num_features), f"{one.seconds:.1f}", f"{one.mebibytes:.0f}",
                counted(one.parameters), _figure(one.source_metric), f"{one.random:.2f}",
            ])  # fmt: skip
        return head, rows

    def __str__(self) -> str:
        """The table as text."""
        head, rows = self.table()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
        return "\n".join(line.rstrip() for line in lines)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
