"""`nearkin solve` as a person or a script calls it: the answer, its files, interruptions, bad input."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_diabetes

import nearkin as nk
from calling import Call
from nearkin.cli import console
from nearkin.cli.app import main
from nearkin.core.budget import Budget
from nearkin.solver.contenders import search_skeleton

DATA = "digits?classes=3,5,8&rest=drop&limit=150"
SHORT = ("--evaluations", "1", "--networks", "none", "--epochs", "2")
SOLVE = ("solve", "mine", DATA, *SHORT, "--only", "kin-search,finetune,lenet,logistic", "--json")
PROMISED = {
    "target", "kin", "genotype", "metric", "parameters", "seconds", "baselines", "transfer", "forecast", "report",
}  # fmt: skip
INTERRUPTED = "interrupted: finished work is saved; run the same command again to continue"


@pytest.fixture(scope="module")
def known_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo of one task that has a cell; to be copied."""
    path = tmp_path_factory.mktemp("known") / "nearkin-zoo"
    task = nk.task("digits?classes=0,1,2&rest=drop&limit=150", name="low")
    with nk.Zoo(path) as zoo:
        zoo.add(task, "mlp?hidden=16", trials=1, recipe=nk.Recipe.suited(task, epochs=2))
        zoo.search_cells("low", search_skeleton(task, channels=2), Budget(evaluations=1))
    return path


@pytest.fixture
def kin(known_zoo: Path, tmp_path: Path) -> None:
    """The same where the command looks for it."""
    shutil.copytree(known_zoo, tmp_path / "nearkin-zoo")


def timeless(facts: Any) -> Any:
    """Plain values without whatever tells of time."""
    if isinstance(facts, dict):
        left = {"seconds", "step_seconds", "seconds_interval", "stages", "answer", "known", "MiB", "command"}
        return {name: timeless(value) for name, value in facts.items() if name not in left}
    return [timeless(value) for value in facts] if isinstance(facts, list) else facts


@pytest.mark.slow
@pytest.mark.usefixtures("kin")
def test_a_task_is_solved_told_written_and_kept(call: Call, tmp_path: Path) -> None:
    said = call(*SOLVE)
    assert said.code == 0, said.err
    told = said.json
    assert told.keys() >= PROMISED
    assert told["target"] == "mine"
    assert [one["name"] for one in told["kin"]] == ["low"]
    assert {"kin-search", "finetune", "lenet", "logistic"} == {told["chosen"], *(b["name"] for b in told["baselines"])}
    assert {file.name for file in Path("mine-solution").iterdir()} == {
        "report.html", "solution.json", "solution.safetensors",
    }  # fmt: skip
    assert json.loads(Path("mine-solution/solution.json").read_text()) == told
    assert told["answer"].split(":")[0] in Path(told["report"]).read_text()

    task = nk.task(DATA)
    solution = nk.Solution.load("mine-solution/solution.safetensors")
    x, y = task.test.inputs.take(np.arange(len(task.test))), task.test.labels()
    assert float((solution.predict(x).labels == y).double().mean()) == pytest.approx(told["metric"])
    with nk.Zoo("nearkin-zoo") as zoo:
        assert zoo.names() == ["low", "mine"]
        assert zoo.cells("mine") is not None
        assert zoo.fisher("mine").num_samples == len(task.test)

    begun = time.process_time()
    again = call(*SOLVE)
    assert time.process_time() - begun < 4  # nothing is trained: the page is drawn
    assert again.code == 0, again.err
    assert timeless(again.json) == timeless(told)
    other = call(*SOLVE[:-1], "--out", "elsewhere")
    assert (other.code, Path("elsewhere/report.html").exists()) == (0, True)
    assert "elsewhere/report.html" in other.out
    assert "Nearest task: 'low' by frechet" in other.out


CHOSEN = "logistic regression: "  # the last contender's note; it wins
STAGES = {
    "checks": ("", r"checks of the data \d"),
    "kin": ("", r"mine, trial 1 of 1 \d"),
    "distances": ("", r"short-finetune distances \d"),
    "search": ("", r"evaluation \d"),
    "training": ("", r"search from the cells of 'low' \d"),
    "fine-tuning": ("", r"mlp\?hidden=16 of 'low', fine-tuned \d"),
    "hand-made network": ("", r"LeNet \d"),
    "simple model": ("", r"logistic regression \d"),
    "final": (CHOSEN, r"logistic regression \d"),
    "joining": (CHOSEN, r"Fisher diagonal \d"),
}
"""Where a run is interrupted: at the first line that matches, behind a line that begins so."""


