"""LinearizedRegressor: values by closed-form transfer, with scikit-learn's interface."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from nearkin.core.errors import require
from nearkin.core.events import finish
from nearkin.transfer.gaussian_process import Space, gaussian
from nearkin.transfer.hyper import Hyper, Learning, Mean
from nearkin.transfer.marginal_likelihood import learn
from nearkin.transfer.posterior import Posterior
from nearkin.transfer.sklearn_base import Array, TransferEstimator, as_tensor


@dataclass(eq=False, repr=False)
class LinearizedRegressor(RegressorMixin, TransferEstimator):  # type: ignore[misc]
    """Values by closed-form transfer: a trained network, linearized, as a Gaussian process.

    Args:
        model: a trained network; it is copied, not changed.
        weights: as in `LinearizedClassifier`, like `random_state` and `listen`.
        outputs: `sum` for one kernel of all the network's outputs, `all`, or the index of one; see `linearize`.
        noise: variance of an observation; learned by marginal likelihood if None.
        scale: of the kernel; given together with `noise`, or learned if None.
        hyper: noise, scales and mean in one value, such as `Family.hyper`; then nothing is learned.
        mean: `constant`, `network`, `zero`, or `auto`, the more probable of the first two.
        layers: whether every layer has its own learned scale.
        space: `auto`, `function`, `weight`, `large` or `large-weight`; see `gaussian`.
        random_state: the seed.
        listen: called with every event.

    Attributes:
        posterior_: the Gaussian process given the data.
        hyper_: its noise, scales and mean.
        n_features_in_: length of the inputs' second axis.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    >>> x = np.linspace(-1, 1, 30)[:, None]
    >>> regressor = LinearizedRegressor(net).fit(x, np.sin(2 * x[:, 0]))
    >>> mean, std = regressor.predict(x[:5], return_std=True)
    >>> mean.shape, std.shape, regressor.score(x, np.sin(2 * x[:, 0])) > 0.9
    ((5,), (5,), True)
    """

    _: KW_ONLY
    noise: float | None = None
    scale: float | None = None
    hyper: Hyper | None = None
    mean: Mean | Literal["auto"] = "auto"
    layers: bool = False
    space: Space = "auto"

    def fit(self, X: Any, y: Any, noise: Any = None) -> "LinearizedRegressor":
        """Learn noise and scale, and condition on targets `[N]` or `[N, K]`.

        Args:
            X: inputs.
            y: targets.
            noise: known variances of the observations `[N]` or `[N, K]`; the learned noise is then 0.
        """
        x, targets = self._points(X, y, reset=True)
        known = None if noise is None else as_tensor(noise)
        seed, hyper = self._seed(), self._fixed_hyper()
        linearized = self._linearize(x, targets[0].numel(), seed)
        if hyper is None:
            how = Learning(mean=self.mean, layers=self.layers, seed=seed)
            hyper = finish(learn.work(linearized, x, targets, noise=known, how=how), self.listen)
        work = gaussian.work(linearized, x, targets, hyper, known, space=self.space, seed=seed)
        self.posterior_: Posterior = finish(work, self.listen)
        return self

    def partial_fit(self, X: Any, y: Any, noise: Any = None) -> "LinearizedRegressor":
        """Add points to the fit; noise and scale stay as the first call learned them."""
        if not hasattr(self, "posterior_"):
            return self.fit(X, y, noise)
        x, targets = self._points(X, y, reset=False)
        known = None if noise is None else as_tensor(noise)
        self.posterior_ = finish(self.posterior_.extended.work(x, targets, known), self.listen)
        return self

    @property
    def hyper_(self) -> Hyper:
        """Noise, scales and mean."""
        check_is_fitted(self)
        return self.posterior_.hyper

    def predict(self, X: Any, return_std: bool = False, noise: Any = None) -> Array | tuple[Array, Array]:
        """Means `[M]` or `[M, K]`; with `return_std` also the standard deviations of observations, with their noise.

        `noise` are known variances of these observations, added to the learned noise. Without them, if the training
        noise was known, the deviations are those of the function.
        """
        x = self._inputs(X)
        known = None if noise is None else as_tensor(noise)
        mean, variance = map(self._shaped, self.posterior_.predict(x, True, known))
        return (mean, np.sqrt(variance)) if return_std else mean

    def sample(self, X: Any, count: int = 1) -> Array:
        """Functions drawn from the posterior, `[count, M]` or `[count, M, K]`."""
        x = self._inputs(X)
        return self._shaped(self.posterior_.sample(x, count, self._generator()))

    def _shaped(self, values: Tensor) -> Array:
        return (values[..., 0] if self._flat else values).numpy()

    def _fixed_hyper(self) -> Hyper | None:
        if self.hyper is not None:
            require(isinstance(self.hyper, Hyper), f"hyper is a Hyper, got a {type(self.hyper).__name__}")
            require(
                self.noise is None and self.scale is None and self.mean == "auto" and not self.layers,
                "got hyper and one of noise, scale, mean and layers; give hyper or the others, not both",
            )
            return self.hyper
        if self.noise is None or self.scale is None:
            require(
                self.noise is None and self.scale is None,
                f"noise and scale are learned together or given together, got noise={self.noise}, scale={self.scale}",
            )
            return None
        require(
            not self.layers,
            "got layers=True with noise and scale, but scales of layers are learned with both; leave both out",
        )
        return Hyper(noise=self.noise, scale=self.scale, mean="constant" if self.mean == "auto" else self.mean)

    def _points(self, X: Any, y: Any, reset: bool) -> tuple[Tensor, Tensor]:
        X, tokens = self._packed(X, reset)
        X, y = validate_data(
            self, X, y, allow_nd=True, multi_output=True, y_numeric=True, reset=reset, dtype=np.float64
        )
        if reset:
            self._flat = np.ndim(y) == 1
        return as_tensor(X, tokens), as_tensor(y)
