"""Closed-form transfer of a solved task's linearized network to another task with few labels, and baselines."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, require
from nearkin.core.events import Caution, Note, Work
from nearkin.core.rng import Streams, derived_seed
from nearkin.core.state import State
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.nets.adopted_spec import network_label
from nearkin.nets.functional import num_parameters
from nearkin.nets.history import History
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import Solved
from nearkin.nets.weight_subset import Weights, checked_weights
from nearkin.run.stages import StageCache
from nearkin.tasks.derive import limited
from nearkin.tasks.rows import subset_index
from nearkin.tasks.task import Task
from nearkin.transfer.classify import NUMBERS
from nearkin.transfer.closed_form import closed_form, require_classes_or_values, source_means
from nearkin.transfer.finetune import ALL_WEIGHTS, STEPS, run_baselines, run_each
from nearkin.transfer.labels.classes import Classes, Method
from nearkin.transfer.labels.probabilities import How
from nearkin.transfer.outcome import TransferScores
from nearkin.zoo.recorded_runs import SAMPLES, record_finetuning
from nearkin.zoo.solved_tasks import SolvedTasks

LABELS = 2000  # at most, if no number is given


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """Options of closed-form transfer.

    Attributes:
        shots: labels per class, for values samples in all (default: all, but at most 2,000).
        method: for classes, `dirichlet` or `laplace`.
        weights: that are fitted: `all`, `head`, `norm`, `lora?r=4`, `adapters`, names or a regular expression. If they
            are not all, fine-tuning of the same weights is one more baseline.
        how: class probabilities are computed: `mean` or `sampled`.
        trial: whose network is the source.
        samples: maximal number of test samples.
        steps: of the baselines that train in steps.
        baselines: whether to run them.
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
        checked_weights(self.weights)
        require(self.samples >= 1, f"samples must be 1 or more, got {self.samples}")
        require(self.steps >= 1, f"steps must be 1 or more, got {self.steps}")

    def facts(self) -> dict[str, Any]:
        """Plain JSON values of all options except shots."""
        weights = self.weights if isinstance(self.weights, str) else list(self.weights)
        steps = self.steps if self.baselines else None
        return {"method": self.method, "how": self.how, "weights": weights, "trial": self.trial,
                "samples": self.samples, "steps": steps}  # fmt: skip

    @property
    def classes(self) -> Classes:
        """The options for targets with classes."""
        return Classes(method=self.method, how=self.how)


@dataclass(frozen=True)
class Transfer:
    """Result of closed-form transfer from a solved task to another.

    Attributes:
        source: name of the solved task.
        target: name of the other task.
        network: of the source.
        metric_name: `accuracy` or `r2`.
        shots: labels per class as given in the options.
        num_train: number of labels used for training.
        num_test: number of test samples.
        guess: the test metric of the majority class of all training labels; for values that of their mean.
        outcome: of the closed form.
        baselines: outcomes of the baselines.
        origin: facts of the source, as plain JSON values: its data, its own metric and so on.
        made: the options, as plain JSON values: weights, trial, samples, steps and seed; `given` is the target's data
            string, None for a task of the zoo, empty for arrays.
        best_constant: the metric of the best constant prediction for the test labels; None if unknown.
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
        """Accuracy or R² on the test set."""
        return self.outcome.metric

    @property
    def nll(self) -> float:
        """Mean negative log probability of a test target."""
        return self.outcome.nll

    @property
    def ece(self) -> float:
        """Expected calibration error on the test set."""
        return self.outcome.ece

    @property
    def seconds(self) -> float:
        """Duration of fitting and predicting in closed form."""
        return self.outcome.seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the closed form's own figures at the top, the others in `baselines`."""
        closed_form: Mapping[str, Any] = self.outcome.to_dict()
        names = ("source", "target", "network", "shots", "num_train", "num_test", "metric_name", "guess")
        return {
            **{name: getattr(self, name) for name in (*names, "best_constant")},
            "label": network_label(self.network),
            **{key: closed_form[key] for key in ("metric", "nll", "ece", "seconds", "bins", "facts")},
            "baselines": [outcome.to_dict() for outcome in self.baselines],
            "origin": dict(self.origin),
            "made": dict(self.made),
        }


