"""`complexity` as a person or a script calls it, and the measure `complexity` in `near` and `matrix`."""

import json
from pathlib import Path

import pytest

from calling import Call

QUICK = ("--network", "mlp?hidden=8", "--trials", "1", "--epochs", "4", "--json")
SMALL = ("--samples", "60", "--steps", "20", "--refit", "3", "--curvature", "diagonal")
KEYS = {
    "complexity", "loss", "information_nats", "information_bits", "curve", "beta", "critical_beta", "curvature",
    "reason", "error", "num_samples", "num_weights", "network", "seconds",
}  # fmt: skip


@pytest.fixture
def zoo(call: Call) -> None:
    for digit in (0, 6):
        assert call("add", f"is{digit}", f"digits?detect={digit}&limit=120&even", *QUICK).code == 0


@pytest.mark.usefixtures("zoo")
def test_a_task_of_the_zoo_and_a_data_string(call: Call, tmp_path: Path) -> None:
    found = call("complexity", "is0", *SMALL, "--json").json
    assert found.keys() >= KEYS
    assert found["complexity"] == pytest.approx(found["loss"] + found["beta"] * found["information_nats"], rel=1e-9)
    assert found["network"] == "mlp?hidden=8"
    assert [set(point) for point in found["curve"]] == [{"beta", "information", "loss"}] * 9
    assert found == {**call("complexity", "is0", *SMALL, "--json").json, "seconds": found["seconds"]}
    expensive = call("complexity", "is0", *SMALL, "--beta", "50", "--json").json
    assert expensive["information_nats"] < found["information_nats"]
    assert len(expensive["curve"]) == 10

    near = call("complexity", "is0", "--given", "is0", *SMALL, "--json").json
    assert near["information_nats"] < found["information_nats"], "the prior is the task's own network"
    new = call("complexity", "digits?corrupt=0.4&limit=120", "--network", "mlp?hidden=8", *SMALL, "--json").json
    assert new["complexity"] > found["complexity"]

    for name in ("page.html", "plot.svg", "values.json"):
        said = call("complexity", "is0", *SMALL, "--out", str(tmp_path / name))
        assert "nats" in said.out
        assert "critical β" in said.out
    assert "critical β" in (tmp_path / "plot.svg").read_text()
    assert "<h1>Complexity of “is0”</h1>" in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "values.json").read_text()).keys() >= KEYS


@pytest.mark.usefixtures("zoo")
def test_the_static_distance_in_near_and_matrix(call: Call) -> None:
    options = ("--measure", "complexity", "--samples", "60", "--option", "steps=20")
    near = call("near", "digits?detect=0&limit=80", *options, "--json").json
    assert [kin["name"] for kin in near["kin"]] == ["is0", "is6"]
    matrix = call("matrix", *options, "--json").json
    assert matrix["mean"][0][0] < matrix["mean"][1][0]
    assert matrix["mean"][1][1] < matrix["mean"][0][1]
    assert call("matrix", *options, "--json").json["mean"] == matrix["mean"], "stored values are read"
    merged = call("matrix", *options, "--option", "union=labels", "--json").json
    assert merged["mean"] != matrix["mean"]


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("is0", "--beta", "0"), "beta must be > 0 and finite, got 0.0"),
        (("is0", "--curvature", "hessian"), "curvature 'hessian' is unknown; choose one of auto, full"),
        (("is0", "--given", "is9"), "no task named 'is9'"),
        (("digits", "--given", "is0"), "'is0' has number of outputs 2, 'digits' has 10; complexity given another"),
        (("is0", "--network", "lenet"), "'is0' is stored with the network mlp?hidden=8, got network=lenet"),
        (("is0", "--out", "page.pdf"), "got --out page.pdf, a file of type '.pdf'; write to .html, .svg or .json"),
        (("nothing",), "'nothing' is neither a task of the zoo (is0, is6) nor a data set"),
    ],
)
def test_wrong_input_is_one_line(call: Call, arguments: tuple[str, ...], message: str) -> None:
    assert message in call("complexity", *arguments).error
