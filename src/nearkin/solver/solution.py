"""Solution: everything a person asks of a finished run, and the model itself."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.state import State, restoring
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.registry import STRUCTURE
from nearkin.nets.evaluate import Scores, evaluate
from nearkin.nets.functional import evaluating
from nearkin.nets.solved import ModelFacts, Solved, TaskFacts, fit_facts, fit_state, solved_from, task_facts
from nearkin.run.stages import StageTime
from nearkin.search.genotypes.genotype import Genotype
from nearkin.solver.promises import Promise
from nearkin.solver.quality import Quality, class_quality, value_quality
from nearkin.solver.relations import Relations
from nearkin.solver.result import Result
from nearkin.tasks.arrays import input_rows
from nearkin.tasks.checks.data_checks import Checks
from nearkin.tasks.examples import Examples, Scaling
from nearkin.tasks.likelihood import Gaussian, likelihood
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.prediction import Prediction
from nearkin.tasks.rows import Rows, Values, glance
from nearkin.tasks.task import Task

KIND = "solution"
"""Under which a zoo keeps it beside its task."""

FORMAT = "nearkin-solution"
VERSION = 1
PASS = 256  # inputs in one forward pass
GLANCED = 64  # images whose units are looked at
FARTHEST = 5.0  # deviations between the means of images in the same units: white ones on black are at 3


class _Map(TypedDict):
    """The map's names; its distances are a tensor."""

    tasks: tuple[str, ...]
    measure: str


