"""Examples: inputs with their targets, and the scaling that networks see them through."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, require
from nearkin.tasks.augment import Augmentation
from nearkin.tasks.rows import Rows, Values, chosen, gathered, glance, in_memory

SCALING_SAMPLES = 10_000  # a mean to two or three digits, at the cost of a glance
READY_BYTES = 64 * 2**20
LAZY_SAMPLES = 2_048  # of rows that must be decoded


def is_constant(std: Tensor, largest: Tensor, dtype: torch.dtype) -> Tensor:
    r"""Whether columns vary by no more than rounding: $\sigma \le 2 \epsilon \max |x|$, $\epsilon$ that of their type.

    >>> is_constant(torch.tensor([0.0, 5e-7, 1e-9]), torch.tensor([0.0, 1e-6, 1.0]), torch.float32)
    tensor([ True, False,  True])
    """
    return std <= 2 * torch.finfo(dtype).eps * largest


class Batch(NamedTuple):
    """Inputs `[B, *input_shape]` and targets, as a network and its likelihood take them."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Scaling:
    """`(value − mean) / std` along axis 1, the channels of images `[B, C, H, W]` and the columns of tables `[B, C]`.

    Attributes:
        mean: mean of each channel or column, None for the identity.
        std: its standard deviation; for a constant one its largest magnitude, at least 1.
        constant: positions of the channels or columns that are constant within the precision of their type.

    >>> Scaling(torch.tensor([1.0]), torch.tensor([2.0]))(torch.tensor([[5.0]]))
    tensor([[2.]])
    >>> Scaling()(torch.tensor([[5]]))
    tensor([[5]])
    """

    mean: Tensor | None = None
    std: Tensor | None = None
    constant: tuple[int, ...] = ()

    def __call__(self, value: Tensor) -> Tensor:
        """Scaled values; without a mean, the values themselves."""
        if self.mean is None or self.std is None:
            return value
        shape = (1, -1, *[1] * (value.dim() - 2))
        return value.sub(self.mean.view(shape)).div_(self.std.view(shape))

    def inverse(self, value: Tensor) -> Tensor:
        """Back to the units of the data."""
        if self.mean is None or self.std is None:
            return value
        shape = (1, -1, *[1] * (value.dim() - 2))
        return value.mul(self.std.view(shape)).add_(self.mean.view(shape))

    @classmethod
    def of(cls, rows: Rows) -> "Scaling":
        """Mean and standard deviation of each channel or column; whole numbers keep their value.

        What counts as constant is relative to the size of the values (`is_constant`), so that units do not matter.

        >>> from nearkin.tasks.rows import Values
        >>> scaling = Scaling.of(Values(torch.tensor([[0.0, 7.0, 1e-20], [2.0, 7.0, 3e-20]])))
        >>> scaling(torch.tensor([[1.0, 14.0, 3e-20]])), scaling.constant
        (tensor([[0., 1., 1.]]), (1,))
        """
        index = glance(len(rows), SCALING_SAMPLES if in_memory(rows) else LAZY_SAMPLES)
        origin = total = square = largest = torch.zeros(())
        cells, dtype = 0, torch.float32
        for part in index.split(1024):
            value = rows.take(part)
            if not value.is_floating_point() or value.dim() < 2:
                return cls()
            columns = value.transpose(0, 1).flatten(1).to(torch.float64)
            if cells == 0:  # sums of differences from the first cell keep the digits in which large values differ
                origin, dtype = columns[:, 0], value.dtype
            apart = columns - origin[:, None]
            total, square = total + apart.sum(1), square + apart.square().sum(1)
            largest = torch.maximum(largest, columns.abs().amax(1))
            cells += columns.shape[1]
        shift = total / cells
        std = (square / cells - shift.square()).clamp_min(0).sqrt()
        constant = is_constant(std, largest, dtype)
        std = torch.where(constant, largest.clamp_min(1), std)
        positions = tuple(torch.nonzero(constant).flatten().tolist())
        return cls((origin + shift).to(torch.float32), std.to(torch.float32), positions)

    def to_dict(self) -> dict[str, list[float]] | None:
        """Plain numbers for the zoo; None for the identity."""
        if self.mean is None or self.std is None:
            return None
        constant = {"constant": list(self.constant)} if self.constant else {}
        return {"mean": self.mean.tolist(), "std": self.std.tolist(), **constant}

    @classmethod
    def from_dict(cls, facts: dict[str, list[float]] | None) -> "Scaling":
        """The inverse of `to_dict`."""
        if facts is None:
            return cls()
        constant = tuple(int(position) for position in facts.get("constant", ()))
        return cls(torch.tensor(facts["mean"]), torch.tensor(facts["std"]), constant)


@dataclass(frozen=True, eq=False)
class Examples:
    """N inputs and N targets, read by position.

    >>> from nearkin.tasks.rows import Values
    >>> examples = Examples(Values(torch.tensor([[1.0], [3.0]])), Values(torch.tensor([0, 1])))
    >>> examples.take(torch.tensor([1]))
    Batch(x=tensor([[3.]]), y=tensor([1]))
    """

    inputs: Rows
    targets: Rows
    scaling: Scaling = Scaling()
    target_scaling: Scaling = Scaling()

    def __post_init__(self) -> None:
        require(
            len(self.inputs) == len(self.targets),
            f"{len(self.inputs)} inputs but {len(self.targets)} targets; give each input its own",
            DataError,
        )

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Tensor, augment: Augmentation | None = None, rng: Generator | None = None) -> Batch:
        """The batch at `index`: inputs read, augmented in their own units, then scaled."""
        # images that lie channels last are laid anew: torch's backward pass of narrow strided convolutions writes past
        # its memory in that layout (2.13, CPU)
        x = self.inputs.take(index).contiguous()
        if augment is not None:
            x = augment(x, rng if rng is not None else torch.default_generator)
        return Batch(self.scaling(x), self.target_scaling(self.targets.take(index)))

    def ready(self, limit: int = READY_BYTES) -> "Examples":
        """The same examples with their scaled values in memory, where those are small: reading them is then a copy."""
        if not (in_memory(self.inputs) and in_memory(self.targets)) or len(self) == 0:
            return self
        first = self.first(1)
        if len(self) * (first.x.nbytes + first.y.nbytes) > limit:
            return self
        x, y = self.all()
        return Examples(Values(x), Values(y))

    def chosen(self, index: Tensor) -> "Examples":
        """The examples at `index`, under the same scaling."""
        return replace(self, inputs=chosen(self.inputs, index), targets=chosen(self.targets, index))

    def first(self, count: int) -> Batch:
        """The first `count` examples as one batch."""
        return self.take(torch.arange(min(count, len(self))))

    def glance(self, count: int) -> Batch:
        """`count` examples from all over, always the same ones, as one batch."""
        return self.take(glance(len(self), count))

    def all(self) -> Batch:
        """Everything as one batch."""
        return self.first(len(self))

    def labels(self) -> Tensor:
        """All targets as one tensor, unscaled."""
        return gathered(self.targets)
