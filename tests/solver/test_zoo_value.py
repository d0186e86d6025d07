"""What the zoo brought: the estimate of one run, and the measurement with an empty zoo."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import nearkin as nk
from nearkin.core.budget import Budget
from nearkin.core.events import Event, Note, finish
from nearkin.report.solution_page import solution_page
from nearkin.solver.contenders import search_skeleton
from nearkin.solver.paired import paired_difference
from nearkin.solver.plan import Plan
from nearkin.solver.result import ordered
from nearkin.solver.solution import Solution
from nearkin.solver.solving import OTHER_WORK, kept_solution, solve
from nearkin.solver.zoo_value import MeasuredValue, ZooValue, value_sentences
from nearkin.tasks.prediction import Prediction

PLAN = Plan(
    budget=Budget(evaluations=1), measures=("logme",), epochs=2, space="full", join=False,
    only=("finetune", "lenet", "logistic"),
)  # fmt: skip


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[nk.Zoo]:
    """One task with enough training to help, whose samples the target does not have."""
    with nk.Zoo(tmp_path / "zoo") as zoo:
        task = nk.task("digits?part=1/2", name="all")
        zoo.add(task, "lenet", trials=1, recipe=nk.Recipe.suited(task, epochs=8))
        yield zoo


@pytest.fixture
def target() -> nk.Task:
    return nk.task("digits?part=2/2&parity&limit=100", name="even")


@pytest.mark.soak
@pytest.mark.slow
def test_measured_and_estimated_values_agree_with_the_runs(zoo: nk.Zoo, target: nk.Task, tmp_path: Path) -> None:
    events: list[Event] = []
    zoo.search_cells("all", search_skeleton(target, channels=2), Budget(evaluations=1))
    names = ("kin-search", "finetune", "lenet", "logistic")
    plan = replace(PLAN, join=True, trials=1, space="all", only=names, measure_zoo_value=True)
    solution = finish(solve.work(target, zoo, plan=plan), events.append)
    value = solution.zoo_value
    scores = {result.name: result.validation or 0.0 for result in solution.standings}
    order = [result.name for result in ordered(solution.standings)]
    assert value.with_kin == next(name for name in order if name in names[:2])
    assert value.without_kin == next(name for name in order if name in names[2:])
    assert value.difference is not None
    assert value.difference[0] == pytest.approx(scores[value.with_kin] - scores[value.without_kin])
    assert value.difference[1] <= value.difference[0] <= value.difference[2]
    assert value.seconds.keys() == {"ranking", "kin-search", "finetune"}
    assert min(value.seconds.values()) > 0

    with nk.Zoo(tmp_path / "empty") as empty:
        alone = solve(target, empty, plan=replace(PLAN, only=names))
    assert value.measured is not None
    assert value.measured.metric == pytest.approx(alone.metric)
    assert value.measured.chosen == alone.standing.title
    assert value.measured.difference[0] == pytest.approx(solution.metric - alone.metric)
    assert any(isinstance(event, Note) and "this is not in the budget" in event.text for event in events)
    assert zoo.names() == ["all", "even"]

    kept = kept_solution(zoo, "even")
    assert kept is not None
    assert kept.zoo_value == value
    again = solve(target, zoo, plan=replace(plan, measure_zoo_value=False))  # reads the stages and their times
    spent = [
        [stage for stage in one.stages if stage.stage not in ("adding to the zoo", "map", OTHER_WORK)]
        for one in (solution, again)
    ]
    assert [(stage.stage, stage.seconds) for stage in spent[0]] == [(stage.stage, stage.seconds) for stage in spent[1]]
    assert kept.to_dict()["zoo_value"]["measured"]["metric"] == value.measured.metric
    page = solution_page(solution)
    assert "What did the zoo bring?" in page
    assert "same run with an empty zoo" in page


def test_without_kin_nothing_is_measured(target: nk.Task, tmp_path: Path) -> None:
    with nk.Zoo(tmp_path / "empty") as empty:
        solution = solve(target, empty, plan=replace(PLAN, only=("logistic",), measure_zoo_value=True))
    assert solution.zoo_value == ZooValue(without_kin="logistic", not_measured="no contender used a related task")
    assert "The zoo did not help in this run: no contender used a related task." in value_sentences(solution)
    assert "did not help in this run" in solution_page(solution)


def test_a_plan_of_kin_alone_cannot_be_compared(zoo: nk.Zoo, target: nk.Task) -> None:
    solution = solve(target, zoo, plan=replace(PLAN, only=("finetune",), measure_zoo_value=True))
    assert (solution.zoo_value.with_kin, solution.zoo_value.without_kin) == ("finetune", "")
    assert solution.zoo_value.difference is None
    assert solution.zoo_value.not_measured.startswith("none of the contenders finetune is available here")
    assert "Every contender used a related task" in " ".join(value_sentences(solution))


def test_words_say_what_helped_and_what_may_be_chance(target: nk.Task, tmp_path: Path) -> None:
    with nk.Zoo(tmp_path / "empty") as empty:
        solution = solve(target, empty, plan=replace(PLAN, only=("svm", "logistic")))
    first, second = (result.name for result in ordered(solution.standings))

    def words(difference: tuple[float, float, float], measured: MeasuredValue | None = None) -> str:
        value = ZooValue(with_kin=first, without_kin=second, difference=difference, measured=measured)
        return " ".join(value_sentences(replace(solution, zoo_value=value)))

    assert "the related tasks brought +1.2 points (95 % interval: −0.4 to +2.8), which may be chance" in words(
        (0.012, -0.004, 0.028)
    )
    assert "brought +2.0 points (95 % interval: +1.0 to +3.0), which is beyond chance" in words((0.02, 0.01, 0.03))
    assert "the zoo did not help in this run" in words((-0.01, -0.02, 0.0))
    assert "the zoo did not help in this run" in words((0.0, 0.0, 0.0))
    measured = MeasuredValue(chosen="CNN", metric=0.5, difference=(-0.01, -0.03, 0.01), seconds=12.0)
    text = words((0.02, 0.01, 0.03), measured)
    assert text.startswith("The zoo did not help in this run: −1.0 points (95 % interval: −3.0 to +1.0), which may be")
    assert "took 12 s more, which are not in the budget" in text


def test_old_solutions_have_an_empty_value(target: nk.Task, tmp_path: Path) -> None:
    with nk.Zoo(tmp_path / "empty") as empty:
        state = solve(target, empty, plan=replace(PLAN, only=("logistic",))).to_state()
    old = replace(state, facts={name: value for name, value in state.facts.items() if name != "zoo_value"})
    assert Solution.from_state(old).zoo_value == ZooValue()


def test_paired_differences_have_their_metric_and_a_sound_interval() -> None:
    rng = torch.Generator().manual_seed(0)
    targets = torch.randint(2, (400,), generator=rng)
    scores = torch.nn.functional.one_hot(targets, 2).double()
    flipped = scores.clone()
    flipped[:40] = scores[:40].flip(1)
    right, worse = (Prediction(value, probabilities=value) for value in (scores, flipped))
    ahead, low, high = paired_difference(right, worse, targets)
    assert ahead == pytest.approx(0.1)
    assert high - low == pytest.approx(2 * 1.96 * (0.09 * 400 / 399 / 400) ** 0.5, rel=1e-3)
    values = torch.randn(50, 2, generator=rng)
    rough = Prediction(values + 0.5)
    ahead, *_ = paired_difference(Prediction(values), rough, values)
    assert ahead == pytest.approx(0.25 / float((values - values.mean(0)).square().mean()), rel=1e-4)
