"""Exact gradients through a chain of updates, against finite differences and TorchOpt in double precision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad

from nearkin.core.errors import MismatchError, OptionError
from nearkin.core.rng import seeded
from nearkin.multitask.hypergradient import Stage, chain_gradient, first_order, run_chain
from nearkin.multitask.matching import MatchingOptions, match_encoders, set_differences
from nearkin.search.methods.darts.architecture_step import Tensors, second_order
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.supernet.fused.fused_convolution import convolution
from nearkin.search.supernet.fused.norm import batch_norm
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.fused.weighted_sum import weighted_sum
from nearkin.search.supernet.reference import Frame, StackedCells
from nearkin.search.supernet.supernet_layout import SupernetLayout

RATE = 0.1
Embed = Callable[[Tensors, Tensors, Tensor], Tensor]


def drawn(*size: int, seed: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass
class Toy:
    """Stages, validation loss, weights, architecture and drift of a small smooth problem."""

    stages: list[Stage]
    validation: Callable[[Sequence[Tensors], Tensors], Tensor]
    weights: list[Tensors]
    architecture: Tensors
    drift: list[Tensors]

    def after(self, architecture: Tensors) -> list[Tensors]:
        """The weights after all stages, step by step without a graph of the architecture."""
        current = [dict(slot) for slot in self.weights]
        for stage in self.stages:
            free = {name: value.clone().requires_grad_() for name, value in current[stage.student].items()}
            teacher = None if stage.teacher is None else current[stage.teacher]
            slopes = torch.autograd.grad(stage.loss(free, teacher, architecture), list(free.values()),
                                         materialize_grads=True)  # fmt: skip
            for (name, value), slope in zip(free.items(), slopes, strict=True):
                step = slope + self.drift[stage.student][name]
                current[stage.student] = {**current[stage.student], name: value.detach() - stage.rate * step}
        return current

    def objective(self, architecture: Tensors) -> float:
        with torch.no_grad():
            fixed = {name: value.detach() for name, value in architecture.items()}
        return float(self.validation(self.after(fixed), fixed))

    def numerical(self, step: float = 1e-5) -> Tensors:
        """Central differences, coordinate by coordinate."""
        slopes = {name: torch.zeros_like(value) for name, value in self.architecture.items()}
        for name, value in self.architecture.items():
            for i in range(value.numel()):
                sides = []
                for sign in (1, -1):
                    moved = value.clone()
                    moved.view(-1)[i] += sign * step
                    sides.append(self.objective({**self.architecture, name: moved}))
                slopes[name].view(-1)[i] = (sides[0] - sides[1]) / (2 * step)
        return slopes

    def gradient(self, checkpoint: bool = False) -> tuple[float, Tensors]:
        return chain_gradient(self.stages, self.validation, self.weights, self.architecture, drift=self.drift,
                              checkpoint=checkpoint)  # fmt: skip


def mixed(x: Tensor, alpha: Tensor) -> Tensor:
    p = alpha.softmax(0)
    return p[0] * x.tanh() + p[1] * x.sin() + p[2] * x


def dense(weights: Tensors, architecture: Tensors, x: Tensor) -> Tensor:
    return mixed(mixed(x @ weights["first"], architecture["one"]) @ weights["second"], architecture["two"])


def dense_weights(seed: int) -> Tensors:
    sizes = {"first": (3, 4), "second": (4, 3), "head": (3,), "unused": (2,)}
    return {name: drawn(*size, seed=seed + i) / 2 for i, (name, size) in enumerate(sizes.items())}


def dense_architecture(seed: int) -> Tensors:
    return {"one": drawn(3, seed=seed), "two": drawn(3, seed=seed + 1), "idle": drawn(2, seed=seed + 2)}


def convolutional(weights: Tensors, architecture: Tensors, x: Tensor) -> Tensor:
    """The convolution, the batch norm and the weighted sum of the supernet, which have their own second derivatives."""
    images = x[:, None, :, None].expand(-1, 1, -1, 3)
    first = convolution(images, weights["first"], (1, 1), (1, 1), (1, 1), 1).tanh()
    scale = architecture["two"].softmax(0)
    wide = convolution(first, weights["second"], (1, 1), (1, 1), (1, 1), 2)
    wide = batch_norm(wide, torch.zeros(2).double(), torch.ones(2).double(), scale[:2], True)
    return weighted_sum(architecture["one"].softmax(0), [wide.tanh(), wide.sin(), first]).flatten(1)


def convolutional_weights(seed: int) -> Tensors:
    sizes = {"first": (2, 1, 3, 3), "second": (2, 1, 3, 3), "head": (18,)}
    return {name: drawn(*size, seed=seed + i) / 2 for i, (name, size) in enumerate(sizes.items())}


def toy(
    num_tasks: int,
    num_rounds: int,
    seed: int = 0,
    *,
    transfer: float = 3.0,
    rate: float = RATE,
    embed: Embed = dense,
    make: Callable[[int], Tensors] = dense_weights,
) -> Toy:
    """Tasks of regression with transfer by matching; threshold and bandwidth are constants."""
    start = 1000 * seed
    weights = [make(start + 10 * k) for k in range(num_tasks)]
    architecture = dense_architecture(start + 500)
    sets = drawn(5, 1, 3, seed=start + 600) + 0.3 * drawn(5, 4, 3, seed=start + 601)

    def embedded(slot: Tensors, given: Tensors) -> Tensor:
        return embed(slot, given, sets.flatten(0, 1)).unflatten(0, (5, 4))

    bandwidth = float(embedded(weights[0], architecture).std()) * 2
    kernel = MatchingOptions(bandwidth=bandwidth)
    differences = set_differences(embedded(weights[0], architecture), kernel)
    options = MatchingOptions(bandwidth=bandwidth, threshold=float(differences[differences > 0].quantile(0.4)))

    def task_loss(slot: Tensors, given: Tensors, data: int) -> Tensor:
        x, y = drawn(8, 3, seed=start + data), drawn(8, seed=start + data + 1)
        return (embed(slot, given, x) @ slot["head"] - y).square().mean()

    def stage(number: int) -> Stage:
        round_, student = divmod(number, num_tasks)
        teacher = None if number == 0 or num_tasks == 1 else (student - 1) % num_tasks

        def loss(slot: Tensors, other: Tensors | None, given: Tensors) -> Tensor:
            own = task_loss(slot, given, 700 + 10 * student + 2 * round_)
            if other is None:
                return own
            return own + transfer * match_encoders(embedded(other, given), embedded(slot, given), options).loss

        return Stage(student, teacher, loss, rate)

    def validation(slots: Sequence[Tensors], given: Tensors) -> Tensor:
        return torch.stack([task_loss(slot, given, 800 + 2 * k) for k, slot in enumerate(slots)]).sum()

    drift = [{name: 0.1 * value for name, value in slot.items()} for slot in weights]
    return Toy([stage(number) for number in range(num_tasks * num_rounds)], validation, weights, architecture, drift)


def worst(one: Tensors, other: Tensors) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in other)


def largest(tensors: Tensors) -> float:
    return max(float(value.abs().max()) for value in tensors.values())


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_rounds", [1, 2, 3])
@pytest.mark.parametrize("num_tasks", [1, 2, 3])
def test_the_gradient_is_that_of_finite_differences(num_tasks: int, num_rounds: int, seed: int) -> None:
    problem = toy(num_tasks, num_rounds, seed)
    truth = problem.numerical()
    for checkpoint in (False, True):
        loss, slopes = problem.gradient(checkpoint)
        assert loss == pytest.approx(problem.objective(problem.architecture), rel=1e-12)
        assert worst(slopes, truth) <= 1e-8


@pytest.mark.parametrize("num_rounds", [1, 2])
def test_the_supernets_own_second_derivatives_are_exact_in_a_chain(num_rounds: int) -> None:
    problem = toy(2, num_rounds, 1, embed=convolutional, make=convolutional_weights)
    truth = problem.numerical()
    for checkpoint in (False, True):
        assert worst(problem.gradient(checkpoint)[1], truth) <= 1e-8


def test_the_teacher_is_active_and_changes_the_gradient() -> None:
    with_transfer, without = toy(2, 2).gradient()[1], toy(2, 2, transfer=0.0).gradient()[1]
    assert worst(with_transfer, without) > 1e-3


def test_the_path_through_the_teacher_is_part_of_the_gradient() -> None:
    """A teacher that is a constant for the architecture gives another gradient."""
    problem = toy(2, 1)
    second, teacher = problem.stages[1], problem.after(problem.architecture)[0]

    def cut(slot: Tensors, _: Tensors | None, given: Tensors) -> Tensor:
        return second.loss(slot, teacher, given)

    constant = Toy([problem.stages[0], Stage(1, None, cut, RATE)], problem.validation, problem.weights,
                   problem.architecture, problem.drift)  # fmt: skip
    assert constant.gradient()[0] == pytest.approx(problem.gradient()[0], rel=1e-12)
    assert worst(constant.gradient()[1], problem.gradient()[1]) > 1e-5


@pytest.mark.parametrize(("num_tasks", "num_rounds"), [(2, 1), (3, 2), (2, 3)])
def test_the_gradient_is_that_of_torchopt(num_tasks: int, num_rounds: int) -> None:
    torchopt = pytest.importorskip("torchopt")
    problem = toy(num_tasks, num_rounds, 5)
    free = {name: value.clone().requires_grad_() for name, value in problem.architecture.items()}
    optimiser, current = torchopt.sgd(RATE), [dict(slot) for slot in problem.weights]
    states = [optimiser.init(slot) for slot in current]
    for stage in problem.stages:
        slot, other = stage.student, None if stage.teacher is None else current[stage.teacher]
        slopes = grad(stage.loss)(current[slot], other, free)
        slopes = {name: value + problem.drift[slot][name] for name, value in slopes.items()}
        updates, states[slot] = optimiser.update(slopes, states[slot], inplace=False)
        current[slot] = torchopt.apply_updates(current[slot], updates, inplace=False)
    loss = problem.validation(current, free)
    slopes = dict(zip(free, torch.autograd.grad(loss, list(free.values()), materialize_grads=True), strict=True))
    for checkpoint in (False, True):
        exact = problem.gradient(checkpoint)
        assert exact[0] == pytest.approx(float(loss.detach()), rel=1e-12)
        assert worst(exact[1], slopes) <= 1e-12


@pytest.mark.parametrize("checkpoint", [False, True])
def test_at_rate_zero_it_is_the_first_order(checkpoint: bool) -> None:
    problem = toy(3, 2, rate=0.0)
    loss, slopes = first_order(problem.validation, problem.weights, problem.architecture)
    exact = problem.gradient(checkpoint)
    assert exact[0] == loss
    assert worst(exact[1], slopes) == 0
    assert largest(slopes) > 1e-3


@pytest.mark.parametrize("checkpoint", [False, True])
def test_without_stages_it_is_the_first_order(checkpoint: bool) -> None:
    problem = toy(2, 1)
    slopes = first_order(problem.validation, problem.weights, problem.architecture)[1]
    assert worst(chain_gradient([], problem.validation, problem.weights, problem.architecture,
                                checkpoint=checkpoint)[1], slopes) == 0  # fmt: skip


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_weights_after_the_pass_are_those_of_the_steps_and_the_given_ones_stay(checkpoint: bool) -> None:
    problem = toy(3, 2)
    kept = [{name: value.clone() for name, value in slot.items()} for slot in problem.weights]
    result = run_chain(problem.stages, problem.validation, problem.weights, problem.architecture,
                       drift=problem.drift, checkpoint=checkpoint)  # fmt: skip
    for mine, truth in zip(result.weights, problem.after(problem.architecture), strict=True):
        assert worst(mine, truth) <= 1e-12
        assert not any(value.requires_grad for value in mine.values())
    for given, before in zip(problem.weights, kept, strict=True):
        assert worst(given, before) == 0
        assert not any(value.requires_grad for value in given.values())


def test_a_slot_may_be_its_own_teacher_and_a_head_may_learn_from_its_encoder() -> None:
    """One task teaches itself, then its head, a slot of its own, takes a step on the new encoder (eqs. 12-16)."""
    problem = toy(1, 1, 3)
    head = {"head": problem.weights[0]["head"]}
    encoder = {name: value for name, value in problem.weights[0].items() if name != "head"}
    own, sets = problem.stages[0].loss, drawn(20, 3, seed=3)
    options = MatchingOptions(bandwidth=1.0, threshold=0.1)

    def first(slot: Tensors, other: Tensors | None, given: Tensors) -> Tensor:
        assert other is not None
        pair = (dense(weights, given, sets).unflatten(0, (5, 4)) for weights in (other, slot))
        return own({**slot, **head}, None, given) + 0.01 * match_encoders(*pair, options).loss

    def second(slot: Tensors, other: Tensors | None, given: Tensors) -> Tensor:
        assert other is not None
        return own({**other, **slot}, None, given)

    def validation(slots: Sequence[Tensors], given: Tensors) -> Tensor:
        return problem.validation([{**slots[0], **slots[1]}], given)

    stages = [Stage(0, 0, first, RATE), Stage(1, 0, second, RATE), Stage(0, 0, first, RATE), Stage(1, 0, second, RATE)]
    drift = [{name: torch.zeros_like(value) for name, value in slot.items()} for slot in (encoder, head)]
    literal = Toy(stages, validation, [encoder, head], problem.architecture, drift)
    truth = literal.numerical()
    for checkpoint in (False, True):
        assert worst(literal.gradient(checkpoint)[1], truth) <= 1e-8


def supernet_loss(net: StackedCells, seed: int) -> Callable[[Tensors, Tensors], Tensor]:
    x, y = drawn(6, 1, 6, 6, seed=seed), torch.arange(6) % 3
    buffers = dict(net.named_buffers())

    def loss(weights: Tensors, architecture: Tensors) -> Tensor:
        copies = {name: buffer.clone() for name, buffer in buffers.items()}
        return F.cross_entropy(functional_call(net, {**weights, **copies}, (x, architecture)), y)

    return loss


@pytest.fixture(scope="module")
def supernets() -> tuple[list[Supernet], Tensors]:
    operations = ("none", "skip_connect", "avg_pool_3x3", "sep_conv_3x3", "dil_conv_3x3")
    layout = SupernetLayout.of(DartsSpace(operations, num_nodes=2))
    nets = []
    for seed in range(2):
        with seeded(seed):
            frame = Frame(channels=4, num_cells=2, channel_fraction=0.5)
            nets.append(Supernet(layout, (1, 6, 6), 3, frame).double())
    architecture = layout.initial(torch.Generator().manual_seed(1), edges=True, scale=0.5)
    return nets, {name: value.double() for name, value in architecture.items()}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_one_stage_of_one_supernet_is_the_second_order_of_darts(
    supernets: tuple[list[Supernet], Tensors], checkpoint: bool
) -> None:
    net, architecture = supernets[0][0], supernets[1]
    training, judged = supernet_loss(net, 1), supernet_loss(net, 2)
    weights = {name: value.detach() for name, value in net.named_parameters()}
    drift = {name: 0.01 * value for name, value in weights.items()}
    loss, slopes = second_order(training, judged, weights, architecture, 0.05, drift=drift)
    stage = Stage(0, None, lambda slot, _, given: training(slot, given), 0.05)
    exact = chain_gradient([stage], lambda slots, given: judged(slots[0], given), [weights], architecture,
                           drift=[drift], checkpoint=checkpoint)  # fmt: skip
    assert exact[0] == loss
    assert worst(exact[1], slopes) <= 1e-14


def test_on_supernets_the_gradient_is_that_of_the_plain_form(supernets: tuple[list[Supernet], Tensors]) -> None:
    """Two tasks, two rounds, and a teacher; the plain form has torch's own derivatives."""
    slopes = {}
    plain = [net.plain() for net in supernets[0]]
    for form, nets in (("fast", supernets[0]), ("plain", plain)):
        losses = [supernet_loss(net, k) for k, net in enumerate(nets)]
        weights = [{name: value.detach() for name, value in net.named_parameters()} for net in nets]

        def stage(student: int, teacher: int | None, losses=losses) -> Stage:  # type: ignore[no-untyped-def]
            def loss(slot: Tensors, other: Tensors | None, given: Tensors) -> Tensor:
                own = losses[student](slot, given)
                return own if other is None else own * (1 + losses[1 - student](other, given))

            return Stage(student, teacher, loss, 0.05)

        def validation(slots: Sequence[Tensors], given: Tensors, nets=nets) -> Tensor:  # type: ignore[no-untyped-def]
            return torch.stack(
                [supernet_loss(net, 7)(slot, given) for net, slot in zip(nets, slots, strict=True)]
            ).sum()

        stages = [stage(0, None), stage(1, 0), stage(0, 1), stage(1, 0)]
        for checkpoint in (False, True):
            slopes[form, checkpoint] = chain_gradient(stages, validation, weights, supernets[1],
                                                      checkpoint=checkpoint)[1]  # fmt: skip
    for key in (("fast", True), ("plain", False), ("plain", True)):
        assert worst(slopes[key], slopes["fast", False]) <= 1e-10


