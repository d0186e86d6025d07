"""Drawing of a graph: nodes in columns by depth, labels of edges in columns between, the output last."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from nearkin.report.drawing.graph_layout import heights
from nearkin.report.labels import text_width
from nearkin.report.svg import Canvas, Point, Style, curve, point
from nearkin.search.genotypes.canonical import Graph
from nearkin.search.genotypes.cell import IDENTITIES, ZEROS

_NODE, _LABEL, _BEND = 28.0, 20.0, 4.0
_AIR = 8.0
_SMALL = 11.0
_NEAR, _FAR = 20.0, 60.0

HEAD, LINE = 6.0, 1.4
"""How far before the tip of an arrow its line ends, and the width of lines."""


@dataclass(frozen=True)
class Item:
    """An item of a column: a node, the label of an edge, or a bend where a long edge passes (without a label)."""

    column: int
    width: float
    height: float
    label: str = ""


@dataclass(frozen=True)
class GraphDrawing:
    """A graph with the positions of all its items.

    Attributes:
        items: nodes in order, the output, then labels and bends.
        num_inputs: how many nodes are inputs.
        num_nodes: how many nodes there are; the output has this number.
        paths: the items along each edge.
        reached: the nodes that an input reaches.
        y: the height of each item's middle, 0 in the middle.
        columns: left and right end of each column.
    """

    items: tuple[Item, ...]
    num_inputs: int
    num_nodes: int
    paths: tuple[tuple[int, ...], ...]
    reached: frozenset[int]
    y: tuple[float, ...]
    columns: tuple[Point, ...]

    @property
    def width(self) -> float:
        """Pixels from left to right."""
        return self.columns[-1][1]

    @property
    def height(self) -> float:
        """Pixels from top to bottom."""
        return 2 * max(abs(y) + item.height / 2 for y, item in zip(self.y, self.items, strict=True))

    def draw(self, draw: Canvas, origin: Point) -> None:
        """Draw the graph; the origin is the middle of its left side."""
        for items in self.paths:
            self._line(draw, items, origin)
        for number, item in enumerate(self.items):
            if item.label:
                self._item(draw, number, item, origin)

    def _middle(self, number: int, origin: Point) -> Point:
        left, right = self.columns[self.items[number].column]
        return origin[0] + (left + right) / 2, origin[1] + self.y[number]

    def _line(self, draw: Canvas, items: Sequence[int], origin: Point) -> None:
        """One line from node to node, horizontal where it passes a column, with an arrow head at its end."""
        role = "arrow" if items[0] in self.reached else "line"
        x, y = self._middle(items[0], origin)
        here = (x + self.items[items[0]].width / 2, y)
        path = f"M{point(here)}"
        for number in items[1:-1]:
            left, right = self.columns[self.items[number].column]
            y = origin[1] + self.y[number]
            path += f"{curve(here, (origin[0] + left, y))}L{point((origin[0] + right, y))}"
            here = (origin[0] + right, y)
        x, y = self._middle(items[-1], origin)
        tip = (x - self.items[items[-1]].width / 2, y)
        draw.path(path + curve(here, (tip[0] - HEAD, y)), stroke=role, width=LINE)
        arrow_head(draw, tip, fill=role)

    def _item(self, draw: Canvas, number: int, item: Item, origin: Point) -> None:
        middle, size = self._middle(number, origin), (item.width, item.height)
        if number > self.num_nodes:
            box(draw, middle, size, fill="panel", stroke=colour_of(item.label), radius=item.height / 2)
            label(draw, middle, item.label, size=_SMALL)
        elif self.num_inputs <= number < self.num_nodes:
            reached = number in self.reached
            box(draw, middle, size, fill="paper", stroke="ink" if reached else "muted", radius=14, dashed=not reached)
            label(draw, middle, item.label, fill="ink" if reached else "muted", bold=reached)
        else:
            box(draw, middle, size, fill="panel", stroke="ink", radius=4)
            label(draw, middle, item.label)


def box(draw: Canvas, middle: Point, size: Point, *, radius: float = 6.0, **style: Unpack[Style]) -> None:
    """A rectangle with round corners around its middle."""
    draw.rect((middle[0] - size[0] / 2, middle[1] - size[1] / 2), size, radius=radius, **style)


def label(
    draw: Canvas, middle: Point, words: str, *, size: float = 12.0, fill: str = "ink", bold: bool = False
) -> None:
    """A text centred at a point."""
    draw.text(middle[0], middle[1] + 0.35 * size, words, size=size, fill=fill, bold=bold, anchor="middle")


def arrow_head(draw: Canvas, tip: Point, *, fill: str, down: bool = False) -> None:
    """The head of an arrow that points to the right, or down."""
    x, y = tip
    back = ((x - 3.5, y - 7), (x + 3.5, y - 7)) if down else ((x - 7, y - 3.5), (x - 7, y + 3.5))
    draw.polygon((tip, *back), fill=fill)


def layout_graph(graph: Graph, inputs: Sequence[str], output: str) -> GraphDrawing:
    """Lay out a graph with names for its inputs and its output; edges without data are left out."""
    edges = sorted((edge for edge in graph.edges if edge.operation not in ZEROS), key=lambda edge: edge.target)
    depth = [0] * graph.num_inputs + [1] * (graph.num_nodes - graph.num_inputs)
    reached = set(range(graph.num_inputs))
    for source, target, _ in edges:
        depth[target] = max(depth[target], depth[source] + 1)
        if source in reached:
            reached.add(target)
    names = [*inputs, *map(str, range(graph.num_inputs, graph.num_nodes)), output]
    items = [
        Item(2 * level, max(_NODE, text_width(name, 12, bold=True) + 14), _NODE, name)
        for level, name in zip((*depth, max(depth) + 1), names, strict=True)
    ]
    paths = []
    for source, target, name in [*edges, *((node, graph.num_nodes, "") for node in graph.output)]:
        between = _between(items[source].column, items[target].column, name)
        paths.append((source, *range(len(items), len(items) + len(between)), target))
        items += between
    links = [link for path in paths for link in itertools.pairwise(path)]
    stacks = [[n for n, item in enumerate(items) if item.column == c] for c in range(items[graph.num_nodes].column + 1)]
    bends = {number for number, item in enumerate(items) if not item.label}
    y = heights(stacks, links, [item.height + _AIR for item in items], bends)
    columns = _columns(items, stacks, links, y)
    return GraphDrawing(
        tuple(items), graph.num_inputs, graph.num_nodes, tuple(paths), frozenset(reached), tuple(y), tuple(columns)
    )


def colour_of(operation: str) -> str:
    """Colour role of an operation: convolutions, pools, identities and all others.

    >>> [colour_of(name) for name in ("sep_conv_3x3", "max3", "skip_connect", "tanh")]
    ['kin', 'target', 'arrow', 'ink']
    """
    if operation in IDENTITIES:
        return "arrow"
    if any(word in operation for word in ("pool", "max", "avg")):
        return "target"
    return "kin" if any(word in operation for word in ("conv", "dil")) else "ink"


def _between(start: int, end: int, name: str) -> list[Item]:
    """Items in the columns between: the label just before the end, bends elsewhere."""
    bends = [Item(column, 0.0, _BEND) for column in range(start + 1, end)]
    return [*bends[:-1], Item(end - 1, text_width(name, _SMALL) + 16, _LABEL, name)] if name else bends


def _columns(
    items: Sequence[Item], stacks: Sequence[Sequence[int]], links: Sequence[tuple[int, int]], y: Sequence[float]
) -> list[Point]:
    """Left and right end of each column; columns that steep lines connect are farther apart."""
    ends: list[Point] = []
    for column, stack in enumerate(stacks):
        climb = max((abs(y[a] - y[b]) for a, b in links if items[b].column == column), default=0.0)
        left = ends[-1][1] + min(_FAR, _NEAR + 0.3 * climb) if ends else 0.0
        ends.append((left, left + max((items[number].width for number in stack), default=0.0)))
    return ends
