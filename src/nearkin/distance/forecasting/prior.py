"""Runs that are shipped with the package, for a zoo without runs of its own (`benchmarks/forecast.py` wrote them)."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from nearkin.core.state import State
from nearkin.distance.forecasting.curve import RunCurve
from nearkin.distance.forecasting.past_runs import RecordedRun
from nearkin.distance.forecasting.signals import Signals

FILE = Path(__file__).with_name("shipped_runs.safetensors")


def packed(runs: Sequence[RecordedRun]) -> State:
    """Runs as one state: curves one after the other, in float32."""
    curves = [run.curve.to_tensors() for run in runs]
    tensors = {name: torch.cat([curve[name] for curve in curves]) for name in curves[0]}
    sizes = [[len(curve["clocks"]), len(curve["validated"])] for curve in curves]
    tensors["sizes"] = torch.tensor(sizes, dtype=torch.int32)
    tensors["signals"] = torch.tensor([_numbers(run.signals) for run in runs], dtype=torch.float32)
    facts = [[run.source, run.target, run.network, run.optimiser, run.batch_size] for run in runs]
    return State(tensors, {"runs": facts})


def unpacked(state: State) -> tuple[RecordedRun, ...]:
    """The inverse of `packed`."""
    tensors = {name: value.double() for name, value in state.tensors.items() if value.is_floating_point()}
    sizes: list[tuple[int, int]] = state.tensors["sizes"].tolist()
    runs, points, validations = [], 0, 0
    for facts, (size, count), numbers in zip(state.facts["runs"], sizes, tensors["signals"].tolist(), strict=True):
        curve = RunCurve(
            *(tensors[name][points : points + size] for name in ("clocks", "losses")),
            *(tensors[name][validations : validations + count] for name in ("validated", "metrics")),
        )
        points, validations = points + size, validations + count
        source, target, network, optimiser, batch_size = facts
        signals = _signals(numbers)
        runs.append(RecordedRun(source, target, network, optimiser, batch_size, signals, curve))
    return tuple(runs)


@cache
def shipped_runs() -> tuple[RecordedRun, ...]:
    """All shipped runs."""
    return unpacked(State.from_bytes(FILE.read_bytes(), FILE.name))


def _numbers(signals: Signals) -> list[float]:
    known = torch.nan if signals.complexity is None else signals.complexity
    return [signals.constant_loss, known, signals.guess, signals.num_samples, signals.step_seconds, *signals.losses]


def _signals(numbers: list[float]) -> Signals:
    constant, complexity, guess, samples, seconds, *losses = numbers
    known = None if complexity != complexity else complexity
    return Signals(tuple(losses), constant, known, guess, round(samples), seconds)
