"""Ranking of sources by their distance to a target, with the spread over trials and the stability of ranks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from nearkin.core.errors import MismatchError, optional, require

RESAMPLES = 1000


@dataclass(frozen=True)
class Kin:
    """A source and its distance to a target.

    Attributes:
        name: of the source.
        trials: its distance in every trial; smaller is nearer.
        wins: share of trials in which it is the nearest source.
        sure: share of bootstrap samples of the trials in which it has the same rank.
        beside: values of other measures of the same pair, smaller for nearer.
        form: of the Fréchet distance (`distance.fisher_based.forms`); empty for other measures.
    """

    name: str
    trials: tuple[float, ...]
    wins: float
    sure: float
    beside: Mapping[str, float] = field(default_factory=dict)
    form: str = ""

    @property
    def distance(self) -> float:
        """Mean over trials, by which sources are ranked."""
        return float(torch.tensor(self.trials, dtype=torch.float64).mean())

    @property
    def std(self) -> float:
        """Standard deviation over trials; 0 for one trial."""
        return float(torch.tensor(self.trials, dtype=torch.float64).std()) if len(self.trials) > 1 else 0.0


@dataclass(frozen=True)
class Ranking:
    """Sources in order of their distance to a target, nearest first.

    Attributes:
        target: name of the target.
        measure: name of the measure.
        kin: the sources.
        refused: sources that could not be compared, with the reason.
        weak: sources whose network is not within ε of perfect, with their metric.
        seconds: duration of the measurement.
        passes: number of Fisher passes over all samples of a task.

    >>> ranking = Ranking.of("new", "frechet", {"far": [0.5, 0.7], "near": [0.2, 0.4]})
    >>> [(kin.name, round(kin.distance, 3), kin.wins) for kin in ranking], ranking.nearest.name
    ([('near', 0.3, 1.0), ('far', 0.6, 0.0)], 'near')
    """

    target: str
    measure: str
    kin: tuple[Kin, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    weak: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    passes: float = 0

    @classmethod
    def of(
        cls,
        target: str,
        measure: str,
        trials: Mapping[str, Sequence[float]],
        beside: Mapping[str, Mapping[str, float]] | None = None,
        seed: int = 0,
        forms: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> "Ranking":
        """The ranking for distances by source and trial; every source has the same number of trials."""
        require(bool(trials), f"there is no task to compare '{target}' with; add tasks to the zoo first", MismatchError)
        lengths = {len(values) for values in trials.values()}
        require(
            len(lengths) == 1,
            f"sources have {sorted(lengths)} trials, expected the same number for all; leave trials out",
            MismatchError,
        )
        values = torch.tensor([list(row) for row in trials.values()], dtype=torch.float64)
        bad = [f"'{name}'" for name, row in zip(trials, values, strict=True) if not bool(row.isfinite().all())]
        require(
            not bad,
            f"the {measure} distance from {', '.join(bad[:3])} is not a number; its weights diverged: add it again",
            MismatchError,
        )
        order = values.mean(1).argsort(stable=True)
        wins, sure = _wins(values[order]), _stability(values[order], seed)
        names = list(trials)
        kin = []
        for rank, i in enumerate(order.tolist()):
            others, form = (beside or {}).get(names[i], {}), (forms or {}).get(names[i], "")
            kin.append(Kin(names[i], tuple(values[i].tolist()), float(wins[rank]), float(sure[rank]), others, form))
        return cls(target, measure, tuple(kin), **facts)

    def __iter__(self) -> Iterator[Kin]:
        return iter(self.kin)

    def __len__(self) -> int:
        return len(self.kin)

    @property
    def nearest(self) -> Kin:
        """The source with the smallest distance."""
        return self.kin[0]

    @property
    def form(self) -> str:
        """The common form of the Fréchet distance; empty if forms differ, and for other measures.

        >>> Ranking.of("t", "frechet", {"a": [0.1], "b": [0.2]}, forms={"a": "padded/mixed", "b": "model/sorted"}).form
        ''
        """
        forms = {kin.form for kin in self.kin}
        return forms.pop() if len(forms) == 1 else ""

    def top(self, count: int | None) -> "Ranking":
        """The ranking with the nearest `count` sources only."""
        return self if count is None else Ranking(**{**vars(self), "kin": self.kin[:count]})

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary for each source."""
        return [
            {
                "name": kin.name,
                "distance": kin.distance,
                "std": kin.std,
                "trials": list(kin.trials),
                "wins": kin.wins,
                "sure": kin.sure,
                **({"form": kin.form} if kin.form else {}),
                **({"beside": dict(kin.beside)} if kin.beside else {}),
                **({"weak": self.weak[kin.name]} if kin.name in self.weak else {}),
            }
            for kin in self.kin
        ]

    def to_dict(self) -> dict[str, Any]:
        """The ranking as plain JSON values."""
        return {
            "target": self.target,
            "measure": self.measure,
            "form": self.form or None,
            "kin": self.rows(),
            "refused": dict(self.refused),
            "seconds": self.seconds,
            "passes": self.passes,
        }

    def to_pandas(self) -> Any:
        """A data frame with one row for each source; other measures have their own columns."""
        pandas = optional("pandas", "frames", "a data frame")
        return pandas.DataFrame([{**row, **row.pop("beside", {})} for row in self.rows()]).set_index("name")

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of a table; the columns `kin` and `form` are text, all others numbers."""
        beside = list(dict.fromkeys(name for kin in self.kin for name in kin.beside))
        several = len(self.nearest.trials) > 1
        unlike = not self.form and any(kin.form for kin in self.kin)
        spreads = ["±", "nearest in", "this rank"] if several else []
        rows = []
        for rank, kin in enumerate(self.kin, 1):
            name = kin.name + (" (weak)" if kin.name in self.weak else "")
            spread = [f"{kin.std:.3f}", f"{kin.wins:.0%}", f"{kin.sure:.0%}"] if several else []
            others = [f"{kin.beside[name]:.3f}" if name in kin.beside else "–" for name in beside]
            rows.append([str(rank), name, f"{kin.distance:.3f}", *spread, *others, *([kin.form] if unlike else [])])
        return ["", "kin", self.measure, *spreads, *beside, *(["form"] if unlike else [])], rows

    def __str__(self) -> str:
        """The table as text.

        >>> print(Ranking.of("new", "frechet", {"zero": [0.1], "six": [0.25]}))
           kin   frechet
        1  zero  0.100
        2  six   0.250
        """
        head, rows = self.table()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
        return "\n".join(line.rstrip() for line in lines)


def _wins(values: Tensor) -> Tensor:
    """Share of the columns `[K, T]` in which each row is smallest; ties share."""
    first = (values == values.min(0).values).double()
    return (first / first.sum(0)).mean(1)


def _stability(values: Tensor, seed: int) -> Tensor:
    """Share of bootstrap samples of the columns `[K, T]` in which row r has the r-th smallest mean."""
    size, trials = values.shape
    if trials == 1:
        return torch.ones(size, dtype=torch.float64)
    drawn = torch.randint(trials, (RESAMPLES, trials), generator=Generator().manual_seed(seed))
    means = values[:, drawn].mean(2)
    ranks = means.argsort(dim=0, stable=True).argsort(dim=0)
    same: Tensor = (ranks == torch.arange(size)[:, None]).double().mean(1)
    return same
