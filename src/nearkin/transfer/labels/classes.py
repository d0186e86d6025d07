"""Options of the posterior of class scores and of class probabilities."""

import math
import warnings
from dataclasses import InitVar, dataclass
from typing import Literal, TypeAlias, get_args

from nearkin.core.errors import require
from nearkin.transfer.labels.probabilities import How, require_how

Method: TypeAlias = Literal["dirichlet", "laplace"]
"""The Gaussian approximation: of the targets by the Dirichlet transform, or of the posterior by Laplace's method."""

METHODS: tuple[Method, ...] = get_args(Method)

Start: TypeAlias = Literal["zero", "network"]
"""The prior mean of the scores: zero, or the outputs of the source network."""

STARTS: tuple[Start, ...] = get_args(Start)


@dataclass(frozen=True, kw_only=True)
class Classes:
    """Options of closed-form transfer to classes; those that are None are chosen on the training labels.

    Attributes:
        method: `dirichlet` (targets by the Dirichlet transform, exact) or `laplace` (softmax, approximate).
        alpha: α_ε of the Dirichlet transform; chosen by leave-one-out.
        scale: of the kernel; chosen by leave-one-out.
        temperature: of the probabilities; fitted to left-out labels.
        start: prior mean of the scores: `zero`, or for `laplace` also `network`, the outputs of the source network, of
            which there must be as many as classes.
        how: probabilities are the softmax of the `mean` scores, or the mean softmax of `sampled` scores.
        heat: deprecated name of `temperature`.

    >>> Classes(scale=0.0)
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: scale is a number above 0, got 0.0
    """

    method: Method = "dirichlet"
    alpha: float | None = None
    scale: float | None = None
    temperature: float | None = None
    start: Start = "zero"
    how: How = "mean"
    heat: InitVar[float | None] = None

    def __post_init__(self, heat: float | None) -> None:
        if heat is not None:
            warnings.warn("heat is now temperature", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "temperature", heat)
        require(self.method in METHODS, f"method is {' or '.join(METHODS)}, got {self.method!r}")
        require(self.start in STARTS, f"start is {' or '.join(STARTS)}, got {self.start!r}")
        require_how(self.how)
        for name in ("alpha", "scale", "temperature"):
            value = getattr(self, name)
            require(value is None or (math.isfinite(value) and value > 0), f"{name} is a number above 0, got {value}")
        dirichlet = self.method == "dirichlet"
        require(
            dirichlet or self.alpha is None,
            f"alpha is of the Dirichlet transform, got alpha={self.alpha} with method='laplace'; leave it out",
        )
        require(
            not dirichlet or self.start == "zero",
            "got start='network', which works with method='laplace' only; use that method, or start='zero'",
        )


DIRICHLET, LAPLACE = Classes(), Classes(method="laplace")
