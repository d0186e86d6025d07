r"""Hyper-parameters of a linearized network as a Gaussian process.

$$y ∼ \mathcal N\Big(μ(x),\; s \sum_l s_l K_l + σ^2 I_n\Big)$$

with the kernels $K_l$ of the layers, which is the prior $θ' ∼ \mathcal N(0, s\,s_l)$ on the steps of each layer's
weights; the likelihood is over the n observations.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from nearkin.core.errors import OptionError, require

Mean: TypeAlias = Literal["constant", "network", "zero"]
"""The mean before any target is seen: a constant that is fitted, the network's own outputs, or nothing."""

MEANS: tuple[str, ...] = get_args(Mean)


@dataclass(frozen=True, kw_only=True)
class Hyper:
    """What the evidence decides.

    Attributes:
        noise: σ², the variance of an observation about the function.
        scale: s, of the whole kernel.
        layers: $s_l$ by layer; 1 for those not named.
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
        """Refuse scales of layers that are not among the linearized ones."""
        odd = sorted(set(self.layers) - set(known))
        if odd:
            raise OptionError(f"there is no layer {odd[0]!r} to scale; the linearized ones are {', '.join(known)}")

    def facts(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"noise": self.noise, "scale": self.scale, "layers": dict(self.layers), "mean": self.mean}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Hyper":
        """The inverse of `facts`.

        >>> Hyper.of(Hyper(noise=0.5, layers={"head": 2.0}).facts())
        Hyper(noise=0.5, scale=1.0, layers={'head': 2.0}, mean='constant')
        """
        return cls(**facts)
