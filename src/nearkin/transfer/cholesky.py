"""Cholesky factors with a bounded jitter on the diagonal, triangular solves and log-determinants."""

import torch
from torch import Tensor

from nearkin.core.errors import DataError
from nearkin.core.events import Caution, Work, operation

JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6)  # tried in turn, as fractions of the mean diagonal
PIVOT = 1e-14  # a squared pivot below this fraction of the largest diagonal entry is rounding


@operation
def cholesky(matrix: Tensor, subject: str = "the kernel") -> Work[tuple[Tensor, float]]:
    """Lower factors of symmetric matrices `[..., R, R]`, and the jitter that was added to the diagonals.

    Raises:
        DataError: if a jitter of a millionth of the mean diagonal is not enough, or entries are not finite.

    >>> cholesky(torch.tensor([[4.0, 0.0], [0.0, 9.0]]).double())
    (tensor([[2., 0.],
            [0., 3.]], dtype=torch.float64), 0.0)
    >>> cholesky(torch.ones(2, 2).double())[1] > 0
    True
    """
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    level, name = float(diagonal.abs().mean()), f"{subject} of {matrix.shape[-1]:,} rows"
    for share in JITTERS:
        candidate = matrix if share == 0 else matrix + share * level * torch.eye(matrix.shape[-1]).to(matrix)
        factor, failed = torch.linalg.cholesky_ex(candidate)
        pivots = factor.diagonal(dim1=-2, dim2=-1).square()
        if not bool(failed.any()) and bool((pivots.amin(-1) > PIVOT * diagonal.amax(-1)).all()):
            if share > 0:
                yield Caution(f"{name} is not positive definite; {share * level:.1e} was added to its diagonal")
            return factor, share * level
    if not bool(matrix.isfinite().all()):
        raise DataError(f"{name} is not finite; fix the inputs or the weights")
    raise DataError(
        f"{name} is not positive definite, not even with {JITTERS[-1]:.0e} of its diagonal added; give a noise above "
        f"0, or remove duplicate points"
    )


def solve_lower(factor: Tensor, right: Tensor) -> Tensor:
    r"""$L^{-1} B$."""
    solution: Tensor = torch.linalg.solve_triangular(factor, right, upper=False)
    return solution


def solve_upper(factor: Tensor, right: Tensor) -> Tensor:
    r"""$L^{-⊤} B$."""
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, right, upper=True)
    return solution


def solve_cholesky(factor: Tensor, right: Tensor) -> Tensor:
    r"""$(L L^⊤)^{-1} B$."""
    return solve_upper(factor, solve_lower(factor, right))


def log_determinant(factor: Tensor) -> Tensor:
    r"""$\log |L L^⊤|$."""
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
