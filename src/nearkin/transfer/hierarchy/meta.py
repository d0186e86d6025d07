r"""Evidence and posterior mean as functions of the source weights, with gradients through the solve.

The kernel $K = Φ(θ) Φ(θ)^⊤$ depends on the weights θ around which a network is linearized; its derivative is a second
derivative of the network. For small networks this is fast enough to learn source weights by the evidence of target
tasks, which the paper proposes as future work.

Notation: as in `linearized` and `targets`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from nearkin.core.errors import MismatchError, require
from nearkin.core.types import Params
from nearkin.transfer.cholesky import solve_upper
from nearkin.transfer.evidence import dense_log_evidence, whiten
from nearkin.transfer.hyper import Hyper
from nearkin.transfer.linearized import Linearized, chosen_outputs
from nearkin.transfer.prepared import Points
from nearkin.transfer.targets import PointRows, RowLayout, checked_noise, checked_targets, row_layout


def source_params(linearized: Linearized) -> Params:
    """All weights of a linearized network by name, as leaf tensors with gradients."""
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
        params: weights of the network by name, which get gradients; missing ones are those of the network.
        linearized: the network, its free weights and outputs.
        x: `[N, *input_shape]`.
        y: targets `[N]` or `[N, K]`.
        hyper: noise, scales and mean.
        noise: known variances of the observations, added to the noise.
        log_noise: log σ² `[]` instead of `hyper.noise`, with gradients.
        log_scale: log s `[]` instead of `hyper.scale`, with gradients.

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
    """The summed log evidence `[]` of several tasks, with one pass of the network; arguments as in `evidence`.

    With a shape every task has its own size, which is integrated out; see `dense_log_evidence`.
    """
    process = _SourceProcess(params, linearized, hyper, log_noise, log_scale)
    inputs = [linearized.inputs(points[0]) for points in tasks]
    outputs, features = process.linear(torch.cat(inputs))
    each = features.shape[0] // outputs.shape[0]
    sizes = [len(x) for x in inputs]
    total = torch.zeros(()).double()
    for x, points, own, phi in zip(
        inputs, tasks, outputs.split(sizes), features.split([each * size for size in sizes]), strict=True
    ):
        _, rows = process.rows(own, x, points[1], points[2] if len(points) == 3 else None)
        total = total + dense_log_evidence(
            phi @ phi.t() + torch.diag_embed(rows.noise), rows.basis, rows.targets, shape
        )
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
    """Means `[M, K]` at new inputs as a function of the source weights; arguments as in `evidence`."""
    process = _SourceProcess(params, linearized, hyper, log_noise, log_scale)
    x = linearized.inputs(x)
    outputs, features = process.linear(x)
    layout, rows = process.rows(outputs, x, y, noise)
    covariance = features @ features.t() + torch.diag_embed(rows.noise)
    factor, constants, residual = whiten(covariance, rows.basis, rows.targets)
    weights = solve_upper(factor, residual)
    outputs, new_features = process.linear(linearized.inputs(new))
    means = layout.back(new_features @ (features.t() @ weights) + layout.basis(len(new), hyper.mean) @ constants)
    return means + layout.network(outputs) if hyper.mean == "network" else means


@dataclass(frozen=True, eq=False)
class _SourceProcess:
    """A linearized network at other source weights, as a Gaussian process; attributes as in `evidence`."""

    params: Params
    linearized: Linearized
    hyper: Hyper
    log_noise: Tensor | None
    log_scale: Tensor | None

    def rows(self, outputs: Tensor, x: Tensor, y: Tensor, noise: Tensor | None) -> tuple[RowLayout, PointRows]:
        """The layout and the rows of points, from the network's outputs `[N, C]`."""
        y = checked_targets(y, len(x))
        known = checked_noise(noise, len(x), y.shape[1])
        layout = row_layout(self.linearized, x, y, known)
        if self.hyper.mean == "network":
            y = y - layout.network(outputs)
        variances = layout.noise_rows(known) + (self.hyper.noise if self.log_noise is None else self.log_noise.exp())
        return layout, PointRows(x, variances, layout.basis(len(x), self.hyper.mean), layout.rows(y))

    def linear(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs `[N, C]` and features `[R, D]`."""
        linearized, hyper = self.linearized, self.hyper
        hyper.require_layers(linearized.layers)
        own = dict(linearized.model.named_parameters())
        odd = sorted(set(self.params) - set(own))
        require(not odd, f"there is no weight {', '.join(odd[:1])}; see source_params", MismatchError)
        theta = {**{name: value.detach() for name, value in own.items()}, **self.params}
        free = {name: theta[name] for name in linearized.names}

        def outputs(some: Params, sample: Tensor) -> Tensor:
            result: Tensor = functional_call(linearized.model, {**theta, **some}, (sample[None],))
            return result.reshape(-1)

        chosen = chosen_outputs(linearized.outputs, linearized.num_outputs(x))
        layers = linearized.layers.items()
        roots = {name: math.sqrt(hyper.layers.get(layer, 1.0)) for layer, names in layers for name in names}
        rows = []
        for c in chosen:  # one pass for each output: in torch 2.13 the batching rule of PReLU in vmap(jacrev) is wrong

            def one_output(some: Params, sample: Tensor, c: int = c) -> Tensor:
                return outputs(some, sample)[c]

            gradients: Params = vmap(grad(one_output), in_dims=(None, 0))(free, x)
            rows.append(torch.cat([roots[name] * gradients[name].flatten(1) for name in free], 1))
        scale = math.sqrt(hyper.scale) if self.log_scale is None else (self.log_scale / 2).exp()
        jacobian, summed = torch.stack(rows, 1).double() * scale, linearized.outputs == "sum"
        features = jacobian.flatten(1) / math.sqrt(len(chosen)) if summed else jacobian.flatten(0, 1)
        return vmap(outputs, in_dims=(None, 0))(free, x).double(), features
