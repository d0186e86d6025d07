import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, OptionError, TrainingError
from nearkin.core.events import Checkpoint, Progress, finish
from nearkin.core.rng import seeded
from nearkin.core.state import State
from nearkin.nets.evaluate import evaluate
from nearkin.nets.functional import multiply_adds, num_parameters
from nearkin.nets.recipe import Recipe
from nearkin.search.genotype_evaluation import GenotypeEvaluation, TrainedObjective, evaluate_genotype
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.auxiliary import AuxiliaryLoss, CellNetworkInTraining
from nearkin.search.networks.build import CellNetwork, Skeleton, build_network
from nearkin.tasks.derive import held_out
from nearkin.tasks.likelihood import Categorical, Gaussian
from nearkin.tasks.readers.language import language_task
from nearkin.tasks.task import Task

CELLS = Genotype.parse("normal(0): 1 = conv3(0); 2 = max3(0) + conv3(1); out = 2")
PAIR = Genotype.parse(
    "normal(0, 1): 2 = sep_conv_3x3(0) + skip_connect(1); out = 2 | reduction(0, 1): 2 = max_pool_3x3(0); out = 2"
)
CHAIN = Genotype.parse("chain: mbconv(expansion=3, kernel=3); skip")
RECURRENT = Genotype.parse("recurrent(0): 1 = tanh(0); 2 = relu(1); out = mean(1, 2)")
SMALL = Skeleton(channels=4, num_cells=2, stages=(1, 1))
TRAINED = Skeleton(channels=4, num_cells=3, auxiliary=True, drop_path=0.3, dropout=0.1)
QUICK = Recipe(steps=6, batch_size=16, learning_rate=0.02)


