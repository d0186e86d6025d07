"""Compare a plan with autograd on some samples, each alone and all together."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.types import Params
from nearkin.fisher.autodiff import autodiff_gradients, chunk_size, single_gradients
from nearkin.fisher.gradient_plan import GradientPlan, local_tensors
from nearkin.fisher.layers import rule_for
from nearkin.fisher.tape import Tape, pull_back

AGREEMENT = 1e-3  # of a formula with autograd, relative to the gradient of the tensor
BATCHED_AGREEMENT = 1e-2  # of batched with single differentiation, whose kernels round differently
NEGLIGIBLE = 1e-6  # relative to the largest gradient of the tensor in any sample


def verified_plan(plan: GradientPlan, model: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> GradientPlan:
    """The plan without the parameters whose per-sample gradients are wrong on samples `[K, *input_shape]`.

    A sample with a zero gradient does not test a formula. Other samples test it; if there are none, the structure of
    the network decides.

    Raises:
        MismatchError: if the outputs of a sample depend on the other samples.
    """
    if plan.alone:
        return plan
    names = tuple(dict.fromkeys((*plan.covered, *plan.rest)))
    formulas: list[dict[str, Tensor]] = []
    truths: list[dict[str, Tensor]] = []

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        for local, value in _shadows(layer, read, g).items():
            parameter = plan.owners[name][local]
            formulas[-1][parameter] = formulas[-1].get(parameter, 0) + value

    tape = Tape(model, plan.layers, receive, watch=plan.watched)
    outputs: list[Tensor] = []
    cotangents: list[Tensor] = []
    for sample in x.split(1):
        formulas.append({})
        outputs.append(tape(sample))
        fitted = plan.fitted(tape)
        if fitted is not plan:
            return verified_plan(fitted, model, weights, x)
        cotangents.append(_noise(outputs[-1].shape, len(outputs), outputs[-1]))
        pull_back(outputs[-1], cotangents[-1])
        outputs[-1] = outputs[-1].detach()
        truths.append(_shadowed(single_gradients(model, weights, names, sample, cotangents[-1])))
    wrong = {name for name in plan.covered if not _agree([f.get(name) for f in formulas], [t[name] for t in truths])}
    if len(x) > 1:
        together = tape(x)
        fitted = plan.fitted(tape)
        if fitted is not plan:
            return verified_plan(fitted, model, weights, x)
        _require_apart(together, outputs)
        wrong.update(name for layer in tape.stray_layers(together) for name in plan.owners[layer].values())
    plan = plan.without(wrong)
    return plan if _batched_agree(plan, model, weights, x, cotangents, truths) else plan.sample_by_sample()


def spread_samples(x: Tensor, count: int, start: int = 0) -> Tensor:
    """Samples at equal distances, starting with number `start`.

    >>> [spread_samples(torch.arange(n), k, start).tolist() for n, k, start in ((9, 3, 0), (3, 2, 2), (2, 4, 0))]
    [[0, 3, 6], [2, 0], [0, 1]]
    """
    count = min(count, len(x))
    return x[[(start + number * (len(x) // count)) % len(x) for number in range(count)]]


def _require_apart(together: Tensor, alone: Sequence[Tensor]) -> None:
    """Refuse a network whose outputs for one sample depend on the others."""
    apart = len(together) == len(alone)
    for row, single in zip(together.detach(), alone, strict=False):
        far = float((row - single[0]).abs().max()) / (float(single.abs().max()) + 1e-30)
        apart &= far < AGREEMENT or math.isnan(far)
    require(
        apart,
        "the network's output for a sample depends on the other samples of the batch, so per-sample gradients are not "
        "defined; use a network without such a dependence",
        MismatchError,
    )


def _batched_agree(
    plan: GradientPlan,
    model: nn.Module,
    weights: Mapping[str, Tensor],
    x: Tensor,
    cotangents: Sequence[Tensor],
    truths: Sequence[Mapping[str, Tensor]],
) -> bool:
    """Whether the parameters without a formula can be differentiated for several samples at once."""
    count = min(len(x), chunk_size(weights, plan.rest))
    if not plan.rest or count == 1:
        return True
    rows = autodiff_gradients(model, weights, plan.rest, x[-count:], torch.cat(list(cotangents[-count:])))
    return all(
        _agree([_shadow(row) for row in gradients], [truth[name] for truth in truths[-count:]], BATCHED_AGREEMENT)
        for name, gradients in rows.items()
    )


def _shadows(layer: nn.Module, read: Tensor, g: Tensor) -> dict[str, Tensor]:
    """One sample's gradients by a layer's formula, each times a random vector, `[O]`.

    For a linear layer the gradient, which is as large as the layer, is not formed.
    """
    rule = rule_for(layer)
    if rule is None:
        return {}
    if isinstance(layer, nn.Linear) and g.dim() == 2:
        products = {"weight": g[0] * (read[0] @ _direction(layer.in_features, g)), "bias": g[0]}
        return {local: value for local, value in products.items() if getattr(layer, local) is not None}
    gradients = rule.gradients(layer, local_tensors(layer), read, g)
    return {local: _shadow(gradient[0]) for local, gradient in gradients.items()}


def _shadowed(gradients: Params) -> Params:
    return {name: _shadow(gradient) for name, gradient in gradients.items()}


def _shadow(gradient: Tensor) -> Tensor:
    """A gradient times a fixed random vector over all its axes but the first."""
    if gradient.dim() < 2:
        return gradient
    rows = gradient.flatten(1)
    return rows @ _direction(rows.shape[1], gradient)


def _direction(size: int, like: Tensor) -> Tensor:
    return _noise(torch.Size([size]), size, like)


def _noise(shape: torch.Size, seed: int, like: Tensor) -> Tensor:
    return torch.randn(shape, generator=Generator().manual_seed(seed), dtype=like.dtype).to(like.device)


def _agree(values: Sequence[Tensor | None], truths: Sequence[Tensor], tolerance: float = AGREEMENT) -> bool:
    """Whether gradients agree with autograd in every sample; None is zero."""
    sizes = [float(truth.norm()) for truth in truths]
    slack = NEGLIGIBLE * max(sizes)
    apart = [float(torch.dist(truth, torch.zeros_like(truth) if value is None else value))
             for value, truth in zip(values, truths, strict=True)]  # fmt: skip
    return all(far <= tolerance * size + slack or math.isnan(size) for far, size in zip(apart, sizes, strict=True))
