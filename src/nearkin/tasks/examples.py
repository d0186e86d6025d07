"""Examples: inputs with their targets, and how both are scaled for a network."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError
from nearkin.tasks.augment import Augmentation
from nearkin.tasks.rows import Rows, Values, chosen, gathered, in_memory, subset_index

SCALING_SAMPLES = 10_000  # give a mean to two or three digits
READY_BYTES = 64 * 2**20
LAZY_SAMPLES = 2_048  # where rows must be decoded


def is_constant(std: Tensor, largest: Tensor, dtype: torch.dtype) -> Tensor:
    r"""Whether columns vary by rounding only: $\sigma \le 2 \epsilon \max |x|$, with $\epsilon$ of their type.

    >>> is_constant(torch.tensor([0.0, 5e-7, 1e-9]), torch.tensor([0.0, 1e-6, 1.0]), torch.float32)
    tensor([ True, False,  True])
    """
    return std <= 2 * torch.finfo(dtype).eps * largest


class Batch(NamedTuple):
    """Inputs `[B, *input_shape]` and targets, in the form that a network and its likelihood expect."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Scaling:
    """`(value − mean) / std` along axis 1, the channels of images `[B, C, H, W]` and the columns of tables `[B, C]`.

    Attributes:
        mean: mean of each channel or column, None for the identity.
        std: standard deviation of each channel or column; for a constant one its largest magnitude, at least 1; 1 for
            a column that keeps its scale.
        constant: positions of channels or columns that are constant within the precision of their type.

    >>> Scaling(torch.tensor([1.0]), torch.tensor([2.0]))(torch.tensor([[5.0]]))
    tensor([[2.]])
    >>> Scaling()(torch.tensor([[5]]))
    tensor([[5]])
    """

    mean: Tensor | None = None
    std: Tensor | None = None
    constant: tuple[int, ...] = ()

    def __call__(self, value: Tensor) -> Tensor:
        """Scale values; without a mean, return them unchanged."""
        if self.mean is None or self.std is None:
            return value
        shape = (1, -1, *[1] * (value.dim() - 2))
        return value.sub(self.mean.view(shape)).div_(self.std.view(shape))

    def inverse(self, value: Tensor) -> Tensor:
        """Convert scaled values back to the units of the data."""
        if self.mean is None or self.std is None:
            return value
        shape = (1, -1, *[1] * (value.dim() - 2))
        return value.mul(self.std.view(shape)).add_(self.mean.view(shape))

    @classmethod
    def of(cls, rows: Rows, unscaled: Sequence[int] = ()) -> "Scaling":
        """Mean and standard deviation of each channel or column; integers are not scaled.

        The test for constant columns (`is_constant`) is relative to the size of the values: units do not matter. The
        columns at the positions `unscaled` keep their scale: only their mean is subtracted.

        >>> from nearkin.tasks.rows import Values
        >>> scaling = Scaling.of(Values(torch.tensor([[0.0, 7.0, 1e-20], [2.0, 7.0, 3e-20]])))
        >>> scaling(torch.tensor([[1.0, 14.0, 3e-20]])), scaling.constant
        (tensor([[0., 1., 1.]]), (1,))
        """
        index = subset_index(len(rows), SCALING_SAMPLES if in_memory(rows) else LAZY_SAMPLES)
        origin = total = square = largest = torch.zeros(())
        cells, dtype = 0, torch.float32
        for positions in index.split(1024):
            value = rows.take(positions)
            if not value.is_floating_point() or value.dim() < 2:
                return cls()
            columns = value.transpose(0, 1).flatten(1).to(torch.float64)
            if cells == 0:  # sums of differences from the first cell keep the digits in which large values differ
                origin, dtype = columns[:, 0], value.dtype
            difference = columns - origin[:, None]
            total, square = total + difference.sum(1), square + difference.square().sum(1)
            largest = torch.maximum(largest, columns.abs().amax(1))
            cells += columns.shape[1]
        shift = total / cells
        std = (square / cells - shift.square()).clamp_min(0).sqrt()
        constant = is_constant(std, largest, dtype)
        std = torch.where(constant, largest.clamp_min(1), std).to(torch.float32)
        std[list(unscaled)] = 1.0
        return cls((origin + shift).to(torch.float32), std, tuple(torch.nonzero(constant).flatten().tolist()))

    def to_dict(self) -> dict[str, list[float]] | None:
        """JSON values for the zoo; None for the identity."""
        if self.mean is None or self.std is None:
            return None
        constant = {"constant": list(self.constant)} if self.constant else {}
        return {"mean": self.mean.tolist(), "std": self.std.tolist(), **constant}

    @classmethod
    def from_dict(cls, facts: dict[str, list[float]] | None) -> "Scaling":
        """Rebuild the scaling from `to_dict`."""
        if facts is None:
            return cls()
        constant = tuple(int(position) for position in facts.get("constant", ()))
        return cls(torch.tensor(facts["mean"]), torch.tensor(facts["std"]), constant)


