"""Trace of hidden units through one forward pass of a network.

All torch functions of the pass are intercepted, so the network may be any Python code. Layers with weights create new
units; sums join two sets of units into one; concatenations put sets side by side; a flattened map gives each unit a
block of consecutive entries; functions that treat all channels equally keep the units. Other functions are refused.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nearkin.core.errors import MismatchError

CONVOLUTIONS = {f"conv{d}d": (1, 0) for d in (1, 2, 3)} | {f"conv_transpose{d}d": (0, 1) for d in (1, 2, 3)}
LAYERS: Mapping[str, tuple[int | None, int]] = {"linear": (1, 0), "embedding": (None, 1), **CONVOLUTIONS}
"""Functions that read units and compute new ones, with the weight axes of the read and of the computed units."""

POINTWISE = frozenset((
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid",
    "hardtanh", "softplus", "softsign", "sigmoid", "tanh", "logsigmoid", "threshold", "exp", "log", "sqrt", "rsqrt",
    "abs", "neg", "square", "pow", "rpow", "clamp", "add", "radd", "sub", "rsub", "mul", "rmul", "div", "rdiv",
    "maximum", "minimum", "where", "softmax", "log_softmax", "layer_norm", "rms_norm", "dropout", "dropout2d",
    "alpha_dropout", "feature_dropout", "contiguous", "clone", "detach", "to", "float", "double", "type_as",
))  # fmt: skip
BY_CHANNEL = frozenset({"batch_norm", "instance_norm", "prelu", "interpolate"})
RESHAPING = frozenset({"flatten", "unflatten", "view", "reshape", "squeeze", "unsqueeze"})
REDUCING = frozenset({"mean", "sum", "amax", "amin"})
POOLING = {f"{kind}_pool{d}d": d for kind in ("max", "avg", "adaptive_max", "adaptive_avg", "lp") for d in (1, 2, 3)}
QUERIES = frozenset({"get", "size", "dim", "len", "numel", "is_floating_point"})


class UnitSlice(NamedTuple):
    """Entries of a tensor for the units of a group: `size` on an axis from `start` on, equally many for each unit."""

    tensor: str
    axis: int
    start: int
    size: int


class _Units:
    """A set of units; its number can shrink until the whole pass is traced. A single unit is not permuted."""

    def __init__(self, num: int) -> None:
        self._num, self._joined = num, self

    def root(self) -> "_Units":
        return self if self._joined is self else self._joined.root()

    def num(self) -> int:
        return self.root()._num

    def coarsen(self, num: int) -> None:
        """Merge neighbouring units until their number divides `num`."""
        self.root()._num = math.gcd(self.num(), num)

    def join(self, other: "_Units") -> None:
        self.coarsen(other.num())
        other.root()._joined = self.root()


Pieces: TypeAlias = tuple[tuple[_Units, int], ...]  # along an axis: units, and their number of entries


def _fixed(size: int) -> Pieces:
    return ((_Units(1), size),)


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _tensors(argument)


class Trace(TorchFunctionMode):
    """Context manager that traces hidden units through the torch functions called inside it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.network = type(model).__name__
        self.values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._names = {id(value): name for name, value in self.values.items()}
        self._pieces: dict[tuple[str, int], Pieces] = {}
        self._axes: dict[int, tuple[int, Pieces, Tensor]] = {}  # the tensor is kept, so that its id stays unique

    def refuse(self, reason: str) -> NoReturn:
        """Raise an error with the reason."""
        raise MismatchError(
            f"the hidden units of {self.network} cannot be traced: {reason}; compare with aggregate='sorted' or "
            f"'layer', which need no alignment"
        )

    def slices(self) -> list[tuple[int, tuple[UnitSlice, ...]]]:
        """For every set of units that can be permuted, their number and their slices of tensors."""
        slices: dict[_Units, list[UnitSlice]] = {}
        for (name, axis), pieces in self._pieces.items():
            start = 0
            for units, size in pieces:
                if units.num() > 1:
                    slices.setdefault(units.root(), []).append(UnitSlice(name, axis, start, size))
                start += size
        return [(units.num(), tuple(items)) for units, items in slices.items()]

    def units_of(self, tensor: Tensor) -> Pieces:
        """The units of a tensor; empty if it has none."""
        return self._axes[id(tensor)][1] if id(tensor) in self._axes else ()

    def freeze(self, *axes: Pieces) -> None:
        """Exclude these units from permutation."""
        for units, _ in (piece for pieces in axes for piece in pieces):
            units.coarsen(1)

    def _tie(self, first: Pieces, second: Pieces) -> Pieces:
        if [size for _, size in first] == [size for _, size in second]:
            for (units, _), (others, _) in zip(first, second, strict=True):
                units.join(others)
        else:
            self.freeze(first, second)
        return first

    def _record(self, value: Tensor, axis: int, pieces: Pieces) -> Pieces:
        """Record the units on an axis of a weight, joined with those of earlier calls."""
        if id(value) not in self._names:
            self.refuse("one of its weights is computed from others")
        key = (self._names[id(value)], axis)
        self._pieces[key] = self._tie(self._pieces[key], pieces) if key in self._pieces else pieces
        return self._pieces[key]

    def _pin(self, tensors: Iterable[Tensor]) -> None:
        """Exclude weights among these tensors from permutation."""
        for value in (value for value in tensors if id(value) in self._names):
            for axis, size in enumerate(value.shape):
                self._record(value, axis, _fixed(size))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), str(getattr(func, "__name__", func)).strip("_")
        tensors = list(_tensors((args, list((kwargs or {}).values()))))
        traced: tuple[int, Pieces] | None = None
        if name in LAYERS:
            traced = self._layer(name, tensors, (kwargs or {}).get("groups", args[6] if len(args) > 6 else 1), out)
        elif not any(id(tensor) in self._axes for tensor in tensors):
            self._pin(tensors)
        elif isinstance(out, Tensor):
            dim = (kwargs or {}).get("dim", args[1] if len(args) > 1 else None)
            traced = self._after(name, tensors, dim, out)
        elif name not in QUERIES:
            self.refuse(f"the function {name} is not supported")
        self._axes.pop(id(out), None)
        if traced is not None:
            self._axes[id(out)] = (*traced, out)
        return out

    def _layer(self, name: str, tensors: list[Tensor], groups: int, out: Tensor) -> tuple[int, Pieces]:
        (x, weight, *bias), (reads, writes) = tensors, LAYERS[name]
        axis, groups = out.dim() + 1 - weight.dim(), groups if name in CONVOLUTIONS else 1
        where, before, _ = self._axes.get(id(x), (axis, _fixed(x.shape[axis]) if reads is not None else (), x))
        if where != axis:
            self.refuse(f"{name} works on another axis than theirs")
        size = out.shape[axis]
        units: Pieces = ((_Units(size), size),)
        if groups > 1 and groups == x.shape[axis] and writes == 0:  # depthwise: each unit gives its own new units
            units = tuple((piece, count * size // groups) for piece, count in before)
        elif groups > 1:
            self.freeze(before, units)
            self._pin([weight])
        elif reads is not None:
            self._record(weight, reads, before)
        units = self._record(weight, writes, units) if weight.shape[writes] == size else units
        for value in bias:
            self._record(value, 0, units)
        return axis, units

    def _after(self, name: str, tensors: list[Tensor], dim: Any, out: Tensor) -> tuple[int, Pieces] | None:
        """Axis and units of the output of a function without weights; None if it reduces over the units."""
        x = tensors[0]
        if name in POINTWISE:
            return self._pointwise(tensors, out)
        if name in ("cat", "concat", "concatenate"):
            return self._concatenated(tensors, (dim or 0) % out.dim())
        axis, pieces, _ = self._axes.get(id(x), (-1, (), x))
        after: tuple[int, Pieces] | None = (axis, pieces)
        if name in BY_CHANNEL and axis == 1:
            for value in tensors[1:]:
                self._record(value, 0, pieces if len(value) > 1 else _fixed(1))
        elif name in REDUCING and axis >= 0:
            reduced = [d % x.dim() for d in ([dim] if isinstance(dim, int) else dim or range(x.dim()))]
            shift = sum(d < axis for d in reduced) if out.dim() < x.dim() else 0
            after = None if axis in reduced else (axis - shift, pieces)
        elif name in RESHAPING and axis >= 0:
            after = _reshaped(axis, pieces, x.shape, out.shape) or self.refuse(f"{name} mixes them with another axis")
        elif not 0 <= axis < x.dim() - POOLING.get(name, x.dim()):
            self.refuse(f"the function {name} is not supported")
        return after

    def _pointwise(self, tensors: list[Tensor], out: Tensor) -> tuple[int, Pieces] | None:
        """Axis and units of an elementwise function; axes are aligned from the last one, as in broadcasting."""
        known = [(self._axes[id(t)][0] - t.dim(), t) for t in tensors if id(t) in self._axes]
        spread = {axis: t for axis, t in known if t.shape[axis] == out.shape[axis]}
        if len(spread) > 1:
            self.refuse("units of two axes are combined")
        for axis, t in spread.items():
            pieces = self.units_of(t)
            for other in (other for other in tensors if other.dim() >= -axis and other.shape[axis] > 1):
                if id(other) in self._axes:
                    self._tie(pieces, self.units_of(other))
                elif id(other) in self._names:
                    self._record(other, other.dim() + axis, pieces)
                else:
                    self.freeze(pieces)
            return out.dim() + axis, pieces
        return None

    def _concatenated(self, tensors: list[Tensor], dim: int) -> tuple[int, Pieces]:
        axes = {self._axes[id(t)][0] for t in tensors if id(t) in self._axes}
        if len(axes) > 1:
            self.refuse("units of two axes are concatenated")
        (axis,) = axes
        sides = [self.units_of(t) or _fixed(t.shape[axis]) for t in tensors]
        if dim == axis:
            return axis, tuple(piece for side in sides for piece in side)
        for side in sides[1:]:
            self._tie(sides[0], side)
        return axis, sides[0]


def _reshaped(axis: int, pieces: Pieces, before: Sequence[int], after: Sequence[int]) -> tuple[int, Pieces] | None:
    """Axis and units in a new shape: split into channels, or repeated with a block for each; None if neither."""
    left, size = math.prod(before[:axis]), before[axis]
    for new_axis, new in enumerate(after):
        outer = math.prod(after[:new_axis])
        if outer == left and size % new == 0 and (new > 1 or size == 1):
            inner = size // new
            if any(count % inner for _, count in pieces):
                return None
            for units, count in pieces:
                units.coarsen(count // inner)
            return new_axis, tuple((units, count // inner) for units, count in pieces)
        if left % outer == 0 and new % (left // outer * size) == 0:
            block = new // (left // outer * size)
            return new_axis, tuple((units, count * block) for units, count in pieces) * (left // outer)
    return None
