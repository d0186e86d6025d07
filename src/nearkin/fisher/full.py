r"""The whole Fisher matrix of a small network, and its diagonal blocks, one a parameter tensor.

$$F = \frac1N \sum_n \mathbb{E}_y\left[\nabla \log p(y \mid f(x_n))\,\nabla \log p(y \mid f(x_n))^\top\right]
    = \frac1N \sum_n \sum_k J_n^\top c_{nk} c_{nk}^\top J_n$$

The vectors c at the outputs are those of `diagonal`: gradients of the nll of observed or of sampled labels, or the
factors of the outputs' own information, which give the exact expectation (the generalised Gauss-Newton matrix).

Notation: N samples, P weights, p weights of one parameter, B samples of a batch.
"""

import math
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.types import Params
from nearkin.fisher.autodiff import autodiff_gradients, chunk_size, single_outputs
from nearkin.fisher.cotangents import Data, Samples, sample_blocks
from nearkin.fisher.gradient_plan import require_evaluation_mode, wanted_names
from nearkin.fisher.planned_tape import plan_for
from nearkin.fisher.tape import detached_weights

LIMIT = 4096  # weights of one dense matrix: 128 MiB in float64, and half a minute for its eigenvalues
NEGATIVE = 1e-3  # eigenvalues down to minus this share of the largest are rounding, and count as 0


def fisher_matrix(
    model: nn.Module,
    data: Data,
    targets: Tensor | None = None,
    *,
    likelihood: str = "categorical",
    labels: str = "observed",
    batch_size: int = 128,
    num_samples: int = 1,
    seed: int = 0,
    names: Collection[str] | None = None,
    limit: int = LIMIT,
) -> Tensor:
    """F `[P, P]`, its rows in the order of `model.named_parameters()`, each flattened.

    Args:
        model: the network, in evaluation mode.
        data: inputs `[N, *input_shape]` with `targets`, examples of a task, or any iterable of `(x, y)` batches.
        targets: labels for `observed`; not looked at for `sampled` and `expected`.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        labels: `observed`, `sampled` (from the model, `num_samples` times) or `expected` (exact).
        batch_size: samples at once, where data comes as tensors or examples.
        num_samples: draws a sample, for `sampled`.
        seed: of the draws.
        names: parameters to measure; by default all that require gradients.
        limit: P at most.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> torch.equal(fisher_matrix(net, x, likelihood="gaussian", labels="expected"), x.T @ x / 2)
    True
    """
    weights = _measured(model, names)
    size = sum(weight.numel() for weight in weights.values())
    _require_room(
        "the full Fisher", size, limit, "fisher_blocks or kronecker, or log_determinant of products (spectra)"
    )
    total = next(iter(weights.values())).new_zeros(size, size)

    def receive(rows: Params) -> None:
        flat = torch.cat([rows[name].flatten(1) for name in weights], 1)
        total.addmm_(flat.T, flat)

    samples = Samples(data, targets, likelihood, labels, batch_size, num_samples, seed)
    count = per_sample(model, samples, tuple(weights), receive)
    return total / count


def fisher_blocks(
    model: nn.Module,
    data: Data,
    targets: Tensor | None = None,
    *,
    likelihood: str = "categorical",
    labels: str = "observed",
    batch_size: int = 128,
    num_samples: int = 1,
    seed: int = 0,
    names: Collection[str] | None = None,
    limit: int = LIMIT,
) -> Params:
    """The blocks `[p, p]` of F on its diagonal, one a parameter, by name; arguments as in `fisher_matrix`.

    >>> net = nn.Linear(2, 1)
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> fisher_blocks(net, x, likelihood="gaussian", labels="expected")
    {'weight': tensor([[5., 1.],
            [1., 2.]]), 'bias': tensor([[1.]])}
    """
    weights = _measured(model, names)
    for name, weight in weights.items():
        _require_room(f"the block of {name}", weight.numel(), limit, "kronecker, or leave it out by names")
    total = {name: weight.new_zeros(weight.numel(), weight.numel()) for name, weight in weights.items()}

    def receive(rows: Params) -> None:
        for name, block in total.items():
            block.addmm_(rows[name].flatten(1).T, rows[name].flatten(1))

    samples = Samples(data, targets, likelihood, labels, batch_size, num_samples, seed)
    count = per_sample(model, samples, tuple(weights), receive)
    return {name: block / count for name, block in total.items()}


