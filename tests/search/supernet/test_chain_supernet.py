"""The supernet of chains: against a plain sum of its blocks, single paths, gradients, and the choice of chains."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import MismatchError, OptionError
from nearkin.core.rng import seeded
from nearkin.search.genotypes.genotype import SKIP, Chain, Genotype
from nearkin.search.methods.darts.guards import entropy
from nearkin.search.networks.build import Skeleton, build_network
from nearkin.search.networks.chains import bottleneck, step_module
from nearkin.search.networks.depthwise import DepthwiseConvolution, matrix_convolution
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.limited import limit_space
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.spaces.restricted import restrict_space
from nearkin.search.supernet.chain_layout import CHAIN, ChainLayout
from nearkin.search.supernet.chain_supernet import ChainSupernet
from nearkin.search.supernet.choice import choose_genotype, edge_weights, log_weight, mean_share, num_skips
from nearkin.search.supernet.reference import Frame, MapShape, shuffle_channels
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.search.supernet.supernets import layout_of, make_supernet

ALPHA = f"alpha/{CHAIN}"
SMALL = MobileSpace((1, 3), (3, 5), (2,))
SKIPPABLE = MobileSpace((1, 3), (3, 5), (2,), skip_first=True)
FRAME = Frame(channels=4)


def network(space: Space = SMALL, frame: Frame = FRAME) -> ChainSupernet:
    with seeded(0):
        return ChainSupernet(ChainLayout.of(space), (2, 8, 8), 3, frame).double()


def images(count: int = 5) -> Tensor:
    return torch.randn(count, 2, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def architecture(layout: ChainLayout, scale: float = 0.7) -> dict[str, Tensor]:
    drawn = layout.initial(torch.Generator().manual_seed(1), scale=scale)
    return {name: value.double() for name, value in drawn.items()}


# The network


@pytest.mark.parametrize("space", [SMALL, SKIPPABLE], ids=["without", "with skip_first"])
def test_every_layer_is_the_weighted_sum_of_the_modules_of_the_builder(space: MobileSpace) -> None:
    net, x = network(space), images()
    alpha = architecture(net.layout)
    state, width = net.stem(x), 4
    for layer, choices, out, logits in zip(net.layers, space.choices(), (4, 8, 8, 8), alpha[ALPHA], strict=True):
        stride = 2 if layer is net.layers[0] else 1
        shares = [math.exp(float(logits[net.layout.blocks.index(block)])) for block in choices]
        total = torch.zeros(())
        for share, block, mine in zip(shares, choices, layer.blocks, strict=True):
            if block.name == SKIP and (width, stride) == (out, 1):
                total = total + share / sum(shares) * state
                continue
            plain = step_module(bottleneck(block), width, out, stride).double()
            plain.load_state_dict(mine.state_dict())
            total = total + share / sum(shares) * plain(state)
        state, width = total, out
    torch.testing.assert_close(net(x, alpha), net.head([net.final(state)]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("frame", [FRAME, Frame(channels=4, channel_fraction=0.5)], ids=["all", "half"])
def test_a_one_hot_architecture_is_the_path_of_its_chain(frame: Frame) -> None:
    net, x = network(SKIPPABLE, frame), images()
    chain = net.layout.path(architecture(net.layout, 0.1), torch.Generator().manual_seed(4))
    sure = torch.full((net.layout.num_rows, len(net.layout.blocks)), -1e4, dtype=torch.float64)
    for number, block in enumerate(chain.blocks):
        sure[number, net.layout.blocks.index(block)] = 1e4
    torch.testing.assert_close(net(x, {ALPHA: sure}), net(x, chain), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", ["skip; mbconv(expansion=2, kernel=5); skip; mbconv(expansion=2, kernel=3)",
                                  "mbconv(expansion=2, kernel=3); skip; skip; skip"])  # fmt: skip
def test_a_path_is_the_chain_network_with_the_same_weights(text: str) -> None:
    net, x, chain = network(SKIPPABLE), images(), Genotype.parse(f"chain: {text}")
    assert isinstance(chain, Chain)
    plain: Any = build_network(chain, Skeleton(channels=4, stages=(1, 3)), (2, 8, 8), 3).double()
    used = [layer.blocks[number] for layer, number in zip(net.layers, net.layout.chosen(chain), strict=True)]
    real = [module for module in used if not isinstance(module, nn.Identity)]
    pairs = [(plain.stem, net.stem), (plain.mix, net.final), (plain.head, net.head)]
    for mine, theirs in [*pairs, *zip(plain.blocks, real, strict=True)]:
        mine.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(net(x, chain), plain(x), rtol=1e-12, atol=1e-12)


def test_other_paths_have_no_part_in_the_path_of_a_chain() -> None:
    net = network()
    net(images(), net.layout.path(architecture(net.layout), torch.Generator())).sum().backward()
    for layer in net.layers:
        touched = [any(weight.grad is not None for weight in block.parameters()) for block in layer.blocks]
        assert sum(touched) <= 1


def test_maps_are_the_last_of_every_resolution_and_shapes_say_so() -> None:
    layout = ChainLayout.of(MobileSpace((1, 2, 1), (3,), (2,)))
    net = ChainSupernet(layout, (1, 16, 12), 3, FRAME)
    maps = net.maps(torch.randn(2, 1, 16, 12), layout.initial(torch.Generator()))
    assert net.map_shapes[-1].channels == maps[-1].shape[1]
    assert len(net.map_shapes) == len(maps)
    for shape, one in zip(net.map_shapes, maps, strict=True):
        assert shape == MapShape(one.shape[1], 16 // one.shape[2])
    net.eval()
    x, alpha = torch.ones(2, 1, 16, 12), layout.initial(torch.Generator())
    torch.testing.assert_close(net.embed(x, alpha), net.maps(x, alpha)[-1].mean((2, 3)))


def test_another_head_reads_the_list_of_maps() -> None:
    class Sums(nn.Module):
        def forward(self, maps: list[Tensor]) -> Tensor:
            return torch.stack([one.sum((1, 2, 3)) for one in maps], 1)

    net = network(MobileSpace((1, 1, 1), (3,), (2,)))
    net.head = Sums()
    assert net(images(), architecture(net.layout)).shape == (5, len(net.map_shapes))


def test_partial_channels_leave_the_others_as_they_are() -> None:
    net = network(SMALL, Frame(channels=4, channel_fraction=0.25))
    layer, x = net.layers[2], torch.randn(3, 8, 4, 4, dtype=torch.float64)
    shares = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    inner = sum(share * block(x[:, :2]) for share, block in zip(shares, layer.blocks, strict=True))
    torch.testing.assert_close(layer(x, shares), shuffle_channels(torch.cat([inner, x[:, 2:]], 1), 4))
    assert net.layers[1].split == 1  # the width changes, so there is nothing to copy


def smooth(net: ChainSupernet) -> ChainSupernet:
    """The network with smooth activations and fixed statistics, for finite differences."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU6):
                setattr(module, name, nn.Tanh())
    return net.eval()


