"""The numbers of a batch that a tangent kernel needs, layer by layer.

Layers that the plan trusts give theirs by formula, read off C backward passes over one forward pass; parameters of all
other layers are left to automatic differentiation.

Notation: B samples, C outputs, P weights.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from nearkin.fisher.layer_kernels import Feature, feature, rows
from nearkin.fisher.layers import Local
from nearkin.fisher.passes import gradients, leaves
from nearkin.fisher.plan import AGREEMENT, locally, planned
from nearkin.fisher.scores import rest_gradients
from nearkin.fisher.tape import Tape, frozen, pull_back

EXACT = "*"  # stands for all parameters without a formula; no module has this name

Take: TypeAlias = Callable[[str, Feature], None]
"""Called with a layer's name and its features."""


class UnfitError(Exception):
    """A trusted layer did something else on later samples than on the first; the kernel is begun anew without it."""

    def __init__(self, layer: str) -> None:
        super().__init__(layer)
        self.layer = layer


@dataclass(frozen=True, eq=False)
class Sight:
    """A network as the tangent kernel sees it.

    Attributes:
        model: the network.
        weights: its parameters and buffers, detached.
        local: parameters and buffers of layers by their local names.
        layers: trusted layers, each with the full names of its parameters that count by their local ones.
        exact: parameters left to automatic differentiation.
        outputs: which of the outputs to differentiate, C of them.
        summed: whether the kernel is summed over them.
    """

    model: nn.Module
    weights: Mapping[str, Tensor]
    local: Mapping[str, Local]
    layers: Mapping[str, Mapping[str, str]]
    exact: tuple[str, ...]
    outputs: range
    summed: bool

    def without(self, layer: str) -> "Sight":
        """The same with one layer's parameters left to automatic differentiation."""
        rest = {name: own for name, own in self.layers.items() if name != layer}
        return replace(self, layers=rest, exact=(*self.exact, *self.layers[layer].values()))


def sight(model: nn.Module, names: Collection[str], outputs: range, summed: bool, x: Tensor) -> Sight:
    """How to see a network by its plan: layers that are called once and own their weights have formulas.

    Args:
        model: the network.
        names: parameters that count.
        outputs: which of the outputs to differentiate.
        summed: whether the kernel is summed over them.
        x: inputs, one or more.

    >>> net = nn.Sequential(nn.Linear(3, 2), nn.PReLU())
    >>> seen = sight(net, ("0.bias", "1.weight"), range(2), False, torch.ones(1, 3))
    >>> seen.layers, seen.exact
    ({'0': {'bias': '0.bias'}}, ('1.weight',))
    """
    weights = frozen(model)
    with torch.enable_grad():
        plan = planned(model, weights, x, names)
    counted = {
        layer: {local: name for local, name in plan.owners[layer].items() if name in names} for layer in plan.single
    }
    layers = {layer: own for layer, own in counted.items() if own}
    covered = {name for own in layers.values() for name in own.values()}
    exact = tuple(name for name in names if name not in covered)
    return Sight(model, weights, {n: locally(n, weights) for n in layers}, layers, exact, outputs, summed)


def features(seen: Sight, x: Tensor, partners: int, take: Take) -> None:
    """Hand over the features of a batch: a layer's when its last gradient has come, then all others' under `EXACT`.

    Args:
        seen: the network.
        x: inputs `[B, …]`.
        partners: samples that each sample will meet.
        take: receives them one by one; what it does not keep is freed.

    Raises:
        UnfitError: if a layer is not called once with all samples.
    """
    heard: dict[str, list[Tensor]] = {name: [] for name in seen.layers}
    turn = 0

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        if name not in heard or len(heard[name]) != turn or not len(read) == len(g) == len(x):
            raise UnfitError(name)
        heard[name].append(g)
        if turn + 1 == len(seen.outputs):
            own = seen.layers[name]
            take(name, feature(layer, seen.local[name], read, heard.pop(name), own, seen.summed, partners))

    x = x.detach()
    with torch.enable_grad():
        outputs = Tape(seen.model, seen.layers, receive)(x)
        for turn, unit in enumerate(_units(outputs.detach(), seen.outputs) if outputs.requires_grad else ()):
            pull_back(outputs, unit, retain_graph=turn + 1 < len(seen.outputs))
    if heard:
        raise UnfitError(next(iter(heard)))
    if seen.exact:
        take(EXACT, rows(torch.stack(_exact(seen, x), 1), seen.summed))


