"""Commands under a read-only zoo, on terminals without Unicode, stopped by signals, and without memory."""

import ctypes
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import nearkin as nk
from calling import Call, Said
from nearkin.cli.app import main

FORK = multiprocessing.get_context("fork")
ADD = ("--network", "mlp", "--trials", "1", "--epochs", "2")
COMMAND = Path(sys.executable).parent / "nearkin"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A zoo of two tasks in a folder that everyone may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with nk.Zoo(Path(folder, "zoo")) as made:
            for name in ("zero", "six"):
                data = f"digits?detect={0 if name == 'zero' else 6}&limit=100"
                made.add(nk.task(data, name=name), "mlp", trials=1, recipe=nk.Recipe(epochs=2))
        yield Path(folder, "zoo")


@pytest.fixture
def read_only(zoo: Path) -> Iterator[Path]:
    """A copy of it that nobody may write to."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copy = Path(folder, "zoo")
        shutil.copytree(zoo, copy)
        paths = [copy, *copy.rglob("*")]
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield copy
        for path in paths:
            path.chmod(0o755)


def _without_rights(words: tuple[str, ...], said: Path) -> None:
    """Run a command; root gives up its capabilities first, so that the modes of files bind it too."""
    if os.getuid() == 0:
        version_3, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(version_3, nothing) == 0
    os.chdir("/")
    sys.argv = ["nearkin", *words]
    with (said / "out").open("w") as sys.stdout, (said / "err").open("w") as sys.stderr:
        main()


def without_rights(tmp_path: Path, *words: str) -> Said:
    process = FORK.Process(target=_without_rights, args=(words, tmp_path))
    process.start()
    process.join(120)
    assert process.exitcode is not None
    return Said(process.exitcode, (tmp_path / "out").read_text(), (tmp_path / "err").read_text())


@pytest.mark.thinned(2)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("show", "six"),
        ("near", "six"),
        ("near", "six", "--measure", "frechet"),
        ("near", "digits?detect=3&limit=60", "--measure", "frechet"),
        ("matrix",),
        ("evaluate", "zero"),
        ("transfer", "zero", "six", "--shots", "3"),
        ("doctor",),
        ("export", "{}/all.zoo"),
    ],
    ids=" ".join,
)
def test_a_read_only_zoo_answers(read_only: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    nk.task("digits?limit=10")
    before = {path: path.stat().st_mtime_ns for path in read_only.rglob("*")}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        said = without_rights(tmp_path, "--zoo", str(read_only), *(word.format(folder) for word in words))
    assert said.code == 0, said.err
    assert said.out
    assert said.err.count("read-only") == (words[0] in ("near", "matrix")), said.err
    assert {path: path.stat().st_mtime_ns for path in read_only.rglob("*")} == before


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_read_only_zoo_refuses_changes_in_one_line(read_only: Path, tmp_path: Path) -> None:
    said = without_rights(tmp_path, "--zoo", str(read_only), "remove", "six")
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert "is read-only; nothing was changed" in said.err


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("ascii", ("show", "six")),
        ("latin-1", ("show", "sïx ε")),
        ("ascii:strict", ("near", "six", "--measure", "frechet")),
    ],
)
def test_a_terminal_without_unicode_is_no_error(zoo: Path, encoding: str, words: tuple[str, ...]) -> None:
    surroundings = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = subprocess.run([COMMAND, "--zoo", zoo, *words], env=surroundings, capture_output=True, check=False)
    assert done.returncode == ("ε" in words[1]), done.stderr
    assert (b"error: " in done.stderr) == ("ε" in words[1])
    assert b"Traceback" not in done.stderr
    assert b"unexpected" not in done.stderr


@pytest.mark.thinned(3)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_outside_of_long_work_end_in_one_line(tmp_path: Path, number: signal.Signals) -> None:
    """The command waits for a pipe to be opened at its other end: no work has begun."""
    pipe = tmp_path / "pipe.csv"
    script = f"""
import os, sys
import nearkin as nk, nearkin.cli.zoo
nk.task = lambda *_, **__: (print("waiting", flush=True), open({str(pipe)!r}).read())
from nearkin.cli.app import main
sys.argv = ["nearkin", "add", "a", "digits"]
main()
"""
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert said.splitlines() == ["interrupted: finished work is saved; run the same command again to continue"]


def test_a_hang_up_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    from nearkin.cli.console import stop_signals

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in stop_signals()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in stop_signals()


@pytest.mark.parametrize("exhaust", [lambda: torch.empty(2**55), lambda: bytearray(2**60)], ids=["torch", "python"])
def test_without_memory_it_says_what_to_do(call: Call, monkeypatch: pytest.MonkeyPatch, exhaust: object) -> None:
    monkeypatch.setattr(nk, "task", lambda *_, **__: exhaust())  # type: ignore[operator]
    said = call("add", "a", "digits")
    assert said.code == 1
    assert said.err.startswith("error: out of memory")
    assert said.err.count("\n") == 1
    assert "limit=1000" in said.err
