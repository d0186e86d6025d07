"""Storage of the figures of benchmarks: one JSON file beside each script."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def keep(script: str, figures: dict[str, Any]) -> Path:
    """Write figures, with what they were measured on, to `benchmarks/NAME.json`."""
    file = Path(script).with_suffix(".json")
    machine = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "machine": platform.machine(),
        "threads": 1,
    }
    file.write_text(json.dumps({"measured_on": machine, **figures}, indent=2) + "\n")
    return file


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
