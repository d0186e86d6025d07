"""Effect of a busy machine on a run with a limit of wall time: what the same command would reach on an idle one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from nearkin.tasks.metrics import ACCURACY, CONFIDENCE, R2

BUSY = 1.25
"""Slowdown from which a machine is called busy."""

EXPONENTS: Mapping[bool, tuple[float, float]] = {True: (0.19, 0.09), False: (0.02, 0.05)}
"""Exponent of the error in the processor time, and its standard deviation over runs: for images (True), and for tables.

From pairs of 30 s runs with a slowdown of 1 and 3, development seeds 200 and 201: five sets of images gave 0.06 to
0.29; one table -0.02 and 0.02, whose standard deviation is a guess.
"""


@dataclass(frozen=True)
class LoadEffect:
    """How busy the machine was, and what the same command is expected to reach on an idle one.

    Attributes:
        slowdown: wall time divided by processor time.
        metric: expected test metric on an idle machine; None if it cannot be predicted.
        interval: its 95 % interval.
    """

    slowdown: float
    metric: float | None = None
    interval: tuple[float, float] | None = None


def load_effect(
    slowdown: float, name: str, metric: float, interval: tuple[float, float], images: bool, trained: bool = True
) -> LoadEffect | None:
    r"""Predict the test metric on an idle machine; None if the machine was not busy.

    With s times the processor time, the error $e = 1 - m$ of a metric m becomes about $e s^{-\beta}$. The interval
    contains the interval of the metric and the spread of $\beta$ over tasks, whose effect is $\log(s) e s^{-\beta}$
    times its standard deviation. Only accuracy and R² are predicted, and for images only those of a trained network:
    more time does not change a model that is fitted in closed form or on features.

    Args:
        slowdown: wall time divided by processor time.
        name: identifier of the metric.
        metric: of the selected model on the test set.
        interval: its 95 % interval.
        images: whether the inputs are images, or a table.
        trained: whether the model is a network that was trained by gradients.

    >>> load_effect(1.1, "accuracy", 0.8, (0.78, 0.82), images=True) is None
    True
    >>> effect = load_effect(3.0, "accuracy", 0.8, (0.78, 0.82), images=True)
    >>> effect.metric > 0.8, effect.interval[1] > effect.metric > effect.interval[0]
    (True, True)
    """
    if slowdown < BUSY:
        return None
    if name not in (ACCURACY, R2) or (images and not trained):
        return LoadEffect(slowdown)
    exponent, deviation = EXPONENTS[images]
    error = (1 - metric) * slowdown**-exponent
    spread = CONFIDENCE * deviation * math.log(slowdown) * error
    below, above = (math.hypot(gap, spread) for gap in (metric - interval[0], interval[1] - metric))
    floor = 0.0 if name == ACCURACY else -math.inf
    return LoadEffect(slowdown, 1 - error, (max(floor, 1 - error - below), min(1.0, 1 - error + above)))
