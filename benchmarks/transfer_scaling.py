"""Log probability of N targets under a linearized network of 800,000 weights: time and memory by N.

    python benchmarks/transfer_scaling.py [--limit SECONDS] [--only "METHOD;..."] [--again] [--page]

As figure 4 of Maddox et al. (2019): a multilayer perceptron 5-200-2000-200-1, here with tanh, in float64, on one thread
of a CPU. Every method and size runs in its own process, and its result is written to `benchmarks/transfer_scaling.json`
at once, so that an interrupted run resumes. Finished ones are measured again only with --again. A size that would take
longer than the limit, judged by the smaller sizes, or more memory than the method may use, is skipped with the reason.
--page writes `docs/figures/transfer-scaling.md` and its plot from the stored figures.
"""

import argparse
import json
import math
import os
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that cells run in

from measure import apart
from results import keep
from transfer_scaling_methods import METHODS, NOISE, NUM_WEIGHTS, SCALE, dense_determinant, measured, needed
from transfer_scaling_page import written

COUNTS = (100, 300, 1000, 3000, 10_000, 30_000)
OUR_BYTES, PEER_BYTES = 2 * 2**30, 4 * 2**30
GROWTH = 2.0  # of time with N where two sizes do not tell yet
LENIENT = 1.5  # times the limit that a cell may take once it is tried
SHORT = 2.0  # seconds below which a cell tells nothing of growth
FULL = "laplace-torch, full"
Cells: TypeAlias = dict[str, dict[str, dict[str, Any]]]


def kept() -> dict[str, Any]:
    """Figures of earlier runs."""
    file = Path(__file__).with_suffix(".json")
    return json.loads(file.read_text()) if file.exists() else {"cells": {}, "dense": {}}


def expected(cells: dict[str, dict[str, Any]], count: int) -> float:
    """Expected seconds of a method, from its smaller sizes."""
    done = [(int(n), cell["cpu"]) for n, cell in cells.items() if "cpu" in cell and int(n) < count]
    if not done:
        return 0.0
    (n, seconds), growth = done[-1], GROWTH
    if len(done) > 1 and done[-2][1] > SHORT:
        growth = max(1.0, math.log(seconds / done[-2][1]) / math.log(n / done[-2][0]))
    return seconds * (count / n) ** growth


def refused(name: str, cells: dict[str, dict[str, Any]], count: int, limit: float) -> str | None:
    """Why a cell is not tried."""
    room = OUR_BYTES if "," not in name or name.startswith(("function", "weight")) else PEER_BYTES
    if needed(name, count) > room:
        return f"needs {needed(name, count) / 2**30:,.1f} GiB, {room / 2**30:.0f} are allowed"
    if (seconds := expected(cells, count)) > limit:
        return f"would take about {seconds:,.0f} s, {limit:.0f} are allowed"
    return None


def cell(name: str, cells: dict[str, dict[str, Any]], count: int, limit: float) -> dict[str, Any]:
    """One cell, measured or skipped."""
    why = refused(name, cells, count, limit)
    if why is not None:
        return {"skipped": why}
    try:
        return apart(measured, name, count, LENIENT * limit)
    except BrokenProcessPool:
        return {"skipped": f"was ended: it took more than {LENIENT * limit:.0f} s, or more memory than there is"}
    except Exception as reason:
        return {"refused": f"{type(reason).__name__}: {' '.join(str(reason).split())[:160]}"}


def run(names: list[str], limit: float, again: bool) -> None:
    figures = kept()
    head = {"weights": NUM_WEIGHTS, "noise": NOISE, "scale": SCALE, "cells": {}, "dense": {}}
    figures = {**head, **{key: value for key, value in figures.items() if key != "measured_on"}}
    cells: Cells = figures["cells"]
    for count in COUNTS:
        for name in names:
            results = cells.setdefault(name, {})
            if str(count) in results and not again and "cpu" in results[str(count)]:
                continue
            print(f"{name}, N = {count:,}", flush=True)
            results[str(count)] = cell(name, results, count, limit)
            print(f"  {results[str(count)]}", flush=True)
            keep(__file__, figures)
        cells[FULL] = {str(COUNTS[0]): {"skipped": refused(FULL, {}, COUNTS[0], limit)}}
        if count <= 3000 and str(count) not in figures["dense"]:
            figures["dense"][str(count)] = apart(dense_determinant, count)
            keep(__file__, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of process time that a cell may take")
    parser.add_argument("--only", default=";".join(METHODS), help="methods, semicolon between")
    parser.add_argument("--again", action="store_true", help="measure cells that are there again")
    parser.add_argument("--page", action="store_true", help="write the page from what is kept, measure nothing")
    chosen = parser.parse_args()
    if not chosen.page:
        run(chosen.only.split(";"), chosen.limit, chosen.again)
    print(written(kept()))


if __name__ == "__main__":
    main()
