"""Page and pictures of the reachability benchmark."""

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Rectangle

from results import table

DOCS = Path(__file__).parents[1] / "docs"
UNLIKELY, LIKELY = "0.1", "0.5"  # as in the figures
UNTRAINED = "untrained"
COLOURS = {"reached": "#0072B2", "not": "#D55E00"}
Row = dict[str, Any]
Cell = tuple[float | None, str]


def write_page(figures: Row) -> None:
    """Write the page and its pictures."""
    plt.rcParams |= {"svg.hashsalt": "nearkin", "svg.fonttype": "none", "font.family": "sans-serif"}
    matrices(figures, DOCS / "images" / "reachability-matrices.svg")
    scatter(figures, DOCS / "images" / "reachability-scatter.svg")
    static_matrix(figures, DOCS / "images" / "reachability-static.svg")
    (DOCS / "figures" / "reachability.md").write_text(page(figures))


def page(figures: Row) -> str:
    """The page, without the summary that `docs/summaries.py` adds."""
    budget, samples, goals = figures["budget"], figures["samples"], list(figures["summary"])
    easy = figures["summary"][goals[0]]
    return "\n".join([
        "# Reachability between tasks",
        "",
        f"The experiment of figure 2 of “Dynamics and Reachability of Learning Tasks” (Achille, Mbeng & Soatto, 2019) "
        f"with {len(figures['tasks'])} tasks as grey images of 14 × 14 pixels and the network `{figures['network']}`. "
        f"Sources learn {samples['source']:,} samples for 300 steps. Every network, and an untrained one, is then "
        f"fine-tuned on {samples['target']} other samples of every target, all weights, with a new head, by Adam at "
        f"1e-3 in batches of 32, for at most {budget:g} steps. The goals are {' and '.join(goals)} of the training "
        f"loss of a constant answer. Seeds {' and '.join(map(str, figures['seeds']))} of samples, weights and batches.",
        "",
        "Each run is forecast from what is measured before it, with the model of `nearkin forecast`. It uses no run "
        "on the target's data set, only the shipped runs on other data sets (Fashion-MNIST and inverted "
        "Fashion-MNIST are one data set, as are CIFAR-10 and its halves; shipped runs on CIFAR-10 remain for "
        "CIFAR-100). The shipped runs are of seed 0 and include the same network. *With runs* also uses the runs of "
        "this page on other data sets. Nothing was chosen on these results.",
        "",
        f"A run is *predicted unreachable* if the forecast gives a probability below {UNLIKELY} for reaching the "
        f"goal within {budget:g} steps, and *measured unreachable* if it did not.",
        "",
        "## Matrices",
        "",
        "Steps to the goal, geometric means over seeds. Rows are sources, columns targets; the diagonal is a network "
        "that learned other samples of the same task. Hatched: unreachable, predicted in the mean or measured with all "
        "seeds; a star: one seed did not reach the goal and is left out of the mean.",
        "",
        "![predicted and measured steps](../images/reachability-matrices.svg)",
        "",
        "## Predicted against measured steps",
        "",
        f"Every run of all seeds, with the 80 % interval. Runs that did not reach the goal are drawn at {budget:g} "
        "steps; they count as inside the interval if its upper end is beyond that.",
        "",
        "![predicted against measured steps](../images/reachability-scatter.svg)",
        "",
        _forecasts(figures),
        "",
        _sentences(figures),
        "",
        f"By target, goal {goals[0]}:",
        "",
        _targets(easy),
        "",
        "## Unreachable runs",
        "",
        f"Runs that are predicted unreachable, among those that did not reach the goal in {budget:g} steps and among "
        f"the others. A probability below {UNLIKELY} is what `nearkin forecast` calls not reachable; below {LIKELY} is "
        "the limit of its field `reachable`. This second limit and the table by target were added after the first "
        "results.",
        "",
        _unreachable(figures),
        "",
        "## Which quantity orders the steps?",
        "",
        f"Spearman correlation with the measured steps over {_pairs(figures)} runs between different tasks; runs that "
        "did not reach the goal share the last rank. *Within a target*: mean of the correlations over the sources of "
        "one target and seed, which is what the choice of a source needs. The Kramers form is d / D, the exponent of "
        "Kramers' time with the static distance as the barrier; D = ησ²/2B is measured at the first weights as for "
        "SGD, although the runs are of Adam. The complexity of the target does not depend on the source.",
        "",
        _correlations(figures),
        "",
        _order(easy, goals[0]),
        "",
        "The static distance d(source → target) in nats, mean over seeds, is what the paper draws as reachability:",
        "",
        "![static distance](../images/reachability-static.svg)",
        "",
        "## From an untrained network",
        "",
        f"Steps to {goals[0]} of the loss, geometric means over seeds; a dash if no seed reached it.",
        "",
        _untrained(figures, goals[0]),
        "",
        _against_untrained(figures, goals[0]),
        "",
        f"The whole experiment took {figures['seconds'] / 60:.0f} minutes of processor time on one core.",
        "",
    ])  # fmt: skip


