"""Workers by submitit: its local executor starts the same worker as SLURM would, as a process of this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from laws.runner import ParallelLaws
from nearkin.core.errors import NearkinError, OptionError
from nearkin.run.jobs import JobError, JobPlace
from nearkin.run.on_slurm import SlurmStaff
from nearkin.run.queued import QueueRunner
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.zoo_runner import open_runner, serve_jobs

pytest.importorskip("submitit")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueRunner]:
    zoo = SolvedTasks(tmp_path_factory.mktemp("slurm") / "zoo")
    with open_runner(zoo, "slurm?cluster=local&time=10", 2) as runner:
        yield runner


@pytest.mark.slow
class TestSlurmRunner(ParallelLaws):
    @pytest.fixture
    def runner(self, workers: QueueRunner) -> QueueRunner:
        workers.results.clear()
        return workers


@pytest.mark.slow
def test_only_the_owner_reads_what_submitit_stores(workers: QueueRunner) -> None:
    assert isinstance(workers.staff, SlurmStaff)
    folder = Path(workers.staff.executor.folder).parent
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cluster": "moon"}, "got cluster=moon, expected slurm or local"),
        ({"cluster": "local", "time": "soon"}, "got time=soon, expected a whole number above 0"),
        ({"cluster": "local", "color": "red"}, "got the option color of the runner slurm, expected one of time"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        SlurmStaff(options, serve_jobs, JobPlace(str(tmp_path)), tmp_path / "calls")


def test_a_machine_without_slurm_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match="SLURM was not found on this machine"):
        SlurmStaff({}, serve_jobs, JobPlace(str(tmp_path)), tmp_path / "calls")


def test_passwords_are_not_stored(tmp_path: Path) -> None:
    for place in (JobPlace("postgresql://ann:marker@db/zoo"), JobPlace("zoo", "s3://key:marker@bucket")):
        with pytest.raises(JobError, match="which SLURM jobs would store in a file") as error:
            SlurmStaff({"cluster": "local"}, serve_jobs, place, tmp_path / "calls")
        assert "marker" not in str(error.value)
    assert not (tmp_path / "calls").exists()


def test_unknown_runners_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NearkinError, match="got the runner 'moon', expected local, ray"):
        open_runner(SolvedTasks(tmp_path / "zoo"), "moon", 2)
