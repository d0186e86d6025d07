"""`adopt` and `rank` as a person or a script calls them."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from calling import Call
from nearkin.cli.console import Interrupted, Settings, run
from nearkin.core.errors import NearkinError
from nearkin.core.events import Checkpoint, Note, Work
from nearkin.core.state import State
from nearkin.nets.registry import build

SIZE = ("--preprocess", "size=8&channels=1&mean=0.3&std=0.3")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.save(build("lenet", (1, 8, 8), 4, seed=0).state_dict(), tmp_path / "w.pth")
    return tmp_path / "w.pth"


def test_adopt_list_show_rank(call: Call, weights: Path) -> None:
    licence = ("--licence", "mit", "--source", "a paper")
    adopted = call("adopt", "net", "lenet", "--weights", str(weights), *SIZE, *licence, "--json")
    assert adopted.code == 0
    assert adopted.json | {"seconds": 0} == {
        "name": "net", "network": "lenet", "parameters": adopted.json["parameters"], "features": 84, "licence": "mit",
        "source": "a paper", "task": None, "metric": None, "seconds": 0,
    }  # fmt: skip
    assert call("add", "low", "digits?classes=0,1,2,3&rest=drop&limit=200", "--trials", "1", "--epochs", "2").code == 0
    assert "mit" in call("list").out
    shown = call("show", "net").out
    assert "a paper" in shown
    assert "mean 0.3" in shown
    assert "0.0000" not in shown, "nothing was measured"
    assert "–" in next(line for line in shown.splitlines() if line.strip().startswith("weights"))
    ranked = call("rank", "digits?limit=200", "--json").json
    assert {one["name"] for one in ranked["candidates"]} == {"net", "low", "pixels"}
    said = call("rank", "digits?limit=200", "net", "pixels", "--for", "speed")
    assert said.code == 0
    assert "standard error" in said.out
    assert call("near", "digits?limit=200", "--measure", "logme", "--json").json["kin"][0]["name"] == "low"
    assert call("doctor").code == 0


def test_with_its_task(call: Call, weights: Path) -> None:
    data = "digits?classes=0,1,2,3&rest=drop&limit=200"
    adopted = call(
        "adopt", "net", "lenet", "--weights", str(weights), "--task", data, "--licence", "mit", "--json"
    ).json
    assert adopted["task"].startswith("digits?classes=0,1,2,3")
    assert 0 <= adopted["metric"] <= 1
    assert call("matrix", "net", "net").code == 1
    assert call("show", "net", "--json").json["adopted"]["licence"] == "mit"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("lenet", *SIZE), "without trained weights"),
        (("lenet", "--weights", "nothing.pth", *SIZE), "no file"),
        (("no.such:Thing", "--weights", "w.pth", *SIZE), "cannot import"),
        (("lenet", "--weights", "w.pth"), "input shape of lenet is not known"),
        (("lenet", "--weights", "w.pth", "--preprocess", "size=28&channels=1"), "does not fit LeNet"),
        (("lenet", "--weights", "w.pth", "--preprocess", "tokenizer=missing.json"), "no tokenizer"),
    ],
)
def test_bad_input(call: Call, weights: Path, arguments: tuple[str, ...], words: str) -> None:
    said = call("adopt", "net", *arguments)
    assert said.code == 1
    assert words in said.err
    assert said.err.strip().count("\n") <= 1


def test_rank_without_a_zoo(call: Call) -> None:
    assert "there is no zoo" in call("rank", "digits?limit=100").err
    assert call("rank", "digits?limit=100", "pixels", "lenet", "--json").code == 0


def test_what_was_not_measured_or_is_not_known_is_left_out(call: Call, weights: Path) -> None:
    assert call("adopt", "net", "lenet", "--weights", str(weights), *SIZE).out.count(" s\n") == 0, "it is in a note"
    (listed,) = call("list", "--json").json["tasks"]
    shown = call("show", "net", "--json").json
    for facts in (listed, shown):
        assert (facts["label"], facts["metric"], facts["epsilon"]) == ("lenet", None, None)
    assert shown["artifacts"][0]["metric"] is None
    assert "classes" not in call("show", "net").out
    words = ("--shots", "2", "--samples", "20", "--no-baselines")
    moved = call("transfer", "net", "digits?limit=200", *words, "--json")
    assert "are converted" not in moved.err, "the shapes are equal"
    assert (moved.json["label"], moved.json["origin"]["metric"]) == ("lenet", None)
    assert "expected a path" in call("push", "net", "").err


def test_fisher_without_a_zoo_is_said(call: Call) -> None:
    said = call("rank", "digits?limit=100", "pixels", "--fisher")
    assert said.code == 0
    assert "warning: no Fisher distances" in said.err


@pytest.mark.parametrize(
    "words",
    [("adopt", "net", "no.such:Thing", "--weights", "w.pth", *SIZE), ("pull", "nowhere")],
    ids=["adopt", "pull"],
)
def test_a_failed_command_leaves_no_zoo(call: Call, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert call(*words).code == 1
    assert not (tmp_path / "nearkin-zoo").exists()
    (tmp_path / "nearkin-zoo").mkdir()
    assert call(*words).code == 1
    assert (tmp_path / "nearkin-zoo").is_dir(), "it was there before"


def test_a_failed_command_leaves_what_others_stored(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(zoo: nk.Zoo, *_: object) -> None:
        (zoo.path / "work").mkdir(exist_ok=True)
        (zoo.path / "work" / "training").touch()
        raise NearkinError("no")

    monkeypatch.setattr("nearkin.zoo.pull_model.pull_model", fail)
    assert call("pull", "nowhere").code == 1
    assert (tmp_path / "nearkin-zoo" / "zoo.db").exists()


def test_models_with_names_that_are_refused_today_are_ranked(
    call: Call, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearkin.zoo.adopt.require_model_name", lambda name: None)
    for name in ("pixels", "zoo:net"):
        assert call("adopt", name, "lenet", "--weights", str(weights), *SIZE).code == 0
    ranked = call("rank", "digits?limit=200", "--json").json["candidates"]
    features = {one["name"]: one["num_features"] for one in ranked}
    assert features == {"pixels": 64, "pixels (2)": 84, "zoo:net": 84}


class Counted(nn.Module):
    """A network that interrupts its process in the forward pass of several samples with this number."""

    calls = 0
    interrupted = 0

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        Counted.calls += 1
        if Counted.calls == Counted.interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        return self.head(x.flatten(1))


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Interrupts the network in its call of that number."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.save(Counted().state_dict(), tmp_path / "counted.pth")

    def interrupt(number: int) -> None:
        Counted.calls, Counted.interrupted = 0, number

    return interrupt


STOPPED = "interrupted: finished work is saved; run the same command again to continue\n"


def test_one_interruption_stops_adopt_and_rank(call: Call, counted: Callable[[int], None], tmp_path: Path) -> None:
    network = f"{__name__}:Counted"
    adopt = ("--quiet", "adopt", "net", network, "--weights", "counted.pth", "--task", "digits?limit=100")
    for number in (1, 4):
        counted(number)
        said = call(*adopt)
        assert (said.code, said.err, Counted.calls) == (130, STOPPED, number)
        assert not (tmp_path / "nearkin-zoo").exists()
    counted(0)
    assert call(*adopt).code == 0
    adopting = Counted.calls
    rank = ("--quiet", "rank", "digits?limit=100", "net", network, "--sample", "20")
    assert call("rank", "digits?limit=100", "net", "--sample", "30").code == 0
    counted(Counted.calls - adopting + 1)
    said = call(*rank)
    assert (said.code, said.out, said.err) == (130, "", STOPPED)
    counted(0)
    ranked = {one["name"]: one["cached"] for one in call(*rank, "--json").json["candidates"]}
    assert ranked == {"net": True, "Counted": False}


def test_the_first_interruption_of_work_with_checkpoints_is_answered(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> Work[int]:
        os.kill(os.getpid(), signal.SIGINT)
        yield Note("still here")
        yield Checkpoint(lambda: State({}))
        return 1

    settings = Settings("nowhere", 0, "cpu", False, False)
    with pytest.raises(Interrupted):
        run(work(), settings)
    assert capfd.readouterr().err == "stopping at the next checkpoint; Ctrl-C again stops at once\nstill here\n"
