"""Summary and page of `benchmarks/forgetting.py`."""

from pathlib import Path
from typing import Any

import numpy as np

from nearkin.report.axes import FONT, Field, Scale, frame, legend_positions
from nearkin.report.svg import Canvas
from nearkin.search.plasticity.telemetry import reduction
from results import interval, span, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "forgetting.md"
CHANCE = 0.2  # accuracy below which B learned nothing
GOAL, NEAR = 0.8, 0.01  # reduction of forgetting; accuracy that B may lose
LOST = 0.05  # accuracy that A must have lost without plasticity for a reduction to be stated
ENDS = {
    "mean over B's training": lambda a, curve: a - float(np.mean(curve)),
    "at the end": lambda a, curve: a - curve[-1],
}
PICTURE, PANEL, LEGEND = 440, 190, 22  # pixels: width, height of a panel, height of the legend
COLOURS = {"none": ("target", False), "plasticity": ("kin", False), "L2": ("muted", True)}
Row = dict[str, Any]


def cases(rows: list[Row]) -> dict[tuple[int, float], list[Row]]:
    """Rows by shared layers and level."""
    groups: dict[tuple[int, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["shared"], row["level"]), []).append(row)
    return groups


def reductions(rows: list[Row], way: str, end: str = "mean over B's training") -> list[float]:
    """Relative reduction of forgetting in the runs in which A lost more than `LOST`."""
    lost = ENDS[end]
    pairs = [(lost(r["a"], r["ways"]["none"]["a"]), lost(r["a"], r["ways"][way]["a"])) for r in rows]
    return [reduction(without, with_) for without, with_ in pairs if without > LOST]


def forgetting_table(figures: dict[str, Any], end: str) -> str:
    """A's loss of accuracy by case and way."""
    lines = []
    for (shared, level), rows in cases(figures["rows"]).items():
        losses = [span([ENDS[end](r["a"], r["ways"][way]["a"]) for r in rows]) for way in figures["ways"]]
        counts = [
            f"{span(reductions(rows, way, end), 2)} ({len(reductions(rows, way, end))})" for way in ("plasticity", "L2")
        ]
        lines.append([str(shared), f"{level:.0%}", span([r["a"] for r in rows]), *losses, *counts])
    head = ["shared layers", "A trained to", "A before", *(f"A loses: {way}" for way in figures["ways"])]
    return table([*head, "reduction, plasticity (runs)", "reduction, L2 (runs)"], lines)


def other_model_table(figures: dict[str, Any]) -> str:
    """B's accuracy by case and way."""
    lines = []
    for (shared, level), rows in cases(figures["rows"]).items():
        values = {way: [r["ways"][way]["b"] for r in rows] for way in figures["ways"]}
        gains = [[v - w for v, w in zip(values[way], values["none"], strict=True)] for way in ("plasticity", "L2")]
        lines.append([str(shared), f"{level:.0%}", *(span(v) for v in values.values()), *(span(g) for g in gains)])
    head = ["shared layers", "A trained to", *figures["ways"], "plasticity − none", "L2 − none"]
    return table(head, lines)


def mean_curve(rows: list[Row], way: str) -> list[tuple[float, float]]:
    """Accuracy of A with half of its interval, before the training of B and at each measurement."""
    curves = [[r["a"], *r["ways"][way]["a"]] for r in rows]
    return [interval(list(values)) for values in zip(*curves, strict=True)]


