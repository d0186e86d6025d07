"""Choice of the measures for each question by cross-validation over targets, and their figures on held-out targets.

Truths of a source on a target, smaller is better. `final`: held-out error after 300 steps of ordinary fine-tuning, the
mean over drawn and scaled heads, Adam and SGD. `speed`: area under the held-out loss of 60 steps of Adam from a head of
zeros. A column is a target with its sources: those of one network, or of both networks together ("any network"), where
only measures of features can be compared.

Rules, written before the held-out targets were looked at. Candidates are single measures, and rank means of two to four
measures, whose cost is at most ten times that of LogME together. The best one has the highest mean Spearman correlation
over targets; of those within 0.01 of it the one with the fewest measures is chosen, then the one with the highest
correlation. A ridge regression on standardised scores replaces it if it is better by more than 0.01 on targets left out
of its fit.

Departures. After a look at part of the targets of the choice, but before one at the held-out targets, the second runs
were added and candidates were limited to measures of the package. After all results were seen, the regression was left
out where the last rule selects it: it was not built, and for one network its measures cost more than ten times LogME.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from nearkin.core.rng import Streams
from prediction_candidates import BASELINES, FEATURE_MEASURES, MEASURES, measured
from prediction_runs import (
    ENDS,
    GRID,
    HELD_OUT_DATA,
    NETWORKS,
    ORDINARY,
    RUNS,
    SECOND_TARGETS,
    TARGETS,
    curves,
    second_data,
    target_data,
)
from prediction_score import Array, spearman

QUESTIONS = ("final", "speed")
MOST_COST, MOST_MEASURES, MARGIN, RIDGE, DRAWS = 10.0, 4, 0.01, 3.0, 2000
INPUTS = ("logme", "hscore", "knn", "cka", "evidence", "leep", "nce", "short-finetune", "short-finetune-drawn")
FEATURE_INPUTS = ("logme", "hscore", "knn", "cka")
ANY = "any network"


@dataclass(frozen=True, eq=False)
class Column:
    """A target with its S sources: truths by name `[R, S]`, values of measures `[S]`, costs relative to LogME.

    `samples` are the numbers of held-out samples of the replicas.
    """

    target: int
    network: str
    truths: dict[str, Array]
    values: dict[str, Array]
    costs: dict[str, float]
    samples: tuple[int, ...]

    def mid(self, truth: str) -> Array:
        """Mean of the replicas, weighted by their held-out samples."""
        rows = self.truths[truth]
        return np.average(rows, 0, self.samples[: len(rows)])

    def spearman(self, values: Array, truth: str) -> float:
        """Rank correlation with a truth."""
        return spearman(values, self.mid(truth))

    def regret(self, values: Array, truth: str) -> tuple[float, float]:
        """Truth of the first source minus the best one's, and of a random source minus that."""
        t = self.mid(truth)
        return float(t[int(np.argmin(values))] - t.min()), float(t.mean() - t.min())


Predictor = Callable[[Column], Array]


def read_column(cache: Path, network: str, target: int) -> Column:
    """A column of one network, from the cache; what the cache does not have is measured."""
    runs = {name: curves(cache, network, target, name, 0) for name in RUNS}
    second = {name: curves(cache, network, target, name, 1) for name in ORDINARY if target in SECOND_TARGETS}
    steps, truths = np.array(GRID, dtype=float), {}
    for name, end in itertools.product(RUNS, ENDS):
        at = GRID.index(end)
        errors = [1 - runs[name]["accuracy"][:-1, at]]
        if name in second:
            errors.append(1 - second[name]["accuracy"][:-1, ENDS.index(end)])
        truths[f"{name}, error @{end}"] = np.stack([row.double().numpy() for row in errors])
        loss = runs[name]["loss"][:-1, : at + 1].double().numpy()
        truths[f"{name}, area @{end}"] = np.trapezoid(loss, steps[: at + 1], axis=1)[None] / end
    truths["final"] = np.mean([truths[f"{name}, error @{ENDS[-1]}"] for name in ORDINARY], 0)
    truths["final @60"] = np.mean([truths[f"{name}, error @{ENDS[0]}"] for name in ORDINARY], 0)
    truths["speed"] = truths[f"zero, adam, area @{ENDS[0]}"]
    scores = {name: rows.numpy() for name, rows in measured(cache, network, target).items()}
    reference = float(np.median(scores["logme"][:, 1]))
    costs = {name: float(np.median(rows[:, 1])) / reference for name, rows in scores.items()}
    samples = [len(target_data(target).held_out[0])]
    if second:
        samples.append(len(second_data(target).held_out[0]))
    values = {name: rows[:, 0] for name, rows in scores.items()}
    return Column(target, network, truths, values, costs, tuple(samples))


