r"""The hidden units of one network brought into the order of another's, for networks that did not start alike.

Weight by weight, two networks can be compared only if their weights correspond. Networks that start from the same
weights do; others may hold the same units in another order. For each group of hidden units the permutation

$$π = \arg\max_π \sum_i S_{i π(i)}$$

is found by the Hungarian method, with S either the correlation of unit i of network b and unit j of network a over
samples and positions (Li et al. 2016), or the inner product of their weights, layer after layer until nothing improves
(Ainsworth et al. 2023). A permutation undoes the symmetry, it does not make two networks learn the same units: wide
layers come much nearer, those of a few units may not come nearer at all.
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
from nearkin.distance.fisher_based.unit_trace import LAYERS, Place
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.functional import evaluation_mode, view

optimize = Lazy("scipy.optimize")

BY = ("activations", "weights")
HELD_FLOATS = 2**25  # activations of a network that are held at a time
SWEEPS = 100  # over the groups, by weights; a handful is the rule
STILL = 1e-12  # a share of variance, or of a score, that rounding alone may give


@dataclass(frozen=True, eq=False)
class Aligned:
    """Network a with its units in the order of network b's.

    Attributes:
        groups: of units that move together.
        permutations: `[num]` by the name of the group; unit `permutation[i]` moved to place i.
        params: of a, in the new order; `load` writes them and the buffers into a network.
        buffers: of a, in the new order.
        before: how well units agreed before, and
        after: how well they do now: the mean correlation over all hidden units, or the cosine of the weights.
    """

    groups: tuple[UnitGroup, ...]
    permutations: dict[str, Tensor]
    params: Params
    buffers: Buffers
    before: float
    after: float


@operation
def aligned(model_a: nn.Module, model_b: nn.Module, x: Tensor, by: str = "activations") -> Work[Aligned]:
    """Network a in the order of network b; it computes the same function as before.

    Args:
        model_a: a network.
        model_b: another of the same architecture; the heads may differ in width.
        x: samples `[N, ...]`, best of the task on which the two are compared; two are enough for `weights`.
        by: what units are matched by, `activations` or `weights`.

    >>> a, b = (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)) for _ in range(2))
    >>> b.load_state_dict({name: v.flip(0) if name[0] == "0" else v.flip(-1) for name, v in a.state_dict().items()})
    <All keys matched successfully>
    >>> found = aligned(a, b, torch.randn(20, 2))
    >>> found.permutations, torch.equal(found.params["0.weight"], b[0].weight)
    ({'0.weight': tensor([1, 0])}, True)
    """
    require(by in BY, f"units are matched by one of {', '.join(BY)}, got {by!r}")
    require(len(x) > 1, f"units are matched over two samples or more, got {len(x)}", DataError)
    groups, others = unit_groups(model_a, x), unit_groups(model_b, x)
    require(
        groups == others,
        f"{type(model_a).__name__} with {len(groups)} groups of hidden units and {type(model_b).__name__} with "
        f"{len(others)} cannot be aligned: they differ in layers or widths; compare networks of one architecture",
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


def aligned_fisher(f: FisherDiagonal, found: Aligned) -> FisherDiagonal:
    """The information of network a, of all weights or some, in the order of network b's.

    >>> group = UnitGroup("w", 2, (Place("w", 0, 0, 2),))
    >>> found = Aligned((group,), {"w": torch.tensor([1, 0])}, {}, {}, 0.0, 1.0)
    >>> aligned_fisher(FisherDiagonal({"w": torch.tensor([1.0, 2.0])}, "observed", 1), found).values["w"]
    tensor([2., 1.])
    """
    return FisherDiagonal(permuted(f.values, found.groups, found.permutations), f.labels, f.num_samples)


def _total(score: Tensor, permutation: Tensor) -> float:
    return float(score[torch.arange(len(score)), permutation].sum())


def _matching(score: Tensor) -> Tensor:
    """The permutation of the largest total score `[num, num]`; none is as good as any that is no better."""
    still = torch.arange(len(score))
    best = torch.from_numpy(optimize.linear_sum_assignment(score.cpu().numpy(), maximize=True)[1])
    return best if _total(score, best) > _total(score, still) + STILL * float(score.abs().sum()) else still


class _Hearing(TorchFunctionMode):
    """Keeps what layers with weights read and write, channels last: `(weight, axis of the weight, tensor)`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in model.named_parameters()}
        self.heard: list[tuple[str, int, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in LAYERS:
            x, weight = [thing for thing in (*args, *(kwargs or {}).values()) if isinstance(thing, Tensor)][:2]
            for axis, tensor in zip(LAYERS[func.__name__], (x, out), strict=True):
                if axis is not None:
                    channels_last = tensor.detach().movedim(tensor.dim() + 1 - weight.dim(), -1)
                    self.heard.append((self._names[id(weight)], axis, channels_last))
        return out


def _heard(model: nn.Module, x: Tensor) -> list[tuple[str, int, Tensor]]:
    ear = _Hearing(model)
    with evaluation_mode(model), ear:
        model(x)
    return ear.heard


def _activations(model: nn.Module, x: Tensor, groups: Sequence[UnitGroup]) -> Iterator[tuple[str, Tensor]]:
    """For every group, time and again, the activations `[M, num]` of its units: as written, and as read."""
    counted: dict[tuple[str, int], list[tuple[UnitGroup, Place]]] = {}
    for group in groups:
        for place in group.places:
            counted.setdefault((place.tensor, place.axis), []).append((group, place))
    for name, axis, tensor in _heard(model, x):
        for group, place in counted.get((name, axis), ()):
            units = tensor[..., place.start : place.start + place.size].unflatten(-1, (group.num, -1))
            yield group.name, units.transpose(-1, -2).reshape(-1, group.num).double()


def _correlations(
    model_a: nn.Module, model_b: nn.Module, x: Tensor, groups: Sequence[UnitGroup]
) -> Work[dict[str, Tensor]]:
    """Correlations `[num, num]` of units of b with units of a, by group; the mean of all layers that hear the group."""
    sums: list[tuple[str, list[Tensor]]] = []
    size = max(1, HELD_FLOATS // max(1, sum(tensor.numel() for *_, tensor in _heard(model_a, x[:1]))))
    for done, part in enumerate(x.split(size)):
        pairs = zip(_activations(model_a, part, groups), _activations(model_b, part, groups), strict=True)
        for number, ((name, a), (_, b)) in enumerate(pairs):
            new = [a.new_tensor(len(a)), a.sum(0), b.sum(0), (a * a).sum(0), (b * b).sum(0), b.T @ a]
            if done == 0:
                sums.append((name, new))
            else:
                for total, more in zip(sums[number][1], new, strict=True):
                    total += more
        yield Progress("alignment", min((done + 1) * size, len(x)), len(x))
    found: dict[str, list[Tensor]] = {group.name: [] for group in groups}
    for name, totals in sums:
        found[name].append(_correlation(*totals))
    return {name: torch.stack(parts).mean(0) for name, parts in found.items()}


def _correlation(num: Tensor, a: Tensor, b: Tensor, aa: Tensor, bb: Tensor, ba: Tensor) -> Tensor:
    """Correlation `[B, A]` from sums; units that never change agree with each other, and with no other."""
    require(
        bool(torch.isfinite(ba).all()),
        "activations are NaN or infinite; the weights diverged, or the samples are broken: look at both",
        MismatchError,
    )
    a, b, aa, bb, ba = (value / num for value in (a, b, aa, bb, ba))
    (alive_a, scale_a), (alive_b, scale_b) = (
        (square - mean**2 > STILL * square, (square - mean**2).rsqrt()) for mean, square in ((a, aa), (b, bb))
    )
    found = (ba - torch.outer(b, a)) * torch.outer(scale_b, scale_a)
    found = torch.where(torch.outer(alive_b, alive_a), found, 0.0)
    return found + torch.outer(~alive_b, ~alive_a)


def _by_weights(groups: Sequence[UnitGroup], a: Params, b: Params) -> Work[tuple[dict[str, Tensor], float, float]]:
    """Permutations by weights, and the cosine of the weights before and after.

    First along the network, each group by those weights alone whose other groups are matched; then again and again by
    all weights, as long as the inner product grows.
    """
    names = [name for name in a if name in b and a[name].shape == b[name].shape]  # heads may differ
    a, b = ({name: values[name].double() for name in names} for values in (a, b))
    counted = {name: {g.name for g in groups for place in g.places if place.tensor == name} for name in names}

    def improved(group: UnitGroup, now: Params, matched: set[str]) -> tuple[Tensor, Params, float]:
        """A permutation of one group, the weights that it moves, and what the inner product gains by it."""
        places = [place for place in group.places if place.tensor in now]
        score = torch.zeros(group.num, group.num, dtype=torch.float64)
        for place in places:
            if counted[place.tensor] <= matched | {group.name}:
                score += (_rows(b, place, group.num) @ _rows(now, place, group.num).T).cpu()
        order, touched = _matching(score), {place.tensor: now[place.tensor] for place in places}
        moved = permuted(touched, (group,), {group.name: order})
        return order, moved, _inner(moved, b) - _inner(touched, b)

    still = {group.name: torch.arange(group.num) for group in groups}
    norm = math.sqrt(_inner(a, a) * _inner(b, b)) or 1.0
    orders, now, matched = dict(still), dict(a), set[str]()
    for group in groups:
        orders[group.name], moved, _ = improved(group, now, matched)
        now.update(moved)
        matched.add(group.name)
    if _inner(now, b) <= _inner(a, b):
        orders, now = still, dict(a)
    for sweep in range(SWEEPS):
        total = 0.0
        for group in groups:
            order, moved, gain = improved(group, now, matched)
            if gain > STILL * norm:
                orders[group.name] = orders[group.name][order]
                now.update(moved)
                total += gain
        yield Progress("alignment", sweep + 1, None, {"agreement": _inner(now, b) / norm})
        if total == 0:
            break
    return orders, _inner(a, b) / norm, _inner(now, b) / norm


def _rows(values: Mapping[str, Tensor], place: Place, num: int) -> Tensor:
    """What a tensor holds of each unit `[num, ...]`, flat."""
    return values[place.tensor].movedim(place.axis, 0)[place.start : place.start + place.size].reshape(num, -1)


def _inner(a: Params, b: Params) -> float:
    return sum(float((a[name] * b[name]).sum()) for name in a)
