import json

import numpy as np
import pytest
import torch

from nearkin.core.errors import DataError, OptionError
from nearkin.tasks.readers import npy, npz

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (30, 6, 6, 3), np.uint8)
Y = np.arange(30) % 3
PARTS = {"x_train": X[:20], "y_train": Y[:20], "x_test": X[20:], "y_test": Y[20:]}


def saved(folder, save=np.savez, **arrays):
    path = folder / "pets.npz"
    save(path, **arrays)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_four_arrays_are_a_task(tmp_path, save):
    task = npz.read(str(saved(tmp_path, save, **PARTS)), {})
    assert (task.name, task.likelihood, task.input_shape) == ("pets", "categorical", (3, 6, 6))
    assert (len(task.train), len(task.test)) == (20, 10)
    assert task.classes == ("0", "1", "2")
    taken = task.test.inputs.take(torch.arange(10))
    assert torch.equal(taken, torch.from_numpy(X[20:].transpose(0, 3, 1, 2) / np.float32(255)))
    assert task.test.labels().tolist() == Y[20:].tolist()


@pytest.mark.parametrize("names", [("x", "y"), ("x_train", "y_train")])
def test_without_test_arrays_a_fifth_is_set_aside(tmp_path, names):
    task = npz.read(str(saved(tmp_path, **dict(zip(names, (X, Y), strict=True)))), {})
    assert (len(task.train), len(task.test)) == (24, 6)


def test_names_of_classes_come_with_the_file(tmp_path):
    (tmp_path / "classes.json").write_text('["not", "these", "ones"]')
    task = npz.read(str(saved(tmp_path, **PARTS, classes=np.array(["cat", "dog", "owl"]))), {})
    assert task.classes == ("cat", "dog", "owl")


@pytest.mark.parametrize(
    "content",
    [["cat", "dog", "owl"], {"classes": ["cat", "dog", "owl"]}, {"fine": ["cat", "dog", "owl"], "other": 3}],
)
def test_names_of_classes_lie_beside_the_file(tmp_path, content):
    (tmp_path / "classes.json").write_text(json.dumps(content))
    assert npz.read(str(saved(tmp_path, **PARTS)), {}).classes == ("cat", "dog", "owl")


@pytest.mark.parametrize("kind", ["U", "S"])
def test_labels_may_be_text(tmp_path, kind):
    names = np.array(["owl", "cat", "dog"]).astype(kind)
    task = npz.read(str(saved(tmp_path, x=X, y=names[Y])), {})
    assert task.classes == ("cat", "dog", "owl")


def test_coarse_labels_have_their_own_arrays_and_names(tmp_path):
    (tmp_path / "classes.json").write_text(json.dumps({"classes": list("abc"), "superclasses": ["big", "small"]}))
    coarse = {"coarse_train": (Y[:20] > 0).astype(np.uint8), "coarse_test": (Y[20:] > 0).astype(np.uint8)}
    path = saved(tmp_path, **PARTS, **coarse)
    task = npz.read(str(path), {"labels": "coarse"})
    assert task.classes == ("big", "small")
    assert task.train.labels().tolist() == coarse["coarse_train"].tolist()
    assert npz.read(str(path), {"labels": "fine"}).classes == ("a", "b", "c")


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_whole_numbers_are_real_values_on_demand(tmp_path, likelihood):
    (tmp_path / "classes.json").write_text('["cat", "dog", "owl"]')
    task = npz.read(str(saved(tmp_path, x=X, y=Y)), {"likelihood": likelihood})
    assert (task.likelihood, task.train.targets.shape) == (likelihood, (1,))


def test_images_can_be_targets(tmp_path):
    path = saved(tmp_path, x=X, y=X.transpose(0, 3, 1, 2)[:, :1])
    task = npz.read(str(path), {"likelihood": "dense"})
    assert (task.likelihood, task.train.targets.shape) == ("dense", (1, 6, 6))


