"""torch's data sets as rows: any object with a length that gives `(input, target)` by number."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from nearkin.core.errors import DataError, require


@dataclass(frozen=True, eq=False)
class DatasetInputs:
    """The inputs of a data set, read one by one when taken; bytes become float32 in [0, 1].

    >>> from torch.utils.data import TensorDataset
    >>> DatasetInputs.of(TensorDataset(torch.ones(3, 2), torch.zeros(3)), "toy").take(torch.tensor([2])).tolist()
    [[1.0, 1.0]]
    """

    dataset: Dataset[Any]
    name: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, dataset: Dataset[Any], name: str) -> "DatasetInputs":
        """Look at the first sample to learn the shape."""
        require(
            hasattr(dataset, "__len__"), f"{name}: a data set without a length cannot be a task; give it one", DataError
        )
        require(len(dataset) > 0, f"{name}: the data set is empty", DataError)  # type: ignore[arg-type]
        return cls(dataset, name, tuple(_value(dataset[0][0], name).shape))

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def take(self, index: Tensor) -> Tensor:
        """Inputs at `index`; a shape that differs from the first, or a value that is no number, is an error."""
        found = [_value(self.dataset[i][0], self.name) for i in index.tolist()]
        for i, value in zip(index.tolist(), found, strict=True):
            if tuple(value.shape) != self.shape:
                raise DataError(
                    f"{self.name}: sample {i} has shape {tuple(value.shape)}, the first {self.shape}; "
                    f"bring all to one shape"
                )
            require(bool(value.isfinite().all()), f"{self.name}: sample {i} holds NaN or infinity; mend it", DataError)
        return torch.stack(found)


def dataset_targets(dataset: Dataset[Any], name: str) -> np.ndarray[Any, Any]:
    """All targets: the attribute `targets` where there is one, else read sample by sample."""
    known = getattr(dataset, "targets", None)
    if known is not None:
        return np.asarray(known)
    return np.asarray([np.asarray(dataset[i][1]) for i in range(len(dataset))])  # type: ignore[arg-type]


def _value(sample: Any, name: str) -> Tensor:
    """One input as float32, channels first."""
    value = sample if isinstance(sample, Tensor) else torch.from_numpy(np.array(sample))
    if value.dtype == torch.uint8:
        value = value.float().div(255)
        if value.dim() == 2:
            value = value[None]
        elif value.dim() == 3 and value.shape[0] not in (1, 3, 4):
            value = value.permute(2, 0, 1)
    require(
        value.dim() in (1, 3),
        f"{name}: an input must be a row [D] or an image [C, H, W], got {list(value.shape)}; "
        f"convert it in the data set",
        DataError,
    )
    return value.to(torch.float32)
