r"""Hyper-parameters of a linearized network as a Gaussian process, and options for learning them.

$$y ∼ \mathcal N\Big(μ(x),\; s \sum_l s_l K_l + σ^2 I_n\Big)$$

with the kernels $K_l$ of the layers. This is the prior $θ' ∼ \mathcal N(0, s\,s_l)$ on the weight steps of each layer;
the likelihood is over the n observations.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from nearkin.core.errors import OptionError, require

Mean: TypeAlias = Literal["constant", "network", "zero"]
"""The prior mean of the targets: a fitted constant, the network's own outputs, or zero."""

MEANS: tuple[str, ...] = get_args(Mean)
FLOOR = 1e-3  # smallest noise, as a fraction of the prior variance
LIMIT = 2000  # largest number of rows of a kernel whose eigenvalues are computed


@dataclass(frozen=True, kw_only=True)
class Hyper:
    """Noise, scales and mean, which are learned by marginal likelihood.

    Attributes:
        noise: σ², the variance of an observation about the function.
        scale: s, of the whole kernel.
        layers: $s_l$ by layer (default: 1).
        mean: `constant` (fitted in closed form), `network` or `zero`.

    >>> Hyper(noise=-1.0)
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: noise is a finite number >= 0, got -1.0
    """

    noise: float = 0.01
    scale: float = 1.0
    layers: Mapping[str, float] = field(default_factory=dict)
    mean: Mean = "constant"

    def __post_init__(self) -> None:
        values = {"noise": self.noise, "scale": self.scale, **{f"layers[{n!r}]": v for n, v in self.layers.items()}}
        for name, value in values.items():
            require(math.isfinite(value) and value >= 0, f"{name} is a finite number >= 0, got {value}")
        require(self.mean in MEANS, f"mean is one of {', '.join(MEANS)}, got {self.mean!r}")

    def require_layers(self, known: Collection[str]) -> None:
        """Refuse scales of layers that are not linearized."""
        odd = sorted(set(self.layers) - set(known))
        if odd:
            raise OptionError(f"there is no layer {odd[0]!r} to scale; the linearized layers are {', '.join(known)}")

    def facts(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {"noise": self.noise, "scale": self.scale, "layers": dict(self.layers), "mean": self.mean}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Hyper":
        """The inverse of `facts`.

        >>> Hyper.of(Hyper(noise=0.5, layers={"head": 2.0}).facts())
        Hyper(noise=0.5, scale=1.0, layers={'head': 2.0}, mean='constant')
        """
        return cls(**facts)


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How hyper-parameters are learned from targets.

    Attributes:
        mean: `constant`, `network` or `zero`; `auto` takes the more probable of the first two.
        layers: whether every layer has its own scale.
        extra: whether to learn noise in addition to known noise; without known noise it is always learned.
        floor: the smallest noise, as a fraction of the function's prior variance. With few points the evidence may
            prefer a function through all of them, whose intervals would be far too narrow.
        limit: largest number of rows of a kernel; of more points some are drawn.
        seed: of the drawn points and of the random starts.

    >>> Learning(limit=0)
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: limit is 1 row or more, got 0
    """

    mean: Mean | Literal["auto"] = "auto"
    layers: bool = False
    extra: bool = False
    floor: float = FLOOR
    limit: int = LIMIT
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.mean in (*MEANS, "auto"), f"mean is auto, {', '.join(MEANS)}, got {self.mean!r}")
        require(1e-8 <= self.floor < 1, f"floor is a fraction of the prior variance from 1e-8 to 1, got {self.floor}")
        require(self.limit >= 1, f"limit is 1 row or more, got {self.limit}")
        require(isinstance(self.seed, int) and self.seed >= 0, f"the seed is {self.seed!r}, expected an integer >= 0")

    @property
    def uses_kernels(self) -> bool:
        """Whether more than noise and one scale is learned, which needs whole kernels and not only spectra."""
        return self.layers or self.extra


PLAIN = Learning()
