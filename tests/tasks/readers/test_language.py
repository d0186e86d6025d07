import gzip
import time
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.core.errors import DataError, OptionError
from nearkin.tasks.readers import language

SONG = "row row row your boat\ngently down the stream\n"


def written(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("_", ".")
        path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return str(folder)


def stream(task, part):
    """The tokens of a part as words, as far as its windows go."""
    rows = part.inputs.take(torch.arange(len(part))).flatten()
    return [task.classes[number] for number in rows.tolist()]


def test_a_folder_with_all_parts(tmp_path):
    written(tmp_path, a_train_txt=SONG * 4, a_valid_txt="row boat\n" * 9, a_test_txt="boat row\n" * 9, notes_md="no")
    task = language.read(str(tmp_path), {"length": "3"})
    assert (task.name, task.likelihood, task.input_shape) == (tmp_path.name, "language", (3,))
    assert task.classes == ("row", "<eos>", "boat", "down", "gently", "stream", "the", "your")
    assert stream(task, task.train)[:7] == ["row", "row", "row", "your", "boat", "<eos>", "gently"]
    assert stream(task, task.test)[:4] == ["boat", "row", "<eos>", "boat"]
    assert task.train.scaling.mean is None


def test_targets_are_the_inputs_one_token_ahead(tmp_path):
    task = language.read(written(tmp_path, train_txt=SONG * 9, test_txt=SONG * 2), {"length": "4"})
    batch = task.train.all()
    assert torch.equal(batch.x.flatten()[1:], batch.y.flatten()[:-1])


def test_without_a_test_file_valid_judges(tmp_path):
    written(tmp_path, train_txt_gz=SONG * 4, validation_txt_gz="boat\n" * 9)
    task = language.read(str(tmp_path), {"length": "3"})
    assert set(stream(task, task.test)) == {"boat", "<eos>"}


@pytest.mark.parametrize("name", ["poem_txt", "poem_txt_gz"])
def test_one_file_is_cut_nine_to_one(tmp_path, name):
    folder = written(tmp_path, **{name: SONG * 100})
    path = str(tmp_path / name.replace("_", "."))
    for location in (folder, path):
        task = language.read(location, {"length": "10"})
        assert (len(task.train), len(task.test)) == ((990 - 1) // 10, (110 - 1) // 10)
    assert language.read(path, {"length": "10"}).name == "poem"


def test_a_plain_file_goes_before_its_compressed_copy(tmp_path):
    written(tmp_path, train_txt=SONG * 9, train_txt_gz="other words\n" * 50, test_txt=SONG * 9)
    assert "row" in language.read(str(tmp_path), {"length": "3"}).classes


def test_windows_have_35_tokens_unless_told(tmp_path):
    assert language.read(written(tmp_path, poem_txt=SONG * 100), {}).input_shape == (35,)


def test_strangers_in_the_test_part_are_unknown(tmp_path):
    task = language.read(written(tmp_path, train_txt=SONG * 4, test_txt="row a yacht\n" * 4), {"length": "4"})
    assert task.classes[-1] == "<unk>"
    assert stream(task, task.test)[:4] == ["row", "<unk>", "<unk>", "<eos>"]


def test_characters(tmp_path):
    task = language.read(
        written(tmp_path, train_txt="abab\nc\n" * 9, test_txt="ba\n" * 9), {"level": "char", "length": "5"}
    )
    assert task.classes == ("\n", "a", "b", "c")
    assert "".join(stream(task, task.train))[:8] == "abab\nc\na"


@given(st.lists(st.sampled_from(["a", "b", "c", "d", "e", "<unk>"]), min_size=1), st.integers(2, 7))
def test_a_limited_vocabulary_keeps_the_commonest(words, limit):
    counts = Counter(words)
    full = language.vocabulary(words, words)
    assert [-counts[word] for word in full] == sorted(-counts[word] for word in full)
    kept = language.vocabulary(words, words, limit)
    assert len(kept) == min(limit, len(full))
    if len(full) > limit:
        known = set(kept) - {"<unk>"}
        assert len(known) == limit - 1
        assert all(counts[word] >= counts[other] for word in known for other in set(full) - known - {"<unk>"})
    else:
        assert kept == full


def test_a_full_vocabulary_makes_room_for_the_unknown(tmp_path):
    assert language.vocabulary("aab", "abc", limit=2) == ("a", "<unk>")


def test_options_are_checked(tmp_path):
    folder = written(tmp_path, poem_txt=SONG * 9)
    with pytest.raises(OptionError, match="level must be word or char, got 'letter'"):
        language.read(folder, {"level": "letter"})
    with pytest.raises(OptionError, match="length must be a whole number of 1 or more, got '0'"):
        language.read(folder, {"length": "0"})
    with pytest.raises(OptionError, match="vocabulary must be a whole number of 2 or more, got '1'"):
        language.read(folder, {"vocabulary": "1"})


def test_short_and_empty_texts(tmp_path):
    with pytest.raises(
        DataError, match=r"the training text has 11 tokens, a window needs 36; add text or set \?length="
    ):
        language.read(written(tmp_path, train_txt=SONG, test_txt=SONG), {})
    with pytest.raises(DataError, match="the test text has 0 tokens, a window needs 3"):
        language.read(written(tmp_path, test_txt=""), {"length": "2"})


def test_files_that_cannot_be_told_apart(tmp_path):
    with pytest.raises(DataError, match=r"there is no file or folder .*nowhere; name one of \.txt or \.txt\.gz"):
        language.read(str(tmp_path / "nowhere"), {})
    with pytest.raises(
        DataError, match=r"has 0 text files \(none\) and none with train in its name; name them train\.txt"
    ):
        language.read(str(tmp_path), {})
    with pytest.raises(DataError, match=r"has 2 text files \(a\.txt, b\.txt\)"):
        language.read(written(tmp_path, a_txt=SONG, b_txt=SONG), {})
    with pytest.raises(
        DataError, match=r"several train files \(a\.txt, b\.txt, train\.1\.txt, train\.2\.txt\); keep one"
    ):
        language.read(written(tmp_path, train_1_txt=SONG, train_2_txt=SONG), {})


def test_broken_files(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(SONG.encode())[:-9])
    with pytest.raises(DataError, match=r"a\.txt\.gz is a broken gzip file .*fetch it again"):
        language.read(str(path), {})
    path = tmp_path / "b.txt"
    path.write_bytes(b"caf\xe9\n")
    with pytest.raises(DataError, match=r"b\.txt is not UTF-8 text \(byte 3\); save it as UTF-8"):
        language.read(str(path), {})


@pytest.mark.realdata
def test_penn_treebank_is_the_published_one(real_data):
    start = time.perf_counter()
    task = language.read(str(real_data / "ptb"), {})
    seconds = time.perf_counter() - start
    assert len(task.train.inputs.tokens) == 929_589
    assert len(task.test.inputs.tokens) == 82_430
    assert len(task.classes) == 10_000
    assert task.classes[:3] == ("the", "<unk>", "<eos>")
    assert seconds < 5, f"Penn Treebank took {seconds:.1f} s"  # 0.5 s alone on one core
