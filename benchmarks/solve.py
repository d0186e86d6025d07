"""Solve against the models that a user would write, with equal CPU time: is it, within noise, as good as the best?

    python benchmarks/solve.py [--seconds 30] [--back] [--autogluon PYTHON]
    python benchmarks/solve.py --seconds 15 --methods solve
    python benchmarks/solve.py --load 2 [--cpu | --simulated]
    python benchmarks/solve.py --offline
    python benchmarks/solve.py --seeds 20,21,22,23,24 --offline

Every run is one data set (`solve_tasks.py`), one seed and one method: `solve` with a budget and a seed and no other
option, beside a zoo of six related tasks, or a rival (`solve_rivals.py`). A run has a process and a result file of its
own and is not repeated; several processes can share the work, best with --back in one of them. --load N runs `solve`
with a wall-clock budget (--cpu: of CPU time) beside N busy processes for each core that the process may use (taskset
chooses them), after the same with a budget of CPU time and no busy process: on an idle machine both budgets are the
same. With --simulated the load is a wall clock that runs N + 1 times as fast as the CPU time of the process, for a
machine that is not idle. --offline writes the figures and the page from the results that are there. The later seeds add
a section to both; with all other seeds than the final ones both are written to the working folder.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nearkin as nk
from nearkin.cli.solve import written as write_report
from nearkin.solver.contenders import search_skeleton
from results import keep
from solve_later import later, later_section, peer_runs
from solve_page import page
from solve_rivals import FOR_IMAGES, FOR_TABLES, SIMPLE, Array, predicted
from solve_summary import summary
from solve_tables import TARGET
from solve_tasks import DATA, IMAGES, LOADED, Draw, Split, kin_tasks

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "solve-benchmark.md"
SEEDS = (10, 11, 12)  # of the final run; nothing was chosen on these: development used seeds 0 to 2 and from 100 on
LATER_SEEDS = (20, 21, 22, 23, 24)  # of later runs under load and of short runs
SECONDS = 30.0
SHORT_SECONDS = 15.0  # of further runs of solve
CELLS = 8  # cells that are evaluated for each task of the zoo
WEAK_ON_IMAGES = ("boosting, stopped", "logistic")  # never the best rival on images in an earlier run of this benchmark
LONGEST = 20  # a run is stopped after so many times its seconds
AUTOGLUON = "autogluon"
BUSY = (
    "while True: pass",
    "import torch; torch.set_num_threads(1); x = torch.rand(300, 300)\nwhile True: x = (x @ x).clamp(0, 1)",
)
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Run:
    """One run: data set, seed and method."""

    data: str
    seed: int
    method: str

    def file(self, folder: Path) -> Path:
        """Where its result is stored."""
        return folder / f"{self.data} {self.seed} {self.method}.json"


def methods(data: str) -> list[str]:
    """Methods that compete on a data set."""
    if data in IMAGES:
        return ["solve", *(name for name in SIMPLE if name not in WEAK_ON_IMAGES), *FOR_IMAGES]
    return ["solve", *SIMPLE, *FOR_TABLES]


def load_method(load: int, clock: str, simulated: bool) -> str:
    """Name of `solve` with a budget of wall or CPU time beside so many busy processes for each core."""
    return f"solve, {clock}, {'simulated load' if simulated else 'load'} {load}"


def simulate(load: int) -> None:
    """From now on, wall time is that of a core which this process shares with so many others."""
    processor = time.process_time
    time.perf_counter = lambda: (load + 1) * processor()


def cpu_seconds() -> float:
    """CPU time of this process and its children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Watch:
    """CPU and wall seconds since it was made."""

    def __init__(self) -> None:
        self.begun = cpu_seconds(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """Both, as facts of a run."""
        return {"cpu": cpu_seconds() - self.begun[0], "wall": time.perf_counter() - self.begun[1]}


def sample_scores(draw: Draw, answers: Array, split: Split) -> Array:
    """A score for each sample, whose mean is the accuracy, or the R² of real values."""
    if not draw.values:
        return (answers.astype(str) == split.y.astype(str)).astype(float)
    variance = np.square(split.y - split.y.mean()).mean()
    return 1 - np.square(answers.astype(float) - split.y) / variance


def standard_error(draw: Draw, answers: Array, split: Split) -> float:
    """Of the metric: binomial with one success and one failure added, or by the delta method for R²."""
    scores, count = sample_scores(draw, answers, split), len(split.y)
    if not draw.values:
        share = (scores.sum() + 1) / (count + 2)
        return float((share * (1 - share) / count) ** 0.5)
    deviation = np.square(split.y - split.y.mean())
    return float((scores - 1 + (1 - scores.mean()) * deviation / deviation.mean()).std() / count**0.5)


def budget(seconds: float, wall: bool) -> tuple[nk.Budget, str]:
    """A budget of CPU time if there is such an option, else of wall time; and which of them it is."""
    if wall or "cpu_minutes" not in nk.Budget.__dataclass_fields__:
        return nk.Budget(minutes=seconds / 60), "wall"
    return nk.Budget(cpu_minutes=seconds / 60), "cpu"  # type: ignore[call-arg]


def solve_answers(solution: Any, draw: Draw, split: Split) -> Array:
    """Predictions of a solution for new inputs."""
    prediction = solution.predict(split.x)
    return prediction.mean[:, 0].numpy() if draw.values else np.array(prediction.names)


def run_solve(draw: Draw, seconds: float, zoo: Path, wall: bool) -> dict[str, Any]:
    """Solve as a user does, and everything that is stated about it."""
    limit, clock = budget(seconds, wall)
    task = draw.task
    with nk.Zoo(zoo) as tasks:
        watch = Watch()
        solution = nk.solve(task, tasks, limit, seed=draw.seed)
        times = watch.read()
    watch = Watch()
    write_report(solution, zoo.parent / "report")
    report = watch.read()
    answers = solve_answers(solution, draw, draw.fresh)
    return {
        "scores": sample_scores(draw, solve_answers(solution, draw, draw.test), draw.test).tolist(),
        **times,
        "report": report,
        "clock": clock,
        "answered": (solution.answer_seconds + report[clock]) / seconds,
        "overrun": (times[clock] + report[clock]) / seconds,
        "slowdown": times["wall"] / times["cpu"],
        "load": None if solution.quality.load is None else asdict(solution.quality.load),
        "networks": {result.name: dict(result.settings) for result in solution.standings if result.network},
        "chosen": solution.chosen,
        "stated": solution.metric,
        "interval": list(solution.interval),
        "fresh": float(sample_scores(draw, answers, draw.fresh).mean()),
        "fresh_error": standard_error(draw, answers, draw.fresh),
        "fresh_samples": len(draw.fresh.y),
        "parameters": solution.parameters,
        "validation": {result.name: result.validation for result in solution.standings},
        "stages": {stage.stage: stage.seconds for stage in solution.stages},
    }


def run_rival(method: str, draw: Draw, seconds: float, zoo: Path) -> dict[str, Any]:
    """Fit a rival and score it on the test samples."""
    _ = draw.task if method in FOR_IMAGES else None  # reading the data is not counted, as for solve
    watch = Watch()
    answers = predicted(method, draw, seconds, zoo)
    return {**watch.read(), "scores": sample_scores(draw, answers, draw.test).tolist()}


def run_autogluon(python: str, draw: Draw, seconds: float, folder: Path) -> dict[str, Any]:
    """Fit AutoGluon in its own environment."""
    draw.train.x.assign(**{TARGET: draw.train.y}).to_csv(folder / "train.csv", index=False)
    draw.test.x.to_csv(folder / "test.csv", index=False)
    (folder / "facts.json").write_text(json.dumps({"values": draw.values}))
    script, out = Path(__file__).with_name("solve_autogluon.py"), folder / "out.json"
    foreign = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, script, folder, str(seconds), out], check=True, env=foreign, cwd=folder)
    facts = json.loads(out.read_text())
    answers = np.array(facts.pop("predicted"))
    return {**facts, "scores": sample_scores(draw, answers, draw.test).tolist()}


