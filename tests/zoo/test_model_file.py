"""Training into a file: interrupted, the same call continues; another one does not, and says so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nearkin as nk
from interrupting import Stop
from nearkin.core.events import Caution, Checkpoint, Event, Note, finish
from nearkin.zoo.model_file import loaded, train

RECIPE = nk.Recipe(epochs=4, batch_size=20)


@pytest.fixture(scope="module")
def task() -> nk.Task:
    return nk.task("digits?limit=100")


def trained(
    task: nk.Task, out: Path, recipe: nk.Recipe = RECIPE, stop: int = 0, **changes: Any
) -> tuple[nk.Solved, list[str]]:
    """The trained network and the notes; stopped at a checkpoint where `stop` is its number."""
    notes: list[str] = []
    seen = 0

    def listen(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, Checkpoint)
        if stop and seen == stop:
            raise Stop
        if isinstance(event, Note | Caution):
            notes.append(event.text)

    options = {"network": "mlp?hidden=8", "seed": 0, **changes}
    return finish(train.work(task, recipe=recipe, device=torch.device("cpu"), out=out, **options), listen), notes


def same(one: nk.Solved, other: nk.Solved) -> bool:
    return all(torch.equal(value, other.trials[0].params[name]) for name, value in one.trials[0].params.items())


def test_the_same_call_continues_to_the_same_bits(task: nk.Task, tmp_path: Path) -> None:
    out, part = tmp_path / "m.safetensors", tmp_path / "m.safetensors.part"
    whole, _ = trained(task, tmp_path / "whole.safetensors")
    with pytest.raises(Stop):
        trained(task, out, stop=2)
    assert part.exists()
    assert not out.exists()
    found, notes = trained(task, out)
    assert notes == ["resuming at step 10 of 20"]
    assert same(found, whole)
    assert same(loaded(out), whole)
    assert not part.exists()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"recipe": replace(RECIPE, learning_rate=0.01)}, "recipe"),
        ({"seed": 1}, "seed"),
        ({"network": "mlp?hidden=9"}, "network"),
    ],
)
def test_another_call_starts_anew_and_says_so(
    task: nk.Task, tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    out = tmp_path / "m.safetensors"
    with pytest.raises(Stop):
        trained(task, out, stop=2)
    found, notes = trained(task, out, **changes)
    assert notes == [
        f"{out}.part belongs to a training with other {word}; this one starts from the beginning and replaces it"
    ]
    assert same(found, trained(task, tmp_path / "alone.safetensors", **changes)[0])


def test_restart_and_a_broken_checkpoint_start_anew(task: nk.Task, tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    for break_it, said in ((False, []), (True, ["this part of the work is done again"])):
        with pytest.raises(Stop):
            trained(task, out, stop=2)
        if break_it:
            Path(f"{out}.part").write_bytes(b"\0" * 99)
        _, notes = trained(task, out, restart=not break_it)
        assert len(notes) == len(said)
        assert all(words in note for words, note in zip(said, notes, strict=True))


def test_a_finished_model_stays_until_the_new_one_is_complete(task: nk.Task, tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    first, _ = trained(task, out)
    with pytest.raises(Stop):
        trained(task, out, seed=1, stop=2)
    assert same(loaded(out), first)
    second, _ = trained(task, out, seed=1)
    assert same(loaded(out), second)
    assert not same(first, second)
