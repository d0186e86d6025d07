import csv
import gzip
import math
import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws.space import SpaceLaws, is_uniform, rng
from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.spaces.base import Space, uniform_index
from nearkin.search.spaces.darts import DARTS_OPERATIONS, DartsSpace
from nearkin.search.spaces.general import GENERAL_OPERATIONS, GeneralSpace
from nearkin.search.spaces.limited import Limit, limit_space
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.nasbench201 import (
    NASBENCH201_OPERATIONS,
    nasbench201,
    nasbench201_arch,
    nasbench201_cell,
    nasbench201_key,
    transnas101,
    transnas101_arch,
    transnas101_cell,
)
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.spaces.restricted import restrict_space, structure

THREE = ("zero", "identity", "conv3")
PLAIN: dict[str, Space] = {
    "one edge": GeneralSpace((2,), THREE),
    "three nodes": GeneralSpace((3,), ("zero", "identity", "conv3", "max3")),
    "two and three nodes": GeneralSpace((2, 3), THREE),
    "without zero": GeneralSpace((2, 3), ("identity", "conv3")),
    "one operation": GeneralSpace((3,), ("conv3",)),
    "four nodes": GeneralSpace((4,), ("none", "skip_connect"), key=nasbench201_key),
    "darts": DartsSpace(("none", "skip_connect", "sep_conv_3x3"), num_nodes=2, reduction=False),
    "darts, one predecessor": DartsSpace(("op1", "op2"), num_nodes=2, num_predecessors=1, num_inputs=1),
    "darts, both cells": DartsSpace(("none", "op1", "op2", "op3"), num_nodes=1),
    "mobile": MobileSpace((2, 2), kernels=(3, 5), expansions=(6,)),
    "mobile, as printed": MobileSpace((1, 2), kernels=(3,), expansions=(3, 6), skip_first=True),
    "recurrent": RecurrentSpace(3, ("tanh", "relu")),
    "recurrent, loose ends": RecurrentSpace(3, ("tanh", "relu"), loose_ends=True),
}
LARGE: list[Space] = [
    GeneralSpace(),
    DartsSpace(),
    nasbench201(),
    transnas101(),
    MobileSpace(),
    RecurrentSpace(),
    RecurrentSpace(12, loose_ends=True),
]


def letters(genotype: Genotype) -> int:
    """A cost that no neighbour relation knows of."""
    return len(re.sub(r"[^a-z]", "", str(genotype)))


def some_of(space: Space, count: int, seed: int = 0) -> list[Genotype]:
    generator = rng(seed)
    return [space.sample(generator) for _ in range(count)]


