r"""Likelihoods: the distribution of the targets given a network's outputs, with its loss and metric.

Notation: N samples, C outputs, T positions (tokens or pixels).

| likelihood | outputs | targets | metric, at most 1 |
| --- | --- | --- | --- |
| categorical | logits `[N, C]` | int64 `[N]` | accuracy |
| gaussian | means `[N, C]`, unit variance | float `[N, C]` | R² |
| heteroscedastic | means and log variances `[N, 2C]` | float `[N, C]` | R² of the means |
| dense | images `[N, C, H, W]`, unit variance | float `[N, C, H, W]` | R² over pixels |
| language | logits `[N, T, C]` | int64 `[N, T]` | accuracy of the next token |
| detection | logits, offsets, anchors `[N, A, C + 8]` | boxes `[N, B, 5]` | average precision at an overlap of 0.5 |

Every likelihood has these members; detection (`nearkin.tasks.detection_loss`) has no distribution, and those that need
one raise an error:

- `name`, as in data strings and in the zoo; `metric`, the identifier of its metric (`nearkin.tasks.metrics`).
- `num_outputs`: width of the network's last layer for C classes, target columns or channels.
- `nll`: $-\log p(y_n \mid f(x_n))$ of whole samples `[N]`, summed over outputs and positions.
- `slope`: gradient of `nll` with respect to the outputs, detached and in their shape.
- `loss`: scalar that training minimises, the mean of `nll` over samples (dense: over pixels, language: over tokens),
  each times its weight `[N]` if there are weights.
- `sample`: targets drawn from the predicted distribution.
- `information`: $\Lambda_n v_n$ in the shape of the outputs, for a vector v and the Fisher information of the outputs
  $\Lambda_n = \mathbb{E}_{y \sim p(\cdot \mid f_n)}[\nabla_f \log p\,\nabla_f \log p^\top]$. It is the Hessian of
  `nll` with respect to the outputs, except for the heteroscedastic likelihood.
- `factors`: vectors $s_k$ in the shape of the outputs with $\sum_k s_k s_k^\top = \Lambda_n$ for every sample.
- `tally`: sums `[K]` in float64 that add up over batches; `score` computes the metric from them (1 is perfect).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.tasks.detection_loss import Detection
from nearkin.tasks.metrics import ACCURACY, R2

LOG_TWO_PI = math.log(2 * math.pi)
LOG_VARIANCE_LIMIT = 12.0  # e^12 exceeds any noise of standardised targets and is finite in float16


@dataclass(frozen=True)
class Categorical:
    r"""One of C classes: $-\log \mathrm{softmax}(f)_y$.

    >>> like = Categorical()
    >>> round(like.nll(torch.zeros(1, 4), torch.tensor([2])).item() / math.log(4), 6)
    1.0
    >>> like.score(like.tally(torch.eye(2), torch.tensor([0, 0])))
    0.5
    """

    name: str = "categorical"
    metric: str = ACCURACY

    def num_outputs(self, num_classes: int) -> int:
        """One logit per class."""
        return num_classes

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy `[N]`."""
        return F.cross_entropy(outputs, targets, reduction="none")

    def slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""$p - e_y$ at every position."""
        p = outputs.detach().softmax(-1)
        return p.scatter_add_(-1, targets[..., None], p.new_full((1,), -1.0).expand(*targets.shape, 1))

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None) -> Tensor:
        """Mean over samples, with label smoothing."""
        if weights is None:
            return F.cross_entropy(outputs, targets, label_smoothing=smoothing)
        return (weights * F.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)).mean()

    def sample(self, outputs: Tensor, rng: Generator) -> Tensor:
        """Class numbers `[N]`."""
        return torch.multinomial(outputs.detach().softmax(-1), 1, generator=rng).squeeze(-1)

    def information(self, outputs: Tensor, vector: Tensor) -> Tensor:
        r"""$(\mathrm{diag}(p) - p p^\top) v$ at every position."""
        p = outputs.detach().softmax(-1)
        weighted = p * vector
        return weighted - p * weighted.sum(-1, keepdim=True)

    def factors(self, outputs: Tensor) -> Iterator[Tensor]:
        r"""The C − 1 columns of a triangular factor of $\mathrm{diag}(p) - p p^\top$.

        With $q_k = \sum_{c > k} p_c$ and $q_{-1} = 1$, column k has $\sqrt{p_k q_k / q_{k-1}}$ at class k and
        $-p_c / q_k$ times that at the classes after it.
        """
        p = outputs.detach().softmax(-1)
        after = p.flip(-1).cumsum(-1).flip(-1)  # after[k] = p_k + p_{k+1} + …
        tiny = torch.finfo(p.dtype).tiny
        for k in range(p.shape[-1] - 1):
            left, rest = after[..., k].clamp_min(tiny), after[..., k + 1].clamp_min(tiny)
            column = torch.zeros_like(p)
            column[..., k] = (p[..., k] / left * rest).sqrt()
            column[..., k + 1 :] = -p[..., k + 1 :] / rest[..., None] * column[..., k, None]
            yield column

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Number of correct predictions, and of predictions."""
        return torch.tensor([(outputs.argmax(-1) == targets).sum().item(), targets.numel()], dtype=torch.float64)

    def score(self, tally: Tensor) -> float:
        """Share of correct predictions."""
        return float(tally[0] / tally[1])


