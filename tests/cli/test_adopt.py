"""`adopt` and `rank` as a person or a script calls them."""

from pathlib import Path

import pytest
import torch

from calling import Call
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
