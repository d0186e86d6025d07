"""Summary and page of `benchmarks/forgetting.py`."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from nearkin.search.plasticity.telemetry import reduction
from results import table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "forgetting.md"
LOST = 0.05  # accuracy that A must have lost without plasticity for a reduction to be stated
ENDS = {
    "mean over B's training": lambda a, curve: a - float(np.mean(curve)),
    "at the end": lambda a, curve: a - curve[-1],
}
Row = dict[str, Any]


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval (Student); NaN for fewer than two values."""
    if len(values) < 2:
        return (float(np.mean(values)) if values else float("nan")), float("nan")
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return float(np.mean(values)), float(half)


def span(values: list[float], digits: int = 3) -> str:
    """A mean ± half of its interval."""
    mean, half = interval(values)
    if not values:
        return "–"
    return f"{mean:.{digits}f}" if np.isnan(half) else f"{mean:.{digits}f} ± {half:.{digits}f}"


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


def curve_table(figures: dict[str, Any]) -> str:
    """Accuracy of A while B is trained, all four layers shared."""
    rows = cases(figures["rows"])[4, 1.0]
    steps, count = figures["recipe"]["steps"], len(rows[0]["ways"]["none"]["a"])
    lines = [
        [way, span([r["a"] for r in rows]), *(span([r["ways"][way]["a"][k] for r in rows]) for k in range(count))]
        for way in figures["ways"]
    ]
    return table(["step of B", "0", *(str(steps // count * (k + 1)) for k in range(count))], lines)


def page(figures: dict[str, Any]) -> str:
    """The whole page, without the summary that `docs/summaries.py` adds."""
    recipe = figures["recipe"]
    return f"""# Forgetting between two models

Made by `python benchmarks/forgetting.py`; {len(figures["rows"])} cases, {figures["cpu_seconds"]:,} s of one thread.

## Method

Model A is an MLP with four layers, model B one with six (width {recipe["width"]}, ReLU), on {recipe["images"]:,} images
of MNIST; accuracy is that of 2,000 test images. B shares the first one, two or three layers of A, or all four; then
B's two private layers lie before the last one. Both are trained by SGD (rate {recipe["rate"]}, momentum
{recipe["momentum"]}, batches of {recipe["batch"]}) for {recipe["steps"]} steps. For the lower levels A is stopped as
soon as it reaches that share of its converged validation accuracy.

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

A negative loss is a gain: the shared weights go on learning the same digits. If A was stopped early, this outweighs all
forgetting, and there is nothing to reduce; a strong pull then holds A back.

## Accuracy of A while B is trained

All four layers shared, A converged:

{curve_table(figures)}

## Accuracy of B

{other_model_table(figures)}
"""
