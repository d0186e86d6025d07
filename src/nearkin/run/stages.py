"""Cache of the stages of a run: each is done once for its inputs and resumes where it was interrupted.

The result of a stage is stored under a name made of all that decides it. Asked for again with the same inputs it is
read; with others it is computed, and stored beside the old one.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, cast

from nearkin.core.errors import DataError, require
from nearkin.core.events import Checkpoint, Work
from nearkin.core.state import State
from nearkin.run.checkpoints import SUFFIX, Checkpoints, mark, resumed, stored

T = TypeVar("T")

VERSION = 1
"""Of what stages keep; another one makes everything anew."""


@dataclass(frozen=True)
class Spent:
    """What one stage took.

    Attributes:
        stage: its name.
        seconds: of work, whenever that was done.
        known: whether it was taken from an earlier run.
    """

    stage: str
    seconds: float
    known: bool = False


class StageCache:
    """Results of the stages of one run, and the seconds that each of them took.

    Args:
        checkpoints: where results and unfinished stages are stored.
        data: a digest of the data that all of them rest on.

    >>> from nearkin.core.events import Note, finish
    >>> from nearkin.run.checkpoints import MemoryCheckpoints
    >>> memory = MemoryCheckpoints()
    >>> def work(start):
    ...     yield Note("working")
    ...     return State({}, {"sum": 3})
    >>> for _ in range(2):
    ...     stages = StageCache(memory)
    ...     done = finish(stages.stage("adding", {"a": 1, "b": 2}, work))
    ...     print(done.facts["sum"], stages.spent[0].known)
    3 False
    3 True
    """

    def __init__(self, checkpoints: Checkpoints, data: str = "") -> None:
        self.checkpoints = checkpoints
        self.data = data
        self._spent: dict[str, Spent] = {}

    @property
    def spent(self) -> tuple[Spent, ...]:
        """What each stage took, in their order; those of one name together."""
        return tuple(self._spent.values())

    @property
    def seconds(self) -> float:
        """Of all stages so far."""
        return sum(stage.seconds for stage in self.spent)

    def _took(self, name: str, seconds: float, known: bool = False) -> None:
        before = self._spent.get(name, Spent(name, 0.0, True))
        self._spent[name] = Spent(name, before.seconds + seconds, before.known and known)

    def stage(
        self, name: str, inputs: Mapping[str, Any], work: Callable[[State | None], Work[State]], key: str | None = None
    ) -> Work[State]:
        """The outcome of a stage: read if it is known, else made from where it stopped.

        Args:
            name: what people see.
            inputs: plain JSON values; all that decides the outcome.
            work: makes it, from what its last checkpoint captured or from the beginning.
            key: what the files are called; the name where nothing is said.
        """
        yield Checkpoint(_nothing)  # between stages a run can always be stopped
        facts = {"version": VERSION, "stage": key or name, "bench": self.data, **inputs}
        label = f"{(key or name).replace(' ', '-')}-{mark(facts)}"
        done = yield from stored(self.checkpoints, f"{label}{SUFFIX}", _unwrapped)
        if done is not None:
            state, seconds = done
            self._took(name, seconds, known=True)
            return state
        clock = _Clock(0.0)

        def begin(start: State | None) -> Work[State]:
            inner, clock.seconds = (None, 0.0) if start is None else _unwrapped(start)
            return clock.timing(work(inner))

        state = yield from resumed(self.checkpoints, f"{label}.part", begin)
        kept = {"state": dict(state.facts), "spent": clock.seconds}
        self.checkpoints.write(f"{label}{SUFFIX}", State(state.tensors, kept))
        self._took(name, clock.seconds)
        return state

    def timed(self, name: str, work: Work[T]) -> Work[T]:
        """Work that keeps its own traces, with its seconds told."""
        clock = _Clock(0.0)
        done = yield from clock.timing(work)
        self._took(name, clock.seconds)
        return done


class _Clock:
    """Counts the seconds that work itself takes, not those of whoever listens, over all its interruptions."""

    def __init__(self, before: float) -> None:
        self.seconds = before

    def timing(self, work: Work[T]) -> Work[T]:
        try:
            while True:
                begun = time.perf_counter()
                try:
                    event = next(work)
                except StopIteration as end:
                    return cast(T, end.value)
                finally:
                    self.seconds += time.perf_counter() - begun
                yield self._marked(event) if isinstance(event, Checkpoint) else event
        finally:
            work.close()

    def _marked(self, moment: Checkpoint) -> Checkpoint:
        def capture() -> State:
            state = moment.capture()
            return State(state.tensors, {"state": dict(state.facts), "spent": self.seconds})

        return Checkpoint(capture)


class _StageFacts(TypedDict):
    """What the file of a stage says: the facts of its state, and the seconds of work behind it."""

    state: dict[str, Any]
    spent: float


def _unwrapped(stage: State) -> tuple[State, float]:
    """A stage's own state and its seconds."""
    facts = stage.read(_StageFacts)
    require(0 <= facts["spent"] < math.inf, f"{stage.origin}: spent is {facts['spent']}; remove the file", DataError)
    return State(stage.tensors, facts["state"], stage.origin), facts["spent"]


def _nothing() -> State:
    return State({})
