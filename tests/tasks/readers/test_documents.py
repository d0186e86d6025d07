"""Text classification from a csv file and from class folders of text files."""

import random

import pytest

import nearkin as nk
from nearkin.core.errors import DataError
from nearkin.solver.simple.models import fit_simple
from nearkin.tasks.new_inputs import read_inputs
from nearkin.tasks.rows import gathered

FEWEST, MOST = 12, 12 + 2 * 8**2 - 4**2  # words, and words with all pairs that a topic allows
TOPICS = {"sport": ("goal", "match", "team", "win"), "food": ("soup", "bread", "salt", "cook")}


def document(topic, rng):
    return " ".join(rng.choice((*TOPICS[topic], "the", "a", "and", "with")) for _ in range(12)) + "\n"


@pytest.fixture
def folder(tmp_path):
    rng = random.Random(0)
    for topic in TOPICS:
        (tmp_path / "news" / topic).mkdir(parents=True)
        for number in range(40):
            (tmp_path / "news" / topic / f"{number:02d}.txt").write_text(document(topic, rng))
    return tmp_path / "news"


def test_class_folders_of_text_files(folder):
    task = nk.task(f"folder:{folder}")
    assert (task.classes, len(task.train), len(task.test)) == (("food", "sport"), 64, 16)
    (width,) = task.input_shape
    assert FEWEST < width <= MOST
    assert task.notes == (f"column 'text' is text: encoded as TF-IDF of its {width} most frequent words and pairs",)
    assert fit_simple("logistic", task).fit.scores.metric == 1.0
    again = read_inputs(folder, task.facts(), "news")
    assert again.names[0].endswith("food/00.txt")
    assert gathered(again.rows)[task.train.inputs.index].equal(gathered(task.train.inputs))
    one = read_inputs([folder / "sport" / "00.txt"], task.facts(), "news")
    assert gathered(one.rows)[0].equal(gathered(again.rows)[40])


def test_train_and_test_folders(folder, tmp_path):
    folder.rename(tmp_path / "train")
    (tmp_path / "split").mkdir()
    (tmp_path / "train").rename(tmp_path / "split" / "train")
    for topic in TOPICS:
        (tmp_path / "split" / "test" / topic).mkdir(parents=True)
        (tmp_path / "split" / "test" / topic / "x.txt").write_text(document(topic, random.Random(1)))
    task = nk.task(f"folder:{tmp_path}/split")
    assert (len(task.train), len(task.test)) == (80, 2)


def test_a_csv_file_with_one_column_of_text(tmp_path):
    rng = random.Random(0)
    lines = [f'"{document(topic, rng).strip()}",{topic}' for topic in TOPICS for _ in range(60)]
    (tmp_path / "news.csv").write_text("\n".join(["text,topic", *lines]))
    task = nk.task(f"csv:{tmp_path}/news.csv?target=topic")
    assert task.classes == ("food", "sport")
    assert FEWEST < task.input_shape[0] <= MOST
    assert fit_simple("logistic", task).fit.scores.metric == 1.0


def test_folders_that_do_not_fit_say_so(folder, tmp_path):
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="class folder empty has no text files"):
        nk.task(f"folder:{folder}")
    (folder / "empty").rmdir()
    (folder / "food" / "00.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        nk.task(f"folder:{folder}")
