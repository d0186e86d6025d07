import itertools
import math
import random
import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.core.errors import MismatchError, NearkinError, OptionError
from nearkin.search.genotypes.block import Block
from nearkin.search.genotypes.canonical import Edge
from nearkin.search.genotypes.cell import Cell
from nearkin.search.genotypes.genotype import Cells, Chain, Genotype, Recurrent, RecurrentNode
from nearkin.search.genotypes.notation import NAME

NAMES = st.from_regex(NAME, fullmatch=True).filter(lambda name: name != "nothing")
OPERATIONS = st.sampled_from(["conv3", "max3", "identity", "zero", "none", "skip_connect"])
VALUES = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), NAMES)


@st.composite
def cells(draw: st.DrawFn, names: st.SearchStrategy[str] = OPERATIONS, most: int = 4) -> Cell:
    inputs = draw(st.integers(1, 2))
    nodes = inputs + draw(st.integers(0, most))
    pairs = [(source, target) for target in range(inputs, nodes) for source in range(target)]
    places = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    edges = tuple(Edge(*pair, draw(names)) for pair in places)
    output = draw(st.lists(st.integers(0, nodes - 1), unique=True, max_size=3))
    return Cell(inputs, nodes, edges, tuple(output), draw(st.sampled_from(["concat", "sum"])))


@st.composite
def recurrent_cells(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES) -> Recurrent:
    number = draw(st.integers(1, 6))
    nodes = tuple(RecurrentNode(draw(st.integers(0, node)), draw(names)) for node in range(number))
    return Recurrent(nodes, tuple(draw(st.lists(st.integers(1, number), unique=True))))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    return Block(draw(NAMES), draw(st.dictionaries(NAMES, VALUES, max_size=3)))


chains = st.lists(blocks(), min_size=1, max_size=4).map(lambda several: Chain(tuple(several)))
both_cells = st.builds(Cells, cells(NAMES), st.none() | cells(NAMES))
genotypes = st.one_of(both_cells, chains, recurrent_cells())


@given(genotypes)
@settings(deadline=None)
def test_text_is_read_back_exactly(genotype: Genotype) -> None:
    read = Genotype.parse(str(genotype))
    assert read == genotype
    assert hash(read) == hash(genotype)
    assert str(read) == str(genotype)
    assert "\n" not in str(genotype)


