r"""Diffusion constant of stochastic gradient descent from the measured noise of its gradients.

A step $w \leftarrow w - \eta g_B$ with a batch of B samples adds noise of variance $\eta^2\sigma^2/B$ to each weight.
In time units of η per step this is diffusion with $2D\eta = \eta^2\sigma^2/B$, so $D = \eta\sigma^2/2B$. The noise of a
network is not the same in all directions; σ² is its mean, $\mathrm{tr}\,\mathrm{Cov}(g)/P$.

Notation: N samples, P weights, g the gradient of the loss of one sample.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, require, require_positive
from nearkin.fisher.scores import sample_gradients


@dataclass(frozen=True)
class GradientNoise:
    """Noise of the gradients of single samples at fixed weights.

    Attributes:
        trace: trace of the covariance of the gradients.
        mean_square: ‖mean gradient‖².
        num_samples: N.
        num_weights: P.

    >>> round(GradientNoise(8.0, 1.0, 100, 4).diffusion(learning_rate=0.1, batch_size=10), 6)
    0.01
    """

    trace: float
    mean_square: float
    num_samples: int
    num_weights: int

    @property
    def variance(self) -> float:
        """σ², variance per weight."""
        return self.trace / self.num_weights

    def diffusion(self, learning_rate: float, batch_size: int) -> float:
        r"""$D = \eta\sigma^2/2B$, for time units of η per step and batches drawn with replacement."""
        require_positive("learning_rate", learning_rate)
        require(batch_size >= 1, f"batch_size must be 1 or more, got {batch_size}")
        return learning_rate * self.variance / (2 * batch_size)


def gradient_noise(model: nn.Module, x: Tensor, y: Tensor, likelihood: str = "categorical") -> GradientNoise:
    """Measure the noise of the gradients of a network on data.

    Args:
        model: the network, in evaluation mode.
        x: inputs `[N, *input_shape]`, two or more.
        y: targets.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = net.weight.data.fill_(0.0)
    >>> gradient_noise(net, torch.ones(2, 1), torch.tensor([[1.0], [3.0]]), "gaussian")
    GradientNoise(trace=2.0, mean_square=4.0, num_samples=2, num_weights=1)
    """
    require(len(x) >= 2, f"the noise of gradients needs 2 samples or more, got {len(x)}", DataError)
    total: Tensor | None = None
    squares = 0.0
    for block in sample_gradients(model, x, y, likelihood=likelihood):
        rows = torch.cat([value.flatten(1) for value in block.values()], 1).double()
        squares += float(rows.square().sum())
        total = rows.sum(0) if total is None else total + rows.sum(0)
    assert total is not None  # empty data is refused above
    mean_square = float((total / len(x)).square().sum())
    require(math.isfinite(squares), "the gradients are NaN or infinite; check inputs, targets and weights", DataError)
    trace = (squares - len(x) * mean_square) / (len(x) - 1)
    require(
        trace > 1e-12 * squares / len(x),
        "all samples have the same gradient, so there is no gradient noise and D would be 0; give samples that differ",
        DataError,
    )
    return GradientNoise(trace, mean_square, len(x), len(total))