class Watched:
    """stderr that sends its process a real SIGINT at a line."""

    def __init__(self, file: Path, after: str, line: str) -> None:
        self.file, self.after, self.line = file.open("a"), after, line

    def write(self, text: str) -> int:
        self.file.write(text)
        if text.startswith(self.after):
            self.after = ""
        if self.line and not self.after and re.match(self.line, text):
            self.line = ""
            os.kill(os.getpid(), signal.SIGINT)
        return len(text)

    def flush(self) -> None:
        self.file.flush()

    def isatty(self) -> bool:
        return False


def in_child(folder: Path, after: str, line: str) -> None:
    """What the command does, in a forked process that has everything imported and prints every progress."""
    os.chdir(folder)
    console.LINE_SECONDS = -1.0
    sys.argv = ["nearkin", *SOLVE]
    sys.stderr = Watched(folder / "err", after, line)  # type: ignore[assignment]
    sys.stdout = (folder / "out").open("w")
    try:
        main()
    finally:
        sys.stderr.flush()
        sys.stdout.flush()


def ran(folder: Path, after: str = "", line: str = "") -> tuple[int | None, list[str]]:
    """How the command ended in a child process, and its lines on stderr."""
    (folder / "err").write_text("")
    process = multiprocessing.get_context("fork").Process(target=in_child, args=(folder, after, line))
    process.start()
    process.join()
    return process.exitcode, (folder / "err").read_text().splitlines()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.slow
def test_interrupted_in_every_stage_it_goes_on_to_the_same_answer(known_zoo: Path, tmp_path: Path) -> None:
    nk.task(DATA)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        shutil.copytree(known_zoo, folder / "nearkin-zoo")
    assert ran(whole)[0] == 0
    for stage, (after, line) in STAGES.items():
        code, lines = ran(broken, after, line)
        assert code == 130, (stage, lines)
        assert lines[-1] == INTERRUPTED, stage
        assert sum(one.startswith("interrupted") for one in lines) == 1
        assert (broken / "out").read_text() == ""
    code, lines = ran(broken)
    assert code == 0, lines
    first, second = (json.loads((folder / "out").read_text()) for folder in (whole, broken))
    assert first["chosen"] == "logistic"
    assert timeless(first) == timeless(second)
    with nk.Zoo(broken / "nearkin-zoo") as zoo:
        assert zoo.names() == ["low", "mine"]