def transfer_network(
    zoo: SolvedTasks,
    source: str,
    target: Task | str,
    how: TransferOptions,
    seed: int = 0,
    stages: StageCache | None = None,
) -> Work[Transfer]:
    """Transfer from a task of the zoo to another task of it, or to a new one.

    With `stages` the closed form and each baseline are stored there when they are finished, and read by the next run.
    """
    solved = zoo.solved(source)
    model = solved.model(how.trial)
    source_text = None if isinstance(target, str) else target.source
    target = zoo.task(target) if isinstance(target, str) else target
    require_classes_or_values(target)
    if target.name == source:
        yield Caution(f"'{source}' is its own source: its network was trained on these labels")
    task = solved.inputs(target)
    if task.input_shape != target.input_shape:
        yield Note(f"'{target.name}': inputs of shape {target.input_shape} are converted to {task.input_shape}")
    few = yield from _with_few_labels(task, how.shots, seed)
    few = replace(few, test=few.test.chosen(subset_index(len(few.test), how.samples)))
    means = source_means(solved)
    inputs = {**how.facts(), "shots": how.shots, "seed": seed, "source": source, "network": _digest(solved, model)}
    run = run_each if stages is None else partial(_cached, stages, inputs)
    outcome = yield from run(
        "closed form",
        lambda: closed_form(
            model, few, weights=how.weights, options=how.classes, seed=derived_seed(seed, "closed form"), means=means
        ),
    )
    yield Note(f"{outcome.name}: {task.form.metric} {outcome.metric:.4f} in {outcome.seconds:.1f} s")
    baselines: tuple[TransferScores, ...] = ()
    if how.baselines:
        baselines = yield from run_baselines(
            model, few, how.steps, derived_seed(seed, "baselines"), means, run, how.weights
        )
        yield from _record(zoo, solved, model, few, baselines)
    return Transfer(
        source, target.name, solved.network, task.form.metric, how.shots, len(few.train), len(few.test),
        replace(task, test=few.test).majority_baseline(), outcome, baselines, _origin(solved, how.trial, model),
        how.facts() | {"seed": seed, "given": source_text}, few.best_constant(),
    )  # fmt: skip


def _record(
    zoo: SolvedTasks, solved: Solved, model: nn.Module, task: Task, baselines: Sequence[TransferScores]
) -> Work[None]:
    """Record the fine-tuning of all weights, so that forecasts learn from it."""
    for facts in (scores.facts for scores in baselines if scores.name == ALL_WEIGHTS and "losses" in scores.facts):
        history = History(torch.tensor(facts["losses"]), (), int(facts["steps_per_epoch"]))
        yield from record_finetuning(
            zoo, solved.name, SourceOnTarget(model, task, task.form, SAMPLES), solved.network,
            Recipe(**facts["recipe"]), history,
        )  # fmt: skip


def _cached(
    stages: StageCache, inputs: Mapping[str, Any], name: str, work: Callable[[], Work[TransferScores]]
) -> Work[TransferScores]:
    """An outcome, read from the cache if an earlier run finished it."""

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
    scores, facts = solved.trials[trial].scores, solved.facts
    return {
        "data": facts.get("source"),
        "num_train": facts.get("num_train"),
        "input_shape": list(solved.inputs.shape),
        "num_outputs": solved.num_outputs,
        "classes": len(facts["classes"]) if facts["likelihood"] == "categorical" else None,
        "trial": trial,
        "trials": len(solved.trials),
        "metric_name": facts.get("metric_name"),
        "metric": scores.metric if scores.count else None,
        "num_test": scores.count,
        "parameters": num_parameters(model),
    }


def with_shots(task: Task, shots: int, seed: int = 0) -> Task:
    """The task with `shots` random labels of every class; for values, with `shots` samples in all.

    A larger number of shots with the same seed includes the labels of a smaller one.

    >>> toy = Task.from_arrays("toy", torch.randn(40, 2), torch.arange(40) % 2)
    >>> torch.bincount(with_shots(toy, 3).train.labels())
    tensor([3, 3])
    """
    require(shots >= 1, f"shots must be 1 or more, got {shots}")
    streams = Streams(seed)
    if task.likelihood != "categorical":
        require(
            shots <= len(task.train),
            f"'{task.name}' has {len(task.train):,} training samples, got shots={shots}; use fewer",
            DataError,
        )
        return replace(task, train=task.train.chosen(_drawn(torch.arange(len(task.train)), shots, streams, "values")))
    labels, chosen = task.train.labels(), []
    for number, name in enumerate(task.classes):
        members = torch.nonzero(labels == number).flatten()
        require(
            shots <= len(members),
            f"'{task.name}': class {name} has {len(members)} training samples, got shots={shots}; use at most "
            f"{int(torch.bincount(labels).min())}",
            DataError,
        )
        chosen.append(_drawn(members, shots, streams, name))
    return replace(task, train=task.train.chosen(torch.cat(chosen)))


def _drawn(members: Tensor, count: int, streams: Streams, name: str) -> Tensor:
    return members[torch.randperm(len(members), generator=streams.at("shots", name))[:count]]


def _with_few_labels(task: Task, shots: int | None, seed: int) -> Work[Task]:
    """The task with `shots` labels per class, by default with as many as memory and time allow."""
    if shots is not None:
        return with_shots(task, shots, seed)
    fitting = math.isqrt(NUMBERS // len(task.classes)) if task.likelihood == "categorical" else LABELS
    most = max(min(LABELS, fitting), len(task.classes))
    if len(task.train) > most:
        yield Caution(f"{most:,} of {len(task.train):,} labels are used; set shots for another number per class")
    return limited(task, most, seed)