def perform(run: Run, seconds: float, folder: Path, python: str) -> dict[str, Any]:
    """The facts of one run; a failure is a fact too. It has its own copy of the zoo, which may change."""
    torch.set_num_threads(1)
    draw = DATA[run.data](run.seed)
    base = {"data": run.data, "seed": run.seed, "method": run.method, "seconds": seconds}
    with tempfile.TemporaryDirectory() as place:
        zoo = Path(place) / "zoo"
        shutil.copytree(folder / "zoo", zoo)
        try:
            if run.method == AUTOGLUON:
                facts = run_autogluon(python, draw, seconds, Path(place))
            elif run.method.startswith("solve"):
                if "simulated" in run.method:
                    simulate(int(run.method.rsplit(" ", 1)[1]))
                facts = run_solve(draw, seconds, zoo, wall="wall" in run.method)
            else:
                facts = run_rival(run.method, draw, seconds, zoo)
        except Exception:
            facts = {"error": traceback.format_exc(limit=-3)}
    if "scores" in facts:
        base["metric"] = float(np.mean(facts["scores"]))
    return {**base, **facts}


def prepare_zoo(folder: Path) -> None:
    """Build the zoo, once."""
    with nk.Zoo(folder) as zoo:
        for task in kin_tasks():
            if task.name not in zoo:
                zoo.add(task, "lenet", trials=1)
            if zoo.cells(task.name) is None:
                zoo.search_cells(task.name, search_skeleton(task), nk.Budget(evaluations=CELLS))
            print(f"zoo: {task.name}", file=sys.stderr)


