"""Matrix of the distances of all pairs of tasks, over several trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, require


@dataclass(frozen=True, eq=False)
class DistanceMatrix:
    """Distances of K tasks to each other over T trials; rows are sources, columns targets.

    Attributes:
        tasks: names of the K tasks.
        measure: name of the measure; smaller is nearer.
        trials: `[T, K, K]` float64; NaN for pairs that could not be compared.
        reasons: why they could not be compared, by (source, target).
        forms: of the Fréchet distance (`distance.fisher_based.forms`), by (source, target).

    >>> matrix = DistanceMatrix(("a", "b"), "frechet", torch.tensor([[[0.0, 0.2], [0.4, 0.0]], [[0, 0.4], [0.4, 0]]]))
    >>> round(matrix.mean[0, 1].item(), 4), round(matrix.std[0, 1].item(), 4), matrix.nearest()
    (0.3, 0.1414, {'a': 'b', 'b': 'a'})
    """

    tasks: tuple[str, ...]
    measure: str
    trials: Tensor
    reasons: dict[tuple[str, str], str] | None = None
    forms: dict[tuple[str, str], str] | None = None

    def __post_init__(self) -> None:
        size = len(self.tasks)
        require(
            self.trials.dim() == 3 and tuple(self.trials.shape[1:]) == (size, size),
            f"distances have shape {tuple(self.trials.shape)}, expected (trials, {size}, {size}) for {size} tasks",
            MismatchError,
        )

    @property
    def mean(self) -> Tensor:
        """Mean over trials `[K, K]`."""
        return self.trials.nanmean(0)

    @property
    def std(self) -> Tensor:
        """Standard deviation over the compared trials `[K, K]`; 0 for a single one."""
        counts = (~self.trials.isnan()).sum(0)
        squares = (self.trials - self.mean).square().nansum(0)
        std: Tensor = (squares / (counts - 1).clamp_min(1)).sqrt().masked_fill(counts == 0, torch.nan)
        return std

    @property
    def form(self) -> str:
        """The common form of the Fréchet distance; empty if forms differ or there are none.

        >>> DistanceMatrix(("a",), "frechet", torch.zeros(1, 1, 1), forms={("a", "a"): "padded/mixed"}).form
        'padded/mixed'
        """
        forms = set((self.forms or {}).values())
        return forms.pop() if len(forms) == 1 else ""

    @property
    def title(self) -> str:
        """The measure with its form, for captions."""
        forms = sorted(set((self.forms or {}).values()))
        return f"{self.measure}, {' and '.join(forms)}" if forms else self.measure

    def nearest(self) -> dict[str, str]:
        """For every target the other task with the smallest mean distance; targets without one are left out."""
        others = self.mean.clone().fill_diagonal_(torch.nan).nan_to_num(nan=torch.inf, posinf=torch.inf)
        known = others.isfinite().any(0)
        return {name: self.tasks[int(others[:, b].argmin())] for b, name in enumerate(self.tasks) if known[b]}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; null for pairs that could not be compared."""
        return {
            "tasks": list(self.tasks),
            "measure": self.measure,
            "form": self.form or None,
            **(
                {"forms": [[self.forms.get((a, b)) for b in self.tasks] for a in self.tasks]}
                if self.forms and not self.form
                else {}
            ),
            "trials": len(self.trials),
            "mean": _plain(self.mean),
            "std": _plain(self.std),
            "nearest": self.nearest(),
            "refused": [{"source": a, "target": b, "reason": why} for (a, b), why in (self.reasons or {}).items()],
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any], trials: Tensor) -> "DistanceMatrix":
        """The inverse of `to_dict`, which does not contain the values of single trials.

        >>> matrix = DistanceMatrix(("a",), "frechet", torch.zeros(1, 1, 1), {}, {("a", "a"): "padded/mixed"})
        >>> DistanceMatrix.from_dict(matrix.to_dict(), matrix.trials).forms
        {('a', 'a'): 'padded/mixed'}
        """
        tasks = tuple(facts["tasks"])
        reasons = {(item["source"], item["target"]): item["reason"] for item in facts.get("refused", ())}
        table = facts.get("forms") or [[facts.get("form")] * len(tasks)] * len(tasks)
        pairs = {(a, b): form for a, row in zip(tasks, table, strict=True) for b, form in zip(tasks, row, strict=True)}
        forms = {pair: str(form) for pair, form in pairs.items() if form and pair not in reasons}
        return cls(tasks, facts["measure"], trials, reasons, forms or None)


def _plain(values: Tensor) -> list[list[float | None]]:
    rows: Sequence[Sequence[float]] = values.tolist()
    return [[None if value != value else value for value in row] for row in rows]
