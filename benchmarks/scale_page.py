"""The cost model of a zoo as a page of tables and a plot, from the figures of `scale.py`."""

from pathlib import Path
from typing import Any

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


def constants(figures: dict[str, Any]) -> tuple[float, float]:
    """Seconds of one pair, from the largest zoo and one worker; seconds of one task in a screening."""
    pairs = [row for row in figures["matrices"] if row["workers"] == 1][-1]
    rows = figures["stores"][max(figures["stores"], key=int)]
    slowest = max(
        rows[kind]["screening"]["cpu"] for kind in ("SQLite", "PostgreSQL") if "screening" in rows.get(kind, {})
    )
    return pairs["matrix"]["cpu"] / pairs["tasks"] ** 2, slowest / rows["tasks"]


def curves(figures: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Seconds of the processor by number of tasks."""
    pair, screened = constants(figures)
    return {
        "matrix": [(k, pair * k * k) for k in SIZES],
        "near": [(k, pair * k) for k in SIZES],
        "near --screen 5": [(k, pair * min(k, RACE) + screened * k) for k in SIZES],
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
    """Predictions of the smallest zoo for the others."""
    lines = []
    for workers in (1, 2):
        rows = [row for row in figures["matrices"] if row["workers"] == workers]
        for row in rows:
            scale = (row["tasks"] / rows[0]["tasks"]) ** 2
            told = (
                ["–"] * 2
                if row is rows[0]
                else [number(rows[0]["matrix"][key] * scale) for key in ("cpu", "statements")]
            )
            lines.append([
                str(row["tasks"]), str(workers), f"{row['tasks'] ** 2}", number(row["passes"]), told[0],
                number(row["matrix"]["cpu"]), told[1], number(row["matrix"]["statements"]),
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
    pair, screened = constants(figures)
    lines = curves(figures)
    drawn = [[f"{k:,}", *(number(points[i][1]) for points in lines.values()), number(ROW_BYTES * k / 1e6)]
             for i, k in enumerate(SIZES)]  # fmt: skip
    largest, most = max(map(int, figures["stores"])), max(row["tasks"] for row in figures["matrices"])
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

All seconds are those of the processor unless wall time is named: the machine has two cores and was shared with
other work (load {figures["load"]:.0f}), so that wall times are many times as long, and times of the processor are
longer
than on an idle machine too. The server of PostgreSQL is another process, whose own time is only in the wall time.
Nothing here was measured on an idle machine.

**Not measured:** the goal of `near --screen` in less than 2 s with 100,000 tasks was not checked as a whole. The
largest synthetic store has {largest:,} tasks; the largest zoo of which all pairs were measured has {most}
tasks (10, 30 and 100 were planned). Figures above these sizes are drawn from the model.

## Model

| part | cost |
| --- | --- |
| `matrix`, `map` | $K^2$ pairs, c = {pair:.2g} s a pair and trial for `mlp?hidden=8` on 100 samples |
| `near` | $K$ pairs |
| `near --screen M` | {RACE - MEASURED:.3g} + M passes, and b K with b = {screened:.2g} s a task |
| memory and files of packed points | {ROW_BYTES:,} bytes a task: 2,048 numbers in float16 and a digest |
| database, `near --screen` | a fixed number of queries for each group of tasks with one network, whatever K is |
| database, `matrix` | some statements for each pair, as every distance is stored in a transaction of its own |

## All pairs, predicted and measured

The smallest zoo predicts the others in proportion to K². With two workers the start of processes and the queue of jobs
are included; statements are those of the first process only.

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
- **Bandwidth.** Every command reads the packed files again. On a URL, 100,000 tasks are
  {ROW_BYTES * 1e5 / 1e6:.0f} MB for each command, which takes {ROW_BYTES * 1e5 * 8 / 1e9:.1f} s at 1 Gbit/s. They
  are not in the local cache of blobs.
- **First screening.** One blob is read for each task that no file holds. A task that was never screened
  needs its Fisher information and a transaction of its own.
- **Write lock.** Writers wait for each other; [figures of stores](figures/store.md) give inserts per second. Distances
  of `matrix` are stored one by one.
- **Workers.** Pairs are independent, but the start of a worker costs more than all pairs of these small zoos.
- **Groups.** Points of different networks cannot be compared: `near --screen` trains the target once for each group.

Run it again: `python benchmarks/scale.py store 100000`, `packed 100000`, `matrix 10 30 100`, then `page`; the
store needs the programs of PostgreSQL.
""")