@given(genotypes, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_white_space_does_not_matter(genotype: Genotype, rng: random.Random) -> None:
    text = str(genotype)
    assert Genotype.parse(text.replace(" ", "")) == genotype
    assert Genotype.parse(re.sub(" ", lambda _: rng.choice(["  ", "\n", "\t", " "]), f" {text} ")) == genotype


@given(genotypes)
@settings(deadline=None)
def test_operations_can_be_put_back(genotype: Genotype) -> None:
    assert genotype.with_operations(genotype.operations()) == genotype
    with pytest.raises(MismatchError, match="operations"):
        genotype.with_operations({part: [*names, "conv3"] for part, names in genotype.operations().items()})


@given(genotypes, st.data())
@settings(deadline=None)
def test_damaged_text_is_read_or_refused_in_one_line(genotype: Genotype, data: st.DataObject) -> None:
    text = str(genotype)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 3)))
    damaged = text[:start] + data.draw(st.text(" ()=;|,+0129.-xeo\n\x00", max_size=3)) + text[end:]
    refusal = ""
    try:
        assert Genotype.parse(str(Genotype.parse(damaged))) == Genotype.parse(damaged)
    except NearkinError as refused:
        refusal = str(refused)
    assert not refusal or re.fullmatch(r"genotype, position \d+: expected .+, got .+", refusal)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "position 0: expected normal(…), chain or recurrent(0), got the end"),
        ("cell(0): out = 0", "position 0: expected normal(…), chain or recurrent(0), got 'cell(0): out = 0'"),
        ("normal: out = 0", "position 6: expected '(', got ': out = 0'"),
        ("normal(1): out = 0", "position 7: expected input 0, got '1): out = 0'"),
        ("normal(0): 2 = a(0); out = 2", "position 11: expected node 1 or out, got '2 = a(0); out = 2'"),
        ("normal(0): 1 = a(1); out = 1", "position 17: expected a node before 1, got '1); out = 1'"),
        ("normal(0): 1 = ; out = 1", "position 15: expected an operation or nothing, got '; out = 1'"),
        ("normal(0): 1 = a(0) out = 1", "position 20: expected ';', got 'out = 1'"),
        ("normal(0): 1 = a(0); out = 7", "expected concat(…), sum(…), nothing or a node before 2, got '7'"),
        ("normal(0): 1 = a(0); out = sum(0, 0)", "position 34: expected a node from 0 to 1, each once, got '0)'"),
        ("normal(0): 1 = a(0); out = 1 |", "position 30: expected reduction(…), got the end"),
        ("normal(0): 1 = a(0); out = 1; 2", "position 28: expected the end, got '; 2'"),
        ("chain: mbconv(kernel=)", "position 21: expected a number or name for kernel, got ')'"),
        ("chain: a(k=1.2.3)", "position 11: expected a number or name for k, got '1.2.3)'"),
        ("chain: a(k=1e999)", "position 11: expected a number or name for k, got '1e999)'"),
        ("chain: a(k=1, k=2)", "position 14: expected an option that was not given before, got 'k=2)'"),
        ("recurrent(0): out = mean(1)", "position 14: expected node 1, got 'out = mean(1)'"),
        ("recurrent(0): 1 = relu(0); out = mean(2)", "position 38: expected a node from 1 to 1, each once"),
        ("normal(0): 1 = a(" + "9" * 5000, "position 17: expected a node before 1, got '99999999999999999999…'"),
    ],
)
def test_bad_text_is_refused_with_what_was_wanted_and_where(text: str, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        Genotype.parse(text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cell(0, 2, (), ()), "a cell has at least one input, got 0"),
        (lambda: Cell(2, 1, (), ()), "got 2 among 1 nodes"),
        (lambda: Cell(1, 3, (Edge(2, 1, "a"),), (1,)), "edges go from a node to a later one"),
        (lambda: Cell(2, 3, (Edge(0, 1, "a"),), (1,)), "to a later one from 2 to 2"),
        (lambda: Cell(1, 2, (Edge(0, 1, "a b"),), (1,)), "an operation must be a name of letters"),
        (lambda: Cell(1, 2, (Edge(0, 1, "nothing"),), (1,)), "an operation must be a name of letters"),
        (lambda: Cell(1, 2, (), (2,)), "the output names nodes from 0 to 1"),
        (lambda: Cell(1, 2, (), (1, 1)), "each once"),
        (lambda: Cell(1, 2, (), (0, 1), "mean"), "merged by concat or sum, got 'mean'"),
        (lambda: Chain(()), "a chain has at least one block"),
        (lambda: Block("a", {"k": math.nan}), "finite number or a name, got nan"),
        (lambda: Block("a", {"k": "3 4"}), "value of a's option k must be a name"),
        (lambda: Block("a", [("k", 1), ("k", 2)]), "given twice"),
        (lambda: Recurrent(()), "at least one node"),
        (lambda: Recurrent((RecurrentNode(1, "tanh"),)), "node 1 follows an earlier one, got 1"),
        (lambda: Recurrent((RecurrentNode(0, "tanh"),), (2,)), "from 1 to 1"),
    ],
)
def test_values_are_checked_at_birth(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(OptionError, match=re.escape(message)) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_the_order_of_edges_outputs_and_options_is_not_part_of_the_value() -> None:
    edges = (Edge(0, 1, "a"), Edge(0, 2, "b"), Edge(1, 2, "a"))
    for order in itertools.permutations(edges):
        assert Cell(1, 3, order, (2, 1)) == Cell(1, 3, edges, (1, 2))
    assert Cell(1, 2, (), (1,), "sum") == Cell(1, 2, (), (1,), "concat")
    assert Cell(1, 2, (), (0, 1), "sum") != Cell(1, 2, (), (0, 1), "concat")
    assert Block("a", {"x": 1, "y": 2.0}) == Block("a", {"y": 2, "x": 1})
    assert str(Block("a", {"y": 2.0})) == "a(y=2)"


def test_a_block_tells_its_options() -> None:
    assert Block("a", {"x": 0.25})["x"] == 0.25
    with pytest.raises(MismatchError, match=r"a\(x=1\) has no option 'y'"):
        Block("a", {"x": 1})["y"]


# Isomorphism, against brute force


def relabellings(cell: Cell) -> Iterator[Cell]:
    """The cell with its inner nodes numbered in every way in which edges still go upwards."""
    inner = range(cell.num_inputs, cell.num_nodes)
    for order in itertools.permutations(inner):
        number = {**{node: node for node in range(cell.num_inputs)}, **dict(zip(inner, order, strict=True))}
        edges = tuple(Edge(number[source], number[target], name) for source, target, name in cell.edges)
        if all(edge.source < edge.target for edge in edges):
            yield Cell(cell.num_inputs, cell.num_nodes, edges, tuple(number[node] for node in cell.output), cell.merge)


def brute_class(cell: Cell) -> object:
    """The least list of live edges over all numberings of inner nodes whatsoever."""
    edges = [edge for edge in cell.edges if edge.operation not in ("zero", "none")]

    def fed(node: int) -> bool:
        return node < cell.num_inputs or any(fed(edge.source) for edge in edges if edge.target == node)

    def used(node: int) -> bool:
        return node in cell.output or any(used(edge.target) for edge in edges if edge.source == node)

    live = [node for node in range(cell.num_inputs, cell.num_nodes) if fed(node) and used(node)]
    kept = [edge for edge in edges if fed(edge.source) and used(edge.target)]
    forms = []
    for order in itertools.permutations(range(len(live))):
        number = {node: f"n{place}" for node, place in zip(live, order, strict=True)}
        named = sorted((number.get(s, f"in{s}"), number.get(t, f"in{t}"), name) for s, t, name in kept)
        output = sorted(number.get(node, f"in{node}") for node in cell.output if fed(node))
        forms.append((named, output))
    named, output = min(forms)
    return tuple(named), tuple(output), cell.merge if len(output) > 1 else ""


@pytest.mark.parametrize("output", [(3,), (1, 3), (1, 2, 3)])
def test_canonical_classes_of_all_cells_of_four_nodes_are_those_of_brute_force(output: tuple[int, ...]) -> None:
    pairs = [(source, target) for target in range(1, 4) for source in range(target)]
    found: dict[Cell, object] = {}
    for names in itertools.product(("zero", "a", "b"), repeat=6):
        edges = tuple(Edge(*pair, name) for pair, name in zip(pairs, names, strict=True))
        cell = Cell(1, 4, edges, output)
        assert found.setdefault(cell.canonical(), brute_class(cell)) == brute_class(cell)
    assert len(set(found.values())) == len(found) > 50


@given(cells(), cells())
@settings(deadline=None)
def test_canonical_forms_are_equal_where_brute_force_says_so(one: Cell, other: Cell) -> None:
    assert (one.canonical() == other.canonical()) == (
        brute_class(one) == brute_class(other) and one.num_inputs == other.num_inputs
    )
    assert brute_class(one.canonical()) == brute_class(one)


@given(cells(), st.booleans(), st.booleans())
@settings(deadline=None)
def test_canonical_forgets_numbers_and_is_itself_canonical(cell: Cell, fold: bool, strided: bool) -> None:
    form = cell.canonical(fold_identities=fold, strided=strided)
    assert form.canonical(fold_identities=fold, strided=strided) == form
    assert {other.canonical(fold_identities=fold, strided=strided) for other in relabellings(cell)} == {form}


def value(cell: Cell, inputs: tuple[float, ...]) -> list[float]:
    """What the cell computes where every operation is an odd function; outputs that are zero are left out."""
    slopes = {"conv3": 0.7, "max3": -1.9}
    values = [*inputs[: cell.num_inputs], *[0.0] * (cell.num_nodes - cell.num_inputs)]
    for source, target, name in cell.edges:
        if name in ("identity", "skip_connect"):
            values[target] += values[source]
        elif name not in ("zero", "none"):
            values[target] += math.tanh(slopes[name] * values[source])
    shown = sorted(values[node] for node in cell.output if values[node])
    return [sum(shown)] if cell.merge == "sum" else shown


@given(cells(most=5), st.booleans())
@settings(deadline=None)
def test_canonical_computes_the_same(cell: Cell, fold: bool) -> None:
    inputs = (0.83, -0.31)
    form = cell.canonical(fold_identities=fold)
    if len(form.output) < 2 <= len(cell.output) and cell.merge == "sum":
        assert sum(value(form, inputs)) == pytest.approx(sum(value(cell, inputs)))
    else:
        assert value(form, inputs) == pytest.approx(value(cell, inputs))


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("normal(0): 1 = conv3(0); 2 = identity(1); out = 2", "normal(0): 1 = conv3(0); out = 1"),
        ("normal(0): 1 = identity(0); out = 1", "normal(0): out = 0"),
        (
            "normal(0): 1 = a(0); 2 = b(0) + identity(1); out = 2",
            "normal(0): 1 = a(0) + b(0); out = 1",
        ),
        (
            "normal(0): 1 = a(0); 2 = identity(1); out = concat(1, 2)",
            "normal(0): 1 = a(0); 2 = identity(1); out = concat(1, 2)",
        ),
        (
            "normal(0): 1 = a(0) | reduction(0): 1 = identity(0); 2 = identity(1); out = 2".replace(
                "0) |", "0); out = 1 |"
            ),
            "normal(0): 1 = a(0); out = 1 | reduction(0): 1 = identity(0); out = 1",
        ),
        ("normal(0): 1 = zero(0); 2 = a(1); out = 2", "normal(0): out = nothing"),
    ],
)
def test_what_folding_identities_gives(text: str, folded: str) -> None:
    assert str(Genotype.parse(text).canonical(fold_identities=True)) == folded


