"""Guards against collapse: skip connections, entropy, the sharpest direction; and what genotype is chosen."""

import math

import pytest
import torch
from torch import Tensor

from nearkin.core.errors import OptionError
from nearkin.search.genotypes.cell import ZEROS
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.methods.darts.guards import Guards, dominant_eigenvalue, entropy, lanczos
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.limited import limit_space
from nearkin.search.spaces.nasbench201 import nasbench201
from nearkin.search.spaces.restricted import restrict_space
from nearkin.search.supernet.choice import (
    choose_genotype,
    edge_weights,
    log_weight,
    mean_share,
    num_skips,
    strongest_genotype,
)
from nearkin.search.supernet.supernet_layout import SupernetLayout

SPACES = (DartsSpace(), DartsSpace(num_nodes=2, reduction=False), GeneralSpace(), nasbench201())


def weighed(space: Space, seed: int = 0, edges: bool = True) -> tuple[SupernetLayout, dict[str, Tensor]]:
    layout = SupernetLayout.of(space)
    drawn = layout.initial(torch.Generator().manual_seed(seed), edges=edges, scale=2.0)
    return layout, edge_weights(layout, drawn)


def skipping(seed: int = 0) -> tuple[SupernetLayout, dict[str, Tensor]]:
    """A supernet that has collapsed: skip connections lead on every edge."""
    layout, found = weighed(DartsSpace(), seed)
    for table in found.values():
        table[:, 3] += 1
    return layout, found


# The choice


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_the_strongest_genotype_is_a_member_and_no_neighbour_is_stronger(space: Space) -> None:
    for seed in range(3):
        layout, found = weighed(space, seed)
        best = choose_genotype(space, layout, found)
        assert space.contains(best)
        mine = log_weight(layout, found, best)
        assert all(log_weight(layout, found, other) <= mine + 1e-12 for other in space.neighbours(best)
                   if isinstance(other, Cells))  # fmt: skip


def test_in_a_small_space_it_is_the_strongest_of_all() -> None:
    space = GeneralSpace((3,), ("zero", "identity", "conv3"))
    layout, found = weighed(space)
    best = max(space.enumerate(), key=lambda one: log_weight(layout, found, one))  # type: ignore[arg-type]
    assert choose_genotype(space, layout, found) == best


def test_nodes_keep_the_edges_whose_best_operation_besides_none_is_strongest() -> None:
    layout = SupernetLayout.of(DartsSpace(("none", "conv3", "conv5"), num_nodes=2, reduction=False))
    table = torch.tensor([[0.9, 0.06, 0.04], [0.1, 0.2, 0.7], [0.8, 0.15, 0.05], [0.5, 0.1, 0.4], [0.5, 0.3, 0.2]])
    text = "normal(0, 1): 2 = conv3(0) + conv5(1); 3 = conv5(1) + conv3(2); out = concat(2, 3)"
    assert strongest_genotype(layout, {"normal": table}) == Genotype.parse(text)


def test_weights_of_edges_decide_which_edges_stay() -> None:
    layout = SupernetLayout.of(DartsSpace(("none", "conv3"), num_nodes=2, reduction=False))
    given = {"alpha/normal": torch.zeros(5, 2), "beta/normal": torch.tensor([0.0, 0.0, 3.0, -3.0, 2.0])}
    cell = strongest_genotype(layout, edge_weights(layout, given)).normal
    assert {edge.source for edge in cell.entering(3)} == {0, 2}


def test_what_is_certain_has_certainty_one_and_what_is_not_the_share_of_a_guess() -> None:
    layout = SupernetLayout.of(DartsSpace())
    even = edge_weights(layout, {f"alpha/{part}": torch.zeros(14, 8) for part in layout.operations})
    assert mean_share(layout, even, strongest_genotype(layout, even)) == pytest.approx(1 / 7)
    sure = torch.zeros(14, 8)
    sure[:, 4] = 50
    found = edge_weights(layout, {f"alpha/{part}": sure for part in layout.operations})
    assert mean_share(layout, found, strongest_genotype(layout, found)) == pytest.approx(1)


# Limits


@pytest.mark.parametrize("most", [0, 1, 2, 5, 8])
def test_no_more_skip_connections_are_chosen_than_allowed(most: int) -> None:
    layout, found = skipping()
    assert num_skips(strongest_genotype(layout, found)) == 8
    best = choose_genotype(DartsSpace(), layout, found, most)
    assert num_skips(best) == most
    assert DartsSpace().contains(best)


def test_the_strongest_skip_connections_stay_and_the_reduction_cell_is_left_alone() -> None:
    layout, found = skipping(3)
    free, bound = (choose_genotype(DartsSpace(), layout, found, most) for most in (None, 3))
    assert bound.reduction == free.reduction
    kept = {edge[:2] for edge in bound.normal.edges if edge.operation == "skip_connect"}
    before = [edge[:2] for edge in free.normal.edges]
    ranked = sorted(before, key=lambda pair: -float(found["normal"][layout.pairs.index(pair), 3]))
    assert kept == set(ranked[:3])


def test_where_only_skip_connections_can_be_chosen_they_are() -> None:
    space = DartsSpace(("none", "skip_connect"), num_nodes=2, reduction=False)
    layout, found = weighed(space)
    assert num_skips(choose_genotype(space, layout, found, 0)) == 4


