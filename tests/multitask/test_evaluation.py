"""Evaluation phase for several tasks: the figures of single evaluations, and the same ones after any interruption."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import nearkin as nk
from nearkin.core.errors import MismatchError, OptionError, TrainingError
from nearkin.core.events import Checkpoint, Event, Progress, finish
from nearkin.core.state import State
from nearkin.multitask.evaluation import EvaluationOptions, TasksEvaluation, evaluate_tasks
from nearkin.search.genotype_evaluation import evaluate_genotype
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.auxiliary import CellNetworkInTraining

CELLS = Genotype.parse("normal(0): 1 = conv3(0); 2 = identity(0) + conv3(1); out = 2")
OTHER = Genotype.parse("normal(0): 1 = max3(0); 2 = conv3(0) + conv3(1); out = 2")
CHAIN = Genotype.parse("chain: mbconv(expansion=2, kernel=3); mbconv(expansion=2, kernel=5); skip")
RECURRENT = Genotype.parse("recurrent(0): 1 = tanh(0); out = mean(1)")
SMALL = EvaluationOptions(channels=4, num_cells=2, augment="crop=1,cutout=2", epochs=1)


@pytest.fixture(scope="module")
def tasks() -> list[nk.Task]:
    low, high = (nk.task(f"digits?classes={classes}&rest=drop&limit=80") for classes in ("0,1,2", "5,6"))
    return [low, high]


def events_of(tasks: list[nk.Task], resume: State | None = None, **more: Any) -> tuple[TasksEvaluation, list[Event]]:
    events: list[Event] = []
    given = {"options": SMALL, "seed": 3, **more}
    work = evaluate_tasks.work(given.pop("genotypes", CELLS), tasks, resume=resume, **given)
    saved: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, Checkpoint):
            data = event.capture().to_bytes()
            saved.append(Checkpoint(lambda: State.from_bytes(data)))

    return finish(work, listen), [*saved, *(event for event in events if isinstance(event, Progress))]


def timeless(done: TasksEvaluation) -> dict[str, Any]:
    facts = done.to_dict()["tasks"]
    return {task: {k: v for k, v in figures.items() if k != "seconds"} for task, figures in facts.items()}


def test_every_task_has_the_figures_of_its_own_evaluation(tasks: list[nk.Task]) -> None:
    done, events = events_of(tasks, genotypes=[CELLS, OTHER])
    for task, genotype in zip(tasks, (CELLS, OTHER), strict=True):
        alone = evaluate_genotype(genotype, task, SMALL.skeleton(genotype, task), SMALL.recipe(task), 3)
        mine = done.tasks[task.name]
        assert (mine.metric, mine.loss, mine.parameters) == (alone.metric, alone.loss, alone.parameters)
        assert mine.part == "test"
    facts = done.to_dict()
    assert json.loads(json.dumps(facts)) == facts
    for figures in facts["tasks"].values():
        assert {"genotype", "metric", "loss", "parameters", "multiply_adds", "seconds"} <= set(figures)
    assert done.metrics() == {name: figures["metric"] for name, figures in facts["tasks"].items()}
    assert [event.done for event in events if isinstance(event, Progress) and event.stage == "tasks"] == [1, 2]


def test_stopped_at_any_checkpoint_and_resumed_it_ends_the_same(tasks: list[nk.Task]) -> None:
    whole, events = events_of(tasks)
    saved = [event.capture() for event in events if isinstance(event, Checkpoint)]
    assert any(state.facts["current"] is None for state in saved[:-1])
    assert any(state.facts["finished"] and state.facts["current"] for state in saved)
    for state in saved:
        again, _ = events_of(tasks, state)
        assert timeless(again) == timeless(whole)
        for name, done in again.tasks.items():
            expected = whole.tasks[name].network.state_dict()
            assert all(torch.equal(value, expected[key]) for key, value in done.network.state_dict().items())


def test_cells_are_trained_with_aids_and_chains_without(tasks: list[nk.Task], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []
    start = CellNetworkInTraining.__init__

    def record(self: CellNetworkInTraining, *args: Any) -> None:
        start(self, *args)
        assert self.auxiliary is not None
        made.append(self.rate)

    monkeypatch.setattr(CellNetworkInTraining, "__init__", record)
    events_of(tasks[:1])
    assert made == [SMALL.drop_path]
    chains = EvaluationOptions(channels=4, stages=(1, 2), epochs=1)
    done, _ = events_of(tasks[:1], genotypes=CHAIN, options=chains, validation=0.25)
    assert made == [SMALL.drop_path]
    assert done.tasks[tasks[0].name].part == "validation"


def test_options_reach_the_training_and_the_network(tasks: list[nk.Task]) -> None:
    chosen = EvaluationOptions(channels=4, num_cells=2, epochs=3, batch_size=20, learning_rate=0.007, stem_stride=2)
    recipe = chosen.recipe(tasks[0])
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate) == (3, 20, 0.007)
    assert chosen.skeleton(CELLS, tasks[0]).stem_stride == 2
    assert EvaluationOptions().recipe(tasks[0]) == nk.Recipe.suited(tasks[0])


def test_tasks_of_other_inputs_and_images_as_outputs_have_their_own_skeletons() -> None:
    x = torch.rand(12, 1, 8, 8)
    dense = nk.Task.from_arrays("squares", x, x.square(), likelihood="dense")
    assert SMALL.skeleton(CELLS, dense).dense
    assert not SMALL.skeleton(CELLS, dense).auxiliary
    large = nk.Task.from_arrays("large", torch.rand(4, 3, 64, 64), torch.arange(4) % 2)
    assert SMALL.skeleton(CELLS, large).stem_stride == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [({"seed": 4}, "its seed differ"), ({"genotypes": OTHER}, "its genotypes differ"),
     ({"options": EvaluationOptions(channels=6, num_cells=2)}, "its skeletons differ")],
)  # fmt: skip
def test_a_checkpoint_of_another_evaluation_is_refused(
    tasks: list[nk.Task], change: dict[str, Any], message: str
) -> None:
    _, events = events_of(tasks[:1])
    state = next(event.capture() for event in events if isinstance(event, Checkpoint))
    with pytest.raises(TrainingError, match=message):
        events_of(tasks[:1], state, **change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda tasks: evaluate_tasks(CELLS, []), "got no tasks"),
        (lambda tasks: evaluate_tasks(CELLS, [tasks[0], tasks[0]]), "two tasks have one name"),
        (lambda tasks: evaluate_tasks([CELLS], tasks), "got 1 genotypes for 2 tasks"),
        (lambda tasks: evaluate_tasks([CELLS, RECURRENT], tasks, SMALL),
         "use recurrent cells for text"),
        (lambda tasks: evaluate_tasks(CHAIN, tasks, SMALL), "the chain has 3 blocks, the skeleton's stages"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line_before_any_training(
    tasks: list[nk.Task], make: Callable[[list[nk.Task]], Any], message: str
) -> None:
    seen: list[Event] = []
    with (
        pytest.raises((OptionError, MismatchError), match=message) as refused,
        nk.listening(seen.append),
    ):
        make(tasks)
    assert "\n" not in str(refused.value)
    assert not seen
