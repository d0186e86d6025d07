"""Features in float64 with what several scores compute from them: centred values and their Gram matrix.

The Gram matrix takes most of the time of a score. Scores of one table share it, and wide features share the products of
samples also with scores of parts of the samples, such as those of a jackknife.

Notation: N samples, D features.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, Union

import torch
from torch import Tensor

from nearkin.distance.baselines.inputs import centred, rows

LEAST_SPREAD = 1e-6  # of a part's samples, relative to all; below it products of all samples have lost its digits

Features: TypeAlias = Union[Tensor, "FeatureTable"]
"""Features `[N, D]`, as a tensor or as a table that several scores share."""


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Checked features of N samples in float64.

    Attributes:
        values: `[N, D]`.
        noise: rounding error of the features as they were given, relative to the largest one.
        whole: the table from which the samples were chosen, if any, with their positions.

    >>> import torch
    >>> table = FeatureTable.of(torch.tensor([[0.0, 3.0, 1.0], [2.0, 3.0, 1.0], [4.0, 3.0, 1.0]]))
    >>> table.gram.tolist()
    [[8.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    >>> table.chosen(torch.tensor([0, 1])).gram.tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """

    values: Tensor
    noise: float
    whole: "tuple[FeatureTable, Tensor] | None" = None

    @classmethod
    def of(cls, features: Features, name: str = "features", least: int = 2) -> "FeatureTable":
        """A table of features `[N, D]`, finite, of `least` samples or more; a table is returned as it is."""
        if isinstance(features, FeatureTable):
            return features
        single = features.dtype if features.is_floating_point() else torch.float64
        return cls(rows(features, name, least), torch.finfo(single).eps)

    def chosen(self, index: Tensor) -> "FeatureTable":
        """The table of the samples at positions `[M]`."""
        return FeatureTable(self.values[index], self.noise, (self, index))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def wide(self) -> bool:
        """Whether there are more features than samples."""
        return self.values.shape[1] > len(self.values)

    @cached_property
    def centred(self) -> Tensor:
        """Values minus the mean of each column; a constant column is exactly 0."""
        return centred(self.values)

    @cached_property
    def gram(self) -> Tensor:
        """The smaller one of both products of centred values: of samples `[N, N]` if they are wide, else `[D, D]`."""
        if not self.wide:
            return self.centred.T @ self.centred
        if self.whole is not None and self.whole[0].wide:
            table, index = self.whole
            part = table.gram[index[:, None], index]
            part -= part.mean(0)
            part -= part.mean(1, keepdim=True)
            if float(part.diagonal().max()) > LEAST_SPREAD * float(table.gram.diagonal().max()):
                return part
        return self.centred @ self.centred.T