def joined(columns: Sequence[Column]) -> Column:
    """The sources of several networks together; costs are means."""

    def cat(parts: list[Array]) -> Array:
        return np.concatenate(parts, -1)

    first = columns[0]
    return Column(
        first.target,
        ANY,
        {name: cat([column.truths[name] for column in columns]) for name in first.truths},
        {name: cat([column.values[name] for column in columns]) for name in first.values},
        {name: float(np.mean([column.costs[name] for column in columns])) for name in first.costs},
        first.samples,
    )


def ranks(values: Array) -> Array:
    """Ranks from 0 to 1, as `nearkin.distance.questions.combined` has them."""
    return (rankdata(values) - 1) / max(len(values) - 1, 1)


def rank_mean(names: tuple[str, ...]) -> Predictor:
    """Mean of the ranks by some measures; one measure keeps its values."""
    if len(names) == 1:
        return lambda column: column.values[names[0]]
    return lambda column: np.mean([ranks(column.values[name]) for name in names], 0)


def standard(values: Array) -> Array:
    """Values scaled to mean 0 and standard deviation 1."""
    return (values - values.mean()) / (values.std() or 1.0)


def regression(columns: Sequence[Column], names: tuple[str, ...], truth: str) -> Predictor:
    """A ridge regression of the truth on measures, all standardised within their column."""
    x = np.concatenate([np.stack([standard(c.values[name]) for name in names], 1) for c in columns])
    y = np.concatenate([standard(c.mid(truth)) for c in columns])
    weight = np.linalg.solve(x.T @ x + RIDGE * np.eye(len(names)), x.T @ y)
    return lambda column: np.stack([standard(column.values[name]) for name in names], 1) @ weight


class Table:
    """Correlations `[candidates, columns]` of all rank means with one truth."""

    def __init__(self, columns: Sequence[Column], inputs: tuple[str, ...], truth: str) -> None:
        self.columns, self.truth = columns, truth
        cost = {name: float(np.mean([column.costs[name] for column in columns])) for name in inputs}
        self.candidates = [
            names
            for size in range(1, MOST_MEASURES + 1)
            for names in itertools.combinations(inputs, size)
            if sum(cost[name] for name in names) <= MOST_COST
        ]
        self.values = np.array(
            [[column.spearman(rank_mean(names)(column), truth) for column in columns] for names in self.candidates]
        )
        self.targets = np.array([column.target for column in columns])

    def best(self, wanted: np.ndarray[Any, np.dtype[np.bool_]], most: int = MOST_MEASURES) -> tuple[str, ...]:
        """The chosen candidate on some columns, by the rules of this file."""
        means = self.values[:, wanted].mean(1)
        allowed = [i for i, names in enumerate(self.candidates) if len(names) <= most]
        top = max(means[i] for i in allowed)
        close = [i for i in allowed if means[i] >= top - MARGIN]
        return self.candidates[min(close, key=lambda i: (len(self.candidates[i]), -means[i]))]

    def cross_validated(self, most: int = MOST_MEASURES) -> Array:
        """Correlation of every column, by a candidate that is chosen without its target."""
        results = []
        for i, column in enumerate(self.columns):
            names = self.best(self.targets != column.target, most)
            results.append(self.values[self.candidates.index(names), i])
        return np.array(results)


def left_out_regression(columns: Sequence[Column], names: tuple[str, ...], truth: str) -> Array:
    """Correlation of every column with a regression that is fitted without its target."""
    return np.array(
        [
            column.spearman(
                regression([other for other in columns if other.target != column.target], names, truth)(column), truth
            )
            for column in columns
        ]
    )


