"""A tangent kernel filled block by block within a memory budget.

A Gram matrix of one batch takes in each layer during the backward pass. Of more samples, features (`layer_kernels`) of
all are held if they fit; else those of two blocks of samples at a time, made anew for each meeting. Of a Gram matrix
only the lower half is computed.

Notation: N and M samples on the two sides, R outputs kept apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.events import Progress, Work, finish
from nearkin.fisher.layer_kernels import Feature, add_kernel
from nearkin.fisher.tangent_features import TangentPlan, features

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
        at_once: whether a Gram matrix is filled during one pass, layer by layer.
    """

    x: Tensor
    x2: Tensor | None
    batch: int
    block: int
    num_pairs: int
    at_once: bool

    @property
    def other(self) -> Tensor:
        """The second side."""
        return self.x if self.x2 is None else self.x2

    def told(self, seen: TangentPlan) -> str:
        """The choice that was made, in a sentence."""
        n, m = len(self.x), len(self.other)
        held = f"blocks of {self.block:,} samples" if self.block < max(n, m) else "all samples at once"
        return (
            f"tangent kernel of {n:,} x {m:,} samples and {len(seen.outputs)} outputs: {self.num_pairs} layers over "
            f"pairs of positions, {len(seen.layers) - self.num_pairs} by their per-sample gradients, "
            f"{len(seen.exact)} parameters by automatic differentiation; {held}, batches of {self.batch}"
        )


def cut(seen: TangentPlan, x: Tensor, x2: Tensor | None, batch_size: int | None, memory: int) -> Sides:
    """Sides cut into batches and blocks that fit the memory."""
    require(batch_size is None or batch_size >= 1, f"batch_size must be 1 or more, got {batch_size}")
    count, partners = len(x) + (0 if x2 is None else len(x2)), len(x if x2 is None else x2)
    made: dict[str, Feature] = {}
    features(seen, x[:1], partners, made.__setitem__)
    each = sum(one.num_bytes() for one in made.values())
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
    at_once = x2 is None and len(x) <= min(batch, block) and whole <= room  # its lower half is held once more
    return Sides(x, x2, batch, block, sum(one.u is not None for one in made.values()), at_once)


def graph_bytes(seen: TangentPlan, x: Tensor) -> int:
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


def filled(seen: TangentPlan, sides: Sides) -> Work[Tensor]:
    """The kernel `[N R, M R]`."""
    n, m, kept = len(sides.x), len(sides.other), _kept(seen)
    if sides.at_once:
        out = _filled_at_once(seen, sides.x)
    else:
        out = _like(seen).new_zeros(n * kept, m * kept)
        for top in range(0, n, sides.block):
            left = yield from _held(seen, sides.x, top, sides)
            below = min(n, top + sides.block)
            for start in range(0, m if sides.x2 is not None else below, sides.block):
                same = sides.x2 is None and start == top
                right = left if same else (yield from _held(seen, sides.other, start, sides))
                tile = out[top * kept : below * kept, start * kept : (start + sides.block) * kept]
                cuts = _cuts(len(tile), kept)
                strips = [tile[first:last, : last if same else None] for first, last in cuts]
                yield from _contracted(strips, [(left[name], right[name]) for name in left], kept)
    if sides.x2 is None:
        _mirror(out)
    yield Progress("rows of the kernel", n, n)
    return out


def _filled_at_once(seen: TangentPlan, x: Tensor) -> Tensor:
    """The lower half of a Gram matrix `[N R, N R]`, each layer taken in when its gradients come, and not held.

    The backward pass needs the most memory, so that until its end there is no more of the matrix than this half.
    """
    kept = _kept(seen)
    strips = [_like(seen).new_zeros(last - first, last) for first, last in _cuts(len(x) * kept, kept)]
    features(seen, x, len(x), lambda name, one: finish(_contracted(strips, [(one, one)], kept)))
    out = strips[0].new_empty(len(x) * kept, len(x) * kept)
    for strip in strips:
        last = strip.shape[1]
        out[last - len(strip) : last, :last] = strip
    return out


