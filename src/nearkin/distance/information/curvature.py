r"""Curvature of the Fisher information of a network: log-determinants and effective dimensions at every scale.

| kind | what is computed | cost and error |
| --- | --- | --- |
| full | eigenvalues of F | exact; a matrix of P² numbers |
| block | eigenvalues of one block per parameter tensor | at least the full log-determinant |
| kronecker | products of the eigenvalues of two factors per layer | an approximation |
| lanczos | quadrature from products Fv with random v | no matrix; standard error known |
| diagonal | the diagonal | the largest log-determinant; use it to rank only |

F is the mean over samples with the exact expectation over labels (the generalised Gauss-Newton matrix). It has no
negative eigenvalues, whereas the Hessian of a network may have some.

Notation: N samples, P weights.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, require
from nearkin.core.rng import Streams
from nearkin.fisher.cotangents import sample_blocks
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.full import fisher_blocks, fisher_matrix
from nearkin.fisher.kronecker import Factors, KroneckerFisher, kronecker
from nearkin.fisher.products import FisherProduct
from nearkin.fisher.spectra import MEMORY, Estimate, lanczos_quadrature

KINDS = ("auto", "full", "block", "kronecker", "lanczos", "diagonal")
FULL_LIMIT = 3000  # weights up to which `auto` forms the matrix
KEPT = 1024  # samples up to which the graph of the network is kept between products
NEGATIVE = 1e-3  # negative eigenvalues up to this fraction of the largest are rounding errors and count as 0


@dataclass(frozen=True)
class CurvatureOptions:
    """How the curvature of the loss is computed.

    Attributes:
        kind: `auto`, `full`, `block`, `kronecker`, `lanczos` or `diagonal`.
        probes: random vectors of `lanczos`.
        steps: products with the Fisher information per probe.
        seed: seed of the probes.

    >>> CurvatureOptions("hessian")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: curvature 'hessian' is unknown; choose one of auto, full, block, kronecker, \
lanczos, diagonal
    """

    kind: str = "auto"
    probes: int = 8
    steps: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.kind in KINDS, f"curvature {self.kind!r} is unknown; choose one of {', '.join(KINDS)}")
        require(self.probes >= 2, f"probes must be 2 or more, got {self.probes}")
        require(self.steps >= 1, f"steps must be 1 or more, got {self.steps}")

    def chosen(self, num_weights: int) -> tuple[str, str]:
        """The kind for a number of weights, and the reason.

        >>> CurvatureOptions().chosen(500)
        ('full', '500 weights, at most 3,000')
        >>> CurvatureOptions().chosen(60_000)
        ('lanczos', '60,000 weights, more than 3,000: no matrix is formed')
        """
        if self.kind != "auto":
            return self.kind, "as requested"
        if num_weights <= FULL_LIMIT:
            return "full", f"{num_weights:,} weights, at most {FULL_LIMIT:,}"
        if num_weights * self.steps <= MEMORY:
            return "lanczos", f"{num_weights:,} weights, more than {FULL_LIMIT:,}: no matrix is formed"
        return "kronecker", f"{num_weights:,} weights: {self.steps} vectors of this length exceed the memory of lanczos"


class CurvatureSpectrum(Protocol):
    """Sums over the eigenvalues of a matrix F that has no negative ones."""

    def log_determinant(self, scale: float) -> Estimate:
        r"""$\log|I + cF|$ for c >= 0."""

    def effective_dimension(self, scale: float) -> Estimate:
        r"""$\mathrm{tr}\, cF(I + cF)^{-1}$ for c >= 0, from 0 to P."""


@dataclass(frozen=True, eq=False)
class Eigenvalues:
    """All eigenvalues `[P]`.

    >>> values = Eigenvalues(torch.tensor([0.0, 1.0, 3.0]))
    >>> round(values.log_determinant(1.0).value / torch.tensor(8.0).log().item(), 6), values.effective_dimension(1.0)
    (1.0, Estimate(value=1.25, error=0.0))
    """

    values: Tensor

    def log_determinant(self, scale: float) -> Estimate:
        """The sum of log(1 + cf)."""
        return Estimate(float((scale * self.values).log1p().sum()), 0.0)

    def effective_dimension(self, scale: float) -> Estimate:
        """The sum of cf / (1 + cf)."""
        return Estimate(float((scale * self.values / (1 + scale * self.values)).sum()), 0.0)


@dataclass(frozen=True, eq=False)
class Curvature:
    """The spectrum of the Fisher information of a network on data.

    Attributes:
        spectrum: of F, the mean over samples.
        kind: how it was computed.
        reason: why it was computed so.
        num_weights: P.
    """

    spectrum: CurvatureSpectrum
    kind: str
    reason: str
    num_weights: int


class NetworkSamples(NamedTuple):
    """Samples of one of several tasks.

    Attributes:
        model: the network, in evaluation mode.
        x: inputs `[N, *input_shape]`.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
    """

    model: nn.Module
    x: Tensor
    likelihood: str


def measure_curvature(
    model: nn.Module, x: Tensor, likelihood: str = "categorical", options: CurvatureOptions | None = None
) -> Curvature:
    """The curvature of the loss of a network at its weights.

    Args:
        model: the network, in evaluation mode.
        x: inputs `[N, *input_shape]`.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        options: kind and effort (default: by the number of weights).

    >>> net, x = nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> measure_curvature(net, x, "gaussian").spectrum.values.tolist()
    [0.5, 2.0]
    """
    return joint_curvature([NetworkSamples(model, x, likelihood)], options)


def joint_curvature(tasks: Sequence[NetworkSamples], options: CurvatureOptions | None = None) -> Curvature:
    r"""The curvature of several tasks whose networks share all weights, $\sum_t N_t F_t / \sum_t N_t$.

    Kronecker factors are averaged over the samples of all tasks, as for one task.

    Args:
        tasks: samples of each task; every network has the same weights by the same names.
        options: kind and effort (default: by the number of weights).
    """
    options, model = options or CurvatureOptions(), tasks[0].model
    require(all(len(task.x) for task in tasks), "there is no sample to measure on; the data is empty", DataError)
    size = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    kind, reason = options.chosen(size)
    total = sum(len(task.x) for task in tasks)
    shares = [len(task.x) / total for task in tasks]
    if kind == "lanczos":
        products = [_product(task) for task in tasks]
        dtype, rng = next(model.parameters()).dtype, Streams(options.seed)["probes"]

        def apply(block: Tensor) -> Tensor:
            vectors = block.to(dtype)
            parts = (share * product(vectors) for share, product in zip(shares, products, strict=True))
            return sum(parts, torch.zeros_like(vectors)).to(block.dtype)

        spectrum: CurvatureSpectrum = lanczos_quadrature(apply, size, rng, options.probes, options.steps)
    else:
        doubles = [NetworkSamples(in_double(model), as_double(x), likelihood) for model, x, likelihood in tasks]
        spectrum = Eigenvalues(_eigenvalues(doubles, shares, kind))
    return Curvature(spectrum, kind, reason, size)


def _product(task: NetworkSamples) -> FisherProduct:
    """Products in the network's own dtype: float32 is 4 times faster, its error far below that of the probes."""
    x = task.x.to(next(task.model.parameters()).dtype) if task.x.is_floating_point() else task.x
    inputs = x if len(x) <= KEPT else [x[block] for block in sample_blocks(len(x), KEPT)]
    return FisherProduct(task.model, inputs, task.likelihood)


