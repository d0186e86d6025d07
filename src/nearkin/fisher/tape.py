"""The tape: inputs of a network's layers, and the gradients at their outputs, sample by sample.

A layer's per-sample weight gradients are contractions of what it read, `x` `[B, …]`, with the gradient at what it gave,
`g` `[B, …]`. Weights are frozen while the tape runs, so autograd never forms weight gradients of its own: a backward
pass on the tape costs the gradients of the activations alone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import MismatchError

Network: TypeAlias = nn.Module | Callable[[dict[str, Tensor], Tensor], Tensor]
"""A module, or a function of weights by name and inputs."""

Receiver: TypeAlias = Callable[[str, nn.Module, Tensor, Tensor], bool | None]
"""Called during the backward pass with a layer's name, the layer, its input `x` and its output's gradient `g`.

True says that no other pass will come by, and that the tape may let go of `x`.
"""

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def called(network: Network, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Outputs of a module, or of a function `f(params, x)`, at given weights."""
    if isinstance(network, nn.Module):
        outputs: Tensor = functional_call(network, dict(weights), (x,))
        return outputs
    return network(dict(weights), x)


def outputs_on_tape(
    model: Network,
    weights: Mapping[str, Tensor],
    inputs: Tensor,
    layers: Iterable[str],
    receive: Receiver,
) -> Tensor:
    """Outputs of the network at frozen weights; a backward pass from them calls `receive` for every call of a layer.

    The graph begins at the named layers' outputs; nothing is left on the modules. Several backward passes may be made
    with `retain_graph=True`, each of which is received.

    Args:
        model: the network; of a function no layer is known.
        weights: parameters and buffers by name, detached.
        inputs: `[B, *input_shape]`.
        layers: names of the modules to listen to, as in `model.named_modules()`.
        receive: see `Receiver`.

    >>> net = nn.Linear(2, 1)
    >>> weights = {name: value.detach() for name, value in net.named_parameters()}
    >>> seen = {}
    >>> def receive(name, layer, x, g):
    ...     seen[name] = (tuple(x.shape), tuple(g.shape))
    >>> outputs_on_tape(net, weights, torch.ones(3, 2), [""], receive).sum().backward()
    >>> seen
    {'': ((3, 2), (3, 1))}
    """
    modules = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
    hooks = [modules[name].register_forward_hook(_listener(name, receive)) for name in layers]
    try:
        with torch.enable_grad():
            return called(model, weights, inputs)
    finally:
        for hook in hooks:
            hook.remove()


def pull_back(outputs: Tensor, cotangent: Tensor, retain_graph: bool = False) -> None:
    """A backward pass from outputs on a tape, with a cotangent in their shape; nothing if they hang on no layer.

    As the gradient of a number: torch imports SymPy, for most of a second, where a gradient is handed over.
    """
    if outputs.requires_grad:
        with torch.enable_grad():
            total = (outputs * cotangent).sum()
        total.backward(retain_graph=retain_graph)


def frozen(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, detached: what `outputs_on_tape` takes as weights."""
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach() for name, value in named}


def _listener(name: str, receive: Receiver) -> Callable[[nn.Module, tuple[Any, ...], Any], Any]:
    """A forward hook that sees a layer's input and asks for its output's gradient."""

    def listen(layer: nn.Module, arguments: tuple[Any, ...], outputs: Any) -> Any:
        if not isinstance(outputs, Tensor) or not arguments or not isinstance(arguments[0], Tensor):
            return None
        held = [arguments[0].detach()]
        version = held[0]._version
        if not outputs.requires_grad:
            outputs = _Beginning.apply(outputs, torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
        elif type(layer) in NORMS and not layer.training and arguments[0].requires_grad:
            slope = _slope(cast(nn.BatchNorm2d, layer))
            outputs = _Scaled.apply(arguments[0], outputs.detach(), slope)  # type: ignore[no-untyped-call]

        def hear(g: Tensor) -> None:
            if held[0]._version != version:
                raise MismatchError(
                    f"the input of {name or 'the network'} was changed in place after it was read; use out-of-place "
                    f"operations there (nn.ReLU(inplace=False), x = x + y)"
                )
            with torch.no_grad():
                if receive(name, layer, held[0], g):
                    held.clear()

        outputs.register_hook(hear)
        return outputs

    return listen


def _slope(norm: nn.BatchNorm2d) -> Tensor:
    """The factor `[C]` that batch normalisation in evaluation mode multiplies each channel by."""
    variance = norm.running_var if norm.running_var is not None else torch.ones(())
    slope = (variance.detach() + norm.eps).rsqrt()
    return slope if norm.weight is None else slope * norm.weight.detach()


class _Scaled(torch.autograd.Function):
    """Batch normalisation in evaluation mode, already computed; torch's own backward also sums what nobody asks for."""

    @staticmethod
    def forward(context: Any, x: Tensor, outputs: Tensor, slope: Tensor) -> Tensor:
        context.mark_dirty(outputs)
        context.save_for_backward(slope)
        return outputs

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        (slope,), (g,) = context.saved_tensors, gradients
        return g * slope.view(-1, *[1] * (g.dim() - 2)), None, None


class _Beginning(torch.autograd.Function):
    """The tensor itself, with a graph that begins here; no leaf, so that later layers may work on it in place."""

    @staticmethod
    def forward(context: Any, outputs: Tensor, token: Tensor) -> Tensor:
        context.mark_dirty(outputs)
        return outputs

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[None, None]:
        return None, None
