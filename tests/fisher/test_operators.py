import gpytorch
import numpy as np
import pytest
import scipy.sparse.linalg as sla
import torch
from linear_operator import settings
from linear_operator.operators import DiagLinearOperator, LinearOperator
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from nearkin.core.errors import OptionError
from nearkin.core.rng import seeded
from nearkin.fisher.operators import (
    FisherOperator,
    JacobianOperator,
    TangentKernelOperator,
    fisher_operator,
    jacobian_operator,
    tangent_kernel_operator,
    to_scipy,
)
from nearkin.nets.registry import build
from nearkin.tasks.likelihood import likelihood

N, C = 7, 3


@pytest.fixture
def model() -> nn.Module:
    return build("mlp?hidden=5", (4,), C, seed=0).eval().double()


@pytest.fixture
def x() -> Tensor:
    with seeded(0):
        return torch.randn(N, 4, dtype=torch.float64)


@pytest.fixture
def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """J `[N·C, P]`."""
    params = {name: value.detach() for name, value in model.named_parameters()}
    rows = jacrev(lambda p: functional_call(model, p, (x,)).flatten())(params)
    return torch.cat([row.flatten(1) for row in rows.values()], 1)


@pytest.fixture
def fisher(model: nn.Module, x: Tensor, jacobian: Tensor) -> Tensor:
    """F `[P, P]`."""
    pulled = [
        torch.einsum("nc,ncp->np", s, jacobian.view(N, C, -1)) for s in likelihood("categorical").factors(model(x))
    ]
    return sum((rows.T @ rows for rows in pulled), torch.zeros(())) / N


def close(found: Tensor, expected: Tensor, bound: float = 1e-10) -> bool:
    return found.shape == expected.shape and bool((found - expected).norm() <= bound * expected.norm())


def agree(operator: LinearOperator, matrix: Tensor) -> None:
    """Shape, products from both sides, transposes, entries, rows and batches are those of the matrix."""
    rows, columns = matrix.shape
    assert operator.shape == matrix.shape
    assert operator.dtype == matrix.dtype
    with seeded(3):
        vector, left = torch.randn(columns).double(), torch.randn(rows).double()
        right, batch = torch.randn(columns, 2).double(), torch.randn(2, 3, columns, 2).double()
    assert close(operator.to_dense(), matrix)
    assert close(operator.mT.to_dense(), matrix.T)
    assert close(operator.mT.mT @ vector, matrix @ vector)
    assert close(operator @ right, matrix @ right)
    assert close(operator @ batch, matrix @ batch)
    assert close(operator.mT @ left, matrix.T @ left)
    assert close(left @ operator, left @ matrix)
    assert close(operator[1:4, 2], matrix[1:4, 2])
    assert close(operator[2:5, :4].to_dense(), matrix[2:5, :4])
    assert float(operator[2, 3]) == pytest.approx(float(matrix[2, 3]))
    again = operator.representation_tree()(*operator.representation())
    assert close(again @ vector, matrix @ vector)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of linear_operator's own indexing
def test_operators_are_their_matrices(model: nn.Module, x: Tensor, jacobian: Tensor, fisher: Tensor) -> None:
    agree(jacobian_operator(model, x), jacobian)
    agree(jacobian_operator(model, x).mT, jacobian.T)
    agree(fisher_operator(model, x), fisher)
    agree(tangent_kernel_operator(model, x), jacobian @ jacobian.T)
    agree(tangent_kernel_operator(model, x.split(3)), jacobian @ jacobian.T)


def test_diagonals(model: nn.Module, x: Tensor, jacobian: Tensor, fisher: Tensor) -> None:
    assert close(fisher_operator(model, x).diagonal(), fisher.diagonal())
    kernel = tangent_kernel_operator(model, x).add_diagonal(torch.tensor(0.5).double())
    assert close(kernel.diagonal(), jacobian.square().sum(1) + 0.5)


def test_classes(model: nn.Module, x: Tensor) -> None:
    assert isinstance(fisher_operator(model, x), FisherOperator)
    assert isinstance(jacobian_operator(model, x).mT.mT, JacobianOperator)
    assert isinstance(tangent_kernel_operator(model, x), TangentKernelOperator)