def picture(figures: dict[str, Any]) -> str:
    """SVG: a panel for each case with the accuracy of A by step of B; two columns, which a phone can show."""
    rows_of, every = cases(figures["rows"]), figures["recipe"]["every"]
    columns = [[case for case in rows_of if case[1] == 1], [case for case in rows_of if case[1] < 1]]
    draw = Canvas(PICTURE, LEGEND + PANEL * max(map(len, columns)))
    positions = legend_positions(list(COLOURS), PICTURE, 26)
    for (way, (colour, dashed)), (left, row) in zip(COLOURS.items(), positions, strict=True):
        draw.line((left, 8 + 16 * row), (left + 20, 8 + 16 * row), stroke=colour, width=2, dashed=dashed)
        draw.text(left + 26, 12 + 16 * row, way, size=FONT)
    for column, chosen in enumerate(columns):
        for number, case in enumerate(chosen):
            left, top = 30 + column * PICTURE / 2, LEGEND + 34 + PANEL * number
            field = Field(left, top, left + PICTURE / 2 - 52, top + PANEL - 88)
            x = Scale(0.0, figures["recipe"]["steps"], field.left, field.right, whole=True)
            y = Scale(0.0, 1.0, field.bottom, field.top)
            frame(draw, field, x, y, ("step of B", ""))
            draw.text(field.left, field.top - 10, title(case), size=FONT, bold=True)
            for way, (colour, dashed) in COLOURS.items():
                curve = mean_curve(rows_of[case], way)
                places = [(x(every * k), y(mean)) for k, (mean, _) in enumerate(curve)]
                low = [(x(every * k), y(max(0.0, mean - half))) for k, (mean, half) in enumerate(curve)]
                high = [(x(every * k), y(min(1.0, mean + half))) for k, (mean, half) in enumerate(curve)]
                draw.polygon([*low, *reversed(high)], fill=colour, opacity=0.15)
                draw.line(*places, stroke=colour, width=1.8, dashed=dashed, tip=way)
    ends = {way: mean_curve(rows_of[4, 1.0], way)[-1][0] for way in COLOURS}
    spoken = ", ".join(f"{value:.2f} with {way}" for way, value in ends.items())
    return draw.svg(
        "nk-forgetting",
        "Accuracy of A while B is trained",
        f"Eight panels of accuracy by step of B. All layers shared, A converged: A ends at {spoken}.",
    )


def title(case: tuple[int, float]) -> str:
    shared, level = case
    if level < 1:
        return f"all shared, A at {level:.0%}"
    return "all layers shared" if shared == 4 else f"{shared} layer{'s' * (shared > 1)} shared"


