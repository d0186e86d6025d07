"""Evaluations of genotypes by jobs, ahead of a search that measures one genotype at a time.

Before a step, the genotypes that the search will measure next are evaluated at the same time. Random draws and first
populations are certain; other genotypes are those that follow if the ones before them are no better. The search then
runs as without jobs and finds the values of these genotypes, so a wrong guess costs time of a worker and changes
nothing.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from nearkin.core.budget import Budget
from nearkin.core.errors import TrainingError
from nearkin.core.events import Note, Work
from nearkin.core.state import State
from nearkin.nets.recipe import Recipe
from nearkin.run.checkpoints import SUFFIX, facts_digest, resume
from nearkin.run.jobs import JobPlace, JobSpec, job
from nearkin.run.runner import Runner
from nearkin.search.genotype_evaluation import TrainedObjective
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.objective import ObjectiveValue
from nearkin.search.registry import SearchProblem
from nearkin.search.searcher import Searcher
from nearkin.tasks.task import Task
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.zoo_jobs import NamedTask, do_jobs, named_task, num_workers, open_zoo, read_named, spec_for

CERTAIN = 4  # evaluations for each worker that are submitted at once, if no score can change them


class _Evaluated(TypedDict):
    """Value of a genotype, the processor time of its evaluation, and the error if training failed."""

    score: float
    facts: dict[str, float | str]
    seconds: float
    failed: str


@dataclass
class EvaluationJobs:
    """Evaluations of the genotypes of one search.

    Attributes:
        runner: who does the jobs.
        named: how workers read the task.
        known: values so far, by genotype.
        seconds: processor time of each.
        specs: the jobs; a result is kept until the search uses it, so that a resumed search finds it.
    """

    runner: Runner
    named: NamedTask
    known: dict[str, ObjectiveValue | TrainingError] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    specs: dict[str, JobSpec] = field(default_factory=dict)

    @classmethod
    def of(cls, zoo: SolvedTasks, runner: Runner | None, task: Task) -> "EvaluationJobs | None":
        """The jobs for a task; None without a runner, and for a task that workers cannot read."""
        named = None if runner is None else named_task(zoo, task)
        return None if runner is None or named is None else cls(runner, named)

    def preparation(
        self, searcher: Searcher[Any], problem: SearchProblem, budget: Budget
    ) -> Callable[[Any], Work[float]]:
        """What a search does before each step (`run_search`): it evaluates what the next steps measure."""

        def prepare(state: Any) -> Work[float]:
            if not searcher.foresees:
                return 0.0
            upcoming = searcher.upcoming(state, 1, 1)
            if not upcoming:
                return 0.0
            first = str(upcoming[0])
            if first not in self.known:
                limits = [limit for limit in (budget.steps, budget.evaluations) if limit is not None]
                left = min(limits, default=math.inf) - searcher.evaluations(state)
                most, guesses = (int(min(left, n * num_workers(self.runner))) for n in (CERTAIN, 1))
                yield from self._evaluate(searcher.upcoming(state, most, guesses), problem)
            self.forget([first])
            return self.seconds.get(first, 0.0)

        return prepare

    def _evaluate(self, genotypes: list[Genotype], problem: SearchProblem) -> Work[None]:
        texts = [text for text in map(str, genotypes) if text not in self.known]
        if len(texts) < 2:
            return
        inputs = {"task": self.named, "skeleton": problem.skeleton.to_dict(), "recipe": problem.proxy.to_dict()}
        specs = {
            text: spec_for(evaluate, {**inputs, "genotype": text}, problem.seed, f"evaluation of {text}")
            for text in texts
        }
        self.specs |= specs
        states = yield from do_jobs(self.runner, list(specs.values()), "evaluations", keep=True)
        for text, state in zip(texts, states, strict=True):
            if state is not None:
                done = state.read(_Evaluated)
                value = ObjectiveValue(done["score"], done["facts"])
                self.known[text] = TrainingError(done["failed"]) if done["failed"] else value
                self.seconds[text] = done["seconds"]

    def forget(self, genotypes: Sequence[str] | None = None) -> None:
        """Remove the stored results of genotypes; of all when the search has ended."""
        names = list(self.specs) if genotypes is None else genotypes
        if specs := [self.specs.pop(name) for name in names if name in self.specs]:
            self.runner.forget(specs)


def not_spread(searcher: Searcher[Any]) -> Note:
    """Note that a search runs in this process."""
    return Note(f"{searcher.name} trains genotypes together, so its search is not spread over workers")


@job
def evaluate(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Train one genotype briefly and measure it on validation data."""
    with open_zoo(place) as zoo:
        objective = TrainedObjective(
            read_named(zoo, inputs["task"]), Skeleton(**inputs["skeleton"]), Recipe(**inputs["recipe"]), seed
        )
        genotype, start = Genotype.parse(inputs["genotype"]), time.process_time()
        name = f"evaluation-{facts_digest({**inputs, 'seed': seed})}{SUFFIX}"
        facts: _Evaluated = {"score": -math.inf, "facts": {}, "seconds": 0.0, "failed": ""}
        try:
            value = yield from resume(zoo.work, name, lambda state: objective.train_and_measure(genotype, state))
            facts |= {"score": float(value.score), "facts": dict(value.facts)}
        except TrainingError as failed:
            facts["failed"] = str(failed)
        facts["seconds"] = time.process_time() - start
    return State({}, facts)
