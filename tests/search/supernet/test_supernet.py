"""The fast supernet against the plain one: the same numbers, forward and backward, whatever the cells."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError
from nearkin.core.rng import seeded
from nearkin.search.genotypes.genotype import Cells
from nearkin.search.networks.operations import OPERATIONS, register
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DARTS_OPERATIONS, DartsSpace
from nearkin.search.spaces.general import GENERAL_OPERATIONS, GeneralSpace
from nearkin.search.spaces.limited import limit_space
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.nasbench201 import NASBENCH201_OPERATIONS, nasbench201
from nearkin.search.spaces.restricted import restrict_space
from nearkin.search.supernet.fused.fused_convolution import convolution, fixed_weights
from nearkin.search.supernet.fused.mixed import MixedEdges
from nearkin.search.supernet.fused.norm import batch_norm
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.fused.weighted_sum import weighted_sum
from nearkin.search.supernet.reference import Frame, PlainSupernet, supernet_operation
from nearkin.search.supernet.supernet_layout import SupernetLayout

EVERYTHING = tuple(dict.fromkeys(GENERAL_OPERATIONS + DARTS_OPERATIONS + NASBENCH201_OPERATIONS))


def both(
    space: Space, frame: Frame, shape: tuple[int, ...] = (2, 6, 6), dtype: torch.dtype = torch.float64
) -> tuple[Supernet, PlainSupernet]:
    with seeded(0):
        fast = Supernet(SupernetLayout.of(space), shape, 3, frame).to(dtype)
        return fast, fast.plain()


def architecture(layout: SupernetLayout, edges: bool = True, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    drawn = layout.initial(torch.Generator().manual_seed(1), edges=edges, scale=0.7)
    return {name: value.to(dtype).requires_grad_() for name, value in drawn.items()}


def data(shape: tuple[int, ...], count: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(2)
    return torch.randn(count, *shape, generator=rng, dtype=torch.float64).to(dtype), torch.arange(count) % 3


def slopes(
    net: nn.Module, given: Mapping[str, Tensor], batch: tuple[Tensor, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    x, y = batch
    outputs = net(x, given)
    named = {**dict(net.named_parameters()), **given}
    found = torch.autograd.grad(F.cross_entropy(outputs, y), list(named.values()), allow_unused=True)
    filled = [torch.zeros_like(v) if g is None else g for v, g in zip(named.values(), found, strict=True)]
    return outputs.detach(), dict(zip(named, filled, strict=True))


def apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The length of the difference as a share of the length."""
    assert set(one) == set(other)
    mine, theirs = (torch.cat([given[name].detach().flatten() for name in one]) for given in (one, other))
    return float((mine - theirs).norm() / theirs.norm().clamp_min(1e-300))


def compare(
    space: Space, frame: Frame, shape: tuple[int, ...], edges: bool, dtype: torch.dtype, limit: float, count: int = 5
) -> None:
    fast, plain = both(space, frame, shape, dtype)
    given, batch = architecture(fast.layout, edges, dtype), data(shape, count, dtype)
    mine, my_slopes = slopes(fast, given, batch)
    theirs, their_slopes = slopes(plain, given, batch)
    assert apart({"y": mine}, {"y": theirs}) <= limit
    weights = {name: my_slopes[name] for name, _ in fast.named_parameters()}
    assert apart(weights, {name: v for name, v in fast.stacked(their_slopes).items() if name in weights}) <= limit
    assert apart({name: my_slopes[name] for name in given}, {name: their_slopes[name] for name in given}) <= limit
    running = {name: value.to(dtype) for name, value in fast.named_buffers()}
    moved = fast.stacked(plain.state_dict())
    assert apart(running, {name: moved[name].to(dtype) for name in running}) <= limit
    assert apart({"y": fast.eval()(batch[0], given)}, {"y": plain.eval()(batch[0], given)}) <= limit


@settings(max_examples=8)
@given(
    num_nodes=st.integers(1, 3),
    split=st.sampled_from((1, 2, 4)),
    width=st.integers(1, 3),
    operations=st.lists(st.sampled_from(EVERYTHING), min_size=1, max_size=5, unique=True),
    side=st.sampled_from((5, 6)),
    edges=st.booleans(),
    shuffle=st.booleans(),
)
def test_cells_of_two_inputs_have_the_numbers_of_the_plain_form(
    num_nodes: int, split: int, width: int, operations: list[str], side: int, edges: bool, shuffle: bool
) -> None:
    space = DartsSpace((*operations, "nor_conv_1x1") if set(operations) <= {"none", "zero"} else tuple(operations),
                       num_nodes=num_nodes)  # fmt: skip
    frame = Frame(channels=2 * width * split, num_cells=3, channel_fraction=1 / split, shuffle=shuffle)
    compare(space, frame, (1, side, side), edges, torch.float64, 1e-12)


