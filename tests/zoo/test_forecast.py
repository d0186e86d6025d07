"""Forecasts in a zoo: what is recorded, what is refused, and a check against a real run."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import nearkin as nk
from nearkin.core.errors import DataError, NearkinError, OptionError
from nearkin.core.events import Caution, listening
from nearkin.distance.forecasting.curve import RunCurve
from nearkin.distance.forecasting.forecasts import PlannedRun
from nearkin.store.records import NewArtifact
from nearkin.zoo.forecast import ForecastOptions, forecast_finetuning
from nearkin.zoo.recorded_runs import KIND, recorded_runs

NETWORK = "mlp?hidden=32"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nk.Zoo]:
    with nk.Zoo(tmp_path_factory.mktemp("zoo") / "zoo") as made:
        for name, classes in (("low", "0,1,2,3,4"), ("high", "5,6,7,8,9"), ("odd", "1,3,5,7,9")):
            made.add(nk.task(f"digits?classes={classes}&limit=400", name=name), NETWORK, trials=1)
        yield made


def test_every_training_is_recorded_with_optimiser_and_batch_size(zoo: nk.Zoo) -> None:
    runs = [run for run in recorded_runs(zoo) if not run.source]
    assert {run.target for run in runs} == {"low", "high", "odd"}
    for run in runs:
        assert (run.network, run.optimiser, run.batch_size) == (NETWORK, "adam", 64)
        assert run.curve.losses[-1] < 0.1 < 1.0 < run.curve.losses[0]
        assert len(run.signals.losses) == 16


def test_a_checked_forecast_is_recorded_and_compared(zoo: nk.Zoo) -> None:
    before = len(list(recorded_runs(zoo)))
    found = forecast_finetuning(zoo, "low", "high", ForecastOptions(check=True))
    forecast = found.forecast
    assert forecast.interval[0] < forecast.steps < forecast.interval[1]
    assert found.measured is not None
    assert forecast.interval[0] / 3 < found.measured < 3 * forecast.interval[1]
    assert found.to_dict()["measured"]["steps_done"] == found.steps_done
    runs = list(recorded_runs(zoo))
    assert len(runs) == before + 1
    assert any((run.source, run.target) == ("low", "high") for run in runs)
    again = forecast_finetuning(zoo, "low", "odd", ForecastOptions())
    assert again.forecast.own_runs == 3  # trainings of low and high, and the run; not the training of odd itself


def test_harder_goals_and_smaller_rates_take_longer(zoo: nk.Zoo) -> None:
    easy, hard = (zoo.forecast("low", "high", f"loss={loss}").steps for loss in (0.8, 0.1))
    assert easy < hard
    slow = ForecastOptions(to="loss=0.8", plan=PlannedRun(learning_rate=1e-4))
    assert zoo.forecast("low", "high", how=slow).steps == pytest.approx(10 * easy, rel=1e-6)
    forecast = zoo.forecast("low", "high", "accuracy=0.9")
    assert forecast.metric == "accuracy"
    assert forecast.goal == pytest.approx(0.9)
    assert forecast.seconds > 0
    assert forecast.complexity is not None


def test_the_measure_reach_ranks_by_predicted_steps(zoo: nk.Zoo) -> None:
    ranking = zoo.near("high", "reach")
    assert {kin.name for kin in ranking} == {"low", "odd"}
    steps = {kin.name: kin.distance for kin in ranking}
    assert all(math.isfinite(value) and value > 0 for value in steps.values())
    slower = zoo.near("high", "reach", share=0.05)
    assert all(kin.distance > steps[kin.name] for kin in slower)


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ("loss=9", "share between 0 and 1"),
        ("loss=0", "above 0"),
        ("loss=good", "expected loss=NUMBER or accuracy=NUMBER"),
        ("r2=0.5", "is accuracy; ask for"),
        ("accuracy=1", "below 1"),
        ("accuracy=0.01", "share between 0 and 1"),
        ("loss=nan", "share between 0 and 1|above 0"),
    ],
)
def test_goals_that_make_no_sense_are_refused(zoo: nk.Zoo, goal: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        zoo.forecast("low", "high", goal)


def test_a_loss_below_the_own_training_is_said(zoo: nk.Zoo) -> None:
    said: list[str] = []
    with listening(lambda event: said.append(event.text) if isinstance(event, Caution) else None):
        zoo.forecast("low", "high", "loss=0.002")
    assert any("lowest loss of a batch in the training of 'high'" in text for text in said)


def test_unknown_sources_trials_and_unreached_goals_are_one_line(zoo: nk.Zoo) -> None:
    for source, how in (("lo", ForecastOptions()), ("low", ForecastOptions(trial=3)),
                        ("low", ForecastOptions(to="loss=1e-9"))):  # fmt: skip
        with pytest.raises(NearkinError) as error:
            zoo.forecast(source, "high", how=how)
        assert "\n" not in str(error.value)


def test_runs_are_removed_with_their_source(tmp_path: Path) -> None:
    with nk.Zoo(tmp_path / "zoo") as zoo:
        for name in ("zero", "one"):
            zoo.add(nk.task(f"digits?detect={name == 'one':d}&limit=100", name=name), NETWORK, trials=1)
        forecast_finetuning(zoo, "zero", "one", ForecastOptions(to="loss=0.6", plan=PlannedRun(steps=20), check=True))
        assert sorted((run.source, run.target) for run in recorded_runs(zoo)) == [
            ("", "one"), ("", "zero"), ("zero", "one"),
        ]  # fmt: skip
        zoo.remove("zero")
        assert [(run.source, run.target) for run in recorded_runs(zoo)] == [("", "one")]


@pytest.mark.parametrize(
    "change",
    [
        {"optimiser": "unheard of"}, {"signals": {}}, {"signals": 3}, {"batch_size": "many"}, {"source": None},
        {"signals": {"losses": ["a"] * 16, "constant_loss": 1.0, "complexity": None, "guess": 0.5, "num_samples": 9}},
        {"signals": {"losses": [1.0] * 16, "constant_loss": 1.0, "complexity": None, "guess": "x", "num_samples": 9}},
    ],
)  # fmt: skip
def test_a_damaged_record_stops_no_forecast(zoo: nk.Zoo, change: dict[str, object]) -> None:
    before = zoo.forecast("low", "high")
    [item, *_] = zoo.catalogue.artifacts("odd", kind=KIND)
    zoo.catalogue.attach("odd", [NewArtifact(KIND, 1, zoo.catalogue.blob(item), {**item.facts, **change})])
    assert zoo.forecast("low", "high").steps == pytest.approx(before.steps, rel=0.5)


@pytest.mark.parametrize("clocks", [[0.0, 1.0], [2.0, 1.0], [1.0, math.nan], [-1.0, 1.0]])
def test_a_curve_whose_times_make_no_sense_is_refused(clocks: list[float]) -> None:
    with pytest.raises(DataError, match="times that do not rise"):
        RunCurve(torch.tensor(clocks), torch.ones(2), torch.empty(0), torch.empty(0))
