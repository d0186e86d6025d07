r"""The full Fisher matrix of a small network, and its diagonal blocks, one per parameter tensor.

$$F = \frac1N \sum_n \mathbb{E}_y\left[\nabla \log p(y \mid f(x_n))\,\nabla \log p(y \mid f(x_n))^\top\right]
    = \frac1N \sum_n \sum_k J_n^\top c_{nk} c_{nk}^\top J_n$$

The cotangents c at the outputs are those of `diagonal`: gradients of the loss for observed or sampled labels, or the
factors of the information of the outputs, which give the exact expectation (the generalised Gauss-Newton matrix).

Notation: N samples, P weights, p weights of one parameter, B samples of a batch.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.types import Params
from nearkin.fisher.autodiff import autodiff_gradients, chunk_size, single_outputs
from nearkin.fisher.cotangents import Data, SampleOptions, Samples, sample_blocks
from nearkin.fisher.gradient_plan import require_evaluation_mode, wanted_names
from nearkin.fisher.planned_tape import plan_for
from nearkin.fisher.tape import detached_weights

LIMIT = 4096  # weights of one dense matrix: 128 MiB in float64, and half a minute for its eigenvalues
NEGATIVE = 1e-3  # negative eigenvalues up to this fraction of the largest are rounding errors and count as 0


def fisher_matrix(
    model: nn.Module,
    data: Data,
    targets: Tensor | None = None,
    *,
    names: Collection[str] | None = None,
    limit: int = LIMIT,
    **options: Unpack[SampleOptions],
) -> Tensor:
    """F `[P, P]`; its rows are the flattened parameters in the order of `model.named_parameters()`.

    Args:
        model: the network, in evaluation mode.
        data: inputs `[N, *input_shape]` with `targets`, examples of a task, or any iterable of `(x, y)` batches.
        targets: labels for `observed`.
        names: parameters to measure (default: all that require gradients).
        limit: largest P.
        options: `likelihood`, `labels`, `batch_size`, `num_samples` and `seed`, as for `diagonal`.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> torch.equal(fisher_matrix(net, x, likelihood="gaussian", labels="expected"), x.T @ x / 2)
    True
    """
    weights = _selected_weights(model, names)
    size = sum(weight.numel() for weight in weights.values())
    _require_limit(
        "the full Fisher", size, limit, "fisher_blocks or kronecker, or log_determinant of products (spectra)"
    )
    total = next(iter(weights.values())).new_zeros(size, size)

    def receive(rows: Params) -> None:
        flat = torch.cat([rows[name].flatten(1) for name in weights], 1)
        total.addmm_(flat.T, flat)

    return total / per_sample(model, Samples(data, targets, **options), tuple(weights), receive)


def fisher_blocks(
    model: nn.Module,
    data: Data,
    targets: Tensor | None = None,
    *,
    names: Collection[str] | None = None,
    limit: int = LIMIT,
    **options: Unpack[SampleOptions],
) -> Params:
    """The diagonal blocks `[p, p]` of F by name, one per parameter; arguments as in `fisher_matrix`.

    >>> net = nn.Linear(2, 1)
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> fisher_blocks(net, x, likelihood="gaussian", labels="expected")
    {'weight': tensor([[5., 1.],
            [1., 2.]]), 'bias': tensor([[1.]])}
    """
    weights = _selected_weights(model, names)
    for name, weight in weights.items():
        _require_limit(f"the block of {name}", weight.numel(), limit, "kronecker, or leave it out with names")
    total = {name: weight.new_zeros(weight.numel(), weight.numel()) for name, weight in weights.items()}

    def receive(rows: Params) -> None:
        for name, block in total.items():
            block.addmm_(rows[name].flatten(1).T, rows[name].flatten(1))

    count = per_sample(model, Samples(data, targets, **options), tuple(weights), receive)
    return {name: block / count for name, block in total.items()}


def per_sample(model: nn.Module, samples: Samples, names: tuple[str, ...], receive: Callable[[Params], None]) -> int:
    r"""Call `receive` with $J_n^\top c_{nk}$, `[B, *shape]` by name; return the number of samples times draws.

    >>> net, received = nn.Linear(2, 1, bias=False), []
    >>> per_sample(net, Samples(torch.eye(2), None, "gaussian", "expected"), ("weight",), received.append)
    2
    >>> received[0]["weight"].flatten(1).tolist()
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
            for block in sample_blocks(len(x), size):
                rows = autodiff_gradients(model, weights, names, x[block], c[block], alone)
                require_finite(rows, number)
                receive(rows)
        count += len(x)
    return count * samples.draws


def require_finite(values: Mapping[str, Tensor], number: int) -> None:
    """Raise an error with the parameter and the number of the batch if gradients are not finite."""
    for name, value in values.items():
        require(
            bool(value.isfinite().all()),
            f"gradients of {name} are NaN or infinite in batch {number}; check its inputs and the weights",
            MismatchError,
        )


def log_determinant(fisher: Tensor | Mapping[str, Tensor], scale: float) -> float:
    r"""$\log|I + cF|$ of a matrix `[P, P]` or of blocks by name, in float64, for c >= 0.

    By Fischer's inequality $\log|I + cF| \le \sum_i \log|I + cF_i| \le \sum_j \log(1 + cF_{jj})$: blocks give at least
    the value of the full matrix, and the diagonal gives the largest value.

    >>> round(log_determinant(torch.diag(torch.tensor([1.0, 3.0])), 1.0) / math.log(8), 9)
    1.0
    >>> round(log_determinant({"weight": torch.eye(2), "bias": torch.eye(1)}, 1.0) / math.log(2), 9)
    3.0
    """
    require(math.isfinite(scale) and scale >= 0, f"the scale must be >= 0 and finite, got {scale}")
    blocks = [fisher] if isinstance(fisher, Tensor) else fisher.values()
    return math.fsum(_log_determinant(block, scale) for block in blocks)


def _log_determinant(matrix: Tensor, scale: float) -> float:
    shape = tuple(matrix.shape)
    require(len(shape) == 2 and shape[0] == shape[1], f"a Fisher matrix is square, got shape {shape}", MismatchError)
    require(bool(matrix.isfinite().all()), "the Fisher matrix is not finite; check its data for NaN", DataError)
    matrix = matrix.detach().double()
    matrix = (matrix + matrix.T) / 2
    factor, failed = torch.linalg.cholesky_ex(torch.eye(len(matrix)).to(matrix) + scale * matrix)
    if not failed:
        return float(2 * factor.diagonal().log().sum())
    values = torch.linalg.eigvalsh(matrix)  # with float32 rounding and a large c, eigenvalues may be below -1/c
    least, largest = float(values[0]), float(values[-1])
    require(
        least >= -NEGATIVE * largest,
        f"the matrix has an eigenvalue of {least:.3g} beside one of {largest:.3g}, expected none below 0; pass a "
        f"Fisher matrix",
        DataError,
    )
    return float((scale * values.clamp_min(0)).log1p().sum())


def _selected_weights(model: nn.Module, names: Collection[str] | None) -> Params:
    require_evaluation_mode(model)
    weights = detached_weights(model)
    return {name: weights[name] for name in wanted_names(model, names)}


def _require_limit(subject: str, size: int, limit: int, instead: str) -> None:
    require(
        size <= limit,
        f"{subject} of {size:,} weights has {size**2:,} entries, the limit is {limit:,} weights; use {instead}, "
        f"or raise limit",
    )
