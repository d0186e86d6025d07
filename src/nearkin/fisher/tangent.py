r"""The tangent kernel of a network at its weights, $K(x, x') = J(x) J(x')^⊤$ (Jacot et al. 2018, the finite one).

The Jacobian is never formed: every layer adds its own contraction (`layer_kernels`), read off C backward passes over
one forward pass. If all samples' features do not fit the memory, blocks of samples meet each other in turn; if the
kernel itself does not fit, `tangent_product` gives $K u$ without it.

Notation: N and M samples, C outputs (axes behind the first are flattened), P weights, R outputs kept apart.
"""

from collections.abc import Callable, Collection
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from nearkin.core.errors import DataError, MismatchError, OptionError, require
from nearkin.core.events import Note, Work, finish
from nearkin.core.types import Params
from nearkin.fisher.plan import require_steady, wanted_names
from nearkin.fisher.tangent_blocks import cut, filled, require_finite
from nearkin.fisher.tangent_features import UnfitError, plain_attention
from nearkin.fisher.tangent_trust import sight
from nearkin.fisher.tape import frozen
from nearkin.nets.functional import outputs_of

Outputs: TypeAlias = Literal["all", "sum"] | int

MEMORY_BYTES = 2 * 2**30


def tangent_kernel(
    model: nn.Module,
    x: Tensor,
    x2: Tensor | None = None,
    outputs: Outputs = "all",
    params: Collection[str] | None = None,
    batch_size: int | None = None,
    memory: int = MEMORY_BYTES,
) -> Tensor:
    r"""Gram matrix $J(x) J(x)^⊤$ (exactly symmetric), or $J(x) J(x_2)^⊤$.

    Args:
        model: a network in evaluation mode that treats samples apart.
        x: `[N, *input_shape]`.
        x2: `[M, *input_shape]`; `x` itself if None.
        outputs: `"all"` for `[N, C, M, C]`; an index c for $K_{cc}$ `[N, M]`; `"sum"` for $\sum_c K_{cc}$ `[N, M]`.
        params: names of the weights to differentiate by; those that require gradients if None.
        batch_size: samples in one forward pass; chosen by memory if None.
        memory: bytes that the kernel and all that is held beside it may take.

    >>> net = nn.Linear(2, 1)
    >>> tangent_kernel(net, torch.tensor([[1.0, 0.0], [2.0, 3.0]]), outputs=0)  # x xᵀ + 1
    tensor([[ 2.,  3.],
            [ 3., 14.]])
    """
    return finish(tangent_kernel_work(model, x, x2, outputs, params, batch_size, memory))


def tangent_kernel_work(
    model: nn.Module,
    x: Tensor,
    x2: Tensor | None = None,
    outputs: Outputs = "all",
    params: Collection[str] | None = None,
    batch_size: int | None = None,
    memory: int = MEMORY_BYTES,
) -> Work[Tensor]:
    """`tangent_kernel` as work: a note says how each weight is treated and whether in blocks; progress by samples."""
    names, size = _checked(model, x, x2, params)
    chosen = _chosen(outputs, size)
    seen = sight(model, frozen(model), names, chosen, outputs == "sum", torch.cat([x[:1], x[1:][-1:]]))
    while True:
        try:
            sides = cut(seen, x, x2, batch_size, memory)
            yield Note(sides.told(seen))
            found = yield from filled(seen, sides)
        except UnfitError as unfit:
            yield Note(
                f"{unfit.layer} is not called once with all samples; its weights go to automatic differentiation"
            )
            seen = seen.without(unfit.layer)
            continue
        require_finite(seen, sides, found)
        shape = (len(x), size, len(sides.other), size) if outputs == "all" else (len(x), len(sides.other))
        return found.view(shape)


