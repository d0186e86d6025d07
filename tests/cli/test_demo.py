"""The demonstration: from nothing, and again from what it left."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_demo_builds_a_zoo_and_goes_on_from_it(tmp_path: Path) -> None:
    command = [Path(sys.executable).parent / "nearkin", "--quiet", "demo"]
    first = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    told = json.loads(first.stdout)
    assert [task["name"] for task in told["tasks"]] == ["zero", "six", "some", "all"]
    assert all(task["metric"] > 0.95 for task in told["tasks"])
    surroundings = {**os.environ, "NO_COLOR": "1"}
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=surroundings)
    assert again.stdout.count("is in the zoo already") == 4
    assert "nearkin-demo/zoo" in again.stdout
    assert "\x1b" not in again.stdout
