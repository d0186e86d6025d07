"""Resuming: real checkpoints with flipped bits are never used, their work is done again and ends in the same bits."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from interrupting import counting
from laws.checkpoints import CheckpointsLaws
from nearkin.core.errors import DataError, TrainingError
from nearkin.core.events import Caution, Checkpoint, Event, Note, Work, finish
from nearkin.core.state import State
from nearkin.core.url_objects import objects_at
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.solved import fit_state
from nearkin.nets.training_loop import Fit, fit
from nearkin.run.checkpoints import (
    DAMAGED,
    Checkpoints,
    FolderCheckpoints,
    MemoryCheckpoints,
    ObjectCheckpoints,
    read_stored,
    resume,
    save_checkpoints,
)
from nearkin.tasks.task import Task
from s3_server import BUCKET, Faulty, s3_server

FLIPS = 60
DAMAGES = 150
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def begin() -> Callable[[State | None], Work[Fit]]:
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    task = Task.from_arrays("toy", x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    recipe = Recipe(steps=8, batch_size=8, precision="float32", averaging=0.5)

    def work(start: State | None) -> Work[Fit]:
        return fit.work(build("mlp?hidden=4", (3,), 2, 0), task, recipe, resume=start)

    return work


def checkpoint(begin: Callable[[State | None], Work[Fit]]) -> State:
    return next(event.capture() for event in begin(None) if isinstance(event, Checkpoint))


def test_a_flipped_bit_of_a_checkpoint_is_never_trained_with(
    begin: Callable[[State | None], Work[Fit]], tmp_path: Path
) -> None:
    file, whole = tmp_path / "training-0.safetensors", fit_state(finish(begin(None))).to_bytes()
    checkpoint(begin).save(file)
    data, rng = file.read_bytes(), random.Random(0)
    for turn in range(FLIPS):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data)) if turn else 9] ^= 1 << rng.randrange(8)
        file.write_bytes(flipped)
        heard: list[Event] = []
        done = finish(resume(FolderCheckpoints(tmp_path), file.name, begin), heard.append)
        cautions = [event.text for event in heard if isinstance(event, Caution)]
        assert len(cautions) == 1
        assert cautions[0].startswith(str(file))
        assert cautions[0].endswith(
            "renamed to training-0.safetensors.damaged, and this part of the work is done again"
        )
        assert fit_state(done).to_bytes() == whole
        aside = tmp_path / f"{file.name}{DAMAGED}"
        assert aside.read_bytes() == flipped, "it is put aside as it was"
        aside.unlink()


def test_a_whole_checkpoint_is_used(begin: Callable[[State | None], Work[Fit]], tmp_path: Path) -> None:
    file = tmp_path / "training-0.safetensors"
    checkpoint(begin).save(file)
    heard: list[Event] = []
    done = finish(resume(FolderCheckpoints(tmp_path), file.name, begin), heard.append)
    assert any(isinstance(event, Note) and "resuming at step" in event.text for event in heard)
    assert fit_state(done).to_bytes() == fit_state(finish(begin(None))).to_bytes()
    assert not list(tmp_path.iterdir())


def test_one_of_another_run_is_an_error_and_stays(begin: Callable[[State | None], Work[Fit]], tmp_path: Path) -> None:
    file, state = tmp_path / "training-0.safetensors", checkpoint(begin)
    State(state.tensors, {**state.facts, "seed": 7}).save(file)
    with pytest.raises(TrainingError, match="made with another seed"):
        finish(resume(FolderCheckpoints(tmp_path), file.name, begin))
    assert State.load(file).facts["seed"] == 7


def test_one_whose_tensors_do_not_fit_starts_from_the_beginning(
    begin: Callable[[State | None], Work[Fit]], tmp_path: Path
) -> None:
    file, state = tmp_path / "training-0.safetensors", checkpoint(begin)
    for name in state.tensors:
        State({**state.tensors, name: torch.zeros(5, 7)}, state.facts).save(file)
        done = finish(resume(FolderCheckpoints(tmp_path), file.name, begin))
        assert fit_state(done).to_bytes() == fit_state(finish(begin(None))).to_bytes(), name


def test_stored_values_that_cannot_be_read_are_put_aside(tmp_path: Path) -> None:
    file = tmp_path / "found.safetensors"
    State({}, {"a": 1}).save(file)
    assert finish(read_stored(FolderCheckpoints(tmp_path), file.name, lambda state: state.facts["a"])) == 1
    assert finish(read_stored(FolderCheckpoints(tmp_path), file.name, lambda state: state.facts["b"])) is None
    assert [path.name for path in tmp_path.iterdir()] == ["found.safetensors.damaged"]
    assert finish(read_stored(FolderCheckpoints(tmp_path), file.name, lambda state: state)) is None

    def refuse(state: State) -> None:
        raise DataError("no")

    State({}, {}).save(file)
    assert finish(read_stored(FolderCheckpoints(tmp_path), file.name, refuse)) is None


@pytest.mark.parametrize("stop_at", range(1, 6))
def test_stopped_at_any_checkpoint_it_goes_on_there(tmp_path: Path, stop_at: int) -> None:
    where, seen = FolderCheckpoints(tmp_path), 0

    def listen(event: Event) -> None:
        nonlocal seen
        if isinstance(event, Checkpoint):
            seen += 1
            if seen == stop_at:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(save_checkpoints(counting(6), where, "kept"), listen)
    state = where.read("kept")
    assert state is not None
    now = int(state.tensors["now"])
    assert now == stop_at
    assert finish(save_checkpoints(counting(6, start=now), where, "kept")) == 21
    assert where.names() == [], "a finished work leaves no checkpoint"


def test_checkpoints_are_taken_now_and_then(tmp_path: Path) -> None:
    where = FolderCheckpoints(tmp_path)
    work = save_checkpoints(counting(3), where, "kept", every=0.0)
    next(work)
    next(work)
    state = where.read("kept")
    assert state is not None
    assert int(state.tensors["now"]) == 1
    work.close()


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_no_altered_or_half_written_state_is_returned(protocol: str, tmp_path: Path) -> None:
    place = f"file://{tmp_path}" if protocol == "file" else f"memory://damages/{next(NUMBERS)}"
    where, rng = ObjectCheckpoints(objects_at(place)), random.Random(0)
    where.write("state", State({"w": torch.arange(50)}, {"step": 7}))
    data, detected = where.objects.read("state"), 0
    assert data is not None
    for turn in range(DAMAGES):
        harmed = bytearray(data)
        harmed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        where.objects.write("state", bytes(harmed) if turn % 2 else data[: rng.randrange(len(data))])
        with pytest.raises(DataError, match="state is not an intact safetensors file"):
            where.read("state")
        detected += 1
    assert detected == DAMAGES
    assert finish(read_stored(where, "state", lambda state: state)) is None
    assert where.names() == ["state.damaged"]


class TestFolder(CheckpointsLaws):
    """Files of a folder."""

    @pytest.fixture
    def where(self, tmp_path: Path) -> Checkpoints:
        return FolderCheckpoints(tmp_path / "not" / "there")


class TestMemory(CheckpointsLaws):
    """A dictionary."""

    @pytest.fixture
    def where(self) -> Checkpoints:
        return MemoryCheckpoints()


class TestUrlOfMemory(CheckpointsLaws):
    """Objects of fsspec in memory."""

    @pytest.fixture
    def where(self) -> Checkpoints:
        return ObjectCheckpoints(objects_at(f"memory://checkpoints/{next(NUMBERS)}"))


@pytest.fixture(scope="module")
def server() -> Iterator[Faulty]:
    with s3_server() as application:
        yield application


class TestS3(CheckpointsLaws):
    """Objects of a server."""

    @pytest.fixture
    def where(self, server: Faulty) -> Checkpoints:
        return ObjectCheckpoints(objects_at(f"s3://{BUCKET}/checkpoints/{next(NUMBERS)}"))
