import os
import pickle
import struct

import numpy as np
import pytest
import torch

from nearkin.core.errors import DataError, OptionError
from nearkin.tasks.readers import cifar

RNG = np.random.default_rng(0)
NAMES = cifar.CIFAR10


def pixels(count):
    return RNG.integers(0, 256, (count, 3072), np.uint8)


def python3_pickle(table):
    """What today's NumPy writes under protocol 2, with bytes for keys."""
    return pickle.dumps({key.encode(): value for key, value in table.items()}, protocol=2)


def python2_pickle(table):
    """The opcodes that Python 2 wrote, as in the official files: byte strings throughout."""

    def text(value):
        return b"T" + struct.pack("<i", len(value)) + value

    def item(value):
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, (str, bytes)):
            return text(value.encode() if isinstance(value, str) else value)
        if isinstance(value, list):
            return b"](" + b"".join(map(item, value)) + b"e"
        made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
        kind += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = item(value.shape[0]) + item(value.shape[1]) + b"\x86"
        return made + b"(K\x01" + shape + kind + b"\x89" + text(value.tobytes()) + b"tb"

    return b"\x80\x02}(" + b"".join(item(key) + item(value) for key, value in table.items()) + b"u."


WRITERS = pytest.mark.parametrize("write", [python2_pickle, python3_pickle])


def write_ten(folder, write=python3_pickle, meta=True, each=10):
    """A genuine little CIFAR-10: five batches and a test batch of ten images."""
    parts = [(pixels(each), [number % 10 for number in range(each)]) for _ in range(6)]
    for name, (data, labels) in zip((*cifar.BATCHES, "test_batch"), parts, strict=True):
        table = {"batch_label": name, "labels": labels, "data": data}
        (folder / name).write_bytes(write(table))
    if meta:
        (folder / "batches.meta").write_bytes(write({"label_names": [name.upper() for name in NAMES]}))
    return parts


def write_hundred(folder, write=python3_pickle):
    """A CIFAR-100 with three fine classes in two coarse ones."""
    parts = []
    for name in ("train", "test"):
        data, fine = pixels(6), [0, 1, 2, 0, 1, 2]
        coarse = [int(number == 2) for number in fine]
        (folder / name).write_bytes(write({"fine_labels": fine, "coarse_labels": coarse, "data": data}))
        parts.append((data, fine, coarse))
    names = {"fine_label_names": ["apple", "bear", "cup"], "coarse_label_names": ["living", "things"]}
    (folder / "meta").write_bytes(write(names))
    return parts


def images(data):
    return torch.from_numpy(data.reshape(-1, 3, 32, 32) / np.float32(255))


@WRITERS
def test_the_fixtures_are_what_pickle_itself_reads(write):
    data = pixels(2)
    found = pickle.loads(write({"data": data, "labels": [3, 4]}), encoding="bytes")
    np.testing.assert_array_equal(found[b"data"], data)
    assert found[b"labels"] == [3, 4]


@WRITERS
@pytest.mark.parametrize("below", ["", "cifar-10-batches-py"])
def test_cifar10_python_batches(tmp_path, write, below):
    folder = tmp_path / below
    folder.mkdir(exist_ok=True)
    parts = write_ten(folder, write)
    task = cifar.read(str(tmp_path), {})
    assert (task.name, len(task.train), len(task.test), task.input_shape) == ("cifar10", 50, 10, (3, 32, 32))
    assert task.classes == tuple(name.upper() for name in NAMES)
    assert torch.equal(task.train.inputs.take(torch.arange(20, 30)), images(parts[2][0]))
    assert torch.equal(task.test.inputs.take(torch.arange(10)), images(parts[5][0]))
    assert task.test.labels().tolist() == list(range(10))


def test_cifar10_knows_its_classes_without_meta(tmp_path):
    write_ten(tmp_path, meta=False)
    assert cifar.read(str(tmp_path), {}).classes == NAMES


@WRITERS
@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_cifar100_python_files(tmp_path, write, labels):
    (tmp_path / "cifar-100-python").mkdir()
    parts = write_hundred(tmp_path / "cifar-100-python", write)
    task = cifar.read(str(tmp_path), {"labels": labels})
    assert task.name == "cifar100"
    assert task.classes == (("apple", "bear", "cup") if labels == "fine" else ("living", "things"))
    assert task.train.labels().tolist() == parts[0][1 if labels == "fine" else 2]
    assert torch.equal(task.train.inputs.take(torch.arange(6)), images(parts[0][0]))


def test_cifar100_goes_by_number_without_meta(tmp_path):
    write_hundred(tmp_path)
    (tmp_path / "meta").unlink()
    assert cifar.read(str(tmp_path), {"labels": "coarse"}).classes == ("0", "1")


