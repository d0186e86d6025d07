"""`nearkin` and Python scripts from a warm process: each call is a fork of one that has imported everything already.

A page of the manual runs a dozen commands, each of which would import torch for itself. The command as people start it
is tested in `tests/cli`; here its answers matter. `serve` is started for real, because it is stopped by its process.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ALONE = ("serve",)
SCRIPT = "run-script"
"""The command that runs a Python file: `run-script page.py`."""

SHIM = """#!{python} -SE
import json, os, socket, sys
if set(sys.argv) & set({alone!r}):
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
body = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(line, [len(body).to_bytes(8, "big")], [0, 1, 2])
line.sendall(body)
sys.exit(int.from_bytes(line.recv(1) or b"\\x01", "big"))
"""


@contextmanager
def warm_command(folder: Path, **variables: str) -> Iterator[Path]:
    """A folder for the PATH with `nearkin` and `run-script` as such commands; their environment gets `variables`."""
    address, real = str(folder / "line"), str(Path(sys.executable).with_name("nearkin"))
    for name in ("nearkin", SCRIPT):
        shim = folder / name
        shim.write_text(SHIM.format(python=sys.executable, alone=ALONE, real=real, address=address))
        shim.chmod(0o755)
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    server = subprocess.Popen([sys.executable, __file__, address], env=surroundings)
    try:
        while not Path(address).exists():
            assert server.poll() is None, "the warm process ended"
            time.sleep(0.05)
        yield folder
    finally:
        server.kill()
        server.wait()


def serve(address: str) -> None:
    """Fork for every call."""
    for module in ("torch._dynamo", "nearkin.report.solution_page", "nearkin.solver.solving"):
        importlib.import_module(module)  # the first is what every optimiser asks for
    line = socket.socket(socket.AF_UNIX)
    line.bind(address + ".early")
    line.listen()
    os.rename(address + ".early", address)  # it is there when it listens
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        call, _ = line.accept()
        if os.fork() == 0:
            line.close()
            _answer(call)
        call.close()


def _reap(*_: object) -> None:
    """Wait for the calls that ended, so that their processor time counts as that of the tests."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(call: socket.socket) -> None:
    """One command or script in a process of its own."""
    from nearkin.cli.app import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, given, _, _ = socket.recv_fds(call, 8, 3)
    size, body = int.from_bytes(head, "big"), b""
    while len(body) < size:
        body += call.recv(size - len(body))
    words, folder, surroundings = json.loads(body)
    for number, handle in enumerate(given):
        os.dup2(handle, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(surroundings)
    code = 1
    try:
        if words[0] == SCRIPT:
            sys.argv, sys.path[0] = words[1:], str(Path(words[1]).parent)
            runpy.run_path(words[1], run_name="__main__")
        else:
            sys.argv = words
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        call.sendall(bytes([code]))
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
