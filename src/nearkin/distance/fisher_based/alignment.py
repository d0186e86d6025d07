r"""Alignment of the hidden units of two networks that started from different weights.

Two networks can be compared weight by weight only if their weights correspond. Those of networks that start from the
same weights do; others may have the same units in another order. For each group of hidden units the permutation

$$π = \arg\max_π \sum_i S_{i π(i)}$$

is found by the Hungarian method. S is either the correlation of unit i of network b and unit j of network a over
samples and positions (Li et al. 2016), or the inner product of their weights, layer after layer until nothing improves
(Ainsworth et al. 2023). A permutation removes the symmetry; it does not make two networks learn the same units. Wide
layers become much more similar, layers of a few units may not.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Progress, Work, operation
from nearkin.core.lazy import Lazy
from nearkin.core.types import Buffers, Params
from nearkin.distance.fisher_based.unit_groups import UnitGroup, permuted, unit_groups
from nearkin.distance.fisher_based.unit_trace import LAYERS, UnitSlice
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.functional import evaluation_mode, view

optimize = Lazy("scipy.optimize")

BY = ("activations", "weights")
HELD_FLOATS = 2**25  # activations of a network in memory at a time
SWEEPS = 100  # over the groups, by weights; usually a few are enough
ROUNDING = 1e-12  # relative size of variances and gains that may be rounding errors


@dataclass(frozen=True, eq=False)
class Aligned:
    """Network a with its units in the order of network b.

    Attributes:
        groups: of units that are permuted together.
        permutations: `[num]` by the name of the group; unit `permutation[i]` is moved to position i.
        params: of a, in the new order; `load` writes them and the buffers into a network.
        buffers: of a, in the new order.
        before: agreement before: the mean correlation over all hidden units, or the cosine of the weights.
        after: agreement after the permutation.
    """

    groups: tuple[UnitGroup, ...]
    permutations: dict[str, Tensor]
    params: Params
    buffers: Buffers
    before: float
    after: float


@operation
def aligned(model_a: nn.Module, model_b: nn.Module, x: Tensor, by: str = "activations") -> Work[Aligned]:
    """Permute the units of network a to the order of network b; the function of a does not change.

    Args:
        model_a: a network.
        model_b: another of the same architecture; the heads may differ in width.
        x: samples `[N, ...]`, preferably of the task on which the two are compared; two are enough for `weights`.
        by: how units are matched, `activations` or `weights`.

    >>> a, b = (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)) for _ in range(2))
    >>> b.load_state_dict({name: v.flip(0) if name[0] == "0" else v.flip(-1) for name, v in a.state_dict().items()})
    <All keys matched successfully>
    >>> result = aligned(a, b, torch.randn(20, 2))
    >>> result.permutations, torch.equal(result.params["0.weight"], b[0].weight)
    ({'0.weight': tensor([1, 0])}, True)
    """
    require(by in BY, f"by is one of {', '.join(BY)}, got {by!r}")
    require(len(x) > 1, f"got {len(x)} samples, expected two or more to match units; add samples", DataError)
    groups, others = unit_groups(model_a, x), unit_groups(model_b, x)
    require(
        groups == others,
        f"{type(model_a).__name__} with {len(groups)} groups of hidden units and {type(model_b).__name__} with "
        f"{len(others)} cannot be aligned: they differ in layers or widths; use networks of one architecture",
        MismatchError,
    )
    a, b = view(model_a), view(model_b)
    if by == "activations":
        scores = yield from _correlations(model_a, model_b, x, groups)
        permutations = {name: _matching(score) for name, score in scores.items()}
        num = sum(len(score) for score in scores.values())
        before = sum(float(score.trace()) for score in scores.values()) / max(num, 1)
        after = sum(_total(score, permutations[name]) for name, score in scores.items()) / max(num, 1)
    else:
        permutations, before, after = yield from _by_weights(groups, a.params, b.params)
    params, buffers = (permuted(values, groups, permutations) for values in (a.params, a.buffers))
    return Aligned(groups, permutations, params, buffers, before, after)


def aligned_fisher(f: FisherDiagonal, alignment: Aligned) -> FisherDiagonal:
    """Fisher information of network a, for all weights or some, in the order of network b.

    >>> group = UnitGroup("w", 2, (UnitSlice("w", 0, 0, 2),))
    >>> alignment = Aligned((group,), {"w": torch.tensor([1, 0])}, {}, {}, 0.0, 1.0)
    >>> aligned_fisher(FisherDiagonal({"w": torch.tensor([1.0, 2.0])}, "observed", 1), alignment).values["w"]
    tensor([2., 1.])
    """
    return FisherDiagonal(permuted(f.values, alignment.groups, alignment.permutations), f.labels, f.num_samples)


def _total(score: Tensor, permutation: Tensor) -> float:
    return float(score[torch.arange(len(score)), permutation].sum())


def _matching(score: Tensor) -> Tensor:
    """The permutation with the largest total score `[num, num]`; the identity if the gain may be a rounding error."""
    identity = torch.arange(len(score))
    best = torch.from_numpy(optimize.linear_sum_assignment(score.cpu().numpy(), maximize=True)[1])
    slack = ROUNDING * float(score.abs().sum())
    return best if _total(score, best) > _total(score, identity) + slack else identity


class _Recorder(TorchFunctionMode):
    """Records inputs and outputs of layers with weights, channels last: `(weight, axis of the weight, tensor)`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in model.named_parameters()}
        self.records: list[tuple[str, int, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in LAYERS:
            x, weight = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)][:2]
            for axis, tensor in zip(LAYERS[func.__name__], (x, out), strict=True):
                if axis is not None:
                    channels_last = tensor.detach().movedim(tensor.dim() + 1 - weight.dim(), -1)
                    self.records.append((self._names[id(weight)], axis, channels_last))
        return out


