"""Scores of a measure: rank correlation with the truth, regret of the nearest source, sign of transfer.

A column is one target under one network and one seed: values of all sources, and of the initial network in the last
row. Smaller is nearer, for measures and for true results. Intervals are 95 % intervals by a bootstrap over target
tasks: all columns of a task are drawn together, since they share their data.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from nearkin.core.rng import Streams
from prediction_tasks import NAMES
from prediction_truth import RUN, Run

Array: TypeAlias = NDArray[np.float64]
TRUTHS = ("area", "steps", "accuracy")
GROUPS = ("all", "same", "other")
BUDGET = RUN.grid.index(25)  # where (c) takes the accuracy
DRAWS = 2000
SCRATCH = len(NAMES)


@dataclass(frozen=True)
class Column:
    """One target under one network and seed."""

    network: str
    seed: int
    target: int

    @property
    def data(self) -> str:
        """The target's data set."""
        return NAMES[self.target].data

    def rows(self, group: str) -> list[int]:
        """Sources to rank: all but the target's own network, or only those of the same or of other data sets."""
        kin = [name.data == self.data for name in NAMES]
        wanted = {"all": (True, False), "same": (True,), "other": (False,)}[group]
        return [row for row in range(SCRATCH) if row != self.target and kin[row] in wanted]


def areas(curves: list[dict[str, Tensor]], run: Run = RUN) -> Array:
    """Mean held-out loss over the steps `[R, S]`, by trapezoids."""
    steps = torch.tensor(run.grid, dtype=torch.float64)
    return np.stack([(torch.trapezoid(curve["loss"].double(), steps, dim=1) / run.steps).numpy() for curve in curves])


def truths(curves: list[dict[str, Tensor]]) -> dict[str, Array]:
    """Truths `[R, S]` of the replicas of one column, smaller is better: (a) area, (b) steps, (c) 1 − accuracy.

    (a) is the mean held-out loss over the steps; (b) the step at which a source first has the loss that training from
    scratch has at the end, the last step where it never does; (c) is taken at step 25. Beside them the loss at the end.
    """
    steps = torch.tensor(RUN.grid, dtype=torch.float64)
    level = float(torch.stack([curve["loss"][SCRATCH, -1] for curve in curves]).double().mean())
    reached = [[crossing(row, steps, level) for row in curve["loss"].double()] for curve in curves]
    missed = [(1 - curve["accuracy"][:, BUDGET].double()).numpy() for curve in curves]
    end = np.stack([curve["loss"][:, -1].double().numpy() for curve in curves])
    return {"area": areas(curves), "steps": np.array(reached), "accuracy": np.stack(missed), "end": end}


def crossing(loss: Tensor, steps: Tensor, level: float) -> float:
    """First position at which a piecewise linear curve reaches a level; its end if it never does."""
    below = torch.nonzero(loss <= level).flatten().tolist()
    if not below:
        return float(steps[-1])
    at = below[0]
    if at == 0:
        return 0.0
    share = (loss[at - 1] - level) / (loss[at - 1] - loss[at])
    return float(steps[at - 1] + share * (steps[at] - steps[at - 1]))


def spearman(a: Array, b: Array) -> float:
    """Rank correlation; 0 if one side is constant."""
    x, y = rankdata(a), rankdata(b)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def correlations(columns: list[Column], values: list[Array], truth: list[Array], group: str) -> Array:
    """Spearman of every column."""
    rows = [column.rows(group) for column in columns]
    return np.array([spearman(v[r], t[r]) for r, v, t in zip(rows, values, truth, strict=True)])


def regrets(columns: list[Column], values: list[Array], truth: list[Array], group: str = "all") -> Array:
    """True result of the first source minus the best one's, and of a random source minus that: `[columns, 2]`."""
    results = []
    for column, v, t in zip(columns, values, truth, strict=True):
        rows = column.rows(group)
        best = t[rows].min()
        results.append((t[rows][int(np.argmin(v[rows]))] - best, t[rows].mean() - best))
    return np.array(results)


def duels(scored: list[tuple[Array, NDArray[np.bool_]]]) -> tuple[Array, Array]:
    """How often a positive of column i scores below a negative of column j (ties: half), and the number of pairs.

    The area under the ROC curve of any columns, each taken any number of times, is a ratio of sums of these.
    """
    won, met = np.zeros((len(scored), len(scored))), np.zeros((len(scored), len(scored)))
    negatives = [np.sort(score[~better]) for score, better in scored]
    for i, (score, better) in enumerate(scored):
        mine = score[better]
        for j, theirs in enumerate(negatives):
            above = len(theirs) - np.searchsorted(theirs, mine, "right")
            ties = np.searchsorted(theirs, mine, "right") - np.searchsorted(theirs, mine, "left")
            won[i, j], met[i, j] = (above + 0.5 * ties).sum(), len(mine) * len(theirs)
    return won, met


def signs(columns: list[Column], values: list[Array], truth: list[Array]) -> list[tuple[Array, NDArray[np.bool_]]]:
    """Measure minus its value for the initial network, if any, and whether the source is better than scratch."""
    results = []
    for column, v, t in zip(columns, values, truth, strict=True):
        rows = column.rows("all")
        results.append((v[rows] - np.nan_to_num(v[SCRATCH]), t[rows] < t[SCRATCH]))
    return results


def draws(columns: list[Column]) -> list[list[int]]:
    """Indices of columns, `DRAWS` times: as many tasks as there are, drawn with replacement, with all their columns."""
    rng = Streams(0).numpy("bootstrap")
    tasks = sorted({column.target for column in columns})
    own = {task: [i for i, column in enumerate(columns) if column.target == task] for task in tasks}
    return [[i for task in rng.choice(tasks, len(tasks)) for i in own[int(task)]] for _ in range(DRAWS)]


def interval(samples: list[float]) -> tuple[float, float]:
    """The middle 95 %."""
    low, high = np.nanpercentile(samples, [2.5, 97.5])
    return float(low), float(high)


def mean_interval(columns: list[Column], values: Array) -> dict[str, float]:
    """Mean over columns with its interval."""
    low, high = interval([float(values[index].mean()) for index in draws(columns)])
    return {"mean": float(values.mean()), "low": low, "high": high}