@pytest.mark.parametrize("cholesky", [800, 1])
def test_damped_solves_and_determinants(model: nn.Module, x: Tensor, fisher: Tensor, cholesky: int) -> None:
    """By Cholesky, and by the conjugate gradients and Lanczos runs that larger matrices get."""
    damping = 0.1
    dense = fisher + damping * torch.eye(len(fisher)).double()
    with seeded(5):
        b = torch.randn(len(fisher), 2).double()
    with (
        settings.max_cholesky_size(cholesky),
        settings.min_preconditioning_size(1),
        settings.cg_tolerance(1e-5),
        settings.max_cg_iterations(500),
        settings.num_trace_samples(400),
        seeded(6),
    ):
        damped = fisher_operator(model, x).add_diagonal(torch.tensor(damping).double())
        assert close(damped.solve(b), torch.linalg.solve(dense, b), 1e-4)
        quadratic, logdet = damped.inv_quad_logdet(b, logdet=True)
    assert float(quadratic) == pytest.approx(float((b * torch.linalg.solve(dense, b)).sum()), rel=1e-4)
    assert float(logdet) == pytest.approx(float(torch.logdet(dense)), rel=0.05)


def test_no_preconditioner_takes_the_diagonal(model: nn.Module, x: Tensor) -> None:
    """A solve takes some products, not one for every weight."""
    operator = fisher_operator(model, x)
    calls = 0
    inner = operator.source

    def counted(v: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        found: Tensor = inner(v)
        return found

    damped = FisherOperator(*operator._args, source=counted) + DiagLinearOperator(
        torch.ones(operator.shape[0]).double()
    )
    with settings.max_cholesky_size(1), settings.min_preconditioning_size(1), settings.cg_tolerance(1e-6):
        damped.solve(torch.ones(operator.shape[0], 1).double())
    assert 0 < calls < operator.shape[0]


def test_the_kernel_as_a_covariance(model: nn.Module, x: Tensor, jacobian: Tensor) -> None:
    """GPyTorch's likelihood of a Gaussian process with the tangent kernel is the dense one."""
    with seeded(7):
        y = torch.randn(N * C).double()
    prior = gpytorch.distributions.MultivariateNormal(torch.zeros(N * C).double(), tangent_kernel_operator(model, x))
    noise = gpytorch.likelihoods.GaussianLikelihood().double()
    noise.noise = 0.3
    covariance = jacobian @ jacobian.T + 0.3 * torch.eye(N * C).double()
    dense = torch.distributions.MultivariateNormal(torch.zeros(N * C).double(), covariance)
    evidence = noise(prior).log_prob(y)
    assert float(evidence.detach()) == pytest.approx(float(dense.log_prob(y)), rel=1e-8)
    evidence.backward()
    assert noise.raw_noise.grad is not None


def test_scipy(model: nn.Module, x: Tensor, jacobian: Tensor, fisher: Tensor) -> None:
    operator = to_scipy(fisher_operator(model, x))
    top = sla.eigsh(operator, k=3, return_eigenvectors=False)
    assert np.allclose(np.sort(top), torch.linalg.eigvalsh(fisher)[-3:].numpy(), rtol=1e-8)
    b = np.ones(len(fisher))
    damped = operator + 0.1 * sla.aslinearoperator(np.eye(len(fisher)))
    solution, status = sla.cg(damped, b, rtol=1e-10)
    assert status == 0
    assert np.allclose((fisher.numpy() + 0.1 * np.eye(len(fisher))) @ solution, b, atol=1e-8)
    rectangle = to_scipy(jacobian_operator(model, x))
    assert rectangle.shape == jacobian.shape
    assert np.allclose(rectangle @ np.eye(jacobian.shape[1]), jacobian.numpy())
    assert np.allclose(rectangle.T @ np.ones(N * C), jacobian.numpy().sum(0))
    values = sla.svds(rectangle, k=2, return_singular_vectors=False, rng=np.random.default_rng(0))
    assert np.allclose(np.sort(values), torch.linalg.svdvals(jacobian)[:2].flip(0).numpy(), rtol=1e-8)


def test_the_kernel_and_the_gauss_newton_matrix_share_eigenvalues(model: nn.Module, x: Tensor) -> None:
    kernel = torch.linalg.eigvalsh(tangent_kernel_operator(model, x).to_dense())
    gauss_newton = torch.linalg.eigvalsh(N * fisher_operator(model, x, "gaussian").to_dense())
    shared = min(len(kernel), len(gauss_newton))
    assert torch.allclose(kernel[-shared:], gauss_newton[-shared:], atol=1e-10)


def test_options_reach_the_products(model: nn.Module, x: Tensor, fisher: Tensor) -> None:
    by_difference = fisher_operator(model, x, method="difference", sides=2)
    assert close(by_difference.to_dense(), fisher, 1e-7)
    with pytest.raises(OptionError, match="method is one of"):
        jacobian_operator(model, x, method="exact")
