"""The cost model of a zoo as a page of tables and a plot, from the figures of `scale.py`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import nnls

from nearkin.distance.screening import RUNGS
from nearkin.report.axes import WIDTH, Field, Scale, frame
from nearkin.report.svg import Canvas
from results import table

DOCS = Path(__file__).resolve().parents[1] / "docs"
SIZES = [10, 100, 1000, 10_000, 100_000, 1_000_000]
MEASURED = 5  # tasks of `near --screen 5`
RACE = 1 + sum(rung.share * rung.contenders for rung in RUNGS[:-1]) + MEASURED
ROW_BYTES = 2 * 2048 + 32


def number(value: float) -> str:
    """A figure of three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def fitted(rows: Sequence[Mapping[str, Any]], figure: str) -> tuple[float, float, float]:
    """Fixed cost, cost of a task and cost of a pair of `matrix`: the least sum of squared relative errors, none < 0."""
    terms = np.array([[1.0, row["tasks"], row["tasks"] ** 2] for row in rows])
    values = np.array([row["matrix"][figure] for row in rows])
    return tuple(nnls(terms / values[:, None], np.ones(len(rows)))[0])


def told(costs: Sequence[float], tasks: float) -> float:
    """The cost of all pairs of so many tasks."""
    return costs[0] + costs[1] * tasks + costs[2] * tasks**2


def matrices(figures: dict[str, Any], workers: int) -> list[dict[str, Any]]:
    """Measured zoos, smallest first."""
    rows = [row for row in figures["matrices"] if row["workers"] == workers]
    return sorted(rows, key=lambda row: row["tasks"])


def constants(figures: dict[str, Any]) -> tuple[tuple[float, float, float], float]:
    """Costs of `matrix` with one worker; seconds of one task in a screening."""
    rows = figures["stores"][max(figures["stores"], key=int)]
    slowest = max(rows[kind]["screening"]["cpu"] for kind in ("SQLite", "PostgreSQL"))
    return fitted(matrices(figures, 1), "cpu"), slowest / rows["tasks"]


