"""`nearkin serve` as a person starts and ends it, and the journal that other commands leave for it."""

import builtins
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from calling import Call
from nearkin.cli.app import main
from nearkin.run.journal import journals

QUICK = ("--network", "mlp?hidden=16", "--trials", "1", "--epochs", "2")


def serve_in_child(folder: Path) -> None:
    """What the command does, in a forked process that has everything imported."""
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["nearkin", "serve", "--port", "0", "--json"]
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    main()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_tells_its_address_answers_and_ends_quietly(call: Call, tmp_path: Path, number: int) -> None:
    call("add", "zero", "digits?detect=0&limit=100", *QUICK)
    process = multiprocessing.get_context("fork").Process(target=serve_in_child, args=(tmp_path,))
    process.start()
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "out").exists() or not (tmp_path / "out").read_text().endswith("\n"):
            assert process.is_alive(), (tmp_path / "err").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        told = json.loads((tmp_path / "out").read_text())
        assert told["address"] == f"http://127.0.0.1:{told['port']}/"
        with urllib.request.urlopen(f"{told['address']}tasks.json", timeout=30) as answer:
            assert [task["name"] for task in json.load(answer)["tasks"]] == ["zero"]
        os.kill(process.pid or 0, number)
        process.join(30)
        assert process.exitcode == 0
        assert (tmp_path / "err").read_text() == ""
    finally:
        process.kill()
        process.join()


def test_what_cannot_be_served_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call("add", "zero", "digits?detect=0&limit=100", *QUICK)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        cases = [
            (("serve", "--port", port), f"cannot listen on 127.0.0.1, port {port}"),
            (("serve", "--host", "no.such.host.invalid"), "got the host no.such.host.invalid, expected an address"),
            (("--zoo", "nowhere", "serve"), "there is no zoo at"),
            (("--zoo", "postgresql://127.0.0.1:1/b", "serve"), "cannot reach the server of postgresql://127.0.0.1:1/b"),
        ]
        for words, wanted in cases:
            said = call(*words)
            assert said.code == 1, words
            assert said.out == ""
            assert said.err.startswith("error: ")
            assert said.err.count("\n") == 1
            assert wanted in said.err
    assert not Path("nowhere").exists()
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name.split(".")[0] == "uvicorn":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "uvicorn", raising=False)
    monkeypatch.setattr("importlib.import_module", lambda name, *rest: without(name))
    assert call("serve").err == "error: nearkin serve needs uvicorn: pip install 'nearkin[web]'\n"


def test_elsewhere_is_warned_of(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call("add", "zero", "digits?detect=0&limit=100", *QUICK)
    monkeypatch.delenv("NEARKIN_TOKEN", raising=False)
    monkeypatch.setattr("nearkin.web.server.serve", lambda zoo, taken, token: None)
    said = call("serve", "--host", "0.0.0.0", "--port", "0")
    assert said.code == 0
    assert said.err.startswith("warning: 0.0.0.0 can be reached from other machines")
    assert "?token=" not in said.err
    assert said.out.count("/?token=") == 1
    quiet = call("serve", "--port", "0")
    assert quiet.err == ""
    assert "token" not in quiet.out
    monkeypatch.setenv("NEARKIN_TOKEN", "short")
    assert call("serve", "--port", "0").error.startswith("error: $NEARKIN_TOKEN has 5 characters, expected 16 or more")


def test_commands_leave_a_journal_and_no_unfinished_work(call: Call, tmp_path: Path) -> None:
    zoo = tmp_path / "nearkin-zoo"
    assert call("--quiet", "train", "digits?limit=100", "--epochs", "1", "--network", "mlp").code == 0
    assert not zoo.exists()
    call("add", "zero", "digits?detect=0&limit=100", *QUICK)
    call("add", "six", "digits?detect=6&limit=100", *QUICK)
    call("near", "zero", "--measure", "frechet")
    call("doctor")
    told = [(entry.command[0], entry.state) for entry in journals(zoo)]
    assert told == [("near", "done"), ("add", "done"), ("add", "done")]
    health = call("doctor", "--json").json["health"]
    assert health["sound"] is True
    assert (health["unfinished"], health["leftovers"], health["orphans"]) == ([], [], [])