def tangent_product(
    model: nn.Module,
    x: Tensor,
    u: Tensor,
    x2: Tensor | None = None,
    outputs: Outputs = "all",
    params: Collection[str] | None = None,
    batch_size: int = 256,
) -> Tensor:
    """The product K(x, x2) u = J(x) (J(x2)ᵀ u), by one reverse and one forward pass; K is never formed.

    Args:
        model: as in `tangent_kernel`, with `x`, `x2` and `params`.
        x: `[N, *input_shape]`.
        u: `[M, C]` for all outputs; `[M]` for one output or their sum, which takes C products.
        x2: `[M, *input_shape]`; `x` itself if None.
        outputs: as in `tangent_kernel`.
        params: as in `tangent_kernel`.
        batch_size: samples in one pass.

    >>> net, x = nn.Linear(2, 1), torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    >>> tangent_product(net, x, torch.tensor([[1.0], [-1.0]]))
    tensor([[ -1.],
            [-11.]])
    """
    names, size = _checked(model, x, x2, params)
    chosen, other = _chosen(outputs, size), x if x2 is None else x2
    wanted = (len(other), size) if outputs == "all" else (len(other),)
    require(tuple(u.shape) == wanted, f"u has shape {tuple(u.shape)}, expected {wanted}", MismatchError)
    weights = frozen(model)
    free, rest = {n: weights[n] for n in names}, {n: v for n, v in weights.items() if n not in names}
    columns = [u] if outputs == "all" else [torch.eye(size).to(u)[c] * u[:, None] for c in chosen]
    total = u.new_zeros(len(x), size if outputs == "all" else 1)
    for c, column in zip(chosen, columns, strict=False):
        tangent = _pulled(model, free, rest, other, column, batch_size)
        parts = [_pushed(model, free, rest, part, tangent) for part in x.detach().split(batch_size)]
        moved = torch.cat(parts)
        total += moved if outputs == "all" else moved[:, c, None]
    return total if outputs == "all" else total[:, 0]


def _checked(
    model: nn.Module, x: Tensor, x2: Tensor | None, params: Collection[str] | None
) -> tuple[tuple[str, ...], int]:
    """Names of the weights, and the number of outputs."""
    require_steady(model)
    names = wanted_names(model, params)
    for side in (x, x) if x2 is None else (x, x2):
        require(side.dim() > 0 and len(side) > 0, "there are no samples; give one or more", DataError)
        require(
            side.shape[1:] == x.shape[1:],
            f"inputs of shapes {tuple(x.shape[1:])} and {tuple(side.shape[1:])} do not meet; give both one shape",
            MismatchError,
        )
    return names, outputs_of(model, x[:1]).numel()


def _chosen(outputs: Outputs, size: int) -> range:
    """The outputs to differentiate."""
    if outputs in ("all", "sum"):
        return range(size)
    if not isinstance(outputs, int) or not 0 <= outputs < size:
        raise OptionError(f"outputs is 'all', 'sum' or an index from 0 to {size - 1}, got {outputs!r}")
    return range(outputs, outputs + 1)


def _pulled(model: nn.Module, free: Params, rest: Params, x: Tensor, u: Tensor, batch_size: int) -> Params:
    """Jᵀu of all samples, by parameter."""
    total = {name: torch.zeros_like(value) for name, value in free.items()}
    wants = {name: value.detach().requires_grad_() for name, value in free.items()}
    for part, v in zip(x.detach().split(batch_size), u.split(batch_size), strict=True):
        with torch.enable_grad(), plain_attention():
            outputs = functional_call(model, {**rest, **wants}, (part,))
            found = torch.autograd.grad(outputs, list(wants.values()), v.reshape(outputs.shape), allow_unused=True)
        for name, gradient in zip(wants, found, strict=True):
            if gradient is not None:
                total[name] += gradient
    return total


def _pushed(model: nn.Module, free: Params, rest: Params, x: Tensor, tangent: Params) -> Tensor:
    """J v of one batch, `[B, C]`: forward mode, or reverse mode twice for operations that have no forward one."""

    def f(some: Params) -> Tensor:
        outputs: Tensor = functional_call(model, {**rest, **some}, (x,))
        return outputs.reshape(len(x), -1)

    with torch.enable_grad(), plain_attention():
        try:
            moved: Tensor = jvp(f, (free,), (tangent,))[1]
        except (RuntimeError, NotImplementedError):
            moved = _pushed_by_reverse(f, free, tangent)
    return moved.detach()


def _pushed_by_reverse(f: Callable[[Params], Tensor], free: Params, tangent: Params) -> Tensor:
    r"""J v as the gradient of $⟨J^⊤ w, v⟩$ by w."""
    wants = {name: value.detach().requires_grad_() for name, value in free.items()}
    outputs = f(wants)
    w = torch.zeros_like(outputs, requires_grad=True)
    pulled = torch.autograd.grad(outputs, list(wants.values()), w, create_graph=True, allow_unused=True)
    pairs = zip(pulled, tangent.values(), strict=True)
    total = sum(((p * v).sum() for p, v in pairs if p is not None), start=torch.zeros_like(outputs).sum())
    found = torch.autograd.grad(total, w, allow_unused=True)[0] if total.requires_grad else None
    return torch.zeros_like(outputs) if found is None else found