@contextmanager
def claimed(file: Path) -> Iterator[bool]:
    """Claim a file for this process; False if another living process has it."""
    lock = file.with_suffix(".lock")
    owner = lock.read_text() if lock.exists() else ""
    if owner and not Path(f"/proc/{owner}").exists():
        lock.unlink(missing_ok=True)  # left by a process that was stopped
    try:
        descriptor = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        yield False
        return
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    try:
        yield True
    finally:
        lock.unlink(missing_ok=True)


def start(run: Run, options: argparse.Namespace) -> None:
    """One run in a process of its own, unless it is done or another process has it."""
    file = run.file(options.results)
    if file.exists():
        return
    with claimed(file) as mine:
        if not mine or file.exists():
            return
        command = [sys.executable, __file__, "--folder", str(options.folder), "--seconds", str(options.seconds)]
        command += ["--autogluon", options.autogluon, "--run", run.data, str(run.seed), run.method]
        try:
            subprocess.run(
                command, check=True, env={**os.environ, **ONE_THREAD}, timeout=LONGEST * options.seconds + 300
            )
        except subprocess.SubprocessError as error:
            failed = {"data": run.data, "seed": run.seed, "method": run.method, "error": str(error)}
            file.write_text(json.dumps(failed))
    row = json.loads(file.read_text())
    shown = (
        "data",
        "seed",
        "method",
        "metric",
        "cpu",
        "wall",
        "answered",
        "overrun",
        "chosen",
        "interval",
        "fresh",
        "load",
        "error",
    )
    print(json.dumps({name: row[name] for name in shown if name in row}), flush=True)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many busy processes on every core that this process may use."""
    started = []
    for core in sorted(os.sched_getaffinity(0)) if processes else ():
        for number in range(processes):
            loop = [sys.executable, "-c", BUSY[number % len(BUSY)]]
            started.append(subprocess.Popen(loop, env={**os.environ, **ONE_THREAD}))
            os.sched_setaffinity(started[-1].pid, {core})
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="CPU seconds of every method")
    parser.add_argument("--seeds", type=lambda text: tuple(map(int, text.split(","))), default=SEEDS)
    parser.add_argument("--data", type=lambda text: tuple(text.split(",")), default=tuple(DATA))
    parser.add_argument("--methods", type=lambda text: tuple(text.split(";")), help="default: all")
    parser.add_argument("--back", action="store_true", help="start with the last run")
    parser.add_argument("--offline", action="store_true", help="run nothing")
    parser.add_argument("--load", type=int, default=0, help="busy processes for each core")
    parser.add_argument("--cpu", action="store_true", help="with --load: limit CPU time instead of wall time")
    parser.add_argument(
        "--simulated", action="store_true", help="with --load: by a faster clock, without busy processes"
    )
    parser.add_argument("--autogluon", default="", help="Python of an environment with autogluon.tabular")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "nearkin-benchmark-solve")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.results = results_folder(options.folder, options.seconds)
    return options


def results_folder(folder: Path, seconds: float) -> Path:
    """Folder of the results of runs with so many seconds."""
    return folder / f"runs of {seconds:g} s"


def stored_rows(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Results in a folder, of the data sets and seeds of the options, in their order."""
    rows = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    rows = [row for row in rows if row["seed"] in options.seeds and row["data"] in options.data]
    rows = [row for row in rows if not (row["data"] in IMAGES and row["method"] in WEAK_ON_IMAGES)]
    return sorted(rows, key=lambda row: (list(DATA).index(row["data"]), row["seed"], row["method"]))


