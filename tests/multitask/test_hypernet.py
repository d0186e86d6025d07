"""Weights of all tasks and rounds from one network: shapes, gradients, rank, number of parameters, errors."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from nearkin.core.errors import MismatchError, OptionError
from nearkin.core.rng import seeded
from nearkin.multitask.hypernet import HyperNetwork, encoder_weights
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.reference import Frame
from nearkin.search.supernet.supernet_layout import SupernetLayout

LAYOUT = SupernetLayout.of(DartsSpace())


@pytest.fixture(scope="module")
def supernet() -> Supernet:
    with seeded(0):
        return Supernet(LAYOUT, (1, 8, 8), 10, Frame(channels=8, num_cells=3, channel_fraction=0.25))


@pytest.fixture(scope="module")
def architecture() -> dict[str, Tensor]:
    return LAYOUT.initial(torch.Generator().manual_seed(0), edges=True)


def build(template, architecture, *, seed: int = 0, **options) -> HyperNetwork:  # type: ignore[no-untyped-def]
    with seeded(seed):
        return HyperNetwork(template, architecture, num_tasks=3, num_rounds=2, **options)


def small(**options) -> tuple[HyperNetwork, dict[str, Tensor]]:  # type: ignore[no-untyped-def]
    architecture = {"alpha": torch.linspace(-1, 1, 4).view(2, 2)}
    template = {"first": torch.zeros(4, 3, 2), "scale": torch.ones(4), "second": torch.zeros(2, 4)}
    return build(template, architecture, **options), architecture


@pytest.mark.parametrize("printed", [False, True])
def test_names_order_and_shapes_are_those_of_the_encoder(supernet, architecture, printed: bool) -> None:  # type: ignore[no-untyped-def]
    template = encoder_weights(supernet)
    weights = build(template, architecture, printed=printed)(2, 1, architecture)
    assert [(name, value.shape) for name, value in weights.items()] == [(n, v.shape) for n, v in template.items()]
    assert not any(name.startswith("head.") for name in weights)
    outputs = functional_call(supernet, weights, (torch.ones(2, 1, 8, 8), architecture))
    assert outputs.shape == (2, 10)


def test_the_weights_are_the_pieces_one_after_another() -> None:
    """24 + 4 + 8 numbers in pieces of 10: the vector is filled in order, scaled by tensor, and the rest is dropped."""
    network, architecture = small(piece=10)
    matrix, weights = network.matrix(1, 0, architecture), network(1, 0, architecture)
    assert matrix.shape == (4, 10)
    flat = matrix.flatten()
    torch.testing.assert_close(weights["first"].flatten(), flat[:24] / (3 * 6) ** 0.5)
    torch.testing.assert_close(weights["scale"], 1 + 0.1 * flat[24:28])
    torch.testing.assert_close(weights["second"].flatten(), flat[28:36] / (3 * 4) ** 0.5)


@pytest.mark.parametrize("printed", [False, True])
def test_the_first_layer_is_that_of_the_concatenated_inputs(printed: bool) -> None:
    """Against the plain form: one row of inputs for every piece."""
    network, architecture = small(piece=10, printed=printed)
    network.double()
    given = {name: value.double() for name, value in architecture.items()}
    rows = []
    for d in range(network.num_pieces):
        if printed:
            numbers = [torch.tensor([float(n)]).double() for n in (d + 1, 3, 2)]
        else:
            numbers = [network.pieces[d], network.tasks[2], network.rounds[1]]
        hidden = torch.relu(network.first(torch.cat([*numbers, given["alpha"].flatten()])))
        output = network.last(torch.relu(network.second(hidden)))
        rows.append(output if printed else output + network.direct(network.pieces[d]))
    torch.testing.assert_close(network.matrix(2, 1, given), torch.stack(rows), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("printed", [False, True])
def test_gradients_in_the_architecture_and_in_all_parameters(printed: bool) -> None:
    network, architecture = small(piece=10, embedding=3, hidden=(4, 5), printed=printed)
    network.double()
    parameters = {name: value.detach() for name, value in network.named_parameters()}

    def outputs(alpha: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(parameters, values, strict=True))
        weights = functional_call(network, named, (1, 1, {"alpha": alpha}))
        return torch.cat([value.flatten() for value in weights.values()])

    inputs = [architecture["alpha"].double(), *parameters.values()]
    assert torch.autograd.gradcheck(outputs, [value.clone().requires_grad_() for value in inputs])


def test_the_printed_form_has_rank_51_and_the_embeddings_exceed_it(supernet, architecture) -> None:  # type: ignore[no-untyped-def]
    template = encoder_weights(supernet)
    ranks = {}
    for printed in (True, False):
        network = build(template, architecture, printed=printed).double()
        given = {name: value.double() for name, value in architecture.items()}
        assert network.num_pieces > 100
        ranks[printed] = int(torch.linalg.matrix_rank(network.matrix(0, 0, given).detach()))
    assert ranks[True] <= 51 < ranks[False]


def test_the_printed_form_has_13490_parameters_for_the_operations_of_darts() -> None:
    """Inputs: 2 · 14 edges · 8 operations, and k, r, d: 227·30 + 30 + 30·50 + 50 + 50·100 + 100."""
    architecture = LAYOUT.initial(torch.Generator())
    assert sum(value.numel() for value in architecture.values()) == 224
    network = build({"w": torch.zeros(2, 500)}, architecture, printed=True)
    assert network.num_parameters == 13_490
    wide = build({"w": torch.zeros(200, 500)}, architecture, printed=True)
    assert wide.num_parameters == 13_490
    assert wide.num_stored == 6 * 100_000


def test_embeddings_are_the_only_part_that_grows_with_the_encoder() -> None:
    architecture = {"a": torch.zeros(4)}
    sizes = [build({"w": torch.zeros(2, 50 * pieces)}, architecture, embedding=8).num_parameters for pieces in (2, 5)]
    assert sizes[1] - sizes[0] == 3 * 8


@pytest.mark.parametrize("printed", [False, True])
def test_initial_weights_have_the_usual_spread(supernet, architecture, printed: bool) -> None:  # type: ignore[no-untyped-def]
    """The mean square over all matrices, relative to that of torch's initial weights, is near 1."""
    template = encoder_weights(supernet)
    weights = build(template, architecture, printed=printed)(0, 0, architecture)
    ratios = [
        (weights[name].detach().square().sum() * 3 * value[0].numel(), value.numel())
        for name, value in template.items()
        if value.dim() > 1
    ]
    ratio = float(sum(a for a, _ in ratios)) / sum(count for _, count in ratios)
    assert 0.5 < ratio < (10 if printed else 2)


