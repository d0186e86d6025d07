r"""Complexity of a task for a network: loss plus the information that the weights store about the data.

With a Gaussian prior $P = N(w_0, \lambda^2 I)$, a Gaussian $Q = N(w, \Sigma)$ and the loss expanded to second order,
$\min_\Sigma \mathbb{E}_Q[L] + \beta\,\mathrm{KL}(Q \| P)$ is reached at $\Sigma^* = \beta(H + \frac{\beta}{\lambda^2}
I)^{-1}$ and is

$$C_\beta = L + \frac{\beta}{2}\left[\frac{\|w - w_0\|^2}{\lambda^2} + \log\left|I + \frac{\lambda^2}{\beta}
H\right|\right].$$

L is the loss summed over the samples and H its curvature, N times the Fisher information; so β = 1 gives minus the log
evidence of Bayesian linear regression. The prior is given by its variance λ² or by the weight decay
$\gamma = 1/(N\lambda^2)$ of the mean loss. (Achille, Mbeng & Soatto 2019; the printed factor 2 is wrong.)

Notation: N samples, P weights.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, require, require_positive
from nearkin.core.types import Params
from nearkin.distance.information.curvature import (
    Curvature,
    CurvatureOptions,
    as_double,
    in_double,
    measure_curvature,
)
from nearkin.fisher.cotangents import sample_blocks
from nearkin.fisher.spectra import Estimate
from nearkin.fisher.vectors import flat, require_fit
from nearkin.tasks.likelihood import likelihood as likelihood_named

DECAY = 1e-3
BATCH = 1024


@dataclass(frozen=True)
class WeightPrior:
    r"""The variance λ² of the Gaussian prior of the weights.

    Attributes:
        decay: γ, weight decay of the mean loss: λ² = 1 / (Nγ).
        variance: λ² itself, instead of γ; the same for data sets of every size.

    >>> WeightPrior().variance_of(500), WeightPrior(variance=4.0).variance_of(500)
    (2.0, 4.0)
    """

    decay: float = DECAY
    variance: float | None = None

    def __post_init__(self) -> None:
        require_positive("decay", self.decay)
        if self.variance is not None:
            require_positive("variance", self.variance)

    def variance_of(self, num_samples: int) -> float:
        """λ² for N samples."""
        return 1 / (num_samples * self.decay) if self.variance is None else self.variance


@dataclass(frozen=True)
class Complexity:
    """Complexity of a task for a network at given weights, in nats.

    Attributes:
        loss: L(w), negative log-likelihood summed over the samples.
        weight_term: ‖w − w₀‖² / λ².
        log_determinant: log|I + (λ²/β) H|, with its standard error.
        effective_dimension: number of directions in the weights that the data determine.
        beta: β, price of one nat of information.
        prior_variance: λ².
        num_samples: N.
        num_weights: P.
        curvature: how H was computed: full, block, kronecker, lanczos or diagonal.
        reason: why it was computed so.
    """

    loss: float
    weight_term: float
    log_determinant: Estimate
    effective_dimension: Estimate
    beta: float
    prior_variance: float
    num_samples: int
    num_weights: int
    curvature: str
    reason: str

    @property
    def complexity(self) -> float:
        """C_β = expected loss + β · information."""
        return self.loss + self.beta / 2 * (self.weight_term + self.log_determinant.value)

    @property
    def error(self) -> float:
        """Standard error of the complexity; 0 unless the curvature is `lanczos`."""
        return self.beta / 2 * self.log_determinant.error

    @property
    def expected_loss(self) -> float:
        """Loss of weights drawn from N(w, Σ*), to second order, summed over the samples."""
        return self.loss + self.beta / 2 * self.effective_dimension.value

    @property
    def information(self) -> float:
        """KL(N(w, Σ*) ‖ prior) in nats."""
        return (self.weight_term + self.log_determinant.value - self.effective_dimension.value) / 2

    @property
    def information_bits(self) -> float:
        """The information in bits."""
        return self.information / math.log(2)

    @property
    def effective_potential(self) -> float:
        r"""$U_\mathrm{eff} = U + \frac{D}{2}\log|H_U|$ of the mean loss, for D = β/N and weight decay β/(Nλ²).

        H_U is the Fisher information of the mean loss plus the weight decay; the decay pulls towards the prior mean.
        """
        diffusion = self.beta / self.num_samples
        decay = diffusion / self.prior_variance
        return self.complexity / self.num_samples + diffusion / 2 * self.num_weights * math.log(decay)


def complexity(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    beta: float = 1.0,
    *,
    likelihood: str = "categorical",
    prior: WeightPrior | None = None,
    prior_mean: Params | None = None,
    curvature: str | CurvatureOptions = "auto",
) -> Complexity:
    r"""$C_\beta$ of a task for a trained network in evaluation mode, in float64 except for Lanczos products.

    Args:
        model: the network at a minimum of its loss with weight decay; parameters that require no gradient are fixed.
        x: inputs `[N, *input_shape]`.
        y: targets.
        beta: price of information; 1 for the summed loss.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        prior: variance of the prior (default: weight decay 1e-3).
        prior_mean: w₀ by name (default: 0); with the weights of a pretrained network, the complexity given it.
        curvature: `auto` (by the number of weights), `full`, `block`, `kronecker`, `lanczos`, `diagonal`, or options.

    >>> net, unit = nn.Linear(1, 1, bias=False), WeightPrior(variance=1.0)
    >>> found = complexity(net, torch.ones(3, 1), torch.zeros(3, 1), likelihood="gaussian", prior=unit)
    >>> round(found.log_determinant.value, 6) == round(math.log(4), 6), found.curvature, found.reason
    (True, 'full', '1 weights, at most 3,000')
    """
    require_positive("beta", beta)
    double = in_double(model)
    loss = summed_loss(double, as_double(x), as_double(y), likelihood)
    options = CurvatureOptions(curvature) if isinstance(curvature, str) else curvature
    spectrum = measure_curvature(copy.deepcopy(model).eval(), x, likelihood, options)
    variance = (prior or WeightPrior()).variance_of(len(x))
    distance = squared_distance(double, prior_mean)
    return from_curvature(loss, distance, spectrum, beta, variance, len(x))


def from_curvature(
    loss: float, distance: float, curvature: Curvature, beta: float, prior_variance: float, num_samples: int
) -> Complexity:
    """The complexity from the summed loss, ‖w − w₀‖² and the spectrum of the mean Fisher information."""
    require_positive("beta", beta)
    scale = prior_variance * num_samples / beta
    return Complexity(
        loss,
        distance / prior_variance,
        curvature.spectrum.log_determinant(scale),
        curvature.spectrum.effective_dimension(scale),
        beta,
        prior_variance,
        num_samples,
        curvature.num_weights,
        curvature.kind,
        curvature.reason,
    )


def trainable(model: nn.Module) -> Params:
    """Weights that require gradients, by name, detached."""
    weights = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    require(bool(weights), "the network has no weights that can be trained; unfreeze some")
    return weights


def summed_loss(model: nn.Module, x: Tensor, y: Tensor, likelihood: str) -> float:
    """Negative log-likelihood, summed over the samples."""
    require(len(x) > 0, "there is no sample to measure on; the data is empty", DataError)
    require(len(x) == len(y), f"{len(x)} inputs but {len(y)} targets; give one target per input", DataError)
    form = likelihood_named(likelihood)
    with torch.no_grad():
        blocks = sample_blocks(len(x), BATCH)
        loss = math.fsum(float(form.nll(model(x[block]), y[block]).sum()) for block in blocks)
    require(math.isfinite(loss), f"the loss is {loss}; check inputs, targets and weights for NaN", DataError)
    return loss


def squared_distance(model: nn.Module, prior_mean: Params | None) -> float:
    """‖w − w₀‖² over the weights that require gradients."""
    weights = trainable(model)
    if prior_mean is None:
        return float(flat(weights).square().sum())
    mean = {name: value.detach().double() for name, value in prior_mean.items() if name in weights}
    require_fit(mean, weights, "prior_mean")
    return float((flat(weights) - flat({name: mean[name] for name in weights})).square().sum())
