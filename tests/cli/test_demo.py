"""The demonstration, made small: from nothing, and again from what it left."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import nearkin as nk
from calling import Call
from nearkin.cli import demo

NAMES = ["zero", "six", "even", "some", "high", "all"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same story with less data, time and patience."""
    little = [(name, data + ("&" if "?" in data else "?") + "limit=150", words) for name, data, words in demo.TASKS]
    name, data, words = demo.TARGET
    monkeypatch.setattr(demo, "TASKS", little)
    monkeypatch.setattr(demo, "TARGET", (name, f"{data}&limit=200", words))
    monkeypatch.setattr(demo, "ONLY", ("kin-search", "finetune", "svm"))
    for constant, value in (("TRIALS", 1), ("EPOCHS", 2), ("CELLS", 1), ("MINUTES", 0.17)):
        monkeypatch.setattr(demo, constant, value)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_zoo_is_built_and_a_seventh_task_solved(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    first = call("demo")
    assert first.code == 0, first.err
    assert [line.split()[0] for line in first.out.splitlines() if "correct (majority class" in line] == NAMES
    assert "A new task: 'round'" in first.out
    told = json.loads(Path("nearkin-demo/solution.json").read_text())
    assert told["target"] == "round"
    assert told["answer"] in first.out.replace("\n", " ")
    assert {row["name"] for row in told["kin"]} == set(NAMES)
    assert Path("nearkin-demo/report.html").read_text().startswith("<!DOCTYPE html>")
    with nk.Zoo("nearkin-demo/zoo") as zoo:
        assert zoo.names() == [*NAMES, "round"]
        assert all(zoo.cells(name) is not None for name in NAMES)

    again = call("demo")
    assert again.code == 0, again.err
    assert again.out.count("is already in the zoo") == 6
    assert told["answer"].split(", found in")[0] in again.out
    assert not Path("nearkin-zoo").exists()
    for said in (first, again):
        assert "\x1b" not in said.out + said.err
        assert "nearkin-demo/report.html" in said.out

    asked = call("demo", "--json")
    assert asked.json["tasks"] == [*NAMES, "round"]
    assert asked.json.keys() >= {"target", "kin", "metric", "baselines", "transfer", "report", "zoo", "demo_seconds"}


def test_restart_discards_the_demonstration_and_nothing_else(tmp_path: Path) -> None:
    task = nk.task("digits?detect=0&limit=60")
    with nk.Zoo(tmp_path / "zoo") as zoo:
        for name in ("zero", "mine"):
            zoo.add(replace(task, name=name), "mlp?hidden=4", trials=1, recipe=nk.Recipe(steps=1))
        folders = [zoo.path / "work", zoo.path / "stages"]
        for folder in folders:
            (folder / "some").mkdir(parents=True)
            (folder / "some.part").write_bytes(b"unfinished")
        demo._discard(zoo)
        assert zoo.names() == ["mine"]
        assert not [path for folder in folders for path in folder.glob("*")]