def per_sample(model: nn.Module, samples: Samples, names: tuple[str, ...], receive: Callable[[Params], None]) -> int:
    r"""Hand over the vectors $J_n^\top c_{nk}$ as `[B, *shape]` by name; F is the sum of their squares over the result.

    >>> net, seen = nn.Linear(2, 1, bias=False), []
    >>> per_sample(net, Samples(torch.eye(2), None, "gaussian", "expected"), ("weight",), seen.append)
    2
    >>> [found] = seen
    >>> found["weight"].flatten(1).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    weights, count = detached_weights(model), 0
    size, alone = chunk_size(weights, names), None
    for number, (x, cotangents_at) in enumerate(samples.batches()):
        if alone is None:
            alone = plan_for(model, weights, x, names).alone
        with torch.no_grad():
            outputs = single_outputs(model, weights, x) if alone else functional_call(model, weights, (x,))
        for c in cotangents_at(outputs, slice(None)):
            for part in sample_blocks(len(x), size):
                rows = autodiff_gradients(model, weights, names, x[part], c[part], alone)
                require_finite(rows, number)
                receive(rows)
        count += len(x)
    return count * samples.draws


def require_finite(values: Mapping[str, Tensor], number: int) -> None:
    """Name the parameter whose gradients are not numbers any more, and the batch that made them so."""
    for name, value in values.items():
        require(
            bool(value.isfinite().all()),
            f"gradients of {name} are NaN or infinite in batch {number}; look at its inputs and the weights",
            MismatchError,
        )


def log_determinant(fisher: Tensor | Mapping[str, Tensor], scale: float) -> float:
    r"""$\log|I + cF|$ of a matrix `[P, P]` or of blocks by name, in float64, for c >= 0.

    By Fischer's inequality $\log|I + cF| \le \sum_i \log|I + cF_i| \le \sum_j \log(1 + cF_{jj})$: blocks give more than
    the whole matrix, the diagonal gives most.

    >>> round(log_determinant(torch.diag(torch.tensor([1.0, 3.0])), 1.0) / math.log(8), 9)
    1.0
    >>> round(log_determinant({"weight": torch.eye(2), "bias": torch.eye(1)}, 1.0) / math.log(2), 9)
    3.0
    """
    require(math.isfinite(scale) and scale >= 0, f"the scale must be >= 0 and finite, got {scale}")
    if isinstance(fisher, Tensor):
        return _log_determinant(fisher, scale)
    return math.fsum(_log_determinant(block, scale) for block in fisher.values())


def _log_determinant(matrix: Tensor, scale: float) -> float:
    shape = tuple(matrix.shape)
    require(len(shape) == 2 and shape[0] == shape[1], f"a Fisher matrix is square, got shape {shape}", MismatchError)
    require(bool(matrix.isfinite().all()), "the Fisher matrix is not finite; look for NaN in its data", DataError)
    matrix = matrix.detach().double()
    matrix = (matrix + matrix.T) / 2
    factor, failed = torch.linalg.cholesky_ex(torch.eye(len(matrix)).to(matrix) + scale * matrix)
    if not failed:
        return float(2 * factor.diagonal().log().sum())
    values = torch.linalg.eigvalsh(matrix)  # rounding in float32, times a large c, may push eigenvalues below -1/c
    least, largest = float(values[0]), float(values[-1])
    require(
        least >= -NEGATIVE * largest,
        f"the matrix has an eigenvalue of {least:.3g} beside one of {largest:.3g}, wanted none below 0; give a Fisher",
        DataError,
    )
    return float((scale * values.clamp_min(0)).log1p().sum())


def _measured(model: nn.Module, names: Collection[str] | None) -> Params:
    """Weights to measure, detached; a network whose samples have no gradients of their own is refused."""
    require_evaluation_mode(model)
    weights = detached_weights(model)
    return {name: weights[name] for name in wanted_names(model, names)}


def _require_room(what: str, size: int, limit: int, instead: str) -> None:
    require(
        size <= limit,
        f"{what} of {size:,} weights has {size**2:,} entries, the limit is {limit:,} weights; use {instead}, "
        f"or raise limit",
    )
