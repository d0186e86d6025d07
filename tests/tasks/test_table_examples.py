"""Tasks from tables: the encoding is learned from training rows, travels with the task and encodes them again."""

import random

import numpy as np
import pandas
import pytest
import torch

import nearkin as nk
from nearkin.core.errors import DataError
from nearkin.tasks.frames import frame_cells
from nearkin.tasks.packed import packed, unpacked
from nearkin.tasks.rows import gathered
from nearkin.tasks.table_encoding import TableEncoding
from nearkin.tasks.table_examples import read_table


def frame(rows=200, seed=0):
    rng = random.Random(seed)
    good = [rng.random() < 0.5 for _ in range(rows)]
    words = (["bad", "poor", "dull"], ["good", "fine", "great"])
    return pandas.DataFrame(
        {
            "id": range(rows),
            "age": [rng.gauss(40, 9) if rng.random() > 0.1 else None for _ in range(rows)],
            "when": pandas.to_datetime([f"2024-{rng.randrange(1, 13)}-{rng.randrange(1, 29)}" for _ in range(rows)]),
            "member": [rng.random() < 0.5 for _ in range(rows)],
            "city": pandas.Categorical([rng.choice(["Oslo", "Rome", None]) for _ in range(rows)]),
            "note": [" ".join(rng.choice([*words[g], "film", "the", "a"]) for _ in range(9)) for g in good],
            "verdict": ["good" if g else "bad" for g in good],
        }
    )


def encoding_of(task):
    return TableEncoding.from_dict(task.facts()["preprocessing"]["table"], task.name)


def test_a_frame_and_its_csv_file_are_the_same_task(tmp_path):
    table = frame()
    table.to_csv(tmp_path / "table.csv", index=False)
    task, read = nk.Task.from_frame("films", table, "verdict"), nk.task(f"csv:{tmp_path}/table.csv?target=verdict")
    assert (task.digest(), task.preprocessing, task.notes) == (read.digest(), read.preprocessing, read.notes)
    assert task.notes[0] == "column 'id' has 160 distinct values in 160 training rows: dropped as an identifier"
    assert {column.name: column.encoding.kind for column in encoding_of(task).columns} == {
        "age": "number", "when": "date", "member": "boolean", "city": "category", "note": "text",
    }  # fmt: skip


def test_the_stored_encoding_gives_the_inputs_that_the_task_learned_from():
    table = frame()
    task = nk.Task.from_frame("films", table, "verdict")
    x = torch.from_numpy(encoding_of(task).encode(frame_cells(table, "films")))
    assert torch.equal(gathered(task.train.inputs), x[task.train.inputs.index])
    assert torch.equal(gathered(task.test.inputs), x[task.test.inputs.index])
    assert not task.train.scaling.constant


@pytest.mark.parametrize("target", ["verdict", "age"])
def test_test_rows_do_not_change_the_encoding(target):
    table = frame()
    task = nk.Task.from_frame("films", table, target)
    rows = table if target == "verdict" else table[table["age"].notna()].reset_index(drop=True)
    changed = rows.copy()
    for row in task.test.inputs.index.tolist():
        changed.loc[row, "note"] = "never seen before words words words"
        changed.loc[row, "when"] = pandas.Timestamp("1950-01-01")
    again = nk.Task.from_frame("films", changed, target)
    assert again.preprocessing == task.preprocessing


def test_test_frames_rows_without_a_target_and_several_targets():
    table, test = frame(), frame(50, seed=1)
    table.loc[3:5, "verdict"], test.loc[0, "verdict"] = None, None
    task = nk.Task.from_frame("films", table, "verdict", test, drop=["note"])
    assert task.notes[:2] == ("3 of 200 rows have no target: left out", "1 of 50 test rows has no target: left out")
    assert (len(task.train), len(task.test)) == (197, 49)
    several = nk.Task.from_frame("two", table.assign(more=table["age"] * 2), ["age", "more"])
    assert (several.likelihood, several.classes) == ("gaussian", ("age", "more"))


def test_facts_of_other_tasks_keep_their_bytes_and_packed_tasks_keep_the_encoding():
    assert "preprocessing" not in nk.Task.from_arrays("toy", np.eye(10), [0, 1] * 5).facts()
    task = nk.Task.from_frame("films", frame(), "verdict")
    again = unpacked("films", task.facts(), packed(task))
    assert (again.preprocessing, again.fingerprint()) == (task.preprocessing, task.fingerprint())


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"id": [f"k{i}" for i in range(50)], "y": ["a", "b"] * 25},
            r"no column to learn from: column 'id' has 40.*keep=",
        ),
        ({"x": ["1", "2", "3"], "y": ["a", "a", ""]}, r"target y is 'a' in all 2 rows that have one.*nothing to learn"),
        ({"x": ["1", "2", "3"], "y": ["2.5", "2.5", ""]}, r"target y is '2.5' in all 2 rows that have one"),
        ({"x": ["1", "2"], "y": ["", "NA"]}, "no row has the target y"),
        ({"x": ["1", "2"], "z": ["1", "2"]}, "has no column y; check the name of the target"),
        ({"y": ["1", "2"]}, "no input column left"),
        ({"x": ["1", "1", "1"], "y": ["1", "2", "3"]}, r"no column to learn from: column 'x' has the one value '1'"),
        ({"x": ["1"], "y": ["a"]}, "1 samples cannot be split"),
    ],
)
def test_tables_without_a_task_say_so_in_one_line(table, words):
    with pytest.raises(DataError, match=words) as refused:
        nk.Task.of("toy", **read_table("toy", table, ["y"])._asdict())
    assert "\n" not in str(refused.value)


def test_what_is_no_frame_is_refused():
    with pytest.raises(DataError, match="got list, expected a pandas DataFrame"):
        nk.Task.from_frame("toy", [[1, 2]], "y")
    doubled = pandas.DataFrame([[1, 2, 3]], columns=["a", "a", "y"])
    with pytest.raises(DataError, match="several columns named a"):
        nk.Task.from_frame("toy", doubled, "y")
