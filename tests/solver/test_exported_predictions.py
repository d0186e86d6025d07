"""Exported files take raw inputs and give the predictions of the solution, where nearkin is not installed."""

import csv
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin as nk
from nearkin.core.budget import Budget
from nearkin.core.errors import MismatchError
from nearkin.nets.solved import Solved
from nearkin.solver.model_outputs import predict_inputs
from nearkin.solver.solution import Solution
from nearkin.tasks.new_inputs import read_inputs
from nearkin.tasks.readers.table import columns
from nearkin.tasks.table_encoding import TableEncoding
from nearkin.zoo.export import exported
from nearkin.zoo.plain_inputs import encode_table, image_pixels, table_rows
from solver.exporting import TOLERANCE, RunPython, run_onnx, visits, write


def solve(task: nk.Task, name: str, folder: Path) -> Solution:
    with nk.Zoo(folder / "zoo") as zoo:
        return nk.solve(task, zoo, Budget(evaluations=1), only=(name,), join=False, epochs=3)


def export(solution: Solution, to: str, file: Path, **more: Any) -> None:
    done = exported(solution.solved, to, file, temperature=solution.temperature, task=solution.task, **more)
    assert done["error"] <= TOLERANCE


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    write(folder / "visits.csv", visits(240, 0))
    write(folder / "new.csv", [{**row, "city": "Berlin"} if i % 3 else row for i, row in enumerate(visits(40, 1))])
    return folder


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("name", "target"),
    [("logistic", "verdict"), ("svm", "verdict"), ("mlp", "verdict"), ("boosting", "spent"), ("mlp", "spent")],
)
def test_a_table(name: str, target: str, table: Path, tmp_path: Path, run_python: RunPython) -> None:
    drop = "spent" if target == "verdict" else "verdict"
    task = nk.task(f"csv:{table / 'visits.csv'}?target={target}&drop={drop}&limit=150", name="visits")
    solution = solve(task, name, tmp_path)
    said = solution.predict(table / "new.csv")
    wanted = said.mean if said.probabilities is None else said.probabilities
    scale = max(1.0, float(wanted.abs().max()))
    export(solution, "python", tmp_path / "m.py")
    assert (run_python(tmp_path / "m.py", table / "new.csv") - wanted).abs().max() <= TOLERANCE * scale
    assert "nearkin" not in {line.split()[1] for line in (tmp_path / "m.py").read_text().splitlines()
                             if line.startswith(("import ", "from "))}  # fmt: skip
    export(solution, "onnx", tmp_path / "m.onnx")
    encoded = read_inputs(table / "new.csv", solution.task, "visits").rows
    outputs, details = run_onnx(tmp_path / "m.onnx", encoded.take(torch.arange(len(encoded))))
    assert (outputs - wanted).abs().max() <= TOLERANCE * scale
    assert "after its encoding" in details["notes"]
    assert len(json.loads(details["columns"])) == encoded.shape[0]
    assert json.loads(details["classes"]) == list(said.classes)


@pytest.mark.soak
def test_the_script_prints_predictions_and_one_line_errors(table: Path, tmp_path: Path) -> None:
    task = nk.task(f"csv:{table / 'visits.csv'}?target=verdict&drop=spent", name="visits")
    solution = solve(task, "logistic", tmp_path)
    export(solution, "python", tmp_path / "m.py")
    said = solution.predict(table / "new.csv")

    def script(file: Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-I", str(tmp_path / "m.py"), str(file)], capture_output=True, text=True)

    done = script(table / "new.csv")
    assert done.returncode == 0, done.stderr
    lines = list(csv.DictReader(done.stdout.splitlines()))
    assert [line["prediction"] for line in lines] == said.names
    assert float(lines[3]["good"]) == pytest.approx(float(said.probabilities[3, 1]), abs=1e-5)
    write(tmp_path / "short.csv", [{"age": "3"}])
    write(tmp_path / "words.csv", [{**row, "age": "old"} for row in visits(5, 2)])
    for file, message in (
        ("short.csv", "error: the table has no column 'date', 'member'"),
        ("words.csv", "error: column 'age': got cells such as 'old', expected the kind number"),
        ("nowhere.csv", "No such file"),
    ):
        failed = script(tmp_path / file)
        assert failed.returncode == 1
        assert message in failed.stderr
        assert failed.stderr.count("\n") == 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["cnn", "svm"])
