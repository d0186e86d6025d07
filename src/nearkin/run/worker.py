"""Worker process: does the jobs that arrive as JSON lines on its standard input.

    python -m nearkin.run.worker FOLDER

FOLDER is where results are stored. Every job is answered by JSON lines on standard output: its events, and its end.
What a job itself prints goes to standard error. After SIGTERM the worker ends at the next checkpoint of its job; SIGINT
is left to the process that started it.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Checkpoint, Event, Note, Progress, finish
from nearkin.core.memory import out_of_memory
from nearkin.run.checkpoints import FolderCheckpoints
from nearkin.run.jobs import JobSpec

EVENT_SECONDS = 0.2  # between two messages about progress
DONE, FAILED = "done", "failed"


class _Stopped(BaseException):
    """The worker was asked to stop."""


class _Answers:
    """Writes messages, and stops the job at a checkpoint when that was asked for."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.stopping, self.last = stream, False, 0.0

    def send(self, message: Mapping[str, Any]) -> None:
        self.stream.write(json.dumps(message) + "\n")
        self.stream.flush()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Checkpoint):
            if self.stopping:
                raise _Stopped
        elif isinstance(event, Progress):
            if time.monotonic() - self.last > EVENT_SECONDS:
                self.last = time.monotonic()
                self.send({"progress": event.stage, "done": event.done, "total": event.total})
        else:
            self.send({"note" if isinstance(event, Note) else "caution": event.text})


def heard(message: Mapping[str, Any]) -> Event | None:
    """The event of a message; None if it is another message."""
    if "progress" in message:
        return Progress(message["progress"], message["done"], message["total"])
    if "note" in message:
        return Note(message["note"])
    return Caution(message["caution"]) if "caution" in message else None


def do_jobs(results: FolderCheckpoints, lines: TextIO, answers: _Answers) -> None:
    """Do the jobs of all lines."""
    for line in lines:
        try:
            spec = JobSpec(**json.loads(line))
            finish(spec.work(results), answers)
            answers.send({"end": DONE})
        except NearkinError as error:
            answers.send({"end": FAILED, "error": str(error)})
        except Exception as error:
            words = "out of memory" if out_of_memory(error) else f"unexpected {type(error).__name__}: {error}"
            answers.send({"end": FAILED, "error": words})


def main() -> None:
    """Serve until the standard input ends."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stream:
        os.dup2(2, 1)  # what a job prints must not be taken for an answer
        answers = _Answers(stream)

        def stop(number: int, frame: FrameType | None) -> None:
            answers.stopping = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            do_jobs(FolderCheckpoints(Path(sys.argv[1])), sys.stdin, answers)
        except (_Stopped, BrokenPipeError):
            sys.exit(1)


if __name__ == "__main__":
    main()
