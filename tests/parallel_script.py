"""What each of the two processes does that `test_data_parallel` starts; the results are files of a folder."""

import sys
from pathlib import Path

from nearkin.core.clock import timed_by
from nearkin.core.errors import NearkinError, StoppedError
from nearkin.core.events import Checkpoint, Event, finish
from nearkin.core.state import State
from nearkin.nets import data_parallel, training_loop
from nearkin.nets.data_parallel import DataParallel
from nearkin.nets.recipe import Recipe
from nearkin.nets.solved import fit_facts, fit_state
from nearkin.nets.training_loop import Fit, fit
from nearkin.run.checkpoints import FolderCheckpoints, save_checkpoints
from nearkin.zoo.parallel_checkpoints import for_all
from parallel_cases import CASES, MIXED, few, network


class Stop(Exception):
    """What a listener raises."""


def main(folder: Path) -> None:
    parallel = DataParallel.join()
    task = few()

    def keep(name: str, done: Fit) -> None:
        State(fit_state(done).tensors, fit_facts(done)).save(folder / f"{name}-{parallel.rank}")

    def refused(name: str, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except NearkinError as error:
            State({}, {"error": str(error)}).save(folder / f"{name}-{parallel.rank}")

    for name, recipe in CASES.items():
        keep(name, fit(network(name), task, recipe, seed=3, parallel=parallel))

    files = for_all(FolderCheckpoints(folder), parallel)
    keep("resumed", fit(network("plain"), task, CASES["plain"], seed=3, resume=files.read("by-one"), parallel=parallel))

    training_loop.TICK_SECONDS = 0.0

    def listen(event: Event) -> None:  # only the second process is stopped
        if parallel.rank == 1 and isinstance(event, Checkpoint) and event.capture().facts["done"] == 8:
            raise Stop

    work = fit.work(network("plain"), task, CASES["plain"], seed=3, parallel=parallel)
    try:
        finish(save_checkpoints(work, files, "by-two"), listen)
    except (Stop, StoppedError) as stopped:
        State({}, {"error": type(stopped).__name__}).save(folder / f"stopped-{parallel.rank}")

    ticks = iter(range(10_000))  # a clock that is 10 times faster in the second process
    limited = Recipe(steps=1000, seconds=20.0, batch_size=24)
    timed = fit.work(network("plain"), task, limited, seed=3, parallel=parallel)
    keep("timed", finish(timed_by(lambda: next(ticks) * (1.0 + 9.0 * parallel.rank), timed)))

    own = few(limit=150 + parallel.rank)
    refused("data", lambda: fit(network("plain"), own, CASES["plain"], parallel=parallel))
    refused("small", lambda: fit(network("plain"), task, Recipe(batch_size=1), parallel=parallel))
    refused("normalised", lambda: fit(network(MIXED), task, Recipe(batch_size=3), parallel=parallel))
    data_parallel.version = lambda name: f"0.{parallel.rank}"  # type: ignore[assignment]
    refused("version", DataParallel.joined)
    if parallel.reports():
        State({}, {}).save(folder / f"report-{parallel.rank}")
    parallel.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