def test_digits(name: str, tmp_path: Path, run_python: RunPython) -> None:
    task = nk.task("digits?classes=0,1,2&rest=drop&limit=120", name="digits")
    solution = solve(task, name, tmp_path)
    x = task.test.inputs.take(torch.arange(50)).float()
    as_bytes = (x * 255).round().to(torch.uint8)
    export(solution, "python", tmp_path / "m.py")
    for inputs in (x, as_bytes):
        torch.save(inputs, tmp_path / "x.pt")
        wanted = solution.predict(inputs).probabilities
        assert (run_python(tmp_path / "m.py", tmp_path / "x.pt") - wanted).abs().max() <= TOLERANCE
    export(solution, "onnx", tmp_path / "m.onnx")
    assert (run_onnx(tmp_path / "m.onnx", x)[0] - solution.predict(x).probabilities).abs().max() <= TOLERANCE
    export(solution, "onnx", tmp_path / "b.onnx", as_bytes=True)
    assert (run_onnx(tmp_path / "b.onnx", as_bytes)[0] - wanted).abs().max() <= TOLERANCE


def test_the_script_skips_images_that_cannot_be_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 8, 8), dtype=np.uint8)
    solution = solve(nk.Task.from_arrays("noise", images, [0, 1] * 15), "logistic", tmp_path)
    export(solution, "python", tmp_path / "m.py")
    for number in range(11):
        Image.fromarray(images[number]).save(tmp_path / f"{number:02d}.png")
    (tmp_path / "05.png").write_bytes(b"no image")
    command = [sys.executable, "-I", str(tmp_path / "m.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("warning: skipped: ")
    with pytest.warns(UserWarning, match="1 files are skipped"):
        said = solution.predict(tmp_path)
    lines = list(csv.DictReader(done.stdout.splitlines()))
    assert [Path(line["row"]).name for line in lines] == [Path(row).name for row in said.rows]
    assert [line["prediction"] for line in lines] == said.names
    (tmp_path / "06.png").write_bytes(b"no image")
    failed = subprocess.run(command, capture_output=True, text=True)
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert failed.stderr.startswith("error: 2 of 11 images cannot be read, at most a tenth may be")


def test_a_temperature_changes_the_exported_probabilities(tmp_path: Path, run_python: RunPython) -> None:
    task = nk.task("digits?limit=100", name="digits")
    model = nk.build("mlp?hidden=8", task.input_shape, task.num_outputs, seed=0)
    solved = Solved("digits", "mlp?hidden=8", task.facts(), 0, (nk.fit(model, task, nk.Recipe(steps=20)),))
    x = task.test.inputs.take(torch.arange(20))
    torch.save(x, tmp_path / "x.pt")
    wanted = predict_inputs(solved, read_inputs(x, task.facts(), "digits"), 2.5).probabilities
    exported(solved, "python", tmp_path / "m.py", temperature=2.5)
    assert torch.allclose(run_python(tmp_path / "m.py", tmp_path / "x.pt"), wanted, atol=TOLERANCE)
    exported(solved, "python", tmp_path / "m.py")
    assert not torch.allclose(run_python(tmp_path / "m.py", tmp_path / "x.pt"), wanted, atol=1e-2)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8)])
