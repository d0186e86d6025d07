"""Training runs that a zoo has recorded: what was measured before them, and their loss curves.

A run is stored with the task whose network it started from; a run of an untrained network, with the task it learned.
"""

from collections.abc import Iterator
from contextlib import suppress

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Work
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
    """All recorded runs of a zoo."""
    for item in zoo.catalogue.artifacts(kind=KIND):
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
    """Store a run with its source, or with its task if it started from an untrained network.

    Nothing is stored in a read-only zoo, or if the task that the run belongs to is not in the zoo.
    """
    owner = source or task.name
    if owner not in zoo:
        return
    curve = RunCurve.of(history, recipe)
    name = run_network(network, recipe)
    run = RecordedRun(source, task.name, name, recipe.optimiser, recipe.batch_size, signals, curve)
    own = {"source": source, "data": task.fingerprint(), "network": name, "recipe": recipe.to_dict()}
    number = int(facts_digest({**own, "losses": curve.losses.tolist()})[:7], 16)  # a repeated run replaces itself
    with suppress(FileWriteError):
        zoo.catalogue.attach(owner, [NewArtifact(KIND, number, State(curve.to_tensors()).to_bytes(), run.facts())])


def record_training(zoo: SolvedTasks, task: Task, solved: Solved, recipe: Recipe) -> Work[None]:
    """Record the trainings of a task's own networks, from their initial weights."""
    for trial, fit in enumerate(solved.trials):
        model = build(solved.network, task.input_shape, task.num_outputs, solved.seed, trial).eval()
        view = SourceOnTarget(model, task, task.form, SAMPLES)
        yield from record_finetuning(zoo, "", view, solved.network, recipe, fit.history)


def record_finetuning(
    zoo: SolvedTasks, source: str, view: SourceOnTarget, network: str, recipe: Recipe, history: History
) -> Work[None]:
    """Measure what a forecast needs, and store a run with it; a run that cannot be measured is not stored."""
    try:
        signals = yield from measure_signals.work(view, recipe.batch_size)
        record_run(zoo, source, view.task, network, recipe, history, signals)
    except NearkinError as error:
        yield Caution(f"the training of '{view.task.name}' was not recorded for forecasts: {error}")
