"""What the scikit-learn estimators of closed-form transfer share."""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Generator, Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Listener
from nearkin.core.rng import derived_seed
from nearkin.fisher.tangent import Outputs
from nearkin.transfer.linearized import Linearized, linearize
from nearkin.transfer.subset import Weights

Array: TypeAlias = NDArray[Any]
SEEDS = 2**31 - 1


class InputsError(MismatchError, ValueError):
    """Inputs that the network cannot read; a ValueError, as scikit-learn wants it."""


class Estimator(BaseEstimator):  # type: ignore[misc]
    """A trained network and arrays that it reads as they are: scaled as those it was trained on."""

    model: nn.Module
    weights: Weights
    outputs: Outputs
    random_state: int | np.random.RandomState | None
    listen: Listener | None
    _dtype: torch.dtype | None = torch.float64  # of kernels; None leaves the network's own

    def _linearize(self, x: Tensor) -> Linearized:
        require(
            isinstance(self.model, nn.Module),
            f"model is a trained network, an nn.Module, got a {type(self.model).__name__}",
        )
        like = next((weight for weight in self.model.parameters()), x)
        try:
            flat = linearize(self.model, self.weights, self.outputs, x=x[:1].to(like), dtype=self._dtype)
            flat.num_outputs(x)
        except MismatchError as unread:
            raise InputsError(str(unread)) from unread
        return flat

    def _inputs(self, x: Any) -> Tensor:
        """New inputs, once it is fitted."""
        check_is_fitted(self)
        return as_tensor(validate_data(self, x, allow_nd=True, reset=False, dtype=np.float64))

    def _seed(self) -> int:
        """A seed as it is; anything else that scikit-learn takes draws one."""
        given = self.random_state
        return int(given) if isinstance(given, int | np.integer) else int(check_random_state(given).randint(SEEDS))

    def _generator(self) -> Generator:
        return Generator().manual_seed(derived_seed(self._seed(), "sample"))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def as_tensor(values: Array) -> Tensor:
    """Numbers in float64."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
