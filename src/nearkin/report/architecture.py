"""Architectures that were searched: drawings of their cells, the chosen one first."""

from dataclasses import dataclass

from markupsafe import Markup

from nearkin.core.errors import NearkinError
from nearkin.core.text import plain
from nearkin.report.drawing.genotype import drawing
from nearkin.report.svg import svg_width
from nearkin.search.genotypes.genotype import Genotype
from nearkin.solver.result import Result, ordered
from nearkin.solver.solution import Solution

MOST = 4
"""Drawings of a page."""


@dataclass(frozen=True)
class Architecture:
    """A searched network.

    Attributes:
        title: of the contestant.
        chosen: whether it is the answer.
        genotype: its text.
        network: its network string.
        drawn: SVG; empty where the text cannot be read.
        natural: width of the drawing in pixels.
    """

    title: str
    chosen: bool
    genotype: str
    network: str
    drawn: Markup
    natural: int


def architectures(solution: Solution) -> list[Architecture]:
    """The chosen one's if it was searched, then the best of the others, each genotype once."""
    ranked = sorted(ordered(solution.standings), key=lambda one: one.name != solution.chosen)
    first = {one.genotype: one for one in reversed(ranked) if one.genotype}
    kept = [one for one in ranked if first.get(one.genotype) is one]
    return [_drawn(one, place, solution.chosen) for place, one in enumerate(kept[:MOST])]


def _drawn(one: Result, place: int, chosen: str) -> Architecture:
    try:
        svg = drawing(Genotype.parse(one.genotype), name=f"nk-cell-{place}")
    except NearkinError:
        svg = ""
    wide = svg_width(svg) if svg else 0
    return Architecture(
        plain(one.title), one.name == chosen, plain(one.genotype), plain(one.network), Markup(svg), wide
    )


def architecture_words(solution: Solution, found: list[Architecture]) -> str:
    """Whether the answer has cells, and whose are shown."""
    if not found:
        return "No architecture was searched, so there is no cell to draw."
    own = plain(solution.standing.title)
    if found[0].chosen:
        return (
            f"This is the cell of the chosen network, from {own}. The network repeats it; data flow from left to right."
        )
    return (
        f"The chosen model, {own}, has no searched cell. The best one that a search found is that of {found[0].title}; "
        f"it did not win."
    )
