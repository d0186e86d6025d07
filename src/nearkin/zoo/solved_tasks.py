"""Stored tasks of a zoo: their rows, data, weights and Fisher information, and further states by kind."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearkin.core.errors import DataError, ZooError
from nearkin.core.events import Caution, Progress, Work
from nearkin.core.files import FileWriteError
from nearkin.core.lazy import Lazy
from nearkin.core.state import State, restoring
from nearkin.distance.screening import Embedding
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved, TaskFacts, fit_facts, fit_from, fit_state, solved_from, task_facts
from nearkin.run.checkpoints import Checkpoints, MemoryCheckpoints, ObjectCheckpoints
from nearkin.run.jobs import JobPlace
from nearkin.run.stages import StageCache
from nearkin.store.blobs import Blobs
from nearkin.store.catalogue import Catalogue
from nearkin.store.columns import TaskGroup, artifact_digests, tasks_with_ids
from nearkin.store.records import NewArtifact, NewTask, TaskRecord
from nearkin.tasks.datastring import DataString
from nearkin.tasks.network_inputs import NETWORK_INPUTS, NetworkInputs
from nearkin.tasks.packed import PROBE_SAMPLES, packed, unpacked
from nearkin.tasks.sample_digests import sample_digests
from nearkin.tasks.sources import task as read_task
from nearkin.tasks.task import Task
from nearkin.zoo.packed_points import PackedPoints, pack_points

if TYPE_CHECKING:
    from nearkin.zoo import best_cells
else:  # it imports the search package, which most commands do not need
    best_cells = Lazy("nearkin.zoo.best_cells")

FISHER_SAMPLES = 2048  # of the test set, a fixed subset
DIGESTS = "digests"
"""Kind under which the digests of a task's training samples are stored, 8 bytes for each sample."""

TOKENIZER = "tokenizer"
"""Kind under which the tokenizer of an adopted network is stored, and its key among the inputs of the network."""


