"""Drawings of the cells that searches found, the chosen model's first."""

from dataclasses import dataclass

from markupsafe import Markup

from nearkin.core.errors import NearkinError
from nearkin.core.text import plain
from nearkin.nets.adopted_spec import network_label
from nearkin.report.drawing.genotype_drawing import draw_genotype
from nearkin.report.svg import svg_width
from nearkin.search.genotypes.genotype import Genotype
from nearkin.solver.result import ordered
from nearkin.solver.solution import Solution

MOST = 4
"""Drawings on one page."""


@dataclass(frozen=True)
class CellDrawing:
    """The searched cell of one contender.

    Attributes:
        title: of the contender.
        chosen: whether the contender was chosen.
        genotype: the cell as text.
        network: network string of the whole model.
        svg: drawing of the cell; empty if the genotype cannot be parsed.
        natural: width of the drawing in pixels.
    """

    title: str
    chosen: bool
    genotype: str
    network: str
    svg: Markup
    natural: int


def cell_drawings(solution: Solution) -> list[CellDrawing]:
    """The chosen contender's cell if it has one, then the best of the others, each genotype once."""
    ranked = sorted(ordered(solution.standings), key=lambda result: result.name != solution.chosen)
    unique = {result.genotype: result for result in reversed(ranked) if result.genotype}
    drawings: list[CellDrawing] = []
    for result in [result for result in ranked if unique.get(result.genotype) is result][:MOST]:
        try:
            svg = draw_genotype(Genotype.parse(result.genotype), name=f"nk-cell-{len(drawings)}")
        except NearkinError:
            svg = ""
        texts = (plain(result.genotype), plain(network_label(result.network)))
        chosen = result.name == solution.chosen
        drawings.append(CellDrawing(plain(result.title), chosen, *texts, Markup(svg), svg_width(svg) if svg else 0))
    return drawings


def architecture_text(solution: Solution, drawings: list[CellDrawing]) -> str:
    """Whether the chosen model has a searched cell, and which cell is shown."""
    if not drawings:
        return "No architecture was searched, so there is no cell to draw."
    title = plain(solution.standing.title)
    if drawings[0].chosen:
        return f"This is the cell of the chosen model, found by {title}. Data flow from left to right."
    return (
        f"The chosen model, {title}, has no searched cell. This is the best cell that a search found, by "
        f"{drawings[0].title}; it was not chosen."
    )
