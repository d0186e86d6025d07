"""Operations of a zoo that are spread over jobs end in the same bits as in one process."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nearkin as nk
from counting_runner import CountingRunner
from nearkin.core.budget import Budget
from nearkin.core.errors import OptionError
from nearkin.core.events import Caution, Event, Progress, Work, finish
from nearkin.distance.measure import Measure
from nearkin.distance.pair import Pair
from nearkin.distance.screening import Rung
from nearkin.run.jobs import JobSpec
from nearkin.run.runner import Job
from nearkin.search.networks.build import Skeleton
from nearkin.zoo import shortlist
from nearkin.zoo.search import Search
from nearkin.zoo.zoo import Zoo

DATA = {name: f"digits?classes={classes}&rest=drop&limit=90"
        for name, classes in (("a", "0,1,2"), ("b", "3,4,5"), ("c", "6,7"), ("d", "8,9"))}  # fmt: skip
RECIPE = nk.Recipe(epochs=3, batch_size=30)


def fill(zoo: Zoo, *, trials: int = 2) -> None:
    for name, data in DATA.items():
        zoo.add(nk.task(data, name=name), "mlp?hidden=8", trials=trials, recipe=RECIPE)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    with Zoo(tmp_path_factory.mktemp("plain") / "zoo") as zoo:
        fill(zoo)
        yield zoo


def weights(zoo: Zoo, name: str) -> list[torch.Tensor]:
    return [trial.params[key] for trial in zoo.solved(name).trials for key in sorted(trial.params)]


@pytest.mark.soak
def test_jobs_train_and_measure_what_the_operation_then_reads(tmp_path: Path, plain: Zoo) -> None:
    runner = CountingRunner(tmp_path / "zoo")
    with Zoo(tmp_path / "zoo", runner=runner) as zoo:
        fill(zoo)
        assert len(runner.jobs) == 2 * len(DATA)
        for name in DATA:
            assert all(map(torch.equal, weights(zoo, name), weights(plain, name)))
        heard: list[Event] = []
        matrix = finish(zoo.matrix.work(["a", "b", "c", "d"], "frechet"), heard.append)
        assert torch.equal(matrix.trials, plain.matrix(["a", "b", "c", "d"], "frechet").trials)
        measured = runner.jobs[2 * len(DATA) :]
        assert [len(job.result(0).facts["values"]["frechet"]) for job in measured] == [len(DATA)] * len(DATA)
        assert not any(isinstance(event, Caution) for event in heard)
        assert runner.results.names() == [], "only what the zoo stores is left"
        submitted = len(runner.jobs)
        assert torch.equal(zoo.matrix(["a", "b", "c", "d"], "frechet").trials, matrix.trials)
        assert len(runner.jobs) == submitted, "stored distances need no jobs"


NEW = "digits?classes=1,7,8&rest=drop&limit=90"


def measured_here(runner: CountingRunner, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list of the sources that are measured outside jobs, which grows."""
    sources: list[str] = []
    work = Measure.work

    def noted(measure: Measure, pair: Pair) -> Work[float]:
        if not runner.busy:
            sources.append(pair.source.name)
        return work(measure, pair)

    monkeypatch.setattr(Measure, "work", noted)
    return sources


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("target", "options", "jobs"),
    [
        ("a", {"measure": "frechet", "samples": 70}, {"measure_sources": 2}),
        (NEW, {"measure": "frechet"}, {"train_trial": 2, "measure_sources": 2}),
        (NEW, {"measure": "frechet", "screen": 2}, {"train_trial": 2, "measure_sources": 2}),  # in its first round
        (NEW, {"measure": "short-finetune", "samples": 60}, {"measure_sources": 2}),
        ("d", {"measure": "logme"}, {"measure_sources": 2}),
    ],
)
def test_jobs_measure_chunks_of_sources(
    tmp_path: Path,
    plain: Zoo,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    options: dict[str, Any],
    jobs: dict[str, int],
) -> None:
    """A ranking takes its values from jobs: this process measures none of them again."""
    if "screen" in options:
        monkeypatch.setattr(shortlist, "RUNGS", (Rung(0.5, 4), Rung(1.0, 2)))
    task = target if target in DATA else nk.task(target, name="new")
    shutil.copytree(plain.path, tmp_path / "zoo")
    with Zoo(tmp_path / "zoo", create=False) as alone:
        expected = alone.near(task, **options)
    shutil.rmtree(tmp_path / "zoo")
    shutil.copytree(plain.path, tmp_path / "zoo")
    runner = CountingRunner(tmp_path / "zoo")
    here = measured_here(runner, monkeypatch)
    with Zoo(tmp_path / "zoo", runner=runner) as zoo:
        heard: list[Event] = []
        ranking = finish(zoo.near.work(task, **options), heard.append)
    assert ranking.rows() == expected.rows()
    assert not any(isinstance(event, Caution) and "worker" in event.text for event in heard)
    assert runner.counts() == jobs
    assert set(here) == ({kin.name for kin in ranking} if "screen" in options else set())  # two make one chunk


