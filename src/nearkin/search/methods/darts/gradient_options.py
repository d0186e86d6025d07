"""Options of gradient-based search: DARTS and PC-DARTS."""

import math
from dataclasses import dataclass, field

from nearkin.core.errors import require
from nearkin.search.methods.darts.guards import Guards
from nearkin.search.plasticity.forgetting_options import ForgettingOptions
from nearkin.search.supernet.reference import Frame


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    """Options of a gradient-based search, checked on construction. The defaults are those of DARTS.

    Attributes:
        frame: channels, number of cells, fraction of the channels that operations use.
        edges: whether edges have weights β (PC-DARTS).
        epochs: passes over the data on which the weights are trained.
        warmup: epochs at the start in which only the weights are trained.
        batch_size: largest number of samples in a step.
        order: 1 uses the current weights, 2 looks one training step ahead.
        exact: whether order 2 uses exact second derivatives or the finite difference of DARTS.
        learning_rate: initial learning rate of the weights; a cosine lowers it to `last_rate`.
        last_rate: final learning rate of the weights.
        momentum: momentum of SGD on the weights.
        weight_decay: weight decay of the weights.
        clip: largest norm of the gradient of the weights; 0 for no limit.
        architecture_rate: learning rate of Adam on α and β.
        architecture_decay: weight decay of α and β.
        validation: fraction of the training set on which the architecture is trained.
        guards: guards against collapse.
        forgetting: which architectures are watched, and plasticity.
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
    forgetting: ForgettingOptions = field(default_factory=ForgettingOptions)

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"epochs must be 1 or more, got {self.epochs}")
        require(
            0 <= self.warmup < self.epochs,
            f"warmup must be 0 or more and less than the {self.epochs} epochs, got {self.warmup}",
        )
        require(self.order in (1, 2), f"order must be 1 or 2, got {self.order}")
        require(self.batch_size >= 2, f"batch_size must be 2 or more, got {self.batch_size}")
        for name in ("learning_rate", "architecture_rate"):
            require(getattr(self, name) > 0, f"{name} must be above 0, got {getattr(self, name)}")
        require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), got {self.momentum}")
        for name in ("last_rate", "weight_decay", "architecture_decay", "clip"):
            require(getattr(self, name) >= 0, f"{name} must be 0 or more, got {getattr(self, name)}")
        require(0 < self.validation < 1, f"validation must be a fraction between 0 and 1, got {self.validation}")

    def rate(self, step: int, total: int) -> float:
        """Learning rate of the weights at step 0, 1, … of `total`."""
        return self.last_rate + (self.learning_rate - self.last_rate) * 0.5 * (1 + math.cos(math.pi * step / total))


PARTIAL = GradientOptions(
    frame=Frame(channel_fraction=0.25), edges=True, warmup=15, learning_rate=0.1, last_rate=0.0, architecture_rate=6e-4
)
"""Options of PC-DARTS."""
