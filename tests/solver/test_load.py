"""A busy machine: reserves in processor time, simple models that are left out, and what the answer says about it."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nearkin as nk
from nearkin.core.clock import LoadMeter
from nearkin.core.events import Event, Note, finish
from nearkin.run.checkpoints import MemoryCheckpoints
from nearkin.run.stages import StageCache
from nearkin.solver import schedule
from nearkin.solver.allocation import LEAST_REPORT
from nearkin.solver.contest import Contest
from nearkin.solver.load import BUSY, LoadEffect, load_effect
from nearkin.solver.plan import Plan
from nearkin.solver.quality import Quality
from nearkin.solver.result import Result
from nearkin.solver.sentence import sentence
from nearkin.solver.solving import solve

HALF_MINUTE = Plan(budget=nk.Budget(minutes=0.5), join=False)


def images() -> nk.Task:
    x = torch.randn(600, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return nk.Task.from_arrays("images", x, torch.arange(600) % 2)


def busy_contest(slowdown: float, task: nk.Task | None = None) -> Contest:
    meter: Any = SimpleNamespace(read=lambda: slowdown)
    return Contest(task or images(), HALF_MINUTE, StageCache(MemoryCheckpoints()), meter=meter)


def test_the_meter_divides_wall_time_by_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, processor = [0.0], [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: processor[0])
    meter = LoadMeter(lambda: wall[0])
    wall[0], processor[0] = 5.0, 0.01
    assert meter.read() == 1.0, "too little processor time to measure anything"
    wall[0], processor[0] = 12.0, 4.0
    assert meter.read() == 3.0
    processor[0] = 13.0
    assert meter.read() == 1.0, "never below 1"


def test_the_report_is_reserved_in_processor_time() -> None:
    contest = busy_contest(4.0)
    loaded, contest.meter = contest.left, None
    assert contest.slowdown == 1.0, "without a meter, as for a limit of processor time"
    assert contest.left - loaded == pytest.approx(3 * LEAST_REPORT, abs=LEAST_REPORT)


def side_models(slowdown: float, limit: float) -> tuple[list[str], list[str]]:
    """Names of the simple models that are kept beside a main network, and the notes."""
    contest, events = busy_contest(slowdown), list[Event]()
    contender = SimpleNamespace(task=contest.learn, seed=0)
    quick: Any = [
        SimpleNamespace(**vars(contender), name="svm", title="SVM", kind="simple"),
        SimpleNamespace(**vars(contender), name="transfer", title="closed form", kind="transfer"),
    ]
    kept = finish(schedule._side_models(contest, quick, limit), events.append)
    return [model.name for model in kept], [event.text for event in events if isinstance(event, Note)]


def test_simple_models_that_would_take_the_time_of_the_network_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "predicted_seconds", lambda sample, count, context: 1.5)
    assert side_models(1.0, limit=1.2) == (["svm", "transfer"], [])
    kept, notes = side_models(3.0, limit=1.5)
    assert kept == []
    assert all("would take the time of the main network" in note for note in notes)
    assert len(notes) == 2
    monkeypatch.setattr(schedule, "predicted_seconds", lambda sample, count, context: 0.1)
    assert side_models(3.0, limit=1.5)[0] == ["svm"], "a quick machine stays; closed form has half a second only"


def test_the_time_of_a_support_vector_machine_grows_with_its_samples() -> None:
    contender: Any = SimpleNamespace(task=images(), seed=0, name="svm", kind="simple", title="SVM")
    assert schedule._side_seconds(contender, 1.0) > 0
    few: Any = SimpleNamespace(task=nk.task("digits?limit=200"), seed=0, name="svm", kind="simple", title="SVM")
    assert schedule._side_seconds(few, 1.0) == 0.0, "few samples need no estimate"


@pytest.mark.parametrize("images", [True, False])
def test_the_prediction_for_an_idle_machine_is_better_and_wider_with_more_load(images: bool) -> None:
    interval = (0.56, 0.64)
    assert load_effect(BUSY - 0.01, "accuracy", 0.6, interval, images) is None
    some, much = (load_effect(slowdown, "accuracy", 0.6, interval, images) for slowdown in (2.0, 6.0))
    assert some is not None
    assert much is not None
    assert 0.6 < (some.metric or 0) < (much.metric or 0) < 1
    wider, widest = some.interval, much.interval
    assert wider is not None
    assert widest is not None
    assert widest[1] - widest[0] > wider[1] - wider[0]
    assert load_effect(3.0, "auc", 0.6, interval, images) == LoadEffect(3.0)
    fitted = load_effect(3.0, "accuracy", 0.6, interval, images, trained=False)
    assert fitted == (LoadEffect(3.0) if images else load_effect(3.0, "accuracy", 0.6, interval, images))
    top = load_effect(3.0, "accuracy", 0.999, (0.99, 1.0), images)
    assert top is not None
    assert top.interval is not None
    assert top.interval[1] == 1.0


def quality(load: LoadEffect | None) -> Quality:
    return Quality(0.6, "accuracy", (0.56, 0.64), 500, 1.0, 0.1, load=load)


def test_the_answer_says_that_the_machine_was_busy() -> None:
    best = Result(name="cnn", title="CNN", kind="made", validation=0.6, parameters=10)

    def said(load: LoadEffect | None) -> str:
        return sentence("t", best, [best], quality(load), {}, 30.0)

    assert "busy" not in said(None)
    text = said(LoadEffect(3.0, 0.7, (0.62, 0.78)))
    assert "The machine was busy: the run had 10 s of processor time." in text
    assert "On an idle machine about 70.0 % (95 % interval: 62.0 % to 78.0 %) is expected" in text
    assert "--cpu-budget" in text
    assert "is expected" not in said(LoadEffect(3.0))
    stored = quality(LoadEffect(3.0, 0.7, (0.62, 0.78)))
    assert Quality.from_dict(stored.to_dict()) == stored


@pytest.mark.soak
@pytest.mark.slow
def test_a_busy_run_keeps_to_its_limit_and_states_its_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = time.process_time
    monkeypatch.setattr(time, "perf_counter", lambda: 3 * processor())  # as if three processes shared a core
    task = nk.task("digits?limit=400", name="some digits")
    with nk.Zoo(tmp_path / "zoo") as zoo:
        plan = replace(HALF_MINUTE, seed=1)
        solution = solve(task, zoo, plan=plan)
        again = solve(task, zoo, plan=plan)
    load = solution.quality.load
    assert load is not None
    assert 2.5 < load.slowdown < 4
    assert "The machine was busy" in solution.sentence
    assert solution.seconds < 1.1 * 30
    assert again.quality.load is not None
    if again.quality.metric == solution.quality.metric:  # else the second run had time for another network
        assert again.quality.load.slowdown == load.slowdown, "read from the stored stages"
