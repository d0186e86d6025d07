"""Options of searches with shared weights: training of the weights, and scores of paths."""

import math
from dataclasses import dataclass, field

from nearkin.core.errors import require
from nearkin.search.plasticity.forgetting_options import ForgettingOptions

RATES = {"images": 0.05, "text": 1.0}
"""Default initial learning rate of the shared weights."""


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Training of the shared weights and scores of genotypes.

    Attributes:
        epochs: passes over the data on which the shared weights are trained.
        batches_per_architecture: number of successive batches on which one genotype is trained.
        batch_size: number of samples in a training or validation batch.
        learning_rate: initial learning rate of the shared weights (default: 0.05 for images, 1 for text); a cosine
            lowers it to 0.
        momentum: momentum of SGD on the shared weights.
        weight_decay: weight decay of the shared weights of the trained path.
        clip: largest norm of the gradient of the shared weights.
        path_dropout: probability that all edges of a node are dropped in a training step; it increases from 0 to this
            value during the search.
        output_dropout: dropout rate in front of the head while the shared weights are trained.
        reward_scale: factor c of the reward of a text, c / perplexity; other rewards are accuracy or R².
        selection_batch: largest number of validation samples on which genotypes are compared, the same for all.
        validation: fraction of the training set that is used as validation set.
        forgetting: which architectures are watched, and plasticity.
    """

    epochs: int = 20
    batches_per_architecture: int = 1
    batch_size: int = 64
    learning_rate: float | None = None
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip: float = 5.0
    path_dropout: float = 0.0
    output_dropout: float = 0.0
    reward_scale: float = 80.0
    selection_batch: int = 256
    validation: float = 0.3
    forgetting: ForgettingOptions = field(default_factory=ForgettingOptions)

    def __post_init__(self) -> None:
        for name in ("epochs", "batches_per_architecture", "selection_batch"):
            require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")
        require(self.batch_size >= 2, f"batch_size must be 2 or more, got {self.batch_size}")
        require(
            self.learning_rate is None or self.learning_rate > 0,
            f"learning_rate must be above 0, got {self.learning_rate}",
        )
        for name in ("clip", "reward_scale"):
            require(getattr(self, name) > 0, f"{name} must be above 0, got {getattr(self, name)}")
        require(self.weight_decay >= 0, f"weight_decay must be 0 or more, got {self.weight_decay}")
        for name in ("momentum", "path_dropout", "output_dropout"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1), got {getattr(self, name)}")
        require(0 < self.validation < 1, f"validation must be a fraction between 0 and 1, got {self.validation}")

    def rate(self, kind: str, progress: float) -> float:
        """Learning rate for `images` or `text` after this fraction of the training.

        >>> SharedOptions().rate("images", 0.0), round(SharedOptions(learning_rate=1.0).rate("text", 0.5), 6)
        (0.05, 0.5)
        """
        first = RATES[kind] if self.learning_rate is None else self.learning_rate
        return first * 0.5 * (1 + math.cos(math.pi * progress))