def middle(space: Space) -> float:
    costs = sorted(map(letters, space.enumerate()))
    return costs[len(costs) // 2]


SPACES: dict[str, Space] = {
    **PLAIN,
    **{f"{name}, restricted": restrict_space(space, some_of(space, 2)) for name, space in PLAIN.items()},
    **{f"{name}, limited": limit_space(space, letters, middle(space)) for name, space in PLAIN.items()},
    "restricted and limited": limit_space(
        restrict_space(PLAIN["three nodes"], some_of(PLAIN["three nodes"], 4)), letters, 27, name="letters"
    ),
}


class TestSpaces(SpaceLaws):
    @pytest.fixture(params=SPACES.values(), ids=SPACES.keys())
    def space(self, request: pytest.FixtureRequest) -> Space:
        space: Space = request.param
        return space


@pytest.mark.parametrize("num_nodes", [2, 3, 4, 5])
@pytest.mark.parametrize("num_operations", [1, 5, 10])
def test_size_of_the_general_space(num_nodes: int, num_operations: int) -> None:
    space = GeneralSpace((num_nodes,), GENERAL_OPERATIONS[:num_operations])
    assert space.size() == num_operations ** (num_nodes * (num_nodes - 1) // 2)


def test_sizes_in_closed_form() -> None:
    assert GeneralSpace().size() == 1_001_000
    assert DartsSpace().size() == (180 * 7**8) ** 2
    assert DartsSpace(reduction=False).size() == 1_037_664_180  # the 10⁹ that the DARTS paper names
    assert nasbench201().size() == 15_625
    assert transnas101().size() == 4_096
    assert MobileSpace(skip_first=True).size() == 7**19
    assert len(MobileSpace().choices()) == 19
    assert RecurrentSpace(12).size() == math.factorial(12) * 4**12


@pytest.mark.parametrize("space", LARGE, ids=lambda space: space.name)
def test_large_spaces_sample_and_mutate_within_and_forth_and_back(space: Space) -> None:
    generator = rng(5)
    for genotype in some_of(space, 10):
        assert space.contains(genotype)
        other = space.mutate(genotype, generator)
        assert space.contains(other)
        assert genotype in space.neighbours(other)
        assert Genotype.parse(str(genotype)) == genotype
    assert len(set(some_of(space, 10))) > 5
    assert space.contains(space.at(0))
    assert space.contains(space.at(space.size() - 1))


@pytest.mark.parametrize("space", LARGE, ids=lambda space: space.name)
def test_spaces_can_be_sent_to_workers(space: Space) -> None:
    sent = pickle.loads(pickle.dumps(space))
    assert some_of(sent, 3) == some_of(space, 3)


def test_counts_of_neighbours_in_closed_form() -> None:
    assert {len(nasbench201().neighbours(genotype)) for genotype in some_of(nasbench201(), 5)} == {6 * 4}
    darts = 2 * (8 * 6 + 2 * (0 + 1 + 2 + 3))
    assert {len(DartsSpace().neighbours(genotype)) for genotype in some_of(DartsSpace(), 3)} == {darts}
    assert {len(MobileSpace().neighbours(genotype)) for genotype in some_of(MobileSpace(), 3)} == {6 * 5 + 13 * 6}
    recurrent = 8 * 3 + sum(range(8))
    assert {len(RecurrentSpace().neighbours(genotype)) for genotype in some_of(RecurrentSpace(), 3)} == {recurrent}


def test_one_node_more_that_only_hands_on_counts_as_the_same_architecture() -> None:
    space = GeneralSpace((3, 4))
    small = space.at(123)
    (large,) = [other for other in space.neighbours(small) if len(other.operations()["normal"]) == 6]
    assert space.unique_key(small) == space.unique_key(large)
    assert small in space.neighbours(large)


def test_spaces_too_large_to_enumerate_say_so() -> None:
    with pytest.raises(OptionError, match=r"darts has 1\.08e\+18 genotypes, too many to enumerate"):
        DartsSpace().enumerate()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_indices_are_uniform(size: int) -> None:
    generator = rng(size)
    counts = [0] * size
    for _ in range(40 * size):
        counts[uniform_index(size, generator)] += 1
    assert size == 1 or is_uniform(counts)


def test_indices_of_many_digits_are_uniform_in_every_part() -> None:
    size = 3 * 2**100
    generator = rng(0)
    drawn = [uniform_index(size, generator) for _ in range(900)]
    assert all(0 <= index < size for index in drawn)
    assert is_uniform([sum(index >> 100 == third for index in drawn) for third in range(3)])
    assert is_uniform([sum(index % 7 == rest for index in drawn) for rest in range(7)])
    with pytest.raises(OptionError, match="no genotype to draw"):
        uniform_index(0, generator)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GeneralSpace(()), "needs numbers of nodes, each once; got none"),
        (lambda: GeneralSpace((3, 3)), "needs numbers of nodes, each once; got 3, 3"),
        (lambda: GeneralSpace((1,)), "at least 2 nodes"),
        (lambda: GeneralSpace((3,), ("a", "a")), "needs operations, each once; got a, a"),
        (lambda: DartsSpace(("none",)), "operations besides zeros, each once; got none"),
        (lambda: DartsSpace(num_predecessors=3), "a node has 1 to 2 predecessors"),
        (lambda: DartsSpace(num_nodes=0), "at least one node"),
        (lambda: MobileSpace((2, 0)), "at least one block"),
        (lambda: MobileSpace(()), "at least one block"),
        (lambda: MobileSpace(kernels=()), "needs kernels"),
        (lambda: RecurrentSpace(0), "at least one node"),
        (lambda: restrict_space(GeneralSpace(), []), "got none"),
        (lambda: restrict_space(limit_space(GeneralSpace(), letters, 50), []), "got none"),
        (
            lambda: restrict_space(limit_space(GeneralSpace(), letters, 99), [GeneralSpace().at(0)]),
            "restrict first, then limit",
        ),
        (lambda: limit_space(GeneralSpace(), letters, math.nan), "must be a number, got nan"),
    ],
)
def test_impossible_options_are_refused(make: Callable[[], Space], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)) as refused:
        make()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("space", "text", "reason"),
    [
        (GeneralSpace(), "chain: skip", "the space has one cell"),
        (GeneralSpace((3,)), "normal(0): 1 = conv3(0); out = 1", "it has 2 nodes, the space has 3"),
        (GeneralSpace((2,)), "normal(0): 1 = conv9(0); out = 1", "it has the operation 'conv9', the space has zero"),
        (GeneralSpace((2,)), "normal(0): 1 = conv3(0); out = 0", "the last node as output"),
        (GeneralSpace((2,)), "normal(0): 1 = nothing; out = 1", "one edge between any two nodes"),
        (DartsSpace(num_nodes=1), "normal(0, 1): 2 = max_pool_3x3(0); out = 2", "normal and reduction cells"),
        (DartsSpace(num_nodes=1, reduction=False), "normal(0): 1 = none(0); out = 1", "2 inputs and 1 further nodes"),
        (
            DartsSpace(num_nodes=1, reduction=False),
            "normal(0, 1): 2 = skip_connect(0) + skip_connect(0); out = 2",
            "does not have 2 different predecessors",
        ),
        (DartsSpace(num_nodes=1, reduction=False), "normal(0, 1): 2 = none(0) + none(1); out = 2", "operation 'none'"),
        (
            DartsSpace(num_nodes=1, reduction=False),
            "normal(0, 1): 2 = none(0) + none(1); out = 1",
            "does not concatenate",
        ),
        (MobileSpace((1,)), "chain: skip", "block 0 is skip, the space has mbconv(expansion=3, kernel=3)"),
        (MobileSpace((1,)), "chain: skip; skip", "it has 2 blocks, the space has 1"),
        (RecurrentSpace(1), "recurrent(0): 1 = tanh(0); 2 = tanh(1); out = mean(2)", "it has 2 nodes"),
        (RecurrentSpace(2), "recurrent(0): 1 = tanh(0); 2 = tanh(1); out = mean(2)", "not the mean of all nodes"),
        (
            RecurrentSpace(2, loose_ends=True),
            "recurrent(0): 1 = tanh(0); 2 = tanh(1); out = mean(1, 2)",
            "not the mean of nodes without successors",
        ),
    ],
)
def test_objections_say_what_is_wrong(space: Space, text: str, reason: str) -> None:
    assert reason in space.objection(Genotype.parse(text))
    with pytest.raises(MismatchError, match=re.escape(reason)):
        space.require_member(Genotype.parse(text))


