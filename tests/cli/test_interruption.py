"""`nearkin add` killed and interrupted: the zoo stays sound, and the same command goes on."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nearkin as nk
from nearkin.cli.app import main
from nearkin.core.events import finish
from nearkin.zoo.check import examine

ADD = ("--quiet", "add", "all", "digits?limit=300", "--network", "mlp", "--trials", "4", "--epochs", "20")


def add_in_child(folder: Path) -> None:
    """What the command does, in a forked process that has everything imported: kills hit the work, not the imports."""
    os.chdir(folder)
    sys.argv = ["nearkin", *ADD]
    main()


def started(folder: Path) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=add_in_child, args=(folder,))
    process.start()
    return process


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_twenty_kills_leave_a_sound_zoo_that_goes_on(tmp_path: Path) -> None:
    nk.task("digits?limit=300")
    whole = tmp_path / "whole"
    whole.mkdir()
    begin = time.monotonic()
    process = started(whole)
    process.join()
    length = time.monotonic() - begin
    assert process.exitcode == 0

    moments = random.Random(0)
    killed, finished = 0, 0
    folder = tmp_path / "killed-0"
    folder.mkdir()
    while killed < 20:
        process = started(folder)
        time.sleep(moments.uniform(0, 0.6 * length))
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        if (folder / "nearkin-zoo").exists():
            with nk.Catalogue(folder / "nearkin-zoo") as catalogue:
                assert finish(examine(catalogue)).sound
                tasks = [record.name for record in catalogue.tasks()]
            assert tasks in ([], ["all"]), "never half a task"
            if tasks:
                finished += 1
                assert digests(folder) == digests(whole), "it ends in the same bits"
                folder = tmp_path / f"killed-{finished}"
                folder.mkdir()
    process = started(folder)
    process.join()
    assert process.exitcode == 0
    assert digests(folder) == digests(whole), "killed however often, it ends in the same bits"
    assert not list((folder / "nearkin-zoo" / "work").iterdir())


def digests(folder: Path) -> list[str]:
    with nk.Catalogue(folder / "nearkin-zoo", create=False) as catalogue:
        return [item.digest for item in catalogue.artifacts("all")]


def test_interrupted_it_says_how_to_go_on_and_does(tmp_path: Path) -> None:
    command = [Path(sys.executable).parent / "nearkin", "add", "all", "digits", "--network", "mlp", "--trials", "1"]
    slow = [*command, "--epochs", "4000"]
    process = subprocess.Popen(slow, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    work = tmp_path / "nearkin-zoo" / "work"
    deadline = time.monotonic() + 60
    while not list(work.glob("*/work.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert said.strip().splitlines()[-1].startswith("interrupted: what was done is kept; run the same command again")
    kept = list(work.glob("*/training-0.safetensors"))
    assert len(kept) == 1
    health = subprocess.run([command[0], "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(health.stdout)["health"]["unfinished"] == [kept[0].parent.name]
    process = subprocess.Popen(slow, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    process.kill()
    process.communicate()
    assert "going on at step" in first
