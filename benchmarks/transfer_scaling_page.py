"""The benchmark of scaling as a page of tables and as a plot."""

import itertools
import math
from pathlib import Path
from typing import Any

from nearkin.report.axes import WIDTH, Field, Scale, frame, scale_around
from nearkin.report.labels import spread, text_width
from nearkin.report.svg import Canvas
from results import table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "transfer-scaling.md"
STYLES = {
    "auto": ("target", 2.8, False),
    "function, dense": ("ink", 1.6, True),
    "function, matrix-free": ("kin", 2.0, False),
    "weight, matrix-free": ("kin", 2.0, True),
}
PEER = ("arrow", 1.3, False)
NAME, ROOM = 11.0, 14.0


def counts(figures: dict[str, Any]) -> list[int]:
    """All sizes, rising."""
    return sorted({int(n) for cells in figures["cells"].values() for n in cells})


def shown(figures: dict[str, Any]) -> dict[str, Any]:
    """Methods that were measured anywhere."""
    return {name: cells for name, cells in figures["cells"].items() if points(cells, "cpu")}


def points(cells: dict[str, Any], key: str) -> list[tuple[int, float]]:
    """Sizes and figures of the cells that have them."""
    return sorted((int(n), cell[key]) for n, cell in cells.items() if key in cell)


def slope(cells: dict[str, Any], low: int, high: int) -> float | None:
    """Slope of log time against log N."""
    curve = dict(points(cells, "cpu"))
    if low not in curve or high not in curve:
        return None
    return math.log(curve[high] / curve[low]) / math.log(high / low)


def number(value: float) -> str:
    """A figure of three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def grid(figures: dict[str, Any], key: str) -> str:
    """One figure of every method at every size; a dash where it was not tried, ✗ where it failed."""
    sizes, lines = counts(figures), []
    for name, cells in shown(figures).items():
        text = []
        for n in sizes:
            cell = cells.get(str(n), {})
            text.append(number(cell[key]) if key in cell else "✗" if "refused" in cell else "–")
        lines.append([f"**{name}**" if name in STYLES else name, *text])
    return table(["", *(f"{n:,}" for n in sizes)], lines)


def agreement(figures: dict[str, Any]) -> str:
    """Evidence by ours, and how far the others are from it, relative."""
    sizes, cells = counts(figures), figures["cells"]
    wanted: dict[str, float] = {}
    for n in map(str, sizes):
        for name in ("function, dense", "scikit-learn, kernel given", "function, matrix-free"):
            if "evidence" in cells.get(name, {}).get(n, {}):
                wanted[n] = cells[name][n]["evidence"]
                break
    lines = [["log probability", *(f"{wanted[str(n)]:,.1f}" if str(n) in wanted else "–" for n in sizes)]]
    for name, section in shown(figures).items():
        text = []
        for n in map(str, sizes):
            cell = section.get(n, {})
            if "evidence" in cell and n in wanted:
                text.append(f"{abs(cell['evidence'] / wanted[n] - 1):.0e}")
            elif "log_determinant" in cell and n in figures["dense"]:
                text.append(f"{abs(cell['log_determinant'] / figures['dense'][n]['log_determinant'] - 1):.0e} *")
            else:
                text.append("–")
        lines.append([f"**{name}**" if name in STYLES else name, *text])
    return table(["", *(f"{n:,}" for n in sizes)], lines)


def reasons(figures: dict[str, Any]) -> str:
    """Reason of the first empty cell of every method."""
    lines = []
    for name, cells in figures["cells"].items():
        for n, cell in sorted(cells.items(), key=lambda item: int(item[0])):
            why = cell.get("skipped") or cell.get("refused")
            if why:
                lines.append(f"- {name}, N = {int(n):,}: {why}.")
                break
    return "\n".join(lines)


def slopes(figures: dict[str, Any]) -> str:
    """The growth of ours in words."""
    lines = []
    for name in STYLES:
        curve = slope(figures["cells"].get(name, {}), 3000, 30_000)
        if curve is not None:
            lines.append(f"{curve:.2f} ({name})")
    return ", ".join(lines) if lines else "not measured yet"


def steps(figures: dict[str, Any]) -> str:
    """Steps of conjugate gradients."""
    lines = []
    for name in ("function, matrix-free", "weight, matrix-free"):
        curve = points(figures["cells"].get(name, {}), "steps")
        if curve:
            lines.append(f"{name}: {', '.join(f'{count} at {n:,}' for n, count in curve)}")
    return "; ".join(lines)


def page(figures: dict[str, Any]) -> str:
    """The whole page as Markdown."""
    peak = max((mib for name in STYLES for _, mib in points(figures["cells"].get(name, {}), "mebibytes")), default=0)
    return f"""<!-- written by benchmarks/transfer_scaling.py -->
