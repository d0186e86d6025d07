import csv
import gzip
import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.core.errors import OptionError
from nearkin.search.cost import Costs, latency, multiply_adds, num_parameters
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.build import Skeleton, build_network
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.nasbench201 import nasbench201, nasbench201_cell
from nearkin.search.spaces.recurrent_space import RecurrentSpace

SPACES: dict[str, tuple[Space, dict[str, object]]] = {
    "general": (GeneralSpace(), {"num_cells": 3}),
    "general, pool": (GeneralSpace(), {"num_cells": 2, "between": "pool"}),
    "nasbench201": (nasbench201(), {"num_cells": 6, "growth": 3}),
    "darts": (DartsSpace(), {"num_cells": 5, "stem_factor": 3}),
    "darts, one cell": (DartsSpace(reduction=False), {"num_cells": 4}),
    "general, dense": (GeneralSpace(), {"num_cells": 2, "dense": True}),
    "darts, dense": (DartsSpace(), {"num_cells": 3, "dense": True, "reductions": (1,)}),
    "mobile": (MobileSpace(), {}),
    "mobile, as printed": (MobileSpace((2, 1), skip_first=True), {"stages": (2, 1)}),
}
CONV3 = Genotype.parse("normal(0): 1 = conv3(0); out = 1")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=8)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(3, 20), st.integers(3, 20), st.sampled_from([1, 2, 4]))
def test_costs_are_those_of_the_network(
    name: str, seed: int, channels: int, height: int, width: int, stride: int
) -> None:
    space, options = SPACES[name]
    genotype = space.sample(torch.Generator().manual_seed(seed))
    skeleton = Skeleton(channels=channels, stem_stride=stride, **options)  # type: ignore[arg-type]
    shape = (3, height, width)
    model = build_network(genotype, skeleton, shape, 7)
    assert Costs(skeleton, shape, 7).figures(genotype) == (num_parameters(model), multiply_adds(model, shape))


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 6), st.booleans())
def test_costs_of_recurrent_cells_follow_the_formula(seed: int, nodes: int, loose_ends: bool) -> None:
    genotype = RecurrentSpace(nodes, loose_ends=loose_ends).sample(torch.Generator().manual_seed(seed))
    hidden, words, length = 6, 11, 4
    parameters, products = Costs(Skeleton(channels=hidden), (length,), words).figures(genotype)
    linear = 2 * hidden**2 * (2 + nodes)  # every node is an output or followed by one
    assert parameters == linear + words * hidden + words
    assert products == length * (linear + hidden * words)


def test_multiply_adds_by_hand() -> None:
    # stem 1→4 and a 3x3 convolution 4→4 on 8x8 pixels, head 4→10
    figures = Costs(Skeleton(channels=4, num_cells=1), (1, 8, 8), 10).figures(CONV3)
    assert figures.multiply_adds == 64 * 9 * 4 + 64 * 9 * 16 + 40
    assert figures.parameters == 36 + 8 + 144 + 8 + 8 + 50


def test_costs_draw_no_weight_and_count_no_auxiliary_head() -> None:
    before = torch.get_rng_state()
    plain, with_head = (
        Costs(Skeleton(num_cells=3, auxiliary=auxiliary), (3, 16, 16), 10).figures(CONV3) for auxiliary in (False, True)
    )
    assert plain == with_head
    assert torch.equal(before, torch.get_rng_state())


def test_latency_grows_with_the_network_and_with_the_batch() -> None:
    small, large = (Costs(Skeleton(channels=c, num_cells=n), (3, 16, 16), 10) for c, n in ((2, 1), (48, 6)))
    assert 0 < 3 * small.latency(CONV3) < large.latency(CONV3)
    model = build_network(CONV3, Skeleton(channels=16, num_cells=2), (3, 16, 16), 10)
    assert 3 * latency(model, (3, 16, 16), 1) < latency(model, (3, 16, 16), 64)
    with pytest.raises(OptionError, match="1 or more"):
        latency(model, (3, 16, 16), 0)


@pytest.mark.parametrize("cost", ["parameters", "multiply_adds"])
def test_limits_are_kept_by_samples_mutants_and_neighbours(cost: str) -> None:
    costs = Costs(Skeleton(channels=4, num_cells=2), (1, 8, 8), 10)
    space, rng = GeneralSpace((3,)), torch.Generator().manual_seed(0)
    values = sorted(getattr(costs, cost)(space.sample(rng)) for _ in range(50))
    bound = values[25]
    part = costs.limits(space, **{cost: bound})
    for _ in range(20):
        genotype = part.sample(rng)
        assert getattr(costs, cost)(genotype) <= bound
        assert getattr(costs, cost)(part.mutate(genotype, rng)) <= bound
    assert all(getattr(costs, cost)(other) <= bound for other in part.neighbours(genotype))


def test_limits_add_up_and_none_is_the_space_itself() -> None:
    costs, space = Costs(Skeleton(channels=4, num_cells=1), (1, 8, 8), 10), GeneralSpace((2,))
    assert costs.limits(space) is space
    both = costs.limits(space, parameters=260, multiply_adds=3000, latency=60.0)
    assert {str(cell)[15:].split("(")[0] for cell in both.enumerate()} == {"zero", "identity", "max3", "avg3"}
    with pytest.raises(OptionError, match="the lowest found is 102"):
        costs.limits(space, parameters=50).sample(torch.Generator())


# Tables that others have published


@pytest.mark.realdata
def test_costs_are_those_of_nasbench201s_table(tables: Path) -> None:
    """The table counts batch norms and pools among the products: three for a pixel, nine in a pool."""
    costs = Costs(Skeleton(num_cells=15), (3, 32, 32), 10)
    norm, besides = 3 * 5 * (16 * 1024 + 32 * 256 + 64 * 64), 161_000
    checked = 0
    with gzip.open(tables / "nb201.csv.gz", "rt") as file:
        for row in itertools.islice(csv.DictReader(file), 0, None, 25):
            genotype = nasbench201_cell(row["arch_str"])
            if len(genotype.canonical().operations()["normal"]) < 6 - row["arch_str"].count("none"):
                continue  # the table has operations that lead nowhere, the network has not
            checked += 1
            figures = costs.figures(genotype)
            others = row["arch_str"].count("conv") + 3 * row["arch_str"].count("pool")
            assert figures.parameters == pytest.approx(1e6 * float(row["params_m"]), abs=6)
            assert figures.multiply_adds + besides + norm * others == pytest.approx(
                1e6 * float(row["flops_m"]), abs=1500
            )
    assert checked > 300
