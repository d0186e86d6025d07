"""New inputs in the form that a task was made from: image files of any size, array files, rows of a table."""

import numpy as np
import pytest
from PIL import Image

import nearkin as nk
from nearkin.core.errors import DataError, MismatchError
from nearkin.tasks.new_inputs import NewInputs, read_inputs
from nearkin.tasks.rows import gathered
from nearkin.tasks.table_examples import read_table

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (20, 8, 8), dtype=np.uint8)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, image in enumerate(IMAGES):
        Image.fromarray(image).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture
def facts():
    return nk.Task.from_arrays("toy", IMAGES, [0, 1] * 10).facts()


def test_folders_files_and_lists_are_the_same_images(photos, facts):
    inputs = read_inputs(photos, facts, "toy")
    assert [name.rsplit("/", 1)[1] for name in inputs.names] == [f"{number:02d}.png" for number in range(20)]
    np.testing.assert_array_equal(gathered(inputs.rows)[:, 0] * 255, IMAGES)
    files = [str(photos / "03.png"), photos / "01.png"]
    np.testing.assert_array_equal(gathered(read_inputs(files, facts, "toy").rows)[:, 0] * 255, IMAGES[[3, 1]])
    assert read_inputs(str(photos / "03.png"), facts, "toy").names == (str(photos / "03.png"),)
    assert read_inputs(inputs, facts, "toy") is inputs


def test_other_sizes_and_colours_are_converted(photos, facts):
    Image.fromarray(np.full((30, 20, 3), 100, np.uint8)).save(photos / "20.png")
    inputs = read_inputs(photos, facts, "toy")
    assert inputs.rows.shape == (1, 8, 8)
    assert (gathered(inputs.rows)[20] * 255).round().unique().tolist() == [100]


def test_pillow_images_in_memory_are_the_same_as_files(photos, facts):
    files = read_inputs(photos, facts, "toy")
    pictures = [Image.open(photos / f"{number:02d}.png") for number in range(20)]
    with pictures[0], pictures[1]:
        inputs = read_inputs(pictures, facts, "toy")
        assert inputs.names == tuple(map(str, range(20)))
        assert gathered(inputs.rows).equal(gathered(files.rows))
        assert pictures[0].getpixel((0, 0)) == IMAGES[0, 0, 0]  # still open
    for picture in pictures:
        picture.close()
    for mode in ("RGB", "RGBA", "1", "I;16", "P", "LA", "CMYK"):
        (one,) = gathered(read_inputs(Image.new(mode, (30, 20)), facts, "toy").rows)
        assert one.shape == (1, 8, 8)
    table = nk.Task.from_arrays("table", np.eye(10), [0, 1] * 5).facts()
    with pytest.raises(MismatchError, match=r"got Pillow images, 'table' expects inputs of shape \(10,\)"):
        read_inputs([Image.new("L", (8, 8))], table, "table")
    with pytest.raises(DataError, match="an image in memory contains floats"):
        read_inputs(Image.new("F", (8, 8)), facts, "toy")


def test_arrays_of_another_size_are_refused(facts):
    with pytest.raises(MismatchError, match=r"got inputs of shape \(1, 9, 9\), 'toy' expects \(1, 8, 8\)"):
        read_inputs(np.zeros((3, 9, 9), np.uint8), facts, "toy")


def test_data_frames_with_unseen_values_and_missing_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({
        "size": [1.0, None, 3.0, 4.0] * 10,
        "when": pandas.to_datetime(["2024-01-01", "2024-02-01", None, "2024-03-01"] * 10),
        "colour": pandas.Categorical(["red", "blue", None, "red"] * 10),
        "y": ["no", "yes"] * 20,
    })  # fmt: skip
    task = nk.Task.from_frame("toy", frame, "y")
    new = frame.drop(columns="y").head(3).assign(colour=["green", "red", None], more=7)
    found = gathered(read_inputs(new, task.facts(), "toy").rows)
    assert found.isfinite().all()
    cells = [{"size": "1", "when": "2024-01-01", "colour": "green"}, {"size": "", "when": "2024-02-01 00:00:00",
             "colour": "red"}, {"size": 3, "when": None, "colour": ""}]  # fmt: skip
    assert found.equal(gathered(read_inputs(cells, task.facts(), "toy").rows))
    assert not found[0].equal(found[1])
    with pytest.raises(DataError, match="the table has no column 'when'; it needs size, when, colour: add it"):
        read_inputs(new.drop(columns="when"), task.facts(), "toy")


