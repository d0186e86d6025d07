"""The numbered scripts of `examples/` run as they stand."""

import os
import subprocess
from pathlib import Path

import pytest

from warm import SCRIPT

ARGUMENTS = {"10_detection.py": ("detection.svg", "20")}  # fewer steps than by default
LONG = ("03_near_kin.py", "04_solve.py", "05_transfer.py", "08_shared_weights.py", "10_detection.py")
"""Scripts that take six seconds or more; run by `make soak` only."""
EXAMPLES = [
    pytest.param(script, id=script.name, marks=[pytest.mark.soak] if script.name in LONG else [])
    for script in sorted((Path(__file__).parents[2] / "examples").glob("[0-9]*.py"))
]


@pytest.mark.parametrize("script", EXAMPLES)
def test_example_runs(script: Path, tmp_path: Path, command: Path) -> None:
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [command / SCRIPT, script, *ARGUMENTS.get(script.name, ())]
    done = subprocess.run(words, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