def curves(figures: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Seconds of the processor by number of tasks."""
    costs, screened = constants(figures)
    return {
        "matrix": [(k, told(costs, k)) for k in SIZES],
        "near": [(k, costs[0] + costs[1] + costs[2] * k) for k in SIZES],
        "near --screen 5": [(k, costs[0] + costs[1] + costs[2] * min(k, RACE) + screened * k) for k in SIZES],
    }


def plot(figures: dict[str, Any]) -> str:
    """The curves on logarithmic axes."""
    lines = curves(figures)
    values = [y for points in lines.values() for _, y in points]
    field = Field(70.0, 20.0, WIDTH - 130.0, 320.0)
    draw = Canvas(WIDTH, 370)
    x = Scale(10.0, 1e6, field.left, field.right, log=True)
    y = Scale(min(values) / 2, max(values) * 2, field.bottom, field.top, log=True)
    frame(draw, field, x, y, ("tasks", "seconds"))
    for (name, points), colour in zip(lines.items(), ("arrow", "kin", "target"), strict=True):
        draw.line(*((x(across), y(up)) for across, up in points), stroke=colour, width=2.2, tip=name)
        draw.text(field.right + 8, y(points[-1][1]) + 4, name, size=11.0, fill="ink")
    return draw.svg(
        "nk-scale", "Cost by number of tasks", "Seconds of matrix, near and near --screen 5, from 10 to 1,000,000 tasks"
    )


def pair_checks(figures: dict[str, Any]) -> str:
    """The largest zoo as the others predict it, and all as measured."""
    lines = []
    smaller = matrices(figures, 1)[:-1]
    seconds, statements = (fitted(smaller, figure) for figure in ("cpu", "statements"))
    for workers in (1, 2):
        rows = matrices(figures, workers)
        start = fmean(row["matrix"]["cpu"] - told(seconds, row["tasks"]) for row in rows[:-1])
        last = rows[-1]["tasks"]
        guesses = [told(seconds, last) + start * (workers > 1), told(statements, last) if workers == 1 else None]
        for row in rows:
            guess = ["–" if value is None or row is not rows[-1] else number(value) for value in guesses]
            lines.append([
                str(row["tasks"]), str(workers), f"{row['tasks'] ** 2:,}", number(row["passes"]), guess[0],
                number(row["matrix"]["cpu"]), guess[1], number(row["matrix"]["statements"]),
                number(row["bytes_per_task"]),
            ])  # fmt: skip
    head = ["tasks", "workers", "pairs", "passes", "predicted s", "measured s", "predicted statements", "measured",
            "bytes of a task"]  # fmt: skip
    return table(head, lines)


def store_checks(figures: dict[str, Any]) -> str:
    """Times of the synthetic stores, with the prediction of the smallest in proportion to the tasks."""
    lines, first = [], {}
    for size in sorted(figures["stores"], key=int):
        for kind in ("SQLite", "PostgreSQL"):
            own = figures["stores"][size].get(kind, {})
            if "screening" not in own:
                continue
            base = first.setdefault(kind, (int(size), own["screening"]["cpu"]))
            told = "–" if base[0] == int(size) else number(base[1] * int(size) / base[0])
            cells = [own[name]["cpu"] for name in ("insert", "first screening", "landmarks", "page")]
            lines.append([
                f"{int(size):,}", kind, told, number(own["screening"]["cpu"]), number(own["screening"]["wall"]),
                str(own["screening"]["statements"]), *map(number, cells),
            ])  # fmt: skip
    head = ["tasks", "database", "screening, predicted", "measured", "its wall time", "statements", "insert",
            "first screening", "60 landmarks", "page of 100"]  # fmt: skip
    return table(head, lines)


def write(figures: dict[str, Any]) -> None:
    """Write the page and its picture."""
    (fixed, task, pair), screened = constants(figures)
    lines = curves(figures)
    drawn = [[f"{k:,}", *(number(points[i][1]) for points in lines.values()), number(ROW_BYTES * k / 1e6)]
             for i, k in enumerate(SIZES)]  # fmt: skip
    packed = [
        [f"{row['tasks']:,}", number(row["nearest"]["cpu"]), number(row["nearest"]["wall"]),
         number(row["index_bytes"] / 1e6), number(row["most_memory"] / 1e6)]
        for row in figures.get("packed", {}).values()
    ]  # fmt: skip
    packed_text = (
        f"""The packed points alone, without a database: seconds to read the files, verify their checksums and find the
nearest 150. All files hold the same random points.

{table(["tasks", "seconds", "wall time", "MB of files", "MB of memory, whole process"], packed)}
"""
        if packed
        else ""
    )
    (DOCS / "images" / "scale.svg").write_text(plot(figures) + "\n")
    (DOCS / "scale.md").write_text(f"""# Scale

What a zoo of K tasks costs, where each part reaches its limit, and which of it was measured.

Seconds are those of the processor unless wall time is named: of the command and of its workers. The server of
PostgreSQL is another process, whose own time is only in the wall time. Everything above 100,000 tasks, and all pairs of
more than {matrices(figures, 1)[-1]["tasks"]} tasks, is drawn from the model.

## Model

| part | cost |
| --- | --- |
| `matrix` | {fixed:.2g} s + {task:.2g} s K + {pair:.2g} s K², for `mlp?hidden=8`, one trial and 100 samples |
| `near` | the same with K pairs and one target |
| `near --screen M` | {RACE - MEASURED:.3g} + M passes, and b K with b = {screened:.2g} s a task |
| memory and files of packed points | {ROW_BYTES:,} bytes a task: 2,048 numbers in float16 and a digest |
| database, `near --screen` | a fixed number of queries for each group of tasks with one network, whatever K is |
| database, `matrix` | some statements for each pair, as every distance is stored in a transaction of its own |

## All pairs, predicted and measured

A fixed cost, a cost of a task and a cost of a pair are fitted to all zoos but the largest, which they then predict.
Two workers cost the same and their start, the mean excess of the smaller zoos. Statements of two workers are those of
the first process, mostly looks at the queue: they follow the time and are not predicted. The machine had other work
beside these runs.

{pair_checks(figures)}

## Synthetic stores, predicted and measured

Tasks with a row and a point of random numbers, and no weights. The smallest store predicts the others in
proportion to K. Screening is what `near --screen` does after the point of the target is known and before the race.
The first screening packs the points of all tasks. SQLite and PostgreSQL use the same folder of blobs.

{store_checks(figures)}

{packed_text}
## Drawn to a million tasks

Seconds of one processor, from the constants above; a larger network has a larger c. A race is included for `--screen`.

{table(["tasks", *lines, "MB of packed points"], drawn)}

![Seconds by number of tasks](images/scale.svg)

## Where each part reaches its limit

- **All pairs.** `matrix` without names is refused above 300 tasks; `map` then shows 60 tasks that are far from each
  other, chosen among 5,000 drawn at random.
- **Memory.** Packed points are read whole: {ROW_BYTES * 1e5 / 1e9:.2g} GB for 100,000 tasks and
  {ROW_BYTES * 1e6 / 1e9:.2g} GB for a million. The digests of all tasks are held beside them as text. A machine
  with less memory cannot screen so many tasks of one network.
- **Bandwidth.** Every command reads the packed files. On a URL, those of 100,000 tasks are
  {ROW_BYTES * 1e5 / 1e6:.0f} MB, which takes {ROW_BYTES * 1e5 * 8 / 1e9:.1f} s at 1 Gbit/s; later commands on the
  same machine read them from the local cache.
- **First screening.** One blob is read for each task that no file holds. A task that was never screened
  needs its Fisher information and a transaction of its own.
- **Write lock.** Writers wait for each other; [figures of stores](figures/store.md) give inserts per second. Distances
  of `matrix` are stored one by one.
- **Workers.** Pairs are independent, but the start of a worker costs more than all pairs of these small zoos.
- **Groups.** Points of different networks cannot be compared: `near --screen` trains the target once for each group.

Run it again: `python benchmarks/scale.py store 100000`, `packed 100000`, `matrix 3 10 30 100`, then `page`; the
store needs the programs of PostgreSQL.
""")
