"""Run exported files in processes without nearkin, and tables of raw rows for them."""

import csv
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

TOLERANCE = 1e-5
DRIVER = """
import importlib.util, os, signal, sys, traceback
sys.modules["nearkin"] = None
sys.path.append(sys.argv[1])
import torch
torch.set_num_threads(1)

def predict(file, data, out):
    spec = importlib.util.spec_from_file_location("model", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.save(module.predict(torch.load(data, weights_only=True) if data.endswith(".pt") else data), out)

for line in sys.stdin:
    if os.fork() == 0:
        signal.alarm(120)
        try:
            predict(*line.rstrip("\\n").split("\\t"))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""

RunPython = Callable[[Path, Path], torch.Tensor]


@contextmanager
def python_runner() -> Iterator[RunPython]:
    """A function that gives the predictions of an exported .py file, in a process that cannot import nearkin.

    Each call is a fork of one process that has imported torch.
    """
    packages = str(Path(torch.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", DRIVER, packages]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(file: Path, data: Path) -> torch.Tensor:
            out = file.with_suffix(".out.pt")
            out.unlink(missing_ok=True)
            print(file, data, out, sep="\t", file=process.stdin, flush=True)
            assert process.stdout.readline() == "0\n", "the exported file failed; its traceback is on standard error"
            return torch.load(out, weights_only=True)

        yield run


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
