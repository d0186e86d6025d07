r"""Per-sample gradients where they are asked for, and for weights that no formula covers.

A cotangent `c` `[B, *outputs]` stands for the sample's loss: the gradient of sample b is $J_b^\top c_b$.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from nearkin.core.errors import require
from nearkin.core.rng import Streams
from nearkin.core.types import Params
from nearkin.fisher.cotangents import LABELS, Cotangents, Data, batches, cotangents, sample_blocks
from nearkin.fisher.layers import rule_for
from nearkin.fisher.plan import Plan, locally, planned, require_steady, wanted_names
from nearkin.fisher.tape import Network, Tape, called, frozen, pull_back
from nearkin.tasks.likelihood import likelihood as likelihood_named

MEMORY_BYTES = 256 * 2**20


def rest_gradients(
    model: Network, weights: Mapping[str, Tensor], names: tuple[str, ...], x: Tensor, cotangent: Tensor
) -> Params:
    """Per-sample gradients `[B, *shape]` of the named parameters, by `vmap(grad)`; sample by sample if that fails."""
    chosen = {name: weights[name] for name in names}

    def inner(some: Params, one: Tensor, c: Tensor) -> Tensor:
        return (called(model, {**weights, **some}, one[None])[0] * c).sum()

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # slow, and right
            found: Params = vmap(grad(inner), in_dims=(None, 0, 0))(chosen, x, cotangent)
        return found
    except RuntimeError:  # no batching at all, or control flow that looks at values
        each = [_one_gradient(inner, chosen, x[b], cotangent[b]) for b in range(len(x))]
        return {name: torch.stack([one[name] for one in each]) for name in names}


def _one_gradient(inner: Callable[..., Tensor], chosen: Params, x: Tensor, cotangent: Tensor) -> Params:
    free = {name: value.detach().clone().requires_grad_() for name, value in chosen.items()}
    with torch.enable_grad():
        value = inner(free, x, cotangent)
    if not value.requires_grad:  # this sample took a way past all of them
        return {name: torch.zeros_like(weight) for name, weight in chosen.items()}
    found = zip(free, torch.autograd.grad(value, list(free.values()), allow_unused=True), strict=True)
    return {name: torch.zeros_like(free[name]) if one is None else one for name, one in found}


def chunk_size(weights: Mapping[str, Tensor], names: tuple[str, ...], memory: int = MEMORY_BYTES) -> int:
    """How many samples' gradients of these parameters fit the memory."""
    size = sum(weights[name].numel() * weights[name].element_size() for name in names)
    return max(1, memory // max(1, 2 * size))


def sample_gradients(
    model: nn.Module,
    data: Data,
    targets: Tensor | None = None,
    *,
    likelihood: str = "categorical",
    labels: str = "observed",
    batch_size: int = 128,
    seed: int = 0,
    names: Collection[str] | None = None,
    memory: int = MEMORY_BYTES,
) -> Iterator[Params]:
    r"""Per-sample gradients of the loss, $-\nabla_\theta \log p(y_b \mid f(x_b))$, a block of samples at a time.

    The gradients of all data never stand in memory at once.

    Args:
        model: the network, in evaluation mode.
        data: inputs with `targets`, examples, or an iterable of batches, as for `diagonal`.
        targets: labels for `observed`.
        likelihood: the name of one.
        labels: `observed`, or `sampled` once from the model.
        batch_size: samples of a block at the most.
        seed: of the draws.
        names: parameters; by default all that require gradients.
        memory: bytes that a block's gradients may take, about.

    Yields:
        `[B, *shape]` by name.

    >>> net, x = nn.Linear(2, 1), torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> (block,) = sample_gradients(net, x, net(x).detach() - 1, likelihood="gaussian")
    >>> block["weight"].round().tolist()
    [[[1.0, 2.0]], [[3.0, 0.0]]]
    """
    require(labels in LABELS[:2], f"per-sample gradients have observed or sampled labels, got {labels!r}")
    form, rng = likelihood_named(likelihood), Streams(seed)["labels"]
    require_steady(model)
    weights, chosen = frozen(model), wanted_names(model, names)
    plan: Plan | None = None
    for x, y in batches(data, targets, batch_size, labels):
        plan = plan or planned(model, weights, x, chosen)
        made = cotangents(form, labels, y, 1, rng)
        for part in sample_blocks(len(x), chunk_size(weights, chosen, memory)):
            found = _block(model, weights, plan, x, part, made)
            size = len(x[part])
            yield {name: found.get(name, weights[name].new_zeros(size, *weights[name].shape)) for name in chosen}


def _block(
    model: nn.Module, weights: Mapping[str, Tensor], plan: Plan, x: Tensor, part: slice, cotangents: Cotangents
) -> Params:
    """Gradients of a part of a batch: by formula where the plan trusts one, else by automatic differentiation."""
    found: Params = {}

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        rule = rule_for(layer)
        if rule is not None:
            for local, gradient in rule.gradients(layer, locally(name, weights), read, g).items():
                mine = plan.owners[name][local]
                found[mine] = found[mine] + gradient if mine in found else gradient

    outputs = Tape(model, plan.layers, receive)(x[part])
    cotangent = next(cotangents(outputs.detach(), part))
    pull_back(outputs, cotangent)
    left = (*plan.rest, *plan.idle)
    return {**found, **(rest_gradients(model, weights, left, x[part], cotangent) if left else {})}
