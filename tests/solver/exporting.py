"""Run exported files in a process without nearkin, and tables of raw rows for them."""

import csv
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

TOLERANCE = 1e-5
DRIVER = """
import importlib.util, json, sys
sys.modules["nearkin"] = None
sys.path.append(sys.argv[1])
import torch
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("model", sys.argv[2])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
data = torch.load(sys.argv[3], weights_only=True) if sys.argv[3].endswith(".pt") else sys.argv[3]
torch.save(module.predict(data), sys.argv[4])
"""


def run_python(file: Path, data: Path) -> torch.Tensor:
    """Predictions of an exported .py file, in a process without nearkin."""
    out, packages = file.with_suffix(".out.pt"), str(Path(torch.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", DRIVER, packages, str(file), str(data), str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return torch.load(out, weights_only=True)


def run_onnx(file: Path, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, str]]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {"x": x.numpy()})
    return torch.from_numpy(outputs), session.get_modelmeta().custom_metadata_map


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def visits(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows with missing cells, dates, truth values, rare and many categories, and text."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        good = rng.random() < 0.5
        words = [*(("lovely", "great", "fine") if good else ("awful", "poor", "dirty")), "room", "food", "the"]
        rows.append({
            "visit_id": str(1000 + number),
            "age": rng.choice(["", "n/a", f"{rng.gauss(40, 9):.1f}", f"{rng.gauss(40, 9):.1f}"]),
            "date": rng.choice(["", f"{rng.randrange(1, 29)}/{rng.randrange(1, 13)}/2023 {rng.randrange(24)}:15"]),
            "member": rng.choice(("yes", "no", "")),
            "city": rng.choice(("Oslo", "Rome", "Paris", "", " São Paulo ")),
            "street": f"street {rng.randrange(120)}",
            "review": " ".join(rng.choice(words) for _ in range(8)),
            "spent": f"{rng.gauss(5, 1) + 40 * good + (1e6 if rng.random() < 0.01 else 0):.2f}",
            "verdict": ("good" if good else "bad") if rng.random() > 0.03 else "",
        })  # fmt: skip
    return rows
