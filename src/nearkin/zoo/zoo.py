"""Zoo: the solved tasks of a person or a group, on disk; what Python users hold in their hands."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearkin.core.budget import Budget
from nearkin.core.device import device as chosen_device
from nearkin.core.errors import DataError, ZooError, require
from nearkin.core.events import Caution, Work, operation
from nearkin.core.files import FileWriteError
from nearkin.core.lazy import Lazy
from nearkin.core.state import State, restoring
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.ranking import Ranking
from nearkin.distance.registry import DEFAULT, STRUCTURE
from nearkin.distance.screening import Embedding
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import default_network, path_of
from nearkin.nets.solved import Solved, fit_facts, fit_from, fit_state, solved_from, task_facts
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.training_loop import Fit
from nearkin.nets.trusted_code import remember, trust_network
from nearkin.run.checkpoints import Checkpoints, FolderCheckpoints, MemoryCheckpoints
from nearkin.run.stages import StageCache
from nearkin.store.catalogue import Catalogue
from nearkin.store.records import NewArtifact, NewTask, TaskRecord
from nearkin.tasks.datastring import DataString
from nearkin.tasks.packed import PROBE_SAMPLES, packed, unpacked
from nearkin.tasks.sources import task as read_task
from nearkin.tasks.task import Task
from nearkin.zoo.comparison import Comparison
from nearkin.zoo.near import compare_all, rank_sources
from nearkin.zoo.trials import TrialCache

if TYPE_CHECKING:
    from nearkin.search.networks.build import Skeleton
    from nearkin.zoo import cells as kept_cells
    from nearkin.zoo import search as searches
    from nearkin.zoo import transfer as transferring
else:  # they bring packages that no other part of a zoo needs
    kept_cells, searches, transferring = map(Lazy, ("nearkin.zoo.cells", "nearkin.zoo.search", "nearkin.zoo.transfer"))

FISHER_SAMPLES = 2048  # of the test part, drawn once and for all


class Zoo:
    """Solved tasks, kept in a folder.

    Args:
        path: the folder.
        create: make the zoo where there is none.

    >>> import tempfile
    >>> from nearkin.tasks.sources import task
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Zoo(folder.name + "/zoo") as zoo:
    ...     record = zoo.add(task("digits?detect=0&limit=200", name="zero"), "mlp", trials=1)
    ...     zoo.names(), zoo.solved("zero").model()(torch.zeros(1, 1, 8, 8)).shape
    (['zero'], torch.Size([1, 2]))
    >>> folder.cleanup()
    """

    def __init__(self, path: str | Path = "nearkin-zoo", create: bool = True) -> None:
        self.catalogue = Catalogue(Path(path), create)
        self.path = Path(path)
        self.work: Checkpoints = MemoryCheckpoints()
        if self.catalogue.writable:
            self.work = FolderCheckpoints(self.path / "work")

    def stages(self, task: Task) -> StageCache:
        """The cache of finished stages of a task's solution."""
        return StageCache(FolderCheckpoints(self.catalogue.stages / task.fingerprint()), task.digest())

    def __enter__(self) -> "Zoo":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self.catalogue.close()

    def names(self) -> list[str]:
        """Names of the tasks, oldest first."""
        return [record.name for record in self.catalogue.tasks()]

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def __len__(self) -> int:
        return len(self.catalogue.tasks())

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    @operation
    def add(
        self,
        task: Task,
        network: str | Callable[..., torch.nn.Module] | None = None,
        *,
        trials: int = 3,
        recipe: Recipe | None = None,
        seed: int = 0,
        device: str = "auto",
        restart: bool = False,
        from_file: bool = False,
    ) -> Work[TaskRecord]:
        """Solve a task and keep it; interrupted, the same call continues.

        Args:
            task: what to solve; its name must be free.
            network: a network string, a class or function that can be imported, or None for one that suits the task.
            trials: independent trainings; trial t starts from the same weights for every task.
            recipe: how to train (default: one that suits the task's size).
            seed: the one seed that everything random comes from.
            device: `auto`, `cpu` or `cuda`.
            restart: discard the trainings that an interrupted call left.
            from_file: the network string was read from a file: code that it names must be trusted already. A string
                of the caller's own is trusted (`nearkin.nets.trusted_code`).
        """
        if isinstance(network, str) and not from_file:
            trust_network(network)
        self.catalogue.claimable(task.name)
        require(trials >= 1, f"trials must be 1 or more, got {trials}")
        text = path_of(network) if callable(network) else network or default_network(task)
        spec = str(NetworkSpec.parse(text).anchored())
        recipe = recipe or Recipe.suited(task)
        if unused := task.constant_inputs():
            yield Caution(f"'{task.name}': {unused}")
        cache = TrialCache.of(self.work, task, spec, recipe, seed, restart=restart)
        fits: list[Fit] = []
        for trial in range(trials):
            fits.append((yield from cache.trial(trial, trials, chosen_device(device))))
        solved = Solved(task.name, spec, task.facts(), seed, tuple(fits))
        artifacts = [
            NewArtifact("weights", i, fit_state(done).to_bytes(), fit_facts(done)) for i, done in enumerate(fits)
        ]
        artifacts += yield from self._fishers(task, solved)
        if not task.source:
            data = packed(task)
            if not data.facts["whole"]:
                yield Caution(
                    f"{task.name} comes from arrays too large to keep whole; {PROBE_SAMPLES} samples of each "
                    f"part are kept"
                )
            artifacts.append(NewArtifact("data", 0, data.to_bytes(), dict(data.facts)))
        record = self.catalogue.add(_new_task(task, solved, recipe), artifacts)
        cache.clear()
        if warning := remember(spec):
            yield Caution(warning)
        return record

    def _fishers(self, task: Task, solved: Solved) -> Work[list[NewArtifact]]:
        """The diagonal Fisher information of every trial on the task's own test data."""
        found = []
        x, y = task.test.fixed_subset(FISHER_SAMPLES)
        for trial in range(len(solved.trials)):
            fisher = yield from diagonal.work(solved.model(trial), x, y, likelihood=task.likelihood)
            facts = {"labels": fisher.labels, "num_samples": fisher.num_samples, "trace": fisher.trace()}
            found.append(NewArtifact("fisher", trial, fisher.to_state().to_bytes(), facts))
        return found

    def fisher(self, name: str, trial: int = 0) -> FisherDiagonal:
        """Diagonal Fisher information of one trial on the task's own test data, observed labels."""
        for item in self.catalogue.artifacts(name, kind="fisher"):
            if item.trial == trial:
                with restoring(f"the Fisher information of {name}"):
                    return FisherDiagonal.from_state(State.from_bytes(self.catalogue.blob(item), name))
        raise ZooError(f"{name} has no Fisher information of trial {trial} in the zoo; see nearkin show {name}")

    def point(self, name: str, trials: int, embedding: Embedding) -> Tensor:
        """Where a task's own information of the first trials lies on the sphere of an embedding; kept once made."""
        wanted = asdict(embedding)
        for item in self.catalogue.artifacts(name, kind="point"):
            if item.trial == trials and item.facts == wanted:
                with restoring(f"the point of {name}"):
                    return State.from_bytes(self.catalogue.blob(item), name).tensors["point"]
        made = embedding.point([self.fisher(name, trial) for trial in range(trials)])
        with suppress(FileWriteError):  # a zoo that cannot be written to can still be asked
            self.catalogue.attach(name, [NewArtifact("point", trials, State({"point": made}).to_bytes(), wanted)])
        return made

    def cells(self, name: str) -> "kept_cells.KeptCells | None":
        """The best cells that were searched for a task; None where none were."""
        state = self.kept(name, "cells")
        return None if state is None else kept_cells.KeptCells.from_state(state, name)

    @operation
    def search_cells(
        self, name: str, skeleton: "Skeleton", budget: Budget, **options: Any
    ) -> "Work[kept_cells.KeptCells]":
        """Search a task's best cells and keep them; interrupted, the same call continues.

        Args:
            name: of the task.
            skeleton: what cells are set into while they are compared.
            budget: of the search.
            **options: of `nearkin.zoo.search.search_cells`: method, options of the method, proxy, seed, restart.
        """
        found = yield from searches.search_cells(self.task(name), self.work, skeleton, budget, **options)
        self.keep_cells(name, found)
        return found

    def keep_cells(self, name: str, cells: "kept_cells.KeptCells") -> None:
        """Keep a task's best cells; those of an earlier search are replaced."""
        facts = {"space": cells.space, "method": cells.method, "count": len(cells.found)}
        self.keep(name, "cells", cells.to_state(), facts)

    @operation
    def search(
        self, target: Task | str, how: "searches.Search", *, seed: int = 0, device: str = "auto", restart: bool = False
    ) -> "Work[searches.Architecture]":
        """Search an architecture for a new task or one of the zoo; interrupted, the same call continues."""
        return searches.search_architecture(
            self, target, self.work, how, seed=seed, device=chosen_device(device), restart=restart
        )

    def architecture(self, name: str) -> Solved | None:
        """The network that was searched for a task last, trained; None where none was."""
        state = self.kept(name, "architecture")
        if state is None:
            return None
        task = self.catalogue.task(name).facts
        return solved_from(state, {**state.facts, "name": name, "task": task})

    def keep_architecture(self, name: str, found: Solved) -> None:
        """Keep the network that was searched for a task; an earlier one is replaced."""
        done = found.trials[0]
        facts = {"network": found.network, "seed": found.seed, "fit": fit_facts(done)}
        told = {"network": found.network, "metric": done.scores.metric}
        self.keep(name, "architecture", State(fit_state(done).tensors, facts), told)

    def keep(self, name: str, kind: str, state: State, facts: dict[str, Any] | None = None) -> None:
        """Keep a state beside a task under a word of its own, such as `solution`; an earlier one is replaced."""
        self.catalogue.attach(name, [NewArtifact(kind, 0, state.to_bytes(), facts or {})])

    def kept(self, name: str, kind: str) -> State | None:
        """What was kept beside a task under that word; None where nothing was."""
        found = self.catalogue.artifacts(name, kind=kind)
        return State.from_bytes(self.catalogue.blob(found[0]), f"the {kind} of {name}") if found else None

    @operation
    def near(
        self,
        target: Task | str,
        measure: str = DEFAULT,
        *,
        top: int | None = None,
        device: str = "auto",
        how: Comparison | None = None,
        **options: Any,
    ) -> Work[Ranking]:
        """Kin of a target in order, nearest first.

        Args:
            target: a new task, or the name of one in the zoo.
            measure: a name of `nearkin.distance.registry`.
            top: how many (default: all).
            device: where networks that are missing are trained.
            how: everything at once, in place of measure, device and options.
            **options: of `nearkin.zoo.comparison.Comparison` (samples, trials, epsilon, screen) and of the measure.
        """
        how = how or Comparison.of(measure, device=chosen_device(device), **options)
        yield from self._cautions()
        return (yield from rank_sources(self, target, self.work, how)).top(top)

    @operation
    def matrix(
        self,
        names: Sequence[str] | None = None,
        measure: str = STRUCTURE,
        *,
        device: str = "auto",
        how: Comparison | None = None,
        **options: Any,
    ) -> Work[DistanceMatrix]:
        """Distances of all pairs of tasks (default: all of the zoo); see `near` for the rest."""
        how = how or Comparison.of(measure, device=chosen_device(device), **options)
        yield from self._cautions()
        return (yield from compare_all(self, list(names) if names else self.names(), self.work, how))

    def _cautions(self) -> Work[None]:
        if not self.catalogue.writable:
            yield Caution(f"the zoo {self.path} is read-only: what is measured now is not kept for the next time")

    @operation
    def transfer(
        self,
        source: str,
        target: Task | str,
        shots: int | None = None,
        seed: int = 0,
        *,
        how: "transferring.Transferring | None" = None,
        stages: "StageCache | None" = None,
        **options: Any,
    ) -> "Work[transferring.Transfer]":
        """Learn a target from few labels in closed form, with the network of a solved task, beside the usual ways.

        Args:
            source: name of the solved task.
            target: a new task, or the name of one in the zoo.
            shots: labels a class, for values samples in all (default: all, but 2,000 at most).
            seed: of the labels that are drawn.
            how: everything but the seed at once, in place of shots and options.
            stages: where finished parts are kept.
            **options: of `nearkin.zoo.transfer.Transferring`: method, weights, how, trial, samples, steps,
                baselines.
        """
        how = how or transferring.Transferring(shots=shots, **options)
        return transferring.transfer_network(self, source, target, how, seed, stages)

    def records(self) -> list[TaskRecord]:
        """What the catalogue tells of every task, oldest first."""
        return self.catalogue.tasks()

    def pairs(self, measure: str, target: str) -> dict[tuple[str, int], dict[str, Any]]:
        """What was measured between sources and a target, by source and trial."""
        return self.catalogue.pairs(measure, target)

    def keep_pair(self, measure: str, source: str, target: str, trial: int, facts: dict[str, Any]) -> None:
        """Keep what was measured between two tasks, where the zoo can be written to."""
        with suppress(FileWriteError):
            self.catalogue.keep_pair(measure, source, target, trial, facts)

    def record(self, name: str) -> TaskRecord:
        """What the catalogue tells of a task, without its weights."""
        return self.catalogue.task(name)

    def solved(self, name: str) -> Solved:
        """A task with the weights of its trials."""
        record = self.catalogue.task(name)
        weights = sorted(
            (item for item in self.catalogue.artifacts(name) if item.kind == "weights"), key=lambda item: item.trial
        )
        fits = tuple(fit_from(State.from_bytes(self.catalogue.blob(item), name), item.facts) for item in weights)
        return Solved(name, record.network, task_facts(record.facts, name), record.seed, fits)

    def task(self, name: str) -> Task:
        """The task itself, its data read again from where it came, or from the zoo for tasks made of arrays."""
        record = self.catalogue.task(name)
        if record.data:
            found = read_task(record.data, name=name)
            options = dict(DataString.parse(record.data).options)
            if found.fingerprint() != record.fingerprint and "limit" in options and "even" not in options:
                found = read_task(f"{record.data}&even", name=name)  # what `limit` alone drew up to version 0.1
            if found.fingerprint() != record.fingerprint:
                raise DataError(
                    f"the data of {name} ({record.data}) is not what it was when the task was added; put "
                    f"the old data back, or add the task anew under another name"
                )
            return found
        for item in self.catalogue.artifacts(name):
            if item.kind == "data":
                state = State.from_bytes(self.catalogue.blob(item), name)
                with restoring(f"the data of {name}"):
                    return unpacked(name, task_facts(record.facts, name), state)
        raise ZooError(f"{name} was added without its data; add it again")

    def remove(self, name: str) -> None:
        """Remove a task and the files that no other task needs."""
        self.catalogue.remove(name)


def _new_task(task: Task, solved: Solved, recipe: Recipe) -> NewTask:
    """The row of a solved task."""
    first = solved.trials[0]
    return NewTask(
        name=task.name,
        network=solved.network,
        likelihood=task.likelihood,
        data=task.source,
        num_classes=len(task.classes),
        input_shape=task.input_shape,
        metric=solved.metric,
        epsilon=solved.epsilon,
        trials=len(solved.trials),
        parameters=sum(value.numel() for value in first.params.values()),
        seconds=sum(trial.seconds for trial in solved.trials),
        seed=solved.seed,
        fingerprint=task.fingerprint(),
        facts={
            **task.facts(),
            "metric_name": task.form.metric,
            "metric_std": solved.spread,
            "guess": task.majority_baseline(),
            "best_constant": task.best_constant(),
            "recipe": recipe.to_dict(),
            "versions": {"nearkin": version("nearkin"), "torch": torch.__version__},
        },
    )