@given(recurrent_cells(st.sampled_from(["tanh", "relu"])), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_recurrent_cells_forget_the_numbers_of_nodes(genotype: Recurrent, rng: random.Random) -> None:
    order = list(range(1, len(genotype.nodes) + 1))
    rng.shuffle(order)
    number = {0: 0}
    while len(number) <= len(order):  # in a random order in which predecessors come first
        ready = [n for n in order if n not in number and genotype.nodes[n - 1].predecessor in number]
        number[ready[0]] = len(number)
    nodes = [RecurrentNode(0, "")] * len(order)
    for old in order:
        predecessor, activation = genotype.nodes[old - 1]
        nodes[number[old] - 1] = RecurrentNode(number[predecessor], activation)
    other = Recurrent(tuple(nodes), tuple(number[node] for node in genotype.output))
    assert other.canonical() == genotype.canonical()
    assert genotype.canonical().canonical() == genotype.canonical()


def test_unneeded_nodes_of_recurrent_cells_go() -> None:
    genotype = Genotype.parse("recurrent(0): 1 = tanh(0); 2 = relu(0); 3 = identity(1); out = mean(3)")
    assert str(genotype.canonical(fold_identities=True)) == "recurrent(0): 1 = tanh(0); 2 = identity(1); out = mean(2)"


def test_many_nodes_that_look_alike_take_no_factorial_time() -> None:
    """Twelve equal chains have 12! automorphisms."""
    rng = random.Random(0)
    forms = set()
    start = time.perf_counter()
    for _ in range(2):
        first, second = list(range(1, 13)), list(range(13, 25))
        rng.shuffle(first)
        rng.shuffle(second)
        pairs = zip(first, second, strict=True)
        edges = (
            [Edge(0, a, "a") for a in first] + [Edge(a, b, "b") for a, b in pairs] + [Edge(b, 25, "a") for b in second]
        )
        forms.add(Cell(1, 26, tuple(edges), (25,)).canonical())
    assert len(forms) == 1
    assert time.perf_counter() - start < 30