class _Facts(TypedDict):
    """What a stored solution says beside its tensors."""

    model: ModelFacts
    chosen: str
    answer: str
    task: TaskFacts
    quality: Quality
    temperature: float
    standings: tuple[Result, ...]
    margins: dict[str, tuple[float, float, float]]
    finals: dict[str, float]
    relations: Relations
    checks: Checks
    promises: tuple[Promise, ...]
    stages: tuple[StageTime, ...]
    map: _Map | None
    seed: int
    made: dict[str, Any]
    samples: NotRequired[dict[str, Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Solution:
    """A solved target.

    Attributes:
        solved: the chosen model: network string, weights, scaling, the classes it knows.
        chosen: name of the contestant that it is.
        sentence: the answer in one sentence.
        task: what `Task.facts` tells of the target, in its own input shape.
        quality: of the chosen model, trained on all training data, on the test part.
        temperature: by which class scores are divided before they are probabilities; learned on the data of the choice.
        standings: everything that was tried, the chosen one too.
        margins: by how much the chosen one was ahead of others on the data of the choice, with the ends of the 95 %
            interval of that difference: the noise of the choice.
        finals: test metric of what was trained once more on all training data, by name: the chosen one and the best
            simple model.
        samples: `available`, training samples that contestants could learn from; `finals`, by name, how many those
            that were trained once more learned from. Empty where that was not recorded.
        relations: who is kin.
        checks: what was found in the data.
        promises: which claims held in this run.
        stages: what was spent where.
        matrix: distances of the target and its kin for the map; None without kin.
        pictures: raw inputs of the mistakes `[M, *input_shape]`, in the order of `quality.mistakes`.
        seed: the one seed.
        made: how it was made: command, versions, budget.
    """

    solved: Solved
    chosen: str
    sentence: str
    task: Mapping[str, Any]
    quality: Quality
    temperature: float
    standings: tuple[Result, ...]
    margins: Mapping[str, tuple[float, float, float]]
    finals: Mapping[str, float]
    relations: Relations
    checks: Checks
    promises: tuple[Promise, ...]
    stages: tuple[StageTime, ...]
    matrix: DistanceMatrix | None
    pictures: Tensor
    seed: int
    made: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: all but the built model, which is built again when it is asked for."""
        return {name: value for name, value in vars(self).items() if name != "model"}

    @property
    def name(self) -> str:
        """Of the target."""
        return self.solved.name

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, in evaluation mode; it reads inputs as the task scales them."""
        return self.solved.model()

    @property
    def standing(self) -> Result:
        """The chosen contestant's."""
        return next(one for one in self.standings if one.name == self.chosen)

    @property
    def genotype(self) -> Genotype | None:
        """Of the chosen model; None where it was not searched."""
        text = self.standing.genotype
        return Genotype.parse(text) if text else None

    @property
    def metric(self) -> float:
        """Accuracy or R² on the test part."""
        return self.quality.metric

    @property
    def interval(self) -> tuple[float, float]:
        """In which it lies with 95 %."""
        return self.quality.interval

    @property
    def parameters(self) -> int:
        """Numbers that the chosen model has learned."""
        return self.standing.parameters

    @property
    def multiply_adds(self) -> int:
        """Of the chosen model, for one input."""
        return self.standing.multiply_adds

    @property
    def seconds(self) -> float:
        """Of all stages together."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, or of the columns of values."""
        return tuple(self.task["classes"])

    def predict(self, x: Any) -> Prediction:
        """Answers to raw inputs: arrays or tensors as the task was made of, `[N, ...]`."""
        rows = input_rows(x, self.name)
        shape = tuple(self.task["input_shape"])
        require(
            rows.shape == shape,
            f"{self.name} reads inputs of shape {shape}, got {rows.shape}; bring them to that shape",
            MismatchError,
        )
        self._require_units(rows)
        return answers(self.solved, Examples(rows, Values(torch.zeros(len(rows)))), self.temperature, self.model)

    def _require_units(self, rows: Rows) -> None:
        """Images whose mean lies far outside of what was learned are in other units, such as 0 to 16 for 0 to 1."""
        learned = self.task["scaling"]
        if len(self.task["input_shape"]) != 3 or not learned or len(rows) == 0:
            return
        seen = rows.take(glance(len(rows), GLANCED)).float().mean((0, 2, 3))
        mean, std = torch.tensor(learned["mean"]), torch.tensor(learned["std"])
        require(
            bool(((seen - mean).abs() <= FARTHEST * std).all()),
            f"these images have a mean of {float(seen.mean()):.3g}, {self.name} was learned from images with "
            f"{float(mean.mean()):.3g} ± {float(std.mean()):.2g}; give them in the same units",
            MismatchError,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: all but the weights and the pictures."""
        kin = self.relations.rankings.get(STRUCTURE) or next(iter(self.relations.rankings.values()), [])
        return {
            "target": self.name,
            "answer": self.sentence,
            "chosen": self.chosen,
            "network": self.solved.network,
            "genotype": self.standing.genotype or None,
            "metric": self.metric,
            "metric_name": self.quality.name,
            "interval": list(self.interval),
            "parameters": self.parameters,
            "multiply_adds": self.multiply_adds,
            "seconds": self.seconds,
            "kin": [{name: row[name] for name in ("name", "distance", "std")} for row in kin],
            "baselines": [one.to_dict() for one in self.standings if one.name != self.chosen],
            "transfer": next((one.to_dict() for one in self.standings if one.kind == "transfer"), None),
            "standing": self.standing.to_dict(),
            "margins": {name: list(margin) for name, margin in self.margins.items()},
            "finals": dict(self.finals),
            "samples": dict(self.samples),
            "task": dict(self.task),
            "quality": self.quality.to_dict(),
            "temperature": self.temperature,
            "relations": self.relations.to_dict(),
            "checks": self.checks.to_dict(),
            "promises": [asdict(one) for one in self.promises],
            "stages": [asdict(one) for one in self.stages],
            "map": None if self.matrix is None else self.matrix.to_dict(),
            "seed": self.seed,
            "made": dict(self.made),
        }

    def to_state(self) -> State:
        """The whole, as files and the zoo hold it."""
        fit = self.solved.trials[0]
        tensors = {**fit_state(fit).tensors, "pictures": self.pictures}
        if self.matrix is not None:
            tensors["map"] = self.matrix.trials
        model = {
            "name": self.name, "network": self.solved.network, "task": dict(self.solved.facts),
            "seed": self.solved.seed, "fit": fit_facts(fit),
        }  # fmt: skip
        facts = {
            **self.to_dict(),
            "format": FORMAT,
            "version": VERSION,
            "model": model,
            "standings": [one.to_dict() for one in self.standings],
        }
        return State(tensors, {name: value for name, value in facts.items() if name not in ("baselines", "standing")})

    @classmethod
    def from_state(cls, state: State, origin: str = "this file") -> "Solution":
        """The inverse of `to_state`; `origin` is for errors."""
        given = state.facts
        require(
            given.get("format") == FORMAT, f"{origin} holds no solution of nearkin; nearkin solve makes one", DataError
        )
        require(
            given.get("version") == VERSION,
            f"{origin} is a solution of version {given.get('version')}, this is {VERSION}; solve the task anew",
            DataError,
        )
        state = replace(state, origin=origin)
        facts = state.read(_Facts)
        drawn, solved = facts["map"], solved_from(state, facts["model"])
        names = [standing.name for standing in facts["standings"]]
        require(
            facts["chosen"] in names and {"pictures", *(["map"] if drawn else [])} <= state.tensors.keys(),
            f"{origin}: the chosen contestant {facts['chosen']!r}, the pictures or the map are missing; fetch it again",
            DataError,
        )
        with restoring(origin):
            matrix = drawn and DistanceMatrix.from_dict(drawn, state.tensors["map"])
        return cls(
            solved=solved,
            chosen=facts["chosen"],
            sentence=facts["answer"],
            task=task_facts(facts["task"], origin),
            quality=facts["quality"],
            temperature=facts["temperature"],
            standings=facts["standings"],
            margins=facts["margins"],
            finals=facts["finals"],
            relations=facts["relations"],
            checks=facts["checks"],
            promises=facts["promises"],
            stages=facts["stages"],
            matrix=matrix,
            pictures=state.tensors["pictures"],
            seed=facts["seed"],
            made=facts["made"],
            samples=facts.get("samples", {}),
        )

    def save(self, file: str | Path) -> None:
        """Write the solution, model and figures, to one safetensors file."""
        self.to_state().save(Path(file))

    @classmethod
    def load(cls, file: str | Path) -> "Solution":
        """Read what `save` wrote."""
        return cls.from_state(State.load(Path(file)), str(file))


def as_seen(solved: Solved, examples: Examples) -> Examples:
    """Examples in the input shape and under the scalings that a solved task's model learned with."""
    facts, inputs = solved.facts, Examples(examples.inputs, Values(torch.zeros(len(examples), 1)))
    task = Task(solved.name, inputs, inputs, "gaussian", ("y0",), examples.inputs.shape)
    return Examples(
        fitted_to(task, tuple(facts["input_shape"])).test.inputs,
        examples.targets,
        Scaling.from_dict(facts["scaling"]),
        Scaling.from_dict(facts["target_scaling"]),
    )


def answers(solved: Solved, examples: Examples, heat: float, model: nn.Module | None = None) -> Prediction:
    """What a solved task's model says of raw inputs."""
    facts, seen = solved.facts, as_seen(solved, examples)
    model = solved.model() if model is None else model
    with evaluating(model), torch.inference_mode():
        rows = (seen.inputs.take(index).contiguous() for index in torch.arange(len(seen)).split(PASS))
        parts = [model(seen.scaling(x)).float() for x in rows]
    outputs = torch.cat(parts).clone()
    form, classes = likelihood(facts["likelihood"]), tuple(facts["classes"])
    if not isinstance(form, Gaussian):
        return Prediction(outputs, probabilities=(outputs / heat).softmax(1), classes=classes)
    back = Scaling.from_dict(facts["target_scaling"])
    return Prediction(back.inverse(form.means(outputs).clone()), classes=classes)


def scores_on_test(task: Task, solved: Solved) -> Scores:
    """Metric and loss of a solved task's model on the task's test part: the one place where they are computed."""
    return evaluate(solved.model(), as_seen(solved, task.test), task.form, batch_size=PASS)


def measured(task: Task, solved: Solved, heat: float) -> Quality:
    """Quality of a solved task's model on the task's test part."""
    said, scores, labels = answers(solved, task.test, heat), scores_on_test(task, solved), task.test.labels()
    if said.probabilities is not None:
        return class_quality(
            said.probabilities, labels, task.classes, loss=scores.loss, guess=task.guess(),
            best_constant=task.best_constant(), said=said.labels,
        )  # fmt: skip
    scaling = Scaling.from_dict(solved.facts["target_scaling"])
    return value_quality(said.mean, labels, loss=scores.loss, metric=scores.metric, scaling=scaling)