def test_gradients_of_the_architecture_are_those_of_finite_differences() -> None:
    net, x, step = smooth(network()), images(), 1e-5
    alpha = architecture(net.layout)[ALPHA].requires_grad_()

    def loss(values: Tensor) -> Tensor:
        return net(x, {ALPHA: values}).square().sum()

    (slope,) = torch.autograd.grad(loss(alpha), alpha)
    for row, column in ((0, 0), (1, 1), (2, 2), (3, 0)):
        moved = torch.zeros_like(alpha)
        moved[row, column] = step
        with torch.no_grad():
            difference = float(loss(alpha + moved) - loss(alpha - moved)) / (2 * step)
        assert float(slope[row, column]) == pytest.approx(difference, rel=1e-6, abs=1e-9)
    assert torch.equal(slope[net.layout.missing], torch.zeros(int(net.layout.missing.sum()), dtype=torch.float64))


def test_gradients_of_weights_are_those_of_finite_differences() -> None:
    net, x, step = smooth(network()), images(), 1e-5
    alpha, weights = architecture(net.layout), {name: w.detach() for name, w in net.named_parameters()}
    name = next(name for name, w in weights.items() if "layers.2" in name and w.dim() == 4 and w.shape[-1] == 5)
    free = weights[name].clone().requires_grad_()

    def loss(value: Tensor) -> Tensor:
        return functional_call(net, {**weights, name: value}, (x, alpha)).square().sum()

    (slope,) = torch.autograd.grad(loss(free), free)
    moved = torch.zeros_like(free)
    moved[1, 0, 2, 3] = step
    with torch.no_grad():
        difference = float(loss(free + moved) - loss(free - moved)) / (2 * step)
    assert float(slope[1, 0, 2, 3]) == pytest.approx(difference, rel=1e-6)


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sides", [(4, 4), (5, 3), (8, 8), (1, 2)])
def test_a_depthwise_convolution_as_products_has_the_same_outputs_and_gradients(
    kernel: int, stride: int, sides: tuple[int, int]
) -> None:
    layer = DepthwiseConvolution(3, kernel, stride).double()
    x = torch.randn(2, 3, *sides, dtype=torch.float64, requires_grad=True)
    plain, product = layer.eval()(x), matrix_convolution(x, layer.weight, stride)
    torch.testing.assert_close(product, plain, rtol=1e-12, atol=1e-12)
    slope = torch.randn_like(plain)
    mine, theirs = (torch.autograd.grad(outputs, (x, layer.weight), slope) for outputs in (product, plain))
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.train()(x), plain, rtol=1e-12, atol=1e-12)


