"""Compute a tangent kernel block by block within a memory budget.

For a Gram matrix of one batch, each layer is added during the backward pass. For more samples, the features
(`layer_kernels`) of all samples are kept if they fit the memory; otherwise those of two blocks of samples at a time,
which are computed again for each pair of blocks. Of a Gram matrix only the lower half is computed.

Notation: N and M samples on the two sides, R outputs kept apart.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.events import Progress, Work, finish
from nearkin.fisher.layer_kernels import Feature, add_kernel
from nearkin.fisher.tangent_features import TangentPlan, features

BATCH_BYTES = 16 * 2**20  # of a batch's graph: more does not fit the caches, less needs more calls
STRIP = 128  # rows of the kernel that are computed at once
WIDTH = 1024  # columns


@dataclass(frozen=True, eq=False)
class Sides:
    """The two sides of a kernel, and how they are split.

    Attributes:
        x: `[N, …]`.
        x2: `[M, …]`; None for a Gram matrix.
        batch: samples in one forward pass.
        block: samples whose features are in memory together.
        num_pairs: layers whose kernel is computed over pairs of positions.
        at_once: whether a Gram matrix is computed during one pass, layer by layer.
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

    def summary(self, plan: TangentPlan) -> str:
        """How the kernel is computed, as a sentence."""
        n, m = len(self.x), len(self.other)
        blocks = f"blocks of {self.block:,} samples" if self.block < max(n, m) else "all samples at once"
        return (
            f"tangent kernel of {n:,} x {m:,} samples and {len(plan.outputs)} outputs: {self.num_pairs} layers over "
            f"pairs of positions, {len(plan.layers) - self.num_pairs} by their per-sample gradients, "
            f"{len(plan.exact)} parameters by automatic differentiation; {blocks}, batches of {self.batch}"
        )


def split_sides(plan: TangentPlan, x: Tensor, x2: Tensor | None, batch_size: int | None, memory: int) -> Sides:
    """Split the sides into batches and blocks that fit the memory."""
    require(batch_size is None or batch_size >= 1, f"batch_size must be 1 or more, got {batch_size}")
    count, partners = len(x) + (0 if x2 is None else len(x2)), len(x if x2 is None else x2)
    per_sample: dict[str, Feature] = {}
    features(plan, x[:1], partners, per_sample.__setitem__)
    each = sum(feature.num_bytes() for feature in per_sample.values())
    whole = len(x) * partners * _num_kept(plan) ** 2 * _like(plan).element_size()
    available = (memory - whole) // 2  # the other half is for batches, and for features while they are concatenated
    require(
        available >= 2 * each,
        f"a kernel of {whole / 2**20:,.1f} MiB, and {each / 2**20:,.1f} MiB for each sample, do not fit memory of "
        f"{memory / 2**20:,.1f} MiB; raise memory, take fewer samples or outputs, or use tangent_product",
    )
    graph = max(1, graph_bytes(plan, x[:1]))
    fitting = min(BATCH_BYTES // graph, available // (2 * graph * (1 + len(plan.outputs))))
    batch = min(max(len(x), partners), batch_size or max(1, fitting))
    block = count if count * each <= available else available // (2 * each)
    at_once = x2 is None and len(x) <= min(batch, block) and whole <= available  # its lower half is copied
    return Sides(x, x2, batch, block, sum(feature.u is not None for feature in per_sample.values()), at_once)


def graph_bytes(plan: TangentPlan, x: Tensor) -> int:
    """Bytes that the graph of a batch keeps in addition to the weights."""
    known, total = {value.data_ptr() for value in plan.weights.values()}, 0

    def count(value: Tensor) -> Tensor:
        nonlocal total
        total += 0 if value.data_ptr() in known else value.nbytes
        return value

    free = {name: plan.weights[name].detach().requires_grad_() for name, _ in plan.model.named_parameters()}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda value: value):
        functional_call(plan.model, {**plan.weights, **free}, (x.detach(),))
    return total


def fill_kernel(plan: TangentPlan, sides: Sides) -> Work[Tensor]:
    """The kernel `[N R, M R]`."""
    n, m, kept = len(sides.x), len(sides.other), _num_kept(plan)
    if sides.at_once:
        out = _fill_at_once(plan, sides.x)
    else:
        out = _like(plan).new_zeros(n * kept, m * kept)
        for top in range(0, n, sides.block):
            left = yield from _block_features(plan, sides.x, top, sides)
            below = min(n, top + sides.block)
            for start in range(0, m if sides.x2 is not None else below, sides.block):
                same = sides.x2 is None and start == top
                right = left if same else (yield from _block_features(plan, sides.other, start, sides))
                tile = out[top * kept : below * kept, start * kept : (start + sides.block) * kept]
                cuts = _cuts(len(tile), kept)
                strips = [tile[first:last, : last if same else None] for first, last in cuts]
                yield from _add_layers(strips, [(left[name], right[name]) for name in left], kept)
    if sides.x2 is None:
        _mirror(out)
    yield Progress("rows of the kernel", n, n)
    return out


