"""Record the inputs of a network's layers and the gradients at their outputs, sample by sample.

A layer's per-sample weight gradients are contractions of its input `x` `[B, …]` with the gradient `g` `[B, …]` at its
output. Weights are frozen while the tape runs, so autograd computes no weight gradients: a backward pass on the tape
costs only the gradients of the activations.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import MismatchError

Network: TypeAlias = nn.Module | Callable[[dict[str, Tensor], Tensor], Tensor]
"""A module, or a function of weights by name and inputs."""

Receiver: TypeAlias = Callable[[str, nn.Module, Tensor, Tensor], bool | None]
"""Called during the backward pass with a layer's name, the layer, its input `x` and its output's gradient `g`.

It returns True if no other backward pass follows, so that the tape can free `x`.
"""

TOKEN = torch.zeros((), requires_grad=True)  # the leaf of graphs that start at a layer's output; gets no gradient
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def network_outputs(network: Network, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Outputs of a module, or of a function `f(params, x)`, at given weights."""
    if isinstance(network, nn.Module):
        outputs: Tensor = functional_call(network, dict(weights), (x,))
        return outputs
    return network(dict(weights), x)


class Tape:
    """A network whose layers are recorded: a backward pass from its outputs calls `receive` for every call of a layer.

    Weights are frozen while a recorded layer computes, and the graph starts at its output. Watched parameters are
    frozen only there, so that any other use of them is a leaf of the graph, also if its gradient is zero. After a run
    nothing is left on the modules. With `retain_graph=True` there may be several backward passes; `receive` is called
    in each.

    Args:
        model: the network; the layers of a function are not known.
        layers: names of the modules to record, as in `model.named_modules()`.
        receive: see `Receiver`.
        weights: weights by name, for a function `f(params, x)`; a module has its own.
        watch: names of the parameters whose uses outside of the layers are searched for.

    Attributes:
        calls: layers in the order of their calls in the last run.
        unfit: layers that were called without one tensor whose first axis is that of the samples.
        loose: watched parameters that the last run also used outside of the layers.

    >>> seen = {}
    >>> def receive(name, layer, x, g):
    ...     seen[name] = (tuple(x.shape), tuple(g.shape))
    >>> Tape(nn.Linear(2, 1), [""], receive)(torch.ones(3, 2)).sum().backward()
    >>> seen
    {'': ((3, 2), (3, 1))}
    """

    def __init__(
        self,
        model: Network,
        layers: Iterable[str],
        receive: Receiver,
        weights: Mapping[str, Tensor] | None = None,
        watch: Collection[str] = (),
    ) -> None:
        modules = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
        self._network, self._weights, self._receive, self._num_samples = model, dict(weights or {}), receive, 0
        self._parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
        named = model.named_parameters() if isinstance(model, nn.Module) else ()
        self._watched = {id(value): name for name, value in named if name in watch}
        self._forwards = [(modules[name].__dict__, self._forward(name, modules[name])) for name in layers]
        self.calls: list[str] = []
        self.unfit: set[str] = set()
        self.loose: set[str] = set()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs for `[B, *input_shape]`."""
        self.calls, self.unfit, self._num_samples = [], set(), len(inputs)
        before = [parameter.requires_grad for parameter in self._parameters]
        try:
            for parameter in self._parameters:
                parameter.requires_grad_(id(parameter) in self._watched)
            for attributes, forward in self._forwards:  # runs inside of all hooks, and is faster than a hook
                attributes["forward"] = forward
            with torch.enable_grad():
                if isinstance(self._network, nn.Module):
                    outputs: Tensor = self._network(inputs)  # functional_call costs as much as a small layer
                else:
                    outputs = network_outputs(self._network, self._weights, inputs)
        finally:
            for attributes, _ in self._forwards:
                attributes.pop("forward", None)
            for parameter, required in zip(self._parameters, before, strict=True):
                parameter.requires_grad_(required)
        self.loose = {self._watched[key] for key in _leaves(outputs) if key in self._watched}
        return outputs

    def stray_layers(self, outputs: Tensor) -> set[str]:
        """Layers in which samples are mixed or have another order than in the outputs.

        The gradient of the outputs of some samples must be zero in all other rows. Each pass selects the samples with
        one binary digit of their number set, so that any two samples differ in at least one pass.
        """
        strays: set[str] = set()

        def receive(name: str, layer: nn.Module, x: Tensor, g: Tensor) -> None:
            if bool((g[~chosen] != 0).any()):
                strays.add(name)

        numbers, before = torch.arange(len(outputs), device=outputs.device), self._receive
        self._receive = receive
        for digit in range((len(outputs) - 1).bit_length()):
            chosen = (numbers >> digit) % 2 == 1
            cotangent = torch.zeros_like(outputs)
            cotangent[chosen] = torch.linspace(1, 2, outputs[0].numel()).to(outputs).view(outputs.shape[1:])
            pull_back(outputs, cotangent, retain_graph=True)
        self._receive = before
        return strays

    def _forward(self, name: str, layer: nn.Module) -> Callable[..., Any]:
        """A layer's forward method that freezes its weights and records the call."""
        own = [parameter for parameter in layer.parameters(recurse=False) if id(parameter) in self._watched]
        compute = layer.forward

        def forward(*arguments: Any, **keywords: Any) -> Any:
            for parameter in own:
                parameter.requires_grad_(False)
            outputs = compute(*arguments, **keywords)
            for parameter in own:
                parameter.requires_grad_(True)
            if not torch.is_grad_enabled():  # autograd does not record this call either
                return outputs
            self.calls.append(name)
            values = (*arguments, outputs)
            if keywords or len(values) != 2 or not all(self._has_samples(value) for value in values):
                self.unfit.add(name)
                return outputs
            return self._with_hook(name, layer, arguments[0], outputs)

        return forward

    def _has_samples(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.shape[:1] == (self._num_samples,)

    def _with_hook(self, name: str, layer: nn.Module, x: Tensor, outputs: Tensor) -> Tensor:
        """The outputs of a layer, with a hook that calls `receive` with its input and its output's gradient."""
        inputs = [x.detach()]
        version = inputs[0]._version
        if outputs._is_view():
            outputs = outputs.clone()  # the hook of a view is lost if the view is changed in place
        if not outputs.requires_grad:
            outputs = _GraphStart.apply(outputs, TOKEN)  # type: ignore[no-untyped-call]
        elif type(layer) in NORMS and not layer.training and x.requires_grad:
            slope = _slope(cast(nn.BatchNorm2d, layer))
            outputs = _Scaled.apply(x, outputs.detach(), slope)  # type: ignore[no-untyped-call]

        def hook(g: Tensor) -> None:  # gradients are disabled while autograd calls this
            if inputs[0]._version != version:
                raise MismatchError(
                    f"the input of {name or 'the network'} was changed in place after it was read; use out-of-place "
                    f"operations there (nn.ReLU(inplace=False), x = x + y)"
                )
            if self._receive(name, layer, inputs[0], g):
                inputs.clear()

        outputs.register_hook(hook)
        return outputs


def _leaves(outputs: Tensor) -> set[int]:
    """The ids of all leaf tensors of a graph."""
    waiting, known, leaves = [outputs.grad_fn], {outputs.grad_fn, None}, {id(outputs)}
    while waiting:
        node = waiting.pop()
        following = node.next_functions if node is not None else ()
        for child, _ in following:
            if child not in known:
                known.add(child)
                waiting.append(child)
        if not following:
            leaves.add(id(getattr(node, "variable", None)))
    return leaves


def pull_back(outputs: Tensor, cotangent: Tensor, retain_graph: bool = False) -> None:
    """A backward pass from outputs on a tape, with a cotangent in their shape; nothing if they depend on no layer.

    It differentiates a scalar: with a gradient as an argument, torch imports SymPy, which takes most of a second.
    """
    if outputs.requires_grad:
        with torch.enable_grad():
            total = (outputs * cotangent).sum()
        total.backward(retain_graph=retain_graph)


def detached_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, detached."""
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach() for name, value in named}


def _slope(norm: nn.BatchNorm2d) -> Tensor:
    """The factor `[C]` that batch normalisation in evaluation mode multiplies each channel by."""
    variance = norm.running_var if norm.running_var is not None else torch.ones(())
    slope = (variance.detach() + norm.eps).rsqrt()
    return slope if norm.weight is None else slope * norm.weight.detach()


class _Scaled(torch.autograd.Function):
    """Batch normalisation in evaluation mode, already computed; torch's backward also computes unused sums."""

    @staticmethod
    def forward(context: Any, x: Tensor, outputs: Tensor, slope: Tensor) -> Tensor:
        context.mark_dirty(outputs)
        context.save_for_backward(slope)
        return outputs

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        (slope,), (g,) = context.saved_tensors, gradients
        return g * slope.view(-1, *[1] * (g.dim() - 2)), None, None


class _GraphStart(torch.autograd.Function):
    """The tensor itself, with a graph that starts here; it is not a leaf, so later layers can change it in place."""

    @staticmethod
    def forward(context: Any, outputs: Tensor, token: Tensor) -> Tensor:
        context.mark_dirty(outputs)
        return outputs

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[None, None]:
        return None, None
