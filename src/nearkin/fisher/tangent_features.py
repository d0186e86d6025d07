"""The numbers of a batch that a tangent kernel needs, layer by layer, and the search for a layer that broke them.

Notation: B samples, C outputs, P weights.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from nearkin.core.types import Params
from nearkin.fisher.layer_kernels import Feature, Rows, feature
from nearkin.fisher.tangent_trust import Sight, near
from nearkin.fisher.tape import outputs_on_tape

EXACT = "*"  # stands for all parameters without a formula; no module has this name


class UnfitError(Exception):
    """A trusted layer did something else on later samples than on the first; the kernel is begun anew without it."""

    def __init__(self, layer: str) -> None:
        super().__init__(layer)
        self.layer = layer


def features(seen: Sight, x: Tensor, partners: int) -> dict[str, Feature]:
    """Features of a batch `[B, …]` by layer; of all parameters without a formula under `EXACT`.

    Args:
        seen: the network.
        x: inputs.
        partners: samples that each sample will meet.

    Raises:
        UnfitError: if a layer is not called once with all samples.
    """
    found: dict[str, Feature] = {}
    if seen.layers:
        reads, gradients = taped(seen, x)
        for name, own in seen.layers.items():
            g = gradients.pop(name)
            stacked = g[0][:, None] if len(g) == 1 else torch.stack(g, 1)
            layer = seen.model.get_submodule(name)
            found[name] = feature(layer, reads.pop(name), stacked, own, seen.summed, partners)
    if seen.exact:
        rows = exact_rows(seen, x)
        found[EXACT] = Rows(rows.flatten(1)[:, None] if seen.summed else rows)
    return found


def taped(seen: Sight, x: Tensor) -> tuple[dict[str, Tensor], dict[str, list[Tensor]]]:
    """Each layer's input `[B, …]`, and its output's gradients `[B, …]`, one for each output: C passes, one graph."""
    reads: dict[str, Tensor] = {}
    gradients: dict[str, list[Tensor]] = defaultdict(list)

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        if len(read) != len(x) or len(g) != len(x):
            raise UnfitError(name)
        reads[name] = read
        gradients[name].append(g)

    with torch.enable_grad():
        outputs = outputs_on_tape(seen.model, seen.weights, seen.inputs(x), seen.layers, receive)
        flat = outputs.reshape(len(x), -1)
        for c in seen.outputs:
            flat[:, c].sum().backward(retain_graph=c < seen.outputs[-1])
    for name in seen.layers:
        if len(gradients[name]) != len(seen.outputs):
            raise UnfitError(name)
    return reads, gradients


def exact_rows(seen: Sight, x: Tensor) -> Tensor:
    """Per-sample gradients `[B, C, P]` of the parameters without a formula: `vmap(grad)`, or sample by sample.

    Batching rules can be wrong (in torch 2.13 `vmap(jacrev)` is, of a PReLU, where B = C), so one pass is made for each
    output, and the first sample of every batch is compared with autograd.
    """
    chosen = {name: seen.weights[name].detach() for name in seen.exact}

    def f(some: Params, one: Tensor) -> Tensor:
        outputs: Tensor = functional_call(seen.model, {**seen.weights, **some}, (one[None],))
        return outputs.reshape(-1)[seen.outputs.start : seen.outputs.stop]

    x = x.detach()
    with torch.enable_grad(), plain_attention():
        first = _jacobian(f, chosen, x[0])
        rows = _vmapped(f, chosen, x, len(first)) if len(x) > 1 and _can_be_vmapped(seen.model) else None
        if rows is not None and near(rows[0], first):
            return rows
        return torch.stack([first, *(_jacobian(f, chosen, one) for one in x[1:])])


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


def _can_be_vmapped(model: nn.Module) -> bool:
    """Whether no module is known to lack a batching rule; torch's recurrent kernels do, and warn."""
    return not any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in model.modules())


def _vmapped(f: Callable[[Params, Tensor], Tensor], chosen: Params, x: Tensor, num_outputs: int) -> Tensor | None:
    """Jacobians `[B, C, P]`; None where an operation has no batching rule or control flow looks at values."""

    def output(some: Params, one: Tensor, c: int) -> Tensor:
        return f(some, one)[c]

    try:
        blocks = [vmap(grad(output), in_dims=(None, 0, None))(chosen, x, c) for c in range(num_outputs)]
    except RuntimeError:
        return None
    flat = [torch.cat([part.flatten(1) for part in block.values()], 1) for block in blocks]
    return torch.stack(flat, 1).detach()


def _jacobian(f: Callable[[Params, Tensor], Tensor], chosen: Params, one: Tensor) -> Tensor:
    """The Jacobian `[C, P]` of one sample's outputs, by autograd."""
    free = [value.requires_grad_() for value in chosen.values()]
    outputs = f(dict(zip(chosen, free, strict=True)), one)
    rows = []
    for output in outputs:
        found = torch.autograd.grad(output, free, retain_graph=True, allow_unused=True) if output.requires_grad else ()
        pairs = zip(free, found or [None] * len(free), strict=True)
        parts = [torch.zeros_like(value) if part is None else part.to_dense() for value, part in pairs]
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows).detach()


def broken_layer(seen: Sight, x: Tensor) -> str | None:
    """Where a batch first ceases to be finite, in words: in the inputs, a layer's outputs or its gradients."""
    if x.is_floating_point() and not bool(x.isfinite().all()):
        return "the inputs"
    found: list[str] = []

    def listen(name: str) -> Callable[[nn.Module, object, object], None]:
        def look(module: nn.Module, arguments: object, outputs: object) -> None:
            if isinstance(outputs, Tensor) and outputs.is_floating_point() and not bool(outputs.isfinite().all()):
                found.append(f"the outputs of {name or 'the network'}")

        return look

    hooks = [module.register_forward_hook(listen(name)) for name, module in seen.model.named_modules()]
    try:
        with torch.no_grad():
            functional_call(seen.model, dict(seen.weights), (x,))
    finally:
        for hook in hooks:
            hook.remove()
    if not found and seen.layers:
        gradients = taped(seen, x)[1]
        bad = [n for n, parts in gradients.items() if not all(bool(g.isfinite().all()) for g in parts)]
        found = [f"the gradients of {name or 'the network'}" for name in bad[:1]]
    return found[0] if found else None