# The layout


def test_missing_blocks_have_no_weight_and_the_others_sum_to_one() -> None:
    layout = ChainLayout.of(MobileSpace())
    shares, ones = layout.weights(layout.initial(torch.Generator(), edges=True))[CHAIN]
    assert shares.shape == (19, 7)
    assert torch.equal(shares == 0, layout.missing)
    assert int(layout.missing.sum()) == 6
    torch.testing.assert_close(shares.sum(1), torch.ones(19))
    assert torch.equal(ones, torch.ones(19))


def test_entropy_is_a_fraction_of_what_each_layer_can_have() -> None:
    layout = ChainLayout.of(SMALL)
    assert entropy({ALPHA: torch.zeros(4, 3)}, layout) == 1
    biased = torch.zeros(4, 3)
    biased[0, 2] = 50.0  # the first layer has no skip: its weight does not count
    assert entropy({ALPHA: biased}, layout) == 1
    assert entropy({ALPHA: 1e3 * torch.eye(4, 3)}, layout) < 0.5


def test_draws_follow_the_weights() -> None:
    layout = ChainLayout.of(SMALL)
    alpha, rng = {ALPHA: torch.tensor([[0.0, 1.0, 9.0]] * 4)}, torch.Generator().manual_seed(0)
    drawn = [layout.path(alpha, rng) for _ in range(400)]
    assert all(SMALL.contains(chain) for chain in drawn)
    counted = sum(chain.blocks[0] == layout.blocks[1] for chain in drawn) / 400
    expected = math.e / (1 + math.e)
    assert abs(counted - expected) < 4 * math.sqrt(expected * (1 - expected) / 400)


def test_spaces_have_their_layouts_and_supernets() -> None:
    cells, chains = layout_of(DartsSpace()), layout_of(limit_space(SMALL, num_skips, 1))
    assert isinstance(cells, SupernetLayout)
    assert isinstance(chains, ChainLayout)
    assert isinstance(make_supernet(chains, (1, 8, 8), 2, FRAME), ChainSupernet)


# The choice


def tables(layout: ChainLayout, seed: int = 0) -> dict[str, Tensor]:
    drawn = layout.initial(torch.Generator().manual_seed(seed), scale=2.0)
    return edge_weights(layout, drawn)


@pytest.mark.parametrize("seed", range(4))
def test_the_chosen_chain_is_the_strongest_of_all(seed: int) -> None:
    layout = ChainLayout.of(SMALL)
    weights = tables(layout, seed)
    best = choose_genotype(SMALL, layout, weights)
    assert best == max(SMALL.enumerate(), key=lambda chain: log_weight(layout, weights, chain))
    columns = [layout.blocks.index(block) for block in best.blocks]  # type: ignore[attr-defined]
    shares = [float(row[column]) for row, column in zip(weights[CHAIN], columns, strict=True)]
    assert mean_share(layout, weights, best) == pytest.approx(sum(shares) / 4)


def test_skipped_blocks_are_limited_in_every_stage() -> None:
    space = MobileSpace((3, 4), (3,), (2, 3))
    layout = ChainLayout.of(space)
    alpha = torch.zeros(7, 3)
    alpha[:, 2] = torch.arange(7.0) + 5
    weights = edge_weights(layout, {ALPHA: alpha})
    assert num_skips(choose_genotype(space, layout, weights)) == 5
    best = choose_genotype(space, layout, weights, 1)
    assert isinstance(best, Chain)
    assert [number for number, block in enumerate(best.blocks) if block.name == SKIP] == [2, 6]  # the strongest ones