def test_a_network_of_another_image_size_takes_the_images_of_the_task(
    shape: tuple[int, ...], tmp_path: Path, run_python: RunPython
) -> None:
    """As fine-tuning of a related task's network does: the raw images are resized and recoloured in the model."""
    rng = torch.Generator().manual_seed(0)
    raw = torch.randint(256, (30, *((3, 12, 10) if shape[0] == 1 else (1, 12, 10))), generator=rng).to(torch.uint8)
    task = nk.Task.from_arrays("raw", raw, torch.arange(30) % 2)
    other = nk.Task.from_arrays("other", torch.rand(30, *shape, generator=rng), torch.arange(30) % 2)
    model = nk.build("lenet?width=0.5", shape, 2, seed=0)
    solved = Solved("raw", "lenet?width=0.5", other.facts(), 0, (nk.fit(model, other, nk.Recipe(steps=5)),))
    exported(solved, "python", tmp_path / "m.py", task=task.facts())
    exported(solved, "onnx", tmp_path / "m.onnx", task=task.facts())
    for x in (raw, raw.float() / 255 + 1e-4):
        torch.save(x, tmp_path / "x.pt")
        wanted = predict_inputs(solved, read_inputs(x, task.facts(), "raw")).probabilities
        assert (run_python(tmp_path / "m.py", tmp_path / "x.pt") - wanted).abs().max() <= TOLERANCE
    assert (run_onnx(tmp_path / "m.onnx", x)[0] - wanted).abs().max() <= TOLERANCE


def test_heteroscedastic_values_are_in_the_units_of_the_data(tmp_path: Path, run_python: RunPython) -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    task = nk.Task.from_arrays("line", x, 500 + 90 * x, likelihood="heteroscedastic", classes=("a", "b"))
    model = nk.build("mlp?hidden=4", task.input_shape, task.num_outputs, seed=0)
    solved = Solved("line", "mlp?hidden=4", task.facts(), 0, (nk.fit(model, task, nk.Recipe(steps=20)),))
    torch.save(x, tmp_path / "x.pt")
    wanted = predict_inputs(solved, read_inputs(x, task.facts(), "line")).mean
    exported(solved, "python", tmp_path / "m.py")
    found = run_python(tmp_path / "m.py", tmp_path / "x.pt")
    assert found.shape == (60, 2)
    assert torch.allclose(found, wanted, rtol=TOLERANCE)


def test_closed_form_transfer_is_refused_in_one_line(kin_zoo: nk.Zoo, target: nk.Task, tmp_path: Path) -> None:
    found = nk.solve(target, kin_zoo, Budget(evaluations=1), only=("transfer",), join=False)
    for to, file in (("onnx", "m.onnx"), ("python", "m.py")):
        with pytest.raises(MismatchError, match=r"neither ONNX nor a Python file.*; use --to torch") as said:
            exported(found.solved, to, tmp_path / file)
        assert "\n" not in str(said.value)


# Reading of rows and image files without nearkin

WRITTEN = ["$1,200.5", "-€ 3", "2,5 %", "1.234,56", "1,2,3", "1,5", "1e3"]
ODD = [*WRITTEN, "", " ", "NA", "nan", "1", " 2 ", "-0", "1_0", "inf", "1e300", "٣", "0x1", "?", "None", "3.5e38"]


def test_odd_cells_are_encoded_as_by_nearkin() -> None:
    rng = random.Random(0)
    cells = {
        "number": [f"{rng.gauss(0, 9):.3f}" for _ in range(40)] + ["", "many"],
        "truth": [rng.choice(("yes", "no")) for _ in range(40)] + ["", ""],
        "iso": [f"2024-0{rng.randrange(1, 9)}-1{i % 9}T0{i % 9}:30:00Z" for i in range(40)] + ["", ""],
        "old": [f"{1 + i % 28}.03.{1890 + i}" for i in range(40)] + ["", ""],
        "few": [rng.choice(("a", "b", "", "ä b")) for _ in range(42)],
        "many": [f"v{rng.randrange(150)}" for _ in range(42)],
        "text": [" ".join(rng.choice(("Dog's", "cat", "猫", "the_end", "no")) for _ in range(5)) for _ in range(42)],
    }
    encoding, _ = TableEncoding.fit(cells)
    assert {column.encoding.kind for column in encoding.columns} >= {"number", "boolean", "date", "category", "text"}
    dates = ["2024-02-30", "2024-05-01", "2024-05-01T10:00:00+02:00", "1.1.1850", "31.12.2100", "29.02.2023"]
    mixed = [*ODD, *dates, "YES", "f", "a", "ä b ", "v1", "v999", "cat cat 猫 no", "x" * 300]
    rows = {name: rng.sample(mixed, len(mixed)) + column[:20] for name, column in cells.items()}
    records = [dict(zip(rows, line, strict=True)) for line in zip(*rows.values(), strict=True)]
    found = encode_table(records, encoding.to_dict()["columns"])
    assert torch.allclose(found, torch.from_numpy(encoding.encode(rows)), rtol=1e-6, atol=1e-7)


