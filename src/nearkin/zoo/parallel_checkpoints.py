"""Checkpoints of a training in several processes: the first one reads and writes, the others receive what it reads."""

from dataclasses import dataclass

from nearkin.core.errors import DataError
from nearkin.core.state import State
from nearkin.nets.data_parallel import DataParallel
from nearkin.run.checkpoints import DAMAGED, Checkpoints

_ABSENT, _STATE, _DAMAGED = b"-", b"s", b"d"


def for_all(checkpoints: Checkpoints, parallel: DataParallel) -> Checkpoints:
    """The checkpoints of the first process for all processes; for a process alone, its own."""
    return checkpoints if parallel.size == 1 else ParallelCheckpoints(checkpoints, parallel)


@dataclass(frozen=True)
class ParallelCheckpoints:
    """Storage of the first process; every process must read the same names in the same order."""

    checkpoints: Checkpoints
    parallel: DataParallel

    def read(self, name: str) -> State | None:
        """The state that the first process reads, or its error."""
        message, own, origin = b"", None, name
        if self.parallel.first:
            try:
                own = self.checkpoints.read(name)
                message = _ABSENT if own is None else _STATE + own.to_bytes()
            except DataError as broken:
                message = _DAMAGED + str(broken).encode()
        message = self.parallel.broadcast_bytes(message)
        if message.startswith(_DAMAGED):
            raise DataError(message[1:].decode())
        if self.parallel.first or message == _ABSENT:
            return own
        return State.from_bytes(message[1:], origin)

    def write(self, name: str, state: State) -> None:
        """Store a state, in the first process."""
        if self.parallel.first:
            self.checkpoints.write(name, state)

    def remove(self, name: str) -> None:
        """Remove a state, in the first process."""
        if self.parallel.first:
            self.checkpoints.remove(name)

    def put_aside(self, name: str) -> str:
        """Rename a damaged state, in the first process."""
        return self.checkpoints.put_aside(name) if self.parallel.first else f"{name}{DAMAGED}"

    def names(self) -> list[str]:
        """Names of all states of this process."""
        return self.checkpoints.names()

    def within(self, name: str) -> "ParallelCheckpoints":
        """A separate group of names."""
        return ParallelCheckpoints(self.checkpoints.within(name), self.parallel)

    def clear(self) -> None:
        """Remove all states, in the first process."""
        if self.parallel.first:
            self.checkpoints.clear()