def main() -> None:
    options = parsed()
    if options.run:
        run = Run(options.run[0], int(options.run[1]), options.run[2])
        file = run.file(options.results)
        facts = perform(run, options.seconds, options.folder, options.autogluon)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(facts))
        part.replace(file)
        return
    options.results.mkdir(parents=True, exist_ok=True)
    if not options.offline:
        work(options)
    write(options)


def work(options: argparse.Namespace) -> None:
    """Everything that is not done yet."""
    prepared = options.folder / "zoo is complete"
    while not prepared.exists():
        with claimed(prepared) as mine:
            if mine:
                prepare_zoo(options.folder / "zoo")
                prepared.touch()
        time.sleep(0 if mine else 5)
    if options.load:
        clock = "cpu" if options.cpu else "wall"
        for seed, data in [(seed, data) for seed in options.seeds for data in LOADED if data in options.data]:
            start(Run(data, seed, "solve"), options)
            with busy(0 if options.simulated else options.load):
                start(Run(data, seed, load_method(options.load, clock, options.simulated)), options)
        return
    pairs = [(seed, data) for seed in options.seeds for data in options.data]
    peers = [AUTOGLUON] if options.autogluon else []
    runs = [
        Run(data, seed, method)
        for seed, data in pairs
        for method in (*methods(data), *([] if data in IMAGES else peers))
        if options.methods is None or method in options.methods
    ]
    for run in reversed(runs) if options.back else runs:
        start(run, options)


def write(options: argparse.Namespace) -> None:
    """Figures and page, beside this script for the final and the later seeds, else in the working folder."""
    stored = Path(__file__).with_suffix(".json")
    if options.seeds == LATER_SEEDS:
        folders = {file: stored_rows(file, options) for file in options.folder.glob("runs of * s")}
        known = json.loads(stored.read_text())
        figures = known | {"later": later(folders.values(), SHORT_SECONDS, known["later"])}
        options.seeds = SEEDS
        rows = stored_rows(results_folder(options.folder, SECONDS), options)
        if peers := [row for row in rows if row["method"] == AUTOGLUON]:
            figures["peer"] = peer_runs(peers, known["runs"])
        keep(__file__, figures)
        PAGE.write_text(page(figures, later_section(figures)))
        print(json.dumps(figures["later"]["summary"], indent=1))
        return
    rows, short = (
        stored_rows(results_folder(options.folder, seconds), options) for seconds in (options.seconds, SHORT_SECONDS)
    )
    done = {row["method"] for row in rows}
    if "solve" not in done or all(name.startswith("solve") for name in done):
        print("no run of solve beside a rival is done yet; nothing is written", file=sys.stderr)
        return
    times = {"seconds": options.seconds, "short_seconds": SHORT_SECONDS}
    figures = {**times, "seeds": list(options.seeds), **summary(rows, short)}
    final = (options.seeds, options.data, options.seconds) == (SEEDS, tuple(DATA), SECONDS)
    if final and stored.exists():
        figures |= {name: value for name, value in json.loads(stored.read_text()).items() if name in ("later", "peer")}
    keep(__file__ if final else str(options.folder / "solve.py"), figures)
    (PAGE if final else options.folder / "solve-benchmark.md").write_text(page(figures, later_section(figures)))
    print(json.dumps(figures["summary"], indent=1))


if __name__ == "__main__":
    main()
