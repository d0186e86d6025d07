"""Cache of the stages of a run: each is done once for its inputs, and resumed after an interruption.

The result of a stage is stored under a digest of all its inputs. A stage with the same inputs is read; one with other
inputs is computed and stored under another name.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, cast

from nearkin.core.clock import now
from nearkin.core.errors import DataError, require
from nearkin.core.events import Checkpoint, Work
from nearkin.core.state import State, change_checkpoints
from nearkin.run.checkpoints import SUFFIX, Checkpoints, facts_digest, read_stored, resume

T = TypeVar("T")

VERSION = 1
"""Version of the stored results; results of another version are not used."""


@dataclass(frozen=True)
class StageTime:
    """Time that a stage took.

    Attributes:
        stage: name of the stage.
        seconds: working time, in this and earlier runs.
        known: whether the result was read from an earlier run.
    """

    stage: str
    seconds: float
    known: bool = False


class StageCache:
    """Results of the stages of one run, and the time of each.

    Args:
        checkpoints: storage of results and unfinished stages.
        data: digest of the data that all stages use.

    >>> from nearkin.core.events import Note, finish
    >>> from nearkin.run.checkpoints import MemoryCheckpoints
    >>> memory = MemoryCheckpoints()
    >>> def work(start):
    ...     yield Note("working")
    ...     return State({}, {"sum": 3})
    >>> for _ in range(2):
    ...     stages = StageCache(memory)
    ...     done = finish(stages.stage("adding", {"a": 1, "b": 2}, work))
    ...     print(done.facts["sum"], stages.times[0].known)
    3 False
    3 True
    """

    def __init__(self, checkpoints: Checkpoints, data: str = "") -> None:
        self.checkpoints = checkpoints
        self.data = data
        self._times: dict[str, StageTime] = {}
        self._begun, self._earlier = now(), 0.0

    @property
    def times(self) -> tuple[StageTime, ...]:
        """Times of the stages, in their order; stages of the same name are added up."""
        return tuple(self._times.values())

    @property
    def seconds(self) -> float:
        """Total time of all stages so far."""
        return sum(stage.seconds for stage in self.times)

    @property
    def elapsed(self) -> float:
        """Time since the start of the run, with the stored time of stages of earlier runs."""
        return now() - self._begun + self._earlier

    def _add_time(self, name: str, seconds: float, known: bool = False) -> None:
        before = self._times.get(name, StageTime(name, 0.0, True))
        self._times[name] = StageTime(name, before.seconds + seconds, before.known and known)

    def stage(
        self, name: str, inputs: Mapping[str, Any], work: Callable[[State | None], Work[State]], key: str | None = None
    ) -> Work[State]:
        """Read the result of a stage if it is stored; else compute it, from the last checkpoint if there is one.

        Args:
            name: name of the stage, as shown to the user.
            inputs: everything that determines the result, as plain JSON values.
            work: computes the result, from the state of a checkpoint or from the beginning.
            key: start of the file names (default: `name`).
        """
        yield Checkpoint(lambda: State({}))  # a run can always be stopped between stages
        facts = {"version": VERSION, "stage": key or name, "bench": self.data, **inputs}
        label = f"{(key or name).replace(' ', '-')}-{facts_digest(facts)}"
        stored = yield from read_stored(self.checkpoints, f"{label}{SUFFIX}", _without_time)
        if stored is not None:
            state, seconds = stored
            self._add_time(name, seconds, known=True)
            self._earlier += seconds
            return state
        clock = _Clock()

        def begin(start: State | None) -> Work[State]:
            inner, clock.seconds = (None, 0.0) if start is None else _without_time(start)
            self._earlier += clock.seconds
            return clock.run(change_checkpoints(work(inner), clock.add_time))

        state = yield from resume(self.checkpoints, f"{label}.part", begin)
        self.checkpoints.write(f"{label}{SUFFIX}", clock.add_time(state))
        self._add_time(name, clock.seconds)
        return state

    def timed(self, name: str, work: Work[T]) -> Work[T]:
        """Add the time of work that stores its own checkpoints."""
        clock = _Clock()
        result = yield from clock.run(work)
        self._add_time(name, clock.seconds)
        return result


class _Clock:
    """Measures the time of work without the time of its listener; checkpoints store it for later runs."""

    seconds = 0.0

    def run(self, work: Work[T]) -> Work[T]:
        try:
            while True:
                start = now()
                try:
                    event = next(work)
                except StopIteration as end:
                    return cast(T, end.value)
                finally:
                    self.seconds += now() - start
                yield event
        finally:
            work.close()

    def add_time(self, state: State) -> State:
        return State(state.tensors, {"state": dict(state.facts), "spent": self.seconds})


class _StageFacts(TypedDict):
    """Facts in the file of a stage: those of its state, and the seconds of work."""

    state: dict[str, Any]
    spent: float


def _without_time(stage: State) -> tuple[State, float]:
    """The inverse of `_Clock.add_time`."""
    facts = stage.read(_StageFacts)
    require(
        0 <= facts["spent"] < math.inf,
        f"{stage.origin}: spent is {facts['spent']}, expected seconds from 0; remove it",
        DataError,
    )
    return State(stage.tensors, facts["state"], stage.origin), facts["spent"]
