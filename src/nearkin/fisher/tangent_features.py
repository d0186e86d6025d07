"""The numbers of a batch that a tangent kernel needs, layer by layer.

Layers that the plan trusts give theirs by formula, read off C backward passes over one forward pass; parameters of all
other layers are left to automatic differentiation.

Notation: B samples, C outputs, P weights.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nearkin.fisher.autodiff import autodiff_gradients
from nearkin.fisher.gradient_plan import local_tensors
from nearkin.fisher.layer_kernels import Feature, feature, rows
from nearkin.fisher.layers import Local
from nearkin.fisher.planned_tape import plan_for
from nearkin.fisher.tape import Tape, detached_weights, network_outputs, pull_back

EXACT = "*"  # stands for all parameters without a formula; no module has this name

Take: TypeAlias = Callable[[str, Feature], None]
"""Called with a layer's name and its features."""


class UnfitError(Exception):
    """Some batch does not fit the plan; the kernel is computed again without formulas for the given parameters."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(", ".join(names))
        self.names = frozenset(names)


@dataclass(frozen=True, eq=False)
class TangentPlan:
    """A network as the tangent kernel sees it.

    Attributes:
        model: the network.
        weights: its parameters and buffers, detached.
        local: parameters and buffers of layers by their local names.
        layers: trusted layers, each with the full names of its parameters that count by their local ones.
        exact: parameters left to automatic differentiation.
        outputs: which of the outputs to differentiate, C of them.
        summed: whether the kernel is summed over them.
        alone: whether every sample runs in a batch of its own.
    """

    model: nn.Module
    weights: Mapping[str, Tensor]
    local: Mapping[str, Local]
    layers: Mapping[str, Mapping[str, str]]
    exact: tuple[str, ...]
    outputs: range
    summed: bool
    alone: bool = False

    def without(self, names: Collection[str]) -> "TangentPlan":
        """The same with the layers of these parameters left to automatic differentiation."""
        out = {layer: own for layer, own in self.layers.items() if not set(own.values()).isdisjoint(names)}
        rest = {layer: own for layer, own in self.layers.items() if layer not in out}
        return replace(self, layers=rest, exact=(*self.exact, *(name for own in out.values() for name in own.values())))


def tangent_plan(model: nn.Module, names: Collection[str], outputs: range, summed: bool, x: Tensor) -> TangentPlan:
    """How to see a network by its plan: layers that are called once and own their weights have formulas.

    Args:
        model: the network.
        names: parameters that count.
        outputs: which of the outputs to differentiate.
        summed: whether the kernel is summed over them.
        x: all inputs.

    >>> net = nn.Sequential(nn.Linear(3, 2), nn.PReLU())
    >>> seen = tangent_plan(net, ("0.bias", "1.weight"), range(2), False, torch.ones(1, 3))
    >>> seen.layers, seen.exact
    ({'0': {'bias': '0.bias'}}, ('1.weight',))
    """
    weights = detached_weights(model)
    plan = plan_for(model, weights, x, names)
    counted = {
        layer: {local: name for local, name in plan.owners[layer].items() if name in names} for layer in plan.single
    }
    layers = {layer: own for layer, own in counted.items() if own}
    covered = {name for own in layers.values() for name in own.values()}
    exact = tuple(name for name in names if name not in covered)
    local = {name: local_tensors(model.get_submodule(name)) for name in layers}
    return TangentPlan(model, weights, local, layers, exact, outputs, summed, plan.alone)


def features(seen: TangentPlan, x: Tensor, partners: int, take: Take) -> None:
    """Hand over the features of a batch: a layer's when its last gradient has come, then all others' under `EXACT`.

    Args:
        seen: the network.
        x: inputs `[B, …]`.
        partners: samples that each sample will meet.
        take: receives them one by one; what it does not keep is freed.

    Raises:
        UnfitError: if a layer is not called once with all samples, or its weights are used elsewhere.
    """
    heard: dict[str, list[Tensor]] = {name: [] for name in seen.layers}
    turn = 0

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        heard[name].append(g)
        if turn + 1 == len(seen.outputs):
            own = seen.layers[name]
            take(name, feature(layer, seen.local[name], read, heard.pop(name), own, seen.summed, partners))

    x = x.detach()
    if seen.layers:
        tape = Tape(seen.model, seen.layers, receive, watch=[n for own in seen.layers.values() for n in own.values()])
        outputs = tape(x)
        unfit = [layer for layer in seen.layers if layer in tape.unfit or tape.calls.count(layer) != 1]
        _require_fit({*tape.loose, *(name for layer in unfit for name in seen.layers[layer].values())})
        for turn, unit in enumerate(_units(outputs.detach(), seen.outputs)):
            pull_back(outputs, unit, retain_graph=turn + 1 < len(seen.outputs))
    _require_fit({name for layer in heard for name in seen.layers[layer].values()})
    if seen.exact:
        take(EXACT, rows(torch.stack(_exact(seen, x), 1), seen.summed))


def _require_fit(unfit: Collection[str]) -> None:
    if unfit:
        raise UnfitError(unfit)


def _units(outputs: Tensor, chosen: range) -> Iterator[Tensor]:
    """Cotangents in the shape of outputs `[B, …]` that pick one of the C numbers of every sample."""
    for c in chosen:
        unit = outputs.new_zeros(outputs.shape)
        unit.view(len(unit), -1)[:, c] = 1
        yield unit


def _exact(seen: TangentPlan, x: Tensor) -> list[Tensor]:
    """Gradients `[B, P]` of the parameters without a formula, one for each output: `vmap(grad)`, or sample by sample.

    Batching rules can be wrong (in torch 2.13 `vmap(jacrev)` is, of a PReLU, where B = C), so one pass is made for each
    output, and the first sample of every batch is compared with autograd.
    """
    with plain_attention():
        outputs = network_outputs(seen.model, seen.weights, x[:1]).detach()
        units = list(_units(outputs.expand(len(x), *outputs.shape[1:]), seen.outputs))
        differentiate = partial(autodiff_gradients, seen.model, seen.weights, seen.exact)
        found = [_joined(differentiate(x, unit, seen.alone)) for unit in units]
        if seen.alone or len(x) == 1:
            return found
        first = [_joined(differentiate(x[:1], unit[:1])) for unit in units]
        if all(_near(some[:1], one) for some, one in zip(found, first, strict=True)):
            return found
        return [_joined(differentiate(x, unit, True)) for unit in units]


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
