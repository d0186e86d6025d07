"""Settings of weight plasticity, checked when they are made."""

import math
from dataclasses import dataclass, replace
from typing import Any

from nearkin.core.errors import require
from nearkin.search.plasticity.strength_schedule import StrengthSchedule

IMPORTANCES = ("observed", "sampled", "expected", "batch-square", "uniform")
STRUCTURES = ("diagonal", "kronecker", "full", "marginal")
UPDATES = {"path": 0.1, "average": 0.9, "sum": 0.0}
"""How the importance of one more model is added, with the default of `decay`."""


@dataclass(frozen=True)
class PlasticityOptions:
    r"""How importance is measured, added over several models, and turned into a pull.

    Attributes:
        alpha: strength α of the pull, or a `StrengthSchedule` with warm-up and decay (default: 10).
        importance: `observed` (mean of squared per-sample gradients: the empirical Fisher), `sampled` (with labels
            drawn from the model), `expected` (exact expectation over the labels), `batch-square` (square of the mean
            gradient of a batch, as printed in the paper), `uniform` (1 for every weight: plain L2 to the anchor).
        structure: `diagonal`; `kronecker` (factors of each layer); `full` (the matrix $F_{ss}$ of the shared weights);
            `marginal` ($\Omega = F_{ss} - F_{s1} F_{11}^{-1} F_{1s}$: the private weights of the model are free to
            follow). The last two are for models of a few thousand weights.
        normalise: whether each model's importance is divided by its mean, so that α does not depend on its scale.
        samples: number of samples that are drawn from the validation set (default: 200); None takes all.
        update: `path` (the importance of weights that the new model uses is multiplied by 1 - `decay`, and that of the
            new model is added; other weights keep theirs), `average` (the printed moving average of all weights,
            $F \leftarrow (1 - d) F + d F_{new}$), or `sum`.
        decay: d of `path` (default: 0.1) and of `average` (default: 0.9, as printed).
        flush_every: epochs after which all importance is set to zero; 0 for never. The paper uses 3.
        damping: added to the diagonal of the Fisher matrix of `full` and `marginal`: prior precision ÷ samples.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        batch_size: samples in a batch.
        seed: seed of the drawn samples and labels.

    >>> PlasticityOptions(alpha=3.0).schedule.at(0)
    3.0
    >>> PlasticityOptions(update="average").rate, PlasticityOptions.for_sequences().alpha
    (0.9, 10000.0)
    >>> PlasticityOptions(alpha=float("nan"))
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: alpha is nan, expected a finite number >= 0; the default is 10
    """

    alpha: float | StrengthSchedule = 10.0
    importance: str = "observed"
    structure: str = "diagonal"
    normalise: bool = True
    samples: int | None = 200
    update: str = "path"
    decay: float | None = None
    flush_every: int = 0
    damping: float = 0.0
    likelihood: str = "categorical"
    batch_size: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("importance", self.importance, IMPORTANCES),
            ("structure", self.structure, STRUCTURES),
            ("update", self.update, tuple(UPDATES)),
        ):
            require(value in allowed, f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        require(isinstance(self.schedule, StrengthSchedule), f"alpha is {self.alpha!r}, expected a number")
        require(0 <= self.rate <= 1, f"decay of the importance is {self.decay}, expected a number in [0, 1]")
        require(self.flush_every >= 0, f"flush_every is {self.flush_every}, expected a number of epochs >= 0")
        require(math.isfinite(self.damping) and self.damping >= 0, f"damping is {self.damping}, expected a number >= 0")
        require(
            self.samples is None or self.samples >= 2,
            f"samples is {self.samples}, expected 2 or more; one gradient says little about importance",
        )
        require(
            self.structure == "diagonal" or self.importance not in ("batch-square", "uniform"),
            f"importance {self.importance!r} has a diagonal only; use structure='diagonal', or observed, sampled or "
            f"expected",
        )

    @classmethod
    def for_sequences(cls, **changes: Any) -> "PlasticityOptions":
        """The settings for many models in sequence, as in a search: α = 10⁴ and the Fisher information as it is."""
        return replace(cls(alpha=1e4, normalise=False), **changes)

    @property
    def schedule(self) -> StrengthSchedule:
        """α by epoch."""
        return self.alpha if isinstance(self.alpha, StrengthSchedule) else StrengthSchedule(float(self.alpha))

    @property
    def rate(self) -> float:
        """The decay, or its default for this update."""
        return UPDATES[self.update] if self.decay is None else self.decay
