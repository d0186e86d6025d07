"""The whole way from a target to its solution, beside a small zoo."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nearkin as nk
from interrupting import Stop, stopping_at
from nearkin.core.budget import Budget
from nearkin.core.errors import DataError, MismatchError, NearkinError, OptionError, ZooError
from nearkin.core.events import Event, Note, finish
from nearkin.nets.evaluate import evaluate
from nearkin.nets.registry import build
from nearkin.solver.kin import relate
from nearkin.solver.plan import Plan
from nearkin.solver.result import ordered
from nearkin.solver.solution import Solution
from nearkin.solver.solving import kept_solution, solve
from nearkin.store.integrity import examine
from nearkin.zoo.recorded_runs import recorded_runs


def plain(solution: Solution) -> Any:
    """As a program reads it."""
    return json.loads(json.dumps(solution.to_dict(), allow_nan=False))


def timeless(facts: Any) -> Any:
    """Plain values without whatever tells of time."""
    if isinstance(facts, dict):
        left = {"seconds", "step_seconds", "seconds_interval", "stages", "answer", "known", "MiB"}
        return {name: timeless(value) for name, value in facts.items() if name not in left}
    return [timeless(value) for value in facts] if isinstance(facts, list) else facts


@pytest.mark.slow
def test_the_whole_way(kin_zoo: nk.Zoo, target: nk.Task, quick: Plan) -> None:
    heard: list[Event] = []
    solution = finish(solve.work(target, kin_zoo, plan=quick), heard.append)
    assert tuple(one.name for one in solution.standings) == quick.only
    assert not [one.refused for one in solution.standings if one.refused]

    best = ordered(solution.standings)[0]
    assert solution.chosen == best.name
    assert solution.metric == pytest.approx(evaluate(solution.model, _seen(solution, target), target.form).metric)
    assert solution.metric == pytest.approx(solution.finals[best.name])
    assert solution.interval[0] <= solution.metric <= solution.interval[1]
    assert {"frechet", "short-finetune", "logme"} == set(solution.relations.rankings)
    assert solution.relations.cells_of in ("even", "high")

    # fine-tuning was forecast before, compared after, and recorded with its source
    forecast = plain(solution)["forecast"]
    assert forecast["source"] == solution.relations.tuned
    assert forecast["measured"]["steps_done"] > 0
    assert any(isinstance(event, Note) and event.text.startswith("forecast of fine-tuning") for event in heard)
    assert [run.source for run in recorded_runs(kin_zoo) if run.target == "new" and run.source] == [forecast["source"]]
    assert any("The forecast holds" in claim.claim and claim.held is not None for claim in solution.promises)

    # the zoo has one task more, with everything that kin are asked for
    assert "new" in kin_zoo
    assert kin_zoo.fisher("new").num_samples == len(target.test)
    cells = kin_zoo.cells("new")
    assert cells is not None
    assert 1 <= len(cells.found) <= 3
    assert kin_zoo.pairs("solve gain", solution.relations.cells_of or "") == {}
    [gain] = kin_zoo.pairs("solve gain", "new").values()
    worth = {one.name: one.validation for one in solution.standings}
    assert gain["gain"] == pytest.approx(worth["kin-search"] - worth["full-search"])
    assert solution.matrix is not None
    assert set(solution.matrix.tasks) == {"zero", "even", "high", "new"}

    # what is kept is what was answered, and a second run only reads
    kept = kept_solution(kin_zoo, "new")
    assert kept is not None
    assert plain(kept) == plain(solution)
    again = solve(target, kin_zoo, plan=quick)
    assert timeless(plain(again)) == timeless(plain(solution))
    assert all(stage.known for stage in again.stages if stage.stage not in ("adding to the zoo", "map"))


def test_stages_go_with_the_last_task_that_has_their_data(tmp_path: Path, target: nk.Task) -> None:
    with nk.Zoo(tmp_path / "zoo") as zoo:
        for name in ("one", "two"):
            solve(replace(target, name=name), zoo, plan=Plan(only=("logistic",), trials=1, epochs=1))
        [folder] = (zoo.path / "stages").iterdir()
        assert folder.name == target.fingerprint()
        assert checked_health(zoo).unfinished == ()
        zoo.remove("one")
        assert folder.exists()
        zoo.remove("two")
        assert not folder.exists()


def checked_health(zoo: nk.Zoo) -> Any:
    return examine(zoo.catalogue)


def test_data_that_was_mended_is_not_read_from_old_stages(tmp_path: Path) -> None:
    x = torch.rand(600, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0.5).long()
    plan = Plan(only=("logistic",), join=False)
    with nk.Zoo(tmp_path / "zoo") as zoo:
        first = solve(nk.Task.from_arrays("t", x, y, standardise=False), zoo, plan=plan)
        assert all(one.known for one in solve(nk.Task.from_arrays("t", x, y, standardise=False), zoo, plan=plan).stages)
        for row in range(600):
            mended = x.clone()
            mended[row, 1] = 0.123
            task = nk.Task.from_arrays("t", mended, y, standardise=False)
            if task.fingerprint() == _fingerprint(x, y):  # a row that the fingerprint does not look at
                break
        else:
            pytest.fail("the fingerprint looks at every row")
        again = solve(task, zoo, plan=plan)
    assert not any(one.known for one in again.stages)
    assert first.metric > 0.9


def _fingerprint(x: torch.Tensor, y: torch.Tensor) -> str:
    return nk.Task.from_arrays("t", x, y, standardise=False).fingerprint()


@pytest.mark.soak
@pytest.mark.slow
def test_interrupted_in_every_stage_it_ends_as_if_it_had_not_been(
    kin_zoo: nk.Zoo, made_kin_zoo: Path, target: nk.Task, quick: Plan, tmp_path: Path
) -> None:
    """One contender of each kind: searched, fine-tuned, in closed form, made by hand, simple."""
    quick = replace(quick, hand_made=(), only=("kin-search", "finetune", "transfer", "lenet", "logistic"))
    ends = 1
    while True:
        try:
            broken = finish(solve.work(target, kin_zoo, plan=quick), stopping_at(ends))
            break
        except Stop:
            ends += 6
    assert ends > 24  # it was stopped many times
    with nk.Zoo(shutil.copytree(made_kin_zoo, tmp_path / "other")) as other:
        whole = solve(target, other, plan=quick)
    assert timeless(plain(broken)) == timeless(plain(whole))
    for name, value in whole.solved.trials[0].params.items():
        assert torch.equal(value, broken.solved.trials[0].params[name])


def _seen(solution: Solution, task: nk.Task) -> Any:
    from nearkin.tasks.pixels import fitted_to

    return fitted_to(task, tuple(solution.solved.facts["input_shape"])).test


@pytest.mark.soak
def test_without_kin_and_without_images(tmp_path: Path) -> None:
    x = torch.randn(150, 5, generator=torch.Generator().manual_seed(0))
    task = nk.Task.from_arrays("table", x, (x[:, 0] + x[:, 1] > 0).long())
    heard: list[Event] = []
    with nk.Zoo(tmp_path / "zoo") as zoo:
        solution = finish(solve.work(task, zoo, plan=Plan(budget=Budget(evaluations=1), epochs=2)), heard.append)
        assert zoo.names() == ["table"]
    assert solution.genotype is None
    assert solution.matrix is None
    assert [one.name for one in solution.standings] == ["mlp", "logistic", "svm", "boosting", "forest", "extra-trees"]
    assert any(
        isinstance(event, Note) and "no architecture search: cells are for images" in event.text for event in heard
    )
    assert solution.metric > 0.85


def test_values_are_answered_in_their_own_units(tmp_path: Path) -> None:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    y = 100 + 10 * x[:, 0] - 5 * x[:, 1]
    task = nk.Task.from_arrays("line", x[:150], y[:150], x[150:], y[150:])
    with nk.Zoo(tmp_path / "zoo") as zoo:
        solution = solve(task, zoo, plan=Plan(only=("logistic",), join=False))
        assert zoo.names() == []
    assert solution.metric > 0.99
    said = solution.predict(x[150:]).mean.flatten()
    assert torch.allclose(said, y[150:], atol=1.5)
    assert solution.predict(x[150:]).probabilities is None


def test_a_solution_is_saved_and_loaded(tmp_path: Path, target: nk.Task) -> None:
    with nk.Zoo(tmp_path / "zoo") as zoo:
        solution = solve(target, zoo, plan=Plan(only=("svm",), join=False))
    solution.save(tmp_path / "one.safetensors")
    again = Solution.load(tmp_path / "one.safetensors")
    assert plain(again) == plain(solution)
    x = target.test.inputs.take(torch.arange(20))
    for first, second in zip(solution.predict(x).names, again.predict(x).names, strict=True):
        assert first == second
    assert torch.equal(solution.predict(x).mean, again.predict(x).mean)
    with pytest.raises(MismatchError, match=r"got inputs of shape \(1, 9, 9\), 'new' expects \(1, 8, 8\)"):
        again.predict(torch.zeros(2, 9, 9))
    with pytest.raises(MismatchError, match="use the same units"):
        again.predict(16 * x)
    (tmp_path / "other.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="not an intact safetensors file"):
        Solution.load(tmp_path / "other.safetensors")


def test_one_second_gives_a_smaller_honest_answer(tmp_path: Path, target: nk.Task) -> None:
    heard: list[Event] = []
    with nk.Zoo(tmp_path / "zoo") as zoo:
        solution = finish(solve.work(target, zoo, plan=Plan(budget=Budget(minutes=1 / 60), join=False)), heard.append)
    assert {one.kind for one in solution.standings} == {"simple"}
    assert any(isinstance(event, Note) and "too few for networks" in event.text for event in heard)
    assert solution.metric > 0.6


def test_ten_samples_are_answered_with_a_wide_interval(tmp_path: Path) -> None:
    x = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x[::2] += 3
    task = nk.Task.from_arrays("ten", x, torch.arange(10) % 2)
    with nk.Zoo(tmp_path / "zoo") as zoo:
        solution = solve(task, zoo, plan=Plan(budget=Budget(evaluations=1), epochs=1, join=False, hand_made=()))
    low, high = solution.interval
    assert high - low > 0.3
    assert any(finding.kind == "size" for finding in solution.checks.grave)
    assert not [one for one in solution.standings if one.kind == "searched"]


def test_a_name_that_is_taken_by_other_data_is_refused(kin_zoo: nk.Zoo, target: nk.Task, quick: Plan) -> None:
    with pytest.raises(ZooError, match="other data; choose another name"):
        solve(replace(target, name="zero"), kin_zoo, plan=quick)
    with pytest.raises(NearkinError):
        solve(replace(target, name=""), kin_zoo, plan=quick)


def test_what_cannot_be_solved_is_refused(tmp_path: Path) -> None:
    pictures = nk.task("digits?dense=autoencode&limit=100")
    with nk.Zoo(tmp_path / "zoo") as zoo, pytest.raises(DataError, match="expects classification or regression"):
        solve(pictures, zoo, plan=Plan())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "darts"}, "does not start from the cells of a kin"),
        ({"validation": 1.0}, "between 0 and 1"),
        ({"trials": 0}, "1 or more"),
        ({"width": 0.0}, "width is a factor above 0 and at most 4, got 0.0"),
        ({"training": {"batch": 3}}, "unknown training option 'batch'"),
        ({"training": {"optimiser": "lion"}}, "optimiser must be one of adam, adam-l2, sgd"),
        ({"budget": Budget(steps=3)}, "minutes or evaluations"),
    ],
)
def test_bad_plans_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Plan(**changes)


def test_the_random_control_draws_alone_and_says_so(kin_zoo: nk.Zoo, target: nk.Task) -> None:
    plan = Plan(
        budget=Budget(evaluations=1), space="even", measures=("logme",), epochs=1, join=False,
        only=("kin-search", "random-search"),
    )  # fmt: skip
    standings = {one.name: one for one in solve(target, kin_zoo, plan=plan).standings}
    assert {name: one.settings["seed_cells"] for name, one in standings.items()} == {
        "kin-search": True, "random-search": False
    }  # fmt: skip
    searches = {name: one.to_dict()["search"] for name, one in standings.items()}
    assert searches["kin-search"]["best"]["facts"]["origin"] == "given"
    assert searches["random-search"]["best"]["facts"]["origin"] == "drawn"
    assert standings["random-search"].title == "random search in the space of 'even', without its cells"


def test_width_and_recipe_can_be_set(tmp_path: Path, target: nk.Task) -> None:
    plan = Plan(
        budget=Budget(evaluations=1), hand_made=("resnet18",), only=("resnet18",), width=0.125, epochs=1, join=False,
        training={"batch_size": 40, "learning_rate": 0.003},
    )  # fmt: skip
    with nk.Zoo(tmp_path / "zoo") as zoo:
        solution = solve(target, zoo, plan=plan)
    (only,) = solution.standings
    assert only.network == "resnet18?width=0.125"
    assert (only.settings["batch_size"], only.settings["rate"]) == (40, 0.003)
    facts = plain(solution)["made"]
    assert (facts["width"], facts["training"]) == (0.125, {"batch_size": 40, "learning_rate": 0.003})


def test_restart_discards_the_stages(tmp_path: Path, target: nk.Task) -> None:
    plan = Plan(budget=Budget(evaluations=1), only=("logistic",), join=False)
    with nk.Zoo(tmp_path / "zoo") as zoo:
        known = [
            {stage.known for stage in solve(target, zoo, plan=plan, restart=restart).stages}
            for restart in (False, False, True)
        ]
    assert known == [{False}, {True}, {False}]


def test_contenders_that_are_not_there_are_refused(tmp_path: Path, target: nk.Task) -> None:
    with (
        nk.Zoo(tmp_path / "zoo") as zoo,
        pytest.raises(OptionError, match="none of the contenders kin-search is available"),
    ):
        solve(target, zoo, plan=Plan(only=("kin-search",)))


def test_the_room_can_be_called(tmp_path: Path) -> None:
    with nk.Zoo(tmp_path / "zoo") as zoo:
        solution = nk.solve("digits?detect=0&limit=100", zoo, nk.Budget(evaluations=1), only=("logistic",), join=False)
    assert solution.name == "digits?detect=0&limit=100"
    assert solution.metric > 0.8


def test_rankings_of_a_removed_model_are_not_those_of_its_successor(tmp_path: Path, target: nk.Task) -> None:
    plan, task = Plan(budget=Budget(evaluations=1), measures=("logme",)), nk.task("digits?limit=100")
    distances = []
    with nk.Zoo(tmp_path / "zoo") as zoo:
        for seed in range(2):
            zoo.adopt("near", "mlp?hidden=4", weights=build("mlp?hidden=4", (1, 8, 8), 10, seed), task=task)
            relations = finish(relate(zoo, target, plan, zoo.stages(target)))
            distances.append(relations.rankings["logme"][0]["distance"])
            zoo.remove("near")
    assert distances[0] != distances[1]
