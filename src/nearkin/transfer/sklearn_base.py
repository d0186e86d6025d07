"""Base class of the scikit-learn estimators of closed-form transfer."""

from collections.abc import Mapping
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
from nearkin.nets.adopted import AdoptedNetwork
from nearkin.nets.adopted_spec import AdoptedSpec
from nearkin.nets.heads import SCALE_SAMPLES
from nearkin.nets.weight_subset import Weights
from nearkin.tasks.named_inputs import described_fields, fields_of, pack_inputs
from nearkin.transfer.linearized import Linearized, linearize, transfer_source

Array: TypeAlias = NDArray[Any]
SEEDS = 2**31 - 1


class InputsError(MismatchError, ValueError):
    """Inputs that the network cannot read; a ValueError, as scikit-learn requires."""


@dataclass(eq=False, repr=False)
class TransferEstimator(BaseEstimator):  # type: ignore[misc]
    """A trained network that reads arrays unchanged: they must be scaled as its training data.

    Whole numbers `[N, L]` are tokens if the network has an embedding; all other arrays become float64. A dictionary of
    named inputs `[N, ...]` is packed into one row for each sample, and passed to the network by name.
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
        model = self._network()
        like = next((weight for weight in model.parameters()), x)
        some = x[:SCALE_SAMPLES]
        some = some.to(like) if x.is_floating_point() else some.to(like.device)
        try:
            if self.outputs == "sum":
                model = transfer_source(model, some, num_targets, self.weights, seed)
            linearized = linearize(model, self.weights, self.outputs, x=some[:1], dtype=self.KERNEL_DTYPE, seed=seed)
            linearized.num_outputs(x)
        except MismatchError as error:
            raise InputsError(str(error)) from error
        return linearized

    def _network(self) -> nn.Module:
        """The network; if it was fitted on named inputs, one that takes packed rows."""
        if not self._fields or isinstance(self.model, AdoptedNetwork):
            return self.model
        spec = AdoptedSpec(label=type(self.model).__name__, layers={}, fields=self._fields)
        return AdoptedNetwork(self.model, spec, 1)

    def _inputs(self, X: Any) -> Tensor:
        """New inputs of a fitted estimator."""
        check_is_fitted(self)
        X, tokens = self._packed(X, reset=False)
        return as_tensor(validate_data(self, X, allow_nd=True, reset=False, dtype=np.float64), tokens)

    def _packed(self, X: Any, reset: bool) -> tuple[Any, bool]:
        """Inputs as one array, named ones packed, and whether they are numbers of tokens.

        Tokens are whole numbers `[N, L]` of a network with an embedding, and named inputs that are all whole numbers.
        """
        own, tensors = fields_of(X, type(self).__name__) if isinstance(X, Mapping) else ((), {})
        if reset:
            self._fields = self.model.spec.fields if isinstance(self.model, AdoptedNetwork) else own
        if own:
            require(
                bool(self._fields),
                f"got {described_fields(own)}, the network reads one array; give an array",
                InputsError,
            )
            try:
                rows = pack_inputs(tensors, self._fields)
            except MismatchError as error:
                raise InputsError(str(error)) from error
            return rows.numpy(), not rows.is_floating_point()
        whole = np.issubdtype(np.asarray(X).dtype, np.integer) and np.ndim(X) == 2
        modules = self.model.modules() if isinstance(self.model, nn.Module) else ()
        return X, bool(whole) and any(isinstance(module, nn.Embedding) for module in modules)

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
