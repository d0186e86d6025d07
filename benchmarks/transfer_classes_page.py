"""The page of `transfer_classes.py`, and its picture, from its figures."""

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib.pyplot as plt
from scipy.stats import t

from results import table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "transfer-classes.md"
MINE = ("dirichlet, mean", "dirichlet, sampled", "laplace, mean")
OTHERS = ("linear head", "last layer", "Bayesian last layer", "all weights")
COLOURS = dict(
    zip((*MINE, *OTHERS), ("#0067a8", "#62b8ef", "#3c8d53", "#b34700", "#e69f00", "#7b4fa3", "#7a7a7a"), strict=True)
)
GOAL, AHEAD = 0.06, 0.05
LOOKED_AT = ("MNIST 0–4 → 5–9", "CIFAR-10 0–4 → 5–9", "MNIST → Fashion")
Cell: TypeAlias = dict[str, Any]


def half(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean, by Student's t."""
    if len(values) < 2:
        return math.nan
    return float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def of(cells: Sequence[Cell], way: str, figure: str) -> list[float]:
    return [float(cell["ways"][way][figure]) for cell in cells]


def span(values: Sequence[float], best: bool = False) -> str:
    """A mean with half its interval, in bold if it is the best."""
    text = f"{statistics.fmean(values):.3f} ± {half(values):.3f}"
    return f"**{text}**" if best else text


def groups(figures: dict[str, Any]) -> dict[tuple[str, int], list[Cell]]:
    """Cells by pair and labels a class."""
    parts: dict[tuple[str, int], list[Cell]] = {}
    for cell in figures["cells"]:
        parts.setdefault((cell["pair"], cell["shots"]), []).append(cell)
    order = list(figures["pairs"])
    return dict(sorted(parts.items(), key=lambda item: (order.index(item[0][0]), item[0][1])))


def figure_table(parts: dict[tuple[str, int], list[Cell]], pair: str, figure: str) -> str:
    """Table of all methods by labels of each class."""
    ways, rows = (*MINE, *OTHERS), []
    for (name, shots), cells in parts.items():
        if name == pair:
            means = {way: statistics.fmean(of(cells, way, figure)) for way in ways}
            first = (max if figure == "metric" else min)(means, key=means.__getitem__)
            rows.append([str(shots), *(span(of(cells, way, figure), way == first) for way in ways)])
    return table(["labels a class", *ways], rows)


def goals(parts: dict[tuple[str, int], list[Cell]]) -> str:
    """The two goals, cell by cell."""
    rows = []
    for (pair, shots), cells in parts.items():
        mine, head = (of(cells, way, "metric") for way in ("dirichlet, mean", "linear head"))
        ahead = [a - b for a, b in zip(mine, head, strict=True)]
        ece, worst = of(cells, "dirichlet, mean", "ece"), max(of(cells, "dirichlet, mean", "ece"))
        rivals = {way: statistics.fmean(of(cells, way, "metric")) for way in OTHERS}
        best = max(rivals, key=rivals.__getitem__)
        rows.append([
            pair, str(shots), f"{statistics.fmean(ahead):+.3f} ± {half(ahead):.3f}",
            "yes" if statistics.fmean(ahead) >= AHEAD else "no",
            f"{statistics.fmean(mine) - rivals[best]:+.3f} ({best})",
            f"{statistics.fmean(ece):.3f} ± {half(ece):.3f}", f"{worst:.3f}",
            "yes" if statistics.fmean(ece) <= GOAL else "**no**",
        ])  # fmt: skip
    head = ["pair", "labels a class", "ahead of the linear head", "≥ 0.05", "ahead of the best other way", "ece",
            "worst of the seeds", "≤ 0.06"]  # fmt: skip
    return table(head, rows)


def shortfalls(parts: dict[tuple[str, int], list[Cell]]) -> str:
    """Cases in which a goal is missed or another method is better."""
    ece, head, behind = [], [], []
    for (pair, shots), cells in parts.items():
        mean = {
            way: {figure: statistics.fmean(of(cells, way, figure)) for figure in ("metric", "nll", "ece")}
            for way in (MINE[0], *OTHERS)
        }
        mine, case = mean[MINE[0]], f"{pair} with {shots}"
        if mine["ece"] > GOAL:
            ece.append(f"{case} ({mine['ece']:.3f})")
        if mine["metric"] - mean["linear head"]["metric"] < AHEAD:
            head.append(f"{case} ({mine['metric'] - mean['linear head']['metric']:+.3f})")
        for way in OTHERS:
            if mean[way]["metric"] > mine["metric"]:
                gap = f"{mean[way]['metric'] - mine['metric']:.3f}"
                behind.append(f"{case} ({way}, by {gap}; nll {mean[way]['nll']:.2f} against {mine['nll']:.2f})")
    return "\n".join(
        f"- {title}: {'; '.join(cases) or 'nowhere'}."
        for title, cases in (
            ("Calibration error above 0.06", ece),
            ("Less than 0.05 ahead of the linear head", head),
            ("Another way is ahead in accuracy", behind),
        )
    )


def changes(parts: dict[tuple[str, int], list[Cell]]) -> str:
    """Earlier and present choice of settings, on the pairs that led to the change and on the others."""
    rows = []
    for way, looked in itertools.product(("dirichlet, mean", "laplace, mean"), (True, False)):
        for shots in sorted({shots for _, shots in parts}):
            cells = [
                cell for (pair, n), some in parts.items() for cell in some
                if n == shots and (pair in LOOKED_AT) is looked
            ]  # fmt: skip
            line = [way, "learned on" if looked else "others", str(shots)]
            for figure in ("metric", "nll", "ece"):
                old, new = (of(cells, name, figure) for name in (f"{way}, before", way))
                change = [b - a for a, b in zip(old, new, strict=True)]
                line.append(
                    f"{statistics.fmean(old):.3f} → {statistics.fmean(new):.3f} ({statistics.fmean(change):+.3f} ± "
                    f"{half(change):.3f})"
                )
            rows.append(line)
    return table(["way", "pairs", "labels a class", "accuracy", "nll", "ece"], rows)


def plot(parts: dict[tuple[str, int], list[Cell]], pairs: Sequence[str], file: Path) -> None:
    """Accuracy and calibration error by labels a class, a column for each pair."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "nearkin", "font.size": 8})
    figure, panels = plt.subplots(2, len(pairs), figsize=(2.1 * len(pairs), 4.8), sharex=True, layout="constrained")
    for column, pair in enumerate(pairs):
        shots = [n for name, n in parts if name == pair]
        for row, key in enumerate(("metric", "ece")):
            panel = panels[row][column]
            for way, colour in COLOURS.items():
                values = [statistics.fmean(of(parts[pair, n], way, key)) for n in shots]
                mine = way in MINE
                panel.plot(shots, values, "o-" if mine else "s--", color=colour, label=way, markersize=3,
                           linewidth=1.8 if way == MINE[0] else 1.0)  # fmt: skip
            panel.set_xscale("log")
            panel.set_xticks(shots, [str(n) for n in shots])
            panel.minorticks_off()
            panel.spines[["top", "right"]].set_visible(False)
        panels[0][column].set_title(pair, fontsize=8)
        panels[1][column].axhline(GOAL, color="black", linewidth=0.8, linestyle=":")
        panels[1][column].set_ylim(bottom=0)
    panels[0][0].set_ylabel("accuracy")
    panels[1][0].set_ylabel("ece (dotted: the goal)")
    for panel in panels[1]:
        panel.set_xlabel("labels a class", fontsize=8)
    figure.legend(*panels[0][0].get_legend_handles_labels(), frameon=False, ncols=len(COLOURS),
                  loc="outside lower center", fontsize=8)  # fmt: skip
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
    file.write_text("\n".join(line.rstrip() for line in file.read_text().splitlines()) + "\n")


def write(facts: dict[str, Any]) -> Path:
    """The page and its picture."""
    parts = groups(facts)
    pairs = [pair for pair in facts["pairs"] if any(name == pair for name, _ in parts)]
    seeds = len({cell["seed"] for cell in facts["cells"]})
    plot(parts, pairs, PAGE.with_suffix(".svg"))
    solved = {
        pair: statistics.fmean(cell["source"] for (name, _), some in parts.items() if name == pair for cell in some)
        for pair in pairs
    }
    listed = "\n".join(f"- {pair}: `{facts['pairs'][pair][0]}` to `{facts['pairs'][pair][1]}`; the source's own test "
                       f"accuracy is {solved[pair]:.3f}" for pair in pairs)  # fmt: skip
    tables = "\n\n".join(
        f"### {pair}\n\nAccuracy:\n\n{figure_table(parts, pair, 'metric')}\n\nNegative log likelihood:\n\n"
        f"{figure_table(parts, pair, 'nll')}\n\nExpected calibration error:\n\n{figure_table(parts, pair, 'ece')}"
        for pair in pairs
    )
    listed_pairs = f"{', '.join(LOOKED_AT[:-1])} and {LOOKED_AT[-1]}"
    PAGE.write_text(f"""<!-- written by benchmarks/transfer_classes.py -->
# Classes from few labels

Made by `python benchmarks/transfer_classes.py`; figures in `benchmarks/transfer_classes.json`.

## What was done

A LeNet learns the source from {facts["images"]:,} images in {facts["steps"]} steps; then it learns from the given
number
of labels of each class of the target, and is tested on at most 1,000 images. Means over {seeds} seeds, which change
the source's
network, its images and the labels that are drawn; ± is half a 95 % interval (Student). The best mean of a row is bold.

{listed}

*dirichlet* and *laplace* are the closed form with all weights; *mean* is the softmax of the mean scores, *sampled* the
mean softmax of drawn ones. The linear head is logistic regression on the frozen features with its strength tuned; last
layer, Bayesian last layer and all weights are as in `nearkin transfer`. Nothing is selected on test data.

## The goals

Ahead of a linear head by 0.05 in accuracy, and a calibration error of 0.06 at most, by *dirichlet, mean*, which is what
`nearkin transfer` does by default:

{goals(parts)}

Where it falls short, by labels a class:

{shortfalls(parts)}

With few labels, three numbers are learned from 25 or 50 of them, and the calibration error of a single draw varies from
almost zero to more than twice the goal. The form of the probabilities is not the cause: on four other seeds of
MNIST, CIFAR-10 and
MNIST → Fashion with 5 labels a class, a temperature fitted to the test labels would have had errors of 0.02 to 0.06,
and the learned one was too high in some draws and too low in others. On CIFAR-10 the source itself is
least accurate, and a linear head is hardest to beat.

![Accuracy and calibration error by labels a class](transfer-classes.svg)

## What was changed, and its effect

The Dirichlet choice was first made on digits, with a prior of log T about {facts["before"][0]:g} of width
{facts["before"][1]:g}. On other data 50 labels a class need T near 1.35, so the prior now has the centre 0.3,
learned on
{listed_pairs}, and the width 0.35; of several
such priors it is the one that also held on the other three pairs. The same runs showed that smaller pseudo-counts, and
leaving out one label of every class at a time, change nothing. Laplace's approximation had its scale by evidence and no
temperature; now left-out labels choose both, which was found on MNIST and CIFAR-10 and held on digits and Fashion. All
this was done with seeds 100 to 103; the seeds of this page were not used for any of it. From before to now, with
the interval of
the change over pairs and seeds: that of Dirichlet is small, that of Laplace is not.

{changes(parts)}

## All figures

{tables}
""")
    return PAGE
