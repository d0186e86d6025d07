"""Training runs that a zoo has recorded: what was measured before them, and their loss curves.

A run is stored with the task whose network it started from; a run of an untrained network, with the task it learned.
"""

from collections.abc import Iterator
from contextlib import suppress

from nearkin.core.errors import NearkinError
from nearkin.core.events import Note, Work
from nearkin.core.files import FileWriteError
from nearkin.core.state import State
from nearkin.distance.forecasting.curve import RunCurve
from nearkin.distance.forecasting.past_runs import RecordedRun
from nearkin.distance.forecasting.signals import Signals, measure_signals
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.nets.history import History
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.solved import Solved
from nearkin.run.checkpoints import facts_digest
from nearkin.store.records import NewArtifact
from nearkin.tasks.task import Task
from nearkin.zoo.solved_tasks import SolvedTasks

KIND = "run"
SAMPLES = 1000


def recorded_runs(zoo: SolvedTasks) -> Iterator[RecordedRun]:
    """All recorded runs of a zoo that can be read; a damaged one must not stop a forecast or `solve`."""
    for item in zoo.catalogue.artifacts(kind=KIND):
        with suppress(NearkinError):  # `nearkin doctor` names damaged files
            state = State.from_bytes(zoo.catalogue.blob(item), "a recorded run")
            yield RecordedRun.of(item.facts, dict(state.tensors))


def run_network(network: str, recipe: Recipe) -> str:
    """Network of a run, with its augmentation: augmented samples are harder, so such runs are kept apart.

    >>> run_network("lenet", Recipe()), run_network("lenet", Recipe(augment="crop=2"))
    ('lenet', 'lenet, augmented')
    """
    return f"{network}, augmented" if recipe.augment else network


def record_run(
    zoo: SolvedTasks, source: str, task: Task, network: str, recipe: Recipe, history: History, signals: Signals
) -> None:
    """Store a run with its source.

    Nothing is stored in a read-only zoo, or if the source is not in the zoo.
    """
    if source in zoo:
        with suppress(FileWriteError):
            zoo.catalogue.attach(source, [_artifact(source, task, network, recipe, history, signals)])


def training_runs(task: Task, solved: Solved, recipe: Recipe) -> Work[list[NewArtifact]]:
    """The trainings of a task's own networks, from their initial weights, to be stored with the task."""
    runs = []
    for trial, fit in enumerate(solved.trials):
        model = build(solved.network, task.input_shape, task.num_outputs, solved.seed, trial).eval()
        signals = yield from _signals(SourceOnTarget(model, task, task.form, SAMPLES), recipe)
        if signals is not None:
            runs.append(_artifact("", task, solved.network, recipe, fit.history, signals))
    return runs


def record_finetuning(
    zoo: SolvedTasks, source: str, view: SourceOnTarget, network: str, recipe: Recipe, history: History
) -> Work[None]:
    """Measure what a forecast needs, and store a run with it; a run that cannot be measured is not stored."""
    signals = yield from _signals(view, recipe)
    if signals is not None:
        record_run(zoo, source, view.task, network, recipe, history, signals)


def _signals(view: SourceOnTarget, recipe: Recipe) -> Work[Signals | None]:
    """What a forecast needs of a run; None if it cannot be measured."""
    try:
        return (yield from measure_signals.work(view, recipe.batch_size))
    except (NearkinError, RuntimeError, TypeError, ValueError) as error:  # a user's network may refuse a new head
        reason = " ".join(str(error).split()) or type(error).__name__
        yield Note(f"the training of '{view.task.name}' is not recorded for forecasts: {reason}")
        return None


def _artifact(source: str, task: Task, network: str, recipe: Recipe, history: History, signals: Signals) -> NewArtifact:
    """A run as a file of its source; a repeated run has the same number, so that it replaces the first."""
    curve, name = RunCurve.of(history, recipe), run_network(network, recipe)
    run = RecordedRun(source, task.name, name, recipe.optimiser, recipe.batch_size, signals, curve)
    own = {"source": source, "data": task.fingerprint(), "network": name, "recipe": recipe.to_dict()}
    number = int(facts_digest({**own, "losses": curve.losses.tolist()})[:7], 16)
    return NewArtifact(KIND, number, State(curve.to_tensors()).to_bytes(), run.facts())