def test_a_large_stored_array_is_mapped(tmp_path, monkeypatch, mapped_file):
    monkeypatch.setattr(npy, "MAPPED_BYTES", 1000)
    path = saved(tmp_path, **PARTS)
    before = path.read_bytes()
    task = npz.read(str(path), {})
    assert mapped_file(task.train.inputs.tensor) == str(path)
    assert torch.equal(
        task.train.inputs.take(torch.arange(20)), torch.from_numpy(X[:20].transpose(0, 3, 1, 2) / np.float32(255))
    )
    task.train.inputs.tensor.zero_()
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["x_train", "xx_train", "xxx_train", "xxxx_train"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_wide_numbers_are_right_whether_mapped_or_not(tmp_path, monkeypatch, name, order):
    monkeypatch.setattr(npy, "MAPPED_BYTES", 100)
    x = np.asarray(RNG.normal(size=(20, 7)).astype(np.float32), order=order)
    path = saved(tmp_path, **{name: x})
    with npy.opened_archive(path) as archive:
        found = archive.arrays([name])[name]
    np.testing.assert_array_equal(found, x)
    assert found.flags.aligned


def test_small_and_compressed_arrays_are_read(tmp_path, monkeypatch, mapped_file):
    assert mapped_file(npz.read(str(saved(tmp_path, **PARTS)), {}).train.inputs.tensor) == ""
    monkeypatch.setattr(npy, "MAPPED_BYTES", 1000)
    assert mapped_file(npz.read(str(saved(tmp_path, np.savez_compressed, **PARTS)), {}).train.inputs.tensor) == ""


def test_objects_are_refused_and_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    path = saved(tmp_path, x=X, y=np.array([Trap()] * 30, dtype=object))
    with pytest.raises(DataError, match=r"y\.npy' contains Python objects.*save numbers or text of one shape"):
        npz.read(str(path), {})
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("keep", [0, 10, 500, -30])
def test_a_cut_file_is_refused(tmp_path, keep):
    path = saved(tmp_path, **PARTS)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"pets\.npz is not a complete npz file .*fetch it again"):
        npz.read(str(path), {})


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_file_is_refused(tmp_path, save):
    path = saved(tmp_path, save, **PARTS)
    data = bytearray(path.read_bytes())
    data[1000:1010] = bytes(255 - byte for byte in data[1000:1010])
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"pets\.npz is not a complete npz file"):
        npz.read(str(path), {})


def test_a_lone_npy_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", X)
    with pytest.raises(DataError, match="not a complete npz file"):
        npz.read(str(tmp_path / "a.npy"), {})


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        ({"images": X, "y": Y}, {}, "has no array x_train; it has images, y"),
        ({"x": X}, {}, "has no array y_train"),
        (PARTS, {"labels": "coarse"}, "has no array coarse_train"),
        ({"x": X, "y": Y[:9]}, {}, "30 training inputs but 9 labels"),
        ({"x_train": X, "y_train": Y, "x_test": X}, {}, "give both x_test and y_test"),
    ],
)
def test_missing_arrays_are_named(tmp_path, arrays, options, words):
    with pytest.raises(DataError, match=words):
        npz.read(str(saved(tmp_path, **arrays)), options)


def test_other_errors_say_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"there is no file .*none\.npz"):
        npz.read(str(tmp_path / "none.npz"), {})
    path = saved(tmp_path, **PARTS)
    with pytest.raises(OptionError, match=r"must be one of categorical, gaussian.*got 'language'"):
        npz.read(str(path), {"likelihood": "language"})
    (tmp_path / "classes.json").write_text("{")
    with pytest.raises(DataError, match=r"classes\.json is not JSON .*fix or remove"):
        npz.read(str(path), {})
    (tmp_path / "classes.json").write_text('{"animals": ["cat"]}')
    with pytest.raises(DataError, match=r"classes\.json names no classes.*'classes'"):
        npz.read(str(path), {})


@pytest.mark.realdata
def test_real_cifar(real_data):
    ten = npz.read(str(real_data / "cifar10" / "cifar10_15k_3k.npz"), {})
    assert (len(ten.train), len(ten.test), ten.classes[0]) == (15_000, 3_000, "airplane")
    np.testing.assert_allclose(ten.train.scaling.mean, [0.4914, 0.4822, 0.4465], atol=5e-3)
    hundred = real_data / "cifar100" / "cifar100_15k_3k.npz"
    assert len(npz.read(str(hundred), {}).classes) == 100
    coarse = npz.read(str(hundred), {"labels": "coarse"})
    assert (len(coarse.classes), coarse.classes[0]) == (20, "aquatic_mammals")
    assert torch.bincount(coarse.train.labels()).tolist() == [750] * 20