def test_inverted_tasks_invert_new_files(photos, facts):
    inputs = read_inputs(photos, {**facts, "source": "folder:photos?invert"}, "toy")
    np.testing.assert_array_equal((gathered(inputs.rows)[:, 0] * 255).round(), 255 - IMAGES)


def test_unreadable_files_are_listed_and_skipped_up_to_a_tenth(photos, facts):
    for number in (4, 7):
        (photos / f"{number:02d}.png").write_bytes(b"no image")
    inputs = read_inputs(photos, facts, "toy")
    assert (len(inputs.rows), len(inputs.names), len(inputs.skipped)) == (18, 18, 2)
    assert "04.png is not a readable image" in inputs.skipped[0]
    (photos / "09.png").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"3 of 20 image files cannot be read, at most a tenth may be; the first: .*04.png"
    ):
        read_inputs(photos, facts, "toy")


def test_array_files(tmp_path, facts):
    np.save(tmp_path / "x.npy", IMAGES)
    np.savez(tmp_path / "x.npz", x=IMAGES, other=np.zeros(3))
    np.savez(tmp_path / "odd.npz", a=IMAGES, b=IMAGES)
    for file in ("x.npy", "x.npz"):
        np.testing.assert_array_equal(gathered(read_inputs(tmp_path / file, facts, "toy").rows)[:, 0] * 255, IMAGES)
    with pytest.raises(DataError, match="has the arrays a, b, expected inputs under the name x"):
        read_inputs(tmp_path / "odd.npz", facts, "toy")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-5])
    with pytest.raises(DataError, match="not a complete npy file"):
        read_inputs(tmp_path / "cut.npy", facts, "toy")


def test_rows_of_a_table():
    cells = {"a": ["1", "2", ""] * 5, "y": ["no", "yes", "no"] * 5}
    table = read_table("toy", cells, ["y"], cells)
    task = nk.Task.of("toy", **table._asdict())
    inputs = read_inputs([{"a": 7}, {"a": None}, {}], task.facts(), "toy")
    assert gathered(inputs.rows).tolist() == [[7, 0], [1.5, 1], [1.5, 1]]
    with pytest.raises(DataError, match="the table has no column 'a'"):
        read_inputs([{"b": 7}], task.facts(), "toy")
    assert isinstance(read_inputs(np.zeros((3, 2)), task.facts(), "toy"), NewInputs)


def test_inputs_of_another_kind_say_what_is_expected(tmp_path, photos, facts):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(MismatchError, match=r"got a table with named columns, 'toy' stores no encoding of columns"):
        read_inputs(tmp_path / "t.csv", facts, "toy")
    table = nk.Task.from_arrays("table", np.eye(10), [0, 1] * 5).facts()
    with pytest.raises(MismatchError, match=r"'table' expects inputs of shape \(10,\); give a csv file or arrays"):
        read_inputs(photos, table, "table")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="there is no image in"):
        read_inputs(empty, facts, "toy")
    with pytest.raises(DataError, match=r"1 of 1 image files cannot be read.*there is no file"):
        read_inputs(tmp_path / "nowhere.png", facts, "toy")


@pytest.mark.parametrize("stored", ["x", [], 1, {}, {"version": 1, "columns": {}}])
def test_a_damaged_encoding_is_refused_in_one_line(stored):
    facts = nk.Task.from_arrays("table", np.eye(10), [0, 1] * 5).facts()
    with pytest.raises(DataError, match="the preprocessing of 'table'"):
        read_inputs([{"a": 1}], {**facts, "preprocessing": {"table": stored}}, "table")