def test_tasks_rounds_and_architectures_have_different_weights() -> None:
    network, architecture = small()
    other = {"alpha": architecture["alpha"] + 1}
    keys = [(0, 0, architecture), (1, 0, architecture), (0, 1, architecture), (0, 0, other)]
    weights = [network(*key)["first"].detach() for key in keys]
    for i, first in enumerate(weights):
        for second in weights[:i]:
            assert float((first - second).abs().max()) > 1e-3


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second, other = (small(seed=seed) for seed in (3, 3, 4))
    weights = [network(1, 1, architecture)["first"] for network, architecture in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_supernet_learns_through_the_hypernetwork(supernet, architecture) -> None:  # type: ignore[no-untyped-def]
    """Eight steps on eight samples lower the loss; the head has its own weights."""
    network = build(encoder_weights(supernet), architecture)
    x, y = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(8)
    optimiser, losses = torch.optim.Adam(network.parameters(), 1e-2), []
    for _ in range(8):
        buffers = {name: value.clone() for name, value in supernet.named_buffers()}
        outputs = functional_call(supernet, {**network(0, 0, architecture), **buffers}, (x, architecture))
        loss = F.cross_entropy(outputs, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_wrong_input_is_refused_in_one_line() -> None:
    network, architecture = small()
    with pytest.raises(OptionError, match="task 3 does not exist, expected 0 to 2"):
        network(3, 0, architecture)
    with pytest.raises(OptionError, match="round -1 does not exist, expected 0 to 1"):
        network(0, -1, architecture)
    with pytest.raises(MismatchError, match=r"got architecture weights beta \(2,\), expected alpha \(2, 2\)"):
        network(0, 0, {"beta": torch.zeros(2)})
    with pytest.raises(OptionError, match="num_tasks must be 1 or more, got 0"):
        HyperNetwork({"w": torch.zeros(2, 2)}, architecture, 0, 1)
    with pytest.raises(OptionError, match="the number of encoder weights must be 1 or more, got 0"):
        HyperNetwork({}, architecture, 1, 1)
    with pytest.raises(OptionError, match=r"hidden must be two numbers of units, got \(30,\)"):
        HyperNetwork({"w": torch.zeros(2, 2)}, architecture, 1, 1, hidden=(30,))