def in_double(model: nn.Module) -> nn.Module:
    """A copy of a network in float64 and in evaluation mode."""
    return copy.deepcopy(model).double().eval()


def as_double(values: Tensor) -> Tensor:
    """Real values in float64; class numbers and tokens unchanged."""
    return values.double() if values.is_floating_point() else values


def _eigenvalues(tasks: Sequence[NetworkSamples], shares: Sequence[float], kind: str) -> Tensor:
    if kind == "full":
        return _symmetric(_mean([_full(task) for task in tasks], shares))
    if kind == "block":
        blocks = zip(*(_blocks(task) for task in tasks), strict=True)
        return torch.cat([_symmetric(_mean(block, shares)) for block in blocks])
    if kind == "kronecker":
        return _kronecker_eigenvalues([_kronecker(task) for task in tasks], shares)
    return _mean([_diagonal(task) for task in tasks], shares)


def _mean(values: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    return sum((share * value for share, value in zip(shares, values, strict=True)), torch.zeros_like(values[0]))


def _full(task: NetworkSamples) -> Tensor:
    return fisher_matrix(task.model, task.x, likelihood=task.likelihood, labels="expected")


def _blocks(task: NetworkSamples) -> list[Tensor]:
    return list(fisher_blocks(task.model, task.x, likelihood=task.likelihood, labels="expected").values())


def _diagonal(task: NetworkSamples) -> Tensor:
    values = diagonal(task.model, task.x, likelihood=task.likelihood, labels="expected").values
    return torch.cat([value.double().flatten() for value in values.values()])


def _kronecker(task: NetworkSamples) -> KroneckerFisher:
    return kronecker(task.model, task.x, likelihood=task.likelihood, labels="expected")


def _kronecker_eigenvalues(fishers: Sequence[KroneckerFisher], shares: Sequence[float]) -> Tensor:
    eigenvalues = []
    for blocks in zip(*(fisher.blocks for fisher in fishers), strict=True):
        factored = [block for block in blocks if isinstance(block, Factors)]
        if factored:
            outputs = _symmetric(_mean([block.outputs for block in factored], shares))
            inputs = _symmetric(_mean([block.inputs for block in factored], shares))
            eigenvalues.append(torch.outer(outputs, inputs).flatten())
        else:
            values = [block.values.double().flatten() for block in blocks if not isinstance(block, Factors)]
            eigenvalues.append(_mean(values, shares))
    return torch.cat(eigenvalues)


def _symmetric(matrix: Tensor) -> Tensor:
    """Eigenvalues in float64; small negative ones are rounding errors."""
    require(bool(matrix.isfinite().all()), "the Fisher information is not finite; check the data for NaN", DataError)
    values: Tensor = torch.linalg.eigvalsh(matrix.double())
    least, largest = float(values[0]), float(values[-1])
    require(
        least >= -NEGATIVE * abs(largest),
        f"the curvature has an eigenvalue of {least:.3g} beside one of {largest:.3g}, expected none below 0",
        DataError,
    )
    return values.clamp_min(0)