class Judge:
    """Means over columns with 95 % intervals by a bootstrap over targets, each drawn with all its columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        rng = Streams(0).numpy("bootstrap of questions")
        targets = sorted({column.target for column in columns})
        own = {target: [i for i, column in enumerate(columns) if column.target == target] for target in targets}
        self.draws = [[i for t in rng.choice(targets, len(targets)) for i in own[int(t)]] for _ in range(DRAWS)]

    def of(self, statistic: Callable[[Any], float]) -> dict[str, float]:
        """A statistic of columns, with its interval."""
        low, high = np.percentile([statistic(index) for index in self.draws], [2.5, 97.5])
        mean = statistic(list(range(len(self.columns))))
        return {"mean": round(mean, 4), "low": round(float(low), 4), "high": round(float(high), 4)}

    def mean(self, values: Array) -> dict[str, float]:
        """The mean of one value a column."""
        return self.of(lambda index: float(values[index].mean()))

    def correlations(self, predictor: Predictor, truth: str) -> Array:
        """Spearman correlation of every column."""
        return np.array([column.spearman(predictor(column), truth) for column in self.columns])

    def regret(self, predictor: Predictor, truth: str) -> dict[str, float]:
        """Regret of the first pick relative to that of a random source; 0 is best, 1 is chance."""
        pairs = np.array([column.regret(predictor(column), truth) for column in self.columns])
        return self.of(lambda index: float(pairs[index, 0].sum() / pairs[index, 1].sum()))


def judged(judges: dict[str, Judge], predictor: Predictor, question: str) -> dict[str, Any]:
    """Correlation and regret of one predictor on the targets of each group."""
    return {
        group: {
            "spearman": judge.mean(judge.correlations(predictor, question)),
            "regret": judge.regret(predictor, question),
        }
        for group, judge in judges.items()
    }


def answered(columns: Sequence[Column], inputs: tuple[str, ...], names: Sequence[str], question: str) -> dict[str, Any]:
    """The choice for one question and its figures beside all single measures."""
    choice = [column for column in columns if TARGETS[column.target].data not in HELD_OUT_DATA]
    held_out = [column for column in columns if TARGETS[column.target].data in HELD_OUT_DATA]
    judges = {"choice": Judge(choice), "held out": Judge(held_out)}
    table = Table(choice, inputs, question)
    chosen = table.best(np.ones(len(choice), dtype=bool))
    fitted = (*inputs, "feature norm")
    ours, ridge = rank_mean(chosen), regression(choice, fitted, question)
    costs = {name: float(np.mean([column.costs[name] for column in columns])) for name in names}
    rows = {name: judged(judges, rank_mean((name,)), question) for name in names}
    differences = {
        name: judges["held out"].mean(
            judges["held out"].correlations(ours, question)
            - judges["held out"].correlations(rank_mean((name,)), question)
        )
        for name in names
    }
    return {
        "chosen": list(chosen),
        "cost": round(sum(costs[name] for name in chosen), 2),
        "cost of the regression": round(sum(costs[name] for name in fitted), 2),
        "cross-validated": {
            "single measure": judges["choice"].mean(table.cross_validated(1)),
            "rank mean": judges["choice"].mean(table.cross_validated()),
            "regression": judges["choice"].mean(left_out_regression(choice, fitted, question)),
        },
        "combination": judged(judges, ours, question),
        "regression": judged(judges, ridge, question),
        "measures": {name: {**row, "cost": round(costs[name], 2)} for name, row in rows.items()},
        "combination less measure, held out": differences,
    }


def question_figures(cache: Path) -> dict[str, Any]:
    """All figures of the questions."""
    by_target = {
        target: [read_column(cache, network, target) for network in NETWORKS] for target in range(len(TARGETS))
    }
    columns = [column for group in by_target.values() for column in group]
    pooled = [joined(group) for group in by_target.values()]
    twice = [column for column in columns if len(column.truths["final"]) > 1]
    features = (*FEATURE_MEASURES, "leep", "nce", *BASELINES)
    everything, ends = Judge(columns), ("final", "final @60")
    spread = {truth: float(np.mean([column.mid(truth).std() for column in columns])) for truth in ends}
    return {
        "targets": [str(name) for name in TARGETS],
        "held-out data": list(HELD_OUT_DATA),
        "networks": dict(NETWORKS),
        "columns": len(columns),
        "pairs": sum(len(column.values["logme"]) for column in columns),
        "second targets": [str(TARGETS[target]) for target in SECOND_TARGETS],
        "repeat": {
            truth: round(float(np.mean([spearman(*column.truths[truth]) for column in twice])), 4) for truth in ends
        },
        "spread of errors": {truth: round(value, 4) for truth, value in spread.items()},
        "one network": {question: answered(columns, INPUTS, tuple(MEASURES), question) for question in QUESTIONS},
        ANY: {question: answered(pooled, FEATURE_INPUTS, features, question) for question in QUESTIONS},
        "truths": {
            truth: {
                name: everything.mean(everything.correlations(rank_mean((name,)), truth))["mean"] for name in MEASURES
            }
            for truth in columns[0].truths
        },
    }
