"""`transfer` as a person or a script calls it."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from calling import Call
from nearkin.core.state import State

LOW, HIGH = "digits?classes=0,1,2,3,4&rest=drop", "digits?classes=5,6,7,8,9&rest=drop"
QUICK = ("--network", "mlp?hidden=24", "--trials", "1", "--epochs", "4")


@pytest.fixture
def zoo(call: Call) -> None:
    assert call("add", "low", LOW, *QUICK, "--json").code == 0


@pytest.mark.usefixtures("zoo")
def test_closed_form_and_baselines_side_by_side(call: Call) -> None:
    found = call("transfer", "low", HIGH, "--shots", "10", "--samples", "150", "--steps", "30", "--json").json
    assert {"metric", "nll", "ece", "seconds", "baselines"} <= found.keys()
    assert (found["num_train"], found["num_test"], found["metric_name"]) == (50, 150, "accuracy")
    assert found["metric"] > 0.6 > found["guess"]
    assert len(found["baselines"]) == 4
    assert all({"name", "metric", "nll", "ece", "seconds"} <= one.keys() for one in found["baselines"])
    again = call("transfer", "low", HIGH, "--shots", "10", "--samples", "150", "--no-baselines", "--json").json
    assert (again["metric"], again["nll"], again["baselines"]) == (found["metric"], found["nll"], [])
    other = call("--seed", "1", "transfer", "low", HIGH, "--shots", "10", "--no-baselines", "--json").json
    assert other["nll"] != found["nll"]

    said = call("transfer", "low", HIGH, "--shots", "5", "--steps", "5", "--samples", "50", "--method", "laplace")
    assert said.code == 0
    for word in ("low → ", "25 labels", "accuracy", "nll", "ece", "closed form", "linear head", "all weights"):
        assert word in said.out
    assert "Report: low-to-digits-classes-5-6-7-8-9-rest-drop.html" in said.out


@pytest.mark.usefixtures("zoo")
def test_the_report_says_what_the_answer_says(call: Call, tmp_path: Path) -> None:
    page = tmp_path / "made" / "report.html"
    quick = ("--shots", "5", "--samples", "60", "--steps", "5")
    found = call("transfer", "low", HIGH, *quick, "--out", str(page), "--json").json
    assert found["report"] == str(page)
    text = page.read_text("utf-8")
    for one in (found, *found["baselines"]):
        for figure in ("metric", "nll", "ece"):
            assert f">{one[figure]:.3f}<".replace("-", "−") in text
    assert found["made"]["given"] == HIGH
    assert (found["origin"]["metric_name"], found["origin"]["trials"]) == ("accuracy", 1)
    by_default = call("transfer", "low", HIGH, *quick, "--no-baselines", "--json").json
    assert by_default["report"] == "low-to-digits-classes-5-6-7-8-9-rest-drop.html"
    assert (by_default["metric"], by_default["nll"]) == (found["metric"], found["nll"])


@pytest.mark.usefixtures("zoo")
def test_images_of_another_size_are_brought_to_the_source(call: Call) -> None:
    data = f"{HIGH}&size=10"
    found = call("transfer", "low", data, "--shots", "5", "--samples", "50", "--no-baselines", "--json")
    assert found.code == 0, found.err
    assert "are converted to (1, 8, 8)" in found.err
    assert found.json["num_train"] == 25


@pytest.mark.usefixtures("zoo")
def test_bad_requests_end_in_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "table.csv").write_text("a,b,kind\n" + "1.5,2.5,x\n2.5,0.5,y\n" * 10)
    cases = [
        (("transfer", "lov", HIGH), "no task named 'lov'"),
        (("transfer", "low", "hihg"), "neither a task of the zoo (low) nor a data set"),
        (("transfer", "low", HIGH, "--shots", "9999"), "training samples, got shots=9999"),
        (("transfer", "low", HIGH, "--method", "exact"), "dirichlet or laplace"),
        (("transfer", "low", HIGH, "--weights", "haed", "--shots", "2"), "did you mean head"),
        (("transfer", "low", HIGH, "--trial", "4"), "has trials 0 to 0"),
        (("transfer", "low", HIGH, "--probabilities", "median"), "mean or sampled"),
        (("transfer", "low", HIGH, "--out", "page.pdf"), "got --out page.pdf, expected a file name that ends in .html"),
        (("transfer", "low", HIGH, "--out", "folder.html"), "folder.html is a folder"),
        (("transfer", "low", HIGH, "--out", "table.csv/page.html"), "table.csv"),
        (("transfer", "low", "csv:table.csv?target=kind"), "only images can be converted to another shape"),
        (("--zoo", "nowhere", "transfer", "low", HIGH), "nowhere"),
    ]
    for words, wanted in cases:
        assert wanted in call(*words).error


@pytest.mark.soak
@pytest.mark.usefixtures("zoo")
def test_interrupted_it_continues_and_restart_begins_again(call: Call, tmp_path: Path) -> None:
    words = ["transfer", "low", HIGH, "--shots", "5", "--samples", "100", "--steps", "800", "--out", "page.html"]
    command = [sys.executable, "-m", "nearkin", *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("linear head:") for line in process.stderr)  # training has begun
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert said.strip().splitlines()[-1].startswith("interrupted: finished work is saved; run the same command again")
    assert not (tmp_path / "page.html").exists()
    work = tmp_path / "nearkin-zoo" / "work"
    kept = {file.stem.rsplit("-", 1)[0]: State.load(file).facts["state"] for file in work.rglob("*.safetensors")}
    assert {"transfer-closed-form", "transfer-linear-head"} <= set(kept)
    assert "transfer-all-weights" not in kept
    copied = tmp_path / "again"
    shutil.copytree(tmp_path / "nearkin-zoo", copied)

    done = call(*words, "--json").json
    assert done["seconds"] == kept["transfer-closed-form"]["seconds"], "read, not computed again"
    assert done["baselines"][0]["seconds"] == kept["transfer-linear-head"]["seconds"]
    assert (tmp_path / "page.html").exists()
    assert not list(work.rglob("*.safetensors")), "a finished transfer leaves nothing behind"

    anew = call("--zoo", str(copied), *words, "--restart", "--json").json
    assert anew["seconds"] != done["seconds"]
    results = [[(one["name"], one["metric"], one["nll"]) for one in run["baselines"]] for run in (done, anew)]
    assert results[0] == results[1], "it ends in the same figures"


@pytest.mark.usefixtures("call")
def test_the_majority_baseline_is_that_of_all_training_labels(call: Call) -> None:
    call("add", "low", LOW, *QUICK)
    found = call("transfer", "low", "digits?detect=0", "--shots", "5", "--no-baselines", "--json").json
    assert found["guess"] == pytest.approx(0.9, abs=0.01), "five shots of each class tell no majority"
    assert found["best_constant"] == found["guess"]
