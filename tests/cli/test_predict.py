"""`nearkin solve` on data as people have it, then `nearkin predict` on new rows and files."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearkin as nk
from calling import Call

HEAD = ("visit_id", "age", "date", "member", "city", "review", "verdict")
SOLVE = ("--evaluations", "1", "--only", "logistic")


def rows(count: int, seed: int = 0) -> list[list[str]]:
    """Visits with missing cells, dates and text; the words of the review give the verdict."""
    rng = random.Random(seed)
    visits = []
    for number in range(count):
        good = rng.random() < 0.5
        words = [*(("lovely", "great", "fine") if good else ("awful", "poor", "dirty")), "room", "food", "the"]
        visits.append([
            str(1000 + number),
            "" if rng.random() < 0.1 else f"{rng.gauss(40, 9):.1f}",
            f"2024-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}",
            rng.choice(("yes", "no", "")),
            rng.choice(("Oslo", "Rome", "Paris", "")),
            " ".join(rng.choice(words) for _ in range(8)),
            ("good" if good else "bad") if rng.random() > 0.03 else "",
        ])  # fmt: skip
    return visits


def write(path: Path, head: tuple[str, ...], table: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *table])


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    write(tmp_path / "visits.csv", HEAD, rows(240))
    new = [[*row[:4], "Berlin", row[5]] for row in rows(30, seed=1)]
    write(tmp_path / "new.csv", HEAD[:-1], new)
    write(tmp_path / "short.csv", HEAD[:4], [row[:4] for row in new])
    return tmp_path


def test_solve_and_predict_a_table_as_people_have_it(visits: Path, call: Call) -> None:
    solved = call("solve", "visits", "csv:visits.csv?target=verdict", *SOLVE)
    assert solved.code == 0, solved.err
    for line in ("rows have no target: left out", "column 'visit_id' has", "column 'age': missing in",
                 "column 'date' is a date (iso)", "column 'review' is text"):  # fmt: skip
        assert solved.err.count(line) == 1, line
    assert "identifier" in (visits / "visits-solution" / "report.html").read_text()

    said = call("predict", "visits-solution", "new.csv", "--out", "out/answers.csv", "--json")
    assert said.code == 0, said.err
    answer = json.loads(said.out)
    wanted = ["good" if {"lovely", "great", "fine"} & set(row[5].split()) else "bad" for row in rows(30, seed=1)]
    assert np.mean([one == other for one, other in zip(answer["predictions"], wanted, strict=True)]) > 0.9
    assert answer["rows"] == [str(number) for number in range(30)]
    assert np.allclose(np.sum(answer["probabilities"], 1), 1)
    with (visits / "out" / "answers.csv").open() as file:
        written = list(csv.DictReader(file))
    assert list(written[0]) == ["row", "prediction", "probability", "bad", "good"]
    assert [row["prediction"] for row in written] == answer["predictions"]

    named = call("predict", "visits", "new.csv", "--abstain", "1", "--json")  # the same solution, stored in the zoo
    assert json.loads(named.out)["probabilities"] == answer["probabilities"]
    assert set(json.loads(named.out)["predictions"]) <= {"abstain", "good", "bad"}
    assert "abstain" in json.loads(named.out)["predictions"]
    shown = call("predict", "visits", "new.csv")
    assert "10 more rows; write all of them with --out FILE" in shown.out

    short = call("predict", "visits", "short.csv")
    assert short.code == 1
    assert short.err == (
        "error: the table has no column 'city', 'review'; it needs age, date, member, city, review: add them, with "
        "empty cells if the values are unknown\n"
    )
    solution = nk.Solution.load(visits / "visits-solution" / "solution.safetensors")
    records = [
        dict(zip(HEAD[:-1], row, strict=True)) for row in [[*row[:4], "Berlin", row[5]] for row in rows(30, seed=1)]
    ]
    assert solution.predict(records).names == answer["predictions"]
    assert solution.predict(visits / "new.csv").names == answer["predictions"]


def test_values_have_an_interval(tmp_path: Path, call: Call) -> None:
    rng = random.Random(0)
    table = [[f"{rng.random():.4f}", rng.choice(("red", "blue", ""))] for _ in range(400)]
    write(tmp_path / "prices.csv", ("size", "colour", "price"), [
        [*row, f"{10 * float(row[0]) + (row[1] == 'red') + rng.gauss(0, 0.1):.3f}"] for row in table
    ])  # fmt: skip
    write(tmp_path / "new.csv", ("size", "colour"), table[:50])
    assert call("solve", "prices", "csv:prices.csv?target=price", *SOLVE, "--out", "prices").code == 0
    said = call("predict", "prices", "new.csv", "--json", "--out", "answers.csv")
    answer = json.loads(said.out)
    assert answer["probabilities"] is None
    inside = [
        low <= 10 * float(row[0]) + (row[1] == "red") <= high
        for row, (low, high) in zip(table, answer["intervals"], strict=False)
    ]
    assert np.mean(inside) > 0.9
    assert (tmp_path / "answers.csv").read_text().startswith("row,prediction,low,high\n")
    refused = call("predict", "prices", "new.csv", "--abstain", "0.5")
    assert refused.err.startswith("error: got --abstain, but 'prices' predicts values")


def test_images_and_added_tasks(tmp_path: Path, call: Call) -> None:
    rng = np.random.default_rng(0)
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(15):
            pixels = rng.integers(0, 60, (8, 8), dtype=np.uint8) + np.uint8(150 * label)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    added = call("-q", "add", "light", "folder:photos", "--network", "mlp?hidden=4", "--trials", "1", "--epochs", "20")
    assert added.code == 0, added.err
    (tmp_path / "photos" / "light" / "3.png").write_bytes(b"no image")
    said = call("predict", "light", "photos", "--json")
    answer = json.loads(said.out)
    assert said.err.startswith("warning: skipped: ")
    assert (len(answer["rows"]), len(answer["skipped"])) == (29, 1)
    right = [Path(row).parent.name == name for row, name in zip(answer["rows"], answer["predictions"], strict=True)]
    assert np.mean(right) > 0.9
    one = call("predict", "light", "photos/dark/0.png", "photos/light/0.png")
    assert one.code == 0
    assert "photos/light/0.png" in one.out


def test_models_that_are_not_there(tmp_path: Path, call: Call) -> None:
    (tmp_path / "new.csv").write_text("a\n1\n")
    for model, words in (
        ("nowhere.safetensors", "there is no file nowhere.safetensors; name a folder or file that nearkin solve wrote"),
        ("new.csv", "new.csv"),
        ("nowhere", "nowhere"),
    ):
        said = call("predict", model, "new.csv")
        assert said.code == 1
        assert said.err.startswith("error: ")
        assert words in said.err or "nearkin-zoo" in said.err


def test_a_model_file_predicts_and_is_not_evaluated_on_columns_of_another_encoding(visits: Path, call: Call) -> None:
    trained = call("train", "csv:visits.csv?target=verdict", "--network", "mlp?hidden=8", "--epochs", "20", "--out",
                   "visits.safetensors")  # fmt: skip
    assert trained.err.count("column 'review' is text") == 1
    assert call("evaluate", "visits.safetensors").code == 0
    assert json.loads(call("predict", "visits.safetensors", "new.csv", "--json").out)["rows"][-1] == "29"
    write(visits / "other.csv", HEAD, rows(240, seed=3))
    refused = call("evaluate", "visits.safetensors", "csv:other.csv?target=verdict")
    assert refused.code == 1
    assert "not encoded like" in refused.err
