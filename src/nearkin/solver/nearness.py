"""Threshold on the Fréchet distance, below which a search starts from a related task's cells; learned from trials.

A trial is two searches for one target with equal budgets: one starts from a related task's cells and stays in the space
of these, one starts from scratch in the full space. The threshold is the decision stump with the largest total gain
over all trials. Trials are shipped with the package (made by benchmarks/kin_start.py), and a zoo adds its own. A
threshold belongs to one form of the Fréchet distance (`distance.forms`) and applies to distances of that form only.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.core.errors import DataError, require
from nearkin.core.lazy import Lazy
from nearkin.core.rng import Streams

stats = Lazy("scipy.stats")

FEWEST = 8
"""Smallest number of trials to learn a threshold; with fewer, `PRIOR` is used."""

PRIOR = 0.5
"""Threshold without trials: the middle of the range of distances."""

MARGIN = 0.05
"""How far beyond the largest distance in the trials a task may still count as near."""

TIE = 0.01
"""Total gains that differ by less than this (one point) count as equal."""

DRAWS = 1000
"""Bootstrap draws."""

ORIGINS = ("shipped", "zoo")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """One target, searched from a related task's cells and from scratch with equal budgets.

    Attributes:
        source: the related task.
        target: the searched task.
        distance: Fréchet distance from source to target, in [0, 1].
        gain: metric of the search from the source's cells minus metric of the search from scratch.
        origin: `shipped` with the package, or `zoo` for a trial of this zoo.
        form: of the Fréchet distance; empty if not recorded.
    """

    source: str
    target: str
    distance: float
    gain: float
    origin: str = "shipped"
    form: str = ""

    def __post_init__(self) -> None:
        trial = f"the trial of {self.target} from {self.source}"
        require(0 <= self.distance <= 1, f"{trial} has distance {self.distance}; Fréchet distances lie in [0, 1]")
        require(math.isfinite(self.gain), f"{trial} has gain {self.gain}; leave out searches that failed")
        require(self.origin in ORIGINS, f"{trial} has origin {self.origin!r}; it is one of {', '.join(ORIGINS)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Trial(**facts)` makes it again."""
        return asdict(self)


