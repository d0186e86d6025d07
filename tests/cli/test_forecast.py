"""`forecast` as a person or a script calls it."""

from pathlib import Path

import pytest

from calling import Call

LOW, HIGH = "digits?classes=0,1,2,3,4&rest=drop&limit=300", "digits?classes=5,6,7,8,9&rest=drop&limit=300"
QUICK = ("--network", "mlp?hidden=24", "--trials", "1", "--epochs", "30")


@pytest.fixture
def zoo(call: Call) -> None:
    for name, data in (("low", LOW), ("high", HIGH)):
        assert call("add", name, data, *QUICK, "--json").code == 0


@pytest.mark.usefixtures("zoo")
def test_steps_with_an_interval_a_check_and_a_report(call: Call, tmp_path: Path) -> None:
    found = call("forecast", "low", "high", "--json").json
    promised = {"complexity", "distance", "steps", "interval", "reachable", "barrier"}
    assert promised <= found.keys()
    assert found["interval"][0] < found["steps"] < found["interval"][1]
    assert (found["own_runs"], found["probability"], found["reachable"]) == (1, None, True)

    page = tmp_path / "forecast.html"
    checked = call("forecast", "low", "high", "--check", "--out", str(page), "--json").json
    assert checked["interval"] == found["interval"]
    assert checked["measured"]["steps_done"] >= checked["steps"]
    text = page.read_text("utf-8")
    for words in ("Fine-tuning “low” for “high”", "When is the goal reached?", "What happened", "Recorded run"):
        assert words in text
    assert "<script src" not in text
    again = call("forecast", "low", "high", "--json").json
    assert again["own_runs"] == 1  # the run on the target itself is not used for the target

    said = call("forecast", "low", "digits?parity&limit=200", "--steps", "1")
    assert said.code == 0
    assert "not reachable within your budget of 1 steps" in said.out
    assert "2 recorded runs of this network" not in said.out
    assert "3 recorded runs of this network" in said.out  # trainings of low and high, and the checked run


@pytest.mark.usefixtures("zoo")
def test_bad_input_is_one_line(call: Call) -> None:
    for options, words in (
        (("nobody", "high"), "nobody"),
        (("low", "high", "--to", "loss=50"), "constant answer"),
        (("low", "high", "--to", "f1=0.5"), "accuracy"),
        (("low", "high", "--optimiser", "adagrad"), "adam, adam-l2, sgd"),
        (("low", "high", "--learning-rate", "0"), "learning_rate"),
        (("low", "high", "--out", "page.pdf"), ".html"),
        (("low", "high", "--trial", "5"), "trials"),
        (("low", "high", "--budget", "-1"), "seconds"),
        (("low", "digits?shape=flat"), "digits"),
    ):
        said = call("forecast", *options)
        assert said.code in (1, 2), options
        assert words in said.err, options
        assert "Traceback" not in said.err
