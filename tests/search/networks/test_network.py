import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError
from nearkin.core.rng import seeded
from nearkin.nets.functional import blank, evaluation_mode, num_parameters
from nearkin.nets.heads import head_name, with_head
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.networks.build import CellNetwork, Skeleton, build_network
from nearkin.search.networks.cells import live_wiring
from nearkin.search.networks.chains import stage_strides, stage_widths
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.nasbench201 import nasbench201, nasbench201_cell
from nearkin.search.spaces.recurrent_space import RecurrentSpace

SMALL = {"channels": 4, "num_cells": 3}
SPACES: dict[str, tuple[Space, dict[str, Any], tuple[int, ...]]] = {
    "general": (GeneralSpace(), SMALL, (1, 8, 8)),
    "general, pool": (GeneralSpace(), {**SMALL, "between": "pool", "growth": 1}, (1, 8, 8)),
    "nasbench201": (nasbench201(), SMALL, (3, 8, 8)),
    "darts": (DartsSpace(), {**SMALL, "stem_factor": 3}, (3, 8, 8)),
    "darts, one cell": (DartsSpace(reduction=False), SMALL, (3, 8, 8)),
    "mobile": (MobileSpace(), {"channels": 4}, (3, 16, 16)),
    "mobile, as printed": (MobileSpace((2, 1), skip_first=True), {"channels": 4, "stages": (2, 1)}, (3, 8, 8)),
    "recurrent": (RecurrentSpace(4), {"channels": 8}, (5,)),
}
IMAGES = [name for name in SPACES if name != "recurrent"]
DARTS_V2 = Genotype.parse(
    "normal(0, 1): 2 = sep_conv_3x3(0) + sep_conv_3x3(1); 3 = sep_conv_3x3(0) + sep_conv_3x3(1);"
    "4 = skip_connect(0) + sep_conv_3x3(1); 5 = skip_connect(0) + dil_conv_3x3(2); out = concat(2, 3, 4, 5)"
    "| reduction(0, 1): 2 = max_pool_3x3(0) + max_pool_3x3(1); 3 = max_pool_3x3(1) + skip_connect(2);"
    "4 = max_pool_3x3(0) + skip_connect(2); 5 = max_pool_3x3(1) + skip_connect(2); out = concat(2, 3, 4, 5)"
)
EVERYWHERE = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_3x3~2|"


def drawn(name: str, seed: int) -> tuple[Genotype, Skeleton, tuple[int, ...]]:
    space, options, shape = SPACES[name]
    return space.sample(torch.Generator().manual_seed(seed)), Skeleton(**options), shape


def inputs(model: nn.Module, shape: tuple[int, ...], size: int = 8) -> Tensor:
    x = blank(model, shape, size)
    rng = torch.Generator().manual_seed(0)
    return torch.randn(x.shape, generator=rng) if x.is_floating_point() else torch.randint(5, x.shape, generator=rng)


def live(genotype: Genotype) -> bool:
    return not isinstance(genotype, Cells) or all(live_wiring(cell).output for cell in genotype.parts().values())


@pytest.mark.parametrize("name", IMAGES)
@settings(max_examples=8)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 19), st.integers(1, 19), st.sampled_from([1, 2, 4]))
def test_every_genotype_reads_every_image(
    name: str, seed: int, channels: int, height: int, width: int, stride: int
) -> None:
    space, options, _ = SPACES[name]
    genotype = space.sample(torch.Generator().manual_seed(seed))
    skeleton = Skeleton(**options, stem_stride=stride)
    model = build_network(genotype, skeleton, (channels, height, width), 7).eval()
    assert model(torch.randn(2, channels, height, width)).shape == (2, 7)


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 9), st.booleans())
def test_recurrent_cells_give_logits_of_every_position(seed: int, length: int, loose_ends: bool) -> None:
    genotype = RecurrentSpace(5, loose_ends=loose_ends).sample(torch.Generator().manual_seed(seed))
    model = build_network(genotype, Skeleton(channels=6), (length,), 11).eval()
    tokens = torch.randint(11, (3, length))
    outputs = model(tokens)
    assert outputs.shape == (3, length, 11)
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % 11
    assert torch.equal(model(changed)[:, :-1], outputs[:, :-1])  # the past does not see the future


