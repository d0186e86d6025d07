"""The tangent kernel of a linearized network as a GPyTorch kernel (extra `gpytorch`)."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, optional, require
from nearkin.transfer.linearized import Linearized

if TYPE_CHECKING:
    from gpytorch.kernels import Kernel
else:
    Kernel = optional("gpytorch.kernels", "gpytorch", "a GPyTorch kernel").Kernel


class TangentKernel(Kernel):  # type: ignore[misc]
    """`Linearized.kernel` for GPyTorch's models: combine it with `ScaleKernel`, sums, products and any likelihood.

    The network's weights are constants: there are no gradients. The kernel of the last inputs is cached, so fitting
    scale and noise needs no further passes of the network.

    Args:
        linearized: the network, from `nk.transfer.linearize`; `outputs="all"` gives N·C rows in the order that
            `gpytorch.distributions.MultitaskMultivariateNormal` expects.
        input_shape: shape of one input of the network (default: flat). GPyTorch's inputs are rows `[N, D]`.

    >>> from nearkin.transfer.linearized import linearize
    >>> kernel = TangentKernel(linearize(torch.nn.Linear(2, 1), outputs=0))
    >>> kernel(torch.tensor([[1.0, 0.0], [2.0, 3.0]])).to_dense()  # x xᵀ + 1
    tensor([[ 2.,  3.],
            [ 3., 14.]])
    """

    has_lengthscale = False

    def __init__(self, linearized: Linearized, input_shape: tuple[int, ...] = (-1,)) -> None:
        super().__init__()
        self.linearized, self.input_shape = linearized, input_shape
        self._last: tuple[Tensor, Tensor] | None = None

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """`[N, M]` of rows `[N, D]` and `[M, D]`, or the diagonal `[N]`."""
        require(
            x1.dim() == x2.dim() == 2,
            f"inputs of a tangent kernel are rows [N, D], got {list(x1.shape)} and {list(x2.shape)}; flatten images "
            f"and give input_shape",
            MismatchError,
        )
        same = x1.shape == x2.shape and torch.equal(x1, x2)
        if same and self._last is not None and torch.equal(self._last[0], x1):
            return self._last[1].diagonal() if diag else self._last[1]
        left, right = (x.detach().reshape(len(x), *self.input_shape) for x in (x1, x2))
        if diag and same:
            return self.linearized.diagonal(left).to(x1)
        kernel = self.linearized.kernel(left, None if same else right).to(x1)
        if same:
            self._last = x1.detach().clone(), kernel
        return kernel.diagonal() if diag else kernel

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        """Rows of the kernel for one input: C for `outputs="all"`."""
        if self.linearized.outputs != "all":
            return 1
        return self.linearized.num_outputs(x1[:1].reshape(1, *self.input_shape))
