"""Jobs: work that any process can do, described by plain values.

A specification names a function of nearkin, its inputs as JSON values and a seed: never a closure, never a tensor. Data
and weights are named by where they are stored; the zoo itself is not part of it (`JobPlace`), as its address may hold a
secret. The result is a `State` that is written once, under a key made of all that determines it, so that a job that is
done twice does no harm.

Only functions of nearkin that are marked with `job` can be named: what is read from a store or a pipe cannot choose
other code.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from typing import Any, TypeAlias

from nearkin.core.errors import NearkinError, require
from nearkin.core.events import Work
from nearkin.core.job_records import JobRecord
from nearkin.core.plain import json_object, typed
from nearkin.core.state import State
from nearkin.run.checkpoints import SUFFIX, Checkpoints, facts_digest, read_stored


@dataclass(frozen=True)
class JobPlace:
    """Where a job reads and writes data; every worker has its own, and it is never stored with a job.

    Attributes:
        zoo: folder or address of the zoo.
        blobs: address of its blobs; empty for those that the zoo names.
    """

    zoo: str = ""
    blobs: str = field(default="", repr=False)


JobFunction: TypeAlias = Callable[[JobPlace, Mapping[str, Any], int], Work[State]]
"""(place, inputs, seed) → the work of a job."""

PACKAGE = "nearkin."
version = cache(metadata.version)  # which reads a file at every call
_MARK = "_nearkin_job"


class JobError(NearkinError):
    """A job that failed, was cancelled, or names what is not a job."""


def job(function: JobFunction) -> JobFunction:
    """Mark a function of nearkin as one that a specification may name."""
    setattr(function, _MARK, True)
    return function


@dataclass(frozen=True)
class JobSpec:
    """What a job does.

    Attributes:
        function: a function marked with `job`, as `nearkin.module:name`.
        inputs: JSON values.
        seed: of all random numbers.
        title: what the user sees of it; not part of the key.
        mebibytes: memory that it needs, 0 if unknown; not part of the key.
        version: of nearkin.

    >>> one, two = (JobSpec("nearkin.zoo.zoo_jobs:train_trial", {"trial": 0}, title=title) for title in ("a", "b"))
    >>> one.key == two.key != JobSpec("nearkin.zoo.zoo_jobs:train_trial", {"trial": 1}).key
    True
    """

    function: str
    inputs: Mapping[str, Any]
    seed: int = 0
    title: str = ""
    mebibytes: float = 0.0
    version: str = field(default_factory=lambda: version("nearkin"))

    def __post_init__(self) -> None:
        try:
            plain = json.loads(json.dumps(self.inputs, allow_nan=False)) == self.inputs
        except (TypeError, ValueError):
            plain = False
        require(plain, f"the inputs of a job must be JSON values with text as keys, got {dict(self.inputs)!r}"[:300])

    @property
    def key(self) -> str:
        """Name of the result."""
        facts = {"function": self.function, "inputs": self.inputs, "seed": self.seed, "version": self.version}
        return f"job-{facts_digest(facts)}{SUFFIX}"

    def work(self, results: Checkpoints, place: JobPlace) -> Work[State]:
        """Read the result if it is stored; else do the job in this process, and store it."""
        here = version("nearkin")
        require(
            self.version == here,
            f"the job is of nearkin {self.version}, and this process has {here}; install one version everywhere",
            JobError,
        )
        stored = yield from read_stored(results, self.key, lambda state: state)
        if stored is not None:
            return stored
        state = yield from job_function(self.function)(place, self.inputs, self.seed)
        results.write(self.key, state)
        return state


def record_of(spec: JobSpec, group: str) -> JobRecord:
    """A specification as a pending job of a queue."""
    text = json.dumps({**asdict(spec), "inputs": dict(spec.inputs)}, sort_keys=True)
    return JobRecord(key=spec.key, spec=text, title=spec.title, mebibytes=spec.mebibytes, group=group)


def spec_of(record: JobRecord) -> JobSpec:
    """The specification of a job of a queue; `JobError` if it is damaged."""
    try:
        return typed(JobSpec, json_object(record.spec, "the job"), "the job")
    except NearkinError as damaged:
        raise JobError(f"the job {record.key} is damaged ({damaged}); cancel it: nearkin jobs --cancel") from damaged


def job_function(path: str) -> JobFunction:
    """The function with this path.

    >>> job_function("os:system")
    Traceback (most recent call last):
    nearkin.run.jobs.JobError: 'os:system' is not a job of nearkin; both sides need the same version of nearkin
    """
    module, _, name = path.partition(":")
    function = None
    if module.startswith(PACKAGE):
        try:
            function = getattr(importlib.import_module(module), name, None)
        except ImportError:
            function = None
    if function is None or not getattr(function, _MARK, False):
        raise JobError(f"{path!r} is not a job of nearkin; both sides need the same version of nearkin")
    return function  # type: ignore[no-any-return]
