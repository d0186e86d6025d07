"""Classes: how labels become a posterior of class scores, and scores probabilities."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from nearkin.core.errors import require
from nearkin.transfer.labels.probabilities import How, checked_how

Method: TypeAlias = Literal["dirichlet", "laplace"]
"""How classes become Gaussian: targets by the Dirichlet transform, or the posterior by Laplace's approximation."""

METHODS: tuple[Method, ...] = get_args(Method)

Start: TypeAlias = Literal["zero", "network"]
"""The scores before any label is seen: nothing, or the source's own outputs."""

STARTS: tuple[Start, ...] = get_args(Start)


@dataclass(frozen=True, kw_only=True)
class Classes:
    """What of closed-form transfer is particular to classes; what is None is chosen by the training labels.

    Attributes:
        method: `dirichlet` (targets by the Dirichlet transform, exact) or `laplace` (softmax, approximate).
        alpha: α_ε of the Dirichlet transform; chosen by leave-one-out.
        scale: of the kernel; the same.
        heat: temperature of the probabilities; fitted to left-out labels.
        start: of `laplace`: scores begin at `zero`, or at the `network`'s own outputs, which must be as many as
            classes.
        how: probabilities are the softmax of the `mean` scores, or the mean softmax of `sampled` ones.

    >>> Classes(scale=0.0)
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: scale is a number above 0, got 0.0
    """

    method: Method = "dirichlet"
    alpha: float | None = None
    scale: float | None = None
    heat: float | None = None
    start: Start = "zero"
    how: How = "mean"

    def __post_init__(self) -> None:
        require(self.method in METHODS, f"method is {' or '.join(METHODS)}, got {self.method!r}")
        require(self.start in STARTS, f"start is {' or '.join(STARTS)}, got {self.start!r}")
        checked_how(self.how)
        for name in ("alpha", "scale", "heat"):
            value = getattr(self, name)
            require(value is None or (math.isfinite(value) and value > 0), f"{name} is a number above 0, got {value}")
        dirichlet = self.method == "dirichlet"
        require(
            dirichlet or self.alpha is None,
            f"alpha is of the Dirichlet transform, got alpha={self.alpha} with method='laplace'; leave it out",
        )
        require(
            not dirichlet or self.start == "zero",
            "scores begin at the network's outputs with method='laplace' only; use it, or start='zero'",
        )


DIRICHLET, LAPLACE = Classes(), Classes(method="laplace")
