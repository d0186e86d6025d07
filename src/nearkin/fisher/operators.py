r"""The Fisher information, the Jacobian and the tangent kernel as operators that GPyTorch and SciPy can use.

Notation: N samples, C numbers in one output, P weights θ, J the Jacobian `[N·C, P]`, F the Fisher information
`[P, P]`, $K = J J^\top$ the tangent kernel `[N·C, N·C]`. Rows of J run over samples first, then over the numbers of an
output.

The operators are `linear_operator.LinearOperator`s: sums with diagonals, solves by conjugate gradients, and
log-determinants by Lanczos are methods of that class (up to `max_cholesky_size` rows it forms the matrix instead). They
are not differentiable with respect to the weights.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from linear_operator import LinearOperator
from linear_operator.operators import AddedDiagLinearOperator, DiagLinearOperator
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator as SciPyOperator
from torch import Tensor

from nearkin.fisher.jacobian import Inputs, Jacobian, Network
from nearkin.fisher.products import FisherProduct
from nearkin.fisher.vectors import columnwise, flat, unflat


class ProductOperator(LinearOperator, ABC):  # type: ignore[misc]
    """A matrix `[M, N]` defined by its products with vectors.

    Args:
        point: θ flat `[P]`: the tensor that determines dtype and device.
        source: the `FisherProduct` or `Jacobian` that computes the products.
    """

    def __init__(self, point: Tensor, *, source: Any) -> None:
        super().__init__(point, source=source)
        self.source = source

    @abstractmethod
    def product(self, vector: Tensor) -> Tensor:
        """The matrix times one vector: `[N]` to `[M]`."""

    def products(self, columns: Tensor) -> Tensor:
        """The matrix times `[N]` or `[N, K]`."""
        return columnwise(self.product, columns)

    def _matmul(self, rhs: Tensor) -> Tensor:
        """The matrix times `[N]`, `[N, K]` or a batch of those `[..., N, K]`."""
        if rhs.dim() <= 2:
            return self.products(rhs)
        columns = rhs.movedim(-2, 0)  # [N, ..., K]
        return self.products(columns.flatten(1)).reshape(-1, *columns.shape[1:]).movedim(0, -2)

    def _diagonal(self) -> Tensor:
        """Entries `[i, i]`, one product each."""
        return torch.stack([self.product(unit)[index] for index, unit in enumerate(_units(self))])

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        """Entries at index tensors, one product for every distinct column."""
        rows, columns = torch.broadcast_tensors(row_index, col_index)
        distinct, positions = columns.unique(return_inverse=True)
        units = torch.nn.functional.one_hot(distinct, self.shape[-1]).to(self.dtype)
        return self._matmul(units.T)[rows, positions]


class SymmetricOperator(ProductOperator):
    """A symmetric matrix known by its products.

    Sums with a diagonal have no preconditioner: a pivoted Cholesky factor needs the diagonal, one product per row.
    """

    def _transpose_nonbatch(self) -> "SymmetricOperator":
        return self

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, DiagLinearOperator):
            return AddedDiagLinearOperator(self, other, preconditioner_override=_no_preconditioner)
        return super().__add__(other)

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        """The matrix plus a diagonal `[M]`, `[1]` or a number."""
        return self + DiagLinearOperator(diag.expand(self.shape[-1]))


class FisherOperator(SymmetricOperator):
    """F `[P, P]` of a `FisherProduct`.

    >>> fisher = fisher_operator(torch.nn.Linear(1, 1, bias=False), torch.tensor([[2.0]]), "gaussian")
    >>> fisher.shape, fisher.matmul(torch.tensor([3.0])), fisher.add_diagonal(torch.tensor(1.0)).solve(torch.ones(1, 1))
    (torch.Size([1, 1]), tensor([12.]), tensor([[0.2000]]))
    """

    def product(self, vector: Tensor) -> Tensor:
        """Fv `[P]`."""
        return self.products(vector)

    def products(self, columns: Tensor) -> Tensor:
        """F times `[P]` or `[P, K]`."""
        product: Tensor = self.source(columns)
        return product

    def _size(self) -> torch.Size:
        return torch.Size([len(self._args[0])] * 2)


class TangentKernelOperator(SymmetricOperator):
    """K `[N·C, N·C]` of a `Jacobian`.

    >>> kernel = tangent_kernel_operator(torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]]))
    >>> kernel.to_dense()
    tensor([[1., 2.],
            [2., 4.]])
    """

    def product(self, vector: Tensor) -> Tensor:
        """Ku `[N·C]`."""
        pulled = self.source.pull(vector.view(self.source.shape))
        product: Tensor = self.source.push(pulled).flatten()
        return product

    def _size(self) -> torch.Size:
        return torch.Size([self.source.shape.numel()] * 2)


class JacobianOperator(ProductOperator):
    """J `[N·C, P]` of a `Jacobian`.

    >>> jacobian = jacobian_operator(torch.nn.Linear(1, 1), torch.tensor([[1.0], [2.0]]))
    >>> jacobian.to_dense()
    tensor([[1., 1.],
            [2., 1.]])
    """

    def product(self, vector: Tensor) -> Tensor:
        """Jv `[N·C]`."""
        product: Tensor = self.source.push(unflat(vector, self.source.params)).flatten()
        return product

    def _size(self) -> torch.Size:
        return torch.Size([self.source.shape.numel(), len(self._args[0])])

    def _transpose_nonbatch(self) -> "TransposedJacobianOperator":
        return TransposedJacobianOperator(*self._args, source=self.source)


class TransposedJacobianOperator(ProductOperator):
    """The transpose of J, `[P, N·C]`."""

    def product(self, vector: Tensor) -> Tensor:
        """The transpose of J times u, `[P]`."""
        return flat(self.source.pull(vector.view(self.source.shape)))

    def _size(self) -> torch.Size:
        return torch.Size([len(self._args[0]), self.source.shape.numel()])

    def _transpose_nonbatch(self) -> JacobianOperator:
        return JacobianOperator(*self._args, source=self.source)


def fisher_operator(network: Network, x: Inputs, likelihood: str = "categorical", **options: Any) -> FisherOperator:
    """F `[P, P]`; options are those of `FisherProduct`."""
    product = FisherProduct(network, x, likelihood, **options)
    return FisherOperator(flat(product.jacobian.params), source=product)


def jacobian_operator(network: Network, x: Inputs, **options: Any) -> JacobianOperator:
    """J `[N·C, P]`; options are those of `Jacobian`."""
    jacobian = Jacobian(network, x, **options)
    return JacobianOperator(flat(jacobian.params), source=jacobian)


def tangent_kernel_operator(network: Network, x: Inputs, **options: Any) -> TangentKernelOperator:
    """K `[N·C, N·C]`; options are those of `Jacobian`."""
    jacobian = Jacobian(network, x, **options)
    return TangentKernelOperator(flat(jacobian.params), source=jacobian)


def to_scipy(operator: LinearOperator) -> SciPyOperator:
    """The same matrix as an operator for SciPy, for example for `eigsh`, `svds` and `cg`.

    >>> fisher = fisher_operator(torch.nn.Linear(1, 1, bias=False), torch.tensor([[2.0]]), "gaussian")
    >>> to_scipy(fisher) @ np.array([3.0], dtype=np.float32)
    array([12.], dtype=float32)
    """

    def times(matrix: LinearOperator, right: NDArray[Any]) -> NDArray[Any]:
        columns = torch.tensor(right, dtype=operator.dtype, device=operator.device)
        product: NDArray[Any] = matrix.matmul(columns).detach().cpu().numpy()
        return product

    def straight(right: NDArray[Any]) -> NDArray[Any]:
        return times(operator, right)

    def transposed(right: NDArray[Any]) -> NDArray[Any]:
        return times(operator.mT, right)

    dtype = np.dtype(str(operator.dtype).removeprefix("torch."))
    return SciPyOperator(
        tuple(operator.shape), matvec=straight, rmatvec=transposed, matmat=straight, rmatmat=transposed, dtype=dtype
    )


def _units(operator: LinearOperator) -> Any:
    """The unit vectors `[N]`, one after the other."""
    for index in range(operator.shape[-1]):
        unit = torch.zeros(operator.shape[-1], dtype=operator.dtype, device=operator.device)
        unit[index] = 1.0
        yield unit


def _no_preconditioner(operator: LinearOperator) -> tuple[None, None, None]:
    return None, None, None
