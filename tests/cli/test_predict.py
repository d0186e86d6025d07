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
SOLVE = ("--evaluations", "1", "--only", "logistic", "--epochs", "1")


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


def test_the_intervals_of_values_hold_new_values(tmp_path: Path, call: Call) -> None:
    rng = random.Random(0)

    def sample(count: int) -> list[list[str]]:
        """Size, colour and price; the noise has heavy tails, so that normal intervals would be wrong."""
        rows = []
        for _ in range(count):
            size, colour = rng.random(), rng.choice(("red", "blue", ""))
            noise = rng.gauss(0, 0.1) * (5 if rng.random() < 0.1 else 1)
            rows.append([f"{size:.4f}", colour, f"{10 * size + (colour == 'red') + noise:.3f}"])
        return rows

    head = ("size", "colour", "price")
    write(tmp_path / "prices.csv", head, sample(800))
    new = sample(2000)
    write(tmp_path / "new.csv", head[:2], [row[:2] for row in new])
    assert call("solve", "prices", "csv:prices.csv?target=price", *SOLVE, "--out", "prices").code == 0
    said = call("predict", "prices", "new.csv", "--json", "--out", "answers.csv")
    answer = json.loads(said.out)
    assert answer["probabilities"] is None
    inside = [low <= float(row[2]) <= high for row, (low, high) in zip(new, answer["intervals"], strict=True)]
    assert 0.92 <= np.mean(inside) <= 0.98  # 160 residuals: 0.95 with a standard deviation of 0.017
    assert (tmp_path / "answers.csv").read_text().startswith("row,prediction,low,high\n")
    refused = call("predict", "prices", "new.csv", "--abstain", "0.5")
    assert refused.err.startswith("error: got --abstain, but 'prices' predicts values")


def test_the_answers_above_a_probability_are_right_that_often(tmp_path: Path, call: Call) -> None:
    rng = random.Random(0)

    def sample(count: int) -> list[list[str]]:
        scores = [rng.gauss(0, 2) for _ in range(count)]
        return [[f"{score:.4f}", "yes" if rng.random() < 1 / (1 + np.exp(-score)) else "no"] for score in scores]

    new = sample(2000)
    write(tmp_path / "old.csv", ("score", "answer"), sample(600))
    write(tmp_path / "new.csv", ("score",), [row[:1] for row in new])
    assert call("solve", "old", "csv:old.csv?target=answer", *SOLVE).code == 0
    shares = []
    for threshold in (0.6, 0.8, 0.9):
        answer = call("predict", "old", "new.csv", "--abstain", str(threshold), "--json").json
        highest = np.max(answer["probabilities"], 1)
        answered = np.array([word != "abstain" for word in answer["predictions"]])
        assert (answered == (highest >= threshold)).all()
        right = np.array([word == row[1] for word, row in zip(answer["predictions"], new, strict=True)])
        assert right[answered].mean() >= threshold
        assert right[answered].mean() == pytest.approx(highest[answered].mean(), abs=0.03)
        shares.append(answered.mean())
    assert 1 > shares[0] > shares[1] > shares[2] > 0
    for word in ("nan", "1.5", "-0.1", "much"):
        assert call("predict", "old", "new.csv", f"--abstain={word}").code != 0
    assert "expected a probability from 0 to 1" in call("predict", "old", "new.csv", "--abstain", "nan").err


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
    Image.fromarray(rng.integers(180, 220, (30, 20, 3), dtype=np.uint8)).save(tmp_path / "wide.jpg")
    assert call("predict", "light", "wide.jpg", "--json").json["predictions"] == ["light"]
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


def test_bad_tables_are_refused_in_one_line(tmp_path: Path, call: Call) -> None:
    write(tmp_path / "ids.csv", ("id", "key", "y"), [[str(i), f"k{i}", "ab"[i % 2]] for i in range(60)])
    write(tmp_path / "same.csv", ("x", "y"), [[str(i % 7), "yes" if i % 3 else ""] for i in range(60)])
    write(tmp_path / "none.csv", ("x", "y"), [[str(i % 7), ""] for i in range(60)])
    for file, message in (
        ("ids.csv", "has no column to learn from: column 'id' has"),
        ("same.csv", "target y is 'yes' in all 40 rows that have one, so there is nothing to learn"),
        ("none.csv", "no row has the target y"),
    ):
        said = call("solve", "bad", f"csv:{file}?target=y", *SOLVE)
        assert (said.code, said.err.count("\n")) == (1, 1), said.err
        assert message in said.err


