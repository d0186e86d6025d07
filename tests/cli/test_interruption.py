"""Commands killed and interrupted: the zoo stays sound, and the same command continues to the same bits."""

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
import torch

import nearkin as nk
from nearkin.cli.app import main
from nearkin.core.budget import Budget
from nearkin.core.state import State
from nearkin.search.networks.build import Skeleton
from nearkin.store.integrity import examine
from nearkin.zoo.search import Search
from nearkin.zoo.zoo import Zoo

ADD = ("--quiet", "add", "all", "digits?limit=300", "--network", "mlp", "--trials", "4", "--epochs", "20")


TRAIN = ("--quiet", "train", "digits?limit=300", "--network", "lenet", "--epochs", "40", "--out", "m.safetensors")
SEARCH = (
    *("--quiet", "search", "digits?limit=300", "--method", "evolution", "--space", "general?nodes=3"),
    *("--channels", "4", "--evaluations", "4", "--epochs", "20", "--out", "m.safetensors"),
)
FUSE = (
    *("--quiet", "search", "digits?limit=300", "--space", "full", "--channels", "4", "--steps", "2"),
    *("--option", "candidates=2", "--option", "alternations=4", "--epochs", "15", "--out", "m.safetensors"),
)
ENAS = (
    *("--quiet", "search", "digits?limit=200", "--method", "enas", "--channels", "4", "--cells", "2"),
    *("--option", "epochs=2", "--option", "batch_size=32", "--option", "controller_steps=3", "--epochs", "5"),
    *("--out", "m.safetensors"),
)
NAO = (
    *("--quiet", "search", "digits?limit=200", "--method", "nao", "--channels", "4", "--cells", "2"),
    *("--option", "epochs=3", "--option", "round_epochs=1", "--option", "batch_size=32", "--option", "pool=4"),
    *("--option", "replaced=2", "--option", "model_steps=20", "--epochs", "5", "--out", "m.safetensors"),
)

WARM = Search(
    method="random", space="full", budget=Budget(evaluations=1), skeleton=Skeleton(channels=2, num_cells=1),
    proxy=nk.Recipe(steps=1), recipe=nk.Recipe(steps=1),
)  # fmt: skip


def in_child(folder: Path, words: tuple[str, ...]) -> None:
    """What a command does, in a forked process that has everything imported: kills hit the work, not the imports."""
    os.chdir(folder)
    sys.argv = ["nearkin", *words]
    main()


def started(folder: Path, words: tuple[str, ...] = ADD) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=in_child, args=(folder, words))
    process.start()
    return process


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("words", [TRAIN, SEARCH, FUSE, ENAS, NAO], ids=["train", "search", "fuse", "enas", "nao"])
def test_interrupted_again_and_again_the_same_command_ends_in_the_same_bits(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
    Zoo(tmp_path / "warm").search(nk.task("digits?limit=60"), WARM)  # everything imported before the forks
    begin = time.monotonic()
    process = started(whole, words)
    process.join()
    assert process.exitcode == 0
    pause, continued = 0.3 * (time.monotonic() - begin), 0
    while not (stopped / "m.safetensors").exists():
        process = started(stopped, words)
        process.join(pause)
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGINT)
        process.join()
        assert process.exitcode in (0, 130)
        kept = [*stopped.glob("*.part"), *(stopped / "nearkin-zoo" / "work").glob("*.safetensors")]
        continued += bool(kept)
        if process.exitcode == 0 and not continued:  # it was faster this time: interrupt it sooner
            (stopped / "m.safetensors").unlink()
            pause *= 0.7
        elif process.exitcode == 130:  # it may have been stopped before its work began: interrupt it later
            pause *= 1.3
    assert continued >= 1
    ours, theirs = (State.load(folder / "m.safetensors") for folder in (stopped, whole))
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(torch.equal(value, theirs.tensors[name]) for name, value in ours.tensors.items())
    assert ours.facts["network"] == theirs.facts["network"]
    assert not [*stopped.glob("*.part"), *(stopped / "nearkin-zoo" / "work").glob("*")]


@pytest.mark.soak
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
                assert examine(catalogue).sound
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


@pytest.mark.soak
def test_interrupted_it_says_how_to_go_on_and_does(tmp_path: Path) -> None:
    command = [Path(sys.executable).parent / "nearkin", "add", "all", "digits", "--network", "mlp", "--trials", "1"]
    slow = [*command, "--epochs", "4000"]
    process = subprocess.Popen(slow, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    work = tmp_path / "nearkin-zoo" / "work"
    deadline = time.monotonic() + 60
    while not list(work.glob("*/training-0.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert said.strip().splitlines()[-1].startswith("interrupted: finished work is saved; run the same command again")
    kept = list(work.glob("*/training-0.safetensors"))
    assert len(kept) == 1
    health = subprocess.run([command[0], "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(health.stdout)["health"]["unfinished"] == [kept[0].parent.name]
    process = subprocess.Popen(slow, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    process.kill()
    process.communicate()
    assert "resuming at step" in first
