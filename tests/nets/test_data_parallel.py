"""Two real processes do one training: their result is that of one, and they stop, fail and resume together."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import parallel_cases
from interrupting import Stop, stopping_at
from nearkin.core.errors import NearkinError
from nearkin.core.events import finish
from nearkin.core.state import State
from nearkin.nets.data_parallel import ALONE, DataParallel
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import fit_facts, fit_state
from nearkin.nets.training_loop import fit
from nearkin.nets.trusted_code import trust
from nearkin.run.checkpoints import FolderCheckpoints, save_checkpoints
from nearkin.tasks.sources import task as read
from nearkin.zoo.model_file import train
from nearkin.zoo.zoo import Zoo
from parallel_cases import CASES, MIXED, few, network

pytestmark = pytest.mark.soak

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SLOW = """
import os, pathlib, time, torch
class Slow(torch.nn.Module):
    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.layer = torch.nn.Linear(64, num_outputs)
    def forward(self, x):
        if self.training and "MARKS" in os.environ:
            time.sleep(0.1)
            pathlib.Path(os.environ["MARKS"], os.environ["RANK"]).touch()
        return self.layer(x.flatten(1))
"""


def largest_difference(a: State, b: State) -> float:
    """Of weights, batch statistics and losses."""
    assert {name: value.shape for name, value in a.tensors.items()} == {n: v.shape for n, v in b.tensors.items()}
    pairs = [(value.double(), b.tensors[name].double()) for name, value in a.tensors.items() if value.numel()]
    return max(float((one - other).abs().max()) for one, other in pairs)


def environment(**variables: str) -> dict[str, str]:
    paths = [str(Path(parallel_cases.__file__).parent), *sys.path]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, State]:
    """What the two processes of `parallel_script` stored, and `one-…` from this process."""
    folder = tmp_path_factory.mktemp("results")
    work = fit.work(network("plain"), few(), CASES["plain"], seed=3)
    with pytest.raises(Stop):
        finish(save_checkpoints(work, FolderCheckpoints(folder), "by-one"), stopping_at(1))
    script = str(Path(parallel_cases.__file__).with_name("parallel_script.py"))
    done = subprocess.run(
        [*TORCHRUN, script, str(folder)], env=environment(), timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = {path.name: State.load(path) for path in folder.iterdir()}
    for name, recipe in CASES.items():
        alone = fit(network(name), few(), recipe, seed=3)
        found[f"one-{name}"] = State(fit_state(alone).tensors, fit_facts(alone))
    return found


@pytest.mark.parametrize("name", [name for name in CASES if name != MIXED])
def test_two_processes_end_in_the_weights_of_one(results: dict[str, State], name: str) -> None:
    one, first, second = (results[key] for key in (f"one-{name}", f"{name}-0", f"{name}-1"))
    assert largest_difference(first, second) == 0
    weights = [key for key, value in one.tensors.items() if value.dtype == torch.float64 and "layers" in key]
    assert len(weights) == 4
    assert all(torch.allclose(one.tensors[key], first.tensors[key], rtol=0, atol=1e-10) for key in weights)
    assert largest_difference(one, first) < 1e-5  # losses are stored in float32


def test_with_batch_statistics_and_dropout_all_processes_end_in_the_same_weights(results: dict[str, State]) -> None:
    assert largest_difference(results["mixed-0"], results["mixed-1"]) == 0
    assert largest_difference(results["mixed-0"], results["one-mixed"]) > 1e-6  # other dropout and batch statistics


def test_a_checkpoint_of_one_process_is_resumed_by_two_and_the_other_way_round(results: dict[str, State]) -> None:
    assert 0 < results["by-one"].facts["done"] < len(results["one-plain"].tensors["history/losses"])
    assert largest_difference(results["resumed-0"], results["one-plain"]) < 1e-5
    assert {results[f"stopped-{rank}"].facts["error"] for rank in (0, 1)} == {"StoppedError", "Stop"}
    stored = results["by-two"]
    assert stored.facts["done"] == 8  # saved by the first process, although the second was stopped
    rest = fit(network("plain"), few(), CASES["plain"], seed=3, resume=stored)
    whole = results["one-plain"]
    assert torch.allclose(rest.history.losses, whole.tensors["history/losses"], rtol=0, atol=1e-6)


def test_the_clock_of_the_first_process_decides(results: dict[str, State]) -> None:
    assert largest_difference(results["timed-0"], results["timed-1"]) == 0
    assert 3 <= len(results["timed-0"].tensors["history/losses"]) <= 21


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data", "another data set than process 1"),
        ("small", "got batches of 1 samples for 2 processes, expected 2 or more"),
        ("normalised", "expected 4 or more with batch normalisation"),
        ("version", "another version of nearkin than process 1"),
    ],
)
def test_bad_input_is_the_same_line_in_both_processes(results: dict[str, State], name: str, words: str) -> None:
    first, second = (results[f"{name}-{rank}"].facts["error"] for rank in (0, 1))
    assert first == second
    assert words in first
    assert "\n" not in first


def test_one_process_reports_an_error(results: dict[str, State]) -> None:
    assert [name for name in results if name.startswith("report-")] == ["report-0"]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test starts; they are killed if it fails."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_stopped_killed_and_resumed_by_one_process(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    """SIGTERM for torchrun saves the state; SIGKILL for one of two processes ends the other; one process finishes."""
    (tmp_path / "slow.py").write_text(SLOW)
    spec, out, part = f"{tmp_path}/slow.py:Slow", tmp_path / "model.safetensors", tmp_path / "model.safetensors.part"
    options = ["--network", spec, "--steps", "200", "--batch", "50", "--optimiser", "sgd", "--out", str(out)]
    command = ["-m", "nearkin", "train", "digits?limit=200", *options]

    def start(marks: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        (tmp_path / marks).mkdir(exist_ok=True)
        variables = environment(MARKS=str(tmp_path / marks), XDG_CONFIG_HOME=str(tmp_path), **variables)
        started.append(subprocess.Popen([*words, *command], env=variables, stderr=subprocess.PIPE, text=True))
        return started[-1]

    def wait_for(marks: str) -> None:
        limit = time.monotonic() + 120
        while not all((tmp_path / marks / rank).exists() for rank in "01"):
            assert time.monotonic() < limit, "the training did not start"
            time.sleep(0.05)

    both = start("stopped", *TORCHRUN)
    wait_for("stopped")
    both.send_signal(signal.SIGTERM)
    _, said = both.communicate(timeout=60)
    assert both.returncode != 0
    assert said.count("interrupted: finished work is saved; run the same command again to continue") == 1, said
    done = State.load(part).facts["done"]
    assert 0 < done < 200

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    first, second = (start("killed", sys.executable, RANK=rank, **address) for rank in "01")
    wait_for("killed")
    second.kill()
    _, said = first.communicate(timeout=60)
    second.communicate(timeout=60)
    assert f"resuming at step {done} of 200" in said
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: another of the 2 processes of this training ended or did not answer; run the same")
    assert first.returncode == 1
    assert State.load(part).facts["done"] >= done

    trust(f"{tmp_path}/slow.py")
    task, recipe = read("digits?limit=200"), Recipe(steps=200, batch_size=50, optimiser="sgd", epochs=200)
    resumed = train(task, spec, recipe, 0, torch.device("cpu"), out)
    whole = train(task, spec, recipe, 0, torch.device("cpu"), tmp_path / "whole.safetensors")
    assert not part.exists()
    assert out.exists()
    a, b = (solved.trials[0].params["layer.weight"] for solved in (resumed, whole))
    assert torch.allclose(a, b, atol=1e-5)


def test_two_processes_add_the_task_that_one_adds(tmp_path: Path) -> None:
    """Twice: the second time the name is in use, which the first process says, and both end."""
    words = ["add", "some", "digits?limit=100", "--network", "mlp?hidden=8", "--trials", "2", "--steps", "20"]
    command = [*TORCHRUN, "-m", "nearkin", "--zoo", str(tmp_path / "two"), *words, "--batch", "50"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    again = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240, check=False)
    assert again.returncode != 0
    assert again.stderr.count("error: the zoo already has a task named 'some'") == 1, again.stderr
    task = read("digits?limit=100", name="some")
    with Zoo(tmp_path / "one") as one, Zoo(tmp_path / "two") as two:
        one.add(task, "mlp?hidden=8", trials=2, recipe=Recipe.suited(task, steps=20, batch_size=50))
        assert two.names() == ["some"]
        assert two.record("some").facts["recipe"] == one.record("some").facts["recipe"]
        for ours, others in zip(one.solved("some").trials, two.solved("some").trials, strict=True):
            assert largest_difference(fit_state(ours), fit_state(others)) < 1e-4
        assert not list((tmp_path / "two" / "work").iterdir())


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK, MASTER_ADDR, MASTER_PORT is not set"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "1"}, "but MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "two"}, "got WORLD_SIZE='two', expected a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "got RANK 2"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "met no others at 127"),
    ],
)
def test_a_process_group_that_cannot_be_joined_is_one_line(variables: dict[str, str], words: str) -> None:
    with pytest.raises(NearkinError, match=words) as caught:
        DataParallel.join(variables, seconds=1)
    assert "\n" not in str(caught.value)


def test_a_process_alone_needs_no_group() -> None:
    assert DataParallel.join({}) == DataParallel.join({"WORLD_SIZE": "1"}) == DataParallel.joined() == ALONE
    assert ALONE.from_first(1.5, 2.0) == [1.5, 2.0]
    assert ALONE.reports()
    if not torch.cuda.is_available():
        with pytest.raises(NearkinError, match="no CUDA device"):
            ALONE.device("cuda")