# Restricted spaces


@pytest.mark.parametrize("name", PLAIN)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_restricted_space_has_the_structures_and_operations_that_were_used_and_no_others(
    name: str, data: st.DataObject
) -> None:
    space = PLAIN[name]
    everything = list(space.enumerate())
    used = data.draw(st.lists(st.sampled_from(everything), min_size=1, max_size=4))
    part = restrict_space(space, used)
    absent = {"zero", "none", "skip"}

    def live(genotype: Genotype) -> dict[str, set[str]]:
        return {key: set(names) - absent for key, names in genotype.operations().items()}

    def bare(genotype: Genotype) -> str:
        """Text in which every operation that is there reads alike."""
        names = {name for several in live(genotype).values() for name in several}
        text = str(genotype)
        for name in sorted(names, key=len, reverse=True):
            text = text.replace(name, "*")
        return text

    pooled = {key: set().union(*(live(genotype)[key] for genotype in used)) for key in used[0].operations()}
    structures = {bare(genotype) for genotype in used}
    expected = {
        genotype
        for genotype in everything
        if bare(genotype) in structures and all(names <= pooled[key] for key, names in live(genotype).items())
    }
    assert set(part.enumerate()) == expected
    assert set(used) <= expected
    assert part.size() == len(expected) <= space.size()
    assert all(part.contains(genotype) == (genotype in expected) for genotype in everything)


def test_restricting_again_to_fewer_gives_less() -> None:
    space = GeneralSpace()
    several = some_of(space, 5)
    once = restrict_space(space, several)
    twice = restrict_space(once, several[:2])
    assert twice.size() <= once.size() <= space.size()
    assert all(once.contains(genotype) for genotype in some_of(twice, 20))
    assert all(twice.contains(genotype) for genotype in several[:2])
    assert once.unique_key(several[0]) == space.unique_key(several[0])


