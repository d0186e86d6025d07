"""Transfer: the network of a solved task, linearized, learns another task from few labels, beside the usual ways."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, require
from nearkin.core.events import Caution, Note, Work
from nearkin.core.rng import Streams, derived_seed
from nearkin.core.state import State
from nearkin.nets.functional import num_parameters
from nearkin.nets.solved import Solved
from nearkin.run.stages import StageCache
from nearkin.tasks.derive import limited
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.rows import subset_index
from nearkin.tasks.task import Task
from nearkin.transfer.classify import NUMBERS
from nearkin.transfer.closed_form import closed_form, require_classes_or_values, source_means
from nearkin.transfer.finetune import STEPS, run_baselines, run_each
from nearkin.transfer.labels.classes import Classes, Method
from nearkin.transfer.labels.probabilities import How
from nearkin.transfer.outcome import TransferScores
from nearkin.transfer.subset import Weights

LABELS = 2000  # that are learned from where no number is given


class Shelf(Protocol):
    """What of a zoo is needed here."""

    def task(self, name: str) -> Task:
        """A task with its data."""
        ...

    def solved(self, name: str) -> Solved:
        """A task with its weights."""
        ...


@dataclass(frozen=True, kw_only=True)
class Transferring:
    """How to transfer.

    Attributes:
        shots: labels a class, for values samples in all; all that are there, but 2,000 at most, if None.
        method: for classes, `dirichlet` or `laplace`.
        weights: that are free to move: `all`, `head`, `norm`, `adapters`, names or a regular expression.
        how: class probabilities are taken: `mean` or `sampled`.
        trial: whose network is the source.
        samples: test samples at the most that judge.
        steps: of the baselines that train in steps.
        baselines: whether to measure them.
    """

    shots: int | None = None
    method: Method = "dirichlet"
    weights: Weights = "all"
    how: How = "mean"
    trial: int = 0
    samples: int = 2000
    steps: int = STEPS
    baselines: bool = True

    def __post_init__(self) -> None:
        require(self.shots is None or self.shots >= 1, f"shots must be 1 or more, got {self.shots}")
        Classes(method=self.method, how=self.how)  # checks both
        require(self.samples >= 1, f"one test sample or more judges, got {self.samples}")
        require(self.steps >= 1, f"steps must be 1 or more, got {self.steps}")

    def facts(self) -> dict[str, Any]:
        """What was asked for beside the task, as plain JSON values."""
        weights = self.weights if isinstance(self.weights, str) else list(self.weights)
        return {
            "method": self.method,
            "how": self.how,
            "weights": weights,
            "trial": self.trial,
            "samples": self.samples,
            "steps": self.steps if self.baselines else None,
        }

    @property
    def classes(self) -> Classes:
        """What of it is particular to classes."""
        return Classes(method=self.method, how=self.how)


@dataclass(frozen=True)
class Transfer:
    """What closed-form transfer from a solved task to another came to.

    Attributes:
        source: name of the solved task.
        target: name of the other.
        network: of the source.
        metric_name: `accuracy` or `r2`.
        shots: labels a class that were asked for.
        num_train: labels that were learned from.
        num_test: samples that judged.
        guess: the test metric of the majority class of all training labels; for values that of their mean.
        outcome: of the closed form.
        baselines: outcomes of the usual ways.
        origin: what is known of the source, as plain JSON values: its data, its own metric and so on.
        made: how it was asked for, as plain JSON values: weights, trial, samples, steps and seed; `given` is the
            target's data string, None for a task of the zoo, empty for arrays.
        best_constant: the metric of the best constant answer, which only the test labels tell; None where unknown.
    """

    source: str
    target: str
    network: str
    metric_name: str
    shots: int | None
    num_train: int
    num_test: int
    guess: float
    outcome: TransferScores
    baselines: tuple[TransferScores, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)
    best_constant: float | None = None

    @property
    def metric(self) -> float:
        """Accuracy or R² on the test part."""
        return self.outcome.metric

    @property
    def nll(self) -> float:
        """Mean negative log probability of a test target."""
        return self.outcome.nll

    @property
    def ece(self) -> float:
        """Expected calibration error."""
        return self.outcome.ece

    @property
    def seconds(self) -> float:
        """Of fitting and predicting in closed form."""
        return self.outcome.seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the closed form's own figures at the top, the others in `baselines`."""
        mine: Mapping[str, Any] = self.outcome.to_dict()
        return {
            "source": self.source,
            "target": self.target,
            "network": self.network,
            "shots": self.shots,
            "num_train": self.num_train,
            "num_test": self.num_test,
            "metric_name": self.metric_name,
            "guess": self.guess,
            "best_constant": self.best_constant,
            **{key: mine[key] for key in ("metric", "nll", "ece", "seconds", "bins", "facts")},
            "baselines": [one.to_dict() for one in self.baselines],
            "origin": dict(self.origin),
            "made": dict(self.made),
        }