def _forecasts(figures: Row) -> str:
    head = ["goal", "forecast", "runs", "in the 80 % interval", "mean error of log steps", "predicted ÷ measured",
            "AUROC of the probability"]  # fmt: skip
    lines = [
        [goal, name, str(row["runs"]), f"{row['inside'] / row['runs']:.0%}",
         *(_number(row[key]) for key in ("error", "ratio", "auroc"))]
        for goal, part in figures["summary"].items() for name, row in part["forecasts"].items()
    ]  # fmt: skip
    return table(head, lines)


def _sentences(figures: Row) -> str:
    lines = []
    for goal, part in figures["summary"].items():
        row = part["forecasts"]["forecast"]
        shares = ", ".join(f"{one['inside'] / one['runs']:.0%}" for one in part["by seed"])
        lines.append(
            f"Goal {goal}: {row['inside']} of {row['runs']} runs are inside the interval "
            f"({row['inside'] / row['runs']:.0%}; by seed {shares}), and {row['reached and inside']} of the "
            f"{row['reached']} that reached the goal. By target the share is {_range(part)}: runs on one target are "
            f"right or wrong together, so the total rests on {len(part['by target'])} targets."
        )
    return " ".join(lines)


def _range(part: Row) -> str:
    shares = [row["inside"] / row["runs"] for row in part["by target"].values()]
    return f"{min(shares):.0%} to {max(shares):.0%}"


def _unreachable(figures: Row) -> str:
    lines = []
    for goal, part in figures["summary"].items():
        for name, row in part["forecasts"].items():
            missed = row["runs"] - row["reached"]
            lines.append([goal, name, str(missed), *(
                f"{row['unreachable'][limit][0]} of {missed}; {row['unreachable'][limit][1]} of {row['reached']}"
                for limit in (UNLIKELY, LIKELY))])  # fmt: skip
    heads = [f"probability below {limit}: of these; of the others" for limit in (UNLIKELY, LIKELY)]
    return table(["goal", "forecast", "runs that did not reach it", *heads], lines)


def _targets(part: Row) -> str:
    lines = [
        [name, f"{row['reached']} of {row['runs']}", f"{row['inside'] / row['runs']:.0%}", _number(row["ratio"])]
        for name, row in part["by target"].items()
    ]
    return table(["target", "reached", "in the 80 % interval", "predicted ÷ measured"], lines)


def _correlations(figures: Row) -> str:
    goals = list(figures["summary"])
    first = figures["summary"][goals[0]]["correlations"]
    lines = []
    for name in first:
        parts = [figures["summary"][goal]["correlations"][name] for goal in goals]
        lines.append([name, *(text for part in parts for text in (
            f"{part['all']:.2f} ({', '.join(f'{value:.2f}' for value in part['by seed'])})",
            _number(part["within a target"])))])  # fmt: skip
    heads = [text for goal in goals for text in (f"goal {goal}, all (by seed)", "within a target")]
    return table(["ordered by", *heads], lines)


def _order(part: Row, goal: str) -> str:
    found = part["correlations"]
    forecast, static, alone = (found[name]["all"] for name in ("forecast", "static distance",
                                                               "complexity of the target"))  # fmt: skip
    within = {name: row["within a target"] for name, row in found.items()}
    return (
        f"For the goal {goal} the forecast has a correlation of {forecast:.2f}, the static distance of {static:.2f} "
        f"and the complexity of the target alone of {alone:.2f}: the source adds {static - alone:.3f} to what the "
        f"target alone says. Within a target the static distance has {within['static distance']:.2f}, the forecast "
        f"{within['forecast']:.2f} and the Kramers form {within['Kramers form']:.2f}. With {len(part['by target'])} "
        "targets, differences of a few hundredths mean nothing."
    )


def _untrained(figures: Row, goal: str) -> str:
    lines = []
    for target in figures["tasks"]:
        made, measured = (cell(figures, goal, kind, UNTRAINED, target) for kind in ("forecast", "measured"))
        lines.append([target, *("–" if value is None else f"{value:.0f}{mark}" for value, mark in (made, measured))])
    return table(["target", "predicted", "measured"], lines)


def _against_untrained(figures: Row, goal: str) -> str:
    steps = {(row["seed"], row["source"], row["target"]): row["goals"][goal]["measured"] or math.inf
             for row in figures["rows"]}  # fmt: skip
    faster = [steps[seed, UNTRAINED, target] < value for (seed, source, target), value in steps.items()
              if source != UNTRAINED]  # fmt: skip
    return (
        f"The untrained network is faster than a trained one in {sum(faster)} of {len(faster)} runs, so these sources "
        "do not shorten fine-tuning to a training loss. All runs start from a scaled head, as `solve` does. In a check "
        "on MNIST and Fashion-MNIST, one run each and not part of the stored figures, the trained network of the same "
        "task was the faster one if the head was drawn without scaling or was zero: the scaled head speeds up the "
        "untrained network. The experiment says nothing about the accuracy on new samples."
    )