@settings(max_examples=6)
@given(
    num_nodes=st.integers(2, 4),
    split=st.sampled_from((1, 2)),
    operations=st.lists(st.sampled_from(EVERYTHING), min_size=1, max_size=5, unique=True),
    edges=st.booleans(),
)
def test_complete_cells_have_the_numbers_of_the_plain_form(
    num_nodes: int, split: int, operations: list[str], edges: bool
) -> None:
    frame = Frame(channels=4 * split, num_cells=2, channel_fraction=1 / split)
    compare(GeneralSpace((num_nodes,), tuple(operations)), frame, (1, 6, 6), edges, torch.float64, 1e-12)


@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_in_single_precision_they_agree_to_a_millionth(fraction: float) -> None:
    frame = Frame(channels=8, num_cells=3, channel_fraction=fraction)
    fast, plain = both(DartsSpace(num_nodes=2), frame, (3, 8, 8), torch.float32)
    given, batch = architecture(fast.layout, True, torch.float32), data((3, 8, 8), 16, torch.float32)
    mine, my_slopes = slopes(fast, given, batch)
    theirs, their_slopes = slopes(plain, given, batch)
    assert apart({"y": mine}, {"y": theirs}) <= 1e-6
    named = {name: my_slopes[name] for name, _ in fast.named_parameters()}
    assert apart(named, fast.stacked(their_slopes)) <= 1e-6
    assert apart({name: my_slopes[name] for name in given}, {name: their_slopes[name] for name in given}) <= 1e-6


@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_in_single_precision_it_is_about_as_near_to_the_truth_as_the_plain_form(fraction: float) -> None:
    frame = Frame(channels=8, num_cells=3, channel_fraction=fraction)
    fast, plain = both(DartsSpace(num_nodes=2), frame, (3, 8, 8), torch.float32)
    given, (x, _) = architecture(fast.layout, True, torch.float32), data((3, 8, 8), 16, torch.float32)
    truth = fast.plain().double()(x.double(), {name: value.double() for name, value in given.items()})
    mine, theirs = (apart({"y": net(x, given).double()}, {"y": truth}) for net in (fast, plain))
    assert mine <= 1e-6
    assert mine <= 2 * theirs


def test_many_channels_take_the_other_way_to_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.search.supernet.fused.filters.FEW", 1)
    compare(DartsSpace(num_nodes=2), Frame(channels=4, num_cells=3), (1, 7, 6), True, torch.float64, 1e-12)