def test_restricted_size_in_closed_form_where_enumeration_is_out_of_reach() -> None:
    """Two structures of the DARTS space with 3 operations in the normal and 2 in the reduction cell."""
    space = DartsSpace()
    text = (
        "normal(0, 1): 2 = {0}(0) + {1}(1); 3 = {0}({3}) + {1}(2); 4 = {0}(0) + {1}(1); 5 = {0}(0) + {2}(1); "
        "out = concat(2, 3, 4, 5) | reduction(0, 1): 2 = max_pool_3x3(0) + avg_pool_3x3(1); "
        "3 = max_pool_3x3(0) + avg_pool_3x3(1); 4 = max_pool_3x3(0) + avg_pool_3x3(1); "
        "5 = max_pool_3x3(0) + avg_pool_3x3(1); out = concat(2, 3, 4, 5)"
    )
    used = [Genotype.parse(text.format("sep_conv_3x3", "skip_connect", "dil_conv_3x3", source)) for source in (0, 1)]
    part = restrict_space(space, used)
    assert part.size() == 2 * 3**8 * 2**8
    assert all(part.contains(genotype) and space.contains(genotype) for genotype in some_of(part, 20))
    names = {name for genotype in some_of(part, 50) for several in genotype.operations().values() for name in several}
    assert names == {"sep_conv_3x3", "skip_connect", "dil_conv_3x3", "max_pool_3x3", "avg_pool_3x3"}


def test_restricting_refuses_genotypes_of_another_space() -> None:
    with pytest.raises(MismatchError, match="is not in the space general"):
        restrict_space(GeneralSpace(), [MobileSpace().at(0)])
    part = restrict_space(GeneralSpace((2,)), [GeneralSpace((2,)).at(4)])
    assert (
        part.objection(GeneralSpace((2,)).at(0))
        == "the space does not have its structure: normal(0): 1 = zero(0); out = 1"
    )
    assert part.objection(GeneralSpace((2,)).at(2)) == "it has the operation 'max3', the space has conv3"
    assert str(structure(GeneralSpace((2,)).at(4))) == "normal(0): 1 = any(0); out = 1"


# Limits


def test_limits_hold_in_everything_that_a_searcher_asks_for() -> None:
    space = limit_space(GeneralSpace(), letters, 32, name="letters")
    generator = rng(2)
    genotype = space.sample(generator)
    for _ in range(30):
        assert letters(genotype) <= 32
        assert all(letters(other) <= 32 for other in space.neighbours(genotype))
        genotype = space.mutate(genotype, generator)
    heavy = next(found for found in some_of(GeneralSpace(), 50) if letters(found) > 32)
    assert not space.contains(heavy)
    with pytest.raises(MismatchError, match=r"its letters is .*, at most 32 are allowed"):
        space.neighbours(heavy)


def test_two_limits() -> None:
    def edges(genotype: Genotype) -> float:
        return sum(name != "zero" for name in genotype.operations()["normal"])

    space = GeneralSpace((3,), THREE)
    both = limit_space(limit_space(space, letters, 22, name="letters"), edges, 2, name="edges")
    expected = {found for found in space.enumerate() if letters(found) <= 22 and edges(found) <= 2}
    assert set(both.enumerate()) == expected
    assert set(some_of(both, 200)) == expected
    assert both.name == "general (letters <= 22) (edges <= 2)"


def test_a_cost_is_asked_for_once_for_each_genotype() -> None:
    asked: list[Genotype] = []

    def cost(genotype: Genotype) -> float:
        asked.append(genotype)
        return letters(genotype)

    space = limit_space(GeneralSpace((3,), THREE), cost, 22)
    some_of(space, 300)
    assert len(asked) == len(set(asked)) <= 27


@pytest.mark.parametrize("space", [GeneralSpace((3,)), GeneralSpace(), DartsSpace()], ids=lambda space: space.name)
def test_an_impossible_limit_is_refused_in_one_line(space: Space) -> None:
    with pytest.raises(OptionError, match=r"no genotype of \w+ has letters <= 3; the lowest found is") as refused:
        limit_space(space, letters, 3, name="letters").sample(rng(0))
    assert "\n" not in str(refused.value)


