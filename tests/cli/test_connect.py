"""`connect` as a person or a script calls it."""

from pathlib import Path

import pytest

from calling import Call

QUICK = ("--network", "mlp?hidden=8", "--trials", "2", "--steps", "30")
SHORT = ("--samples", "40", "--images", "5", "--iterations", "5")


@pytest.fixture
def zoo(call: Call) -> None:
    assert call("-q", "add", "low", "digits?classes=0,1,2&rest=drop&limit=120", *QUICK).code == 0


@pytest.mark.usefixtures("zoo")
def test_two_trials_as_table_json_and_files(call: Call, tmp_path: Path) -> None:
    said = call("connect", "low", *SHORT, "--out", "made/path.html")
    assert said.code == 0, said.err
    for word in ("“low”, trial 0 and “low”, trial 1", "minimised path", "25 %", "diffusion constant D", "path.html"):
        assert word in said.out
    assert "path 5/5" in said.err
    assert "<svg" in (tmp_path / "made" / "path.html").read_text("utf-8")
    found = call("connect", "low", "--trials", "0,1", *SHORT, "--out", "path.svg", "--json").json
    assert {"barrier", "straight_barrier", "lowered", "images", "noise", "kramers", "out"} <= found.keys()
    assert [row["share"] for row in found["images"]] == [0, 0.25, 0.5, 0.75, 1]
    assert f"{found['straight_barrier']:.4f}" in said.out
    assert (tmp_path / "path.svg").read_text("utf-8").startswith("<svg")


@pytest.mark.usefixtures("zoo")
def test_bad_requests_end_in_one_line(call: Call) -> None:
    for words, message in (
        (("low", "low", "--trials", "1,1"), "'low', trial 1, is given as start and as end"),
        (("lov",), "no task named 'lov'"),
        (("low", "--trials", "0"), "got --trials 0, expected two numbers such as 0,1"),
        (("low", "--trials", "0,7"), "'low' has trials 0 to 1, got 7"),
        (("low", "--out", "path.pdf"), "expected a file name in .html or .svg"),
        (("low", "--data", "test"), "data must be one of start, end, both"),
    ):
        said = call("connect", *words)
        assert said.code == 1
        assert message in said.err
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1