def _pairs(figures: Row) -> int:
    return sum(row["source"] not in (UNTRAINED, row["target"]) for row in figures["rows"])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def cell(figures: Row, goal: str, kind: str, source: str, target: str) -> Cell:
    """Value of a cell over all seeds, None if unreachable, and a star if some seeds did not reach the goal."""
    rows = [row for row in figures["rows"] if (row["source"], row["target"]) == (source, target)]
    if kind == "static distance":
        return float(np.mean([row[kind] for row in rows])), ""
    found = [row["goals"][goal][kind] for row in rows]
    if kind == "measured":
        steps = [value for value in found if value is not None]
        return (_mean(steps) if steps else None), "*" if 0 < len(steps) < len(found) else ""
    unlikely = np.mean([one["probability"] for one in found]) < float(UNLIKELY)
    return (None if unlikely else _mean([one["steps"] for one in found])), ""


def _mean(values: list[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))


def matrices(figures: Row, file: Path) -> None:
    """Predicted and measured steps of every goal."""
    goals, tasks = list(figures["summary"]), figures["tasks"]
    figure, grid = plt.subplots(len(goals), 2, figsize=(12.5, 5.9 * len(goals)), layout="constrained")
    for axes, goal in zip(grid, goals, strict=True):
        for axis, kind in zip(axes, ("forecast", "measured"), strict=True):
            cells = [[cell(figures, goal, kind, source, target) for target in tasks] for source in (*tasks, UNTRAINED)]
            _matrix(axis, cells, tasks, LogNorm(10, figures["budget"]))
            axis.set_title(f"{'predicted' if kind == 'forecast' else 'measured'} steps to {goal} of the loss")
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def static_matrix(figures: Row, file: Path) -> None:
    """The static distance of all pairs."""
    tasks = figures["tasks"]
    figure, axis = plt.subplots(figsize=(6.4, 5.5), layout="constrained")
    cells = [[cell(figures, "", "static distance", source, target) for target in tasks] for source in tasks]
    values = [value for row in cells for value, _ in row if value is not None]
    _matrix(axis, cells, tasks, Normalize(min(values), max(values)))
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _matrix(axis: Axes, cells: list[list[Cell]], tasks: list[str], norm: Normalize) -> None:
    values = np.array([[math.nan if value is None else value for value, _ in row] for row in cells])
    axis.imshow(values, norm=norm, cmap="viridis_r", aspect="auto")
    for y, row in enumerate(cells):
        for x, (value, mark) in enumerate(row):
            if value is None:
                axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, hatch="///", ec="#888888", lw=0))
            else:
                dark = norm(value) > 0.5
                axis.text(x, y, f"{value:.0f}{mark}", ha="center", va="center", fontsize=8.5,
                          color="white" if dark else "black")  # fmt: skip
    axis.set_xticks(range(len(tasks)), tasks, rotation=40, ha="right", fontsize=8.5)
    axis.set_yticks(range(len(cells)), [*tasks, UNTRAINED][: len(cells)], fontsize=8.5)
    axis.set(xlabel="target", ylabel="source")


def scatter(figures: Row, file: Path) -> None:
    """Predicted against measured steps with intervals, one panel for each goal."""
    goals, budget = list(figures["summary"]), figures["budget"]
    figure, axes = plt.subplots(1, len(goals), figsize=(10.5, 5), sharex=True, sharey=True, layout="constrained")
    for axis, goal in zip(axes, goals, strict=True):
        for kind, label in (("reached", "reached the goal"), ("not", f"not reached in {budget:g} steps")):
            found = [row["goals"][goal] for row in figures["rows"]
                     if (row["goals"][goal]["measured"] is None) is (kind == "not")]  # fmt: skip
            x = [one["measured"] or budget for one in found]
            middle = np.array([one["forecast"]["steps"] for one in found])
            low = np.array([one["forecast"]["low"] for one in found])
            high = np.array([one["forecast"]["high"] or 10 * budget for one in found])
            axis.errorbar(x, middle, yerr=[middle - low, high - middle], fmt="o", ms=3.2, lw=0.6, alpha=0.6,
                          color=COLOURS[kind], label=label)  # fmt: skip
        axis.plot([5, budget], [5, budget], color="#666666", lw=1)
        axis.set(xscale="log", yscale="log", title=f"{goal} of the loss", xlabel="measured steps")
    axes[0].set_ylabel("predicted steps")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
