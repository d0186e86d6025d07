import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.core.errors import DataError, MissingExtraError, OptionError
from nearkin.tasks.readers import folder
from nearkin.tasks.rows import Pixels, Rows

RNG = np.random.default_rng(0)


def picture(path, size=(4, 6), mode="RGB", value=None):
    shape = size if mode in ("L", "I;16") else (*size, 3)
    array = RNG.integers(0, 256, shape, np.uint8) if value is None else np.full(shape, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return array


def write(root, classes=("cat", "dog"), count=5, ending="png", **look):
    return {
        (name, number): picture(root / name / f"{number}.{ending}", **look)
        for name in classes
        for number in range(count)
    }


def floats(array):
    return torch.from_numpy(array / np.float32(255)).permute(2, 0, 1)


def test_one_folder_a_class(tmp_path):
    arrays = write(tmp_path / "pets")
    task = folder.read(str(tmp_path / "pets"), {})
    assert (task.name, task.classes, task.input_shape) == ("pets", ("cat", "dog"), (3, 4, 6))
    assert (len(task.train), len(task.test), task.source) == (8, 2, "")
    whole = task.train.inputs.rows
    assert isinstance(whole, Pixels)
    assert torch.equal(whole.take(torch.tensor([6]))[0], floats(arrays["dog", 1]))


@pytest.mark.parametrize("test", ["test", "val", "valid"])
def test_parts_in_folders_of_their_own(tmp_path, test):
    write(tmp_path / "train")
    arrays = write(tmp_path / test, count=2)
    task = folder.read(str(tmp_path), {})
    assert (len(task.train), len(task.test)) == (10, 4)
    assert task.test.labels().tolist() == [0, 0, 1, 1]
    assert torch.equal(task.test.inputs.take(torch.tensor([3]))[0], floats(arrays["dog", 1]))


def test_an_unlabelled_test_folder_gives_way_to_val(tmp_path):
    write(tmp_path / "train")
    write(tmp_path / "val", count=3)
    picture(tmp_path / "test" / "0.png")
    assert len(folder.read(str(tmp_path), {}).test) == 6


def test_a_class_may_be_called_train(tmp_path):
    write(tmp_path, classes=("plane", "train"))
    assert folder.read(str(tmp_path), {}).classes == ("plane", "train")


def test_images_may_lie_deeper_and_hidden_files_do_not_count(tmp_path):
    write(tmp_path)
    picture(tmp_path / "cat" / "images" / "deep.PNG")
    picture(tmp_path / "cat" / ".hidden.png")
    picture(tmp_path / ".git" / "0.png")
    (tmp_path / "cat" / ".cache").mkdir()
    picture(tmp_path / "cat" / ".cache" / "0.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    task = folder.read(str(tmp_path), {})
    assert task.classes == ("cat", "dog")
    assert len(task.train) + len(task.test) == 11


def test_order_is_that_of_the_names(tmp_path):
    for name in ("b", "a", "c"):
        for number in (2, 0, 1):
            picture(tmp_path / "train" / name / f"{number}.png", value=np.uint8(10 * number))
    write(tmp_path / "test", classes=("c",), count=1)
    task = folder.read(str(tmp_path), {})
    values = task.train.inputs.take(torch.arange(9))[:, 0, 0, 0].mul(255).round().int()
    assert values.tolist() == [0, 10, 20] * 3
    assert task.classes == ("a", "b", "c")


def test_grey_images_have_one_channel_and_one_colour_image_makes_all_colour(tmp_path):
    arrays = write(tmp_path, mode="L")
    task = folder.read(str(tmp_path), {})
    assert task.input_shape == (1, 4, 6)
    assert torch.equal(task.train.inputs.rows.tensor[0, 0], torch.from_numpy(arrays["cat", 0]))
    picture(tmp_path / "dog" / "9.png")
    assert folder.read(str(tmp_path), {}).input_shape == (3, 4, 6)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    write(tmp_path, count=2, mode="I;16", value=np.uint16(257 * 100))
    task = folder.read(str(tmp_path), {})
    assert task.input_shape == (1, 4, 6)
    assert task.train.inputs.rows.tensor.unique().tolist() == [100]


def test_palettes_with_transparency_are_colours(tmp_path):
    write(tmp_path)
    Image.new("P", (6, 4), 1).save(tmp_path / "cat" / "p.png", transparency=b"\x00\x80")
    assert folder.read(str(tmp_path), {}).input_shape == (3, 4, 6)


@pytest.mark.parametrize(("size", "shape"), [("8", (3, 8, 8)), ("3x5", (3, 3, 5))])
def test_images_are_brought_to_the_size_asked_for(tmp_path, size, shape):
    write(tmp_path, value=np.uint8(51))
    picture(tmp_path / "cat" / "wide.png", size=(9, 30), value=np.uint8(51))
    task = folder.read(str(tmp_path), {"size": size})
    assert task.input_shape == shape
    assert task.train.inputs.rows.tensor.unique().tolist() == [51]


def test_large_sets_are_decoded_as_they_are_taken(tmp_path, monkeypatch):
    arrays = write(tmp_path)
    small = folder.read(str(tmp_path), {})
    monkeypatch.setattr(folder, "KEPT_BYTES", 100)
    task = folder.read(str(tmp_path), {})
    rows = task.train.inputs.rows
    assert isinstance(rows, folder.ImageFiles)
    assert isinstance(rows, Rows)
    taken = rows.take(torch.tensor([7, 0, 7]))
    assert taken.dtype == torch.float32
    assert torch.equal(taken[0], floats(arrays["dog", 2]))
    assert torch.equal(taken[0], taken[2])
    assert task.fingerprint() == small.fingerprint()
    (tmp_path / "dog" / "2.png").unlink()
    assert len(rows.take(torch.tensor([0]))) == 1
    with pytest.raises(DataError, match=r"there is no file .*2\.png"):
        rows.take(torch.tensor([7]))


def test_a_size_missed_by_the_survey_is_resized(tmp_path, monkeypatch):
    write(tmp_path)
    picture(tmp_path / "cat" / "1.png", size=(9, 9))
    monkeypatch.setattr(folder, "MOST_HEADERS", 5)
    assert folder.read(str(tmp_path), {}).input_shape == (3, 4, 6)


def test_images_of_different_sizes_get_the_median_side(tmp_path):
    write(tmp_path, value=np.uint8(51))
    picture(tmp_path / "dog" / "1.png", size=(9, 7), value=np.uint8(51))
    task = folder.read(str(tmp_path), {})
    assert task.input_shape == (3, 6, 6)  # sides 4 and 6 nine times, 7, 9: the tenth and eleventh of 20 are 6
    assert task.train.inputs.rows.tensor.unique().tolist() == [51]
    assert task.notes == (
        "images have 2 sizes, such as 4x6 and 9x7 (height x width): resized to 6x6, the median side; choose another "
        "with ?size=",
    )
    assert folder.read(str(tmp_path), {"size": "5"}).notes == ()


def test_the_median_side_is_limited_and_mixed_modes_are_colour(tmp_path):
    write(tmp_path, size=(90, 80), mode="L", count=2)
    picture(tmp_path / "dog" / "9.png", size=(90, 100))
    task = folder.read(str(tmp_path), {})
    assert task.input_shape == (3, 64, 64)
    assert task.notes[0] == "4 of 5 images are grey, the others are not: all are read as colour"
    assert "resized to 64x64, the median side (90) limited to 64; choose another with ?size=" in task.notes[1]
    assert folder.read(str(tmp_path), {"size": "200"}).input_shape == (3, 200, 200)


@pytest.mark.parametrize("kept_bytes", [folder.KEPT_BYTES, 100])
def test_unreadable_images_are_listed_and_left_out_up_to_a_tenth(tmp_path, monkeypatch, kept_bytes):
    arrays = write(tmp_path)
    path = tmp_path / "dog" / "0.png"
    path.write_bytes(b"no image")
    monkeypatch.setattr(folder, "KEPT_BYTES", kept_bytes)
    task = folder.read(str(tmp_path), {})
    assert len(task.train) + len(task.test) == 9
    assert task.notes[0].startswith(f"left out: {path} is not a readable image (")
    images = torch.cat([split.inputs.take(torch.arange(len(split))) for split in (task.train, task.test)])
    labels = torch.cat([task.train.labels(), task.test.labels()])
    for image, label in zip(images, labels.tolist(), strict=True):  # every image still has its own label
        assert any(torch.equal(image, floats(arrays[task.classes[label], number])) for number in range(5))
    (tmp_path / "cat" / "1.png").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"2 of 10 image files cannot be read, at most a tenth may be; the first: .*1\.png"
    ):
        folder.read(str(tmp_path), {})


def test_a_broken_image_is_named(tmp_path):
    write(tmp_path, count=4)
    path = tmp_path / "dog" / "3.png"
    whole = path.read_bytes()
    for content in (b"", b"no image", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"1 of 8.*dog/3\.png is not a readable image \(.+\); replace or remove it"):
            folder.read(str(tmp_path), {})


def test_a_class_without_a_readable_image_is_named(tmp_path):
    write(tmp_path, count=20)
    picture(tmp_path / "owl" / "0.png").tofile(tmp_path / "owl" / "0.png")
    with pytest.raises(DataError, match="owl"):
        folder.read(str(tmp_path), {})


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        folder.read(str(tmp_path / "nowhere"), {})
    with pytest.raises(DataError, match="has no class folders; put the images of each class"):
        folder.read(str(tmp_path), {})
    picture(tmp_path / "train" / "0.png")
    picture(tmp_path / "test" / "0.png")
    with pytest.raises(DataError, match="has no class folders"):
        folder.read(str(tmp_path), {})


def test_an_empty_class_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "owl").mkdir()
    with pytest.raises(DataError, match=r"class folder .*owl has no images \(\.png.*add some or remove it"):
        folder.read(str(tmp_path), {})


def test_a_test_class_without_training_images_is_named(tmp_path):
    write(tmp_path / "train")
    write(tmp_path / "test", classes=("cat", "owl"))
    with pytest.raises(DataError, match=r"test has class owl, .*train does not"):
        folder.read(str(tmp_path), {})


def test_a_size_must_be_a_size(tmp_path):
    write(tmp_path)
    with pytest.raises(OptionError, match=r"size=32.*got 'big'"):
        folder.read(str(tmp_path), {"size": "big"})


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"reading images needs PIL: pip install 'nearkin\[vision\]'"):
        folder.read(str(tmp_path), {})
