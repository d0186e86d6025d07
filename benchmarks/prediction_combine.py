"""Combined measures, scored on targets that were left out of their fit.

A combination is a ridge regression on measures standardised within their target. The weights for a target are fitted
without every column of its data set and every column of its network, so neither influences them. The schedule of `kin`
is chosen in the same way: the best one on columns without the target's data set and network.
"""

import numpy as np

from prediction_measures import PACES
from prediction_score import SCRATCH, Array, Column, spearman

RIDGE = 3.0
CHEAP = ("logme", "leep", "ridge, leave one out", "gradient flow", "gradient flow, T = 1", "feature norm", "neighbours")
COMBINATIONS: dict[str, tuple[str, ...]] = {
    "kin + logme": ("kin", "logme"),
    "kin + gradient flow, T = 1": ("kin", "gradient flow, T = 1"),
    "kin + tangent evidence": ("kin", "tangent evidence, fitted head"),
    "kin + fisher trace": ("kin", "fisher trace, drawn head"),
    "kin + distances of data": ("kin", "mmd of data", "fid of data"),
    "kin + 20 real steps + logme": ("kin", "20 real steps", "logme"),
    "kin + all that reads features": ("kin", *CHEAP),
    "logme + 20 real steps": ("logme", "20 real steps"),
    "all that reads features": CHEAP,
}
DRAWN_COMBINATIONS: dict[str, tuple[str, ...]] = {
    "drawn kin + logme, left out": ("kin, drawn heads", "logme"),
    "drawn kin + shrunk h-score, left out": ("kin, drawn heads", "h-score, shrunk"),
    "both kins + logme + shrunk h-score, left out": ("kin, drawn heads", "kin", "logme", "h-score, shrunk"),
    "all that reads features, left out": (*CHEAP, "h-score, shrunk"),
}


def standardised(values: Array, rows: list[int]) -> Array:
    """Values of some rows, scaled to mean 0 and standard deviation 1."""
    some = values[rows]
    return (some - some.mean()) / (some.std() or 1.0)


def strangers(columns: list[Column], column: Column) -> list[int]:
    """Columns with another data set and another network."""
    return [i for i, other in enumerate(columns) if other.data != column.data and other.network != column.network]


def combined(
    columns: list[Column], measures: list[dict[str, Array]], truth: list[Array], names: tuple[str, ...]
) -> tuple[list[Array], Array]:
    """Left-out predictions `[S]` of every column, and the mean weights."""
    rows = [column.rows("all") for column in columns]
    inputs = [
        np.stack([standardised(row[name], r) for name in names], 1) for row, r in zip(measures, rows, strict=True)
    ]
    targets = [standardised(t, r) for t, r in zip(truth, rows, strict=True)]
    predictions, weights = [], []
    for i, column in enumerate(columns):
        known = strangers(columns, column)
        x, y = (np.concatenate([blocks[j] for j in known]) for blocks in (inputs, targets))
        weight = np.linalg.solve(x.T @ x + RIDGE * np.eye(len(names)), x.T @ y)
        prediction = np.full(SCRATCH + 1, np.nan)
        prediction[rows[i]] = inputs[i] @ weight
        predictions.append(prediction)
        weights.append(weight)
    return predictions, np.mean(weights, 0)


def chosen_pace(
    columns: list[Column], measures: list[dict[str, Array]], truth: list[Array]
) -> tuple[list[Array], dict[str, int]]:
    """Values with the schedule that is best on other data sets and networks, and how often each was chosen."""
    scores = {
        name: np.array(
            [
                spearman(row[name][column.rows("all")], t[column.rows("all")])
                for column, row, t in zip(columns, measures, truth, strict=True)
            ]
        )
        for name in PACES
    }
    values, counts = [], dict.fromkeys(PACES, 0)
    for i, column in enumerate(columns):
        known = strangers(columns, column)
        best = max(PACES, key=lambda name: scores[name][known].mean())
        counts[best] += 1
        values.append(measures[i][best])
    return values, counts
