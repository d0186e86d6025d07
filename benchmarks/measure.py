"""Measurements of benchmarks: process time relative to a reference, and peak memory of tensors."""

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

DECIDED = 10.0  # a candidate this many times as slow as the reference is timed in the first rounds only
DECIDED_ROUNDS = 3


def process_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def ratios(reference: Callable[[], Any], candidates: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median over rounds of each candidate's process time divided by that of the reference before and after it.

    Everything has run once before it is timed; candidates take turns, so that a busy machine is busy for all of them.
    The reference's own median in seconds is returned under `plain_seconds`.
    """
    results: dict[str, list[float]] = {name: [] for name in candidates}
    plain = [process_seconds(reference), process_seconds(reference)]
    for number in range(rounds):
        for name, work in candidates.items():
            if number >= DECIDED_ROUNDS and statistics.median(results[name]) > DECIDED:
                continue
            seconds = process_seconds(work)
            plain.append(process_seconds(reference))
            results[name].append(2 * seconds / (plain[-2] + plain[-1]))
    medians = {name: round(statistics.median(values), 3) for name, values in results.items()}
    return {**medians, "plain_seconds": round(statistics.median(plain[1:]), 5)}


def peak_bytes(work: Callable[[], Any]) -> int:
    """Peak bytes of tensors beyond those that existed before, from the records of torch's CPU allocator.

    The same for everyone, and repeatable to the byte; scratch that oneDNN and MKL keep to themselves is not seen.
    """
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        result = work()
    del result
    memory = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(memory, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most


def resident_bytes(field: str = "VmHWM") -> int:
    """Resident memory of this process: the peak, or now with `VmRSS`; `ru_maxrss` may be that of a parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def apart(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run `work` in a new process; returns its result with wall seconds and MiB beyond those at its start."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_watched, work, arguments).result()


def _watched(work: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> dict[str, Any]:
    torch.set_num_threads(1)
    before, start = resident_bytes("VmRSS"), time.perf_counter()
    result = work(*arguments)
    return {
        **result,
        "seconds": round(time.perf_counter() - start, 2),
        "mebibytes": round((resident_bytes() - before) / 2**20),
    }
