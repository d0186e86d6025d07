"""Page and pictures of `benchmarks/shared_weights.py`."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from nearkin.report.axes import WIDTH
from nearkin.report.curves import Curve, chart
from results import table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "shared-weights.md"
WAYS = {False: "plain", True: "plasticity"}
TASKS = {"mnist": ("MNIST, 14 × 14", "error, points", 100.0), "ptb": ("Penn Treebank, 1,000 words", "loss, nats", 1.0)}
WARM = {"mnist": 3, "ptb": 3}  # epochs without pull
Rows = list[dict[str, Any]]


def rows_of(runs: dict[str, Any], task: str, method: str, plasticity: bool) -> Rows:
    """Runs with the usual dropout, by seed."""
    start = f"{task}/{method}/{WAYS[plasticity]}/"
    return [row for key, row in sorted(runs.items()) if key.startswith(start)]


def spread(values: Sequence[float]) -> float:
    """Half width of the 95 % interval of a mean, by Student's t."""
    if len(values) < 2:
        return math.nan
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return float(half)


def with_spread(values: Sequence[float], places: int = 2, sign: str = "") -> str:
    return f"{statistics.fmean(values):{sign}.{places}f} ± {spread(values):.{places}f}"


def late(row: dict[str, Any], task: str, key: str) -> list[float]:
    """Forgetting of the epochs after the warm-up, in points or nats."""
    return [TASKS[task][2] * epoch[key] for epoch in row["forgetting"][WARM[task] :]]


def forgetting_rows(runs: dict[str, Any], task: str, methods: Sequence[str]) -> list[list[str]]:
    lines = []
    for method in methods:
        cells, pooled = [method], {}
        for plasticity in WAYS:
            rows = rows_of(runs, task, method, plasticity)
            for key in ("mean", "best"):
                pooled[key, plasticity] = statistics.fmean(statistics.fmean(late(row, task, key)) for row in rows)
            pooled["maximum", plasticity] = max(value for row in rows for value in late(row, task, "maximum"))
        for key in ("mean", "best", "maximum"):
            cells.append(f"{pooled[key, False]:+.3f} → {pooled[key, True]:+.3f}")
        lines.append(cells)
    return lines


def final(row: dict[str, Any], task: str) -> float:
    """Test accuracy in per cent, or test perplexity, of the best architecture, trained from scratch."""
    retrained = row["retrained"]
    return float(100 * retrained["metric"] if task == "mnist" else math.exp(retrained["loss"]))


def final_rows(runs: dict[str, Any], task: str, methods: Sequence[str]) -> list[list[str]]:
    lines = []
    for method in methods:
        both = [[final(row, task) for row in rows_of(runs, task, method, plasticity)] for plasticity in WAYS]
        change = [after - before for before, after in zip(*both, strict=True)]
        seconds = [[row["seconds"] for row in rows_of(runs, task, method, plasticity)] for plasticity in WAYS]
        lines.append(
            [method, *(with_spread(values) for values in both), with_spread(change, sign="+"),
             " / ".join(f"{statistics.fmean(values):.0f}" for values in seconds)]
        )  # fmt: skip
    return lines


def rank_rows(runs: dict[str, Any], methods: Sequence[str]) -> list[list[str]]:
    alone = [row["metric"] for key, row in sorted(runs.items(), key=_number) if "/alone/" in key]
    lines = []
    for method in methods:
        both = [
            [
                float(stats.spearmanr(row["shared"], alone).statistic)
                for row in rows_of(runs, "mnist", method, plasticity)
            ]
            for plasticity in WAYS
        ]
        change = [after - before for before, after in zip(*both, strict=True)]
        lines.append([method, *(with_spread(values) for values in both), with_spread(change, sign="+")])
    return lines


def _number(entry: tuple[str, Any]) -> int:
    return int(entry[0].rpartition("/")[2])


