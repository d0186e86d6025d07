"""Paths between two solutions of a zoo: against the losses of stored networks, interruption, reports, bad requests."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import nearkin as nk
from nearkin.core.events import Checkpoint, Event, Progress
from nearkin.report.connection_page import connection_page, connection_picture
from nearkin.zoo.connect import Connection, ConnectOptions

LOW, HIGH = "digits?classes=0,1,2&rest=drop&limit=150", "digits?classes=5,6,7,8&rest=drop&limit=200"
QUICK: dict[str, Any] = {"samples": 60, "images": 5, "iterations": 12}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nk.Zoo]:
    recipe = nk.Recipe(steps=40, batch_size=32)
    with nk.Zoo(tmp_path_factory.mktemp("connect") / "zoo") as zoo:
        zoo.add(nk.task(LOW, name="low"), "mlp?hidden=10", trials=2, recipe=recipe)
        zoo.add(nk.task(HIGH, name="high"), "mlp?hidden=10", trials=1, recipe=recipe)
        zoo.add(nk.task(LOW, name="wide"), "mlp?hidden=12", trials=1, recipe=recipe)
        yield zoo


@pytest.fixture(scope="module")
def trials(zoo: nk.Zoo) -> Connection:
    return zoo.connect("low", trials=(0, 1), **QUICK)


def loss(model: nn.Module, zoo: nk.Zoo, name: str) -> float:
    batch = zoo.task(name).train.fixed_subset(60)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(batch.x), batch.y))


def test_ends_of_two_trials_have_the_losses_of_their_networks(zoo: nk.Zoo, trials: Connection) -> None:
    own = [loss(zoo.solved("low").model(trial), zoo, "low") for trial in (0, 1)]
    for profile in (trials.straight, trials.minimised):
        assert [profile[0], profile[-1]] == pytest.approx(own, rel=1e-5)
        assert len(profile) == 17
    assert 0 <= trials.barrier < trials.straight_barrier
    assert trials.lowered == pytest.approx(1 - trials.barrier / trials.straight_barrier)
    assert trials.lengths[0] < trials.lengths[1]
    assert [share for share, *_ in trials.images] == [0, 0.25, 0.5, 0.75, 1]


def test_aligned_units_lower_the_straight_barrier_and_do_not_change_the_end(zoo: nk.Zoo, trials: Connection) -> None:
    aligned = zoo.connect("low", trials=(0, 1), align=True, **QUICK)
    assert aligned.agreement is not None
    assert aligned.agreement[0] < aligned.agreement[1]
    assert aligned.straight[-1] == pytest.approx(trials.straight[-1], rel=1e-4)
    assert aligned.lengths[0] < trials.lengths[0]
    assert aligned.straight_barrier < trials.straight_barrier


def test_two_tasks_have_their_own_heads_and_a_fitted_one(zoo: nk.Zoo) -> None:
    end = zoo.connect("low", "high", **QUICK)
    assert end.measured_on == ("high",)
    assert end.straight[-1] == pytest.approx(loss(zoo.solved("high").model(), zoo, "high"), rel=1e-5)
    assert end.straight[0] < math.log(4)  # the fitted head is better than equal probabilities
    start = zoo.connect("low", "high", data="start", **QUICK)
    assert start.straight[0] == pytest.approx(loss(zoo.solved("low").model(), zoo, "low"), rel=1e-5)
    both = zoo.connect("low", "high", data="both", **QUICK)
    assert both.num_samples == 120
    for own, first, last in zip(both.straight, start.straight, end.straight, strict=True):
        assert own == pytest.approx((first + last) / 2, rel=1e-4)


def test_diffusion_is_that_of_the_stored_recipe(zoo: nk.Zoo, trials: Connection) -> None:
    assert trials.noise is not None
    assert trials.kramers is not None
    batch = zoo.task("low").train.fixed_subset(60)
    noise = nk.distance.gradient_noise(zoo.solved("low").model(), batch.x, batch.y)
    rate = nk.Recipe(steps=40).learning_rate
    assert trials.noise["diffusion"] == pytest.approx(rate * noise.variance / (2 * 32), rel=1e-4)
    rise = max(trials.minimised) - trials.minimised[0]
    expected = rise / trials.noise["diffusion"] / math.log(10) if trials.barrier > 0 else 0.0
    assert trials.kramers["log10_factor"] == pytest.approx(expected)


def test_an_interrupted_call_is_resumed(zoo: nk.Zoo) -> None:
    options: dict[str, Any] = {"trials": (0, 1), "samples": 40, "images": 5, "iterations": 8}

    def stop(event: Event) -> None:
        if isinstance(event, Checkpoint) and event.capture().facts["iterations"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), nk.listening(stop):
        zoo.connect("low", **options)
    saved = [name for name in zoo.work.names() if name.startswith("connect-")]
    assert len(saved) == 1
    events: list[Event] = []
    with nk.listening(events.append):
        resumed = zoo.connect("low", **options)
    steps = [event.done for event in events if isinstance(event, Progress) and event.stage == "path"]
    assert steps == [6, 7, 8]
    assert zoo.work.names() == []
    again = zoo.connect("low", **options)
    assert again.minimised == resumed.minimised


def test_report_and_picture_show_the_figures(trials: Connection) -> None:
    page = connection_page(trials, command="nearkin connect low")
    for text in (
        f"{trials.barrier:.4f}",
        f"{trials.straight_barrier:.4f}",
        "nearkin connect low",
        "diffusion constant",
    ):
        assert text in page
    for _, straight, minimised in trials.images:
        assert f">{straight:.4f}<" in page
        assert f">{minimised:.4f}<" in page
    assert connection_picture(trials).startswith("<svg")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (("low",), {}, "'low', trial 0, is given as start and as end"),
        (("low", "wide"), {}, r"'low' has the network mlp\?hidden=10, 'wide' has mlp\?hidden=12"),
        (("lov",), {}, "no task named 'lov'"),
        (("low",), {"trials": (0, 2)}, "'low' has trials 0 to 1, got 2"),
        (("low", "high"), {"data": "all"}, "data must be one of start, end, both, got 'all'"),
        (("low", "high"), {"images": 2}, "images must be 3 or more, got 2"),
        (("low", "high"), {"samples": 1}, "samples must be 2 or more, got 1"),
    ],
)
def test_bad_requests_are_one_clear_line(
    zoo: nk.Zoo, names: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(nk.NearkinError, match=message):
        zoo.connect(*names, **options)


def test_options_are_checked_when_they_are_made() -> None:
    with pytest.raises(nk.NearkinError, match="iterations must be 1 or more"):
        ConnectOptions(iterations=0)
