"""Base class of the scikit-learn estimators of closed-form transfer."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, TypeAlias

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
from nearkin.nets.heads import SCALE_SAMPLES
from nearkin.nets.weight_subset import Weights
from nearkin.transfer.linearized import Linearized, linearize, transfer_source

Array: TypeAlias = NDArray[Any]
SEEDS = 2**31 - 1


class InputsError(MismatchError, ValueError):
    """Inputs that the network cannot read; a ValueError, as scikit-learn requires."""


@dataclass(eq=False, repr=False)
class TransferEstimator(BaseEstimator):  # type: ignore[misc]
    """A trained network that reads arrays unchanged: they must be scaled as its training data.

    Whole numbers `[N, L]` are tokens if the network has an embedding; all other arrays become float64.
    """

    model: nn.Module
    _: KW_ONLY
    weights: Weights = "all"
    outputs: Outputs = "sum"
    random_state: int | np.random.RandomState | None = 0
    listen: Listener | None = None

    KERNEL_DTYPE: ClassVar[torch.dtype | None] = torch.float64  # None keeps the dtype of the network

    def _linearize(self, x: Tensor, num_targets: int, seed: int) -> Linearized:
        require(
            isinstance(self.model, nn.Module),
            f"model is a trained network, an nn.Module, got a {type(self.model).__name__}",
        )
        like = next((weight for weight in self.model.parameters()), x)
        some = x[:SCALE_SAMPLES]
        some = some.to(like) if x.is_floating_point() else some.to(like.device)
        try:
            model = self.model
            if self.outputs == "sum":
                model = transfer_source(model, some, num_targets, self.weights, seed)
            linearized = linearize(model, self.weights, self.outputs, x=some[:1], dtype=self.KERNEL_DTYPE, seed=seed)
            linearized.num_outputs(x)
        except MismatchError as error:
            raise InputsError(str(error)) from error
        return linearized

    def _inputs(self, x: Any) -> Tensor:
        """New inputs of a fitted estimator."""
        check_is_fitted(self)
        tokens = self._are_tokens(x)
        return as_tensor(validate_data(self, x, allow_nd=True, reset=False, dtype=np.float64), tokens)

    def _are_tokens(self, x: Any) -> bool:
        """Whether inputs are numbers of tokens: whole numbers `[N, L]`, and the network has an embedding."""
        whole = np.issubdtype(np.asarray(x).dtype, np.integer) and np.ndim(x) == 2
        modules = self.model.modules() if isinstance(self.model, nn.Module) else ()
        return bool(whole) and any(isinstance(module, nn.Embedding) for module in modules)

    def _seed(self) -> int:
        """`random_state` if it is an integer; otherwise a seed drawn from it."""
        state = self.random_state
        return int(state) if isinstance(state, int | np.integer) else int(check_random_state(state).randint(SEEDS))

    def _generator(self) -> Generator:
        return Generator().manual_seed(derived_seed(self._seed(), "sample"))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def as_tensor(values: Array, tokens: bool = False) -> Tensor:
    """An array as a float64 tensor, or as an int64 tensor of tokens."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64 if tokens else np.float64))
