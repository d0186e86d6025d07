"""Work that yields events, and how it is stopped and saved."""

from pathlib import Path

import pytest
import torch

from nearkin.core.events import Checkpoint, Event, Progress, Work, finish, kept
from nearkin.core.state import State


def counting(limit: int, start: int = 0) -> Work[int]:
    """Adds up 1 … limit, with a checkpoint after each."""
    total = sum(range(start + 1))
    for number in range(start + 1, limit + 1):
        total += number
        yield Progress("count", number, limit)
        now = number
        yield Checkpoint(lambda now=now: State({"now": torch.tensor([now])}))  # type: ignore[misc]
    return total


def test_works_compose() -> None:
    def twice() -> Work[int]:
        first = yield from counting(3)
        second = yield from counting(4)
        return first + second

    assert finish(twice()) == 6 + 10


@pytest.mark.parametrize("stop_at", range(1, 6))
def test_stopped_at_any_checkpoint_it_goes_on_there(tmp_path: Path, stop_at: int) -> None:
    file = tmp_path / "kept"
    seen = 0

    def listen(event: Event) -> None:
        nonlocal seen
        if isinstance(event, Checkpoint):
            seen += 1
            if seen == stop_at:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(kept(counting(6), file), listen)
    now = int(State.load(file).tensors["now"])
    assert now == stop_at
    assert finish(kept(counting(6, start=now), file)) == 21
    assert not file.exists(), "a finished work leaves no checkpoint"


def test_checkpoints_are_taken_now_and_then(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    work = kept(counting(3), file, every=0.0)
    next(work)
    next(work)
    assert int(State.load(file).tensors["now"]) == 1
    work.close()


def test_an_error_inside_the_work_comes_out() -> None:
    def failing() -> Work[None]:
        yield Progress("x", 1)
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        finish(failing())
