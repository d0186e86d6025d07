"""Workers as jobs of SLURM, by submitit.

Every worker is one SLURM job that takes jobs of nearkin until there are none for a while. submitit stores the call as a
file in a folder that only its owner can read; the address of the zoo is part of it, so it must not hold a password.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nearkin.core.addresses import without_secrets
from nearkin.core.errors import OptionError, optional, require
from nearkin.run.jobs import JobError, JobPlace
from nearkin.run.worker import GRACE_SECONDS

EXTRA = "slurm"
CLUSTERS = ("slurm", "local")
CANCEL_SECONDS = 3.0  # before a job that has not ended is cancelled again
LAST_CHARACTERS = 300  # of the errors of a worker that died
WHOLE_NUMBERS = ("time", "mem_gb", "cpus_per_task", "gpus_per_node")
TEXTS = ("partition", "account", "qos", "constraint")
ENDED = ("COMPLETED", "DONE")

Serve = Callable[[JobPlace, str, str], int]
"""(place, name, group) → number of jobs that a worker did."""


class SlurmStaff:
    """Starts workers as jobs of SLURM.

    Args:
        options: parameters of a worker by name: time (minutes), mem_gb, cpus_per_task, gpus_per_node, partition,
            account, qos, constraint; and cluster: slurm, or local for processes of this machine.
        serve: does jobs in a worker; a function of a module, which all machines must have installed.
        place: where jobs read and write data; all machines must reach it.
        folder: where submitit stores calls and logs; all machines must see it.
        environment: gives variables for a worker that starts.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        serve: Serve,
        place: JobPlace,
        folder: Path,
        environment: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        submitit = optional("submitit", EXTRA, "--runner slurm")
        for address in (place.zoo, place.blobs):
            require(
                without_secrets(address) == address,
                f"the address {without_secrets(address)} has a password, which SLURM jobs would store in a file; put "
                f"it into ~/.pgpass or $PGPASSWORD, and credentials of blobs into the environment",
                JobError,
            )
        cluster = options.get("cluster", CLUSTERS[0])
        require(cluster in CLUSTERS, f"got cluster={cluster}, expected {' or '.join(CLUSTERS)}")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self.executor: Any = submitit.AutoExecutor(folder=folder / "%j", cluster=cluster)
        except RuntimeError as missing:
            raise JobError(
                f"SLURM was not found on this machine ({' '.join(str(missing).split())}); run the command where sbatch "
                f"is, or use --runner local"
            ) from missing
        self.executor.update_parameters(**_parameters(options, cluster))
        self.serve, self.place, self.environment = serve, place, environment
        self.jobs: dict[str, Any] = {}

    def start(self, worker: str, group: str) -> None:
        """Submit a SLURM job."""
        try:
            self.jobs[worker] = self.executor.submit(
                _serve, self.serve, self.place, worker, group, dict(self.environment())
            )
        except Exception as refused:  # sbatch failed, or the folder cannot be written
            raise JobError(f"SLURM refused a worker ({_line(refused)}); check the options of --runner") from refused

    def ended(self) -> list[tuple[str, str]]:
        """Workers whose SLURM job has ended, and why."""
        names = [name for name, job in self.jobs.items() if job.done()]
        return [(name, _reason(self.jobs.pop(name))) for name in names]

    def stop(self) -> None:
        """Cancel all SLURM jobs, and wait for their end; one that is just starting may miss the first request."""
        left, limit = list(self.jobs.values()), time.monotonic() + 2 * GRACE_SECONDS
        while left and time.monotonic() < limit:
            for job in left:
                with contextlib.suppress(Exception):  # it may have ended
                    job.cancel()
            again = time.monotonic() + CANCEL_SECONDS
            while left and time.monotonic() < again:
                left = [job for job in left if not job.done(force_check=True)]
                time.sleep(0.1 if left else 0)
        self.jobs.clear()


def _serve(serve: Serve, place: JobPlace, worker: str, group: str, environment: Mapping[str, str]) -> int:
    """Do jobs in a SLURM job."""
    os.environ.update({"OMP_NUM_THREADS": "1", **environment})
    return serve(place, worker, group)


def _parameters(options: Mapping[str, str], cluster: str) -> dict[str, Any]:
    """Options as parameters of submitit.

    >>> _parameters({"time": "90", "partition": "cpu"}, "slurm")
    {'name': 'nearkin', 'timeout_min': 90, 'slurm_partition': 'cpu'}
    """
    known = (*WHOLE_NUMBERS, *TEXTS)
    values: dict[str, Any] = {"name": "nearkin"}
    for name, text in options.items():
        if name == "cluster":
            continue
        if name not in known:
            raise OptionError(f"got the option {name} of the runner slurm, expected one of {', '.join(known)}")
        if name in WHOLE_NUMBERS:
            require(text.isdecimal() and int(text) > 0, f"got {name}={text}, expected a whole number above 0")
            values["timeout_min" if name == "time" else name] = int(text)
        elif cluster == CLUSTERS[0]:
            values[f"slurm_{name}"] = text
    return values


def _reason(job: Any) -> str:
    """Why a SLURM job ended; empty if it ended in good order. Its result, a pickle, is not read."""
    state = str(job.state).upper()
    try:
        said = " ".join(job.paths.stderr.read_text(errors="replace")[-LAST_CHARACTERS:].split())
    except OSError:
        said = ""
    if state in ENDED and job.paths.result_pickle.exists() and "Error" not in said:
        return ""
    return f"SLURM state {state}{f': {said}' if said else ''}"


def _line(error: object) -> str:
    return " ".join(str(error).split())[:LAST_CHARACTERS]
