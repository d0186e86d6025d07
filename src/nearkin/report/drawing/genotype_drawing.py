"""Drawings of genotypes as SVG, which follow the reader's colour scheme."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from nearkin.core.errors import OptionError
from nearkin.report.drawing.graph_drawing import HEAD, LINE, GraphDrawing, arrow_head, box, label, layout_graph
from nearkin.report.labels import text_width
from nearkin.report.svg import Canvas, Point
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
_PALE, _DEEP = 0.12, 0.3  # opacity of the smallest and the largest expansion


def draw_genotype(genotype: Genotype, *, name: str = "genotype") -> str:
    """SVG of a genotype: cells side by side, a chain in rows, a recurrent cell; `name` makes its ids unique in a page.

    Blocks of a chain are coloured by kernel and expansion. Nodes have the numbers of the genotype's text. Edges without
    data are left out; a node that no input reaches is dashed.

    >>> svg = draw_genotype(Genotype.parse("normal(0): 1 = conv3(0); 2 = max3(0) + conv5(1); out = 2"))
    >>> svg.startswith("<svg"), ">conv5<" in svg
    (True, True)
    """
    require_name(name, "a drawing")
    draw = Canvas()
    if isinstance(genotype, Chain):
        title, (width, height) = f"Chain of {len(genotype.blocks)} blocks", _chain(draw, genotype.blocks)
    else:
        cells = _cell_drawings(genotype)
        title, (width, height) = f"{' and '.join(cells)} cell".capitalize(), _side_by_side(draw, cells)
    draw.width, draw.height = width + 2 * MARGIN, height + 2 * MARGIN
    return draw.svg(name, title, str(genotype))


def _cell_drawings(genotype: Genotype) -> dict[str, GraphDrawing]:
    """The cells of a genotype by name."""
    if isinstance(genotype, Recurrent):
        graph = Graph(1, len(genotype.nodes) + 1, genotype.edges(), genotype.output)
        return {"recurrent": layout_graph(graph, ("x, h",), "mean")}
    if isinstance(genotype, Cells):
        return {name: _cell_drawing(cell) for name, cell in genotype.parts().items()}
    raise OptionError(f"got a {type(genotype).__name__}; only cells, chains and recurrent cells can be drawn")


def _cell_drawing(cell: Cell) -> GraphDrawing:
    inputs = tuple(f"in {node}" for node in range(cell.num_inputs)) if cell.num_inputs > 1 else ("in",)
    graph = Graph(cell.num_inputs, cell.num_nodes, cell.edges, cell.output)
    return layout_graph(graph, inputs, cell.merge if len(cell.output) > 1 else "out")


def _side_by_side(draw: Canvas, cells: dict[str, GraphDrawing]) -> Point:
    """Draw cells from left to right, each under its name if there are several; returns width and height."""
    heading = _HEADING if len(cells) > 1 else 0.0
    height = max(cell.height for cell in cells.values())
    left = MARGIN
    for name, cell in cells.items():
        if heading:
            label(draw, (left + cell.width / 2, MARGIN + 8), f"{name} cell", size=13, bold=True)
        cell.draw(draw, (left, MARGIN + heading + height / 2))
        left += cell.width + _BETWEEN
    return left - _BETWEEN - MARGIN, heading + height


def _chain(draw: Canvas, blocks: Sequence[Block]) -> Point:
    """Draw blocks in rows of equal boxes, each row joined to the next by a line; returns width and height."""
    words = [[block.name, *(f"{option} {value}" for option, value in block.options)] for block in blocks]
    width = max(text_width(line, 12) for lines in words for line in lines) + 18
    height = _LINE * max(map(len, words)) + 14
    per_row = max(1, int((_ROW + _GAP) // (width + _GAP)))
    spots = [divmod(number, per_row) for number in range(len(blocks))]
    middles = [
        (MARGIN + width / 2 + column * (width + _GAP), MARGIN + height / 2 + row * (height + _TURN))
        for row, column in spots
    ]
    for (x, y), (next_x, next_y) in itertools.pairwise(middles):
        if y == next_y:
            tip = (next_x - width / 2, y)
            draw.line((x + width / 2, y), (tip[0] - HEAD, y), stroke="arrow", width=LINE)
            arrow_head(draw, tip, fill="arrow")
        else:
            tip, turn = (next_x, next_y - height / 2), y + height / 2 + _TURN / 2
            corners = ((x, y + height / 2), (x, turn), (next_x, turn), (next_x, tip[1] - HEAD))
            draw.line(*corners, stroke="arrow", width=LINE)
            arrow_head(draw, tip, fill="arrow", down=True)
    shades = block_shades(blocks)
    for number, (lines, middle, shade) in enumerate(zip(words, middles, shades, strict=True)):
        _block(draw, f"{number}", lines, middle, (width, height), shade)
    rows = -(-len(blocks) // per_row)
    return min(per_row, len(blocks)) * (width + _GAP) - _GAP, rows * (height + _TURN) - _TURN


class Shade(NamedTuple):
    """Colour of a block, as a role of the theme, and its opacity."""

    role: str
    opacity: float


def block_shades(blocks: Sequence[Block]) -> list[Shade | None]:
    """Shade of every block: the colour says its kernel, the opacity its expansion; None without these options.

    The smallest kernel of the chain is blue, the largest orange, others are grey.

    >>> block_shades([Block("mbconv", {"kernel": 3, "expansion": 3}), Block("skip")])
    [Shade(role='kin', opacity=0.12), None]
    """
    pairs = [(_number(block, "kernel"), _number(block, "expansion")) for block in blocks]
    kernels, expansions = (sorted({value for value in values if value}) for values in zip(*pairs, strict=True))
    shades: list[Shade | None] = []
    for kernel, expansion in pairs:
        if not kernel or not expansion:
            shades.append(None)
            continue
        role = "kin" if kernel == kernels[0] else "target" if kernel == kernels[-1] else "arrow"
        share = expansions.index(expansion) / max(1, len(expansions) - 1)
        shades.append(Shade(role, round(_PALE + (_DEEP - _PALE) * share, 3)))
    return shades


def _number(block: Block, option: str) -> float:
    """Value of an option; 0 if the block has none, or no number."""
    value = dict(block.options).get(option)
    return float(value) if isinstance(value, int | float) else 0.0


def _block(
    draw: Canvas, number: str, lines: Sequence[str], middle: Point, size: Point, shade: Shade | None = None
) -> None:
    """A box with the block's number, name and options; dashed if the block is skipped."""
    (x, y), (width, height) = middle, size
    skipped = lines[0] == SKIP
    box(draw, middle, size, fill="paper" if skipped else "panel", stroke="muted" if skipped else "ink", dashed=skipped)
    if shade is not None:
        right, down = width / 2 - 1, height / 2 - 1
        corners = ((x - right, y - down), (x + right, y - down), (x + right, y + down), (x - right, y + down))
        draw.polygon(corners, fill=shade.role, opacity=shade.opacity)
    draw.text(x - width / 2 + 4, y - height / 2 + 12, number, size=9, fill="muted")
    first = y - _LINE * (len(lines) - 1) / 2
    for row, line in enumerate(lines):
        position = (x, first + _LINE * row)
        label(draw, position, line, size=11 if row else 12, fill="muted" if row or skipped else "ink", bold=not row)
