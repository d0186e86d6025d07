"""Tasks of raw texts: by data string, in Python, with odd texts; and what refuses them."""

import csv
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import nearkin as nk
from nearkin.core.errors import DataError, MismatchError, NearkinError, OptionError
from nearkin.nets.registry import default_network
from nearkin.tasks.new_inputs import read_inputs
from nearkin.tasks.packed import packed, unpacked
from nearkin.tasks.packed_texts import MOST_BYTES, pack_texts, unpack_texts
from nearkin.tasks.task import Task
from nearkin.tasks.texts import is_text

ROWS = [("a good day", "+"), ('bad, "very" bad', "-"), ("fine", "+"), ("über awful", "-")] * 5


def texts_of(task: Task) -> list[str]:
    return [
        text for split in (task.train, task.test) for text in unpack_texts(split.inputs.take(torch.arange(len(split))))
    ]


def table(folder: Path, rows: list[tuple[str, str]] = ROWS) -> Path:
    path = folder / "moods.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("number", "review", "mood"), *((i, *row) for i, row in enumerate(rows))])
    return path


def test_csv_and_python_give_the_same_task(tmp_path: Path) -> None:
    read = nk.task(f"csv:{table(tmp_path)}?target=mood&raw=review", name="moods")
    made = Task.from_texts("moods", [text for text, _ in ROWS], [mood for _, mood in ROWS])
    assert is_text(read)
    assert is_text(made)
    assert read.classes == made.classes == ("+", "-")
    assert read.fingerprint() == made.fingerprint()
    assert sorted(texts_of(read)) == sorted(text for text, _ in ROWS)


def test_folder_of_files(tmp_path: Path) -> None:
    for number, (text, mood) in enumerate(ROWS):
        folder = tmp_path / ("good" if mood == "+" else "bad")
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    task = nk.task(f"folder:{tmp_path}?raw")
    assert is_text(task)
    assert task.classes == ("bad", "good")
    assert sorted(texts_of(task)) == sorted(text for text, _ in ROWS)
    assert not is_text(nk.task(f"folder:{tmp_path}?raw=no"))


def test_hub_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"review": [text for text, _ in ROWS], "mood": [mood for _, mood in ROWS]})
    data.save_to_disk(str(tmp_path / "saved"))
    task = nk.task(f"hf:{tmp_path / 'saved'}?raw=review&target=mood")
    assert is_text(task)
    assert task.classes == ("+", "-")
    with pytest.raises(OptionError, match="raw must be a column of texts"):
        nk.task(f"hf:{tmp_path / 'saved'}?raw=nothing&target=mood")


def test_odd_texts() -> None:
    odd = ["", "zero\0byte", "lone \ud800 surrogate", "x" * (MOST_BYTES + 9), "\n\t ", "né" * 3]
    task = Task.from_texts("odd", odd * 5, ["a", "b", "c"] * 10)
    assert task.input_shape == (MOST_BYTES,)
    assert set(texts_of(task)) == {"", "zero byte", "lone ? surrogate", "x" * MOST_BYTES, "\n\t ", "né" * 3}
    assert task.notes == ("10 of 30 texts are empty", f"5 of 30 texts are cut to {MOST_BYTES:,} bytes")
    again = unpacked("odd", task.facts(), packed(task))
    assert again.fingerprint() == task.fingerprint()
    assert is_text(again)


def test_a_cut_character_is_left_out() -> None:
    assert unpack_texts(pack_texts(["né"], "toy", width=2)) == ["n"]


def test_longer_texts_in_one_split() -> None:
    for train, test in ((["a", "b"] * 4, ["a long text", ""]), (["a long text", "b"] * 4, ["", ""])):
        task = Task.from_texts("uneven", train, [0, 1] * 4, test, [0, 1])
        assert unpack_texts(task.test.first(2).x) == test