@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=6)
@given(st.integers(0, 10**6))
def test_gradients_reach_every_weight(name: str, seed: int) -> None:
    genotype, skeleton, shape = drawn(name, seed)
    assume(live(genotype))
    model = build_network(genotype, skeleton, shape, 5)
    with seeded(0):
        outputs = model(inputs(model, shape))
        (outputs * torch.randn_like(outputs)).sum().backward()
    for weight_name, weight in model.named_parameters():
        assert weight.grad is not None, weight_name
        if weight.dim() > 1:
            assert weight.grad.abs().max() > 0, weight_name


@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=6)
@given(st.integers(0, 10**6), st.booleans())
def test_canonical_genotypes_have_as_many_weights(name: str, seed: int, fold: bool) -> None:
    genotype, skeleton, shape = drawn(name, seed)
    same = genotype.canonical(fold_identities=fold)
    counts = {num_parameters(build_network(one, skeleton, shape, 5)) for one in (genotype, same)}
    assert len(counts) == 1


def test_zeros_and_useless_nodes_change_no_bit() -> None:
    long = "normal(0): 1 = conv3(0); 2 = zero(0) + conv5(1); 3 = zero(2); 4 = max3(1) + none(3) + conv7(3); out = 4"
    short = "normal(0): 1 = conv3(0); 2 = max3(1); out = 2"
    one, other = (
        build_network(Genotype.parse(text), Skeleton(**SMALL), (1, 8, 8), 3, seed=1) for text in (long, short)
    )
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    assert one.state_dict().keys() == other.state_dict().keys()


@pytest.mark.parametrize(
    "text",
    [
        "normal(0): 1 = zero(0); out = 1",
        "normal(0): 1 = nothing; out = 1",
        "normal(0): out = nothing",
        "normal(0, 1): 2 = none(0); out = 2",
        "normal(0, 1): out = nothing | reduction(0, 1): 2 = none(1); out = 2",
    ],
)
def test_cells_of_nothing_give_the_same_for_all_inputs_and_can_be_trained(text: str) -> None:
    model = build_network(Genotype.parse(text), Skeleton(**SMALL), (1, 7, 5), 3)
    with evaluation_mode(model):
        outputs = model(torch.randn(4, 1, 7, 5))
    assert torch.equal(outputs, outputs[:1].expand(4, 3))
    model(torch.randn(4, 1, 7, 5)).sum().backward()
    assert model.head.bias.grad is not None


def test_inputs_may_be_outputs() -> None:
    text = "normal(0, 1): 2 = conv3(0); out = concat(0, 2) | reduction(0, 1): 2 = conv3(1); out = sum(0, 1, 2)"
    model = build_network(Genotype.parse(text), Skeleton(**SMALL), (1, 9, 9), 3)
    assert model(torch.randn(2, 1, 9, 9)).shape == (2, 3)


def test_layers_that_nothing_reads_are_not_made() -> None:
    text = "normal(0, 1): 2 = conv3(0); out = 2"  # every other cell is passed by
    model = build_network(Genotype.parse(text), Skeleton(channels=4, num_cells=5, reductions=()), (1, 8, 8), 3)
    assert [len(list(layer.parameters())) > 0 for layer in model.layers] == [True, False, True, False, True]


# Counts that others have published


def test_darts_v2_has_the_weights_of_its_paper() -> None:
    skeleton = Skeleton(channels=36, num_cells=20, stem_factor=3)
    assert num_parameters(build_network(DARTS_V2, skeleton, (3, 32, 32), 10)) == 3_349_342


def test_nasbench201_has_the_weights_of_its_table() -> None:
    model = build_network(nasbench201_cell(EVERYWHERE), Skeleton(num_cells=15), (3, 32, 32), 10)
    assert num_parameters(model) == 1_531_546


# Skeletons