def require_order(seen: Sight, a: Tensor, b: Tensor) -> None:
    """Find layers that have samples in another order than the inputs: a network may sort them, and put them back.

    Two samples `[1, …]` run as a, b, a, a. All but the second must look alike, at least more so than the second does.

    Raises:
        UnfitError: of the first layer in which they do not.
    """

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        for value in (read.to(g.dtype), g):
            if len(value) != 4:
                raise UnfitError(name)
            first, second, third, fourth = value
            apart = torch.dist(first, third) + torch.dist(third, fourth)
            if apart > torch.dist(second, third) + AGREEMENT * third.norm():
                raise UnfitError(name)

    with torch.enable_grad():
        outputs = Tape(seen.model, seen.layers, receive)(torch.cat([a, b, a, a]).detach())
        pull_back(outputs, next(_units(outputs.detach(), seen.outputs)))


def _units(outputs: Tensor, chosen: range) -> Iterator[Tensor]:
    """Cotangents in the shape of outputs `[B, …]` that pick one of the C numbers of every sample."""
    for c in chosen:
        unit = outputs.new_zeros(outputs.shape)
        unit.view(len(unit), -1)[:, c] = 1
        yield unit


def _exact(seen: Sight, x: Tensor) -> list[Tensor]:
    """Gradients `[B, P]` of the parameters without a formula, one for each output: `vmap(grad)`, or sample by sample.

    Batching rules can be wrong (in torch 2.13 `vmap(jacrev)` is, of a PReLU, where B = C), so one pass is made for each
    output, and the first sample of every batch is compared with autograd.
    """
    with torch.enable_grad(), plain_attention():
        first, outputs = _alone(seen, x[:1])
        if len(x) > 1:
            units = _units(outputs.expand(len(x), *outputs.shape[1:]), seen.outputs)
            found = [_joined(rest_gradients(seen.model, seen.weights, seen.exact, x, unit)) for unit in units]
            if all(_near(some[:1], one) for some, one in zip(found, first, strict=True)):
                return found
        each = [first, *(_alone(seen, one)[0] for one in x.split(1)[1:])]
    return [torch.cat(one) for one in zip(*each, strict=True)]


def _alone(seen: Sight, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """One sample's gradients `[1, P]`, one for each output, by autograd; and its outputs `[1, …]`."""
    theta = leaves({name: seen.weights[name] for name in seen.exact})
    outputs = functional_call(seen.model, {**seen.weights, **theta}, (x,))
    found = (gradients(outputs, theta, unit, retain_graph=True) for unit in _units(outputs.detach(), seen.outputs))
    return [_joined({name: value[None] for name, value in one.items()}) for one in found], outputs.detach()


def _joined(gradients: Mapping[str, Tensor]) -> Tensor:
    """Gradients `[B, *shape]` by name as `[B, P]`."""
    return torch.cat([value.to_dense().flatten(1) for value in gradients.values()], 1)


def _near(found: Tensor, truth: Tensor) -> bool:
    """Whether numbers agree as far as their dtype lets them, or the truth is not finite."""
    close = (found - truth).abs().max() <= torch.finfo(truth.dtype).eps ** 0.5 * truth.abs().max()
    return bool(close) or not bool(truth.isfinite().all())


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention written out for a block: its fused forms have no derivative, or no batching rule."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
