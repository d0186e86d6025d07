"""How a supernet is searched by gradients."""

import math
from dataclasses import dataclass, field

from nearkin.core.errors import require
from nearkin.search.methods.darts.guards import Guards
from nearkin.search.supernet.reference import Frame


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    """How a supernet is searched, checked at birth. The defaults are those of DARTS.

    Attributes:
        frame: channels, number of cells, share of channels that operations see.
        edges: whether edges have weights of their own, β (PC-DARTS).
        epochs: passes over the part of the training data that the weights learn from.
        warmup: epochs at the start in which the architecture stays as it is.
        batch_size: samples of a step, at most.
        order: 1 takes the weights as they are, 2 looks one training step ahead.
        exact: second order by exact second derivatives; False for the classical finite difference.
        learning_rate: of the weights, at the start; a cosine brings it to `last_rate`.
        last_rate: at the end.
        momentum: of the weights' SGD.
        weight_decay: of the weights.
        clip: largest norm of the weights' gradient; 0 for no limit.
        architecture_rate: of Adam on α and β.
        architecture_decay: pull of α and β to zero.
        validation: share of the training data that the architecture learns from.
        guards: against collapse.
    """

    frame: Frame = field(default_factory=Frame)
    edges: bool = False
    epochs: int = 50
    warmup: int = 0
    batch_size: int = 64
    order: int = 1
    exact: bool = True
    learning_rate: float = 0.025
    last_rate: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 3e-4
    clip: float = 5.0
    architecture_rate: float = 3e-4
    architecture_decay: float = 1e-3
    validation: float = 0.5
    guards: Guards = field(default_factory=Guards)

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"epochs must be 1 or more, got {self.epochs}")
        require(
            0 <= self.warmup < self.epochs,
            f"warm-up takes fewer epochs than the search, got {self.warmup} of {self.epochs}",
        )
        require(self.order in (1, 2), f"the architecture step is of order 1 or 2, got {self.order}")
        require(self.batch_size >= 2, f"batch_size must be 2 or more, got {self.batch_size}")
        for name in ("learning_rate", "architecture_rate"):
            require(getattr(self, name) > 0, f"{name} must be above 0, got {getattr(self, name)}")
        require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), got {self.momentum}")
        for name in ("last_rate", "weight_decay", "architecture_decay", "clip"):
            require(getattr(self, name) >= 0, f"{name} must be 0 or more, got {getattr(self, name)}")
        require(0 < self.validation < 1, f"validation is a share between 0 and 1, got {self.validation}")

    def rate(self, step: int, total: int) -> float:
        """Learning rate of the weights at step 0, 1, … of `total`."""
        return self.last_rate + (self.learning_rate - self.last_rate) * 0.5 * (1 + math.cos(math.pi * step / total))


PARTIAL = GradientOptions(
    frame=Frame(channel_fraction=0.25), edges=True, warmup=15, learning_rate=0.1, last_rate=0.0, architecture_rate=6e-4
)
"""Those of PC-DARTS."""
