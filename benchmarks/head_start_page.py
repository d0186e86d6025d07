"""Summary and page of `benchmarks/head_start.py`.

Notation of arrays: P pairs, S starts.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from head_start_baseline import PAIR
from nearkin.nets.heads import HEAD_STARTS
from results import table
from transfer_classes_page import half
from transfer_classes_page import span as span_of

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "head-start.md"
HALVES = ("choosing", "confirming")
FIGURES = {"error": 0, "area": 1}
GROUPS = ("network", "optimiser", "labels", "steps")
RESAMPLES = 10_000
Array = NDArray[np.float64]
Row = dict[str, Any]


def pair_of(row: Row) -> str:
    return f"{row['source']} -> {row['target']}"


def by_pair(rows: list[Row], pairs: list[str], figure: str) -> Array:
    """Means `[P, S]` over networks, optimisers, labels and steps, each combination with the same weight."""
    place = FIGURES[figure]
    cells = {pair: [row for row in rows if pair_of(row) == pair] for pair in pairs}
    return np.array(
        [
            [np.mean([np.mean([value[place] for value in row[start]]) for row in cells[pair]]) for start in HEAD_STARTS]
            for pair in pairs
        ]
    )


def interval(values: Array) -> dict[str, float]:
    """Mean with a 95 % interval from resampled entries."""
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), (0.025, 0.975))
    return {"mean": round(float(values.mean()), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def compared(rows: list[Row], pairs: list[str], figure: str) -> dict[str, Any]:
    """Mean of every start, and paired differences with intervals over pairs."""
    values = by_pair(rows, pairs, figure)
    differences = {
        f"{first} - {second}": interval(values[:, HEAD_STARTS.index(first)] - values[:, HEAD_STARTS.index(second)])
        for first, second in itertools.combinations(reversed(HEAD_STARTS), 2)
    }
    means = dict(zip(HEAD_STARTS, values.mean(0).round(4).tolist(), strict=True))
    return {"pairs": len(pairs), "means": means, "differences": differences}


def correlations(rows: list[Row]) -> dict[str, Any]:
    """Spearman over the sources of a target: `short-finetune` from one start with outcomes from another.

    One value for each target, network, seed and number of labels, mean over optimisers and steps.
    """
    scores = {key(row): row for row in rows if row["steps"] == 0}
    outcomes = [row for row in rows if row["steps"] > 0]
    ranked: dict[tuple[str, str, str], list[float]] = {}
    places = sorted({(row["target"], row["network"], row["labels"]) for row in scores.values()})
    sources = sorted({row["source"] for row in rows})
    for target, network, labels in places:
        recipes = sorted({(row["optimiser"], row["steps"]) for row in outcomes if row["network"] == network})
        known = {(key(row), row["optimiser"], row["steps"]): row for row in outcomes}
        cells = [(source, target, network, labels) for source in sources]
        for seed in range(len(scores[cells[0]]["zero"])):
            for mine, theirs, (figure, place) in itertools.product(HEAD_STARTS, HEAD_STARTS, FIGURES.items()):
                score = [scores[cell][mine][seed] for cell in cells]
                found = []
                for recipe in recipes:
                    results = [known[cell, *recipe][theirs] for cell in cells]
                    if seed < len(results[0]) and len({one[seed][place] for one in results}) > 1:
                        found.append(float(spearmanr(score, [one[seed][place] for one in results]).statistic))
                ranked.setdefault((figure, mine, theirs), []).append(float(np.mean(found)))
    result: dict[str, Any] = {"rankings": len(next(iter(ranked.values()), []))}
    for figure in FIGURES:
        result[figure] = {
            theirs: {
                **{mine: interval(np.array(ranked[figure, mine, theirs])) for mine in HEAD_STARTS},
                "scaled - zero": interval(
                    np.array(ranked[figure, "scaled", theirs]) - np.array(ranked[figure, "zero", theirs])
                ),
            }
            for theirs in HEAD_STARTS
        }
    return result


def key(row: Row) -> tuple[str, str, str, int]:
    return row["source"], row["target"], row["network"], row["labels"]


def summarised(figures: dict[str, Any]) -> dict[str, Any]:
    """The chosen start, and all comparisons."""
    rows = figures["rows"]
    runs = [row for row in rows if row["steps"] > 0]
    halves = {half: [pair for pair, group in figures["pairs"].items() if group == half] for half in HALVES}
    halves["all"] = list(figures["pairs"])
    comparisons = {
        half: {figure: compared(runs, pairs, figure) for figure in FIGURES} for half, pairs in halves.items()
    }
    means = comparisons["choosing"]["error"]["means"]
    groups = {
        f"{name} {value}": {
            figure: compared([row for row in runs if row[name] == value], halves["all"], figure) for figure in FIGURES
        }
        for name in GROUPS
        for value in sorted({row[name] for row in runs})
    }
    trained = sum(len(row[start]) for row in runs for start in HEAD_STARTS)
    return {
        "chosen": min(HEAD_STARTS, key=lambda start: means[start]),
        "runs": trained,
        "halves": comparisons,
        "groups": groups,
        "correlation": correlations(rows),
    }


def span(value: dict[str, float], digits: int = 3) -> str:
    return f"{value['mean']:+.{digits}f} ({value['low']:+.{digits}f} to {value['high']:+.{digits}f})"


def comparison_table(parts: dict[str, Any], figure: str) -> str:
    """Means of the starts and their differences, a line for each part."""
    names = list(next(iter(parts.values()))[figure]["differences"])
    lines = [
        [
            name,
            *(f"{part[figure]['means'][start]:.3f}" for start in HEAD_STARTS),
            *(span(part[figure]["differences"][difference]) for difference in names),
        ]
        for name, part in parts.items()
    ]
    return table(["", *HEAD_STARTS, *(name.replace(" - ", " − ") for name in names)], lines)


def correlation_table(found: dict[str, Any], figure: str) -> str:
    """Correlations by the start of the outcome."""
    names = (*HEAD_STARTS, "scaled - zero")
    lines = [[start, *(span(found[figure][start][name], 2) for name in names)] for start in HEAD_STARTS]
    heads = (*(f"measure: {start}" for start in HEAD_STARTS), "scaled − zero")
    return table(["fine-tuning starts from", *heads], lines)


def few_table(few: dict[str, list[dict[str, float]]]) -> str:
    """Accuracy of the baseline by labels a class and start, and differences from the drawn head."""
    lines = []
    for shots, seeds in few.items():
        values = {start: [one[start] for one in seeds] for start in HEAD_STARTS}
        gains = [[a - b for a, b in zip(values[start], values["drawn"], strict=True)] for start in ("zero", "scaled")]
        cells = [span_of(value) for value in values.values()]
        lines.append([shots, *cells, *(f"{np.mean(gain):+.3f} ± {half(gain):.3f}" for gain in gains)])
    return table(["labels a class", *HEAD_STARTS, "zero − drawn", "scaled − drawn"], lines)


def coverage(rows: list[Row]) -> str:
    """How many seeds each network has with each recipe."""
    names = ("network", "optimiser", "steps")
    seeds = {tuple(row[name] for name in names): len(row["zero"]) for row in rows if row["steps"] > 0}
    return table(["network", "optimiser", "steps", "seeds"], [[*map(str, key), str(seeds[key])] for key in seeds])


def page(figures: dict[str, Any]) -> str:
    """The whole page, without the summary that `docs/summaries.py` adds."""
    summary, pairs = figures["summary"], figures["pairs"]
    pair_lines = table(["pair", "half"], [[f"`{pair}`", half] for pair, half in pairs.items()])
    used = {row["network"] for row in figures["rows"]}
    networks = ", ".join(f"`{network}`" for name, network in figures["networks"].items() if name in used)
    return f"""# Where fine-tuning starts