@pytest.mark.soak
@pytest.mark.slow
def test_the_installed_command_is_interrupted_from_outside(tmp_path: Path) -> None:
    command = [Path(sys.executable).parent / "nearkin", "solve", "mine", "digits", "--budget", "5", "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "of the time" in line:  # the first search begins
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == INTERRUPTED
    with nk.Zoo(tmp_path / "nearkin-zoo") as zoo:
        assert zoo.names() == []
        assert list((zoo.path / "stages").glob("*/checks-*.safetensors"))


@pytest.fixture
def data(tmp_path: Path) -> None:
    """Bad data in every form, where the command is called."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "one.npz", x_train=x, y_train=np.zeros(40, int))
    np.savez(tmp_path / "single.npz", x_train=x[:4], y_train=np.arange(4), x_test=x, y_test=np.arange(40) % 4)
    np.savez(tmp_path / "ten.npz", x_train=x[:10], y_train=np.arange(10) % 2)
    for place in ("photos", "texts"):
        for label in "ab":
            (tmp_path / place / label).mkdir(parents=True)
    for label in "ab":
        for number in range(3):
            Image.fromarray(x[number, : 8 - number]).save(tmp_path / "photos" / label / f"{number}.png")
            (tmp_path / "texts" / label / f"{number}.txt").write_text("words, not pixels")


BAD = [
    (("b", "npz:one.npz"), "needs two or more"),
    (("b", "npz:single.npz"), "one training sample of every class"),
    (("b", "folder:texts"), "has no column to learn from"),
    (("b", "npz:gone.npz"), "there is no file"),
    (("b", "digitts"), "did you mean digits?"),
    (("b", "digits?dense=edges"), "expects classification or regression"),
    (("", "digits"), "got an empty name"),
    (("b", "digits", "--budget", "0"), "expected a number above 0"),
    (("b", "digits", "--budget", "-3"), "is -3.0"),
    (("b", "digits", "--budget", "nan"), "is nan"),
    (("b", "digits", "--budget", "inf"), "a finite number, got inf"),
    (("b", "digits", "--method", "fused"), "unknown method 'fused'"),
    (("b", "digits", "--method", "darts"), "does not start from the cells of a kin"),
    (("b", "digits", "--measures", "frechet,kinn"), "unknown measure 'kinn'"),
    (("b", "digits", "--networks", "vgg16,vgg"), "unknown network 'vgg'"),
    (("b", "digits", "--only", "tree"), "unknown contender 'tree'"),
    (("b", "digits", "--out", "one.npz"), "one.npz is a file"),
]


@pytest.mark.usefixtures("data")
def test_bad_input_ends_in_one_line_and_leaves_no_trace(call: Call, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for words, line in BAD:
        said = call("solve", *words)
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1), (words, said)
        assert said.err.startswith("error: ")
        assert line in said.err, (words, said.err)
    usage = call("solve", "b", "digits", "--evaluations", "0")
    assert (usage.code, usage.out) == (2, "")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("kin", "data")
def test_what_does_not_fit_the_zoo_is_refused_before_any_work(call: Call) -> None:
    cases = [
        (("low", "digits"), "the zoo has a task 'low' with other data; choose another name"),
        (("b", "digits", "--space", "nosuch"), "unknown space 'nosuch'; choose nearest, full, or a task of the zoo"),
        (("b", "digits", "--space", "bare"), "'bare' has no cells"),
    ]
    bare = nk.task("digits?detect=0&limit=100", name="bare")
    with nk.Zoo("nearkin-zoo") as zoo:
        zoo.add(bare, "mlp?hidden=4", trials=1, recipe=nk.Recipe(steps=2, batch_size=8))
        names = zoo.names()
    for words, line in cases:
        said = call("solve", *words)
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1), (words, said)
        assert said.err.startswith("error: ")
        assert line in said.err, (words, said.err)
    with nk.Zoo("nearkin-zoo") as zoo:
        assert zoo.names() == names
        assert not (zoo.path / "stages").exists()
    assert not Path("b-solution").exists()


@pytest.mark.usefixtures("data")
def test_ten_samples_are_answered_with_cautions(call: Call) -> None:
    said = call("solve", "ten", "npz:ten.npz", *SHORT, "--only", "lenet,logistic,svm", "--json")
    assert said.code == 0, said.err
    assert "warning: 8 training and 2 test samples" in said.err
    assert "too few to compare cells" in said.err
    low, high = said.json["interval"]
    assert high - low > 0.5
    assert said.json["genotype"] is None


def test_one_second_is_answered_by_simple_models(call: Call) -> None:
    said = call("solve", "sec", "digits?limit=300", "--budget", "0.0167", "--epochs", "1", "--only", "logistic,svm")
    assert said.code == 0, said.err
    assert "1 s are too few for networks: only simple models are fitted" in said.err
    assert "there was no time" in said.out or "has no other task" in said.out
    told = json.loads(Path("sec-solution/solution.json").read_text())
    assert {told["standing"]["kind"], *(one["kind"] for one in told["baselines"])} == {"simple"}
    assert told["metric"] > 0.8


@pytest.mark.soak
@pytest.mark.slow
def test_ten_thousand_classes_end_in_bounded_time(call: Call, tmp_path: Path) -> None:
    rng, count = np.random.default_rng(0), 10_000
    labels = np.arange(2 * count) % count
    np.savez(
        tmp_path / "many.npz", x_train=rng.integers(0, 255, (2 * count, 4, 4), dtype=np.uint8), y_train=labels,
        x_test=rng.integers(0, 255, (200, 4, 4), dtype=np.uint8), y_test=labels[:200],
    )  # fmt: skip
    begun = time.process_time()
    said = call("solve", "many", "npz:many.npz", "--budget", "0.1", "--epochs", "1", "--json")
    assert said.code == 0, said.err
    assert time.process_time() - begun < 60
    assert "there are fewer than ten samples per class" in said.err
    assert "svm" in {one["name"] for one in said.json["baselines"] if one["refused"]}
    assert said.json["metric"] < 0.05
    assert Path("many-solution/report.html").stat().st_size < 2e6


@pytest.mark.slow
def test_values_of_a_csv_file_from_data_to_predictions(call: Call, tmp_path: Path) -> None:
    frame = load_diabetes(as_frame=True).frame
    frame.to_csv("diabetes.csv", index=False)
    frame.drop(columns="target").head(5).to_csv("new.csv", index=False)
    data = "csv:diabetes.csv?target=target"
    assert call("solve", "values", data, "--metric", "auc").error == (
        "error: metric auc is for classes, 'values' predicts values; choose one of r2, mae, rmse"
    )
    assert not (tmp_path / "nearkin-zoo").exists(), "a wrong metric changes nothing"
    facts = call("solve", "values", data, *SHORT, "--only", "logistic,mlp", "--metric", "mae", "--json").json
    assert facts["metric_name"] == "mae"
    assert 30 < facts["metric"] < facts["quality"]["guess"]
    assert facts["interval"][0] < facts["metric"] < facts["interval"][1]
    assert facts["answer"].startswith("values: mean absolute error ")
    assert "test mean absolute error" in Path(facts["report"]).read_text()
    rows = call("predict", "values-solution", "new.csv", "--json").json
    assert len(rows["rows"]) == 5
