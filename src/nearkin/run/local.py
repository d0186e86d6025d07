"""Workers as processes on this machine.

Every worker is a new Python process that is named by a module (`python -m`), so nothing is pickled, and the script that
started it is not imported again. It ends when the process that started it ends.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from nearkin.run.worker import GRACE_SECONDS, STUCK

LAST_CHARACTERS = 300  # of the errors of a worker that died


@dataclass(frozen=True)
class _Process:
    process: "subprocess.Popen[bytes]"
    errors: IO[str]

    def reason(self) -> str:
        """Why it ended, from its exit status and its last words."""
        code = self.process.wait()
        with self.errors as file:
            file.seek(0)
            said = " ".join(file.read()[-LAST_CHARACTERS:].split())
        hint = {-9: " (killed; perhaps for lack of memory)", STUCK: " (it did not stop when it was asked to)"}
        return f"exit status {code}{hint.get(code, '')}{f': {said}' if said else ''}"


class LocalStaff:
    """Starts workers as processes on this machine, each with one torch thread unless `$OMP_NUM_THREADS` says otherwise.

    Args:
        module: that is run with the name and the group of a worker; it ends when its standard input does.
        environment: gives variables for a worker that starts, in addition to those of this process.
    """

    def __init__(self, module: str, environment: Callable[[], Mapping[str, str]] = dict) -> None:
        self.module, self.environment = module, environment
        self.processes: dict[str, _Process] = {}

    def start(self, worker: str, group: str) -> None:
        """Start a process."""
        errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, read at its end
        command: Sequence[str] = [sys.executable, "-m", self.module, worker, group]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **self.environment()}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, env=environment)
        self.processes[worker] = _Process(process, errors)

    def ended(self) -> list[tuple[str, str]]:
        """Workers whose process has ended, and why."""
        names = [name for name, worker in self.processes.items() if worker.process.poll() is not None]
        return [(name, self._removed(name)) for name in names]

    def stop(self) -> None:
        """Ask all processes to end at a checkpoint, and kill those that do not."""
        for worker in self.processes.values():
            assert worker.process.stdin is not None
            with contextlib.suppress(OSError):
                worker.process.stdin.close()
        limit = time.monotonic() + GRACE_SECONDS
        for name, worker in list(self.processes.items()):
            try:
                worker.process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
            self._removed(name)

    def _removed(self, name: str) -> str:
        worker = self.processes.pop(name)
        if worker.process.stdin is not None:
            with contextlib.suppress(OSError):
                worker.process.stdin.close()
        return worker.reason()