def _fill_at_once(plan: TangentPlan, x: Tensor) -> Tensor:
    """The lower half of a Gram matrix `[N R, N R]`; each layer is added as soon as its gradients are known.

    The backward pass needs the most memory, so the upper half is allocated only after it.
    """
    kept = _num_kept(plan)
    strips = [_like(plan).new_zeros(last - first, last) for first, last in _cuts(len(x) * kept, kept)]
    features(plan, x, len(x), lambda name, feature: finish(_add_layers(strips, [(feature, feature)], kept)))
    out = strips[0].new_empty(len(x) * kept, len(x) * kept)
    for strip in strips:
        last = strip.shape[1]
        out[last - len(strip) : last, :last] = strip
    return out


def _num_kept(plan: TangentPlan) -> int:
    """R, the number of outputs kept apart."""
    return 1 if plan.summed else len(plan.outputs)


def _like(plan: TangentPlan) -> Tensor:
    """A tensor of the kernel's dtype and device."""
    return next(value for value in plan.weights.values() if value.is_floating_point())


def _block_features(plan: TangentPlan, x: Tensor, start: int, sides: Sides) -> Work[dict[str, Feature]]:
    """Features of the block of samples that starts at `start`."""
    features_of: dict[str, Feature] = {}
    block = x[start : start + sides.block]

    def write(first: int, name: str, feature: Feature) -> None:
        if name not in features_of:
            features_of[name] = feature.empty(len(block))
        features_of[name].samples(first, first + len(feature.g)).write(feature)

    for first in range(0, len(block), sides.batch):
        batch = block[first : first + sides.batch]
        take = partial(write, first) if len(batch) < len(block) else features_of.__setitem__
        features(plan, batch, len(sides.other), take)
        yield Progress("features", first + len(batch), len(block))
    return features_of


def _cuts(rows: int, kept: int) -> list[tuple[int, int]]:
    """First and last rows of strips that do not split samples."""
    height = max(1, STRIP // kept) * kept
    return [(first, min(rows, first + height)) for first in range(0, rows, height)]


def _add_layers(strips: Sequence[Tensor], layers: Sequence[tuple[Feature, Feature]], kept: int) -> Work[None]:
    """Add the kernels of layers to strips `[A R, B R]` of successive rows, which may have different widths."""
    below, width = 0, max(1, WIDTH // kept)
    for strip in strips:
        top, below, end = below, below + len(strip) // kept, strip.shape[1] // kept
        for start in range(0, end, width):
            stop = min(end, start + width)
            tile = strip[:, start * kept : stop * kept]
            for left, right in layers:
                add_kernel(tile, left.samples(top, below), right.samples(start, stop))
        yield Progress("rows of a block", below, len(layers[0][0].g))


def _mirror(out: Tensor) -> None:
    """Copy the lower half of a square matrix onto the upper, strip by strip."""
    for top in range(0, len(out), STRIP):
        below = top + STRIP
        corner = out[top:below, top:below]
        corner.copy_(corner.tril() + corner.tril(-1).t())
        out[:top, top:below] = out[top:below, :top].t()


def require_finite(plan: TangentPlan, sides: Sides, kernel: Tensor) -> None:
    """Raise an error with the layer and the sample if a kernel is not finite."""
    if bool(kernel.sum().isfinite()) or bool(kernel.isfinite().all()):
        return
    for side in (sides.x, sides.other):
        for first in range(0, len(side), sides.batch):
            batch = side[first : first + sides.batch]
            if _first_not_finite(plan, batch) is None:
                continue
            for number, sample in enumerate(batch.split(1), first):
                where = _first_not_finite(plan, sample)
                if where is not None:
                    raise DataError(f"{where} are not finite at sample {number}; fix the weights or the data")
    raise OptionError(f"the kernel overflows {kernel.dtype}; use a larger dtype: model.double() and x.double()")


def _first_not_finite(plan: TangentPlan, x: Tensor) -> str | None:
    """Where a batch first has values that are not finite: in the inputs, a layer's outputs or its gradients."""
    places: list[str] = []

    def look(where: str, value: object) -> None:
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
            places.append(where)

    def hook(name: str) -> Callable[[nn.Module, object, object], None]:
        return lambda module, arguments, outputs: look(f"the outputs of {name or 'the network'}", outputs)

    look("the inputs", x)
    with torch.no_grad(), ExitStack() as hooks:
        for name, module in plan.model.named_modules():
            hooks.enter_context(module.register_forward_hook(hook(name)))
        functional_call(plan.model, dict(plan.weights), (x,))
    if not places:
        features(plan, x, 1, lambda name, feature: look(f"the gradients of {name or 'the network'}", feature.g))
    return places[0] if places else None