def test_a_folder_of_mixed_images_is_solved_and_predicted(tmp_path: Path, call: Call) -> None:
    rng = np.random.default_rng(0)

    def picture(light: int) -> Image.Image:
        size = tuple(rng.integers(6, 20, 2))
        pixels = rng.integers(0, 90, size, dtype=np.uint8) + np.uint8(150 * light)
        return Image.fromarray(pixels).convert("RGB" if rng.random() < 0.5 else "L")

    for light, name in enumerate(("dark", "light")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(30):
            picture(light).save(tmp_path / "photos" / name / f"{number}.png")
    (tmp_path / "photos" / "dark" / "7.png").write_bytes(b"no image")
    solved = call("solve", "photos", "folder:photos", *SOLVE)
    assert solved.code == 0, solved.err
    for line in ("images are grey, the others are not: all are read as colour", "resized to 1", "left out: "):
        assert solved.err.count(line) == 1, line
    solution = nk.Solution.load(tmp_path / "photos-solution" / "solution.safetensors")
    said = solution.predict([picture(1), picture(0), picture(1)])
    assert said.names == ["light", "dark", "light"]
    assert said.rows == ("0", "1", "2")
    assert solution.predict(picture(0)).names == ["dark"]


def test_cells_that_the_model_does_not_know_are_reported(visits: Path, call: Call) -> None:
    assert call("solve", "visits", "csv:visits.csv?target=verdict", *SOLVE).code == 0
    said = call("predict", "visits-solution", "csv:new.csv?target=verdict", "--out", "a.json", "--json")
    assert said.code == 0, said.err
    line = "column 'city': 30 of 30 cells are a value that training did not have, such as 'Berlin'"
    assert said.err == f"warning: {line}\n"
    assert said.json["notes"] == [line]
    assert json.loads((visits / "a.json").read_text()) == said.json
    refused = call("predict", "visits-solution", "csv:new.csv?limit=3")
    assert "with the modifier limit, predict reads all rows" in refused.error
    solution = nk.Solution.load(visits / "visits-solution" / "solution.safetensors")
    predicted = solution.predict(visits / "new.csv")
    assert predicted.notes == (line,)
    abstained = call("predict", "visits-solution", "new.csv", "--abstain", "0.9", "--json").json["predictions"]
    assert predicted.abstaining(0.9) == abstained
    exported = call("export-model", "visits-solution", "--to", "python", "--json")
    assert [Path(file).name for file in exported.json["files"]] == [
        "visits-solution.py", "visits-solution.safetensors",
    ]  # fmt: skip


def test_intervals_of_several_targets_hold_new_values_of_each(tmp_path: Path, call: Call) -> None:
    rng = random.Random(0)

    def sample(count: int) -> list[list[str]]:
        sizes = [rng.random() for _ in range(count)]
        return [[f"{x:.4f}", f"{x + rng.gauss(0, 0.1):.4f}", f"{100 * x + rng.gauss(0, 30):.3f}"] for x in sizes]

    head, new = ("size", "price", "weight"), sample(2000)
    write(tmp_path / "old.csv", head, sample(800))
    write(tmp_path / "new.csv", head[:1], [row[:1] for row in new])
    assert call("solve", "old", "csv:old.csv?target=price,weight", *SOLVE).code == 0
    said = call("predict", "old-solution", "new.csv", "--json", "--out", "answers.csv").json
    for column in (0, 1):
        inside = [
            intervals[column][0] <= float(row[1 + column]) <= intervals[column][1]
            for row, intervals in zip(new, said["intervals"], strict=True)
        ]
        assert 0.92 <= np.mean(inside) <= 0.98
    with (tmp_path / "answers.csv").open() as file:
        first = next(csv.DictReader(file))
    assert list(first) == [
        "row", "prediction price", "low price", "high price", "prediction weight", "low weight", "high weight",
    ]  # fmt: skip
    assert float(first["low weight"]) == pytest.approx(said["intervals"][0][1][0], rel=1e-4)
    solution = nk.Solution.load(tmp_path / "old-solution" / "solution.safetensors")
    low, high = solution.predict(tmp_path / "new.csv").interval
    assert low[0].tolist() == pytest.approx([ends[0] for ends in said["intervals"][0]])
    assert high.shape == (2000, 2)


def test_a_file_or_folder_without_its_reader_gets_a_hint(visits: Path, call: Call) -> None:
    (visits / "photos").mkdir()
    assert "for this file write csv:new.csv?target=COLUMN" in call("solve", "x", "new.csv").error
    assert "write folder:photos" in call("solve", "x", "photos").error


def test_wrong_class_weights_are_refused_before_any_work(visits: Path, call: Call) -> None:
    data = "csv:visits.csv?target=verdict"
    refused = call("solve", "x", data, *SOLVE, "--class-weight", "god=2")
    assert refused.error == "error: x: class_weight names 'god', the classes are bad, good; use their names"
    values = call("solve", "x", "csv:visits.csv?target=age", *SOLVE, "--class-weight", "balanced")
    assert "class_weight needs a task with classes" in values.error
    assert not (visits / "nearkin-zoo").exists()
