"""Fuzzed strings: whatever a person or a file writes is read or refused in one line."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fuzz.mutation import FuzzCount, fuzz, mutated_text
from fuzz.test_readers import MAX_BYTES, read
from nearkin.tasks.datastring import DataString

DATA_STRINGS = (
    "digits?classes=0,1,2,3&rest=other&limit=2000",
    "npz:folder/file.npz?labels=coarse",
    "digits?merge=0+1,2+3&corrupt=0.4&split=3&size=14&grey",
)
READABLE = (
    "npz:small.npz",
    "npz:small.npz?limit=8&rgb&size=4",
    "npz:small.npz?classes=a,b&rest=other&corrupt=0.5",
    "npz:small.npz?detect=a&split=3&balance",
    "npz:small.npz?merge=a+b&invert&grey&parity",
    "npz:small.npz?dense=edges&size=6x5",
    "npz:small.npz?dense=denoise",
    "npz:small.npz?labels=coarse&parity",
    "csv:small.csv?target=y&drop=a&likelihood=categorical",
    "text:small.txt?length=3&level=char&vocabulary=9",
    "sinusoids?points=5&test=7&frequency=wide&noise=0.1&seed=3&task=2",
    "ushcn:station.csv?year=1990-1991&test=1,2&inputs=season&log",
    "malaria:places.csv?target=logit&by=place",
)
MODIFIERS = (
    "limit",
    "size",
    "split",
    "corrupt",
    "classes",
    "detect",
    "merge",
    "dense",
    "rgb",
    "grey",
    "length",
    "points",
)
VALUES = (
    "²", "٣", "1" + "0" * 30, "9" * 5000, "-1", "0", "1e400", "nan", "inf", "", "20000", "20000x20000", "1x1", "0x3",
    "3x", "0.5", "a", "a,b", "a+b", "a+a", "%00", "\0", "\ud800", "+5", " 5", "5_0", "4294967296", 
    "18446744073709551616", "edges",
)  # fmt: skip


def test_data_strings(count_inputs: Callable[[FuzzCount], FuzzCount]) -> None:
    def make(rng: random.Random) -> str:
        return mutated_text(rng.choice(DATA_STRINGS), rng)

    count_inputs(fuzz("data strings, parsed", make, lambda text: DataString.parse(str(text))))


def write_small_files(folder: Path) -> None:
    """The files that the readable strings name."""
    images = np.random.default_rng(0).integers(0, 256, (24, 5, 5), np.uint8)
    labels = np.arange(24) % 3
    np.savez(folder / "small.npz", x_train=images, y_train=labels, coarse_train=labels % 2, classes=["a", "b", "c"])
    (folder / "small.csv").write_text("a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 2}\n" for i in range(12)))
    (folder / "small.txt").write_text("the cat sat on the mat\n" * 4)
    days = [f"{year},{month},{day},{day}\n" for year in (1990, 1991) for month in range(1, 13) for day in (1, 2, 3)]
    (folder / "station.csv").write_text("".join(days))
    (folder / "places.csv").write_text("long,lat,examined,positive\n" + "".join(f"{i},{-i},9,{i}\n" for i in range(9)))


def make_task_string(folder: Path, rng: random.Random) -> str:
    """A string of a small readable file, mutated as text or by an odd value of one modifier."""
    if not (folder / "small.npz").exists():
        write_small_files(folder)
    text = rng.choice(READABLE)
    if rng.random() < 0.5:
        sign = "&" if "?" in text else "?"
        text = f"{text}{sign}{rng.choice(MODIFIERS)}={rng.choice(VALUES)}"
    if rng.random() < 0.5:
        text = mutated_text(text, rng)
    source, colon, location = text.partition(":")
    return f"{source}:{folder}/{location}" if colon else text


def test_data_strings_read_as_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_inputs: Callable[[FuzzCount], FuzzCount]
) -> None:
    monkeypatch.setenv("NEARKIN_MAX_BYTES", MAX_BYTES)
    monkeypatch.chdir(tmp_path)
    count = count_inputs(fuzz("data strings, read", lambda rng: make_task_string(tmp_path, rng), read))
    assert 0 < count.accepted < count.inputs