def transfer_network(
    shelf: Shelf, source: str, given: Task | str, how: Transferring, seed: int = 0, stages: StageCache | None = None
) -> Work[Transfer]:
    """The work of transfer from a task of the zoo to another of it, or to a new one.

    With `stages` every finished part, the closed form and each baseline, is kept there and read by the next run.
    """
    solved = shelf.solved(source)
    model = solved.model(how.trial)
    target = shelf.task(given) if isinstance(given, str) else given
    require_classes_or_values(target)
    if target.name == source:
        yield Caution(f"{source} is its own source: its network has seen these labels")
    task = fitted_to(target, tuple(solved.facts["input_shape"]))
    if task is not target:
        yield Note(f"{target.name}: inputs of shape {target.input_shape} are brought to {task.input_shape}")
    few = yield from _few(task, how.shots, seed)
    few = replace(few, test=few.test.chosen(subset_index(len(few.test), how.samples)))
    means = source_means(solved)
    asked_for = {**how.facts(), "shots": how.shots, "seed": seed, "source": source, "network": _digest(solved, model)}
    part = run_each if stages is None else partial(_kept, stages, asked_for)
    found = yield from part(
        "closed form",
        lambda: closed_form(
            model, few, weights=how.weights, options=how.classes, seed=derived_seed(seed, "closed form"), means=means
        ),
    )
    yield Note(f"{found.name}: {task.form.metric} {found.metric:.4f} in {found.seconds:.1f} s")
    asked = None if isinstance(given, str) else target.source
    others: tuple[TransferScores, ...] = ()
    if how.baselines:
        others = yield from run_baselines(model, few, how.steps, derived_seed(seed, "baselines"), means, part)
    return Transfer(
        source, target.name, solved.network, task.form.metric, how.shots, len(few.train), len(few.test),
        replace(task, test=few.test).majority_baseline(), found, others, _origin(solved, how.trial, model),
        how.facts() | {"seed": seed, "given": asked}, few.best_constant(),
    )  # fmt: skip


def _kept(
    stages: StageCache, inputs: Mapping[str, Any], name: str, work: Callable[[], Work[TransferScores]]
) -> Work[TransferScores]:
    """The outcome of one part: read if an earlier run finished it, else worked out and kept."""

    def state(_: State | None) -> Work[State]:
        return State({}, (yield from work()).to_dict())

    done = yield from stages.stage(name, inputs, state, key=f"transfer-{name}")
    return TransferScores.from_dict(done.facts)


def _digest(solved: Solved, model: nn.Module) -> str:
    """A hash of the network string, the weights and the versions that results depend on."""
    digest = hashlib.sha256(repr((solved.network, version("nearkin"), torch.__version__)).encode())
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _origin(solved: Solved, trial: int, model: nn.Module) -> dict[str, Any]:
    known, facts = solved.trials[trial].scores, solved.facts
    return {
        "data": facts.get("source"),
        "num_train": facts.get("num_train"),
        "input_shape": list(facts["input_shape"]),
        "num_outputs": solved.num_outputs,
        "classes": len(facts["classes"]) if facts["likelihood"] == "categorical" else None,
        "trial": trial,
        "trials": len(solved.trials),
        "metric_name": facts.get("metric_name"),
        "metric": known.metric,
        "num_test": known.count,
        "parameters": num_parameters(model),
    }


def with_shots(task: Task, shots: int, seed: int = 0) -> Task:
    """The task with so many labels of every class, drawn by the seed; for values, so many samples in all.

    More shots of one seed hold the fewer ones.

    >>> toy = Task.from_arrays("toy", torch.randn(40, 2), torch.arange(40) % 2)
    >>> torch.bincount(with_shots(toy, 3).train.labels())
    tensor([3, 3])
    """
    require(shots >= 1, f"shots must be 1 or more, got {shots}")
    streams = Streams(seed)
    if task.likelihood != "categorical":
        require(
            shots <= len(task.train),
            f"{task.name} has {len(task.train):,} training samples, {shots} were asked for; ask for fewer",
            DataError,
        )
        return replace(task, train=task.train.chosen(_drawn(torch.arange(len(task.train)), shots, streams, "values")))
    labels, chosen = task.train.labels(), []
    for number, name in enumerate(task.classes):
        members = torch.nonzero(labels == number).flatten()
        require(
            shots <= len(members),
            f"{task.name}: class {name} has {len(members)} training samples, {shots} a class were asked for; ask for "
            f"{int(torch.bincount(labels).min())} at the most",
            DataError,
        )
        chosen.append(_drawn(members, shots, streams, name))
    return replace(task, train=task.train.chosen(torch.cat(chosen)))


def _drawn(members: Tensor, count: int, streams: Streams, name: str) -> Tensor:
    return members[torch.randperm(len(members), generator=streams.at("shots", name))[:count]]


def _few(task: Task, shots: int | None, seed: int) -> Work[Task]:
    """The task with as many labels as were asked for, or as are wise."""
    if shots is not None:
        return with_shots(task, shots, seed)
    room = math.isqrt(NUMBERS // len(task.classes)) if task.likelihood == "categorical" else LABELS
    most = max(min(LABELS, room), len(task.classes))
    if len(task.train) > most:
        yield Caution(f"{most:,} of {len(task.train):,} labels are learned from; say how many a class with shots")
    return limited(task, most, seed)
