"""Workers by Ray, on a cluster of this machine."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from laws.runner import ParallelLaws
from nearkin.run import on_ray
from nearkin.run.jobs import JobError, JobPlace
from nearkin.run.queued import QueueRunner
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.zoo_runner import open_runner, serve_jobs

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore"),  # Ray and its dependencies have warnings of their own
]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueRunner]:
    zoo = SolvedTasks(tmp_path_factory.mktemp("ray") / "zoo")
    with open_runner(zoo, "ray", 2) as runner:
        yield runner


class TestRayRunner(ParallelLaws):
    @pytest.fixture
    def runner(self, workers: QueueRunner) -> QueueRunner:
        workers.results.clear()
        return workers


def test_a_cluster_with_another_nearkin_is_said() -> None:
    """A task compares the version of the cluster with the one that the command has."""
    with pytest.raises(JobError, match=f"the cluster has nearkin {version('nearkin')}, expected 0.0.1; install one"):
        on_ray._serve(serve_jobs, JobPlace("nowhere"), "name", "group", "0.0.1", {})


def test_an_unreachable_cluster_is_one_line() -> None:
    script = (
        "from nearkin.run.on_ray import RayStaff; from nearkin.run.jobs import JobPlace\n"
        "from nearkin.core.errors import NearkinError\n"
        "try: RayStaff('ray://127.0.0.1:1', print, JobPlace()).start('a', 'b')\n"
        "except NearkinError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120)
    (line,) = done.stdout.strip().splitlines()
    assert line.startswith("cannot reach a Ray cluster at ray://127.0.0.1:1 (")
    assert line.endswith("; start one with ray start --head, or use --runner local")


def test_other_versions_of_the_cluster_are_said() -> None:
    text = "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.9.1\nThis process has: …"
    error = on_ray._unreachable("ray://host:1", RuntimeError(text))
    assert isinstance(error, JobError)
    assert "has other versions (Version mismatch: The cluster was started with: Ray: 2.9.0 Python: 3.9.1" in str(error)
