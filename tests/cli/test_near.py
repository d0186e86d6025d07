"""`near`, `matrix` and `map` as a person or a script calls them."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from calling import Call

QUICK = ("--network", "mlp?hidden=16", "--trials", "2", "--epochs", "2")
TASKS = {"zero": "digits?detect=0&limit=150", "six": "digits?detect=6&limit=150", "all": "digits?limit=150"}


@pytest.fixture
def zoo(call: Call) -> None:
    for name, data in TASKS.items():
        assert call("add", name, data, *QUICK, "--json").code == 0


@pytest.mark.usefixtures("zoo")
def test_kin_matrix_and_map(call: Call, tmp_path: Path) -> None:
    near = call("near", "digits?classes=0,1,2,3&rest=other&limit=150", "--top", "2", "--json").json
    assert {"target", "measure", "kin", "seconds"} <= near.keys()
    assert len(near["kin"]) == 2
    assert {"name", "distance", "std"} <= near["kin"][0].keys()
    assert near["kin"][0]["distance"] <= near["kin"][1]["distance"]

    said = call("near", "zero", "--measure", "frechet")
    assert said.code == 0
    assert "zero is nearest to" in said.out
    assert "smaller is nearer" in said.out

    matrix = call("matrix", "zero", "six", "all", "--json", "--out", "m.json").json
    assert {"tasks", "mean", "std", "measure"} <= matrix.keys()
    assert [matrix["mean"][i][i] for i in range(3)] == [0, 0, 0]
    assert json.loads((tmp_path / "m.json").read_text())["mean"] == matrix["mean"]
    shown = call("matrix")
    assert "source ↓ target →" in shown.out
    assert "nearest to zero" in shown.out

    drawn = call("map", "--out", "map.html", "--json").json
    page = (tmp_path / "map.html").read_text()
    assert drawn["bytes"] == len(page.encode()) < 2_000_000
    assert all(name in page for name in TASKS)
    assert "<script src" not in page
    assert call("map", "--out", "map.svg").code == 0
    assert ElementTree.parse(tmp_path / "map.svg").getroot().tag.endswith("svg")


@pytest.mark.usefixtures("zoo")
def test_bad_questions_end_in_one_line(call: Call) -> None:
    cases = [
        (("near", "zeroo"), "neither a task of the zoo (zero, six, all) nor a data set"),
        (("near", "zero", "--measure", "frechett"), "unknown measure 'frechett'"),
        (("near", "zero", "--reading", "none", "--measure", "frechet"), "reading is one of auto, padded, model, refit"),
        (("matrix", "zero"), "expected two or more for a matrix"),
        (("matrix", "zero", "seven"), "no task named 'seven'"),
        (("map", "--out", "map.png"), "write to .html, .svg or .json"),
        (("--zoo", "nowhere", "near", "zero"), "nowhere"),
    ]
    for words, wanted in cases:
        assert wanted in call(*words).error
