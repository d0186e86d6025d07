"""Identifiers of metrics, which programs read, and their titles, which people read.

Every JSON object and every stored fact holds the identifier; texts, tables and pictures show the title.
"""

ACCURACY = "accuracy"
R2 = "r2"
TITLES = {ACCURACY: "accuracy", R2: "R²"}
"""Title of each metric by its identifier."""

_IDENTIFIERS = {title: identifier for identifier, title in TITLES.items()}


def metric_title(identifier: str) -> str:
    """The metric as people write it; an unknown one as it is.

    >>> metric_title("r2"), metric_title("accuracy")
    ('R²', 'accuracy')
    """
    return TITLES.get(identifier, identifier)


def metric_identifier(name: str) -> str:
    """The identifier of a stored metric name; files of version 0.1 hold titles.

    >>> metric_identifier("R²"), metric_identifier("r2")
    ('r2', 'r2')
    """
    return _IDENTIFIERS.get(name, name)