class SolvedTasks:
    """The solved tasks of a zoo.

    Args:
        path: the folder, or the address `postgresql://…` of a shared zoo.
        create: create the zoo if there is none.
        blobs: folder or URL of the blobs of a shared zoo; needed to create it.
    """

    def __init__(self, path: str | Path = "nearkin-zoo", create: bool = True, blobs: str = "") -> None:
        self.catalogue = Catalogue(path, create, blobs=blobs)
        self.address = self.catalogue.address
        self.place = JobPlace(str(path) if self.catalogue.shared else self.address, blobs)
        self.work: Checkpoints = MemoryCheckpoints()
        if self.catalogue.writable:
            self.work = ObjectCheckpoints(self.catalogue.work)

    @property
    def path(self) -> Path:
        """The folder of the zoo; an error for a shared zoo, which has none."""
        return self.catalogue.path

    def stages(self, task: Task) -> StageCache:
        """The cache of finished stages of a task's solution."""
        return StageCache(ObjectCheckpoints(self.catalogue.stages.within(task.fingerprint())), task.digest())

    def names(self) -> list[str]:
        """Names of the tasks, oldest first."""
        return self.catalogue.names()

    def __contains__(self, name: str) -> bool:
        return self.catalogue.has(name)

    def __len__(self) -> int:
        return self.catalogue.count()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def records(self) -> list[TaskRecord]:
        """Rows of all tasks, oldest first; models without a task are left out."""
        return [record for record in self.catalogue.tasks() if record.trials]

    def models(self) -> list[TaskRecord]:
        """Rows of all trained networks, with a task or without, oldest first."""
        return self.catalogue.tasks()

    def record(self, name: str) -> TaskRecord:
        """Row of a task, without its weights."""
        return self.catalogue.task(name)

    def store(
        self,
        task: Task,
        solved: Solved,
        recipe: Recipe | None,
        files: Sequence[NewArtifact] = (),
        *,
        seen: Task | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Work[TaskRecord]:
        """Store a solved task: its row, weights, Fisher information, digests of its samples, and arrays as data.

        Args:
            task: the task.
            solved: its trained networks.
            recipe: of their training; None for a network that was trained elsewhere.
            files: further ones, such as the trainings for forecasts (`zoo.recorded_runs`).
            seen: the task with its inputs prepared for the networks (default: the task itself).
            facts: further ones for the row.
        """
        artifacts = [
            NewArtifact("weights", trial, fit_state(fit).to_bytes(), fit_facts(fit))
            for trial, fit in enumerate(solved.trials)
        ]
        x, y = (seen or task).test.fixed_subset(FISHER_SAMPLES)
        for trial in range(len(solved.trials)):
            fisher = yield from diagonal.work(solved.model(trial), x, y, likelihood=task.likelihood)
            about = {"labels": fisher.labels, "num_samples": fisher.num_samples, "trace": fisher.trace()}
            artifacts.append(NewArtifact("fisher", trial, fisher.to_state().to_bytes(), about))
        if not task.source:
            data = packed(task)
            if not data.facts["whole"]:
                yield Caution(
                    f"the arrays of '{task.name}' are too large to store whole; {PROBE_SAMPLES} samples of the "
                    f"training and of the test set are stored"
                )
            artifacts.append(NewArtifact("data", 0, data.to_bytes(), dict(data.facts)))
        artifacts.append(NewArtifact(DIGESTS, 0, _digests(task).to_bytes(), {}))
        artifacts.extend(files)
        return self.catalogue.add(_row(task, solved, recipe, facts or {}), artifacts)

    def solved(self, name: str) -> Solved:
        """A task with the weights of its trials."""
        record = self.catalogue.task(name)
        weights = self.catalogue.artifacts(name, kind="weights")
        fits = tuple(fit_from(State.from_bytes(self.catalogue.blob(item), name), item.facts) for item in weights)
        return Solved(name, record.network, self._network_facts(record), record.seed, fits)

    def network_inputs(self, record: TaskRecord) -> NetworkInputs:
        """How the inputs of a task are prepared for the network of a row."""
        return NetworkInputs.of(self._network_facts(record))

    def _network_facts(self, record: TaskRecord) -> TaskFacts:
        """Facts of a network, with the content of its tokenizer if it has one."""
        facts, own = record.facts, record.facts.get(NETWORK_INPUTS)
        if isinstance(own, dict) and TOKENIZER in own:
            state = self.kept(record.name, TOKENIZER)
            if state is None:
                raise ZooError(f"the tokenizer of '{record.name}' is missing in the zoo; adopt the model again")
            facts = {**facts, NETWORK_INPUTS: {**own, TOKENIZER: dict(state.facts)}}
        return task_facts(facts, record.name)

    def task(self, name: str) -> Task:
        """The task itself; its data are read again from their source, or from the zoo for tasks made of arrays."""
        record = self.catalogue.task(name)
        if record.data:
            task = read_task(record.data, name=name)
            options = dict(DataString.parse(record.data).options)
            if task.fingerprint() != record.fingerprint and "limit" in options and "even" not in options:
                task = read_task(f"{record.data}&even", name=name)  # what `limit` alone drew up to version 0.1
            if task.fingerprint() != record.fingerprint:
                raise DataError(
                    f"the data of '{name}' ({record.data}) have changed since the task was added; restore the old "
                    f"data, or add the task again under another name"
                )
            return task
        for item in self.catalogue.artifacts(name, kind="data"):
            state = State.from_bytes(self.catalogue.blob(item), name)
            with restoring(f"the data of '{name}'"):
                return unpacked(name, task_facts(record.facts, name), state)
        reason = (
            "was added without its data; add it again" if record.trials else "is a model without a task; name a task"
        )
        raise ZooError(f"'{name}' {reason}")

    def train_digests(self, name: str) -> Tensor:
        """Sorted digests of a task's training samples (`nearkin.tasks.sample_digests`).

        For a task that was added without them they are computed from its data, which must still be there, and stored.
        """
        state = self.kept(name, DIGESTS)
        if state is None:
            if any(not item.facts.get("whole", True) for item in self.catalogue.artifacts(name, kind="data")):
                raise ZooError(f"only a part of the data of '{name}' was stored; add it again")
            state = _digests(self.task(name))
            with suppress(FileWriteError):  # a read-only zoo can still be used
                self.keep(name, DIGESTS, state)
        with restoring(f"the digests of '{name}'"):
            return state.tensors["train"].to(torch.int64)

    def remove(self, name: str) -> None:
        """Remove a task and the files that no other task needs."""
        self.catalogue.remove(name)

    def fisher(self, name: str, trial: int = 0) -> FisherDiagonal:
        """Diagonal Fisher information of one trial on the task's own test data, observed labels."""
        for item in self.catalogue.artifacts(name, kind="fisher"):
            if item.trial == trial:
                with restoring(f"the Fisher information of '{name}'"):
                    return FisherDiagonal.from_state(State.from_bytes(self.catalogue.blob(item), name))
        raise ZooError(f"'{name}' has no Fisher information of trial {trial} in the zoo; see nearkin show {name}")

    def point(self, name: str, trials: int, embedding: Embedding) -> Tensor:
        """The point of a task in an embedding, from its Fisher information of the first trials; computed once."""
        facts = asdict(embedding)
        for item in self.catalogue.artifacts(name, kind="point"):
            if item.trial == trials and item.facts == facts:
                with restoring(f"the point of '{name}'"):
                    return State.from_bytes(self.catalogue.blob(item), name).tensors["point"]
        point = embedding.point([self.fisher(name, trial) for trial in range(trials)])
        with suppress(FileWriteError):  # a read-only zoo can still be queried
            self.catalogue.attach(name, [NewArtifact("point", trials, _point_state(point).to_bytes(), facts)])
        return point

    def points(self, group: TaskGroup, trials: int, embedding: Embedding) -> Work[PackedPoints]:
        """The points of all tasks of a group that have so many trials; those that were not computed before are."""
        facts, owners, fresh = asdict(embedding), dict[str, list[int]](), dict[str, Tensor]()
        without: list[int] = []
        for number, digest in artifact_digests(self.catalogue, group, "point", trials, facts, trials):
            if digest is None:
                without.append(number)
            else:
                owners.setdefault(digest, []).append(number)
        for done, record in enumerate(tasks_with_ids(self.catalogue, without), 1):
            point = self.point(record.name, trials, embedding)
            digest = hashlib.sha256(_point_state(point).to_bytes()).hexdigest()
            fresh[digest] = point
            owners.setdefault(digest, []).append(record.id)
            yield Progress("points of tasks", done, len(without))

        def read(digest: str) -> Tensor:
            if digest in fresh:
                return fresh[digest]
            with restoring(f"the point in blob {digest[:12]}…"):
                return State.from_bytes(self.catalogue.blobs.get(digest), digest).tensors["point"]

        key = hashlib.sha256(json.dumps([trials, facts], sort_keys=True).encode()).hexdigest()[:16]
        place = Blobs(self.catalogue.files.within("index").within(key), self.catalogue.blobs.cache)
        return (yield from pack_points(place, owners, read, embedding.dims))

    def keep(self, name: str, kind: str, state: State, facts: dict[str, Any] | None = None) -> None:
        """Store a state with a task, under a kind such as `solution`; an earlier one is replaced."""
        self.catalogue.attach(name, [NewArtifact(kind, 0, state.to_bytes(), facts or {})])

    def kept(self, name: str, kind: str) -> State | None:
        """The state of a kind that is stored with a task; None if there is none."""
        items = self.catalogue.artifacts(name, kind=kind)
        return State.from_bytes(self.catalogue.blob(items[0]), f"the {kind} of '{name}'") if items else None

    def cells(self, name: str) -> "best_cells.BestCells | None":
        """The best cells that were searched for a task; None if there are none."""
        state = self.kept(name, "cells")
        return None if state is None else best_cells.BestCells.from_state(state, name)

    def keep_cells(self, name: str, cells: "best_cells.BestCells") -> None:
        """Store a task's best cells; those of an earlier search are replaced."""
        facts = {"space": cells.space, "method": cells.method, "count": len(cells.found)}
        self.keep(name, "cells", cells.to_state(), facts)

    def architecture(self, name: str) -> Solved | None:
        """The trained network of the last architecture search for a task; None if there is none."""
        state = self.kept(name, "architecture")
        if state is None:
            return None
        task = self.catalogue.task(name).facts
        return solved_from(state, {**state.facts, "name": name, "task": task})

    def keep_architecture(self, name: str, solved: Solved) -> None:
        """Store the network of an architecture search for a task; an earlier one is replaced."""
        fit = solved.trials[0]
        state = State(fit_state(fit).tensors, {"network": solved.network, "seed": solved.seed, "fit": fit_facts(fit)})
        self.keep(name, "architecture", state, {"network": solved.network, "metric": fit.scores.metric})

    def pairs(self, measure: str, target: str) -> dict[tuple[str, int], dict[str, Any]]:
        """Stored values of a measure between sources and a target, by source and trial."""
        return self.catalogue.pairs(measure, target)

    def keep_pair(self, measure: str, source: str, target: str, trial: int, facts: dict[str, Any]) -> None:
        """Store values of a measure between two tasks, if the zoo is writable."""
        with suppress(FileWriteError):
            self.catalogue.keep_pair(measure, source, target, trial, facts)


def _point_state(point: Tensor) -> State:
    return State({"point": point})


def _digests(task: Task) -> State:
    return State({"train": sample_digests(task.train.inputs).unique()})


def _row(task: Task, solved: Solved, recipe: Recipe | None, facts: Mapping[str, Any]) -> NewTask:
    return NewTask(
        name=task.name,
        network=solved.network,
        likelihood=task.likelihood,
        data=task.source,
        num_classes=len(task.classes),
        input_shape=solved.inputs.shape,
        metric=solved.metric,
        epsilon=solved.epsilon,
        trials=len(solved.trials),
        parameters=sum(value.numel() for value in solved.trials[0].params.values()),
        seconds=sum(trial.seconds for trial in solved.trials),
        seed=solved.seed,
        fingerprint=task.fingerprint(),
        facts={
            **task.facts(),
            "metric_name": task.form.metric,
            "metric_std": solved.spread,
            "guess": task.majority_baseline(),
            "best_constant": task.best_constant(),
            **({} if recipe is None else {"recipe": recipe.to_dict()}),
            **facts,
            "versions": {"nearkin": version("nearkin"), "torch": torch.__version__},
        },
    )
