"""Page of `benchmarks/complexity.py`: tables and plots from `benchmarks/complexity.json`.

python benchmarks/complexity_page.py
"""

import json
import statistics
from pathlib import Path
from typing import Any

from nearkin.report.axes import FONT, Field, frame, legend_positions, scale_around
from nearkin.report.svg import Canvas
from results import table

ROOT = Path(__file__).parents[1]
PAGE, IMAGES = ROOT / "docs" / "figures" / "complexity.md", ROOT / "docs" / "images"
COLOURS = ("target", "kin", "ink")
Rows = list[dict[str, Any]]


def plot(rows: Rows, axes: tuple[str, str], words: tuple[str, str], name: str, *, log: bool = False) -> str:
    """One line for every seed, points in the order of the rows; runs that did not reach the threshold are left out."""
    points = [row for row in rows if row[axes[1]] is not None]
    field = Field(64.0, 30.0, 700.0, 300.0)
    draw = Canvas(720, 370)
    x = scale_around((row[axes[0]] for row in points), field.left, field.right, log=log)
    y = scale_around((row[axes[1]] for row in points), field.bottom, field.top, log=log)
    frame(draw, field, x, y, words)
    seeds = sorted({row["seed"] for row in rows})
    labels = [f"seed {seed}" for seed in seeds]
    for seed, label, colour, (across, _) in zip(
        seeds, labels, COLOURS, legend_positions(labels, 600, 14), strict=False
    ):
        line = [(x(row[axes[0]]), y(row[axes[1]])) for row in points if row["seed"] == seed]
        if len(line) > 1:
            draw.line(*line, stroke=colour, width=1.4)
        for at in line:
            draw.circle(*at, 3.4, fill=colour)
        draw.circle(field.left + across + 5, 358, 4, fill=colour)
        draw.text(field.left + across + 14, 362, label, size=FONT, fill="muted")
    return draw.svg(name, f"{words[1]} against {words[0]}", f"One line for each of {len(seeds)} seeds.")


def means(rows: Rows, by: str, *keys: str) -> list[list[str]]:
    """Means over seeds for every value of `by`; – if a run did not reach the threshold."""
    found = []
    for value in sorted({row[by] for row in rows}):
        group = [row for row in rows if row[by] == value]
        cells = [[row[key] for row in group] for key in keys]
        shown = ["–" if None in cell else _brief(statistics.fmean(cell)) for cell in cells]
        found.append([_brief(value), *shown])
    return found