@dataclass(frozen=True)
class Threshold:
    """Largest distance at which a related task's cells are used, with its evidence.

    Attributes:
        value: the threshold; cells are used at distances up to this value.
        gain_below: mean gain of the trials up to the threshold; 0 without any.
        gain_above: mean gain of the trials above it.
        num_below: number of trials up to the threshold.
        num_above: number of trials above it.
        interval: 95 % bootstrap interval over targets.
        num_targets: number of targets in the trials.
        trend: rank correlation of distance and gain; negative if nearer tasks gain more.
        learned: False if there were too few trials and the value is the prior.
        form: form of the Fréchet distance that it applies to.
    """

    value: float
    gain_below: float
    gain_above: float
    num_below: int
    num_above: int
    interval: tuple[float, float]
    num_targets: int = 0
    trend: float = 0.0
    learned: bool = True
    form: str = ""

    def near(self, distance: float) -> bool:
        """Whether a task at this distance is near enough; False if the distance is NaN."""
        return distance <= self.value

    def words(self) -> str:
        """The threshold, its evidence and its weakness, as sentences.

        >>> print(threshold([]).words())
        Tasks count as near up to a Fréchet distance of 0.50. This value is a default: there are 0 trials, and \
learning needs 8.
        """
        count = self.num_below + self.num_above
        form = f" (form {self.form})" if self.form else ""
        first = f"Tasks count as near up to a Fréchet distance of {self.value:.2f}{form}."
        if not self.learned:
            return (
                f"{first} This value is a default: there {'is 1 trial' if count == 1 else f'are {count} trials'}, and "
                f"learning needs {FEWEST}."
            )
        sides = " and ".join(
            f"{100 * gain:+.1f} points in the {number} {where}"
            for number, gain, where in (
                (self.num_below, self.gain_below, "at or below the threshold"),
                (self.num_above, self.gain_above, "above it"),
            )
            if number
        )
        evidence = (
            f"Learned from {count} trials on {self.num_targets} targets: compared with a search from scratch, a search "
            f"from a related task's cells gained on average {sides}."
        )
        return " ".join([first, evidence, self._weakness()])

    def _weakness(self) -> str:
        low, high = self.interval
        spread = f"the 95 % interval over targets is {low:.2f} to {high:.2f}"
        if not self.num_below:
            return f"No distance in the trials had a gain, so no task counts as near; {spread}."
        chance = 2 / max(1, self.num_below + self.num_above - 1) ** 0.5  # two standard deviations of unrelated ranks
        order = "better" if self.trend < -chance else "no better"
        trend = f"nearer tasks were {order} than farther ones (rank correlation of distance and gain {self.trend:+.2f})"
        if self.num_above:
            return f"In these trials {trend}; {spread}."
        return (
            "Leaving out farther tasks would have gained nothing, so the threshold is the largest distance in the "
            f"trials plus a margin; it says little about farther tasks; {trend}; {spread}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Threshold.from_dict` makes it again."""
        return {**asdict(self), "interval": list(self.interval)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Threshold":
        """The inverse of `to_dict`.

        >>> Threshold.from_dict(threshold([]).to_dict()) == threshold([])
        True
        """
        low, high = facts["interval"]
        return cls(**{**facts, "interval": (low, high)})


def shipped() -> tuple[Trial, ...]:
    """Trials shipped with the package."""
    text = files("nearkin.solver").joinpath("trials.json").read_text(encoding="utf-8")
    return trials_from(json.loads(text)["trials"])


def trials_from(rows: Iterable[Mapping[str, Any]]) -> tuple[Trial, ...]:
    """Trials from JSON values.

    >>> trials_from([{"source": "a", "target": "b", "distance": 0.2, "gain": 0.01}])[0].origin
    'shipped'
    """
    try:
        return tuple(Trial(**row) for row in rows)
    except TypeError as broken:
        raise DataError(f"a stored trial is not valid ({broken}); remove it or measure it again") from broken


def threshold(trials: Sequence[Trial], form: str = "") -> Threshold:
    r"""The distance $v$ that maximises $\sum_i g_i\,[d_i \le v]$, for gains g and distances d.

    Only trials of the given form of the Fréchet distance count.

    Between two distances of the trials the middle is taken. Totals that differ by less than `TIE` count as equal, and
    the largest value wins. The value is at most the largest distance of the trials plus `MARGIN`. With fewer than
    `FEWEST` trials it is `PRIOR`.

    >>> good = [Trial("a", f"t{i}", 0.1 + i / 100, 0.1) for i in range(4)]
    >>> bad = [Trial("b", f"t{i}", 0.3 + i / 100, -0.1) for i in range(4)]
    >>> limit = threshold(good + bad)
    >>> round(limit.value, 3), limit.num_below, round(limit.gain_above, 3), limit.near(0.2), limit.near(0.3)
    (0.215, 4, -0.1, True, False)
    """
    trials = [trial for trial in trials if trial.form == form]
    distances, gains = np.array([t.distance for t in trials]), np.array([t.gain for t in trials])
    targets, owner = np.unique([trial.target for trial in trials], return_inverse=True)
    learned = len(trials) >= FEWEST
    value, interval = PRIOR, (0.0, 1.0)
    if learned:
        value = float(_stumps(distances, gains, np.ones((1, len(trials))))[0])
        drawn = Streams(0).numpy("nearness").multinomial(len(targets), np.ones(len(targets)) / len(targets), DRAWS)
        low, high = np.quantile(_stumps(distances, gains, drawn[:, owner].astype(np.float64)), (0.025, 0.975))
        interval = (float(low), float(high))
    below = distances <= value
    return Threshold(
        value=value,
        gain_below=_mean(gains[below]),
        gain_above=_mean(gains[~below]),
        num_below=int(below.sum()),
        num_above=int((~below).sum()),
        interval=interval,
        num_targets=len(targets),
        trend=_trend(distances, gains),
        learned=learned,
        form=form,
    )


def _stumps(distances: Floats, gains: Floats, times: Floats) -> Floats:
    """Best thresholds `[D]` when trial i counts `times[:, i]` times; `times` is `[D, N]`."""
    tried, index = np.unique([0.0, *distances], return_inverse=True)  # a task at distance 0 is the target itself
    where = np.eye(len(tried))[index[1:]]
    totals = np.cumsum((times * gains) @ where, axis=1)
    equal = totals >= totals.max(1, keepdims=True) - TIE
    numbers = np.arange(len(tried))
    last = np.where(equal, numbers, 0).max(1, keepdims=True)
    there = times @ where > 0
    there[:, 0] = True
    inner = np.where(there & (numbers <= last), numbers, 0).max(1)
    outer = np.where(there & (numbers > last), numbers, len(tried)).min(1)
    ends = np.append(tried, np.nan)
    values = np.where(outer < len(tried), (ends[inner] + ends[outer]) / 2, np.minimum(1.0, ends[inner] + MARGIN))
    return np.where(inner == 0, 0.0, values)


def _trend(distances: Floats, gains: Floats) -> float:
    if len(set(distances.tolist())) < 2 or len(set(gains.tolist())) < 2:
        return 0.0
    return float(stats.spearmanr(distances, gains).statistic)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0
