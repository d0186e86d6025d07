"""Rows: samples read by position, from memory, from a mapped file or from image files.

The inputs and targets of every task are `Rows`; those of a derived task are rows over other rows. `take` is a pure
function of its index, so that two readers of one task see the same values. `take` returns images as float32 in [0, 1],
channels first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, require


@runtime_checkable
class Rows(Protocol):
    """`len(rows)` samples of one shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        ...

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> Tensor:
        """Rows `[B, *shape]` at the int64 positions `index` `[B]`."""
        ...


@dataclass(frozen=True, eq=False)
class TensorRows:
    """Rows along the first axis of a tensor."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.tensor.shape[1:])

    def __len__(self) -> int:
        return len(self.tensor)


@dataclass(frozen=True, eq=False)
class Values(TensorRows):
    """Rows of a tensor, unchanged (labels, tables, tokens).

    >>> Values(torch.tensor([5, 6, 7])).take(torch.tensor([2, 0]))
    tensor([7, 5])
    """

    def take(self, index: Tensor) -> Tensor:
        """Rows at `index`."""
        return self.tensor[index]


@dataclass(frozen=True, eq=False)
class Pixels(TensorRows):
    """Images `[N, C, H, W]`, stored as bytes (a quarter of the memory) and read as float32 in [0, 1].

    The tensor may be a view of a mapped file: only the requested pages are read.

    >>> Pixels(torch.full((1, 1, 1, 2), 255, dtype=torch.uint8)).take(torch.tensor([0])).tolist()
    [[[[1.0, 1.0]]]]
    """

    def __post_init__(self) -> None:
        if self.tensor.dtype != torch.uint8 or self.tensor.dim() != 4:
            raise DataError(f"pixels must be uint8 [N, C, H, W], got {self.tensor.dtype} {list(self.tensor.shape)}")

    def take(self, index: Tensor) -> Tensor:
        """Images at `index` as float32 in [0, 1]."""
        return self.tensor[index].to(torch.float32).div_(255.0)


@dataclass(frozen=True, eq=False)
class Windows:
    """Consecutive windows of `length` tokens of a stream `[T]`, shifted by `offset` tokens.

    The inputs of a language model have offset 0, its targets offset 1.

    >>> Windows(torch.arange(7), length=3, offset=1).take(torch.tensor([0, 1])).tolist()
    [[1, 2, 3], [4, 5, 6]]
    """

    tokens: Tensor
    length: int
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one window."""
        return (self.length,)

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.length)

    def take(self, index: Tensor) -> Tensor:
        """Windows `[B, length]` at `index`."""
        start = index[:, None] * self.length + self.offset
        return self.tokens[start + torch.arange(self.length)]


@dataclass(frozen=True, eq=False)
class Chosen:
    """The rows at positions `index` `[N]` of other rows; `chosen` builds it without nesting."""

    rows: Rows
    index: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.rows.shape

    def __len__(self) -> int:
        return len(self.index)

    def take(self, index: Tensor) -> Tensor:
        """Rows at `index`, a position among the chosen rows."""
        return self.rows.take(self.index[index])


@dataclass(frozen=True, eq=False)
class Joined:
    """The rows of `first`, then those of `second`.

    >>> Joined(Values(torch.tensor([1, 2])), Values(torch.tensor([3]))).take(torch.tensor([2, 0]))
    tensor([3, 1])
    """

    first: Rows
    second: Rows

    def __post_init__(self) -> None:
        if self.first.shape != self.second.shape:
            raise DataError(f"rows of shape {self.first.shape} and {self.second.shape} cannot be joined")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.first.shape

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def take(self, index: Tensor) -> Tensor:
        """Rows at `index`, in the order of `index`."""
        late = index >= len(self.first)
        if not late.any():
            return self.first.take(index)
        if late.all():
            return self.second.take(index - len(self.first))
        early_rows = self.first.take(index[~late])
        out = early_rows.new_empty((len(index), *early_rows.shape[1:]))
        out[~late] = early_rows
        out[late] = self.second.take(index[late] - len(self.first))
        return out


@dataclass(frozen=True, eq=False)
class Mapped:
    """Rows passed through `function(values, index)` when they are read; it must treat each row on its own.

    >>> double = Mapped(Values(torch.tensor([1.0, 2.0])), lambda value, index: 2 * value)
    >>> double.take(torch.tensor([1])), double.shape
    (tensor([4.]), ())
    """

    rows: Rows
    function: Callable[[Tensor, Tensor], Tensor]
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        first = torch.zeros(1, dtype=torch.int64)
        require(len(self.rows) > 0, "there are no rows to map; add data", DataError)
        object.__setattr__(self, "shape", tuple(self.function(self.rows.take(first), first).shape[1:]))

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Tensor) -> Tensor:
        """Mapped rows at `index`."""
        return self.function(self.rows.take(index), index)


def chosen(rows: Rows, index: Tensor) -> Rows:
    """Rows at `index`: `Chosen` rows are not nested, and labels are copied at once.

    >>> chosen(chosen(Values(torch.arange(9.0)), torch.tensor([8, 4, 2])), torch.tensor([0, 2])).take(torch.tensor([1]))
    tensor([2.])
    """
    if isinstance(rows, Chosen):
        return Chosen(rows.rows, rows.index[index])
    if isinstance(rows, Values) and rows.tensor.dim() == 1:
        return Values(rows.tensor[index])
    return Chosen(rows, index)


def in_memory(rows: Rows) -> bool:
    """Whether reading a row is a copy, without a file to open and decode."""
    if isinstance(rows, Chosen):
        return in_memory(rows.rows)
    if isinstance(rows, Joined):
        return in_memory(rows.first) and in_memory(rows.second)
    return isinstance(rows, Values | Pixels | Windows)


def subset_index(count: int, size: int) -> Tensor:
    """At most `size` of `count` positions in rising order: a random draw that is the same in every call.

    The positions are random because evenly spaced ones can meet a period of the data: the even images of MNIST are
    lighter than the odd ones.

    >>> subset_index(5, 9).tolist(), len(subset_index(1000, 64)), subset_index(9, 3).equal(subset_index(9, 3))
    ([0, 1, 2, 3, 4], 64, True)
    """
    if size >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=Generator().manual_seed(count))[:size].sort().values


def blocks(rows: Rows, size: int = 1024) -> Iterator[Tensor]:
    """All rows in order, `size` at a time."""
    for start in range(0, len(rows), size):
        yield rows.take(torch.arange(start, min(start + size, len(rows))))


def gathered(rows: Rows) -> Tensor:
    """All rows as one tensor `[N, *shape]`.

    >>> gathered(chosen(Values(torch.arange(4)), torch.tensor([3, 1])))
    tensor([3, 1])
    """
    require(len(rows) > 0, "there are no rows to gather; add data", DataError)
    return torch.cat(list(blocks(rows)))