def goals(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """For A trained to convergence and for A stopped early: reductions, and how many reach the goals."""
    groups = cases(figures["rows"])
    results = []
    for name, converged in (("A converged", True), ("A stopped early", False)):
        chosen = [rows for (_, level), rows in groups.items() if (level == 1) == converged]
        rows = [row for some in chosen for row in some]
        gains = [[r["ways"]["plasticity"]["b"] - r["ways"]["none"]["b"] for r in some] for some in chosen]
        result: dict[str, Any] = {"name": name, "runs": len(rows), "cases": len(chosen)}
        result["gains of B"] = [float(np.mean(values)) for values in gains]
        for end in ENDS:
            values = reductions(rows, "plasticity", end)
            result[end] = {
                "runs": len(values), "met": sum(value > GOAL for value in values), "values": values,
            }  # fmt: skip
        results.append(result)
    return results


def goal_lines(figures: dict[str, Any]) -> str:
    """Whether the goals were met, in sentences."""
    lines = []
    for result in goals(figures):
        sentences = []
        for end in ENDS:
            part = result[end]
            if not part["runs"]:
                sentences.append(f"{end[0].upper()}{end[1:]}, A lost more than {LOST} in no run of {result['runs']}.")
                continue
            low, middle = min(part["values"]), float(np.median(part["values"]))
            sentences.append(
                f"{end[0].upper()}{end[1:]}, A lost more than {LOST} in {part['runs']} of {result['runs']} runs. "
                f"The reduction was above {GOAL} in {part['met']} of them (median {middle:.2f}, lowest {low:.2f})."
            )
        gains = result["gains of B"]
        near = sum(value >= -NEAR for value in gains)
        sentences.append(
            f"B was at most {NEAR} below training without plasticity in {near} of {len(gains)} cases "
            f"(mean differences {min(gains):+.3f} to {max(gains):+.3f})."
        )
        lines.append(f"- **{result['name']}.** {' '.join(sentences)}")
    return "\n".join(lines)


def collapse_lines(figures: dict[str, Any]) -> str:
    """Runs in which B ended at chance without plasticity, and the reductions of the other converged runs."""
    collapsed = [r for r in figures["rows"] if r["ways"]["none"]["b"] < CHANCE]
    if not collapsed:
        return "No training of B collapsed."
    others = [r for r in figures["rows"] if r["level"] == 1 and r not in collapsed]
    values = reductions(others, "plasticity", "at the end")
    places = ", ".join(f"{r['shared']} shared layers, seed {r['seed']}" for r in collapsed)
    return (
        f"In {len(collapsed)} of {len(figures['rows'])} runs B collapsed to chance without plasticity ({places}). A's "
        f"loss there is more than forgetting. Without these runs, A lost more than {LOST} at the end in {len(values)} "
        f"converged runs, and the lowest reduction was {min(values):.2f}."
    )


def page(figures: dict[str, Any]) -> str:
    """The whole page, without the summary that `docs/summaries.py` adds."""
    recipe = figures["recipe"]
    return f"""# Forgetting between two models

Made by `python benchmarks/forgetting.py`; {len(figures["rows"])} cases, {figures["cpu_seconds"]:,} s of one thread.

![Accuracy of A while B is trained, for eight cases](forgetting.svg)

Test accuracy of A. Left: A converged, by number of shared layers (figure 1 of the paper). Right: all four layers
shared, A stopped early (figure 3). Lines are means over five seeds, bands 95 % intervals.

## Goals

Forgetting is reduced by more than {GOAL} wherever A lost more than {LOST}, and B is within {NEAR} of training without
plasticity.

{goal_lines(figures)}

{collapse_lines(figures)}

With a converged A, L2 prevents as much as plasticity, and B is as good: on the same data, importance brings nothing
measurable here. It matters if A was stopped early: L2 then costs B far more accuracy.

## Method

Model A is an MLP with four layers, model B one with six (width {recipe["width"]}, ReLU), on {recipe["images"]:,} images
of MNIST with pixels in [0, 1]; accuracy is that of 2,000 test images. B shares the first one, two or three layers of A,
or all four; then B's two private layers lie before the last one. Both are trained by SGD (rate {recipe["rate"]},
momentum {recipe["momentum"]}, batches of {recipe["batch"]}) for {recipe["steps"]} steps. For the lower levels A is
stopped as soon as it reaches that share of its converged validation accuracy. Batch size and scale of the pixels were
chosen on seeds 100 to 102: with batches of 64, or with standardised pixels, some trainings of B collapsed to one class,
which is not forgetting; with clipped gradients A hardly forgot.

- *none*: B is trained as usual.
- *plasticity*: `nk.WeightPlasticity(shared)` with its defaults: per-sample empirical Fisher of 200 validation images,
  divided by its mean, α = 10, proximal step.
- *L2*: the same with importance 1 for every shared weight, which is the mean importance of *plasticity*.

Values are means of five seeds ± half of the 95 % interval (Student). A reduction is 1 − (loss with ÷ loss without), of
the runs in which A lost more than {LOST} without plasticity; their number is in brackets. Above 1, A improved.

## Loss of accuracy of A, mean over B's training

{forgetting_table(figures, "mean over B's training")}

## Loss of accuracy of A at the end of B's training

{forgetting_table(figures, "at the end")}

A negative loss is a gain: the shared weights go on learning the same digits. If A was stopped early, this mostly
outweighs forgetting, and the pull holds both models back.

## Accuracy of B

{other_model_table(figures)}
"""


def write(figures: dict[str, Any]) -> None:
    """Write page and plot."""
    PAGE.with_suffix(".svg").write_text(picture(figures))
    PAGE.write_text(page(figures))
