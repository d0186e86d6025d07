"""Norm of the gradient that a fitted head sends into the encoder.

Notation: N samples, D features, θ the weights of the encoder.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import MismatchError, require
from nearkin.distance.baselines.linear_head import Head, head_targets
from nearkin.nets.functional import evaluation_mode
from nearkin.nets.heads import features, head_name, split
from nearkin.tasks.likelihood import Likelihood


def gradient_norm(model: nn.Module, x: Tensor, y: Tensor, form: Likelihood, head: Head, batch_size: int = 256) -> float:
    r"""Norm of the gradient that a fitted head sends into the encoder; source -> target, smaller is nearer.

    $$\left\| \nabla_\theta \frac1N \sum_n -\log p(y_n \mid W f_\theta(x_n) + b) \right\|$$

    θ are all weights except those of the network's own head, which W and b replace. The network is run in evaluation
    mode; its weights, gradients and modes are not changed.

    Args:
        model: the source network; its last layer is linear with D inputs.
        x: inputs of the target `[N, ...]`.
        y: its targets, as `fitted_head` takes them.
        form: categorical, gaussian or heteroscedastic.
        head: fitted on the features of the same samples, of width D.
        batch_size: samples in one pass.

    >>> from nearkin.tasks.likelihood import Gaussian
    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1))
    >>> head = Head(torch.tensor([[2.0]]), torch.tensor([0.0]), 0.0, 1.0)
    >>> f = (2 * model[0].weight * 3).detach()  # its output for x = 3
    >>> round(gradient_norm(model, torch.tensor([[3.0]]), f + 1, Gaussian(), head), 5)
    6.0
    """
    targets = head_targets(y, len(x), form, len(head.bias) if form.name == "categorical" else None)
    name = head_name(model, x[:1])
    params = {key: value.detach().clone().requires_grad_() for key, value in model.named_parameters()}
    encoder = split(params, name)[0]
    require(
        bool(encoder),
        f"{type(model).__name__} consists of a head only, expected an encoder before it; use another network",
        MismatchError,
    )
    renamed = {f"model.{key}": value for key, value in params.items()}
    total = [torch.zeros_like(value, dtype=torch.float64) for value in encoder.values()]
    with evaluation_mode(model), torch.enable_grad():
        for start in range(0, len(x), batch_size):
            batch = slice(start, start + batch_size)
            read: Tensor = functional_call(_Encoder(model, name), renamed, (x[batch],))
            require(
                read.shape[1] == head.weight.shape[1],
                f"the network's head reads {read.shape[1]} features, the fitted one {head.weight.shape[1]}; fit it on "
                f"this network's features",
                MismatchError,
            )
            wanted = targets[batch].to(read.device, torch.int64 if form.name == "categorical" else read.dtype)
            loss = form.loss(head(read), wanted) * (len(read) / len(x))
            gradients = torch.autograd.grad(loss, list(encoder.values()), allow_unused=True)
            total = [a if b is None else a + b for a, b in zip(total, gradients, strict=True)]
    return float(torch.stack([value.square().sum() for value in total]).sum().sqrt())


class _Encoder(nn.Module):
    """Features of a network, as a module for `functional_call`."""

    def __init__(self, model: nn.Module, head: str) -> None:
        super().__init__()
        self.model, self.head = model, head

    def forward(self, x: Tensor) -> Tensor:
        return features(self.model, x, self.head)