def test_files_and_records_are_read_as_by_nearkin(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes('\ufeff"x";y \r\n1;"a;b"\r\n\r\n2;\r\n'.encode())
    assert table_rows(tmp_path / "a.csv") == [{"x": "1", "y": "a;b"}, {"x": "2", "y": ""}]
    for separator in ",;|\t":
        cells = ["1.234,5", "-0,25", "1,234", "", "7", "a", "12 %", "$3"]
        rows = "".join(f'"{cell}"{separator}"{other}"\n' for cell in cells[:5] for other in cells)
        (tmp_path / "c.csv").write_text(f'"a,b"{separator}c\n{rows}')
        wanted = columns(tmp_path / "c.csv")
        assert wanted["a,b"][8] == ("-0.25" if separator == ";" else "-0,25")
        assert table_rows(tmp_path / "c.csv") == [
            dict(zip(wanted, row, strict=True)) for row in zip(*wanted.values(), strict=True)
        ]
    (tmp_path / "b.csv").write_text("x,y\n1\n")
    with pytest.raises(ValueError, match="row 1 has 1 cells, the header 2"):
        table_rows(tmp_path / "b.csv")
    column = {"name": "x", "kind": "number", "fill": 7.0, "gaps": True, "kept": [0, 1]}
    found = encode_table([{"x": 1.5}, {"x": None}, {}, {"x": float("nan")}, {"x": np.float64(2)}], [column])
    assert found.tolist() == [[1.5, 0], [7, 1], [7, 1], [7, 1], [2, 0]]


@pytest.mark.parametrize("channels", [1, 3])
def test_image_files_are_read_as_by_nearkin(channels: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = {
        "grey.png": Image.fromarray(rng.integers(0, 256, (9, 7), dtype=np.uint8)),
        "colour.jpg": Image.fromarray(rng.integers(0, 256, (30, 20, 3), dtype=np.uint8)),
        "same.png": Image.fromarray(rng.integers(0, 256, (8, 6, 3), dtype=np.uint8)),
        "deep.png": Image.fromarray(rng.integers(0, 65536, (12, 12), dtype=np.uint16)),
        "alpha.png": Image.fromarray(rng.integers(0, 256, (9, 7, 4), dtype=np.uint8)),
        "palette.gif": Image.fromarray(rng.integers(0, 256, (9, 7), dtype=np.uint8)).convert("P"),
        "bits.png": Image.fromarray(rng.integers(0, 256, (9, 7), dtype=np.uint8)).convert("1"),
    }
    for name, picture in pictures.items():
        picture.save(tmp_path / name)
    shape = (channels, 8, 6)
    facts = nk.Task.from_arrays("toy", rng.integers(0, 256, (20, *shape), dtype=np.uint8), [0, 1] * 10).facts()
    files = sorted(tmp_path / name for name in pictures)
    wanted = read_inputs(files, facts, "toy").rows
    found = image_pixels(files, shape)
    assert torch.equal(found.float() / 255, wanted.take(torch.arange(len(files))))
    assert torch.equal(image_pixels(files, shape, invert=True), 255 - found)
