"""Strength α of the pull by epoch: none while the first models warm up, then constant or falling."""

import math
from dataclasses import dataclass

from nearkin.core.errors import require

DECAYS = ("constant", "linear", "cosine", "exponential")


@dataclass(frozen=True)
class StrengthSchedule:
    r"""α by epoch.

    With t in [0, 1], the share of `epochs` that have passed since the warm-up, it is
    $\alpha_t = \alpha \, (1 - (1 - r)\,t)$ (linear), $\alpha\,(r + (1 - r)(1 + \cos \pi t)/2)$ (cosine),
    $\alpha\, r^t$ (exponential), where $r$ is `last`, the share of α that is left at the end.

    Attributes:
        alpha: strength after the warm-up.
        warm_up: epochs without pull and without anchors at the start of a search; the weights are still random then.
            The paper uses 5 for recurrent and 3 for convolutional cells.
        decay: `constant`, `linear`, `cosine` or `exponential`.
        epochs: number of epochs after the warm-up over which α falls; afterwards it stays at its last value.
        last: share of α at the end, for `linear`, `cosine` and `exponential`.

    >>> falling = StrengthSchedule(10.0, warm_up=2, decay="linear", epochs=4, last=0.0)
    >>> [falling.at(epoch) for epoch in (0, 1, 2, 4, 6, 9)]
    [0.0, 0.0, 10.0, 5.0, 0.0, 0.0]
    """

    alpha: float = 10.0
    warm_up: int = 0
    decay: str = "constant"
    epochs: int = 0
    last: float = 0.1

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.alpha) and self.alpha >= 0,
            f"alpha is {self.alpha}, expected a finite number >= 0; the default is 10",
        )
        require(self.warm_up >= 0, f"warm_up is {self.warm_up}, expected a number of epochs >= 0")
        require(self.decay in DECAYS, f"decay of alpha must be one of {', '.join(DECAYS)}, got {self.decay!r}")
        require(
            self.decay == "constant" or self.epochs >= 1,
            f"alpha falls ({self.decay}) over {self.epochs} epochs, expected 1 or more; set epochs",
        )
        positive = self.last > 0 or (self.decay != "exponential" and self.last == 0)
        require(positive and self.last <= 1, f"last is {self.last}, expected a share of alpha in (0, 1]")

    def at(self, epoch: int) -> float:
        """α in an epoch, counted from 0."""
        if epoch < self.warm_up:
            return 0.0
        if self.decay == "constant":
            return self.alpha
        t, last = min(1.0, (epoch - self.warm_up) / self.epochs), self.last
        if self.decay == "linear":
            return self.alpha * (1 - (1 - last) * t)
        if self.decay == "cosine":
            return self.alpha * (last + (1 - last) * (1 + math.cos(math.pi * t)) / 2)
        return float(self.alpha * last**t)
