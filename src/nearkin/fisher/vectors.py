"""Vectors of weights by name or flat, and products with the columns of a matrix.

Notation: P weights in total, K vectors as columns.
"""

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.core.types import Params
from nearkin.nets.functional import differences

VMAP_COLUMNS = 8  # columns of a matrix in one product; more columns gain little and need more memory


def flat(params: Mapping[str, Tensor]) -> Tensor:
    """All values in one vector `[P]`, in the order of the names.

    >>> flat({"a": torch.zeros(1, 2), "b": torch.ones(1)})
    tensor([0., 0., 1.])
    """
    return torch.cat([value.reshape(-1) for value in params.values()])


def unflat(vector: Tensor, like: Mapping[str, Tensor]) -> Params:
    """The inverse of `flat`: views of a vector `[P]` in the shapes of `like`.

    >>> unflat(torch.arange(3.0), {"a": torch.zeros(1, 2), "b": torch.ones(1)})
    {'a': tensor([[0., 1.]]), 'b': tensor([2.])}
    """
    sizes = [value.numel() for value in like.values()]
    require(
        vector.shape == (sum(sizes),),
        f"a flat vector of these weights has shape ({sum(sizes)},), got {tuple(vector.shape)}; see flat",
        MismatchError,
    )
    pieces = vector.split(sizes)
    return {name: piece.view(value.shape) for (name, value), piece in zip(like.items(), pieces, strict=True)}


def require_fit(vector: Mapping[str, Tensor], like: Mapping[str, Tensor], subject: str = "the vector") -> None:
    """Raise an error unless a vector has the names, shapes, dtypes and devices of the weights.

    >>> require_fit({"a": torch.zeros(3)}, {"a": torch.zeros(2)})
    Traceback (most recent call last):
    nearkin.core.errors.MismatchError: the vector does not fit the weights: a has shape (3,), expected (2,); give one \
tensor per weight, with its name and shape in model.named_parameters()
    """
    mismatches = differences(vector, like, types=True)
    require(
        not mismatches,
        f"{subject} does not fit the weights: {mismatches}; give one tensor per weight, with its name and shape in "
        f"model.named_parameters()",
        MismatchError,
    )


def columnwise(product: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor:
    """Apply a product, `[P]` to `[Q]`, to the columns of `[P, K]` one after the other: `[Q, K]`.

    >>> columnwise(lambda v: 2 * v, torch.tensor([[1.0, 2.0]]))
    tensor([[2., 4.]])
    """
    if matrix.dim() == 1:
        return product(matrix.contiguous())
    require(
        matrix.dim() == 2 and matrix.shape[1] > 0,
        f"a product takes a vector [P] or a matrix [P, K], got shape {tuple(matrix.shape)}; flatten it",
        MismatchError,
    )
    columns = matrix.T.contiguous()  # products with strided weights are slow
    return torch.stack([product(column) for column in columns]).T


def vmapped_columns(product: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor | None:
    """The same with several columns at once; None if an operation of the product cannot be batched.

    >>> vmapped_columns(lambda v: 2 * v, torch.tensor([[1.0, 2.0]]))
    tensor([[2., 4.]])
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            columns: Tensor = torch.vmap(product, in_dims=1, out_dims=1, chunk_size=VMAP_COLUMNS)(matrix)
            return columns
    except RuntimeError:
        return None