def test_the_least_that_a_refusal_names_is_the_least_of_a_small_space() -> None:
    space = GeneralSpace((3,))
    least = min(map(letters, space.enumerate()))
    with pytest.raises(OptionError, match=f"the lowest found is {least}"):
        limit_space(space, letters, least - 1).sample(rng(0))
    assert letters(limit_space(space, letters, least).sample(rng(0))) == least


def test_a_limit_that_few_keep_to_is_still_met() -> None:
    """One in 7¹⁶ DARTS cells has identities alone."""

    def others(genotype: Genotype) -> float:
        return sum(name != "skip_connect" for names in genotype.operations().values() for name in names)

    space = limit_space(DartsSpace(), others, 0)
    assert {others(space.sample(rng(seed))) for seed in range(2)} == {0}


def test_a_limit_is_a_value() -> None:
    assert Limit(letters, 5).allows(Genotype.parse("chain: ab")) is False
    assert Limit(letters, 7, "letters").allows(Genotype.parse("chain: ab"))


# Tables


def test_architecture_strings_are_read_and_written() -> None:
    for genotype in some_of(nasbench201(), 30):
        assert nasbench201_cell(nasbench201_arch(genotype)) == genotype
    for genotype in transnas101().enumerate():
        assert transnas101_cell(transnas101_arch(genotype)) == genotype


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (nasbench201_cell, ""),
        (nasbench201_cell, "|none~0|+|none~0|none~1|"),
        (nasbench201_cell, "|none~0|+|none~1|none~0|+|none~0|none~1|none~2|"),
        (nasbench201_cell, "none~0|+|none~0|none~1|+|none~0|none~1|none~2|"),
        (nasbench201_cell, "|none|+|none~0|none~1|+|none~0|none~1|none~2|"),
        (transnas101_cell, "64-41414-4_00_000"),
        (transnas101_cell, "64-41414-0_00_00"),
        (transnas101_cell, "0_00_000"),
    ],
)
def test_bad_architecture_strings_are_refused(read: Callable[[str], Genotype], text: str) -> None:
    with pytest.raises(DataError, match="is written") as refused:
        read(text)
    assert repr(text) in str(refused.value)


def test_architecture_strings_with_strange_operations_are_refused() -> None:
    with pytest.raises(MismatchError, match="it has the operation 'conv', the space has none, skip_connect"):
        nasbench201_cell("|conv~0|+|none~0|none~1|+|none~0|none~1|none~2|")
    with pytest.raises(MismatchError, match="not in the space transnas101"):
        transnas101_arch(nasbench201_cell("|avg_pool_3x3~0|+|none~0|none~1|+|none~0|none~1|none~2|"))


@pytest.fixture(scope="module")
def table(tables: Path) -> Callable[[str], Iterable[dict[str, str]]]:
    def rows(name: str) -> list[dict[str, str]]:
        with gzip.open(tables / f"{name}.csv.gz", "rt") as file:
            return list(csv.DictReader(file))

    return rows


@pytest.mark.realdata
def test_classes_of_nasbench201_are_those_of_the_table(table: Callable[[str], list[dict[str, str]]]) -> None:
    rows = table("nb201")
    space = nasbench201()
    cells = [nasbench201_cell(row["arch_str"]) for row in rows]
    assert len(set(cells)) == space.size() == len(rows)
    keys = [space.unique_key(cell) for cell in cells]
    pairs = {(key, row["unique_index"]) for key, row in zip(keys, rows, strict=True)}
    assert len(pairs) == len(set(keys)) == len({row["unique_index"] for row in rows}) == 6_466


@pytest.mark.realdata
def test_cells_of_transnas_that_measured_alike_are_one_architecture(
    table: Callable[[str], list[dict[str, str]]],
) -> None:
    """Cells whose seven measurements agree to the last digit were trained once for all."""
    found: dict[tuple[str, ...], set[str]] = defaultdict(set)
    space = transnas101()
    rows = table("tnb101_micro")
    for row in rows:
        cell = transnas101_cell(row.pop("arch_str"))
        found[tuple(row.values())].add(space.unique_key(cell))
    assert len(rows) == 4_096
    assert all(len(keys) == 1 for keys in found.values())


def test_names_of_the_benchmarks_operations() -> None:
    assert len(DARTS_OPERATIONS) == 8
    assert len(GENERAL_OPERATIONS) == 10
    assert len(NASBENCH201_OPERATIONS) == 5
