"""Noise between runs: how much the test metric of another run with another seed would differ."""

import math
from dataclasses import replace

from nearkin.solver.contest import Contest
from nearkin.solver.quality import Quality
from nearkin.solver.result import ordered
from nearkin.solver.validation import Margin
from nearkin.tasks.metrics import ACCURACY, CONFIDENCE, R2

SEED_NOISE = 0.03
"""Standard deviation of a network's test metric over training seeds, divided by its error (1 minus the metric)."""


def run_noise(contest: Contest, chosen: str, metric: float) -> float:
    r"""Standard deviation of the test metric over runs, from training seeds and from the selection.

    Seeds: `SEED_NOISE` times the error for a network, divided by $\sqrt m$ for an average of m; 0 for simple models.
    Selection: another run may select the best other contender. If that is behind by d with standard error s on the
    validation data, this happens with probability $p = \Phi(-d / s)$, and both differ by about $\sqrt{d^2 + s^2}$.
    """
    others = [result.name for result in ordered(contest.results) if result.name != chosen]
    chance = selection_variance(contest.lead(chosen, others[0])) if others else 0.0
    networks = [
        (weight, len(contest.trained[name]))
        for name, weight in (contest.weights if chosen not in contest.trained else {chosen: 1.0}).items()
        if contest.trained[name][0].contender.sized is not None
    ]
    seeds = sum(weight**2 / count for weight, count in networks) * (SEED_NOISE * (1 - metric)) ** 2
    return math.sqrt(seeds + chance)


def selection_variance(lead: Margin) -> float:
    """Variance of the metric from the selection between two contenders, given the lead of the selected one.

    >>> selection_variance((0.1, 0.08, 0.12)) < 1e-9, round(selection_variance((0.0, -0.0196, 0.0196)) ** 0.5, 6)
    (True, 0.005)
    """
    ahead, low, _ = lead
    error = (ahead - low) / CONFIDENCE
    if error <= 0:
        return 0.0
    other = 0.5 * math.erfc(ahead / error / math.sqrt(2))
    return other * (1 - other) * (ahead**2 + error**2)


def with_run_noise(quality: Quality, noise: float) -> Quality:
    """The quality with an interval that includes the noise between runs; for accuracy and R² only."""
    if quality.name not in (ACCURACY, R2):
        return quality
    low, high = quality.interval
    below, above = (math.hypot(gap, CONFIDENCE * noise) for gap in (quality.metric - low, high - quality.metric))
    floor = 0.0 if quality.name == ACCURACY else -math.inf
    ends = max(floor, quality.metric - below), min(1.0, quality.metric + above)
    return replace(quality, interval=ends, run_noise=noise)
