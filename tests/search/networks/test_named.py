"""Searched networks by their strings: read back as they were written, and built with the same weights."""

import pytest
import torch

import nearkin as nk
from nearkin.core.errors import MismatchError
from nearkin.search.networks.build import Skeleton
from nearkin.search.networks.named import network_string, parse_network
from nearkin.search.spaces.registry import space

SKELETONS = (
    Skeleton(channels=4, num_cells=2),
    Skeleton(channels=4, num_cells=8, reductions=()),
    Skeleton(channels=4, num_cells=8, reductions=(3,), between="pool"),
    Skeleton(channels=4, num_cells=20, reductions=(2, 5)),  # the place that eight cells have without being told
    Skeleton(channels=4, stages=(1, 1), stem_stride=2, dropout=0.25, weight_drop=0.5),
    Skeleton(channels=4, num_cells=8, dense=True),
    Skeleton(channels=4, num_cells=8, dense=True, reductions=(2, 5)),
)


@pytest.mark.parametrize("name", ["general", "darts", "nasbench201", "mobile?stages=1-1", "recurrent"])
@pytest.mark.parametrize("skeleton", SKELETONS)
def test_strings_are_read_back_as_they_were_written(name: str, skeleton: Skeleton) -> None:
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        genotype = space(name).sample(rng)
        assert parse_network(network_string(genotype, skeleton)) == (genotype, skeleton)


def test_a_searched_network_is_a_network_like_any_other() -> None:
    genotype = space("general").sample(torch.Generator().manual_seed(3))
    text = network_string(genotype, Skeleton(channels=4, num_cells=2))
    rng = torch.Generator().manual_seed(0)
    task = nk.Task.from_arrays("noise", torch.randn(40, 1, 6, 6, generator=rng), torch.arange(40) % 10)
    one, two = (nk.build(text, task.input_shape, outputs, seed=0) for outputs in (10, 3))
    same = [n for n, value in one.named_parameters() if torch.equal(value, dict(two.named_parameters())[n])
            and not n.startswith("head")]  # fmt: skip
    assert len(same) == len(list(one.named_parameters())) - 2  # all but the head, as every network of a trial
    other = nk.build(text, task.input_shape, 10, seed=0, trial=1)
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
    fisher = nk.fisher.diagonal(one.eval(), *task.test.all())
    assert set(fisher.values) == {name for name, _ in one.named_parameters()}


def test_other_networks_are_refused() -> None:
    with pytest.raises(MismatchError, match="is not a searched network"):
        parse_network("lenet")