def test_a_limit_of_the_space_is_kept_to_by_the_strongest_that_does() -> None:
    space = GeneralSpace((3,), ("zero", "identity", "conv3", "conv5"))

    def convolutions(genotype: Genotype) -> int:
        return str(genotype).count("conv")

    layout, found = weighed(space)
    found["normal"][:, 2:] += 1
    assert convolutions(choose_genotype(space, layout, found)) == 3
    bound = limit_space(space, convolutions, 1, name="convolutions")
    best = max(bound.enumerate(), key=lambda one: log_weight(layout, found, one))  # type: ignore[arg-type]
    assert choose_genotype(bound, layout, found) == best


def test_a_restricted_space_gives_one_of_its_own() -> None:
    space = GeneralSpace((3, 4), ("zero", "identity", "conv3", "conv5"))
    part = restrict_space(space, [space.at(27), space.at(64 + 1_234), space.at(64 + 4_000)])
    for seed in range(3):
        layout, found = weighed(part, seed)
        best = choose_genotype(part, layout, found)
        assert part.contains(best)
        four = [one for one in part.enumerate() if isinstance(one, Cells) and one.normal.num_nodes == 4]
        assert log_weight(layout, found, best) == max(log_weight(layout, found, one) for one in four)


def test_zeros_are_chosen_in_complete_cells_and_never_in_those_of_darts() -> None:
    for space, zeros in ((nasbench201(), 6), (DartsSpace(), 0)):
        layout, found = weighed(space)
        for table in found.values():
            table[:, 0] += 10
        names = [name for part in choose_genotype(space, layout, found).operations().values() for name in part]
        assert sum(name in ZEROS for name in names) == zeros


# Early stops


def test_entropy_is_one_where_nothing_is_decided_and_zero_where_all_is() -> None:
    sure = torch.full((4, 3), -1e4)
    sure[:, 1] = 1e4
    assert entropy({"alpha/normal": torch.zeros(4, 3), "beta/normal": torch.randn(4)}) == 1
    assert entropy({"alpha/normal": sure}) == 0
    half = torch.tensor([[0.0, 0.0, -1e4, -1e4]])
    assert entropy({"alpha/normal": half}) == pytest.approx(math.log(2) / math.log(4))


@pytest.mark.parametrize(
    ("course", "stops"),
    [
        ([0.1, 0.1], False),
        ([0.1, 0.1, 0.1], True),
        ([0.19, 0.15, 0.11], False),
        ([0.3, 0.3, 0.3], False),
        ([0.9, 0.105, 0.1, 0.101], True),
    ],
)
def test_a_search_ends_once_its_entropy_is_low_and_stable(course: list[float], stops: bool) -> None:
    assert bool(Guards(window=3, entropy=0.2, change=0.01).settled(course)) == stops
    assert not Guards(window=3, entropy=0.0).settled(course)


@pytest.mark.parametrize(
    ("course", "stops"),
    [
        ([1, 1, 2], False),  # too few to compare
        ([1, 1, 1.3, 1.3], False),
        ([1, 1, 1.3, 1.31], True),
        ([-1, 1, -2, 2], True),  # by size
        ([5, 5, 1, 1], False),
        ([1, 1, 9, 9, 9, 9], False),
    ],
)
def test_a_search_ends_once_the_smoothed_eigenvalue_has_grown(course: list[float], stops: bool) -> None:
    assert bool(Guards(window=2, growth=1.3).grown(course)) == stops
    assert not Guards(window=2).grown(course)


def test_lanczos_finds_the_eigenvalue_of_largest_size() -> None:
    rng = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(40, 40, generator=rng, dtype=torch.float64))
    for values in (torch.linspace(-1, 3, 40), torch.linspace(-4, 3, 40), torch.ones(40), torch.zeros(40)):
        matrix = basis @ torch.diag(values.double()) @ basis.T
        largest = float(values[values.abs().argmax()])
        assert lanczos(lambda v, matrix=matrix: matrix @ v, 40, rng, 40) == pytest.approx(largest, abs=1e-9)
        few = lanczos(lambda v, matrix=matrix: matrix @ v, 40, rng, 10)
        assert abs(few) <= abs(largest) + 1e-9
        assert abs(few) >= 0.9 * abs(largest)


def test_the_dominant_eigenvalue_is_that_of_the_dense_hessian() -> None:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(20, 6, generator=rng, dtype=torch.float64)

    def loss(given: dict[str, Tensor]) -> Tensor:
        return (x @ torch.cat([given["a"].flatten(), given["b"]])).tanh().square().mean()

    given = {"a": torch.randn(2, 2, generator=rng, dtype=torch.float64), "b": torch.randn(2, generator=rng).double()}

    def flat(vector: Tensor) -> Tensor:
        return loss({"a": vector[:4].view(2, 2), "b": vector[4:]})

    dense = torch.autograd.functional.hessian(flat, torch.cat([given["a"].flatten(), given["b"]]))
    values = torch.linalg.eigvalsh(dense)
    truth = float(values[values.abs().argmax()])
    assert dominant_eigenvalue(loss, given, rng, products=6) == pytest.approx(truth, rel=1e-8)


@pytest.mark.parametrize(
    "options", [{"max_skips": -1}, {"entropy": 1.5}, {"change": 0}, {"growth": 1.0}, {"window": 0}, {"products": 0}]
)
def test_guards_out_of_range_are_refused_in_one_line(options: dict[str, float]) -> None:
    with pytest.raises(OptionError) as refused:
        Guards(**options)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
