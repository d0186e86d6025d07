"""Solution: the result of a run, with the trained model."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from torch import Tensor, nn

from nearkin.core.errors import DataError, require
from nearkin.core.state import State, restoring
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.registry import STRUCTURE
from nearkin.nets.solved import ModelFacts, Solved, TaskFacts, fit_facts, fit_state, solved_from, task_facts
from nearkin.run.stages import StageTime
from nearkin.search.genotypes.genotype import Genotype
from nearkin.solver.claims import ClaimCheck
from nearkin.solver.model_outputs import predict_inputs
from nearkin.solver.quality import Quality
from nearkin.solver.relations import Relations
from nearkin.solver.result import Result
from nearkin.solver.zoo_value import ZooValue
from nearkin.tasks.checks.data_checks import Checks
from nearkin.tasks.new_inputs import read_inputs
from nearkin.tasks.prediction import Prediction

KIND = "solution"
"""Kind under which a zoo stores it with its task."""

ZOO_STAGES = ("adding to the zoo", "map")
"""Stages after the answer."""

FORMAT = "nearkin-solution"
VERSION = 1


class _Map(TypedDict):
    """Names on the map; its distances are a tensor."""

    tasks: tuple[str, ...]
    measure: str


class _Facts(TypedDict):
    """Facts of a stored solution, beside its tensors."""

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
    promises: tuple[ClaimCheck, ...]
    stages: tuple[StageTime, ...]
    map: _Map | None
    seed: int
    made: dict[str, Any]
    samples: NotRequired[dict[str, Any]]
    zoo_value: NotRequired[ZooValue]


@dataclass(frozen=True, eq=False, kw_only=True)
class Solution:
    """A solved task: the selected model and everything that was measured.

    Attributes:
        solved: the selected model: network string, weights, scaling, classes.
        chosen: name of the selected contender.
        sentence: the answer in one sentence.
        task: facts of the target (`Task.facts`), in its own input shape.
        quality: of the selected model on the test set, after training on all training data.
        temperature: divides class scores before the softmax; fitted on the validation set.
        standings: results of all contenders, the selected one included.
        margins: lead of the selected contender over others on the validation set, with the ends of its 95 % interval.
        finals: test metrics after training on all training data, by name: the selected contender and the best simple
            model.
        samples: `available`: number of samples for training; `finals`: numbers used in the final trainings, by name.
            Empty if not recorded.
        relations: related tasks.
        zoo_value: what the related tasks brought.
        checks: findings about the data.
        promises: claims of the papers, checked with this run.
        stages: time of every stage.
        matrix: distances of the target and its nearest tasks for the map; None without any.
        pictures: raw inputs of the mistakes `[M, *input_shape]`, in the order of `quality.mistakes`.
        seed: seed of everything random.
        made: command, versions and budget of the run.
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
    promises: tuple[ClaimCheck, ...]
    stages: tuple[StageTime, ...]
    matrix: DistanceMatrix | None
    pictures: Tensor
    seed: int
    made: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    zoo_value: ZooValue = field(default_factory=ZooValue)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the built model, which is built again when needed."""
        return {name: value for name, value in vars(self).items() if name != "model"}

    @property
    def name(self) -> str:
        """Name of the target."""
        return self.solved.name

    @cached_property
    def model(self) -> nn.Module:
        """The trained model in evaluation mode; its inputs are scaled as the task's."""
        return self.solved.model()

    @property
    def standing(self) -> Result:
        """Result of the selected contender."""
        return next(result for result in self.standings if result.name == self.chosen)

    @property
    def genotype(self) -> Genotype | None:
        """Genotype of the selected model; None if it was not searched."""
        text = self.standing.genotype
        return Genotype.parse(text) if text else None

    @property
    def metric(self) -> float:
        """Metric on the test set: accuracy or R² if none was chosen."""
        return self.quality.metric

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the metric."""
        return self.quality.interval

    @property
    def parameters(self) -> int:
        """Number of parameters of the selected model."""
        return self.standing.parameters

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of the selected model for one input."""
        return self.standing.multiply_adds

    @property
    def seconds(self) -> float:
        """Time of all stages."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def answer_seconds(self) -> float:
        """Time until the answer, without that for the zoo."""
        return sum(stage.seconds for stage in self.stages if stage.stage not in ZOO_STAGES)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, or of the target columns."""
        return tuple(self.task["classes"])

    def predict(self, x: Any) -> Prediction:
        """Predictions for new inputs, in the form that the task was made from.

        Args:
            x: raw inputs `[N, ...]`; for a task from a table also a DataFrame, a list of dicts or a csv file; for
                images also a folder, an image file or a list of them (unreadable files are skipped with a warning, up
                to a tenth); for named inputs a dictionary; or an npy or npz file.
        """
        inputs = read_inputs(x, self.task, self.name)
        if inputs.skipped and inputs is not x:
            warnings.warn(f"{len(inputs.skipped)} files are skipped; the first: {inputs.skipped[0]}", stacklevel=2)
        return predict_inputs(self.solved, inputs, self.temperature, self.model, self.quality.half_widths)

    def to_dict(self) -> dict[str, Any]:
        """JSON values: everything but the weights and the pictures."""
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
            "baselines": [result.to_dict() for result in self.standings if result.name != self.chosen],
            "transfer": next((result.to_dict() for result in self.standings if result.kind == "transfer"), None),
            "forecast": next((result.forecast for result in self.standings if result.forecast), None),
            "standing": self.standing.to_dict(),
            "margins": {name: list(margin) for name, margin in self.margins.items()},
            "finals": dict(self.finals),
            "samples": dict(self.samples),
            "task": dict(self.task),
            "quality": self.quality.to_dict(),
            "temperature": self.temperature,
            "relations": self.relations.to_dict(),
            "zoo_value": self.zoo_value.to_dict(),
            "checks": self.checks.to_dict(),
            "promises": [asdict(check) for check in self.promises],
            "stages": [asdict(stage) for stage in self.stages],
            "map": None if self.matrix is None else self.matrix.to_dict(),
            "seed": self.seed,
            "made": dict(self.made),
        }

    def to_state(self) -> State:
        """The whole solution, as files and the zoo store it."""
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
            "standings": [result.to_dict() for result in self.standings],
        }
        return State(tensors, {name: value for name, value in facts.items() if name not in ("baselines", "standing")})

    @classmethod
    def from_state(cls, state: State, origin: str = "this file") -> "Solution":
        """The inverse of `to_state`; `origin` is for errors."""
        form, number = state.facts.get("format"), state.facts.get("version")
        require(form == FORMAT, f"{origin} is not a solution of nearkin; create one with nearkin solve", DataError)
        require(
            number == VERSION,
            f"{origin} is a solution of version {number}, expected {VERSION}; solve the task again",
            DataError,
        )
        state = replace(state, origin=origin)
        facts = state.read(_Facts)
        drawn, solved = facts["map"], solved_from(state, facts["model"])
        names = [result.name for result in facts["standings"]]
        require(
            facts["chosen"] in names and {"pictures", *(["map"] if drawn else [])} <= state.tensors.keys(),
            f"{origin}: the selected contender {facts['chosen']!r}, the pictures or the map are missing; copy it again",
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
            zoo_value=facts.get("zoo_value", ZooValue()),
        )

    def save(self, file: str | Path) -> None:
        """Write the solution, model and figures, to one safetensors file."""
        self.to_state().save(Path(file))

    @classmethod
    def load(cls, file: str | Path) -> "Solution":
        """Read a file of `save`."""
        return cls.from_state(State.load(Path(file)), str(file))
