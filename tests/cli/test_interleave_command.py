"""`interleave` as a person or a script calls it: its JSON, its plan, its report, bad input, kills and interruptions."""

import itertools
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

import nearkin as nk
from calling import Call
from multitask_examples import without_times
from nearkin.cli.app import main
from nearkin.core.budget import Budget
from nearkin.multitask.evaluation import EvaluationOptions
from nearkin.multitask.named_options import gradient_fields
from nearkin.zoo.interleaving import Interleaving

LOW, HIGH = "digits?classes=0,1,2&rest=drop&limit=48", "digits?classes=5,6&rest=drop&limit=48"
QUICK = ("--network", "mlp?hidden=8", "--trials", "1", "--epochs", "1", "--json")
SPACE = "general?nodes=3&operations=zero+identity+conv3"
SETTINGS = {
    "channels": 4, "num_cells": 2, "batch_size": 24, "num_sets": 8, "num_augmentations": 3, "every": 1, "watched": 2,
    "entropy": 0.0,
}  # fmt: skip
TINY = (
    *("--space", SPACE, "--search-epochs", "2", "--channels", "4", "--cells", "2", "--epochs", "1"),
    *(word for name, value in SETTINGS.items() for word in ("--option", f"{name}={value}")),
)
KEYS = {"genotype", "metrics", "rounds", "active_fraction"}


@pytest.fixture
def zoo(call: Call) -> None:
    for name, data in (("low", LOW), ("high", HIGH)):
        assert call("add", name, data, *QUICK).code == 0


@pytest.mark.usefixtures("zoo")
def test_names_and_data_strings_share_an_architecture(call: Call, tmp_path: Path) -> None:
    said = call("interleave", "low", HIGH, *TINY, "--rounds", "2", "--report", "shared.html", "--json")
    assert said.code == 0, said.err
    facts = said.json
    assert facts.keys() >= KEYS
    assert facts["order"] == ["low", HIGH]
    assert facts["metrics"].keys() == {"low", HIGH}
    assert facts["num_rounds"] == 2
    assert len(facts["rounds"]) == 2 * 2 * 2
    assert 0 <= facts["active_fraction"] <= 1
    assert all(done["genotype"] == facts["genotype"] for done in facts["tasks"].values())
    page = (tmp_path / facts["report"]).read_text("utf-8")
    assert facts["genotype"] in page
    assert "--search-epochs 2" in page
    again = call("interleave", "low", HIGH, *TINY, "--rounds", "2", "--json").json
    assert without_times({**again, "report": "shared.html"}) == without_times(facts)
    other = call("--seed", "1", "interleave", "low", HIGH, *TINY, "--rounds", "2", "--json").json
    assert other["rounds"] != facts["rounds"]


@pytest.mark.usefixtures("zoo")
def test_a_person_reads_the_same_figures(call: Call) -> None:
    words = ("interleave", "low", "high", *TINY, "--rounds", "1", "--order", "near")
    facts = call(*words, "--json").json
    assert facts["order"][0] == "low"
    assert len(facts["distances"]) == 2
    said = call(*words)
    assert said.code == 0, said.err
    assert facts["genotype"] in said.out
    for value in facts["metrics"].values():
        assert f"{value:.4f}" in said.out
    assert f"{100 * facts['active_fraction']:.0f} % of the pairs" in said.out.replace("\n", " ")


@pytest.mark.thinned(2)
@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("kind", ["l2-weights", "none"])
def test_the_kind_of_transfer_is_chosen(kind: str, call: Call) -> None:
    said = call("interleave", "low", "high", *TINY, "--rounds", "1", "--transfer", kind, "--json")
    assert said.code == 0, said.err
    assert (said.json["active_fraction"] is None) is (kind != "mmd")  # the others have no pairs


@pytest.mark.usefixtures("zoo")
def test_a_dry_run_only_plans(call: Call, tmp_path: Path) -> None:
    said = call("interleave", "low", "high", *TINY, "--rounds", "3", "--dry-run", "--json")
    assert said.code == 0, said.err
    assert said.json.keys() == {"order", "stages", "passes", "weights", "mebibytes", "seconds"}
    assert (said.json["order"], said.json["stages"], said.json["passes"]) == (["low", "high"], 3 * 2 + 1, 2)
    assert not list((tmp_path / "nearkin-zoo" / "work").glob("*"))
    shown = call("interleave", "low", "high", *TINY, "--rounds", "3", "--dry-run").out
    assert "order: low → high" in shown
    assert "2 passes of 7 stages" in shown


