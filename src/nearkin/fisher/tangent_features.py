"""Features of a batch, layer by layer, from which a tangent kernel is computed.

The features of layers with a formula need one forward pass and C backward passes; the parameters of all other layers
are differentiated by autograd.

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
    """Error: a batch does not fit the plan; the kernel is computed again without formulas for these parameters."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(", ".join(names))
        self.names = frozenset(names)


@dataclass(frozen=True, eq=False)
class TangentPlan:
    """How the tangent kernel of a network is computed.

    Attributes:
        model: the network.
        weights: its parameters and buffers, detached.
        local: parameters and buffers of layers by their local names.
        layers: layers with a formula; for each, the full names of its selected parameters by their local names.
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
    """The plan for a network: layers that are called once and do not share their weights have formulas.

    Args:
        model: the network.
        names: selected parameters.
        outputs: which of the outputs to differentiate.
        summed: whether the kernel is summed over them.
        x: all inputs.

    >>> net = nn.Sequential(nn.Linear(3, 2), nn.PReLU())
    >>> plan = tangent_plan(net, ("0.bias", "1.weight"), range(2), False, torch.ones(1, 3))
    >>> plan.layers, plan.exact
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


def features(plan: TangentPlan, x: Tensor, partners: int, take: Take) -> None:
    """Call `take` with the features of each layer, and last with those of all other parameters under `EXACT`.

    Args:
        plan: how the kernel of the network is computed.
        x: inputs `[B, …]`.
        partners: number of samples that each sample is combined with.
        take: called with the features of one layer at a time; what it does not keep is freed.

    Raises:
        UnfitError: if a layer is not called once with all samples, or its weights are used elsewhere.
    """
    heard: dict[str, list[Tensor]] = {name: [] for name in plan.layers}
    turn = 0

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        heard[name].append(g)
        if turn + 1 == len(plan.outputs):
            own = plan.layers[name]
            take(name, feature(layer, plan.local[name], read, heard.pop(name), own, plan.summed, partners))

    x = x.detach()
    if plan.layers:
        tape = Tape(plan.model, plan.layers, receive, watch=[n for own in plan.layers.values() for n in own.values()])
        outputs = tape(x)
        unfit = [layer for layer in plan.layers if layer in tape.unfit or tape.calls.count(layer) != 1]
        _require_fit({*tape.loose, *(name for layer in unfit for name in plan.layers[layer].values())})
        for turn, unit in enumerate(_units(outputs.detach(), plan.outputs)):
            pull_back(outputs, unit, retain_graph=turn + 1 < len(plan.outputs))
    _require_fit({name for layer in heard for name in plan.layers[layer].values()})
    if plan.exact:
        take(EXACT, rows(torch.stack(_exact(plan, x), 1), plan.summed))


def _require_fit(unfit: Collection[str]) -> None:
    if unfit:
        raise UnfitError(unfit)


def _units(outputs: Tensor, chosen: range) -> Iterator[Tensor]:
    """Cotangents in the shape of outputs `[B, …]` that select one of the C outputs of every sample."""
    for c in chosen:
        unit = outputs.new_zeros(outputs.shape)
        unit.view(len(unit), -1)[:, c] = 1
        yield unit


def _exact(plan: TangentPlan, x: Tensor) -> list[Tensor]:
    """Gradients `[B, P]` of the parameters without a formula, one for each output: `vmap(grad)`, or sample by sample.

    Batching rules can be wrong (in torch 2.13 `vmap(jacrev)` is wrong for a PReLU with B = C). Therefore there is one
    pass per output, and the first sample of every batch is compared with autograd.
    """
    with plain_attention():
        outputs = network_outputs(plan.model, plan.weights, x[:1]).detach()
        units = list(_units(outputs.expand(len(x), *outputs.shape[1:]), plan.outputs))
        differentiate = partial(autodiff_gradients, plan.model, plan.weights, plan.exact)
        gradients = [_joined(differentiate(x, unit, plan.alone)) for unit in units]
        if plan.alone or len(x) == 1:
            return gradients
        first = [_joined(differentiate(x[:1], unit[:1])) for unit in units]
        if all(_near(batch[:1], single) for batch, single in zip(gradients, first, strict=True)):
            return gradients
        return [_joined(differentiate(x, unit, True)) for unit in units]


def _joined(gradients: Mapping[str, Tensor]) -> Tensor:
    """Gradients `[B, *shape]` by name as `[B, P]`."""
    return torch.cat([value.to_dense().flatten(1) for value in gradients.values()], 1)


def _near(values: Tensor, truth: Tensor) -> bool:
    """Whether values agree up to the precision of their dtype, or the true values are not finite."""
    close = (values - truth).abs().max() <= torch.finfo(truth.dtype).eps ** 0.5 * truth.abs().max()
    return bool(close) or not bool(truth.isfinite().all())


@contextmanager
def plain_attention() -> Iterator[None]:
    """Disable fused attention within the block: it has no derivative or no batching rule."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
