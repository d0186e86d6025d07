"""Small jobs that try out a runner: they compute, fail, wait, or end their process."""

import os
import signal
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nearkin.core.errors import DataError
from nearkin.core.events import Checkpoint, Note, Progress, Work
from nearkin.core.state import State
from nearkin.run.jobs import JobPlace, job


@job
def square(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Square a number."""
    value = float(inputs["value"])
    yield Note(f"squared {value}")
    return State({"values": torch.full((3,), value**2)}, {"square": value**2, "seed": seed, "made": uuid.uuid4().hex})


@job
def fail(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Raise an error with given words, or an unexpected one."""
    yield Progress("fail", 0, 1)
    if inputs.get("divide"):
        return State({}, {"never": 1 / 0})
    raise DataError(inputs["words"])


@job
def wait(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Wait for some seconds, with a checkpoint every tenth of a second."""
    yield Note("waiting")
    limit = time.monotonic() + float(inputs["seconds"])
    while time.monotonic() < limit:
        time.sleep(0.1)
        yield Checkpoint(lambda: State({}))
    return State({}, {"seconds": inputs["seconds"]})


@job
def compute(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Use the processor for some seconds."""
    limit = time.process_time() + float(inputs["seconds"])
    while time.process_time() < limit:
        torch.rand(1000, generator=torch.Generator().manual_seed(seed)).sort()
        yield Checkpoint(lambda: State({}))
    return State({}, {"seconds": inputs["seconds"]})


@job
def die(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Kill the process."""
    yield Note("dying")
    os.kill(os.getpid(), signal.SIGKILL)
    return State({})


@job
def die_once(place: JobPlace, inputs: Mapping[str, Any], seed: int) -> Work[State]:
    """Kill the process at the first attempt, which leaves a file."""
    mark = Path(inputs["mark"])
    if not mark.exists():
        mark.touch()
        yield from die(place, inputs, seed)
    return State({}, {"attempts": 2})