@pytest.mark.usefixtures("zoo")
def test_bad_input_ends_in_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(60)))
    cases = [
        (("low",), "got 1 task, expected two or more that share an architecture; for one task use nearkin search"),
        (("low", "low"), "every task may be given once, got low, low"),
        (("low", "nowhere"), "nowhere"),
        (("low", "high", "--rounds", "0"), "the number of rounds must be 1 or more, got 0"),
        (("low", "high", "--method", "firm"), "unknown method 'firm'; choose one of interleave, "),
        (
            ("low", "high", "--transfer", "l3"),
            "transfer must be one of mmd, l2-weights, l2-embedding, similarity, none",
        ),
        (("low", "high", "--method", "soft", "--transfer", "mmd"), "soft has no option transfer"),
        (("low", "high", "--order", "far"), "order must be given or near, got 'far'"),
        (("low", HIGH, "--order", "near"), "order near needs tasks of the zoo"),
        (("low", "high", "--option", "strength=-1"), "strength of the transfer must be 0 or more, got -1.0"),
        (("low", "high", "--option", "lambda=1"), "interleave has no option lambda"),
        (("low", "high", "--option", "every=often"), "option every of interleave is 'often', expected a whole number"),
        (("low", "high", "--option", "num_sets=60"), "has 48 training samples, expected 60 or more"),
        (("low", "high", "--option", "validation=1"), "validation"),
        (("low", "high", "--space", "dart"), "did you mean darts?"),
        (("low", "high", "--space", "recurrent"), "recurrent"),
        (("low", "csv:table.csv?target=y"), "tasks that share an encoder need images"),
        (("low", "high", "--report", "page.txt"), "expected a file name that ends in .html"),
    ]
    short = ("--search-epochs", "1", "--minutes", "0.001", "--channels", "4", "--cells", "1", "--epochs", "1")
    for words, line in cases:
        said = call("interleave", *words, *short)
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1), (words, said)
        assert said.err.startswith("error: ")
        assert line in said.err, (words, said.err)
    assert call("interleave").code == 2
    assert call("interleave", "low", "high", "--cells", "0").code == 2
    assert not list((tmp_path / "nearkin-zoo" / "work").glob("*"))


def test_help_lists_methods_and_options(call: Call) -> None:
    out = call("interleave", "--help").out
    for word in ("fused-columns", "num_augmentations", "weighting", "quantile", gradient_fields()[0].name):
        assert word in out


def in_child(folder: Path, words: tuple[str, ...]) -> None:
    """A command in a forked process, which has imported everything, with its output in a file."""
    os.chdir(folder)
    sys.stdout = Path("out.json").open("w", buffering=1)  # noqa: SIM115
    sys.argv = ["nearkin", *words]
    main()


def started(folder: Path, words: tuple[str, ...]) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=in_child, args=(folder, words))
    process.start()
    return process


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_killed_and_interrupted_it_ends_in_the_same_json(tmp_path: Path) -> None:
    words = ("--quiet", "interleave", LOW, HIGH, *TINY, "--search-epochs", "4", "--epochs", "6", "--json")
    short = Interleaving(space=SPACE, budget=Budget(steps=1), options=SETTINGS,
                         evaluation=EvaluationOptions(channels=4, num_cells=2, epochs=1))  # fmt: skip
    nk.Zoo(tmp_path / "warm").interleave([nk.task(LOW), nk.task(HIGH)], how=short)  # imports before the forks
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
    begin = time.monotonic()
    process = started(whole, words)
    process.join()
    assert process.exitcode == 0
    pause, continued = 0.4 * (time.monotonic() - begin), 0
    for attempt in itertools.count():
        number = (signal.SIGKILL, signal.SIGINT)[attempt % 2]
        process = started(stopped, words)
        process.join(pause)
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, number)
        process.join()
        assert process.exitcode in (0, 130, -signal.SIGKILL)
        continued += bool(list((stopped / "nearkin-zoo" / "work").glob("*.safetensors")))
        if process.exitcode == 0 and continued:
            break
        pause *= 0.7 if process.exitcode == 0 else 1.5
    results = [json.loads((folder / "out.json").read_text()) for folder in (whole, stopped)]
    assert without_times(results[0]) == without_times(results[1])
    assert not list((stopped / "nearkin-zoo" / "work").glob("*.safetensors"))
