"""Identifiers of metrics (in JSON and stored files), their titles (in texts and figures), and intervals of shares."""

import math

ACCURACY = "accuracy"
R2 = "r2"
TITLES = {ACCURACY: "accuracy", R2: "R²"}
"""Title of each metric by its identifier."""

CONFIDENCE = 1.959964  # 95 % quantile of a normal deviate, two-sided
_IDENTIFIERS = {title: identifier for identifier, title in TITLES.items()}


def metric_title(identifier: str) -> str:
    """The title of a metric; an unknown identifier is returned unchanged.

    >>> metric_title("r2"), metric_title("accuracy")
    ('R²', 'accuracy')
    """
    return TITLES.get(identifier, identifier)


def metric_identifier(name: str) -> str:
    """The identifier of a stored metric name (files of version 0.1 contain titles).

    >>> metric_identifier("R²"), metric_identifier("r2")
    ('r2', 'r2')
    """
    return _IDENTIFIERS.get(name, name)


def share_interval(share: float, count: int) -> tuple[float, float]:
    r"""Wilson's 95 % interval of a share observed on `count` samples.

    $$\frac{p + z^2/2n \pm z\sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}$$

    >>> [round(end, 3) for end in share_interval(0.9, 100)], round(share_interval(1.0, 10)[1], 9)
    ([0.826, 0.945], 1.0)
    """
    square = CONFIDENCE**2 / count
    middle = share + square / 2
    half = CONFIDENCE * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))