# Closed-form transfer with many points

Time and memory of the log probability of N targets under a linearized multilayer perceptron 5-200-2000-200-1 (tanh,
{figures["weights"]:,} weights, float64), as in figure 4 of Maddox et al. (2019), but on one thread of a CPU. Noise
{figures["noise"]} and scale {figures["scale"]} are given and the same for all. Every method and size runs in
a separate process; memory is what it needs beyond its start. The network is not trained.

![Seconds by number of points](transfer-scaling.svg)

Process time in seconds:

{grid(figures, "cpu")}

The slope of log time in log N between 3,000 and 30,000: {slopes(figures)}; 1 is linear. Steps of conjugate gradients:
{steps(figures)}. `auto` selects: {spaces(figures)}.

Memory in MiB; at most {peak:,.0f} for nearkin:

{grid(figures, "mebibytes")}

Agreement: the first row is the log probability, the other rows are relative differences from it. It is computed in the
dense function space; for sizes at which that was not tried, by scikit-learn, which is exact too; otherwise in the
matrix-free function space. A star means that only the determinant is compared, with the dense one.

{agreement(figures)}

*function, dense* factors the kernel; *function, matrix-free* (`space="large"`) and *weight, matrix-free*
(`space="large-weight"`) use conjugate gradients with products only, here at every size. Their determinants are
estimates with a target error of 1e-4 per point. *GPyTorch* gets the Jacobian as features of its linear kernel, in
float32, which is its default; from 800 points on its determinant is an estimate, too. *scikit-learn* gets our kernel,
whose time is included, and factors it. *laplace-torch* has three forms that can run at this size. *Functional* is the
same Gaussian process. *Kronecker* and *last layer* approximate or omit curvature, and are fast for that reason. The
marginal likelihood of laplace-torch is that at a mode of the posterior, and these weights are not a mode, so only its
determinant can be compared. In the functional form, its ratio of determinants is the determinant of K + σ²I, and is
compared as such. The machine may have had other work, which affects process time only through shared caches.

Not measured:

{reasons(figures)}
"""


def spaces(figures: dict[str, Any]) -> str:
    """What `auto` chose at every size."""
    curve = points(figures["cells"].get("auto", {}), "space")
    groups = itertools.groupby(curve, key=lambda point: point[1])
    return ", ".join(f"{space} at {', '.join(f'{n:,}' for n, _ in some)}" for space, some in groups)


def picture(figures: dict[str, Any]) -> str:
    """SVG of seconds by N, a curve a method."""
    curves = {name: curve for name, cells in figures["cells"].items() if (curve := points(cells, "cpu"))}
    room = max(text_width(name, NAME, bold=True) for name in curves)
    field = Field(54.0, 30.0, WIDTH - room - 28, 390.0)
    draw = Canvas(WIDTH, 432)
    x = scale_around([float(n) for n in counts(figures)], field.left + 6, field.right - 6, log=True)
    seconds = [max(value, 0.05) for curve in curves.values() for _, value in curve]
    y: Scale = scale_around(seconds, field.bottom, field.top + 4, log=True)
    frame(draw, field, x, y, ("points N, logarithmic", "seconds of process time, logarithmic"))
    ends, order = [], sorted(curves, key=lambda name: name in STYLES)
    for name in order:
        colour, wide, dashed = STYLES.get(name, PEER)
        places = [(x(float(n)), y(max(value, 0.05))) for n, value in curves[name]]
        if len(places) > 1:
            draw.line(*places, stroke=colour, width=wide, dashed=dashed, tip=name)
        for (n, value), point in zip(curves[name], places, strict=True):
            tip = f"{name}: {number(value)} s at {n:,} points"
            draw.circle(*point, 3.2 if name in STYLES else 2.4, fill=colour, tip=tip)
        ends.append(places[-1])
    heights = spread([end[1] for end in ends], ROOM, field.top + 4, field.bottom)
    for name, end, height in zip(order, ends, heights, strict=True):
        left = field.right + 16
        draw.line(end, (max(end[0], field.right) + 4, end[1]), (left - 3, height), width=0.7)
        colour = {"arrow": "muted"}.get(STYLES.get(name, PEER)[0], STYLES.get(name, PEER)[0])
        draw.text(left, height + 4, name, size=NAME, fill=colour, bold=name in STYLES)
    lines = "; ".join(f"{name} {number(curve[-1][1])} s at {curve[-1][0]:,}" for name, curve in curves.items())
    return draw.svg("nk-transfer-scaling", "Seconds of a log probability by number of points", f"{lines}.")


def written(figures: dict[str, Any]) -> str:
    """Write the page and its plot; returns the text of the page."""
    PAGE.with_suffix(".svg").write_text(picture(figures))
    PAGE.write_text(page(figures))
    return PAGE.read_text()
