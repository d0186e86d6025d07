"""Workers: overhead of a job, Ray against processes, and the distance matrix of twelve tasks with one and two workers.

    python benchmarks/runner.py

Wall time, on a machine without other work; every worker has one thread.
"""

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import nearkin as nk
from nearkin.core.events import finish
from nearkin.run.jobs import JobSpec
from nearkin.run.runner import run_jobs
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.zoo import Zoo
from nearkin.zoo.zoo_runner import open_runner
from results import keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "runner.md"
NUM_TASKS, NUM_JOBS, NUM_LONG, ROUNDS = 12, 200, 12, 3
MEASURE = "frechet"
RECIPE = nk.Recipe(epochs=4)


def square(number: int) -> JobSpec:
    """A job that takes no time."""
    return JobSpec("nearkin.run.trial_jobs:square", {"value": float(number)})


def overhead(folder: Path, kind: str = "local") -> dict[str, float]:
    """Milliseconds of a job, one after the other and many at once, after the workers have started."""
    with open_runner(SolvedTasks(folder / "jobs"), kind, workers=2) as runner:
        begun = time.perf_counter()
        finish(run_jobs(runner, [square(-1), square(-2)]))
        started = time.perf_counter() - begun
        singles = []
        for number in range(NUM_JOBS // 4):
            begun = time.perf_counter()
            runner.submit(square(number)).result()
            singles.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        jobs = [runner.submit(square(1000 + number)) for number in range(NUM_JOBS)]
        for job in jobs:
            job.result()
        many = (time.perf_counter() - begun) / NUM_JOBS
    return {
        "start_seconds": round(started, 2),
        "single_milliseconds": round(1000 * statistics.median(singles), 2),
        "many_milliseconds": round(1000 * many, 2),
    }


def jobs_seconds(folder: Path, kind: str) -> float:
    """Wall seconds of jobs that take a second of processor time each, after the workers have started."""
    with open_runner(SolvedTasks(folder / f"{kind}-jobs"), kind, workers=2) as runner:
        finish(run_jobs(runner, [square(-1), square(-2)]))
        specs = [JobSpec("nearkin.run.trial_jobs:compute", {"seconds": 1.0, "number": n}) for n in range(NUM_LONG)]
        begun = time.perf_counter()
        finish(run_jobs(runner, specs))
        return time.perf_counter() - begun


def matrix_seconds(zoo: Path, folder: Path, workers: int, started: bool) -> float:
    """Wall seconds of the matrix in a copy of a zoo; with `started`, without the start of the workers."""
    copy = folder / "copy"
    shutil.copytree(zoo, copy)
    with Zoo(copy, workers=workers) as opened:
        if started and opened.runner is not None:
            names = opened.names()[:2]
            opened.matrix(names, MEASURE, samples=2)  # loads torch and the measure in both workers
        begun = time.perf_counter()
        opened.matrix(None, MEASURE)
        seconds = time.perf_counter() - begun
    shutil.rmtree(copy)
    return seconds


def page(figures: dict[str, Any]) -> str:
    """The figures as tables."""
    jobs, matrix, overhead = figures["second_jobs"], figures["matrix"], figures["overhead"]
    seconds = matrix["seconds"]
    rows = [
        ["one process, without workers", f"{seconds['1']:.1f}", "1"],
        ["two workers, with their start", f"{seconds['2']:.1f}", f"{matrix['speedup']:.2f}"],
        ["two workers that have started", f"{seconds['2, started']:.1f}", f"{matrix['speedup_started']:.2f}"],
    ]
    return f"""# Workers

Made by `python benchmarks/runner.py`, in wall time, on a machine with two cores and no other work. Every worker has one
thread.

## Overhead of a job

Two workers have started, which takes {overhead["start_seconds"]:.1f} s: almost all of it is the import of torch. A job
that does nothing then costs {overhead["many_milliseconds"]:.1f} ms if {NUM_JOBS} are submitted together, and
{overhead["single_milliseconds"]:.1f} ms if each waits for the one before it.

## Ray and processes

{jobs["jobs"]} jobs of one second each by two workers: {jobs["seconds"]["local"]:.2f} s by processes,
{jobs["seconds"]["ray"]:.2f} s by Ray on the same machine.

## Distance matrix

All distances by `{MEASURE}` of {matrix["tasks"]} tasks on digits (LeNet, two trials). Medians of {matrix["rounds"]}
rounds in which the rows take turns.

{table(["", "seconds", "times as fast"], rows)}

What is missing to 2 is the start, less speed of each core if both are busy, and the wait of one worker for the last
target of the other.
"""


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures: dict[str, Any] = {"overhead": overhead(folder)}
        seconds = {kind: jobs_seconds(folder, kind) for kind in ("local", "ray")}
        figures["second_jobs"] = {
            "jobs": NUM_LONG,
            "seconds": {kind: round(value, 2) for kind, value in seconds.items()},
            "ray_over_local": round(seconds["ray"] / seconds["local"], 3),
        }
        print(figures, flush=True)
        with Zoo(folder / "zoo") as zoo:
            for number in range(NUM_TASKS):
                pair = f"{number % 10},{(number + 1 + number // 10) % 10}"
                task = nk.task(f"digits?classes={pair}&rest=other", name=f"task {number}")
                zoo.add(task, "lenet", trials=2, recipe=RECIPE)
        times: dict[str, list[float]] = {"1": [], "2": [], "2, started": []}
        for _ in range(ROUNDS):
            times["1"].append(matrix_seconds(folder / "zoo", folder, 1, False))
            times["2"].append(matrix_seconds(folder / "zoo", folder, 2, False))
            times["2, started"].append(matrix_seconds(folder / "zoo", folder, 2, True))
            print({name: round(values[-1], 2) for name, values in times.items()}, flush=True)
        medians = {name: statistics.median(values) for name, values in times.items()}
    figures["matrix"] = {
        "tasks": NUM_TASKS, "rounds": ROUNDS,
        "seconds": {name: round(value, 2) for name, value in medians.items()},
        "speedup": round(medians["1"] / medians["2"], 2),
        "speedup_started": round(medians["1"] / medians["2, started"], 2),
    }  # fmt: skip
    keep(__file__, figures)
    PAGE.write_text(page(figures))
    print(figures["matrix"])


if __name__ == "__main__":
    main()