def test_the_small_skeleton_of_the_search_has_maps_of_7_and_4() -> None:
    skeleton = Skeleton(channels=8, num_cells=2, stem_stride=4, between="pool", growth=1)
    model = build_network(Genotype.parse("normal(0): 1 = conv3(0); out = 1"), skeleton, (1, 28, 28), 10)
    sides: list[tuple[int, ...]] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda layer, x, y: sides.append(tuple(y.shape[1:])))
    model(torch.zeros(2, 1, 28, 28))
    assert sides == [(8, 7, 7), (8, 4, 4), (8, 4, 4)]


def test_reductions_stand_at_thirds_and_double_the_channels() -> None:
    model = build_network(DARTS_V2, Skeleton(channels=4, num_cells=8), (3, 16, 16), 10)
    shapes: list[tuple[int, ...]] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda layer, x, y: shapes.append(tuple(y.shape[1:])))
    model(torch.zeros(2, 3, 16, 16))
    assert shapes == [(16, 16, 16)] * 2 + [(32, 8, 8)] * 3 + [(64, 4, 4)] * 3


def test_skeletons_are_read_back() -> None:
    skeleton = Skeleton(channels=8, num_cells=5, reductions=(1, 3), stages=(1, 2), drop_path=0.2, auxiliary=True)
    assert Skeleton.from_dict(skeleton.to_dict()) == skeleton
    assert Skeleton.from_dict(Skeleton().to_dict()) == Skeleton()
    with pytest.raises(OptionError, match="did you mean num_cells"):
        Skeleton.from_dict({"num_cell": 3})