def _kept(seen: TangentPlan) -> int:
    """R."""
    return 1 if seen.summed else len(seen.outputs)


def _like(seen: TangentPlan) -> Tensor:
    """A tensor of the kernel's dtype and device."""
    return next(value for value in seen.weights.values() if value.is_floating_point())


def _held(seen: TangentPlan, x: Tensor, start: int, sides: Sides) -> Work[dict[str, Feature]]:
    """Features of the block of samples that begins at `start`."""
    held: dict[str, Feature] = {}
    block = x[start : start + sides.block]

    def write(first: int, name: str, one: Feature) -> None:
        if name not in held:
            held[name] = one.room(len(block))
        held[name].part(first, first + len(one.g)).write(one)

    for first in range(0, len(block), sides.batch):
        batch = block[first : first + sides.batch]
        take = partial(write, first) if len(batch) < len(block) else held.__setitem__
        features(seen, batch, len(sides.other), take)
        yield Progress("features", first + len(batch), len(block))
    return held


def _cuts(rows: int, kept: int) -> list[tuple[int, int]]:
    """First and last rows of strips of whole samples."""
    height = max(1, STRIP // kept) * kept
    return [(first, min(rows, first + height)) for first in range(0, rows, height)]


def _contracted(strips: Sequence[Tensor], layers: Sequence[tuple[Feature, Feature]], kept: int) -> Work[None]:
    """Add layers' kernels to strips `[A R, B R]` of successive rows, each as wide as it is wanted."""
    below, width = 0, max(1, WIDTH // kept)
    for strip in strips:
        top, below, end = below, below + len(strip) // kept, strip.shape[1] // kept
        for start in range(0, end, width):
            stop = min(end, start + width)
            tile = strip[:, start * kept : stop * kept]
            for left, right in layers:
                add_kernel(tile, left.part(top, below), right.part(start, stop))
        yield Progress("rows of a block", below, len(layers[0][0].g))


def _mirror(out: Tensor) -> None:
    """Copy the lower half of a square matrix onto the upper, strip by strip."""
    for top in range(0, len(out), STRIP):
        below = top + STRIP
        corner = out[top:below, top:below]
        corner.copy_(corner.tril() + corner.tril(-1).t())
        out[:top, top:below] = out[top:below, :top].t()


def require_finite(seen: TangentPlan, sides: Sides, found: Tensor) -> None:
    """Refuse a kernel with numbers that are not finite, and name the layer and the sample they come from."""
    if bool(found.sum().isfinite()) or bool(found.isfinite().all()):
        return
    for side in (sides.x, sides.other):
        for first in range(0, len(side), sides.batch):
            batch = side[first : first + sides.batch]
            if _broken(seen, batch) is None:
                continue
            for number, one in enumerate(batch.split(1), first):
                where = _broken(seen, one)
                if where is not None:
                    raise DataError(f"{where} are not finite at sample {number}; mend the weights or the data")
    raise OptionError(f"the kernel overflows {found.dtype}; use a longer dtype: model.double() and x.double()")


def _broken(seen: TangentPlan, x: Tensor) -> str | None:
    """Where a batch first ceases to be finite, in words: in the inputs, a layer's outputs or its gradients."""
    found: list[str] = []

    def look(where: str, value: object) -> None:
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
            found.append(where)

    def listen(name: str) -> Callable[[nn.Module, object, object], None]:
        return lambda module, arguments, outputs: look(f"the outputs of {name or 'the network'}", outputs)

    look("the inputs", x)
    hooks = [module.register_forward_hook(listen(name)) for name, module in seen.model.named_modules()]
    try:
        with torch.no_grad():
            functional_call(seen.model, dict(seen.weights), (x,))
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        features(seen, x, 1, lambda name, one: look(f"the gradients of {name or 'the network'}", one.g))
    return found[0] if found else None
