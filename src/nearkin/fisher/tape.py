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

TOKEN = torch.zeros((), requires_grad=True)  # what a graph hangs on that begins in the middle; never gets a gradient
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def called(network: Network, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Outputs of a module, or of a function `f(params, x)`, at given weights."""
    if isinstance(network, nn.Module):
        outputs: Tensor = functional_call(network, dict(weights), (x,))
        return outputs
    return network(dict(weights), x)


class Tape:
    """A network that is listened to: a backward pass from its outputs calls `receive` for every call of a layer.

    Weights are frozen while it runs, and the graph begins at the named layers' outputs. Between two runs nothing is
    left on the modules. Several backward passes may be made with `retain_graph=True`, each of which is received.

    Args:
        model: the network; of a function no layer is known.
        layers: names of the modules to listen to, as in `model.named_modules()`.
        receive: see `Receiver`.
        weights: by name, of a function `f(params, x)`; a module has its own.

    >>> seen = {}
    >>> def receive(name, layer, x, g):
    ...     seen[name] = (tuple(x.shape), tuple(g.shape))
    >>> Tape(nn.Linear(2, 1), [""], receive)(torch.ones(3, 2)).sum().backward()
    >>> seen
    {'': ((3, 2), (3, 1))}
    """

    def __init__(
        self, model: Network, layers: Iterable[str], receive: Receiver, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        modules = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
        self._network, self._weights = model, dict(weights or {})
        self._listeners = [(modules[name], _listener(name, receive)) for name in layers]
        self._parameters = list(model.parameters()) if isinstance(model, nn.Module) else []

    def __call__(self, inputs: Tensor, instead: Mapping[str, Tensor] | None = None) -> Tensor:
        """Outputs for `[B, *input_shape]`, with some weights of the network, by name, replaced by others."""
        moving = [parameter for parameter in self._parameters if parameter.requires_grad]
        hooks = [layer.register_forward_hook(listener) for layer, listener in self._listeners]
        try:
            for parameter in moving:
                parameter.requires_grad_(False)
            with torch.enable_grad():
                if isinstance(self._network, nn.Module) and not instead:
                    outputs: Tensor = self._network(inputs)  # functional_call costs as much as a small layer
                    return outputs
                return called(self._network, {**self._weights, **(instead or {})}, inputs)
        finally:
            for parameter in moving:
                parameter.requires_grad_(True)
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
    """Parameters and buffers by name, detached."""
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
            outputs = _Beginning.apply(outputs, TOKEN)  # type: ignore[no-untyped-call]
        elif type(layer) in NORMS and not layer.training and arguments[0].requires_grad:
            slope = _slope(cast(nn.BatchNorm2d, layer))
            outputs = _Scaled.apply(arguments[0], outputs.detach(), slope)  # type: ignore[no-untyped-call]

        def hear(g: Tensor) -> None:  # autograd has turned itself off where it calls this
            if held[0]._version != version:
                raise MismatchError(
                    f"the input of {name or 'the network'} was changed in place after it was read; use out-of-place "
                    f"operations there (nn.ReLU(inplace=False), x = x + y)"
                )
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