@dataclass(frozen=True)
class Language(Categorical):
    """The next token at every position: a categorical likelihood over `[N, T]`.

    >>> round(Language().nll(torch.zeros(1, 3, 4), torch.zeros(1, 3, dtype=torch.int64)).item() / math.log(4), 6)
    3.0
    """

    name: str = "language"

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`[N]`, summed over positions."""
        return F.cross_entropy(outputs.transpose(1, -1), targets, reduction="none").sum(-1)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None) -> Tensor:
        """Mean cross-entropy over all tokens; text has no weights."""
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), label_smoothing=smoothing)

    def sample(self, outputs: Tensor, rng: Generator) -> Tensor:
        """Tokens `[N, T]`."""
        return super().sample(outputs.flatten(0, -2), rng).view(outputs.shape[:-1])

    def factors(self, outputs: Tensor) -> Iterator[Tensor]:
        """T (C − 1) columns: those of each position, which are independent of each other."""
        for column in super().factors(outputs):
            for position in range(outputs.shape[1]):
                single = torch.zeros_like(column)
                single[:, position] = column[:, position]
                yield single


@dataclass(frozen=True)
class Gaussian:
    r"""Real values with unit variance: $\frac12\|y - f\|^2 + \frac{C}{2}\log 2\pi$.

    >>> like = Gaussian()
    >>> round(like.nll(torch.zeros(1, 1), torch.ones(1, 1)).item(), 4)
    1.4189
    >>> y = torch.tensor([[0.0], [2.0]])
    >>> like.score(like.tally(y, y)), like.score(like.tally(torch.ones(2, 1), y))
    (1.0, 0.0)
    """

    name: str = "gaussian"
    metric: str = R2

    def num_outputs(self, num_classes: int) -> int:
        """One mean per target column."""
        return num_classes

    def means(self, outputs: Tensor) -> Tensor:
        """Predicted means, in the shape of the targets."""
        return outputs

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Squared error and constant `[N]`, summed over outputs."""
        return 0.5 * ((targets - outputs).square() + LOG_TWO_PI).flatten(1).sum(1)

    def slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """$f - y$."""
        return (outputs - targets).detach()

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None) -> Tensor:
        """Mean over samples; `smoothing` is ignored."""
        losses = self.nll(outputs, targets)
        return (losses if weights is None else weights * losses).mean()

    def sample(self, outputs: Tensor, rng: Generator) -> Tensor:
        """Means plus standard normal noise."""
        noise = torch.randn(outputs.shape, generator=rng, dtype=outputs.dtype, device=rng.device)
        return outputs.detach() + noise.to(outputs.device)

    def information(self, outputs: Tensor, vector: Tensor) -> Tensor:
        """The vector itself, as the variance is 1."""
        return vector

    def factors(self, outputs: Tensor) -> Iterator[Tensor]:
        """One unit vector per output."""
        for position in range(outputs[0].numel()):
            unit = torch.zeros_like(outputs).flatten(1)
            unit[:, position] = 1.0
            yield unit.view_as(outputs)

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Count, squared error, then the sum and the sum of squares of each target column or channel."""
        y = targets.detach().to(torch.float64).transpose(0, 1).flatten(1)
        f = self.means(outputs).detach().to(torch.float64).transpose(0, 1).flatten(1)
        head = torch.stack([torch.tensor(float(y.shape[1]), dtype=torch.float64), (y - f).square().sum().cpu()])
        return torch.cat([head, y.sum(1).cpu(), y.square().sum(1).cpu()])

    def score(self, tally: Tensor) -> float:
        """R²: 1 − squared error ÷ squared deviation from each column's mean; 0 if no column varies."""
        count, error = tally[0], tally[1]
        total, square = tally[2:].chunk(2)
        deviation = (square - total.square() / count).sum()
        return float(1 - error / deviation) if deviation > 1e-12 else 0.0