@pytest.mark.parametrize(
    ("texts", "labels", "expected"),
    [
        (["a", float("nan")], [0, 1], "text 1 is no string"),
        (["a", None], [0, 1], "text 1 is no string"),
        ("abcd", [0, 1, 0, 1], "got one text"),
        ([], [], "got no texts"),
        (["a", "b", "c"], [0, 1], "3"),
        ([b"a", b"b"], [0, 1], "text 0 is no string"),
    ],
)
def test_wrong_texts_are_refused(texts: object, labels: list[int], expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        Task.from_texts("wrong", texts, labels)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("target=mood&raw=absent", "no column 'absent'"),
        ("target=mood&raw", "raw must be one column"),
        ("target=mood&raw=review,number", "raw must be one column"),
        ("target=mood&raw=mood", "is the target and the text"),
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, options: str, expected: str) -> None:
    with pytest.raises(NearkinError, match=expected):
        nk.task(f"csv:{table(tmp_path)}?{options}")


def test_rows_without_target_and_empty_cells(tmp_path: Path) -> None:
    rows = [*ROWS, ("no mood", ""), ("", "+")]
    task = nk.task(f"csv:{table(tmp_path, rows)}?target=mood&raw=review")
    assert sorted(texts_of(task)) == sorted([*(text for text, _ in ROWS), ""])
    assert task.notes == ("1 of 22 rows has no target: left out", "1 of 21 texts is empty")


def test_networks_of_numbers_refuse_texts(tmp_path: Path) -> None:
    task = Task.from_texts("moods", [text for text, _ in ROWS], [mood for _, mood in ROWS])
    with pytest.raises(MismatchError, match="'moods' has texts as inputs, a default network reads numbers"):
        default_network(task)
    with nk.Zoo(tmp_path / "zoo") as zoo:
        for network in (None, "mlp"):
            with pytest.raises(MismatchError, match="'moods' has texts as inputs"):
                zoo.add(task, network, trials=1)
    (tmp_path / "images" / "a").mkdir(parents=True)
    with pytest.raises(OptionError, match="raw is for texts"):
        nk.task(f"folder:{tmp_path / 'images'}?raw")


def test_new_texts(tmp_path: Path) -> None:
    facts = nk.task(f"csv:{table(tmp_path)}?target=mood&raw=review").facts()
    given = ["a new text that is longer than those of training", ""]
    (tmp_path / "new.txt").write_text("from a file", encoding="utf-8")
    for x in (given, tuple(given), np.array(given), [{"review": text} for text in given]):
        assert unpack_texts(read_inputs(x, facts, "moods").rows.take(torch.arange(2))) == given
    assert len(read_inputs(str(tmp_path / "moods.csv"), facts, "moods").rows) == len(ROWS)
    assert len(read_inputs(f"csv:{tmp_path / 'moods.csv'}?target=mood&raw=review", facts, "moods").rows) == len(ROWS)
    from_file = read_inputs(tmp_path / "new.txt", facts, "moods")
    assert unpack_texts(from_file.rows.take(torch.arange(1))) == ["from a file"]
    with pytest.raises(MismatchError, match="expects texts"):
        read_inputs(np.zeros((2, 3)), facts, "moods")
    with pytest.raises(DataError, match="no column 'review'"):
        read_inputs([{"a": "x", "b": "y"}], facts, "moods")


@pytest.mark.parametrize("seed", range(30))
def test_any_texts_survive(seed: int) -> None:
    rng = random.Random(seed)
    pools = ("abc ", "\0\n\t\r", "é漢🙂\u200f", "".join(chr(rng.randrange(0xD800, 0xE000)) for _ in range(4)))
    texts = ["".join(rng.choice(rng.choice(pools)) for _ in range(rng.choice((0, 1, 7, 300)))) for _ in range(20)]
    task = Task.from_texts("fuzz", texts, [i % 2 for i in range(20)])
    stored = [text.replace("\0", " ").encode("utf-8", "replace").decode() for text in texts]
    assert sorted(texts_of(task)) == sorted(stored)