@pytest.mark.parametrize(
    "wrong",
    [
        {"channels": 1},
        {"num_cells": 0},
        {"reductions": (8,)},
        {"between": "nothing"},
        {"stem_stride": 3},
        {"drop_path": 1.0},
        {"dropout": -0.1},
        {"weight_drop": 1.0},
        {"stages": ()},
        {"growth": 0},
        {"auxiliary_weight": -1.0},
    ],
)
def test_wrong_skeletons_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Skeleton(**wrong)


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_suited_stems_bring_sides_to_32_and_no_further(height: int, width: int) -> None:
    stride = Skeleton.suited((3, height, width)).stem_stride
    side = max(height, width)
    assert math.ceil(side / stride) <= 32
    assert stride == 1 or math.ceil(side / (stride // 2)) > 32


# Seeds and heads


@pytest.mark.parametrize("name", SPACES)
def test_one_seed_gives_one_network_and_leaves_the_world_alone(name: str) -> None:
    genotype, skeleton, shape = drawn(name, 3)
    before = torch.get_rng_state()
    one, same, other = (build_network(genotype, skeleton, shape, 5, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", IMAGES)
def test_all_but_the_head_is_the_same_for_any_number_of_outputs(name: str) -> None:
    genotype, skeleton, shape = drawn(name, 1)
    two, ten = (build_network(genotype, skeleton, shape, outputs).state_dict() for outputs in (2, 10))
    assert two.keys() == ten.keys()
    assert all(torch.equal(two[key], ten[key]) for key in two if not key.startswith("head."))


@pytest.mark.parametrize("name", SPACES)
def test_the_head_is_found_and_replaced(name: str) -> None:
    genotype, skeleton, shape = drawn(name, 2)
    model = build_network(genotype, skeleton, shape, 5)
    assert head_name(model, inputs(model, shape)) == "head"
    assert with_head(model, 9, seed=0)(inputs(model, shape)).shape[-1] == 9


@pytest.mark.parametrize("name", SPACES)
def test_in_evaluation_samples_do_not_see_each_other(name: str) -> None:
    genotype, skeleton, shape = drawn(name, 4)
    model = build_network(genotype, skeleton, shape, 5)
    x = inputs(model, shape, 4)
    with evaluation_mode(model):
        alone = torch.cat([model(row[None]) for row in x])
        assert torch.allclose(model(x), alone, atol=1e-5)


# Drop-path


def test_drop_path_spares_identities() -> None:
    cells = Genotype.parse("normal(0): 1 = identity(0); out = 1")
    model = build_network(cells, Skeleton(channels=4, num_cells=2, reductions=(), drop_path=0.9), (1, 6, 6), 3)
    x = torch.randn(16, 1, 6, 6)
    assert torch.equal(model(x), model(x))


def test_drop_path_keeps_the_mean_of_a_cell_and_acts_in_training_alone() -> None:
    cells = Genotype.parse("normal(0): 1 = avg3(0) + identity(0); out = 1")
    model = build_network(cells, Skeleton(channels=4, num_cells=1), (1, 6, 6), 3)
    assert isinstance(model, CellNetwork)
    cell, x = model.layers[0], torch.rand(1, 4, 6, 6).expand(8000, 4, 6, 6)
    plain = cell(x[:1])
    model.set_drop_path(0.4)
    with seeded(0):
        outputs = cell(x)
    pooled = plain - x[:1]
    share = ((outputs - x) / pooled).amax((1, 2, 3))
    assert torch.allclose(share.unique().round(decimals=3).unique(), torch.tensor([0.0, round(1 / 0.6, 3)]), atol=2e-3)
    assert share.mean().item() == pytest.approx(1, abs=4 * math.sqrt(0.4 / 0.6 / len(x)))
    model.eval()
    assert torch.equal(cell(x[:1]), plain)


# Chains


def test_chains_keep_proportions_and_stop_at_small_maps() -> None:
    assert stage_widths(48, 6) == (48, 80, 160, 192, 384, 640)
    for side, count in itertools.product(range(1, 130), (1, 6, 8)):
        strides = stage_strides((side, 2 * side), count)
        assert len(strides) == count
        assert math.ceil(side / math.prod(strides)) >= min(side, 4)


def test_a_chain_without_skips_has_the_weights_of_the_formula() -> None:
    chain = Genotype.parse("chain: mbconv(expansion=6, kernel=5); mbconv(expansion=3, kernel=3)")
    model = build_network(chain, Skeleton(channels=8, stages=(1, 1)), (3, 16, 16), 10)
    first, second = 8, 12

    def block(width: int, out: int, expansion: int, kernel: int) -> int:
        inner = expansion * width
        return width * inner + kernel**2 * inner + inner * out + 2 * (2 * inner + out)

    blocks = block(first, first, 6, 5) + block(first, second, 3, 3)
    stem, mix, head = 27 * first + 2 * first, second * 4 * second + 8 * second, 4 * second * 10 + 10
    assert num_parameters(model) == stem + blocks + mix + head


def test_skipped_blocks_cost_nothing() -> None:
    skeleton = Skeleton(channels=8, stages=(3,))
    block = "mbconv(expansion=3, kernel=3)"
    one, two = (
        build_network(Genotype.parse(f"chain: {block}; {rest}"), skeleton, (3, 8, 8), 4).state_dict()
        for rest in (f"skip; {block}", f"{block}; skip")
    )
    assert all(map(torch.equal, one.values(), two.values()))


# What does not fit


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("normal(0): 1 = conv3(0); out = 1", (13,), "images"),
        ("chain: skip", (13,), "images"),
        ("recurrent(0): 1 = tanh(0); out = mean(1)", (1, 8, 8), "tokens"),
        ("recurrent(0): 1 = sine(0); out = mean(1)", (5,), "no activation 'sine'"),
        ("normal(0): 1 = conv4(0); out = 1", (1, 8, 8), "no operation 'conv4'"),
        ("normal(0, 1, 2): 3 = conv3(0); out = 3", (1, 8, 8), "networks have cells with 1 or 2"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build_network(Genotype.parse(text), Skeleton(stages=(1,)), shape, 3)


def test_chains_of_other_stages_are_refused() -> None:
    with pytest.raises(MismatchError, match="2 blocks"):
        build_network(Genotype.parse("chain: skip; skip"), Skeleton(), (1, 8, 8), 3)
    with pytest.raises(OptionError, match="no block 'fused'"):
        build_network(Genotype.parse("chain: fused(kernel=3)"), Skeleton(stages=(1,)), (1, 8, 8), 3)
