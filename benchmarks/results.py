"""Storage of the figures of benchmarks, one JSON file beside each script; intervals and tables of their pages."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats


def keep(script: str, figures: dict[str, Any]) -> Path:
    """Write figures, with what they were measured on, to `benchmarks/NAME.json`."""
    file = Path(script).with_suffix(".json")
    machine = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "machine": platform.machine(),
        "threads": 1,
    }
    new = file.with_suffix(".json.new")  # a stop in the middle of writing leaves the old file
    new.write_text(json.dumps({"measured_on": machine, **figures}, indent=2) + "\n")
    new.replace(file)
    return file


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval (Student); NaN for fewer than two values."""
    if len(values) < 2:
        return (float(np.mean(values)) if values else float("nan")), float("nan")
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return float(np.mean(values)), float(half)


def span(values: list[float], digits: int = 3) -> str:
    """A mean ± half of its interval."""
    mean, half = interval(values)
    if not values:
        return "–"
    return f"{mean:.{digits}f}" if np.isnan(half) else f"{mean:.{digits}f} ± {half:.{digits}f}"