def _brief(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def listed(values: list[float | None]) -> str:
    """Values of the seeds."""
    return ", ".join("–" if value is None else f"{value:.2f}" for value in values)


def page(figures: dict[str, Any]) -> str:
    """The whole page, without the summary that `docs/summaries.py` adds."""
    labels, added, noise, width = (figures[name] for name in ("labels", "added", "noise", "width"))
    kinds, cost = figures["kinds"], figures["time"]
    kind_rows = [
        [name, f"{kinds['spearman'][name]:.3f}", f"{min(kinds['spearman_of_targets'][name]):.2f}",
         f"{kinds['seconds'][name]:.2f}"]
        for name in kinds["spearman"]
    ]  # fmt: skip
    cost_rows = [[name, f"{row['seconds']:.1f}"] for name, row in cost.items()]
    pair_rows = [
        [name, row["source"], row["target"], f"{row['distance']:.0f}", f"{row['seconds']:.1f}"]
        for name, rows in figures["pairs"].items()
        for row in rows
    ]
    return f"""# Complexity, training time and noise on digits

Made by `python benchmarks/complexity.py` and `python benchmarks/complexity_page.py`. Network: 64 inputs, 16 tanh units,
10 classes, unless stated; 400 digits; weight decay 0.001; exact curvature; three seeds. Steps are of training from
scratch until the loss on the training set is below 0.1. Times are processor times of one thread, beside other work.

## Random labels

A share of the labels is replaced by random ones. Steps are of Adam on all samples, mean over three initial weights.

{table(["share of random labels", "complexity, nats", "steps"], means(labels["rows"], "share", "complexity", "steps"))}

Complexity at 100 % ÷ complexity at 0 %, by seed: {listed(labels["ratio"])}. Rank correlation of complexity and steps:
{listed(labels["spearman"])}; with one set of initial weights for each seed, as first measured, it was the same.

![Steps against complexity](../images/complexity-steps.svg)

## Added random labels

Samples with random labels are added to 100 samples with correct ones. R² of a straight line, by seed:
{listed(added["r_squared"])}.

{table(["added", "complexity, nats"], means(added["rows"], "added", "complexity"))}

## Batch size and noise

Gradient descent with a rate of {noise["rate"]:g} and batches drawn with replacement. D = ησ²/2B, σ² measured at the
initial weights.

{table(["batch size", "D", "steps"], means(noise["rows"], "batch", "diffusion", "steps"))}

Rank correlation of D and steps, by seed: {listed(noise["spearman"])}. Kramers' law says that the time falls as
exp(ΔU / D) when D grows. **The time to the threshold does not follow Kramers' law:** D grows by a factor of
{_factor(noise["rows"])}, and the steps change by a factor of {_change(noise["rows"], "steps")} only
{_direction(noise["spearman"])}. Training from scratch is limited by the slope of the loss, not by a barrier.

![Steps against D](../images/complexity-noise.svg)

## Architecture

Networks of several widths on the same labels.

{table(["hidden units", "complexity, nats", "steps"], means(width["rows"], "width", "complexity", "steps"))}

Rank correlation of complexity and steps over widths, by seed: {listed(width["spearman"])}. The order agrees, the amount
does not: over these widths complexity changes by a factor of {_change(width["rows"], "complexity")} and steps by
a factor of {_change(width["rows"], "steps")}. A law from complexity to steps needs a factor for each architecture.

## Curvature of the static distance

Static distances of {len(kinds["tasks"])} tasks (`mlp?hidden=24`, all pairs) by each kind of curvature, at the same
fitted weights. *Rank correlation* with the exact curvature over all pairs, and the lowest of one target's sources.
*Seconds* of one complexity.

{table(["curvature", "rank correlation", "lowest of a target", "seconds"], kind_rows)}

## Cost

Complexity of a LeNet (21,386 weights) on 1,000 digits:

{table(["curvature", "seconds"], cost_rows)}

One static distance; the first of a source includes the complexity of the source, which is measured once:

{table(["network", "source", "target", "distance, nats", "seconds"], pair_rows)}
{_matrix(figures)}"""


def _factor(rows: Rows) -> str:
    values = [row["diffusion"] for row in rows if row["seed"] == 0]
    return f"{max(values) / min(values):.0f}"


def _change(rows: Rows, key: str) -> str:
    """Largest ÷ smallest mean over seeds."""
    by = next(name for name in ("width", "batch") if name in rows[0])
    groups = [[row[key] for row in rows if row[by] == value] for value in {row[by] for row in rows}]
    values = [statistics.fmean(group) for group in groups]
    return f"{max(values) / min(values):.2g}"


def _direction(correlations: list[float]) -> str:
    """Whether steps rise or fall with D."""
    if min(correlations) > 0:
        return "and rise with D for every seed"
    return "and fall with D for every seed" if max(correlations) < 0 else "without a common direction"


def _matrix(figures: dict[str, Any]) -> str:
    if "matrix" not in figures:
        return ""
    rows = [
        [name, f"{row['seconds']:.0f}", f"{row['seconds'] / row['pairs']:.1f}", f"{row['itself_nearest']} of 10"]
        for name, row in figures["matrix"].items()
    ]
    head = ["network", "seconds", "seconds for a pair", "tasks nearest to themselves"]
    return f"\nMatrix of static distances of ten tasks, all 100 pairs:\n\n{table(head, rows)}\n"


def main() -> None:
    """Write the page and its plots."""
    figures = json.loads(Path(__file__).with_name("complexity.json").read_text())
    PAGE.write_text(page(figures))
    steps = plot(figures["labels"]["rows"], ("complexity", "steps"), ("complexity in nats, logarithmic",
                 "steps of training, logarithmic"), "nk-steps", log=True)  # fmt: skip
    noise = plot(figures["noise"]["rows"], ("diffusion", "steps"), ("D, logarithmic", "steps of training, logarithmic"),
                 "nk-noise", log=True)  # fmt: skip
    (IMAGES / "complexity-steps.svg").write_text(steps)
    (IMAGES / "complexity-noise.svg").write_text(noise)


if __name__ == "__main__":
    main()
