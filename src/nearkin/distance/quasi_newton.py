"""Deterministic minimisation of a differentiable function by L-BFGS."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def minimise(objective: Callable[[], Tensor], variables: Sequence[Tensor], iterations: int) -> None:
    """Minimise a function of tensors that require gradients, in place, by L-BFGS with a strong Wolfe line search.

    >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    >>> minimise(lambda: (w - torch.tensor([1.0, 2.0])).square().sum(), [w], 20)
    >>> [round(value, 6) for value in w.tolist()]
    [1.0, 2.0]
    """
    optimiser = torch.optim.LBFGS(
        variables, max_iter=iterations, history_size=50, line_search_fn="strong_wolfe",
        tolerance_grad=1e-10, tolerance_change=1e-14,
    )  # fmt: skip

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = objective()
        value.backward()
        return value

    optimiser.step(closure)