Made by `python benchmarks/head_start.py`; {summary["runs"]:,} fine-tuning runs, one thread.

## Method

A network that learned a source from 2,000 images (14×14, grey) in 300 steps gets a new head and is fine-tuned on a
target with 200 or 1,000 labels, for 60 or 300 steps of 64 samples. Sources and targets share no training sample. *Adam*
is the recipe with which `solve` fine-tunes (2e-3, cosine); *SGD* is that with which `solve` trains its CNN (Nesterov,
0.03, cosine, weight decay, label smoothing, random shifts). Seeds change the source's network, the labels, the head
and the order of batches.

Networks: {networks}. Recipes that are not in this table were not run:

{coverage(figures["rows"])}

Starts of the new head:

- *zero*: weights and bias are 0;
- *drawn*: as `nn.Linear` draws them;
- *scaled*: the drawn weights divided by the root mean square of the head's inputs on 256 training samples.

All starts of a pair have the same draw and the same batches. *Error* is the share of 500 test images that are wrong
after the last step. *Area* is the mean test loss over the run, by the trapezoidal rule through five points.

A pair belongs to the choosing half if the SHA-256 of its name is even. The rule was fixed before the runs: the start
with the lowest mean error on the choosing half, each network, optimiser, number of labels and of steps with the same
weight. It chooses **{summary["chosen"]}**. Recipes were run in the order of the table until the time was over. The
figures were looked at five times on the way; `scaled` had the lowest error of the choosing half each time.

{pair_lines}

Intervals are 95 %, by {RESAMPLES:,} paired resamples of the pairs. There are few pairs and three targets, so they are
rough: a new kind of data can differ by more. Pairs of both halves share targets and networks. All pairs from the same
data set happen to be in the choosing half.

## Error after fine-tuning

{comparison_table(summary["halves"], "error")}

By network, optimiser, labels and steps, over all pairs:

{comparison_table(summary["groups"], "error")}

## Mean test loss over the run

{comparison_table(summary["halves"], "area")}

{comparison_table(summary["groups"], "area")}

## Few labels a class

The baseline `all weights` of `nearkin transfer` (Adam, 200 steps) on the pair "{PAIR}" of
[classes from few labels](transfer-classes.md): test accuracy, mean of {len(figures["few"]["5"])} seeds ± half of the
95 % interval (Student). That page was measured with the drawn head, and the baseline keeps it: a scaled one is not
better here, and a weaker baseline would favour the closed form.

{few_table(figures["few"])}

## Which start the measure needs

Spearman correlation of `short-finetune` over the four sources of a target with the outcome of fine-tuning: mean over
{summary["correlation"]["rankings"]} rankings (targets, networks, seeds, labels), each the mean over optimisers and
steps; intervals by a bootstrap over rankings. With drawn and scaled heads the measure trains eight at once. Four
sources give coarse correlations. A measure that starts elsewhere would replace the zero start if it predicted the error
after the chosen start better.

With the error after fine-tuning:

{correlation_table(summary["correlation"], "error")}

With the mean test loss over the run:

{correlation_table(summary["correlation"], "area")}
"""


def write(figures: dict[str, Any], file: Path) -> None:
    """Add the summary to the figures, and write the page."""
    figures = {**figures, "summary": summarised(figures)}
    file.write_text(json.dumps(figures, indent=1) + "\n")
    PAGE.write_text(page(figures))
