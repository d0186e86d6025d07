"""Stages: made once, read again, gone on with, and their seconds counted."""

from pathlib import Path

import pytest
import torch

from interrupting import Stop, stopping_at
from nearkin.core.clock import timed_by
from nearkin.core.events import Caution, Checkpoint, Event, Progress, Work, finish
from nearkin.core.state import State
from nearkin.run.checkpoints import FolderCheckpoints
from nearkin.run.stages import StageCache


class Counting:
    """Adds up to a number, one checkpoint a step; remembers how often it stepped."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.steps = 0

    def __call__(self, start: State | None) -> Work[State]:
        done = 0 if start is None else start.facts["done"]
        while done < self.total:
            done += 1
            self.steps += 1
            yield Progress("counting", done, self.total)
            yield Checkpoint(lambda done=done: State({"x": torch.tensor([float(done)])}, {"done": done}))
        return State({"x": torch.tensor([float(done)])}, {"done": done})


def cache_in(folder: Path) -> StageCache:
    return StageCache(FolderCheckpoints(folder))


def test_the_same_inputs_are_read_and_others_made(tmp_path: Path) -> None:
    work = Counting(3)
    for inputs in ({"a": 1}, {"a": 1}, {"a": 2}):
        assert finish(cache_in(tmp_path).stage("count", inputs, work)).facts == {"done": 3}
    assert work.steps == 6


def test_a_stage_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    work = Counting(5)
    with pytest.raises(Stop):
        finish(cache_in(tmp_path).stage("count", {}, work), stopping_at(4))  # the first checkpoint is before the stage
    cache = cache_in(tmp_path)
    done = finish(cache.stage("count", {}, work))
    assert (work.steps, done.facts, done.tensors["x"].item()) == (5, {"done": 5}, 5.0)
    assert cache.times[0].seconds > 0
    assert not list(tmp_path.glob("*.part"))


def test_a_broken_file_is_named_and_made_anew(tmp_path: Path) -> None:
    work = Counting(2)
    finish(cache_in(tmp_path).stage("count", {}, work))
    [file] = tmp_path.glob("*.safetensors")
    file.write_bytes(b"broken")
    heard: list[Event] = []
    assert finish(cache_in(tmp_path).stage("count", {}, work), heard.append).facts == {"done": 2}
    assert work.steps == 4
    assert any(isinstance(event, Caution) and str(file) in event.text for event in heard)


def test_seconds_of_one_name_are_added_and_known_only_if_all_are(tmp_path: Path) -> None:
    finish(cache_in(tmp_path).stage("count", {"part": 1}, Counting(1), key="one"))
    cache = cache_in(tmp_path)
    finish(cache.stage("count", {"part": 1}, Counting(1), key="one"))
    assert cache.times[0].known
    finish(cache.stage("count", {"part": 2}, Counting(1), key="two"))
    assert len(cache.times) == 1
    assert not cache.times[0].known
    assert cache.seconds == cache.times[0].seconds


def test_the_time_of_the_listener_is_not_the_stages(tmp_path: Path) -> None:
    now = 0.0

    def work(start: State | None) -> Work[State]:
        nonlocal now
        now += 1
        yield Progress("slow", 1, 2)
        now += 1
        return State({})

    def listen(event: Event) -> None:
        nonlocal now
        now += 100

    cache = cache_in(tmp_path)
    finish(timed_by(lambda: now, cache.stage("slow", {}, work)), listen)
    assert cache.seconds == 2.0