def test_a_matrix_takes_values_that_are_not_stored(tmp_path: Path, plain: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(plain.path, tmp_path / "zoo")
    runner = CountingRunner(tmp_path / "zoo")
    here = measured_here(runner, monkeypatch)
    with Zoo(tmp_path / "zoo", runner=runner) as zoo:
        matrix = zoo.matrix(["a", "b", "c"], "logme")
    assert not here
    assert torch.equal(matrix.trials, plain.matrix(["a", "b", "c"], "logme").trials)


def test_stored_distances_need_no_job(tmp_path: Path, plain: Zoo) -> None:
    shutil.copytree(plain.path, tmp_path / "zoo")
    runner = CountingRunner(tmp_path / "zoo")
    with Zoo(tmp_path / "zoo", runner=runner) as zoo:
        first = zoo.near("b", "frechet", samples=60)
        assert len(runner.jobs) == 2
        assert zoo.near("b", "frechet", samples=60).rows() == first.rows()
        assert len(runner.jobs) == 2


@pytest.mark.parametrize("screen", [None, 2])
def test_jobs_prepare_inputs_and_choose_forms_like_the_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, screen: int | None
) -> None:
    monkeypatch.setattr(shortlist, "RUNGS", (Rung(0.5, 4), Rung(1.0, 2)))
    monkeypatch.setattr("nearkin.nets.recipe.STEPS_WANTED", 20)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    with Zoo(tmp_path / "zoo") as zoo:
        zoo.add(nk.task(DATA["a"], name="added"), "mlp?hidden=8", trials=1, recipe=nk.Recipe(steps=5))
        zoo.adopt("copy", "mlp?hidden=8", weights=zoo.solved("added").model(), task=nk.task(DATA["a"]))
        for name, mean in (("dark", 0.8), ("light", 0.1)):
            inputs = {"shape": "1,8,8", "mean": mean, "std": 0.3}
            zoo.adopt(name, module, task=nk.task(DATA["b"]), preprocess=inputs)
    shutil.copytree(tmp_path / "zoo", tmp_path / "other")
    task = nk.task(NEW, name="new")
    with Zoo(tmp_path / "other") as alone:
        expected = alone.near(task, "frechet", trials=2, screen=screen), alone.matrix(measure="frechet")
    runner = CountingRunner(tmp_path / "zoo")
    with Zoo(tmp_path / "zoo", runner=runner) as zoo:
        here: list[Event] = []
        ranking = finish(
            zoo.near.work(task, "frechet", trials=2, screen=screen),
            lambda event: None if runner.busy else here.append(event),
        )
        assert ranking.rows() == expected[0].rows()
        assert not any(isinstance(event, Caution) and "worker" in event.text for event in here)
        assert runner.counts()["train_trial"] == 2 * 3
        assert not any(isinstance(event, Progress) and event.stage.startswith("new, trial") for event in here)
        matrix = zoo.matrix(measure="frechet")
        assert torch.equal(matrix.trials, expected[1].trials)
        assert matrix.forms == expected[1].forms


def test_a_job_names_the_rows_that_it_measures(tmp_path: Path, plain: Zoo) -> None:
    """The result of a job that was interrupted is not taken for another network of the same name and data."""
    shutil.copytree(plain.path, tmp_path / "zoo")
    runner = CountingRunner(tmp_path / "zoo")
    keys: list[list[str]] = []
    with Zoo(tmp_path / "zoo", runner=runner) as zoo:
        for replaced in ("", "", "d", "b"):  # nothing, a source, the target
            if replaced:
                zoo.remove(replaced)
                zoo.add(nk.task(DATA[replaced], name=replaced), "mlp?hidden=8", trials=2, recipe=RECIPE)
            zoo.near("b", "logme", samples=60)
            keys.append([job.spec.key for job in runner.jobs if "measure_sources" in job.spec.function])
            runner.jobs.clear()
    first, again, source, target = map(set, keys)
    assert len(first) == len(target) == 2
    assert first == again
    assert len(again & source) == 1
    assert not source & target


