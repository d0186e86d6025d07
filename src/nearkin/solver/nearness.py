"""How near a kin must be to lend its cells: a threshold on the Fréchet distance, learned from trials.

A trial is two searches for one target under an equal budget, one from a kin's cells in what these used, one from
nothing in the whole space. The threshold is the stump that would have gained most over all trials. Trials are shipped
with the package (made by benchmarks/kin_start.py); a zoo may add those of its own. A threshold belongs to one form of
the Fréchet distance (`distance.forms`): it is learned from trials of that form and judges distances of that form only.
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
"""Trials from which a threshold is learned; below that the prior stands."""

PRIOR = 0.5
"""The threshold without trials: the middle of the range that distances can have."""

MARGIN = 0.05
"""How far beyond the largest distance that was tried a kin may still count as near."""

TIE = 0.01
"""Gains summed over all trials that differ by less, a point in all, are equal."""

DRAWS = 1000
"""Of the bootstrap."""

ORIGINS = ("shipped", "zoo")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """One target searched for from a kin's cells and from nothing, under an equal budget.

    Attributes:
        source: the kin.
        target: what was searched for.
        distance: Fréchet, from source to target, in [0, 1].
        gain: metric of what the search from the kin found minus that of what the search from nothing found.
        origin: `shipped` with the package, or `zoo`: made by this zoo's own solves.
        form: of the Fréchet distance; empty where it was not recorded, and then no known form's.
    """

    source: str
    target: str
    distance: float
    gain: float
    origin: str = "shipped"
    form: str = ""

    def __post_init__(self) -> None:
        told = f"the trial of {self.target} from {self.source}"
        require(0 <= self.distance <= 1, f"{told} has distance {self.distance}; Fréchet distances lie in [0, 1]")
        require(math.isfinite(self.gain), f"{told} has gain {self.gain}; leave out searches that failed")
        require(self.origin in ORIGINS, f"{told} has origin {self.origin!r}; it is one of {', '.join(ORIGINS)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Trial(**facts)` makes it again."""
        return asdict(self)


@dataclass(frozen=True)
class Threshold:
    """Up to which distance a kin lends its cells, and what speaks for it.

    Attributes:
        value: the kin's space is used at distances up to this.
        gain_below: mean gain of the trials up to it; 0 without any.
        gain_above: mean gain of the trials beyond.
        num_below: trials up to it.
        num_above: trials beyond.
        interval: 95 % of the values that a bootstrap over targets gives.
        num_targets: that the trials have.
        trend: rank correlation of distance and gain; below 0 where nearer kin gain more.
        learned: False where there were too few trials and the value is the prior.
        form: of the Fréchet distance, the only one that it judges.
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
        """Whether a kin at that distance lends its cells; one whose distance is not known (NaN) does not."""
        return distance <= self.value

    def words(self) -> str:
        """What was learned, from how many trials, and where it is weak.

        >>> print(threshold([]).words())
        Kin count as near up to a Fréchet distance of 0.50. That is a prior and was not learned: there are 0 trials, \
and 8 are needed.
        """
        count = self.num_below + self.num_above
        form = f" (form {self.form})" if self.form else ""
        first = f"Kin count as near up to a Fréchet distance of {self.value:.2f}{form}."
        if not self.learned:
            return (
                f"{first} That is a prior and was not learned: there {_counted(count, 'is', 'are')} "
                f"{_counted(count, '1 trial', f'{count} trials')}, and {FEWEST} are needed."
            )
        sides = " and ".join(
            f"{100 * gain:+.1f} points in the {number} {where}"
            for number, gain, where in (
                (self.num_below, self.gain_below, "up to there"),
                (self.num_above, self.gain_above, "beyond"),
            )
            if number
        )
        found = (
            f"Learned from {count} trials on {self.num_targets} targets: against a search from nothing, one from the "
            f"kin's cells made {sides}, in the mean."
        )
        return " ".join([first, found, self._weakness()])

    def _weakness(self) -> str:
        low, high = self.interval
        loose = f"with other targets it would lie between {low:.2f} and {high:.2f}"
        if not self.num_below:
            return f"At no distance that was tried did kin gain, so none counts as near; {loose}."
        chance = 2 / max(1, self.num_below + self.num_above - 1) ** 0.5  # two standard deviations of unrelated ranks
        order = "better" if self.trend < -chance else "no better"
        told = f"nearer kin were {order} than farther ones (rank correlation of distance and gain {self.trend:+.2f})"
        if self.num_above:
            return f"In these trials {told}; {loose}."
        return (
            "To leave out farther kin would have gained nothing, so it is the largest distance that was tried and a "
            f"margin, and says little about kin farther off; {told}; {loose}."
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
    """The trials that come with the package."""
    text = files("nearkin.solver").joinpath("trials.json").read_text(encoding="utf-8")
    return trials_from(json.loads(text)["trials"])


def trials_from(rows: Iterable[Mapping[str, Any]]) -> tuple[Trial, ...]:
    """Trials of their plain values.

    >>> trials_from([{"source": "a", "target": "b", "distance": 0.2, "gain": 0.01}])[0].origin
    'shipped'
    """
    try:
        return tuple(Trial(**row) for row in rows)
    except TypeError as broken:
        raise DataError(f"a kept trial is not as it should be ({broken}); leave it out or make it anew") from broken


def threshold(trials: Sequence[Trial], form: str = "") -> Threshold:
    r"""The distance $v$ that maximises $\sum_i g_i\,[d_i \le v]$: kin up to there, nothing beyond.

    Only trials of the given form of the Fréchet distance count.

    Values between two distances that were tried are equal, and their middle stands for them. Totals that differ by less
    than `TIE` are equal too, and the largest value wins, since what a kin lends costs nothing. The value is never
    beyond the largest distance that was tried plus `MARGIN`. With fewer than `FEWEST` trials it is `PRIOR`.

    >>> good = [Trial("a", f"t{i}", 0.1 + i / 100, 0.1) for i in range(4)]
    >>> bad = [Trial("b", f"t{i}", 0.3 + i / 100, -0.1) for i in range(4)]
    >>> found = threshold(good + bad)
    >>> round(found.value, 3), found.num_below, round(found.gain_above, 3), found.near(0.2), found.near(0.3)
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
    """The best values `[D]` when trial i is taken `times[:, i]` times; `times` is `[D, N]`."""
    tried, place = np.unique([0.0, *distances], return_inverse=True)  # a kin at distance 0 is the task itself
    where = np.eye(len(tried))[place[1:]]
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


def _counted(count: int, one: str, many: str) -> str:
    return one if count == 1 else many
