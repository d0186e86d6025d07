"""Workers as tasks of Ray, on one machine or on a cluster; Kubernetes and clouds are reached through Ray.

Every worker is one Ray task that takes jobs until there are none for a while. Ray ends the tasks of a process that
dies. Arguments of a task are values of Ray, so that an address with a password is in no command line and no file.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from nearkin.core.errors import NearkinError, optional
from nearkin.run.jobs import JobError, JobPlace

EXTRA = "ray"
LOCAL = "ray"  # a cluster of this machine: a running one, or a new one
LONGEST_REASON = 300
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray reports nothing to its makers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a coming default, of which Ray warns otherwise
    "RAY_worker_niceness": "0",  # workers of a cluster that is started here have the priority of other workers
}

Serve = Callable[[JobPlace, str, str], int]
"""(place, name, group) → number of jobs that a worker did."""


class RayStaff:
    """Starts workers as tasks of Ray.

    Args:
        address: `ray` for the cluster of this machine or of `$RAY_ADDRESS`, or `ray://HOST:PORT`.
        serve: does jobs in a task; a function of a module, which all machines must have installed.
        place: where jobs read and write data; all machines must reach it.
        environment: gives variables for a worker that starts.
    """

    def __init__(
        self, address: str, serve: Serve, place: JobPlace, environment: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self.ray: Any = optional("ray", EXTRA, "--runner ray")
        self.address, self.serve, self.place, self.environment = address, serve, place, environment
        self.tasks: dict[str, Any] = {}
        self._own = False

    def start(self, worker: str, group: str) -> None:
        """Submit a task; the first one connects to the cluster."""
        self._connect()
        task = self.ray.remote(num_cpus=1, max_retries=0)(_serve)
        arguments = (self.serve, self.place, worker, group, version("nearkin"), dict(self.environment()))
        self.tasks[worker] = task.remote(*arguments)

    def ended(self) -> list[tuple[str, str]]:
        """Workers whose task has ended, and why."""
        if not self.tasks:
            return []
        ready, _ = self.ray.wait(list(self.tasks.values()), num_returns=len(self.tasks), timeout=0)
        names = [name for name, task in self.tasks.items() if task in ready]
        return [(name, self._reason(self.tasks.pop(name))) for name in names]

    def stop(self) -> None:
        """End all tasks, and the cluster if it was started here."""
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints what happened to its processes
            for task in self.tasks.values():
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self.ray.cancel(task, force=True)
            self.tasks.clear()
            if self._own:
                self.ray.shutdown()
                self._own = False

    def _connect(self) -> None:
        if self.ray.is_initialized():
            return
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            self.ray.init(None if self.address == LOCAL else self.address, **options)
        except Exception as refused:  # Ray raises many kinds
            raise _unreachable(self.address, refused) from refused
        self._own = True

    def _reason(self, task: Any) -> str:
        """Why a task ended; empty if it ended in good order."""
        try:
            self.ray.get(task)
        except Exception as error:  # the cause is an error of the task, of its process or of its machine
            cause = getattr(error, "cause", None)
            return _line(cause if isinstance(cause, NearkinError) else error)
        return ""


def _serve(
    serve: Serve, place: JobPlace, worker: str, group: str, expected: str, environment: Mapping[str, str]
) -> int:
    """Do jobs in a task of Ray."""
    here = version("nearkin")
    if here != expected:
        raise JobError(f"the cluster has nearkin {here}, expected {expected}; install one version everywhere")
    os.environ.update({"OMP_NUM_THREADS": "1", **environment})
    return serve(place, worker, group)


def _unreachable(address: str, error: Exception) -> JobError:
    """An error of the connection in one line."""
    text = _line(error)
    if "ersion mismatch" in text:
        return JobError(f"the Ray cluster at {address} has other versions ({text}); install the same Python and Ray")
    return JobError(
        f"cannot reach a Ray cluster at {address} ({text}); start one with ray start --head, or use --runner local"
    )


def _line(error: object) -> str:
    return " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__