def _recorded(model: nn.Module, x: Tensor) -> list[tuple[str, int, Tensor]]:
    recorder = _Recorder(model)
    with evaluation_mode(model), recorder:
        model(x)
    return recorder.records


def _activations(model: nn.Module, x: Tensor, groups: Sequence[UnitGroup]) -> Iterator[tuple[str, Tensor]]:
    """Activations `[M, num]` of the units of a group, for every layer that computes or reads them."""
    slices: dict[tuple[str, int], list[tuple[UnitGroup, UnitSlice]]] = {}
    for group in groups:
        for item in group.slices:
            slices.setdefault((item.tensor, item.axis), []).append((group, item))
    for name, axis, tensor in _recorded(model, x):
        for group, item in slices.get((name, axis), ()):
            units = tensor[..., item.start : item.start + item.size].unflatten(-1, (group.num, -1))
            yield group.name, units.transpose(-1, -2).reshape(-1, group.num).double()


def _correlations(
    model_a: nn.Module, model_b: nn.Module, x: Tensor, groups: Sequence[UnitGroup]
) -> Work[dict[str, Tensor]]:
    """Correlations `[num, num]` of units of b with units of a, by group; the mean over all recorded layers."""
    sums: list[tuple[str, list[Tensor]]] = []
    size = max(1, HELD_FLOATS // max(1, sum(tensor.numel() for *_, tensor in _recorded(model_a, x[:1]))))
    for done, batch in enumerate(x.split(size)):
        pairs = zip(_activations(model_a, batch, groups), _activations(model_b, batch, groups), strict=True)
        for number, ((name, a), (_, b)) in enumerate(pairs):
            new = [a.new_tensor(len(a)), a.sum(0), b.sum(0), (a * a).sum(0), (b * b).sum(0), b.T @ a]
            if done == 0:
                sums.append((name, new))
            else:
                for total, more in zip(sums[number][1], new, strict=True):
                    total += more
        yield Progress("alignment", min((done + 1) * size, len(x)), len(x))
    correlations: dict[str, list[Tensor]] = {group.name: [] for group in groups}
    for name, totals in sums:
        correlations[name].append(_correlation(*totals))
    return {name: torch.stack(layers).mean(0) for name, layers in correlations.items()}


def _correlation(num: Tensor, a: Tensor, b: Tensor, aa: Tensor, bb: Tensor, ba: Tensor) -> Tensor:
    """Correlation `[B, A]` from sums; it is 1 for two constant units, and 0 for a constant and a varying one."""
    require(
        bool(torch.isfinite(ba).all()),
        "activations are NaN or infinite; the weights diverged, or the samples are invalid: check both",
        MismatchError,
    )
    a, b, aa, bb, ba = (value / num for value in (a, b, aa, bb, ba))
    (alive_a, scale_a), (alive_b, scale_b) = (
        (square - mean**2 > ROUNDING * square, (square - mean**2).rsqrt()) for mean, square in ((a, aa), (b, bb))
    )
    correlation = (ba - torch.outer(b, a)) * torch.outer(scale_b, scale_a)
    correlation = torch.where(torch.outer(alive_b, alive_a), correlation, 0.0)
    return correlation + torch.outer(~alive_b, ~alive_a)


def _by_weights(groups: Sequence[UnitGroup], a: Params, b: Params) -> Work[tuple[dict[str, Tensor], float, float]]:
    """Permutations by weights, and the cosine of the weights before and after.

    The first sweep goes along the network and matches each group by the weights whose other groups are matched already;
    further sweeps use all weights, as long as the inner product grows.
    """
    names = [name for name in a if name in b and a[name].shape == b[name].shape]  # heads may differ
    a, b = ({name: values[name].double() for name in names} for values in (a, b))
    groups_of = {name: {g.name for g in groups for item in g.slices if item.tensor == name} for name in names}

    def improved(group: UnitGroup, now: Params, matched: set[str]) -> tuple[Tensor, Params, float]:
        """A permutation of one group, the weights that it moves, and the gain in the inner product."""
        slices = [item for item in group.slices if item.tensor in now]
        score = torch.zeros(group.num, group.num, dtype=torch.float64)
        for item in slices:
            if groups_of[item.tensor] <= matched | {group.name}:
                score += (_rows(b, item, group.num) @ _rows(now, item, group.num).T).cpu()
        order, before = _matching(score), {item.tensor: now[item.tensor] for item in slices}
        moved = permuted(before, (group,), {group.name: order})
        return order, moved, _inner(moved, b) - _inner(before, b)

    identity = {group.name: torch.arange(group.num) for group in groups}
    norm = math.sqrt(_inner(a, a) * _inner(b, b)) or 1.0
    orders, now, matched = dict(identity), dict(a), set[str]()
    for group in groups:
        orders[group.name], moved, _ = improved(group, now, matched)
        now.update(moved)
        matched.add(group.name)
    if _inner(now, b) <= _inner(a, b):
        orders, now = identity, dict(a)
    for sweep in range(SWEEPS):
        total = 0.0
        for group in groups:
            order, moved, gain = improved(group, now, matched)
            if gain > ROUNDING * norm:
                orders[group.name] = orders[group.name][order]
                now.update(moved)
                total += gain
        yield Progress("alignment", sweep + 1, None, {"agreement": _inner(now, b) / norm})
        if total == 0:
            break
    return orders, _inner(a, b) / norm, _inner(now, b) / norm


def _rows(values: Mapping[str, Tensor], item: UnitSlice, num: int) -> Tensor:
    """The entries of a tensor for each unit `[num, ...]`, flat."""
    return values[item.tensor].movedim(item.axis, 0)[item.start : item.start + item.size].reshape(num, -1)


def _inner(a: Params, b: Params) -> float:
    return sum(float((a[name] * b[name]).sum()) for name in a)
