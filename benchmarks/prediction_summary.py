"""Figures of the prediction benchmark: plain JSON values from columns, measures and truths."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from prediction_combine import COMBINATIONS, DRAWN_COMBINATIONS, chosen_pace, combined
from prediction_score import (
    GROUPS,
    SCRATCH,
    TRUTHS,
    Array,
    Column,
    correlations,
    draws,
    duels,
    interval,
    regrets,
    signs,
    spearman,
)
from prediction_tasks import NAMES, NETWORKS, SEEDS

Values = list[dict[str, Array]]
Truths = list[dict[str, Array]]
LOOKED_AT = 0  # the seed on which some twenty paces and a dozen companions were tried for `kin`
FRESH = "all three, second seed"
PICKERS = ("kin", "kin, drawn heads", "logme", "random")


def rounded(value: float) -> float:
    return round(value, 4)


class Judge:
    """Means over columns with intervals from one set of bootstrap draws."""

    def __init__(self, columns: list[Column], truth: Truths) -> None:
        self.columns, self.truth, self.draws = columns, truth, draws(columns)

    def of(self, statistic: Callable[[list[int]], float]) -> dict[str, float]:
        """A statistic of columns, with its interval."""
        low, high = interval([statistic(index) for index in self.draws])
        mean = statistic(list(range(len(self.columns))))
        return {"mean": rounded(mean), "low": rounded(low), "high": rounded(high)}

    def mean(self, values: Array) -> dict[str, float]:
        """The mean of one value a column."""
        return self.of(lambda index: float(values[index].mean()))

    def mid(self, truth: str) -> list[Array]:
        """Mean of the replicas `[S]` of every column."""
        return [row[truth].mean(0) for row in self.truth]

    def spearman(self, values: list[Array], truth: str, group: str) -> Array:
        """Of every column."""
        return correlations(self.columns, values, self.mid(truth), group)

    def repeat(self, truth: str, group: str) -> dict[str, float]:
        """Correlation of two replicas, and the highest correlation of a measure with their mean.

        By Spearman and Brown, the mean of two replicas has the reliability $2r/(1+r)$. Its root is the correlation
        with the value that it estimates, which a measure exceeds only by chance.
        """
        rows = [column.rows(group) for column in self.columns]
        results = [spearman(t[truth][0][r], t[truth][1][r]) for t, r in zip(self.truth, rows, strict=True)]
        r = float(np.mean(results))
        return {"repeat": rounded(r), "ceiling": rounded(math.sqrt(2 * r / (1 + r)))}

    def regret(self, values: list[Array]) -> dict[str, float]:
        """Area of the first source minus the best one's, relative to that of a random source."""
        differences = regrets(self.columns, values, self.mid("area"))
        return self.of(lambda index: float(differences[index, 0].sum() / differences[index, 1].sum()))

    def sign(self, values: list[Array]) -> dict[str, float]:
        """Area under the ROC curve of telling whether a source beats scratch, all pairs together."""
        won, met = duels(signs(self.columns, values, self.mid("area")))

        def share_of(index: list[int]) -> float:
            times = np.bincount(index, minlength=len(self.columns)).astype(float)
            among = float(times @ met @ times)
            return float(times @ won @ times) / among if among else float("nan")

        return self.of(share_of)


def judged(judge: Judge, values: list[Array]) -> dict[str, Any]:
    """All columns of the table for one measure, except its cost."""
    correlated = {
        truth: {group: judge.mean(judge.spearman(values, truth, group)) for group in GROUPS} for truth in TRUTHS
    }
    return {**correlated, "regret": judge.regret(values), "auroc": judge.sign(values)}


def figures(
    columns: list[Column], measures: Values, costs: list[dict[str, float]], truth_of: dict[str, list[Any]]
) -> dict[str, Any]:
    """All figures, by section."""
    judge = Judge(columns, truth_of["zero"])
    table = {}
    for name in measures[0]:
        table[name] = judged(judge, [row[name] for row in measures])
        by_network = {
            network: rounded(
                float(np.median([c[name] for c, k in zip(costs, columns, strict=True) if k.network == network]))
            )
            for network in NETWORKS
        }
        table[name]["cost"] = {**by_network, "mean": rounded(float(np.mean(list(by_network.values()))))}
    drawn = [i for i, row in enumerate(truth_of["drawn"]) if row is not None]
    return {
        "tasks": [str(name) for name in NAMES],
        "networks": NETWORKS,
        "seeds": list(SEEDS),
        "columns": len(columns),
        "pairs": sum(len(column.rows("all")) for column in columns),
        "ceiling": {truth: {group: judge.repeat(truth, group) for group in GROUPS} for truth in TRUTHS},
        "measures": table,
        "kin less logme": {
            truth: {group: judge.mean(gain(judge, measures, truth, group)) for group in GROUPS} for truth in TRUTHS
        },
        "by network": {
            **{
                network: narrow(columns, measures, truth_of["zero"], [c.network == network for c in columns])
                for network in NETWORKS
            },
            FRESH: narrow(
                columns, measures, truth_of["zero"], [c.seed != LOOKED_AT for c in columns]
            ),
        },
        "left out": left_out(judge, measures),
        "drawn heads": drawn_heads([columns[i] for i in drawn], [measures[i] for i in drawn],
                                   [truth_of["drawn"][i] for i in drawn], [truth_of["zero"][i] for i in drawn]),
    }  # fmt: skip