def test_cifar10_binary_batches(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    parts = [pixels(10) for _ in range(6)]
    labels = np.arange(10, dtype=np.uint8)[:, None]
    for name, data in zip((*cifar.BATCHES, "test_batch"), parts, strict=True):
        (folder / f"{name}.bin").write_bytes(np.concatenate([labels, data], axis=1).tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    for location in (tmp_path, folder):
        task = cifar.read(str(location), {})
        assert (len(task.train), len(task.test), task.classes) == (50, 10, NAMES)
        assert torch.equal(task.train.inputs.take(torch.arange(40, 50)), images(parts[4]))
        assert task.train.labels().tolist() == list(range(10)) * 5


@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_cifar100_binary_files_are_mapped(tmp_path, labels, mapped_file):
    data = pixels(6)
    coarse, fine = np.array([[0, 0], [0, 1], [1, 2]] * 2, np.uint8).T
    for name in ("train", "test"):
        rows = np.concatenate([coarse[:, None], fine[:, None], data], axis=1)
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    (tmp_path / "fine_label_names.txt").write_text("apple\nbear\ncup\n")
    (tmp_path / "coarse_label_names.txt").write_text("living\nthings\n")
    task = cifar.read(str(tmp_path), {"labels": labels})
    assert task.classes == (("apple", "bear", "cup") if labels == "fine" else ("living", "things"))
    assert task.train.labels().tolist() == (fine if labels == "fine" else coarse).tolist()
    assert torch.equal(task.train.inputs.take(torch.arange(6)), images(data))
    assert mapped_file(task.train.inputs.tensor) == str(tmp_path / "train.bin")


class Evil:
    def __init__(self, function, *arguments):
        self.parts = (function, arguments)

    def __reduce__(self):
        return self.parts


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, f"{os.name}.system"), (eval, r"\w+.eval"), (np.frombuffer, r"numpy[\w.]*.frombuffer")],
)
def test_nothing_of_a_pickle_is_run(tmp_path, function, name, protocol):
    write_ten(tmp_path)
    mark = tmp_path / "sprung"
    argument = f"touch {mark}" if function is os.system else f"open({str(mark)!r}, 'w').close()"
    path = tmp_path / "data_batch_3"
    path.write_bytes(pickle.dumps({b"labels": [0], b"data": Evil(function, argument)}, protocol))
    with pytest.raises(DataError, match=f"data_batch_3 would run {name}.*; fetch the official file"):
        cifar.read(str(tmp_path), {})
    assert not mark.exists()


def test_a_meta_file_is_held_to_the_same_rule(tmp_path):
    write_ten(tmp_path)
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"label_names": Evil(os.getcwd)}, 2))
    with pytest.raises(DataError, match=r"batches\.meta would run"):
        cifar.read(str(tmp_path), {})


GOOD = python3_pickle({"labels": [1], "data": pixels(1)})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a complete CIFAR batch"),
        (GOOD[: len(GOOD) // 2], "not a complete CIFAR batch"),
        (b"hello world", "not a complete CIFAR batch"),
        (pickle.dumps([1], 2), "has no table"),
        (python3_pickle({"labels": [1]}), "no uint8 array 'data' of 3,072 columns"),
        (python3_pickle({"labels": [1], "data": pixels(1)[:, 1:]}), "no uint8 array 'data'"),
        (
            python3_pickle({"labels": [1], "data": pixels(1).astype(np.float32)}),
            "an array is of type f4, expected bytes",
        ),
        (python3_pickle({"labels": "one", "data": pixels(1)}), "no list of whole numbers 'labels'"),
        (python3_pickle({"labels": [1, 2], "data": pixels(1)}), "has 1 images and 2 labels"),
        (pickle.dumps({b"data": Evil(np.ndarray, (10**12,)), b"labels": [1]}, 2), "not a complete CIFAR batch"),
    ],
)
def test_a_broken_batch_says_what_was_got(tmp_path, content, words):
    write_ten(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_2 .*{words}.*fetch the official file"):
        cifar.read(str(tmp_path), {})


def test_a_binary_file_of_odd_length_is_refused(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.bin").write_bytes(bytes(3000))
    with pytest.raises(DataError, match=r"train\.bin has 3,000 bytes, expected a multiple of 3,074; fetch"):
        cifar.read(str(tmp_path), {})


def test_missing_things_are_named(tmp_path):
    with pytest.raises(DataError, match=r"has no CIFAR batches; unpack there cifar-10-python\.tar\.gz"):
        cifar.read(str(tmp_path), {})
    write_ten(tmp_path)
    with pytest.raises(OptionError, match="labels of cifar10 must be fine, got 'coarse'"):
        cifar.read(str(tmp_path), {"labels": "coarse"})
    (tmp_path / "data_batch_4").unlink()
    with pytest.raises(DataError, match="has no file data_batch_4; unpack the official archive again"):
        cifar.read(str(tmp_path), {})


def test_a_folder_of_both_is_ambiguous(tmp_path):
    for name, write in (("cifar-10-batches-py", write_ten), ("cifar-100-python", write_hundred)):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    with pytest.raises(DataError, match=r"has both CIFAR-10 and CIFAR-100; name one of .*cifar-100-python"):
        cifar.read(str(tmp_path), {})
