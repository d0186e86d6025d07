"""Pictures of the experiments on wells, drawn from their stored figures."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contourpy import contour_generator

from nearkin.distance.reachability.potentials import Potential
from nearkin.distance.reachability.wells import curved_double_well, narrowing_channel
from nearkin.report.axes import FONT, WIDTH, Field, Scale, frame, legend_positions, whisker
from nearkin.report.svg import Canvas, Point, Style

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LEFT, RIGHT = Field(46.0, 34.0, 352.0, 284.0), Field(436.0, 34.0, WIDTH - 8.0, 284.0)
ONE = Field(54.0, 34.0, WIDTH - 8.0, 284.0)
HEIGHT, LEAD = 360, 26.0
TARGET, KIN, INK = (
    Style(stroke="target", width=2.4), Style(stroke="kin", width=1.8), Style(stroke="ink", width=1.4, dashed=True),
)  # fmt: skip


class Panel:
    """Axes in a field of a canvas; shapes are given in values."""

    def __init__(
        self, draw: Canvas, field: Field, x: tuple[float, float], y: tuple[float, float], words: tuple[str, str],
        log: bool = False,
    ) -> None:  # fmt: skip
        self.draw, self.field = draw, field
        self.x, self.y = Scale(*x, field.left, field.right), Scale(*y, field.bottom, field.top + 4, log=log)
        frame(draw, field, self.x, self.y, (words[0], ""))
        draw.text(field.left - 40, field.top - 12, words[1], size=FONT, fill="muted")

    def at(self, x: float, y: float) -> Point:
        """Pixels of a point."""
        return self.x(x), self.y(y)

    def line(self, points: Iterable[Sequence[float]], style: Style) -> None:
        """A line through points."""
        self.draw.line(*(self.at(x, y) for x, y in points), **style)

    def contours(self, potential: Potential, levels: Iterable[float]) -> None:
        """Lines of equal potential."""
        x, y = (torch.linspace(scale.low, scale.high, 101) for scale in (self.x, self.y))
        lines = contour_generator(x, y, potential.value(torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)))
        for level in levels:
            for line in lines.lines(level):
                self.line(np.asarray(line).tolist(), Style(stroke="arrow", width=0.8))

    def legend(self, entries: Mapping[str, Style]) -> None:
        """Names of lines below the field."""
        positions = legend_positions(list(entries), self.field.right - self.field.left, LEAD)
        for (across, row), (name, style) in zip(positions, entries.items(), strict=True):
            x, y = self.field.left + across, self.field.bottom + 52 + 16 * row
            self.draw.line((x, y - 4), (x + LEAD - 6, y - 4), **style)
            self.draw.text(x + LEAD, y, name, size=FONT)


def double_well_density(figures: Mapping[str, Any]) -> tuple[Canvas, str, str]:
    """Paths over time, and the density."""
    draw = Canvas(WIDTH, HEIGHT)
    paths = Panel(draw, LEFT, (0.0, figures["times"][-1]), (-1.9, 1.9), ("time", "position x"))
    for path, colour in zip(figures["paths"], ("kin", "target", "muted"), strict=True):
        paths.line(zip(figures["times"], path, strict=True), Style(stroke=colour, width=0.9))
    top = 1.1 * max(*figures["density"], *figures["predicted"])
    panel = Panel(draw, RIGHT, (-2.0, 2.0), (0.0, top), ("position x", "density"))
    half = (figures["centres"][1] - figures["centres"][0]) / 2
    for centre, value in zip(figures["centres"], figures["density"], strict=True):
        (left, up), (right, down) = panel.at(centre - half, value), panel.at(centre + half, 0.0)
        draw.rect((left, up), (right - left, down - up), fill="kin", opacity=0.35)
    panel.line(zip(figures["x"], figures["predicted"], strict=True), TARGET)
    panel.legend({"simulated": Style(stroke="kin", width=7.0, opacity=0.35), "exp(−U/D), normalised": TARGET})
    text = f"Total variation distance of both densities: {figures['total_variation']:.3f}."
    return draw, "Paths in a double well and their density", text


def escape_times(figures: Mapping[str, Any]) -> tuple[Canvas, str, str]:
    """Mean times on a logarithmic scale against 1/D."""
    draw, rows = Canvas(WIDTH, HEIGHT), figures["rows"]
    panel = Panel(draw, ONE, (7.0, 21.0), (20.0, 1500.0), ("1 / D", "mean time from −1 to 1, logarithmic"), log=True)
    panel.line([(row["inverse"], row["exact"]) for row in rows], KIN)
    panel.line([(row["inverse"], row["kramers"]) for row in rows], INK)
    for row in rows:
        x, spread = row["inverse"], 1.96 * row["error"]
        whisker(draw, panel.at(x, row["simulated"] - spread), panel.at(x, row["simulated"] + spread), stroke="target")
        draw.circle(*panel.at(x, row["simulated"]), 3.6, fill="target")
    names = {kind: f"{figures['slopes'][kind]:.3f}" for kind in ("simulated", "exact", "kramers")}
    panel.legend({
        f"simulated, with 95 % intervals (slope {names['simulated']})": TARGET,
        f"exact integral ({names['exact']})": KIN,
        f"Kramers ({names['kramers']})": INK,
    })  # fmt: skip
    return draw, "Time to cross a barrier against 1/D", f"Slope of the simulated times: {names['simulated']}."


def curved_well(figures: Mapping[str, Any]) -> tuple[Canvas, str, str]:
    """Contours with three paths, and U along them."""
    draw = Canvas(WIDTH, HEIGHT + 16)
    styles = {"straight line": INK, "minimum energy path": TARGET, "least action": KIN}
    panel = Panel(draw, LEFT, (-1.5, 1.5), (-0.6, 1.6), ("x", "y"))
    panel.contours(curved_double_well(), (0.05, 0.15, 0.25, 0.5, 1.0, 1.5, 2.25, 3.5, 5.0))
    for name, style in styles.items():
        panel.line(figures["paths"][name], style)
    for end in (-1.0, 1.0):
        draw.circle(*panel.at(end, 0.0), 4.0, fill="ink")
    draw.circle(*panel.at(*figures["saddle"]), 4.5, fill="paper", stroke="target", width=2.0)
    panel.legend(styles)
    profile = Panel(draw, RIGHT, (0.0, 1.0), (0.0, 2.4), ("share of the path", "U"))
    for name, style in styles.items():
        values = figures["profiles"][name]
        profile.line([(number / (len(values) - 1), value) for number, value in enumerate(values)], style)
    x, y = figures["saddle"]
    text = f"Circle: saddle at ({x:.3f}, {y:.3f}). Barriers: {figures['barrier']:.3f} on the minimum energy path, "
    return draw, "Paths in a curved well", f"{text}{figures['straight_barrier']:.3f} on the straight line."


def channel(figures: Mapping[str, Any]) -> tuple[Canvas, str, str]:
    """The channel with particles, and densities along it."""
    draw = Canvas(WIDTH, HEIGHT + 16)
    panel = Panel(draw, LEFT, (-2.5, 2.5), (-2.0, 2.0), ("x", "y"))
    panel.contours(narrowing_channel(), (0.1, 0.4, 0.8, 1.6, 3.0))
    inside = [panel.at(x, y) for x, y in figures["points"] if abs(x) < 2.5 and abs(y) < 2]
    draw.dots(inside, 1.6, fill="kin", opacity=0.7)
    top = 1.15 * max(max(values) for values in figures["densities"].values())
    densities = Panel(draw, RIGHT, (-2.5, 2.5), (0.0, top), ("x", "density"))
    draw.dots([densities.at(*pair) for pair in zip(figures["centres"], figures["density"], strict=True)], 3.0,
              fill="kin")  # fmt: skip
    styles = {"effective": TARGET, "floor": INK}
    for name, style in styles.items():
        densities.line(zip(figures["x"], figures["densities"][name], strict=True), style)
    densities.legend({"simulated": Style(stroke="kin", width=5.0), "exp(−U_eff/D)": TARGET, "exp(−U/D)": INK})
    right = figures["right"]
    text = f"Share at x > 0: simulated {right['simulated']:.3f}, predicted {right['effective']:.3f}."
    return draw, "A channel that narrows to the right", text


def draw_all(figures: Mapping[str, Any]) -> None:
    """Write one picture for each experiment."""
    for make in (double_well_density, escape_times, curved_well, channel):
        draw, title, text = make(figures[make.__name__])
        name = make.__name__.replace("_", "-")
        (IMAGES / f"wells-{name}.svg").write_text(draw.svg(f"nk-{name}", title, text))