def test_operations_of_ones_own_run_as_they_are() -> None:
    register(
        "own", lambda channels, stride, affine: nn.Sequential(nn.Tanh(), nn.Conv2d(channels, channels, 3, stride, 1))
    )
    register("own2", lambda channels, stride, affine: nn.AvgPool2d(5, stride, padding=2))
    try:
        space = DartsSpace(("own", "sep_conv_3x3", "own2", "none"), num_nodes=2)
        compare(space, Frame(channels=4, num_cells=3, channel_fraction=0.5), (1, 6, 6), True, torch.float64, 1e-12)
    finally:
        del OPERATIONS["own"], OPERATIONS["own2"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize(
    "space", [DartsSpace(num_nodes=2), nasbench201(), GeneralSpace()], ids=lambda space: space.name
)
def test_a_single_path_is_that_of_the_plain_form_and_touches_no_other_weights(space: Space, fraction: float) -> None:
    fast, plain = both(space, Frame(channels=4, num_cells=3, channel_fraction=fraction), (1, 6, 6))
    x, y = data((1, 6, 6))
    layout = fast.layout
    for seed in range(3):
        path = layout.path(architecture(layout), torch.Generator().manual_seed(seed))
        torch.testing.assert_close(fast(x, path), plain(x, path), rtol=0, atol=1e-12)
        named = dict(plain.named_parameters())
        found = torch.autograd.grad(F.cross_entropy(plain(x, path), y), list(named.values()), allow_unused=True)
        used = {name for name, slope in zip(named, found, strict=True) if slope is not None}
        F.cross_entropy(fast(x, path), y).backward()
        for name, rows in fast.sources().items():
            weight = dict(fast.named_parameters()).get(name)
            if weight is None:
                continue
            pieces = torch.zeros_like(weight) if weight.grad is None else weight.grad
            for row, piece in zip(rows, pieces.split([named[row[0]].shape[0] for row in rows]), strict=True):
                assert row[0] in used or not piece.any()
        fast.zero_grad()


def test_a_genotype_of_the_space_is_a_path() -> None:
    space = DartsSpace(num_nodes=3)
    fast, plain = both(space, Frame(channels=4, num_cells=3), (1, 6, 6))
    x, _ = data((1, 6, 6))
    genotype = space.sample(torch.Generator().manual_seed(3))
    assert isinstance(genotype, Cells)
    torch.testing.assert_close(fast(x, genotype), plain(x, genotype), rtol=0, atol=1e-12)


def test_there_and_back_the_weights_are_the_same() -> None:
    outside = torch.get_rng_state()
    fast, plain = both(DartsSpace(num_nodes=2), Frame(channels=4, num_cells=3))
    assert torch.equal(torch.get_rng_state(), outside)
    again = fast.stacked(plain.state_dict())
    assert set(again) == set(fast.state_dict())
    assert all(torch.equal(again[name], value) for name, value in fast.state_dict().items())


def test_one_seed_gives_both_the_same_weights() -> None:
    layout, frame = SupernetLayout.of(nasbench201()), Frame(channels=4, num_cells=2)
    with seeded(7):
        fast = Supernet(layout, (1, 6, 6), 3, frame)
    with seeded(7):
        plain = PlainSupernet(layout, (1, 6, 6), 3, frame)
    assert all(torch.equal(fast.stacked(plain.state_dict())[name], v) for name, v in fast.state_dict().items())


def test_it_has_as_many_weights_as_that_of_pc_darts() -> None:
    net = Supernet(SupernetLayout.of(DartsSpace()), (3, 16, 16), 10, Frame(channel_fraction=0.25))
    assert sum(value.numel() for value in net.parameters()) == 299_578


def test_weights_of_edges_and_operations_are_probabilities() -> None:
    layout = SupernetLayout.of(DartsSpace())
    for alpha, beta in layout.weights(architecture(layout)).values():
        torch.testing.assert_close(alpha.sum(1), torch.ones(14, dtype=torch.float64))
        sums = [float(beta[layout.entering(node)].detach().sum()) for node in range(2, 6)]
        assert sums == pytest.approx([1.0] * 4)
    plain = layout.weights(architecture(layout, edges=False))["normal"][1]
    assert torch.equal(plain, torch.ones(14, dtype=torch.float64))


def test_an_operation_of_weight_one_is_that_operation_alone() -> None:
    """With α far from zero a mixed edge is the one operation; β is none where a node has one edge."""
    layout = SupernetLayout.of(GeneralSpace((2,), EVERYTHING))
    net = Supernet(layout, (1, 6, 6), 3, Frame(channels=4, num_cells=2)).double()
    x, _ = data((1, 6, 6))
    for place in range(len(EVERYTHING)):
        alpha = torch.full((1, len(EVERYTHING)), -1e4, dtype=torch.float64)
        alpha[0, place] = 1e4
        path = layout.path({"alpha/normal": alpha}, torch.Generator())
        torch.testing.assert_close(net(x, {"alpha/normal": alpha}), net(x, path), rtol=0, atol=1e-12)


def test_pools_run_once_for_all_edges_and_zeros_never(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    edges = [[supernet_operation(name, 4, 1) for name in DARTS_OPERATIONS] for _ in range(5)]
    fan = MixedEdges(edges, 4, 1)
    for module in [*fan.pools, *(op for edge in edges for op in edge)]:
        module.register_forward_hook(lambda module, *_: calls.append(type(module).__name__))
    fan(torch.randn(2, 4, 6, 6), torch.ones(5, 8))
    assert sorted(calls) == ["AvgPool2d", "MaxPool2d"]


def doubled(function: Callable[..., Tensor], *tensors: Tensor) -> bool:
    return bool(torch.autograd.gradcheck(function, tensors) and torch.autograd.gradgradcheck(function, tensors))


def test_second_derivatives_of_the_batch_norm_are_those_of_finite_differences() -> None:
    rng = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(*size, generator=rng, dtype=torch.float64).requires_grad_() for size in ((3, 2, 3, 2), (2,))
    )
    zero, one = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    assert doubled(lambda x, weight: batch_norm(x, zero.clone(), one.clone(), weight, True), x, weight)
    assert doubled(lambda x: batch_norm(x, zero.clone(), one.clone(), None, True), x)
    torch.testing.assert_close(
        batch_norm(x, zero.clone(), one.clone(), weight, True), F.batch_norm(x, None, None, weight, None, True)
    )


def test_second_derivatives_of_the_weighted_sum_are_those_of_finite_differences() -> None:
    rng = torch.Generator().manual_seed(0)
    weights, *terms = (
        torch.randn(*size, generator=rng, dtype=torch.float64).requires_grad_()
        for size in ((3,), (2, 3), (2, 3), (2, 3))
    )
    assert doubled(lambda weights, *terms: weighted_sum(weights, terms), weights, *terms)
    torch.testing.assert_close(weighted_sum(weights, terms), sum(w * x for w, x in zip(weights, terms, strict=True)))


@pytest.mark.parametrize(("stride", "dilation", "groups", "outputs"), [(1, 1, 4, 4), (2, 1, 2, 6), (1, 2, 1, 2)])
def test_second_derivatives_of_the_convolution_are_those_of_finite_differences(
    stride: int, dilation: int, groups: int, outputs: int
) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 5, 4, generator=rng, dtype=torch.float64).requires_grad_()
    weight = torch.randn(outputs, 4 // groups, 3, 3, generator=rng, dtype=torch.float64).requires_grad_()
    geometry = ((stride, stride), (dilation, dilation), (dilation, dilation), groups)
    assert doubled(lambda x, weight: convolution(x, weight, *geometry), x, weight)
    with fixed_weights():
        assert torch.autograd.grad(convolution(x, weight, *geometry).sum(), [weight], allow_unused=True) == (None,)


def test_running_statistics_follow_in_training_and_rest_in_evaluation() -> None:
    fast, _ = both(nasbench201(), Frame(channels=4, num_cells=2), (1, 6, 6))
    x, _ = data((1, 6, 6))
    before = {name: value.clone() for name, value in fast.named_buffers()}
    fast.eval()(x, architecture(fast.layout))
    assert all(torch.equal(value, before[name]) for name, value in fast.named_buffers())
    fast.train()(x, architecture(fast.layout))
    moved = {name for name, value in fast.named_buffers() if not torch.equal(value, before[name])}
    assert moved == set(before)


def test_restricted_and_limited_spaces_have_the_operations_that_are_left() -> None:
    space = GeneralSpace()
    kin = space.at(123)
    part = restrict_space(space, [kin])
    assert set(SupernetLayout.of(part).operations["normal"]) == set(kin.operations()["normal"])
    assert SupernetLayout.of(limit_space(part, lambda _: 0.0, 1.0)) == SupernetLayout.of(part)
    assert SupernetLayout.of(part).num_nodes == 3


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SupernetLayout.of(MobileSpace()), OptionError, "consists of cells"),
        (lambda: Frame(channels=6, channel_fraction=0.25), OptionError, "1/K with K a divisor of 6 channels"),
        (lambda: Frame(channel_fraction=0.0), OptionError, "channel_fraction must be in"),
        (lambda: Frame(num_cells=0), OptionError, "at least one cell"),
        (lambda: Frame(stem_stride=3), OptionError, "stem_stride"),
        (lambda: Supernet(SupernetLayout.of(nasbench201()), (4,), 3, Frame()), OptionError, "reads images"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (GeneralSpace((4,), GENERAL_OPERATIONS), "is not a path of the supernet: it has the operation"),
        (GeneralSpace((3,), NASBENCH201_OPERATIONS), "inputs among 3 nodes"),
        (DartsSpace(), "inputs among 6 nodes"),
    ],
)
def test_a_genotype_of_another_space_is_refused(space: Space, message: str) -> None:
    net = Supernet(SupernetLayout.of(nasbench201()), (1, 6, 6), 3, Frame(channels=4, num_cells=1))
    with pytest.raises(MismatchError, match=re.escape(message)):
        net(torch.zeros(2, 1, 6, 6), space.sample(torch.Generator().manual_seed(1)))


def test_architecture_weights_of_another_layout_are_refused() -> None:
    net = Supernet(SupernetLayout.of(nasbench201()), (1, 6, 6), 3, Frame(channels=4, num_cells=1))
    with pytest.raises(OptionError, match=r"alpha/normal have shape \(6, 4\), expected \(6, 5\)"):
        net(torch.zeros(2, 1, 6, 6), {"alpha/normal": torch.zeros(6, 4)})