def gain(judge: Judge, measures: Values, truth: str, group: str) -> Array:
    """Spearman correlation of `kin` minus that of LogME, column by column."""
    kin, logme = (judge.spearman([row[name] for row in measures], truth, group) for name in ("kin", "logme"))
    return kin - logme


def narrow(columns: list[Column], measures: Values, truth: Truths, wanted: list[bool]) -> dict[str, Any]:
    """`kin` and LogME on some of the columns."""
    own = [i for i, kept in enumerate(wanted) if kept]
    judge = Judge([columns[i] for i in own], [truth[i] for i in own])
    return {
        name: {group: judge.mean(judge.spearman([measures[i][name] for i in own], "area", group)) for group in GROUPS}
        for name in ("logme", "kin")
    }


def left_out(judge: Judge, measures: Values) -> dict[str, Any]:
    """Combinations and schedules that were chosen without the target's data set and network."""
    area = judge.mid("area")
    kin = {group: judge.spearman([figures_of["kin"] for figures_of in measures], "area", group) for group in GROUPS}
    figures_of: dict[str, Any] = {}
    for name, members in COMBINATIONS.items():
        values, weights = combined(judge.columns, measures, area, members)
        figures_of[name] = beside(judge, values, kin)
        figures_of[name]["weights"] = dict(zip(members, map(rounded, weights.tolist()), strict=True))
    values, counts = chosen_pace(judge.columns, measures, area)
    figures_of["pace chosen"] = {**beside(judge, values, kin), "chosen": counts}
    return figures_of


def beside(judge: Judge, values: list[Array], kin: dict[str, Array]) -> dict[str, Any]:
    """Spearman with the area, and its gain over `kin`."""
    own = {group: judge.spearman(values, "area", group) for group in GROUPS}
    return {
        "area": {group: judge.mean(own[group]) for group in GROUPS},
        "gain over kin": {group: judge.mean(own[group] - kin[group]) for group in GROUPS},
    }


def drawn_heads(columns: list[Column], measures: Values, truth: Truths, zero: Truths) -> dict[str, Any]:
    """The same where fine-tuning starts from heads drawn as `nn.Linear` draws them, and both starts side by side."""
    if not columns:
        return {}
    judge = Judge(columns, truth)
    kin, logme = (judge.spearman([m[name] for m in measures], "area", "all") for name in ("kin, drawn heads", "logme"))
    return {
        "columns": len(columns),
        "networks": sorted({column.network for column in columns}),
        "heads": {"zero": start(Judge(columns, zero)), "drawn": start(judge)},
        "picks": {"zero": picks(Judge(columns, zero), measures), "drawn": picks(judge, measures)},
        "ceiling": {group: judge.repeat("area", group) for group in GROUPS},
        "measures": {
            **{name: drawn_row(judge, [m[name] for m in measures]) for name in measures[0]},
            **{
                name: drawn_row(judge, combined(columns, measures, judge.mid("area"), members)[0])
                for name, members in DRAWN_COMBINATIONS.items()
            },
        },
        "kin, drawn heads, less logme": judge.mean(kin - logme),
        "zero with drawn": {
            group: judge.mean(judge.spearman([t["area"].mean(0) for t in zero], "area", group)) for group in GROUPS
        },
    }


def drawn_row(judge: Judge, values: list[Array]) -> dict[str, Any]:
    """The columns of the second table for one measure."""
    area = {group: judge.mean(judge.spearman(values, "area", group)) for group in GROUPS}
    return {"area": area, "regret": judge.regret(values)}


def start(judge: Judge) -> dict[str, float]:
    """Result of fine-tuning from one kind of head, averaged over sources."""
    rows = [column.rows("all") for column in judge.columns]

    def mean(truth: str) -> float:
        return rounded(float(np.mean([a[r].mean() for a, r in zip(judge.mid(truth), rows, strict=True)])))

    better = [(a[r] < a[SCRATCH]).mean() for a, r in zip(judge.mid("area"), rows, strict=True)]
    return {
        "area": mean("area"),
        "end": mean("end"),
        "accuracy": rounded(1 - mean("accuracy")),
        "beats scratch": rounded(float(np.mean(better))),
        "repeat": judge.repeat("area", "all")["repeat"],
    }


def picks(judge: Judge, measures: Values) -> dict[str, dict[str, float]]:
    """Result of fine-tuning from the source that a measure ranks first: loss over the run, at its end, accuracy."""
    results = {}
    for name in PICKERS:
        chosen = [
            r[int(np.argmin(m[name][r]))]
            for m, r in zip(measures, (column.rows("all") for column in judge.columns), strict=True)
        ]
        results[name] = {
            truth: rounded(float(np.mean([t[row] for t, row in zip(judge.mid(truth), chosen, strict=True)])))
            for truth in ("area", "end", "accuracy")
        }
        results[name]["accuracy"] = rounded(1 - results[name]["accuracy"])
    return results