def test_a_ranking_measures_what_jobs_cannot(tmp_path: Path, plain: Zoo) -> None:
    """Workers that read other data refuse the job; values of a target made of arrays are measured here."""
    shutil.copytree(plain.path, tmp_path / "zoo")
    runner = CountingRunner(tmp_path / "zoo")
    task = nk.task(NEW, name="new")
    other = replace(task, source=DATA["a"])
    heard: list[Event] = []
    with Zoo(tmp_path / "zoo", runner=runner) as zoo:
        expected = zoo.near(replace(task, source=""), "logme").rows()
        assert not runner.jobs
        assert finish(zoo.near.work(other, "logme"), heard.append).rows() == expected
    assert len(runner.jobs) == 2
    assert sum(isinstance(event, Caution) and "are others in this worker" in event.text for event in heard) == 2


@pytest.mark.soak
@pytest.mark.slow
def test_worker_processes_end_in_the_same_bits(tmp_path: Path, plain: Zoo) -> None:
    with Zoo(tmp_path / "zoo", workers=2) as zoo:
        fill(zoo)
        for name in DATA:
            assert all(map(torch.equal, weights(zoo, name), weights(plain, name)))
        assert torch.equal(zoo.matrix(None, "frechet").trials, plain.matrix(None, "frechet").trials)
        new = nk.task(NEW, name="new")
        assert zoo.near(new, "logme").rows() == plain.near(new, "logme").rows()
        how = Search(
            method="random", space="general?nodes=3", budget=Budget(evaluations=3), recipe=nk.Recipe(steps=2),
            skeleton=Skeleton(channels=2, num_cells=1), proxy=nk.Recipe(steps=2),
        )  # fmt: skip
        found, alone = zoo.search(new, how).outcome, plain.search(new, how).outcome
        assert (found.best.genotype, found.history) == (alone.best.genotype, alone.history)
        assert not [file for file in (tmp_path / "zoo" / "work").rglob("*") if file.is_file()]


def test_what_a_job_cannot_do_the_operation_does(tmp_path: Path, plain: Zoo) -> None:
    class Failing(CountingRunner):
        def submit(self, spec: JobSpec) -> Job:
            return super().submit(JobSpec("nearkin.run.trial_jobs:fail", {"words": "no room"}, title=spec.title))

    heard: list[Event] = []
    with Zoo(tmp_path / "zoo", runner=Failing(tmp_path / "zoo")) as zoo:
        work = zoo.add.work(nk.task(DATA["a"], name="a"), "mlp?hidden=8", trials=2, recipe=RECIPE)
        finish(work, heard.append)
        assert all(map(torch.equal, weights(zoo, "a"), weights(plain, "a")))
    said = [event.text for event in heard if isinstance(event, Caution)]
    assert said == [f"'a', trial {n} failed in a worker: no room; it is done again here" for n in (1, 2)]


def test_tasks_made_of_arrays_are_trained_here(tmp_path: Path) -> None:
    runner = CountingRunner(tmp_path / "zoo")
    x, y = torch.rand(60, 1, 4, 4), torch.arange(60) % 2
    with Zoo(tmp_path / "zoo", runner=runner) as zoo:
        zoo.add(nk.Task.from_arrays("arrays", x, y, x, y), "mlp?hidden=4", trials=2, recipe=RECIPE)
        assert "arrays" in zoo
    assert not runner.jobs


def test_the_number_of_workers_is_checked(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="workers must be 1 or more, got 0"):
        Zoo(tmp_path / "zoo", workers=0)


@pytest.mark.soak
def test_a_killed_command_leaves_no_worker_and_a_sound_zoo(tmp_path: Path, plain: Zoo) -> None:
    """The workers of a killed command end by themselves; a shorter training ends in the usual bits."""
    command = [
        sys.executable, "-m", "nearkin", "--workers", "2", "--zoo", str(tmp_path / "zoo"), "add", "a", DATA["a"],
        "--network", "mlp?hidden=8", "--trials", "2", "--epochs", "3", "--batch-size", "30",
    ]  # fmt: skip
    process = subprocess.Popen([*command[:-3], "4000", *command[-2:]], stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 120
    while len(workers_of(tmp_path)) < 2 and time.monotonic() < limit:
        time.sleep(0.1)
    time.sleep(3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while workers_of(tmp_path) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not workers_of(tmp_path)
    subprocess.run(command, check=True, capture_output=True)
    with Zoo(tmp_path / "zoo") as zoo:
        assert all(map(torch.equal, weights(zoo, "a"), weights(plain, "a")))


def workers_of(folder: Path) -> list[str]:
    """Worker processes of the zoo in a folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"nearkin.zoo.worker_process" in words and str(folder).encode() in (file.parent / "environ").read_bytes():
            found.append(file.parent.name)
    return found