class SavedTensors:
    """Largest number of bytes that graphs keep at one time."""

    def __init__(self) -> None:
        self.live, self.peak = 0, 0

    def pack(self, value: Tensor) -> "KeptTensor":
        return KeptTensor(self, value)


class KeptTensor:
    """A tensor that a graph keeps; it is counted until the graph is freed."""

    def __init__(self, counter: SavedTensors, value: Tensor) -> None:
        self.counter, self.value = counter, value
        counter.live += value.nbytes
        counter.peak = max(counter.peak, counter.live)

    def __del__(self) -> None:
        self.counter.live -= self.value.nbytes


def peak_bytes(problem: Toy, checkpoint: bool) -> int:
    counter = SavedTensors()
    with torch.autograd.graph.saved_tensors_hooks(counter.pack, lambda kept: kept.value):
        problem.gradient(checkpoint)
    return counter.peak


def test_with_checkpoints_the_memory_of_graphs_does_not_grow_with_the_rounds() -> None:
    graphs = {flag: [peak_bytes(toy(2, rounds), flag) for rounds in (2, 3, 6)] for flag in (False, True)}
    assert graphs[True][0] == graphs[True][1] == graphs[True][2]
    assert graphs[False][2] > 2.5 * graphs[False][0] > 2.5 * graphs[True][0]


def test_wrong_stages_are_refused_in_one_line() -> None:
    problem = toy(2, 1)
    loss = problem.stages[0].loss
    with pytest.raises(OptionError, match="the learning rate of a stage must be 0 or more and finite, got -1"):
        Stage(0, None, loss, -1.0)
    for stage in (Stage(2, None, loss, 0.1), Stage(0, 2, loss, 0.1)):
        with pytest.raises(MismatchError, match="a stage names slot 2, expected 0 to 1"):
            chain_gradient([stage], problem.validation, problem.weights, problem.architecture)
    with pytest.raises(MismatchError, match="got drift for 1 slots and weights for 2"):
        chain_gradient(problem.stages, problem.validation, problem.weights, problem.architecture, drift=[None])
    with pytest.raises(MismatchError, match="the drift of slot 1 has no first, head, second, unused, exp"):
        chain_gradient(problem.stages, problem.validation, problem.weights, problem.architecture, drift=[None, {}])
