import gzip
import struct
import time

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nearkin.core.errors import DataError
from nearkin.tasks.readers import idx

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}
IMAGES = np.random.default_rng(0).integers(0, 256, (20, 5, 4), np.uint8)
LABELS = np.arange(20, dtype=np.uint8) % 3


def encoded(array):
    head = struct.pack(">HBB", 0, CODES[array.dtype.name], array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(path, array):
    data = encoded(array)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_pairs(folder, test="t10k", separator="-", ending="", parts=2):
    for part, rows in [("train", slice(0, 14)), (test, slice(14, 20))][:parts]:
        write(folder / f"{part}-images{separator}idx3-ubyte{ending}", IMAGES[rows])
        write(folder / f"{part}-labels{separator}idx1-ubyte{ending}", LABELS[rows])


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("separator", ["-", "."])
@pytest.mark.parametrize("test", ["t10k", "test"])
def test_every_spelling_reads_the_same_task(tmp_path, test, separator, ending):
    write_pairs(tmp_path, test, separator, ending)
    task = idx.read(str(tmp_path), {})
    assert (task.name, task.source, task.likelihood) == (tmp_path.name, "", "categorical")
    assert task.classes == ("0", "1", "2")
    assert task.input_shape == (1, 5, 4)
    for part, rows in ((task.train, slice(0, 14)), (task.test, slice(14, 20))):
        index = torch.arange(len(part))
        assert torch.equal(part.inputs.take(index)[:, 0], torch.from_numpy(IMAGES[rows] / np.float32(255)))
        assert torch.equal(part.labels(), torch.from_numpy(LABELS[rows].astype(np.int64)))


def test_without_a_test_pair_a_fifth_is_set_aside(tmp_path):
    write_pairs(tmp_path, parts=1)
    task = idx.read(str(tmp_path), {})
    assert len(task.train) + len(task.test) == 14
    assert len(task.test) == 3


def test_plain_files_are_mapped_and_never_written(tmp_path, mapped_file):
    write_pairs(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    before = path.read_bytes()
    task = idx.read(str(tmp_path), {})
    assert mapped_file(task.train.inputs.tensor) == str(path)
    array = idx.read_idx(path)
    assert isinstance(array, np.memmap)
    array[:] = 0
    del array
    assert path.read_bytes() == before


def test_compressed_files_are_read_into_memory(tmp_path, mapped_file):
    write_pairs(tmp_path, ending=".gz")
    assert mapped_file(idx.read(str(tmp_path), {}).train.inputs.tensor) == ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(data=st.data(), kind=st.sampled_from(list(CODES)), ending=st.sampled_from(["", ".gz"]))
def test_what_is_written_is_read_back(tmp_path, data, kind, ending):
    array = data.draw(arrays.arrays(kind, arrays.array_shapes(max_dims=4, max_side=4)))
    path = tmp_path / f"a-idx-ubyte{ending}"
    path.unlink(missing_ok=True)
    write(path, array)
    found = idx.read_idx(path)
    assert found.dtype.isnative
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["(none)", "00 00", "fetch"]),
        (b"PNG!", ["50 4e 47 21", "expected 00 00"]),
        (b"\0\0\x0a\1\0\0\0\0", ["00 00 0a 01"]),
        (b"\0\0\x08\0", ["00 00 08 00"]),
        (b"\0\0\x08\3\0\0\0\2\0\0", ["states 3 axes", "fetch it again"]),
        (encoded(IMAGES)[:-1], ["states 400 bytes", "[20, 5, 4]", "has 399", "fetch it again"]),
        (encoded(IMAGES) + b"x", ["states 400 bytes", "has more"]),
    ],
)
def test_a_broken_file_says_what_was_got(tmp_path, content, words):
    path = tmp_path / "x-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        idx.read_idx(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize("content", [gzip.compress(encoded(IMAGES))[:-20], b"no gzip at all", b""])
def test_a_broken_gzip_says_so(tmp_path, content):
    path = tmp_path / "x-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x-idx3-ubyte\.gz.*fetch"):
        idx.read_idx(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"there is no file .*none"):
        idx.read_idx(tmp_path / "none")


def test_a_missing_folder_names_the_files_wanted(tmp_path):
    with pytest.raises(DataError, match=r"nowhere is not a folder.*train-images-idx3-ubyte.*t10k"):
        idx.read(str(tmp_path / "nowhere"), {})


@pytest.mark.parametrize("lost", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_missing_file_is_named(tmp_path, lost):
    write_pairs(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(DataError, match=f"has no {lost} .*put it there"):
        idx.read(str(tmp_path), {})


def test_labels_of_another_set_are_refused(tmp_path):
    write_pairs(tmp_path)
    write(tmp_path / "train-labels-idx1-ubyte", LABELS)
    with pytest.raises(DataError, match=r"has 14 images, .*train-labels-idx1-ubyte 20 labels; fetch"):
        idx.read(str(tmp_path), {})


@pytest.mark.realdata
def test_mnist_is_the_published_one_and_quick(real_data):
    start = time.perf_counter()
    task = idx.read(str(real_data / "mnist"), {})
    seconds = time.perf_counter() - start
    assert (len(task.train), len(task.test), task.input_shape) == (60_000, 10_000, (1, 28, 28))
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(task.train.labels()).tolist() == counts
    assert float(task.train.inputs.tensor.float().mean()) / 255 == pytest.approx(0.1307, abs=1e-4)
    assert seconds < 3, f"60,000 images took {seconds:.1f} s"  # 0.5 s alone on one core


@pytest.mark.realdata
def test_fashion_mnist_is_balanced(real_data):
    task = idx.read(str(real_data / "fashion_mnist"), {})
    assert torch.bincount(task.train.labels()).tolist() == [6000] * 10
    assert torch.bincount(task.test.labels()).tolist() == [1000] * 10
