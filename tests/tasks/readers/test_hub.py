import gzip
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from nearkin.core.errors import DataError, MissingExtraError, OptionError
from nearkin.tasks.readers import folder, hub
from nearkin.tasks.rows import Pixels, Rows

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (20, 5, 6, 3), np.uint8)
LABELS = [number % 2 for number in range(20)]


@pytest.fixture(scope="module")
def datasets():
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    yield library
    library.enable_progress_bars()


@pytest.fixture
def offline(datasets, tmp_path, monkeypatch):
    """No network, and a cache of the library's own that goes away."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return datasets


@pytest.fixture
def save(datasets, tmp_path):
    """A function that saves splits (dicts of columns) to disk and gives the folder."""

    def saved(features=None, **splits):
        given = datasets.Features(features) if features else None
        made = {name: datasets.Dataset.from_dict(columns, features=given) for name, columns in splits.items()}
        place = tmp_path / str(len(list(tmp_path.iterdir()))) / "pets"
        (made["train"] if list(made) == ["train"] else datasets.DatasetDict(made)).save_to_disk(place)
        return str(place)

    return saved


def pictures(rows=slice(None)):
    return [Image.fromarray(array) for array in PICTURES[rows]]


def pets(datasets):
    return {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}


def floats(array):
    return torch.from_numpy(array / np.float32(255)).permute(2, 0, 1)


def test_images_with_class_labels(datasets, save):
    location = save(
        pets(datasets),
        train={"image": pictures(slice(0, 14)), "label": LABELS[:14]},
        test={"image": pictures(slice(14, 20)), "label": LABELS[14:]},
    )
    task = hub.read(location, {})
    assert (task.name, task.classes, task.input_shape) == ("pets", ("cat", "dog"), (3, 5, 6))
    assert (len(task.train), len(task.test)) == (14, 6)
    assert isinstance(task.train.inputs, Pixels)
    assert torch.equal(task.test.inputs.take(torch.tensor([2]))[0], floats(PICTURES[16]))
    assert task.test.labels().tolist() == LABELS[14:]
    assert hub.read(location, {"size": "8"}).input_shape == (3, 8, 8)


def test_one_dataset_has_a_fifth_set_aside(datasets, save):
    task = hub.read(save(pets(datasets), train={"image": pictures(), "label": LABELS}), {})
    assert (len(task.train), len(task.test)) == (16, 4)


def test_large_images_are_decoded_as_they_are_taken(datasets, save, monkeypatch):
    location = save(pets(datasets), train={"image": pictures(), "label": LABELS})
    small = hub.read(location, {})
    monkeypatch.setattr(folder, "KEPT_BYTES", 100)
    task = hub.read(location, {})
    rows = task.train.inputs.rows
    assert isinstance(rows, folder.ImageFiles)
    assert torch.equal(rows.take(torch.tensor([5]))[0], floats(PICTURES[5]))
    assert task.fingerprint() == small.fingerprint()


def test_a_broken_image_is_named_by_row(datasets, save):
    broken = [{"bytes": b"no image", "path": None}] * 4
    location = save(pets(datasets), train={"image": broken, "label": [0, 1, 0, 1]})
    with pytest.raises(DataError, match="row 0 of column image is not a readable image"):
        hub.read(location, {})
    empty = save(pets(datasets), train={"image": [None] * 4, "label": [0, 1, 0, 1]})
    with pytest.raises(DataError, match="row 0 of column image has no image; remove that row"):
        hub.read(empty, {})


def test_images_of_several_sizes_get_the_median_side(datasets, save):
    images = [*pictures(slice(0, 3)), Image.fromarray(PICTURES[0][:3])]
    location = save(pets(datasets), train={"image": images, "label": [0, 1, 0, 1]})
    task = hub.read(location, {})
    assert task.input_shape == (3, 5, 5)
    assert task.notes[0].startswith("images have 2 sizes, such as 3x6 and 5x6 (height x width): resized to 5x5")
    assert hub.read(location, {"size": "5"}).input_shape == (3, 5, 5)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", ["bytes", "floats", "lists"])
def test_arrays(datasets, save, monkeypatch, kind, lazy):
    if lazy:
        monkeypatch.setattr(folder, "KEPT_BYTES", 10)
    value = {
        "bytes": PICTURES,
        "floats": RNG.normal(size=(20, 5, 3)).astype(np.float32),
        "lists": RNG.normal(size=(20, 7)).astype(np.float32),
    }[kind]
    feature = {
        "bytes": datasets.Array3D((5, 6, 3), "uint8"),
        "floats": datasets.Array2D((5, 3), "float32"),
        "lists": datasets.Sequence(datasets.Value("float32")),
    }[kind]
    features = {"signal": feature, "target": datasets.Value("int64")}
    task = hub.read(save(features, train={"signal": value.tolist(), "target": LABELS}), {})
    expected = {
        "bytes": torch.from_numpy(PICTURES / np.float32(255)).permute(0, 3, 1, 2),
        "floats": torch.from_numpy(value)[:, None],
        "lists": torch.from_numpy(value),
    }[kind]
    assert task.input_shape == tuple(expected.shape[1:])
    rows = task.train.inputs.rows
    assert isinstance(rows, hub.TableRows) == lazy
    assert isinstance(rows, Rows)
    assert torch.equal(rows.take(torch.arange(20)), expected)
    assert task.classes == ("0", "1")


@pytest.mark.parametrize("lazy", [False, True])
def test_columns_of_numbers_are_a_table(save, monkeypatch, lazy):
    if lazy:
        monkeypatch.setattr(folder, "KEPT_BYTES", 10)
    columns = {"b": np.arange(20.0), "a": list(range(20, 40)), "note": ["x"] * 20, "y": np.arange(20) / 3}
    location = save(train=columns)
    task = hub.read(location, {})
    assert (task.likelihood, task.input_shape) == ("gaussian", (2,))
    assert task.train.inputs.rows.take(torch.tensor([3])).tolist() == [[3.0, 23.0]]
    assert isinstance(task.train.inputs.rows, hub.TableRows) == lazy
    both = hub.read(location, {"target": "y,b", "input": "a"})
    assert (both.classes, both.input_shape, both.likelihood) == (("y", "b"), (1,), "gaussian")
    noisy = hub.read(location, {"likelihood": "heteroscedastic"})
    assert (noisy.likelihood, noisy.classes) == ("heteroscedastic", ("y",))


def test_targets_may_be_text_or_yes_and_no(save):
    location = save(train={"a": np.arange(6.0), "kind": ["cat", "dog"] * 3, "tame": [True, False] * 3})
    assert hub.read(location, {"target": "kind", "input": "a"}).classes == ("cat", "dog")
    assert hub.read(location, {"target": "tame", "input": "a"}).classes == ("False", "True")


def test_text_alone_is_a_language_model(save):
    lines = ["row row row your boat\n", "gently down the stream"] * 9
    task = hub.read(save(train={"text": lines}, validation={"text": ["row boat"] * 9}), {"length": "4"})
    assert (task.likelihood, task.input_shape, task.classes[:2]) == ("language", (4,), ("row", "<eos>"))
    words = [task.classes[number] for number in task.train.inputs.take(torch.tensor([0, 1])).flatten().tolist()]
    assert words == ["row", "row", "row", "your", "boat", "<eos>", "gently", "down"]
    assert len(task.test.inputs.tokens) == 27


def test_splits_are_chosen_by_name(save):
    part = {"x": np.arange(6.0), "label": [0, 1] * 3}
    location = save(first={"x": np.arange(9.0), "label": [0, 1, 0] * 3}, second=part, validation=part)
    assert len(hub.read(location, {}).train) == 9
    assert len(hub.read(location, {"train": "second", "test": "first"}).test) == 9
    with pytest.raises(OptionError, match="no split 'third' for train; its splits are first, second, validation"):
        hub.read(location, {"train": "third"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"which column of .* is the target\? choose with \?target=COLUMN: a \(number\), t \(text\), v \(array\)"),
        ({"target": "z"}, r"no column 'z' for target; its columns are a \(number\), t \(text\)"),
        ({"input": "z"}, "no column 'z' for input"),
        ({"target": "a", "input": "a,t"}, r"which columns of .* are inputs\? choose with \?input=COLUMN"),
        ({"target": "a", "input": "t"}, "text cannot be classified; leave target out"),
        ({"target": "v", "input": "a"}, "is the target"),
        ({"target": "a", "likelihood": "dense"}, "must be one of categorical, gaussian, heteroscedastic, got 'dense'"),
    ],
)
def test_columns_that_do_not_fit_are_listed(save, options, words):
    location = save(train={"a": [1.0, 2.0], "t": ["x", "y"], "v": [[1, 2], [3, 4]]})
    with pytest.raises(OptionError, match=words):
        hub.read(location, options)


def test_data_that_does_not_fit_says_so(datasets, save):
    with pytest.raises(DataError, match="column v has empty cells or arrays of different shapes"):
        hub.read(save(train={"v": [[1], [1, 2], [3]], "y": [0, 1, 0]}), {})
    labels = {"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=["cat", "dog"])}
    good, hidden = {"x": [1.0, 2.0], "label": [0, 1]}, {"x": [1.0, 2.0], "label": [-1, -1]}
    with pytest.raises(DataError, match=r"hidden labels \(-1\); choose another, as in \?test=validation"):
        hub.read(save(labels, train=good, test=hidden, validation=good), {})
    assert hub.read(save(labels, train=good, test=hidden, validation=good), {"test": "validation"}).num_outputs == 2
    with pytest.raises(DataError, match="values are NaN or infinite"):
        hub.read(save(train={"x": [1.0, None], "y": [0, 1]}), {})


def test_a_split_without_rows(datasets, monkeypatch):
    full, empty = (datasets.Dataset.from_dict({"x": [1.0] * size, "y": [0] * size}) for size in (2, 0))
    monkeypatch.setattr(hub, "_loaded", lambda *_: datasets.DatasetDict(train=full, test=empty))
    with pytest.raises(DataError, match=r"a split of pets has no rows; choose others with \?train= and \?test="):
        hub.read("pets", {})


def test_a_test_split_without_the_columns(datasets, tmp_path):
    for name, columns in (("train", {"x": [1.0, 2.0], "y": [0, 1]}), ("test", {"x": [1.0, 2.0]})):
        datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / name)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    with pytest.raises(DataError, match=r"the test split of .* has no y; choose \?test=SPLIT"):
        hub.read(str(tmp_path), {})


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_of_other_kinds(offline, tmp_path, kind):
    data = offline.Dataset.from_dict({"a": np.arange(10.0), "b": np.arange(10.0) ** 2, "label": [0, 1] * 5})
    place = tmp_path / "data"
    place.mkdir()
    for split in ("train", "test"):
        getattr(data, f"to_{kind}")(place / f"{split}.{kind}")
    one = hub.read(str(place / f"train.{kind}"), {})
    assert (len(one.train), len(one.test), one.input_shape) == (8, 2, (2,))
    both = hub.read(str(place), {})
    assert (len(both.train), len(both.test)) == (10, 10)


def test_packed_files_above_the_limit_are_refused_before_they_are_unpacked(offline, tmp_path, monkeypatch):
    pd.DataFrame({"a": np.arange(200_000.0)}).to_parquet(tmp_path / "a.parquet", compression="zstd")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"a,label\n" + b"0,0\n" * 500_000))
    with zipfile.ZipFile(tmp_path / "c.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.csv", b"a,label\n" + b"0,0\n" * 500_000)
    (tmp_path / "d.csv.zst").write_bytes(b"anything")
    monkeypatch.setenv("NEARKIN_MAX_BYTES", "1MB")
    monkeypatch.setattr(offline, "load_dataset", pytest.fail)
    for file in ("a.parquet", "b.csv.gz", "c.zip"):
        assert (tmp_path / file).stat().st_size < 1_000_000
        with pytest.raises(DataError, match=rf"{file}, unpacked, takes .*, the limit is "):
            hub.read(str(tmp_path / file), {})
    with pytest.raises(DataError, match=r"d\.csv\.zst: the unpacked size of \.zst files is not known; unpack it first"):
        hub.read(str(tmp_path / "d.csv.zst"), {})


def test_columns_above_the_limit_are_not_gathered(save, monkeypatch):
    texts, values = save(train={"text": ["word " * 50] * 100}), save(train={"x": [0.5] * 9000, "y": [1.5] * 9000})
    monkeypatch.setenv("NEARKIN_MAX_BYTES", "20kB")
    with pytest.raises(DataError, match=r"the text of column text takes .*, the limit is"):
        hub.read(texts, {})
    with pytest.raises(DataError, match=r"the targets of .* takes .*, the limit is"):
        hub.read(values, {"target": "y"})


def test_damaged_and_missing_files(offline, save, tmp_path):
    with pytest.raises(DataError, match=r"there is no folder or file ./nowhere; name one"):
        hub.read("./nowhere", {})
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"cannot load .*bad\.parquet \(.*\); check the name, or fix the files"):
        hub.read(str(tmp_path / "bad.parquet"), {})
    location = save(train={"x": [1.0, 2.0], "y": [0, 1]})
    for path in tmp_path.glob("*/pets/*.arrow"):
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"cannot load .*pets"):
        hub.read(location, {})


def test_offline_is_one_line_with_the_cure(offline):
    with pytest.raises(DataError) as error:
        hub.read("nobody/nothing", {})
    assert "cannot reach the hub for nobody/nothing" in str(error.value)
    assert "save_to_disk" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_offline_variable_is_honoured_and_nothing_else_is_printed(datasets, tmp_path):
    program = (
        "from nearkin.core.errors import DataError\n"
        "from nearkin.tasks.readers import hub\n"
        "try: hub.read('nobody/nothing', {})\n"
        "except DataError as error: print(error)\n"
    )
    around = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=around, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("cannot reach the hub for nobody/nothing")
    assert done.stderr == ""


def test_a_missing_configuration_names_the_option():
    fault = ValueError("Config name is missing.\nPlease pick one among the available configs: ['a', 'b']")
    assert "['a', 'b']); choose one with ?config=NAME" in str(hub._load_error("glue", fault))


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"needs datasets: pip install 'nearkin\[hf\]'"):
        hub.read("mnist", {})


def test_progress_bars_are_put_back(datasets, save):
    location = save(train={"x": np.arange(6.0), "y": [0, 1] * 3})
    datasets.enable_progress_bars()
    hub.read(location, {})
    assert not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    hub.read(location, {})
    assert datasets.are_progress_bars_disabled()


def test_importing_the_reader_does_not_import_the_library():
    program = "import sys, nearkin.tasks.readers.hub; sys.exit('datasets' in sys.modules or 'PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