@dataclass(frozen=True)
class Dense(Gaussian):
    """Image to image: a Gaussian over pixels with a loss that is a mean over pixels."""

    name: str = "dense"

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None) -> Tensor:
        """Mean over pixels and channels."""
        if weights is not None:
            return super().loss(outputs, targets, weights=weights) / targets[0].numel()
        return 0.5 * (F.mse_loss(outputs, targets) + LOG_TWO_PI)


@dataclass(frozen=True)
class Heteroscedastic(Gaussian):
    r"""Real values with predicted variance, outputs $[m, s]$: $\frac12(s + (y-m)^2 e^{-s} + \log 2\pi)$.

    >>> like = Heteroscedastic()
    >>> sure = like.nll(torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0]]))
    >>> round(sure.item(), 4)
    -0.0811
    """

    name: str = "heteroscedastic"

    def num_outputs(self, num_classes: int) -> int:
        """A mean and a log variance per target column."""
        return 2 * num_classes

    def means(self, outputs: Tensor) -> Tensor:
        """The first half of the outputs."""
        return outputs.chunk(2, -1)[0]

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`[N]`, summed over target columns."""
        mean, log_variance, _ = _limited_halves(outputs)
        return 0.5 * (log_variance + (targets - mean).square() * (-log_variance).exp() + LOG_TWO_PI).flatten(1).sum(1)

    def slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""$[(m - y) e^{-s}, \frac12 (1 - (y - m)^2 e^{-s})]$; 0 for a log variance beyond its limit."""
        mean, log_variance, inside = _limited_halves(outputs.detach())
        residual = (mean - targets) * (-log_variance).exp()
        return torch.cat([residual, 0.5 * (1 - residual * (mean - targets)) * inside], -1)

    def sample(self, outputs: Tensor, rng: Generator) -> Tensor:
        """Means plus noise of the predicted variance."""
        mean, log_variance, _ = _limited_halves(outputs.detach())
        noise = torch.randn(mean.shape, generator=rng, dtype=mean.dtype, device=rng.device).to(mean.device)
        return mean + noise * (0.5 * log_variance).exp()

    def information(self, outputs: Tensor, vector: Tensor) -> Tensor:
        r"""$[e^{-s} v_m, \frac12 v_s]$."""
        return self._information_root(outputs).square() * vector

    def factors(self, outputs: Tensor) -> Iterator[Tensor]:
        """One scaled unit vector per output."""
        root, units = self._information_root(outputs), super().factors(outputs)
        return (root * unit for unit in units)

    def _information_root(self, outputs: Tensor) -> Tensor:
        _, log_variance, inside = _limited_halves(outputs.detach())
        return torch.cat([(-0.5 * log_variance).exp(), math.sqrt(0.5) * inside], -1)


def _limited_halves(outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means, log variances clamped to their limit, and which log variances were inside it."""
    mean, log_variance = outputs.chunk(2, -1)
    limited = log_variance.clamp(-LOG_VARIANCE_LIMIT, LOG_VARIANCE_LIMIT)
    return mean, limited, limited == log_variance


Likelihood: TypeAlias = Categorical | Gaussian | Detection  # and their subclasses
LIKELIHOODS: dict[str, Likelihood] = {
    like.name: like for like in (Categorical(), Gaussian(), Heteroscedastic(), Dense(), Language(), Detection())
}

DISTRIBUTIONS = tuple(name for name in LIKELIHOODS if name != "detection")
"""Names of the likelihoods that are distributions, with all members."""


def likelihood(name: str) -> Likelihood:
    """The likelihood of that name.

    >>> likelihood("dense").metric
    'r2'
    """
    try:
        return LIKELIHOODS[name]
    except KeyError:
        raise OptionError(f"unknown likelihood {name!r}; choose one of {', '.join(LIKELIHOODS)}") from None


def require_one_output(name: str) -> None:
    """Refuse a likelihood whose outputs no single network of the registry has: that of boxes."""
    require(
        name != "detection",
        "got a detection task (boxes in images), expected classes, values, images or text as targets; use nearkin "
        "interleave, which learns detection",
        MismatchError,
    )
