"""Workers killed, clocks set, memory and disks full, a server restarted, files damaged, losses that are not finite.

Damaged objects, full disks under one write, restarts under single writes and upgrades at once are tested where the
code is: `tests/core/test_objects.py`, `tests/store/test_postgres.py`, `tests/store/test_concurrency.py`.
"""

import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import nearkin as nk
from faults.processes import ZOO, answer, ended, killed, start_server, started, stored
from faults.workers import ForkStaff, forked_runner, jumping_clock
from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Event, finish
from nearkin.core.job_records import RUNNING
from nearkin.run.jobs import JobSpec
from nearkin.run.queued import QueueRunner
from nearkin.zoo import trials
from postgres_server import PostgresServer

pytestmark = pytest.mark.soak

KILLS = int(os.environ.get("NEARKIN_SOAK_KILLS", "2"))
DATA = {name: f"digits?classes={classes}&rest=drop&limit=90"
        for name, classes in (("a", "0,1,2"), ("b", "3,4,5"), ("c", "6,7"), ("d", "8,9"))}  # fmt: skip
ADD = ("--quiet", "add", "new", DATA["a"], "--network", "mlp?hidden=64", "--trials", "2", "--epochs", "100", "--json")
CountFaults = Callable[[str, int, int], None]


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo of four tasks without distances; to be copied."""
    path = tmp_path_factory.mktemp("four") / ZOO
    with nk.Zoo(path) as zoo:
        for name, data in DATA.items():
            zoo.add(nk.task(data, name=name), "mlp?hidden=8", trials=1, recipe=nk.Recipe(epochs=2, batch_size=30))
    return path


@pytest.fixture(scope="session")
def added(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any], float]:
    """Answer, stored bits and seconds of `ADD` without faults."""
    folder = tmp_path_factory.mktemp("added")
    start_server()
    begin = time.monotonic()
    said = answer(ended(folder, started(folder, ADD)))
    return said, stored(folder / ZOO), time.monotonic() - begin


def kill_busy(runner: QueueRunner, staff: ForkStaff, done: threading.Event, dead: list[str], most: int) -> None:
    """Kill workers that have a job at random moments, until the work is done."""
    moments = random.Random(len(dead))
    while len(dead) < most and not done.wait(moments.uniform(0, 0.5)):
        busy = [job.worker for job in runner.queue.jobs([RUNNING]) if job.worker in staff.processes]
        for name in busy[:1]:
            staff.processes[name].kill()
            dead.append(name)


def test_workers_killed_in_a_matrix(four: Path, tmp_path: Path, count_faults: CountFaults) -> None:
    plain = shutil.copytree(four, tmp_path / "plain")
    with nk.Zoo(plain) as zoo:
        expected = zoo.matrix(None, "short-finetune").trials
    most, dead, chains = min(KILLS, 10), list[str](), 0
    while len(dead) < most:
        copy = shutil.copytree(four, tmp_path / str(chains))
        runner, staff = forked_runner(copy, 2)
        done, before = threading.Event(), len(dead)
        killer = threading.Thread(target=kill_busy, args=(runner, staff, done, dead, most))
        with runner, nk.Zoo(copy, runner=runner) as zoo:
            killer.start()
            found = zoo.matrix(None, "short-finetune").trials
            done.set()
            killer.join()
        assert torch.equal(found, expected)
        assert stored(copy) == stored(plain)
        chains += len(dead) > before
        shutil.rmtree(copy)
    count_faults("SIGKILL of workers in matrix", len(dead), chains)


def test_clocks_that_are_set_lose_and_repeat_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_faults: CountFaults
) -> None:
    monkeypatch.setattr(time, "time", jumping_clock(0))
    runner, _ = forked_runner(tmp_path / ZOO, 2, "clock")
    with runner:
        specs = [
            JobSpec("nearkin.run.trial_jobs:wait", {"seconds": (1.2 if i < 2 else 0.05) + i / 1000}) for i in range(12)
        ]
        jobs = [runner.submit(spec) for spec in specs]
        assert [job.result(120).facts["seconds"] for job in jobs] == [spec.inputs["seconds"] for spec in specs]
        assert [record.attempts for record in runner.queue.jobs()] == [1] * len(jobs)
    count_faults("clocks set in jobs", len(jobs), len(jobs))


def test_out_of_memory_in_a_worker(tmp_path: Path, count_faults: CountFaults) -> None:
    task, network, recipe = nk.task(DATA["a"], name="a"), "mlp?hidden=60000", nk.Recipe(epochs=1, batch_size=30)
    with nk.Zoo(tmp_path / "plain") as zoo:
        zoo.add(task, network, trials=2, recipe=recipe)
    runner, _ = forked_runner(tmp_path / ZOO, 2, "memory", "")
    heard: list[Event] = []
    with runner, nk.Zoo(tmp_path / ZOO, runner=runner) as zoo:
        finish(zoo.add.work(task, network, trials=2, recipe=recipe), heard.append)
    said = [event.text for event in heard if isinstance(event, Caution)]
    assert len(said) in (1, 2)
    assert all("failed in a worker: out of memory; it is done again here" in text for text in said), said
    assert stored(tmp_path / ZOO) == stored(tmp_path / "plain")
    count_faults("out of memory in a worker", len(said), 1)


def test_a_loss_that_is_not_finite_in_one_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_faults: CountFaults
) -> None:
    task, recipe, build = nk.task(DATA["a"], name="a"), nk.Recipe(epochs=2, batch_size=30), trials.build

    def spoiled(network: str, shape: Any, outputs: int, seed: int, trial: int) -> torch.nn.Module:
        model = build(network, shape, outputs, seed, trial)
        if trial == 1:
            next(model.parameters()).data.view(-1)[0] = torch.nan
        return model

    with nk.Zoo(tmp_path / "plain") as zoo:
        zoo.add(task, "mlp?hidden=8", trials=3, recipe=recipe)
    with nk.Zoo(tmp_path / ZOO) as zoo:
        with monkeypatch.context() as patch:
            patch.setattr(trials, "build", spoiled)
            with pytest.raises(NearkinError, match=r"the loss became nan at step 1 of \d+; lower the learning rate"):
                zoo.add(task, "mlp?hidden=8", trials=3, recipe=recipe)
        assert zoo.names() == [], "never a part of a task"
        heard: list[Event] = []
        finish(zoo.add.work(task, "mlp?hidden=8", trials=3, recipe=recipe), heard.append)
    assert any("trial 1 of 3 was finished before" in str(event) for event in heard)
    assert stored(tmp_path / ZOO) == stored(tmp_path / "plain")
    count_faults("NaN in one trial of add", 1, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_in_add(added: Any, small_disk: Path, tmp_path: Path, count_faults: CountFaults) -> None:
    expected, bits, _ = added
    full, levels = 0, (0, 100, 200, 300, 400)
    for free in levels:
        zoo = small_disk / str(free)
        words = ("--zoo", str(zoo), *ADD)
        with (small_disk / "filler").open("wb", buffering=0) as filler:
            filler.write(bytes(4 * 2**20))
            filler.truncate(max(0, filler.tell() - free * 1024))
        said = ended(tmp_path, started(tmp_path, words))
        (small_disk / "filler").unlink()
        if said.code == 0:  # there was room enough
            assert answer(said) == expected
        else:
            full += 1
            assert said.error
            assert (said.out, said.err.count("\n")) == ("", 1), said
            assert answer(ended(tmp_path, started(tmp_path, words))) == expected
        assert stored(zoo) == bits
        shutil.rmtree(zoo)
    assert full >= 2
    count_faults("full disk in add", full, full)


def test_damaged_checkpoints_of_a_killed_add(added: Any, tmp_path: Path, count_faults: CountFaults) -> None:
    expected, bits, length = added
    moments, damaged, chains = random.Random(3), 0, 0
    while damaged < KILLS:
        folder = tmp_path / str(chains)
        folder.mkdir(exist_ok=True)
        killed(started(folder, ADD), moments.uniform(0.3, 0.9) * length)
        files = list((folder / ZOO / "work").rglob("*.safetensors"))
        for file in files:
            data = bytearray(file.read_bytes())
            if moments.random() < 0.5:
                data[moments.randrange(len(data))] ^= 1 << moments.randrange(8)
            else:
                del data[moments.randrange(len(data)) :]
            file.write_bytes(data)
        if files:
            damaged += len(files)
            said = ended(folder, started(folder, ADD))
            assert answer(said) == expected
            assert stored(folder / ZOO) == bits
            chains += 1
        else:
            shutil.rmtree(folder)
    count_faults("checkpoints of add truncated or bit-flipped", damaged, chains)


def restart_until(done: threading.Event, server: PostgresServer, seconds: float, counts: list[float]) -> None:
    """Restart a server at random moments, until the work is done."""
    moments = random.Random(5)
    while len(counts) < KILLS and not done.wait(moments.uniform(0, seconds)):
        server.restart()
        counts.append(time.monotonic())


def test_a_server_restarted_during_add(
    added: Any, postgres_server: PostgresServer, shared_address: str, tmp_path: Path, count_faults: CountFaults
) -> None:
    expected, bits, length = added
    process = started(tmp_path, ("--zoo", shared_address, "--blobs", str(tmp_path / "blobs"), *ADD))
    done, restarts = threading.Event(), list[float]()
    restarter = threading.Thread(target=restart_until, args=(done, postgres_server, length / 3, restarts))
    while process.is_alive() and not any(tmp_path.glob("blobs/**/training-*")):  # restarts shall meet the work
        time.sleep(0.01)
    restarter.start()
    said = ended(tmp_path, process)
    done.set()
    restarter.join()
    assert answer(said) == expected
    assert stored(shared_address) == bits
    count_faults("PostgreSQL restarted in add", len(restarts), 1)


def test_a_server_restarted_while_workers_measure(
    four: Path, postgres_server: PostgresServer, shared_address: str, tmp_path: Path, count_faults: CountFaults
) -> None:
    plain = shutil.copytree(four, tmp_path / "plain")
    with nk.Zoo(plain) as zoo:
        expected = zoo.matrix(None, "short-finetune").trials
    blobs = str(tmp_path / "blobs")
    with nk.Zoo(shared_address, blobs=blobs) as zoo:
        for name, data in DATA.items():
            zoo.add(nk.task(data, name=name), "mlp?hidden=8", trials=1, recipe=nk.Recipe(epochs=2, batch_size=30))
    runner, _ = forked_runner(shared_address, 2)
    done, restarts = threading.Event(), list[float]()
    restarter = threading.Thread(target=restart_until, args=(done, postgres_server, 1.0, restarts))
    with runner, nk.Zoo(shared_address, runner=runner) as zoo:
        restarter.start()
        found = zoo.matrix(None, "short-finetune").trials
        done.set()
        restarter.join()
    assert torch.equal(found, expected)
    assert stored(shared_address) == stored(plain)
    count_faults("PostgreSQL restarted in matrix with workers", len(restarts), 1)
