"""`push` and `pull`."""

import json
from pathlib import Path

import numpy as np
from torch import nn

import nearkin as nk
from calling import Call


def test_push_and_pull(call: Call, tmp_path: Path) -> None:
    data = "digits?detect=6&limit=100"
    assert call("-q", "add", "six", data, "--network", "lenet?width=0.25", "--trials", "2", "--epochs", "2").code == 0
    said = call("push", "six", "folder", "--trial", "1", "--licence", "mit", "--json")
    assert said.json["licence"] == "mit"
    assert sorted(said.json["files"]) == sorted(path.name for path in Path("folder").iterdir())
    assert said.json["bytes"] == sum(path.stat().st_size for path in Path("folder").iterdir())
    pulled = call("--zoo", "other", "pull", "folder", "--json").json
    assert (pulled["name"], pulled["licence"], pulled["task"], pulled["metric"]) == ("six", "mit", None, None)
    measured = call("--zoo", "other", "pull", "folder", "again", "--task", data, "--json").json
    assert measured["task"] == data
    with nk.Zoo("nearkin-zoo") as zoo:
        scores = zoo.solved("six").trials[1].scores
    assert measured["metric"] == scores.metric
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((3, 1, 8, 8), dtype=np.float32))
    answers = [call("--zoo", "other", "predict", name, "x.npy", "--json").json for name in ("six", "again")]
    assert answers[0]["predictions"] == answers[1]["predictions"]
    assert answers[0]["probabilities"] == answers[1]["probabilities"]
    assert "without a task" in call("--zoo", "third", "pull", "folder").out


def test_errors_are_one_line(call: Call, tmp_path: Path) -> None:
    with nk.Zoo("nearkin-zoo") as zoo:
        zoo.adopt("net", nn.Sequential(nn.Linear(3, 2)), preprocess="shape=3", licence="mit")
    assert call("push", "net", "folder").code == 0
    assert "no task named 'ned'; did you mean 'net'?" in call("push", "ned", "new").error
    assert "is not empty" in call("push", "net", "folder").error
    assert call("push", "net", "folder", "--overwrite").code == 0
    assert "there is no folder" in call("pull", "nothing").error
    assert "already has a task named 'net'" in call("pull", "folder").error
    manifest = Path("folder/nearkin.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "licence": "none"}))
    assert "its checksum does not match" in call("pull", "folder", "other").error
