"""Commands in processes that can be killed, forked from a server that has imported everything.

Kills so meet the work and not the imports. Checkpoints are saved at nearly every chance, so that kills meet them too.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

import nearkin as nk
from calling import Said
from nearkin.cli.app import main
from nearkin.core.state import State
from nearkin.run import checkpoints
from nearkin.store.integrity import examine

SAVE_SECONDS = 0.05
ZOO = "nearkin-zoo"
LEFT_OUT = (
    "answer", "command", "created", "known", "MiB", "path", "report", "seconds", "seconds_interval", "stages",
    "step_seconds",
)  # fmt: skip
"""Keys of an answer that tell of time, of memory or of a place."""

FORK = multiprocessing.get_context("forkserver")


@cache
def start_server() -> None:
    """Start the server that imports what commands need, and wait until it has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        FORK.set_forkserver_preload(["faults.imports"])
        process = FORK.Process(target=int)  # the server starts with it
        process.start()
        process.join()


def _run(folder: str, words: tuple[str, ...], variables: Mapping[str, str]) -> None:
    """Run a command in a process, with its output in files."""
    os.chdir(folder)
    os.environ.update(variables)
    torch.set_num_threads(1)
    checkpoints.save_checkpoints.__defaults__ = (SAVE_SECONDS,)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["nearkin", *words]
    main()


def started(folder: Path, words: tuple[str, ...], **variables: str) -> BaseProcess:
    """A command that runs in a folder."""
    variables.setdefault("NEARKIN_DATA", str(folder / "no-data"))
    start_server()
    process = FORK.Process(target=_run, args=(str(folder), words, variables))
    process.start()
    return process


def ended(folder: Path, process: BaseProcess) -> Said:
    """How a command ended, and what it said."""
    process.join()
    assert process.exitcode is not None
    return Said(process.exitcode, (folder / "out").read_text(), (folder / "err").read_text())


def killed(process: BaseProcess, seconds: float) -> bool:
    """Kill a command after some seconds; returns whether it had not ended by itself."""
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def lasting(facts: Any) -> Any:
    """Plain values without those of `LEFT_OUT`."""
    if isinstance(facts, dict):
        return {name: lasting(value) for name, value in facts.items() if name not in LEFT_OUT}
    return [lasting(value) for value in facts] if isinstance(facts, list) else facts


def stored(zoo: Path | str) -> dict[str, list[tuple[str, int, str]]]:
    """Kind, trial and digest of each artifact of each task of a sound zoo; times in artifacts do not count."""
    with nk.Catalogue(zoo, create=False) as catalogue:
        health = examine(catalogue)
        assert health.sound, health
        return {
            name: [(item.kind, item.trial, _digest(catalogue.blob(item))) for item in catalogue.artifacts(name)]
            for name in catalogue.names()
        }


def _digest(blob: bytes) -> str:
    state = State.from_bytes(blob)
    timeless = State(state.tensors, json.loads(json.dumps(lasting(state.facts))))
    return hashlib.sha256(timeless.to_bytes()).hexdigest()


def answer(said: Said) -> Any:
    """The answer of a command that ended well, as far as it lasts."""
    assert said.code == 0, said
    return lasting(json.loads(said.out))
