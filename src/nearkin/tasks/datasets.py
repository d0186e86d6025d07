"""torch data sets as rows: any object with a length that returns `(input, target)` by number."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from nearkin.core.errors import DataError


@dataclass(frozen=True, eq=False)
class DatasetInputs:
    """The inputs of a data set, read one by one when needed; bytes become float32 in [0, 1].

    >>> from torch.utils.data import TensorDataset
    >>> DatasetInputs.of(TensorDataset(torch.ones(3, 2), torch.zeros(3)), "toy").take(torch.tensor([2])).tolist()
    [[1.0, 1.0]]
    """

    dataset: Dataset[Any]
    name: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, dataset: Dataset[Any], name: str) -> "DatasetInputs":
        """Read the shape from the first sample."""
        if not hasattr(dataset, "__len__"):
            raise DataError(f"{name}: a data set without a length cannot be a task; give it one")
        if len(dataset) == 0:
            raise DataError(f"{name}: the data set is empty; add samples")
        return cls(dataset, name, tuple(_value(dataset[0][0], name).shape))

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def take(self, index: Tensor) -> Tensor:
        """Inputs at `index`; another shape than the first sample's, NaN and infinity are refused."""
        values = [_value(self.dataset[i][0], self.name) for i in index.tolist()]
        for i, value in zip(index.tolist(), values, strict=True):
            if tuple(value.shape) != self.shape:
                raise DataError(
                    f"{self.name}: sample {i} has shape {tuple(value.shape)}, the first {self.shape}; "
                    f"give all the same shape"
                )
            if not value.isfinite().all():
                raise DataError(f"{self.name}: sample {i} holds NaN or infinity; fix or remove it")
        return torch.stack(values)


def dataset_targets(dataset: Dataset[Any], name: str) -> np.ndarray[Any, Any]:
    """All targets: the attribute `targets` if there is one, else read sample by sample."""
    known = getattr(dataset, "targets", None)
    if known is not None:
        return np.asarray(known)
    return np.asarray([np.asarray(dataset[i][1]) for i in range(len(dataset))])  # type: ignore[arg-type]


def _value(sample: Any, name: str) -> Tensor:
    value = sample if isinstance(sample, Tensor) else torch.from_numpy(np.array(sample))
    if value.dtype == torch.uint8:
        value = value.float().div(255)
        if value.dim() == 2:
            value = value[None]
        elif value.dim() == 3 and value.shape[0] not in (1, 3, 4):
            value = value.permute(2, 0, 1)
    if value.dim() not in (1, 3):
        raise DataError(
            f"{name}: an input must be a row [D] or an image [C, H, W], got {list(value.shape)}; "
            f"convert it in the data set"
        )
    return value.to(torch.float32)
