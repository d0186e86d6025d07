"""A search whose genotypes are evaluated by jobs ends in the same bits as one in this process."""

from pathlib import Path
from typing import Any

import pytest

import nearkin as nk
from counting_runner import CountingRunner
from interrupting import Stop, stopping_at
from nearkin.core.budget import Budget
from nearkin.core.events import Caution, Event, Note, finish
from nearkin.search.networks.build import Skeleton
from nearkin.search.searcher import SearchResult
from nearkin.zoo.search import Search
from nearkin.zoo.zoo import Zoo

OPTIONS: dict[str, dict[str, Any]] = {
    "random": {},
    "evolution": {"population": 4, "tournament": 2},
    "local": {},
    "warm-start": {},
}


def how(method: str, **changes: Any) -> Search:
    options: dict[str, Any] = {
        "space": "general?nodes=3", "budget": Budget(evaluations=7), "skeleton": Skeleton(channels=2, num_cells=1),
        "proxy": nk.Recipe(steps=3, batch_size=16), "recipe": nk.Recipe(steps=2), "options": OPTIONS.get(method, {}),
    }  # fmt: skip
    return Search(method=method, **{**options, **changes})


def course(outcome: SearchResult) -> tuple[object, ...]:
    found = [(scored.genotype, scored.score, scored.facts["loss"]) for scored in outcome.found]
    return outcome.best.genotype, outcome.history, outcome.reason, outcome.steps, found


@pytest.fixture(scope="module")
def task() -> nk.Task:
    return nk.task("digits?classes=0,1,2&rest=drop&limit=80")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", OPTIONS)
def test_genotypes_are_evaluated_ahead(tmp_path: Path, task: nk.Task, method: str) -> None:
    alone = Zoo(tmp_path / "alone").search(task, how(method))
    runner, heard = CountingRunner(tmp_path / "zoo"), list[Event]()
    zoo = Zoo(tmp_path / "zoo", runner=runner)
    found = finish(zoo.search.work(task, how(method)), heard.append)
    assert course(found.outcome) == course(alone.outcome)
    assert found.evaluated.metric == alone.evaluated.metric
    assert not any(isinstance(event, Caution) for event in heard)
    by_jobs = {job.spec.inputs["genotype"] for job in runner.jobs}
    measured = {str(scored.genotype) for scored in found.outcome.found}
    assert len(measured & by_jobs) >= 4, "most genotypes were evaluated by jobs"
    if method == "random":
        assert by_jobs == measured, "and none was evaluated in vain"
    assert runner.results.names() == []
    spent = {job.spec.inputs["genotype"]: job.result(0).facts["seconds"] for job in runner.jobs}
    assert found.outcome.seconds >= sum(spent[text] for text in measured & by_jobs)


def test_a_stopped_search_finds_what_jobs_evaluated(tmp_path: Path, task: nk.Task) -> None:
    alone = Zoo(tmp_path / "alone").search(task, how("random"))
    runner = CountingRunner(tmp_path / "zoo")
    zoo = Zoo(tmp_path / "zoo", runner=runner)
    with pytest.raises(Stop):
        finish(zoo.search.work(task, how("random")), stopping_at(3))  # type: ignore[arg-type]
    left = len(runner.results.names())
    assert left >= 4
    assert course(zoo.search(task, how("random")).outcome) == course(alone.outcome)
    assert sum(job.result(0).facts["seconds"] > 0 for job in runner.jobs) == len(runner.jobs)
    assert len({job.id for job in runner.jobs}) == 7, "no genotype was evaluated twice"
    assert runner.results.names() == []


def test_a_search_with_shared_weights_says_that_it_is_not_spread(tmp_path: Path, task: nk.Task) -> None:
    runner, heard = CountingRunner(tmp_path / "zoo"), list[Event]()
    zoo = Zoo(tmp_path / "zoo", runner=runner)
    few = how("fuse", budget=Budget(steps=1), options={"candidates": 2})
    finish(zoo.search.work(task, few), heard.append)
    assert not runner.jobs
    assert Note("fuse trains genotypes together, so its search is not spread over workers") in heard


def test_a_training_that_fails_in_a_job_fails_here_too(tmp_path: Path, task: nk.Task) -> None:
    """It is not done again: the search gets the error of the job."""
    diverging = how("random", proxy=nk.Recipe(steps=4, batch_size=16, learning_rate=1e30), budget=Budget(evaluations=2))
    courses = []
    for runner in (None, CountingRunner(tmp_path / "jobs")):
        heard: list[Event] = []
        zoo = Zoo(tmp_path / "jobs", runner=runner) if runner else Zoo(tmp_path / "alone")
        outcome = finish(zoo.search.work(task, diverging), heard.append).outcome
        said = [event.text for event in heard if isinstance(event, Caution)]
        courses.append((outcome.best.genotype, outcome.history, said))
    assert courses[0][2], "at least one of them fails"
    assert courses[0] == courses[1]
