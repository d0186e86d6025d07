"""Drawings of genotypes as SVG that follows the reader's colour scheme."""

import itertools
from collections.abc import Sequence

from nearkin.core.errors import OptionError
from nearkin.report.drawing.picture import Picture, graph_picture
from nearkin.report.drawing.svg import Point, Sheet, point, text_width
from nearkin.search.genotypes.block import Block
from nearkin.search.genotypes.canonical import Graph
from nearkin.search.genotypes.cell import Cell
from nearkin.search.genotypes.genotype import SKIP, Cells, Chain, Genotype, Recurrent
from nearkin.search.genotypes.notation import require_name

MARGIN = 16.0
"""Pixels around a drawing."""

_HEADING = 26.0
_BETWEEN = 48.0
_ROW = 900.0
_LINE = 15.0
_GAP = 24.0
_TURN = 30.0


def drawing(genotype: Genotype, *, name: str = "genotype") -> str:
    """SVG of a genotype: cells side by side, a chain in rows, a recurrent cell; `name` makes its ids its own in a page.

    Nodes have the numbers of the genotype's text. Edges that carry nothing are left out, a node that nothing reaches is
    dashed.

    >>> svg = drawing(Genotype.parse("normal(0): 1 = conv3(0); 2 = max3(0) + conv5(1); out = 2"))
    >>> svg.startswith("<svg"), ">conv5<" in svg
    (True, True)
    """
    require_name(name, "a drawing")
    sheet = Sheet()
    if isinstance(genotype, Chain):
        title, (width, height) = f"Chain of {len(genotype.blocks)} blocks", _chain(sheet, genotype.blocks)
    else:
        pictures = _pictures(genotype)
        title, (width, height) = f"{' and '.join(pictures)} cell".capitalize(), _side_by_side(sheet, pictures)
    return sheet.svg(name, width + 2 * MARGIN, height + 2 * MARGIN, title, str(genotype))


def _pictures(genotype: Genotype) -> dict[str, Picture]:
    """The cells of a genotype, laid out, by name."""
    if isinstance(genotype, Recurrent):
        graph = Graph(1, len(genotype.nodes) + 1, genotype.edges(), genotype.output)
        return {"recurrent": graph_picture(graph, ("x, h",), "mean")}
    if isinstance(genotype, Cells):
        return {part: _cell_picture(cell) for part, cell in genotype.parts().items()}
    raise OptionError(f"cells, chains and recurrent cells can be drawn, got {type(genotype).__name__}")


def _cell_picture(cell: Cell) -> Picture:
    inputs = tuple(f"in {node}" for node in range(cell.num_inputs)) if cell.num_inputs > 1 else ("in",)
    graph = Graph(cell.num_inputs, cell.num_nodes, cell.edges, cell.output)
    return graph_picture(graph, inputs, cell.merge if len(cell.output) > 1 else "out")


def _side_by_side(sheet: Sheet, pictures: dict[str, Picture]) -> Point:
    """The pictures from left to right, each under its name where there are several; gives the room they take."""
    heading = _HEADING if len(pictures) > 1 else 0.0
    height = max(picture.height for picture in pictures.values())
    left = MARGIN
    for name, picture in pictures.items():
        if heading:
            sheet.text((left + picture.width / 2, MARGIN + 8), f"{name} cell", size=13, bold=True)
        picture.draw(sheet, (left, MARGIN + heading + height / 2))
        left += picture.width + _BETWEEN
    return left - _BETWEEN - MARGIN, heading + height


def _chain(sheet: Sheet, blocks: Sequence[Block]) -> Point:
    """Blocks in rows of equal boxes, each row joined to the next by a line; gives the room they take."""
    words = [[block.name, *(f"{option} {value}" for option, value in block.options)] for block in blocks]
    width = max(text_width(line) for lines in words for line in lines) + 18
    height = _LINE * max(map(len, words)) + 14
    per_row = max(1, int((_ROW + _GAP) // (width + _GAP)))
    spots = [divmod(place, per_row) for place in range(len(blocks))]
    middles = [
        (MARGIN + width / 2 + column * (width + _GAP), MARGIN + height / 2 + row * (height + _TURN))
        for row, column in spots
    ]
    for (x, y), (next_x, next_y) in itertools.pairwise(middles):
        if y == next_y:
            tip = (next_x - width / 2, y)
            sheet.line(f"M{point((x + width / 2, y))}H{tip[0] - 6:g}", stroke="arrow")
            sheet.head(tip, fill="arrow")
        else:
            tip, turn = (next_x, next_y - height / 2), y + height / 2 + _TURN / 2
            sheet.line(f"M{point((x, y + height / 2))}V{turn:g}H{next_x:g}V{tip[1] - 6:g}", stroke="arrow")
            sheet.head(tip, fill="arrow", down=True)
    for place, (lines, middle) in enumerate(zip(words, middles, strict=True)):
        _block(sheet, f"{place}", lines, middle, (width, height))
    rows = -(-len(blocks) // per_row)
    return min(per_row, len(blocks)) * (width + _GAP) - _GAP, rows * (height + _TURN) - _TURN


def _block(sheet: Sheet, number: str, lines: Sequence[str], middle: Point, size: Point) -> None:
    """A box with the block's number, name and options; dashed where the block is skipped."""
    (x, y), (width, height) = middle, size
    skipped = lines[0] == SKIP
    sheet.box(middle, size, fill="paper" if skipped else "panel", stroke="muted" if skipped else "ink", dashed=skipped)
    sheet.text((x - width / 2 + 4 + text_width(number, 9) / 2, y - height / 2 + 9), number, size=9, fill="muted")
    first = y - _LINE * (len(lines) - 1) / 2
    for place, line in enumerate(lines):
        where = (x, first + _LINE * place)
        sheet.text(where, line, size=11 if place else 12, fill="muted" if place or skipped else "ink", bold=not place)
