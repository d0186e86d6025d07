"""Runners and workers of a zoo: its queue of jobs, where results are stored, and who starts workers."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from nearkin.core.errors import require
from nearkin.core.lazy import Lazy
from nearkin.nets.trusted_code import exported
from nearkin.run.checkpoints import Checkpoints
from nearkin.run.jobs import JobPlace
from nearkin.run.queued import QueueRunner, Staff
from nearkin.run.worker import Worker, worker_name
from nearkin.store.database import WORKER
from nearkin.store.job_table import JobTable, open_job_table
from nearkin.zoo.solved_tasks import SolvedTasks

if TYPE_CHECKING:
    from nearkin.run import local, on_ray, on_slurm
else:
    local, on_ray, on_slurm = map(Lazy, ("nearkin.run.local", "nearkin.run.on_ray", "nearkin.run.on_slurm"))

PROCESS = "nearkin.zoo.worker_process"
LOCAL, RAY, SLURM = "local", "ray", "slurm"
RUNNERS = f"{LOCAL}, {RAY}, {RAY}://HOST:PORT or {SLURM}?OPTION=VALUE&…"
IDLE_SECONDS = 60.0  # after which a worker of Ray or SLURM without a job ends
ZOO, BLOBS = "NEARKIN_ZOO", "NEARKIN_BLOBS"
"""Environment variables by which a worker process learns its place; an address may hold a secret, and arguments of a
process can be read by all users."""


def job_queue(zoo: SolvedTasks) -> JobTable:
    """The queue of jobs of a zoo."""
    return open_job_table(zoo.place.zoo)


def job_results(zoo: SolvedTasks) -> Checkpoints:
    """Where the results of jobs are stored until the command that needs them has read them."""
    return zoo.work.within("jobs")


def open_runner(zoo: SolvedTasks, kind: str, workers: int) -> QueueRunner:
    """A runner for the jobs of a zoo.

    Args:
        zoo: the zoo.
        kind: local, ray, ray://HOST:PORT, or slurm with options as in slurm?time=60&partition=cpu.
        workers: number of workers.
    """

    def variables() -> dict[str, str]:
        return {**exported(), WORKER: "1"}

    name, _, query = kind.partition("?")
    staff: Staff
    if kind == LOCAL:
        place = {ZOO: zoo.place.zoo, BLOBS: zoo.place.blobs}
        staff = local.LocalStaff(PROCESS, lambda: {**variables(), **place})
    elif kind == RAY or kind.startswith(f"{RAY}://"):
        staff = on_ray.RayStaff(kind, serve_jobs, zoo.place, variables)
    else:
        require(name == SLURM, f"got the runner {kind!r}, expected {RUNNERS}")
        folder = zoo.path / "work" / "slurm" if not zoo.catalogue.shared else Path("nearkin-slurm").absolute()
        staff = on_slurm.SlurmStaff(dict(parse_qsl(query)), serve_jobs, zoo.place, folder, variables)
    return QueueRunner(job_queue(zoo), job_results(zoo), staff, workers)


def open_worker(zoo: SolvedTasks, name: str = "", group: str | None = None) -> Worker:
    """A worker for the jobs of a zoo, of one group or of all."""
    return Worker(job_queue(zoo), job_results(zoo), zoo.place, name or worker_name(), group)


def serve_jobs(place: JobPlace, name: str, group: str) -> int:
    """Do jobs of a group until there was none for a while; for workers that Ray or SLURM starts."""
    return open_worker(SolvedTasks(place.zoo, create=False, blobs=place.blobs), name, group).run(IDLE_SECONDS)