def stripes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images with a bright row or a bright column."""
    rng = torch.Generator().manual_seed(seed)
    x, y = 0.3 * torch.randn(count, 1, 6, 6, generator=rng), torch.arange(count) % 2
    for image, label, place in zip(x, y, torch.randint(6, (count,), generator=rng), strict=True):
        image[0].transpose(0, int(label))[place] += 1.5
    return x, y


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.from_arrays("stripes", *stripes(120, 0), *stripes(60, 1))


@pytest.fixture(scope="module")
def text() -> Task:
    return language_task("song", "la la li lo\n" * 60, "la la li lo\n" * 10, {"length": "4"})


def states_equal(one: GenotypeEvaluation, other: GenotypeEvaluation) -> bool:
    mine, others = one.network.state_dict(), other.network.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[key], others[key]) for key in mine)


def test_a_trained_cell_is_measured_on_the_test_part(task: Task) -> None:
    done = evaluate_genotype(CELLS, task, SMALL, Recipe(steps=40, batch_size=32, learning_rate=0.02))
    assert done.metric > 0.8
    assert done.part == "test"
    assert evaluate(done.network, task.test, task.form).to_dict() == pytest.approx(
        {"metric": done.metric, "loss": done.loss, "count": done.count}
    )
    assert done.parameters == num_parameters(done.network)
    assert done.multiply_adds == multiply_adds(done.network, task.input_shape)
    assert not done.network.training
    facts = json.loads(json.dumps(done.to_dict()))
    assert Genotype.parse(facts["genotype"]) == CELLS
    assert facts["steps"] == 40


@pytest.mark.parametrize("genotype", [CELLS, PAIR, CHAIN])
def test_one_seed_gives_one_result(task: Task, genotype: Genotype) -> None:
    one, same = (evaluate_genotype(genotype, task, SMALL, QUICK, seed=3) for _ in range(2))
    assert states_equal(one, same)
    assert one.loss == same.loss


def test_recurrent_cells_learn_a_song(text: Task) -> None:
    recipe = Recipe(steps=60, batch_size=16, learning_rate=0.02)
    done = evaluate_genotype(RECURRENT, text, Skeleton(channels=16), recipe)
    assert done.metric > 0.85  # of every window the first word alone may be either la or li


def test_regression_and_cutout_work(task: Task) -> None:
    x, y = stripes(80, 2)
    values = Task.from_arrays("values", x, y[:, None].float(), x, y[:, None].float())
    assert evaluate_genotype(CELLS, values, SMALL, QUICK).parameters == num_parameters(
        build_network(CELLS, SMALL, (1, 6, 6), 1)
    )
    plain, cut = (
        evaluate_genotype(CELLS, task, SMALL, replace(QUICK, augment=augment)) for augment in ("", "crop=1,cutout=2")
    )
    assert not states_equal(plain, cut)


@pytest.mark.parametrize("stop", [1, 3])
def test_a_killed_run_goes_on_to_the_same_bits(task: Task, stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.nets.training_loop.TICK_SECONDS", -1.0)  # a checkpoint after every step
    whole = evaluate_genotype(PAIR, task, TRAINED, QUICK, seed=1)
    work, saved = evaluate_genotype.work(PAIR, task, TRAINED, QUICK, seed=1), None
    for event in work:
        if isinstance(event, Checkpoint):
            saved = State.from_bytes(event.capture().to_bytes())
            stop -= 1
        if stop == 0:
            break
    work.close()
    assert saved is not None
    again = evaluate_genotype(PAIR, task, TRAINED, QUICK, 1, saved)
    assert states_equal(whole, again)
    assert whole.loss == again.loss


def test_checkpoints_of_another_evaluation_are_refused(task: Task) -> None:
    saved = next(
        event for event in evaluate_genotype.work(PAIR, task, SMALL, QUICK) if isinstance(event, Checkpoint)
    ).capture()
    for genotype, skeleton, validation in (
        (CELLS, SMALL, None),
        (PAIR, replace(SMALL, channels=5), None),
        (PAIR, SMALL, 0.5),
    ):
        with pytest.raises(TrainingError, match="start again"):
            evaluate_genotype(genotype, task, skeleton, QUICK, 0, saved, validation=validation)


# What is held out


def test_held_out_parts_are_of_the_training_data_and_share_nothing(task: Task, text: Task) -> None:
    part = held_out(task, 0.25, seed=0)
    assert (len(part.train), len(part.test)) == (90, 30)
    assert torch.bincount(part.test.labels()).tolist() == [15, 15]
    rows = torch.cat([part.train.all().x, part.test.all().x]).flatten(1)
    assert torch.equal(rows.unique(dim=0), task.train.all().x.flatten(1).unique(dim=0))
    song = held_out(text, 0.25, seed=0)
    assert torch.equal(torch.cat([song.train.all().x, song.test.all().x]), text.train.all().x)
    with pytest.raises(OptionError, match="between 0 and 1"):
        held_out(text, 1.0, seed=0)


def test_the_objective_never_looks_at_the_test_part(task: Task) -> None:
    nonsense = replace(task, test=task.train.chosen(torch.arange(2)))
    seen, other = (
        finish(TrainedObjective(one, SMALL, QUICK, validation=0.25).measure(CELLS)) for one in (task, nonsense)
    )
    assert seen.score == other.score
    assert seen.facts["loss"] == other.facts["loss"]
    part = evaluate_genotype(CELLS, task, SMALL, QUICK, validation=0.25)
    assert (part.part, part.count, part.metric) == ("validation", 30, seen.score)


def test_the_objective_keeps_its_checkpoints_to_itself_and_names_what_it_depends_on(task: Task) -> None:
    objective = TrainedObjective(task, SMALL, QUICK)
    events = list(objective.measure(CELLS))
    assert any(isinstance(event, Progress) for event in events)
    assert not any(isinstance(event, Checkpoint) for event in events)
    settings = [
        json.dumps(one.settings(), sort_keys=True)
        for one in (
            objective,
            replace(objective, seed=1),
            replace(objective, skeleton=TRAINED),
            replace(objective, recipe=replace(QUICK, steps=7)),
            replace(objective, validation=0.3),
            replace(objective, task=held_out(task, 0.5, 0)),
        )
    ]
    assert len(set(settings)) == len(settings)


# Auxiliary head and drop-path


def test_the_loss_of_a_pair_is_that_of_the_first_and_a_share_of_the_second() -> None:
    first, second, targets = torch.randn(5, 3), torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    form = AuxiliaryLoss(Categorical(), 0.4)
    plain = Categorical()
    both = plain.loss(first, targets, 0.1) + 0.4 * plain.loss(second, targets, 0.1)
    assert torch.equal(form.loss((first, second), targets, 0.1), both)
    assert torch.equal(form.loss(first, targets), plain.loss(first, targets))
    assert form.name == "categorical"
    assert AuxiliaryLoss(Gaussian(), 0.4).metric == "r2"


def in_training(skeleton: Skeleton, total: int = 10) -> tuple[CellNetwork, CellNetworkInTraining]:
    network = build_network(PAIR, skeleton, (1, 6, 6), 3)
    assert isinstance(network, CellNetwork)
    return network, CellNetworkInTraining(network, skeleton, 3, total, seed=0)


def test_in_evaluation_the_wrapper_is_the_network() -> None:
    network, module = in_training(TRAINED)
    x = torch.randn(4, 1, 6, 6)
    assert torch.equal(module.eval()(x), network(x))


def test_drop_path_rises_to_its_rate_and_stays() -> None:
    network, module = in_training(TRAINED)
    rates = []
    for _ in range(13):
        module(torch.randn(4, 1, 6, 6))
        rates.append(network.layers[0].drop_path)
    assert rates == pytest.approx([0.3 * min(1, step / 10) for step in range(13)])


def test_the_auxiliary_head_trains_what_lies_before_it() -> None:
    with seeded(0):
        network, module = in_training(replace(TRAINED, drop_path=0.0, num_cells=6))
        outputs, second = module(torch.randn(8, 1, 6, 6))
    assert outputs.shape == second.shape == (8, 3)
    second.square().sum().backward()
    place = network.middle
    assert place == 4  # two thirds of six
    reached = {
        int(name.split(".")[1]) for name, w in network.named_parameters() if w.grad is not None and "layers" in name
    }
    assert max(reached) == place
    assert network.head.weight.grad is None
    assert all(weight.grad is not None for weight in module.auxiliary.parameters())


def test_the_auxiliary_head_changes_what_is_learned_and_is_not_counted(task: Task) -> None:
    plain = evaluate_genotype(PAIR, task, replace(TRAINED, auxiliary=False), QUICK)
    helped = evaluate_genotype(PAIR, task, TRAINED, QUICK)
    assert plain.parameters == helped.parameters
    assert not states_equal(plain, helped)


def test_averaged_weights_and_early_stops_go_with_it(task: Task) -> None:
    averaged = evaluate_genotype(PAIR, task, TRAINED, replace(QUICK, averaging=0.5))
    assert not states_equal(averaged, evaluate_genotype(PAIR, task, TRAINED, QUICK))
    impatient = evaluate_genotype(PAIR, task, TRAINED, Recipe(epochs=50, target=0.0))
    assert impatient.steps < 50


# What does not fit


def test_tasks_and_genotypes_of_two_kinds_are_refused(task: Task, text: Task) -> None:
    x = torch.rand(20, 1, 6, 6)
    dense = Task.from_arrays("dense", x, x, x, x, likelihood="dense")
    table = Task.from_arrays("table", torch.randn(20, 3), torch.arange(20) % 2)
    for genotype, wrong, skeleton, message in (
        (CELLS, dense, SMALL, "images as outputs"),
        (CELLS, task, replace(SMALL, dense=True), "images as outputs"),
        (CHAIN, dense, replace(SMALL, dense=True), "a chain has no images as outputs"),
        (CELLS, text, SMALL, "recurrent cells for text"),
        (RECURRENT, task, SMALL, "recurrent cells for text"),
        (CELLS, table, SMALL, "images"),
        (CHAIN, task, replace(SMALL, auxiliary=True), "are only for cells"),
        (CHAIN, task, replace(SMALL, drop_path=0.1), "are only for cells"),
    ):
        with pytest.raises((OptionError, MismatchError), match=message):
            evaluate_genotype(genotype, wrong, skeleton, QUICK)
