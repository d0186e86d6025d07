r"""Evidence and posterior mean as functions of the source weights, with gradients through the solve.

The kernel $K = Φ(θ) Φ(θ)^⊤$ depends on the weights θ around which a network is linearized; its derivative is a second
derivative of the network. For small networks that is quick enough to learn source weights by the evidence of target
tasks, as the paper proposes for later.

Notation: as in `linearize` and `targets`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from nearkin.core.errors import MismatchError, require
from nearkin.core.types import Params
from nearkin.transfer.evidence import dense_log_evidence, whitened
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.linearized import Linearized, chosen_outputs
from nearkin.transfer.prepared import Points
from nearkin.transfer.targets import Layout, checked_noise, checked_targets, layout_of, noise_rows


def source_params(linearized: Linearized) -> Params:
    """All weights of a linearized network by name, as leaves that gradients flow into."""
    return {n: p.detach().clone().requires_grad_() for n, p in linearized.model.named_parameters()}


def evidence(
    params: Params,
    linearized: Linearized,
    x: Tensor,
    y: Tensor,
    hyper: Hyper,
    *,
    noise: Tensor | None = None,
    log_noise: Tensor | None = None,
    log_scale: Tensor | None = None,
) -> Tensor:
    """The log evidence `[]` of targets as a function of the source weights.

    Args:
        params: weights of the network by name, some or all; others are its own. Gradients flow into them.
        linearized: which network, free weights and outputs.
        x: `[N, *input_shape]`.
        y: targets `[N]` or `[N, K]`.
        hyper: noise, scales and mean.
        noise: known variances of the observations, on top of the noise.
        log_noise: log σ² `[]` in place of `hyper.noise`; gradients flow into it, too.
        log_scale: log s `[]` in place of `hyper.scale`, likewise.

    >>> from nearkin.transfer.linearized import linearize
    >>> flat = linearize(torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1)))
    >>> theta = source_params(flat)
    >>> value = evidence(theta, flat, torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 1.0]), Hyper())
    >>> value.backward()
    >>> theta["0.weight"].grad.shape
    torch.Size([2, 1])
    """
    tasks: list[Points] = [(x, y, noise)]
    return pooled_evidence(params, linearized, tasks, hyper, log_noise=log_noise, log_scale=log_scale)


def pooled_evidence(
    params: Params,
    linearized: Linearized,
    tasks: Sequence[Points],
    hyper: Hyper,
    *,
    log_noise: Tensor | None = None,
    log_scale: Tensor | None = None,
    shape: float | None = None,
) -> Tensor:
    """The summed log evidence `[]` of several tasks, the network passed once for all; arguments as of `evidence`.

    With a shape every task has a size of its own, integrated out; see `dense_log_evidence`.
    """
    inputs = [linearized.inputs(points[0]) for points in tasks]
    outputs, features = _linear(params, linearized, torch.cat(inputs), hyper, log_scale)
    each = features.shape[0] // outputs.shape[0]
    sizes = [len(x) for x in inputs]
    seen = zip(outputs.split(sizes), features.split([each * size for size in sizes]), strict=True)
    total = torch.zeros(()).double()
    for x, points, passed in zip(inputs, tasks, seen, strict=True):
        known = points[2] if len(points) == 3 else None
        phi, basis, targets, variances, _ = _placed(passed, linearized, x, points[1], hyper, known, log_noise)
        total = total + dense_log_evidence(phi @ phi.t() + torch.diag_embed(variances), basis, targets, shape)
    return total


def posterior_mean(
    params: Params,
    linearized: Linearized,
    x: Tensor,
    y: Tensor,
    new: Tensor,
    hyper: Hyper,
    *,
    noise: Tensor | None = None,
    log_noise: Tensor | None = None,
    log_scale: Tensor | None = None,
) -> Tensor:
    """Means `[M, K]` at new inputs as a function of the source weights; arguments are those of `evidence`."""
    x = linearized.inputs(x)
    passed = _linear(params, linearized, x, hyper, log_scale)
    features, basis, targets, variances, layout = _placed(passed, linearized, x, y, hyper, noise, log_noise)
    factor, constants, residual = whitened(features @ features.t() + torch.diag_embed(variances), basis, targets)
    weights = torch.linalg.solve_triangular(factor.mT, residual, upper=True)
    outputs, fresh = _linear(params, linearized, linearized.inputs(new), hyper, log_scale)
    means = fresh @ (features.t() @ weights) + layout.basis(len(new), hyper.mean) @ constants
    found = layout.back(means)
    return found + layout.network(outputs) if hyper.mean == "network" else found


def _placed(
    passed: tuple[Tensor, Tensor],
    linearized: Linearized,
    x: Tensor,
    y: Tensor,
    hyper: Hyper,
    noise: Tensor | None,
    log_noise: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Layout]:
    """Features `[R, D]`, constants `[R, Q]`, targets `[F, R, T]`, variances `[F, R]` and the layout.

    `passed` are outputs `[N, C]` and features.
    """
    outputs, features = passed
    y = checked_targets(y, len(x))
    known = checked_noise(noise, len(x), y.shape[1])
    layout = layout_of(linearized, x, y, known)
    if hyper.mean == "network":
        y = y - layout.network(outputs)
    variances = noise_rows(layout, known) + (hyper.noise if log_noise is None else log_noise.exp())
    return features, layout.basis(len(x), hyper.mean), layout.rows(y), variances, layout


def _linear(
    params: Params, linearized: Linearized, x: Tensor, hyper: Hyper, log_scale: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Outputs `[N, C]` and features `[R, D]` at given source weights."""
    hyper.require_layers(linearized.layers)
    own = dict(linearized.model.named_parameters())
    odd = sorted(set(params) - set(own))
    require(not odd, f"there is no weight {', '.join(odd[:1])}; see source_params", MismatchError)
    theta = {**{name: value.detach() for name, value in own.items()}, **params}
    free = {name: theta[name] for name in linearized.names}

    def outputs(some: Params, one: Tensor) -> Tensor:
        found: Tensor = functional_call(linearized.model, {**theta, **some}, (one[None],))
        return found.reshape(-1)

    chosen = chosen_outputs(linearized.outputs, linearized.num_outputs(x))
    rows = []
    for c in chosen:  # one pass an output: vmap(jacrev) has batching rules that are wrong, in torch 2.13 that of PReLU

        def one_output(some: Params, one: Tensor, c: int = c) -> Tensor:
            return outputs(some, one)[c]

        found: Params = vmap(grad(one_output), in_dims=(None, 0))(free, x)
        roots = {
            name: math.sqrt(hyper.layers.get(layer, 1.0)) for layer, own in linearized.layers.items() for name in own
        }
        rows.append(torch.cat([roots[name] * found[name].flatten(1) for name in free], 1))
    jacobian = torch.stack(rows, 1).double() * (math.sqrt(hyper.scale) if log_scale is None else (log_scale / 2).exp())
    features = jacobian.flatten(1) / math.sqrt(len(chosen)) if linearized.outputs == "sum" else jacobian.flatten(0, 1)
    return vmap(outputs, in_dims=(None, 0))(free, x).double(), features