@pytest.mark.parametrize("seed", range(4))
def test_restricted_and_limited_spaces_of_chains_give_their_strongest_member(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    space = restrict_space(MobileSpace((1, 2), (3, 5, 7), (2,)), [drawn_chain(rng) for _ in range(2)])
    layout = layout_of(space)
    assert isinstance(layout, ChainLayout)
    weights = tables(layout, seed)
    best = choose_genotype(space, layout, weights)
    assert best == max(space.enumerate(), key=lambda chain: log_weight(layout, weights, chain))
    limited = limit_space(SMALL, num_skips, 0, name="skips")
    layout = ChainLayout.of(limited)
    weights = tables(layout, seed)
    assert log_weight(layout, weights, choose_genotype(limited, layout, weights)) == pytest.approx(
        max(log_weight(layout, weights, chain) for chain in limited.enumerate())
    )


@pytest.mark.parametrize(("share", "max_skips"), [(0.9, None), (0.9, 1), (0.7, None), (0.7, 1), (0.5, None)])
def test_a_tight_limit_on_the_full_mobile_space_looks_at_few_chains(share: float, max_skips: int | None) -> None:
    """At most as many chains as a walk with one step for each layer looks at, twice; and any member is weaker."""
    space, asked = MobileSpace(), []
    layout = ChainLayout.of(space)
    weights = tables(layout)
    strongest = choose_genotype(space, layout, weights)
    sizes = {block: sum(dict(block.options).values()) for block in layout.blocks}

    def cost(chain: Genotype) -> float:
        asked.append(chain)
        return sum(sizes[block] for block in chain.blocks)  # type: ignore[attr-defined]

    limited = limit_space(space, cost, share * cost(strongest))
    best = choose_genotype(limited, layout, weights, max_skips)
    assert limited.contains(best)
    assert len(asked) <= 2 * layout.num_rows * len(space.neighbours(best))
    if max_skips is not None:
        assert all(len(group) <= max_skips for group in layout.skip_groups(best))
    value = log_weight(layout, weights, best)
    allowed = [other for other in limited.neighbours(best)
               if max_skips is None or all(len(group) <= max_skips for group in layout.skip_groups(other))]  # fmt: skip
    assert all(log_weight(layout, weights, other) <= value for other in allowed)
    drawn = [space.sample(torch.Generator().manual_seed(seed)) for seed in range(200)]
    assert all(log_weight(layout, weights, other) < value for other in drawn if limited.contains(other))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_the_chain_within_a_limit_is_near_the_strongest_one(share: float) -> None:
    """Against enumeration: most of the time the same, and never far from it."""
    space = MobileSpace((2, 3), (3, 5), (2, 4))
    layout = ChainLayout.of(space)
    gaps = []
    for seed in range(6):
        weights = tables(layout, seed)
        sizes = [[sum(dict(block.options).values()) * (layer + 1) for block in layout.blocks] for layer in range(5)]

        def cost(chain: Genotype, sizes: list[list[int]] = sizes) -> float:
            columns = map(layout.blocks.index, chain.blocks)  # type: ignore[attr-defined]
            return sum(row[column] for row, column in zip(sizes, columns, strict=True))

        limited = limit_space(space, cost, share * cost(choose_genotype(space, layout, weights)))
        if next(limited.enumerate(), None) is None:
            continue
        found = log_weight(layout, weights, choose_genotype(limited, layout, weights))
        gaps.append(max(log_weight(layout, weights, chain) for chain in limited.enumerate()) - found)
    assert min(gaps) > -1e-9
    assert sum(gap < 1e-9 for gap in gaps) >= len(gaps) / 2


def test_the_limit_of_a_space_comes_before_the_number_of_skip_connections() -> None:
    space = MobileSpace((3, 3), (3, 5), (2,))
    layout = ChainLayout.of(space)
    limited = limit_space(space, lambda chain: 6 - num_skips(chain), 3, name="blocks")
    best = choose_genotype(limited, layout, tables(layout), 1)
    assert num_skips(best) == 3
    with pytest.raises(OptionError, match="no genotype of mobile has blocks <= 1"):
        choose_genotype(
            limit_space(space, lambda chain: 6 - num_skips(chain), 1, name="blocks"), layout, tables(layout)
        )


def drawn_chain(rng: torch.Generator) -> Genotype:
    return MobileSpace((1, 2), (3, 5, 7), (2,)).sample(rng)


# What cannot be


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: network(SMALL, Frame(channels=6, channel_fraction=1 / 3)), OptionError, r"all stages, \(6, 8\), got"),
        (lambda: ChainLayout.of(DartsSpace()), OptionError, "has no chains"),
        (lambda: layout_of(RecurrentSpace()), OptionError, "a supernet consists of cells"),
        (lambda: SupernetLayout.of(MobileSpace()), OptionError, "a supernet consists of cells"),
        (lambda: ChainSupernet(ChainLayout.of(SMALL), (9,), 2, FRAME), OptionError, r"images \(C, H, W\), got .* \(9,"),
        (lambda: network()(images(), {ALPHA: torch.zeros(2, 3)}), OptionError, r"shape \(2, 3\), expected \(4, 3\)"),
        (lambda: network()(images(), Genotype.parse("chain: skip")), MismatchError, "has 1 blocks, the supernet 4"),
        (
            lambda: network()(images(), Genotype.parse("chain: skip; skip; skip; skip")),
            MismatchError,
            "block 0 .* is skip",
        ),
        (
            lambda: network()(images(), Genotype.parse("normal(0): 1 = conv3(0); out = 1")),
            MismatchError,
            "the supernet has chains, got a genotype of type Cells",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
