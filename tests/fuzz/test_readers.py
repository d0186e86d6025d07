"""Fuzzed data files: every reader gives a task or refuses in one line, whatever the bytes."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import nearkin as nk
from fuzz.data_files import MAKERS
from fuzz.mutation import FuzzCount, fuzz

MAX_BYTES = "64MiB"  # far above what valid inputs need; an input that claims more must be refused


def read(text: object) -> None:
    """Read a task and touch its first and last samples, which lazy readers decode only then."""
    task = nk.task(str(text))
    for part in (task.train, task.test):
        part.take(torch.tensor([0, len(part) - 1]))
        part.labels()
    task.fingerprint()


@pytest.mark.parametrize("name", MAKERS)
def test_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_inputs: Callable[[FuzzCount], FuzzCount]
) -> None:
    monkeypatch.setenv("NEARKIN_MAX_BYTES", MAX_BYTES)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()

    def make(rng: random.Random) -> str:
        return MAKERS[name](folder, rng)

    count = count_inputs(fuzz(name, make, read))
    assert 0 < count.accepted < count.inputs, "valid and invalid inputs are both tried"
    assert not list(tmp_path.rglob("executed")), "a pickle ran code"
