"""What every search space must hold to.

A test class inherits `SpaceLaws` and gives a fixture `space`: one that is small enough to look at every genotype.
"""

import math
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from torch import Generator

from nearkin.core.errors import MismatchError, OptionError
from nearkin.search.genotypes.cell import IDENTITIES, ZEROS, Cell
from nearkin.search.genotypes.genotype import Cells, Chain, Genotype, Recurrent
from nearkin.search.spaces.base import Space

FOREIGN = [
    "normal(0, 1, 2): 3 = conv3(0); out = concat(2, 3)",
    "chain: other(size=1)",
    "recurrent(0): 1 = sine(0); out = mean(1)",
]


def rng(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def decisions(genotype: Genotype) -> Counter[tuple[object, ...]]:
    """Every edge, block or node with all that is decided of it."""
    if isinstance(genotype, Cells):
        return Counter((part, *edge) for part, cell in genotype.parts().items() for edge in cell.edges)
    if isinstance(genotype, Chain):
        return Counter(enumerate(genotype.blocks))
    assert isinstance(genotype, Recurrent)
    return Counter((number, *node) for number, node in enumerate(genotype.nodes))


def one_apart(one: Genotype, other: Genotype) -> bool:
    """Whether just one edge, block or node differs, and that in one respect; or one node more changes nothing."""
    lost = list((decisions(one) - decisions(other)).elements())
    won = list((decisions(other) - decisions(one)).elements())
    if len(lost) == len(won) == 1:
        return sum(a != b for a, b in zip(lost[0], won[0], strict=True)) == 1
    return grown(one, other) or grown(other, one)


def grown(small: Genotype, large: Genotype) -> bool:
    """Whether the large cell is the small one whose output an identity hands on to one more node."""
    if not (isinstance(small, Cells) and isinstance(large, Cells)):
        return False
    if large.normal.num_nodes != small.normal.num_nodes + 1:
        return False
    *zeros, identity = large.normal.entering(small.normal.num_nodes)
    same = large.normal.edges[: len(small.normal.edges)] == small.normal.edges
    return same and {edge.operation for edge in zeros} <= {"zero", "none"} and identity.operation == "identity"


def computed(genotype: Genotype) -> object:
    """What comes out where operations are odd functions of numbers, rounded; of a chain, the blocks that are there."""
    if isinstance(genotype, Cells):
        return [_cell_value(cell) for cell in genotype.parts().values()]
    if isinstance(genotype, Chain):
        return [block for block in genotype.blocks if block.name != "skip"]
    assert isinstance(genotype, Recurrent)
    values = [0.83]
    for node in genotype.nodes:
        values.append(_odd(node.activation, values[node.predecessor]))
    return round(sum(values[node] for node in genotype.output), 9)


def _cell_value(cell: Cell) -> list[float]:
    values = [0.83, -0.31][: cell.num_inputs] + [0.0] * (cell.num_nodes - cell.num_inputs)
    for source, target, name in cell.edges:
        if name in IDENTITIES:
            values[target] += values[source]
        elif name not in ZEROS:
            values[target] += _odd(name, values[source])
    return sorted(round(values[node], 9) for node in cell.output)


def _odd(name: str, value: float) -> float:
    return math.tanh(math.sin(sum(map(ord, name))) * value)


def is_uniform(counts: list[int]) -> bool:
    return float(chisquare(counts).pvalue) > 1e-4


class SpaceLaws:
    def test_size_is_what_enumeration_gives_and_nothing_comes_twice(self, space: Space) -> None:
        everything = list(space.enumerate())
        assert space.size() == len(everything) == len(set(everything)) > 0
        assert all(space.contains(genotype) for genotype in everything)
        assert [space.at(index) for index in range(min(20, len(everything)))] == everything[:20]

    def test_numbers_beyond_the_last_are_refused(self, space: Space) -> None:
        for index in (-1, space.size()):
            with pytest.raises(OptionError, match=f"there is no genotype {index}"):
                space.at(index)

    def test_text_of_every_genotype_is_read_back(self, space: Space) -> None:
        assert all(Genotype.parse(str(genotype)) == genotype for genotype in space.enumerate())

    def test_samples_are_uniform(self, space: Space) -> None:
        everything = list(space.enumerate())
        generator = rng(0)
        counts = Counter(space.sample(generator) for _ in range(20 * len(everything)))
        assert counts.keys() <= set(everything)
        assert len(everything) == 1 or is_uniform([counts[genotype] for genotype in everything])

    def test_the_same_state_gives_the_same_genotypes(self, space: Space) -> None:
        one, other = rng(3), rng(3)
        torch.manual_seed(1)
        first = [space.sample(one) for _ in range(5)]
        first += [space.mutate(genotype, one) for genotype in first]
        torch.manual_seed(2)
        second = [space.sample(other) for _ in range(5)]
        second += [space.mutate(genotype, other) for genotype in second]
        assert first == second
        assert torch.equal(one.get_state(), other.get_state())

    def test_neighbours_are_exactly_those_one_decision_apart(self, space: Space) -> None:
        everything = list(space.enumerate())
        for genotype in everything[:: max(1, len(everything) // 6)]:
            neighbours = space.neighbours(genotype)
            assert len(neighbours) == len(set(neighbours))
            assert set(neighbours) == {other for other in everything if one_apart(genotype, other)}

    def test_neighbours_are_symmetric(self, space: Space) -> None:
        neighbours = {genotype: set(space.neighbours(genotype)) for genotype in space.enumerate()}
        assert all(genotype in neighbours[other] for genotype, others in neighbours.items() for other in others)
        assert not any(genotype in others for genotype, others in neighbours.items())

    def test_mutations_are_neighbours_all_alike(self, space: Space) -> None:
        generator = rng(1)
        genotype = max(space.enumerate(), key=lambda found: len(space.neighbours(found)))
        neighbours = space.neighbours(genotype)
        counts = Counter(space.mutate(genotype, generator) for _ in range(20 * max(1, len(neighbours))))
        if neighbours:
            assert counts.keys() <= set(neighbours)
            assert len(neighbours) == 1 or is_uniform([counts[other] for other in neighbours])
        else:
            assert counts.keys() == {genotype}

    def test_genotypes_of_one_key_compute_the_same(self, space: Space) -> None:
        found: dict[str, object] = {}
        for genotype in space.enumerate():
            result = computed(genotype)
            assert found.setdefault(space.unique_key(genotype), result) == result

    @pytest.mark.parametrize("text", FOREIGN)
    def test_genotypes_of_other_spaces_are_refused_in_one_line(self, space: Space, text: str) -> None:
        genotype = Genotype.parse(text)
        assert not space.contains(genotype)
        for attempt in (space.neighbours, lambda found: space.mutate(found, rng(0))):
            with pytest.raises(MismatchError, match="is not in the space") as refused:
                attempt(genotype)
            assert "\n" not in str(refused.value)
            assert space.name in str(refused.value)
