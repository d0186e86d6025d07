"""Commands that torchrun started in several processes: one training, one output, one line for an error."""

import os
import signal
import sys
from typing import TYPE_CHECKING, TextIO

from nearkin.core.errors import require
from nearkin.core.lazy import Lazy

if TYPE_CHECKING:
    from nearkin.nets import data_parallel
else:
    data_parallel = Lazy("nearkin.nets.data_parallel")

COMMANDS = ("train", "add")
"""The commands that do one training in several processes."""

_joined: "list[data_parallel.DataParallel]" = []
_error_streams: list[TextIO] = []


def in_several() -> bool:
    """Whether torchrun started several processes."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def is_first() -> bool:
    """Whether this process is alone or the first of several."""
    return not in_several() or os.environ.get("RANK", "0") == "0"


def silence_others() -> None:
    """Print nothing unless this process is the first; `error_stream` is not affected."""
    if in_several():
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch's own lines about lost connections
    if not is_first():
        _error_streams[:] = [sys.stderr]
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 until the process ends


def refuse_parallel(command: str | None) -> None:
    """Refuse several processes for a command that does no training."""
    require(
        not in_several() or command in COMMANDS,
        f"got WORLD_SIZE {os.environ.get('WORLD_SIZE')}, but nearkin {command} runs in one process; start it without "
        f"torchrun, or unset WORLD_SIZE",
    )


def join() -> "data_parallel.DataParallel":
    """Join the processes that torchrun started; a process alone if there are no others."""
    _joined[:] = [data_parallel.DataParallel.join()]
    return _joined[0]


def leave() -> None:
    """End the process group."""
    for parallel in _joined:
        parallel.leave()
    _joined.clear()


def error_stream() -> TextIO | None:
    """Where to print an error; None if another process does it."""
    if not in_several():
        return sys.stderr
    for number in (signal.SIGINT, signal.SIGTERM):  # torchrun stops the others when one ends
        signal.signal(number, signal.SIG_IGN)
    reports = all(parallel.reports() for parallel in _joined) if _joined else is_first()
    _joined.clear()  # the group is broken, so `leave` would wait for the others
    return (_error_streams or [sys.stderr])[0] if reports else None


def prefix() -> str:
    """Name of this process, unless it is the first."""
    return "" if is_first() else f"process {int(os.environ['RANK']) + 1} of {os.environ['WORLD_SIZE']}: "
