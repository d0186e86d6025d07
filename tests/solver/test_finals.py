"""Final fits keep to the time limit: without time for a second fit, the first model is the final one."""

from types import SimpleNamespace
from typing import Any

import pytest

from nearkin.core.events import Event, Note, finish
from nearkin.solver.closed import AGAIN
from nearkin.solver.finals import REFIT, final_model, has_time_for


def contest(kind: str, left: float, focused: bool = True) -> Any:
    """The parts of a contest that decide about a final fit, with one model whose first fit took a second."""
    contender = SimpleNamespace(
        kind=kind, sized=None, title="a model", task=None, encoder=None, whole_of=lambda task: task
    )
    solved = SimpleNamespace(trials=[SimpleNamespace(seconds=1.0)])
    run = SimpleNamespace(contender=contender, solved=solved, settings={"samples": 7})
    return SimpleNamespace(
        trained={"m": [run]}, left=left, learned_all=lambda runs: False, plan=SimpleNamespace(focused=focused),
        task=SimpleNamespace(train=range(9)),
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "needed"), [("simple", REFIT), ("transfer", AGAIN**2)])
def test_a_second_fit_needs_time_for_more_samples(kind: str, needed: float) -> None:
    assert has_time_for(contest(kind, needed + 0.1), "m")
    assert not has_time_for(contest(kind, needed - 0.1), "m")
    assert has_time_for(contest(kind, 0.0, focused=False), "m"), "without a time limit"


def test_without_time_the_first_model_is_the_final_one() -> None:
    late, events = contest("transfer", left=1.0), list[Event]()
    late.trained["m"][0].contender.task = SimpleNamespace(input_shape=(1,), train=range(8))
    solved, samples = finish(final_model(late, "m"), events.append)
    assert solved is late.trained["m"][0].solved
    assert samples == 7
    assert any(isinstance(event, Note) and "no time is left to fit a model" in event.text for event in events)