@dataclass(frozen=True, eq=False)
class Examples:
    """N inputs and their N targets, read by position; `weights` `[N]` are those of training samples (default: all 1).

    >>> from nearkin.tasks.rows import Values
    >>> examples = Examples(Values(torch.tensor([[1.0], [3.0]])), Values(torch.tensor([0, 1])))
    >>> examples.take(torch.tensor([1]))
    Batch(x=tensor([[3.]]), y=tensor([1]))
    """

    inputs: Rows
    targets: Rows
    scaling: Scaling = Scaling()
    target_scaling: Scaling = Scaling()
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise DataError(f"{len(self.inputs)} inputs but {len(self.targets)} targets; give one target per input")
        if self.weights is not None and len(self.weights) != len(self.inputs):
            raise DataError(f"{len(self.inputs)} inputs but {len(self.weights)} weights; give one weight per input")

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Tensor, augment: Augmentation | None = None, rng: Generator | None = None) -> Batch:
        """The batch at `index`: inputs are read, augmented in their own units, then scaled."""
        # `contiguous`: with channels last, torch's backward pass of narrow strided convolutions writes beyond its
        # memory (2.13, CPU)
        x = self.inputs.take(index).contiguous()
        if augment is not None:
            x = augment(x, rng if rng is not None else torch.default_generator)
        return Batch(self.scaling(x), self.target_scaling(self.targets.take(index)))

    def ready(self, limit: int = READY_BYTES) -> "Examples":
        """The same examples with scaled values in memory, if these take at most `limit` bytes, for fast reading."""
        if not (in_memory(self.inputs) and in_memory(self.targets)) or len(self) == 0:
            return self
        first = self.first(1)
        if len(self) * (first.x.nbytes + first.y.nbytes) > limit:
            return self
        x, y = self.all()
        return Examples(Values(x), Values(y), weights=self.weights)

    def chosen(self, index: Tensor) -> "Examples":
        """The examples at `index`, with the same scaling."""
        weights = None if self.weights is None else self.weights[index]
        return replace(self, inputs=chosen(self.inputs, index), targets=chosen(self.targets, index), weights=weights)

    def first(self, count: int) -> Batch:
        """The first `count` examples as one batch."""
        return self.take(torch.arange(min(count, len(self))))

    def fixed_subset(self, count: int) -> Batch:
        """A batch of `count` examples drawn at random, the same ones in every call."""
        return self.take(subset_index(len(self), count))

    def glance(self, count: int) -> Batch:
        """Old name of `fixed_subset`."""
        warnings.warn("Examples.glance is now Examples.fixed_subset", DeprecationWarning, stacklevel=2)
        return self.fixed_subset(count)

    def all(self) -> Batch:
        """All examples as one batch."""
        return self.first(len(self))

    def labels(self) -> Tensor:
        """All targets as one tensor, not scaled."""
        return gathered(self.targets)