def dropout_rows(runs: dict[str, Any]) -> list[list[str]]:
    """NAO on text with seed 0: forgetting and the perplexity of the best architecture with shared weights."""
    lines = []
    for rate, path in ((0.0, 0.0), (0.25, 0.0), (0.5, 0.0), (0.75, 0.0), (0.0, 0.5)):
        for plasticity in WAYS:
            key = f"ptb/nao/dropout {rate:g} path {path:g} {plasticity}/0"
            key = f"ptb/nao/{WAYS[plasticity]}/0" if rate == path == 0 else key
            if key in runs:
                row = runs[key]
                values = [statistics.fmean(late(row, "ptb", name)) for name in ("mean", "best", "maximum")]
                dropped = f"path {path:g}" if path else f"output {rate:g}"
                perplexity = 80 / statistics.fmean(row["shared"])
                lines.append([dropped, WAYS[plasticity], *(f"{value:+.3f}" for value in values), f"{perplexity:.1f}"])
    return lines


def picture(runs: dict[str, Any], task: str) -> str:
    """Mean and maximum by epoch, with and without plasticity, averaged over the seeds of ENAS."""
    curves = []
    for key in ("maximum", "mean"):
        for plasticity, name in WAYS.items():
            rows = rows_of(runs, task, "enas", plasticity)
            values = [
                TASKS[task][2] * statistics.fmean(epochs)
                for epochs in zip(*([epoch[key] for epoch in row["forgetting"]] for row in rows), strict=True)
            ]
            points = tuple((float(at), value) for at, value in enumerate(values, 1))
            curves.append(Curve(f"{key}, {name}", points, plasticity))
    words = ("epoch", f"change of the {TASKS[task][1]}")
    return chart(curves, WIDTH, words, log=False, steps=False).svg(
        f"nk-shared-{task}", f"Forgetting of ENAS by epoch, {TASKS[task][0]}", "Plasticity is highlighted."
    )


def write_page(figures: dict[str, Any]) -> None:
    """Write the page and its pictures."""
    runs, sections = figures["runs"], []
    methods = ["random-shared", "enas", "nao"]
    for task, (title, unit, _) in TASKS.items():
        if not all(len(rows_of(runs, task, m, p)) == len(figures["seeds"]) for m in methods for p in WAYS):
            continue
        file = PAGE.with_name(f"shared-weights-{task}.svg")
        file.write_text(picture(runs, task))
        metric = "test accuracy, %" if task == "mnist" else "test perplexity"
        sections.append(f"""## {title}

![Forgetting of ENAS by epoch]({file.name})

Change of the {unit.replace(",", " in")} from right after training to the end of the epoch, after the warm-up, without →
with plasticity: means over epochs and seeds, and the largest of all.

{table(["method", "mean", "best five", "largest"], forgetting_rows(runs, task, methods))}

The best architecture of each search, trained from scratch ({metric}; 95 % intervals over {len(figures["seeds"])}
seeds), and processor seconds of a search without / with plasticity:

{table(["method", "plain", "plasticity", "difference", "seconds"], final_rows(runs, task, methods))}
""")
    PAGE.write_text(f"""# Searches with shared weights, with and without plasticity

Made by `python benchmarks/shared_weights.py`: figures 4 and 5 and table 1 of paper 004 at small scale.
{figures["epochs"]} epochs, three of them without pull, every genotype watched, seeds
{", ".join(map(str, figures["seeds"]))}, one thread. The strength was chosen on MNIST with seeds 100 and 101, and looked
at on Penn Treebank with seed 100. A genotype is trained on ten batches (MNIST) or five (text), because with one batch
nothing was forgotten in trials on MNIST. A negative change means that genotypes improved: there was nothing to prevent.
`random-shared` is the control: the same shared weights without a controller; it measures 60 random genotypes last.

{chr(10).join(sections)}
## Ranks with shared weights and alone

Spearman correlation between the accuracy of 20 random architectures with the final shared weights and their validation
accuracy after training from scratch (MNIST; 95 % intervals over seeds):

{table(["weights trained by", "plain", "plasticity", "difference"], rank_rows(runs, methods))}

## NAO with dropout

Penn Treebank, seed 0: change of the loss as above, and the perplexity of 20 random architectures with the final shared
weights (inverse of the mean inverse). Path dropout increases to 0.5 during the search.

{table(["dropout", "weights", "mean", "best five", "largest", "perplexity"], dropout_rows(runs))}
""")
