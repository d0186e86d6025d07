"""A tangent kernel filled block by block within a memory budget.

Features (`layer_kernels`) of all samples are held if they fit; else those of two blocks of samples at a time, made anew
for each meeting. Of a Gram matrix only the lower half is computed.

Notation: N and M samples on the two sides, R outputs kept apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import functional_call

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.events import Progress, Work
from nearkin.fisher.layer_kernels import Feature, Pairs, add_kernel, room_for, write
from nearkin.fisher.tangent_features import broken_layer, features
from nearkin.fisher.tangent_trust import Sight

Features: TypeAlias = Mapping[str, Feature]

BATCH_BYTES = 16 * 2**20  # of a batch's graph: more leaves the caches and gains nothing, less wastes calls
STRIP = 128  # rows of the kernel that are filled at once
WIDTH = 1024  # columns


@dataclass(frozen=True, eq=False)
class Sides:
    """The two sides of a kernel, and how they are cut.

    Attributes:
        x: `[N, …]`.
        x2: `[M, …]`; None for a Gram matrix.
        batch: samples in one forward pass.
        block: samples whose features are held together.
        num_pairs: layers whose kernel runs over pairs of positions.
    """

    x: Tensor
    x2: Tensor | None
    batch: int
    block: int
    num_pairs: int

    @property
    def other(self) -> Tensor:
        """The second side."""
        return self.x if self.x2 is None else self.x2

    def told(self, seen: Sight) -> str:
        """The choice that was made, in a sentence."""
        n, m = len(self.x), len(self.other)
        held = f"blocks of {self.block:,} samples" if self.block < max(n, m) else "all samples at once"
        return (
            f"tangent kernel of {n:,} x {m:,} samples and {len(seen.outputs)} outputs: {self.num_pairs} layers over "
            f"pairs of positions, {len(seen.layers) - self.num_pairs} by their per-sample gradients, "
            f"{len(seen.exact)} parameters by automatic differentiation; {held}, batches of {self.batch}"
        )


def cut(seen: Sight, x: Tensor, x2: Tensor | None, batch_size: int | None, memory: int) -> Sides:
    """Sides cut into batches and blocks that fit the memory."""
    require(batch_size is None or batch_size >= 1, f"batch_size must be 1 or more, got {batch_size}")
    count, partners = len(x) + (0 if x2 is None else len(x2)), len(x if x2 is None else x2)
    made = features(seen, x[:1], partners).values()
    each = sum(one.num_bytes() for one in made)
    whole = len(x) * partners * _kept(seen) ** 2 * _like(seen).element_size()
    room = (memory - whole) // 2  # the other half is for batches, and for features while they are joined
    require(
        room >= 2 * each,
        f"a kernel of {whole / 2**20:,.1f} MiB, and {each / 2**20:,.1f} MiB for each sample, do not fit memory of "
        f"{memory / 2**20:,.1f} MiB; raise memory, take fewer samples or outputs, or use tangent_product",
    )
    graph = max(1, graph_bytes(seen, x[:1]))
    fitting = min(BATCH_BYTES // graph, room // (2 * graph * (1 + len(seen.outputs))))
    batch = min(max(len(x), partners), batch_size or max(1, fitting))
    block = count if count * each <= room else room // (2 * each)
    return Sides(x, x2, batch, block, sum(isinstance(one, Pairs) for one in made))


def graph_bytes(seen: Sight, x: Tensor) -> int:
    """Memory that the graph of a batch keeps beside the weights."""
    known, total = {value.data_ptr() for value in seen.weights.values()}, 0

    def count(value: Tensor) -> Tensor:
        nonlocal total
        total += 0 if value.data_ptr() in known else value.nbytes
        return value

    free = {name: seen.weights[name].detach().requires_grad_() for name, _ in seen.model.named_parameters()}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda value: value):
        functional_call(seen.model, {**seen.weights, **free}, (x.detach(),))
    return total


def filled(seen: Sight, sides: Sides) -> Work[Tensor]:
    """The kernel `[N R, M R]`."""
    n, m, kept = len(sides.x), len(sides.other), _kept(seen)
    out = _like(seen).new_zeros(n * kept, m * kept)
    for top in range(0, n, sides.block):
        left = yield from _held(seen, sides.x, top, sides)
        below = min(n, top + sides.block)
        for start in range(0, m if sides.x2 is not None else below, sides.block):
            same = sides.x2 is None and start == top
            right = left if same else (yield from _held(seen, sides.other, start, sides))
            tile = out[top * kept : below * kept, start * kept : (start + sides.block) * kept]
            _contract(tile, left, right, kept, same)
        yield Progress("rows of the kernel", below, n)
    if sides.x2 is None:
        _mirror(out)
    return out


def _kept(seen: Sight) -> int:
    """R."""
    return 1 if seen.summed else len(seen.outputs)


def _like(seen: Sight) -> Tensor:
    """A tensor of the kernel's dtype and device."""
    return next(value for value in seen.weights.values() if value.is_floating_point())


def _held(seen: Sight, x: Tensor, start: int, sides: Sides) -> Work[Features]:
    """Features of the block of samples that begins at `start`."""
    held: dict[str, Feature] = {}
    block = x[start : start + sides.block]
    for first in range(0, len(block), sides.batch):
        batch = block[first : first + sides.batch]
        made = features(seen, batch, len(sides.other))
        if len(batch) == len(block):
            return made
        for name in list(made):
            one = made.pop(name)
            if name not in held:
                held[name] = room_for(one, len(block))
            write(held[name].part(first, first + len(batch)), one)
        yield Progress("features", first + len(batch), len(block))
    return held


def _contract(out: Tensor, left: Features, right: Features, kept: int, lower: bool) -> None:
    """Add every layer's kernel to `out` `[A R, B R]`, by tiles; of a Gram matrix those on and below the diagonal."""
    height, width = max(1, STRIP // kept), max(1, WIDTH // kept)
    num_rows, num_columns = out.shape[0] // kept, out.shape[1] // kept
    for top in range(0, num_rows, height):
        below = min(num_rows, top + height)
        end = below if lower else num_columns
        for start in range(0, end, width):
            stop = min(end, start + width)
            tile = out[top * kept : below * kept, start * kept : stop * kept]
            for name, some in left.items():
                add_kernel(tile, some.part(top, below), right[name].part(start, stop))


def _mirror(out: Tensor) -> None:
    """Copy the lower half of a square matrix onto the upper, strip by strip."""
    for top in range(0, len(out), STRIP):
        below = top + STRIP
        corner = out[top:below, top:below]
        corner.copy_(corner.tril() + corner.tril(-1).t())
        out[:top, top:below] = out[top:below, :top].t()


def require_finite(seen: Sight, sides: Sides, found: Tensor) -> None:
    """Refuse a kernel with numbers that are not finite, and name the layer and the sample they come from."""
    if bool(found.sum().isfinite()) or bool(found.isfinite().all()):
        return
    for side in (sides.x, sides.other):
        for batch_start in range(0, len(side), sides.batch):
            batch = side[batch_start : batch_start + sides.batch]
            if broken_layer(seen, batch) is None:
                continue
            for number, one in enumerate(batch.split(1), batch_start):
                where = broken_layer(seen, one)
                if where is not None:
                    raise DataError(f"{where} are not finite at sample {number}; mend the weights or the data")
    raise OptionError(f"the kernel overflows {found.dtype}; use a longer dtype: model.double() and x.double()")
