"""Options of every search with shared weights: which architectures are watched, and weight plasticity."""

from dataclasses import dataclass

from nearkin.core.errors import require
from nearkin.search.plasticity.plasticity_options import UPDATES, PlasticityOptions
from nearkin.search.plasticity.strength_schedule import DECAYS, StrengthSchedule

TRAINING = "training"
IMPORTANCES = (TRAINING, "observed", "sampled", "expected", "batch-square", "uniform")


@dataclass(frozen=True, kw_only=True)
class ForgettingOptions:
    """Measurement of forgetting in a search with shared weights, and the penalty against it.

    Attributes:
        watched: number of architectures of an epoch, at equal distances, whose forgetting is measured; 0 for none.
        plasticity: whether shared weights are pulled to the values that earlier architectures need.
        plasticity_alpha: strength of the pull.
        plasticity_importance: importance of a shared weight for an architecture: training (squared gradients of its own
            training batches, which cost nothing), or one of WeightPlasticity on validation samples: observed, sampled,
            expected, batch-square, uniform.
        plasticity_samples: number of validation samples for these.
        plasticity_update: how the importance of one more architecture is added: path, average or sum.
        plasticity_decay: share of the earlier importance that an update removes (default: by the update).
        plasticity_warmup: epochs without pull (default: 3, and 5 for text, as in the paper; at most a third of all).
        plasticity_schedule: strength after the warm-up: constant, linear, cosine or exponential.
        plasticity_flush: epochs after which all importance is forgotten; 0 for never.
    """

    watched: int = 10
    plasticity: bool = False
    plasticity_alpha: float = 100.0
    plasticity_importance: str = TRAINING
    plasticity_samples: int = 64
    plasticity_update: str = "path"
    plasticity_decay: float | None = None
    plasticity_warmup: int | None = None
    plasticity_schedule: str = "constant"
    plasticity_flush: int = 0

    def __post_init__(self) -> None:
        require(self.watched >= 0, f"watched must be 0 or more, got {self.watched}")
        for name, allowed in (
            ("plasticity_importance", IMPORTANCES),
            ("plasticity_update", tuple(UPDATES)),
            ("plasticity_schedule", DECAYS),
        ):
            value = getattr(self, name)
            require(value in allowed, f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        self.for_search("categorical", epochs=3, seed=0)  # checks the numbers

    def for_search(self, likelihood: str, epochs: int, seed: int) -> PlasticityOptions:
        """Options of `WeightPlasticity` for a search of some epochs."""
        usual = 5 if likelihood == "language" else 3
        warm_up = min(usual, epochs // 3) if self.plasticity_warmup is None else self.plasticity_warmup
        falling = 0 if self.plasticity_schedule == "constant" else max(1, epochs - warm_up)
        schedule = StrengthSchedule(self.plasticity_alpha, warm_up, self.plasticity_schedule, falling)
        importance = "batch-square" if self.plasticity_importance == TRAINING else self.plasticity_importance
        return PlasticityOptions(
            alpha=schedule, importance=importance, normalise=False, samples=self.plasticity_samples,
            update=self.plasticity_update, decay=self.plasticity_decay, flush_every=self.plasticity_flush,
            likelihood=likelihood, batch_size=self.plasticity_samples, seed=seed,
        )  # fmt: skip
