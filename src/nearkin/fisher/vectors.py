"""Vectors of weights: by name, or flat.

Notation: P weights in all, K vectors side by side.
"""

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.core.types import Params

SIDE_BY_SIDE = 8  # columns of a matrix in one product; more gain little and hold more memory


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
    parts = vector.split(sizes)
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


def require_fit(vector: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str = "the vector") -> None:
    """Raise in one line unless a vector has the names, shapes, dtype and device of the weights.

    >>> require_fit({"a": torch.zeros(3)}, {"a": torch.zeros(2)})
    Traceback (most recent call last):
    nearkin.core.errors.MismatchError: the vector does not fit the weights: a has shape (3,), expected (2,); give one \
tensor a weight, named and shaped as in model.named_parameters()
    """
    faults = [f"{name} is missing" for name in like if name not in vector]
    faults += [f"{name} is unexpected" for name in vector if name not in like]
    for name, value in vector.items():
        if name in like:
            faults += _differences(name, value, like[name])
    more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
    require(
        not faults,
        f"{what} does not fit the weights: {', '.join(faults[:3])}{more}; give one tensor a weight, named and shaped "
        f"as in model.named_parameters()",
        MismatchError,
    )


def _differences(name: str, value: Tensor, like: Tensor) -> list[str]:
    if value.shape != like.shape:
        return [f"{name} has shape {tuple(value.shape)}, expected {tuple(like.shape)}"]
    pairs = ((value.dtype, like.dtype), (value.device, like.device))
    return [f"{name} is {got}, expected {wanted}" for got, wanted in pairs if got != wanted]


def columnwise(product: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor:
    """A product of vectors `[P]` to `[Q]`, applied to the columns of `[P, K]` one after the other: `[Q, K]`.

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
    columns = matrix.T.contiguous()  # strided columns would make strided weights, which multiply slowly
    return torch.stack([product(column) for column in columns]).T


def vmapped_columns(product: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor | None:
    """The same for some columns at once; None where an operation of the product cannot be batched.

    >>> vmapped_columns(lambda v: 2 * v, torch.tensor([[1.0, 2.0]]))
    tensor([[2., 4.]])
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            found: Tensor = torch.vmap(product, in_dims=1, out_dims=1, chunk_size=SIDE_BY_SIDE)(matrix)
            return found
    except RuntimeError:
        return None
