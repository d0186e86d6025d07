import gzip
import random
import time

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nearkin as nk
from nearkin.core.errors import DataError, OptionError
from nearkin.tasks.readers import table

PETS = """weight,colour,age,kind
4.5,black,3,cat
20,brown,5,dog
3.5,white,2,cat
30,black,7,dog
5,brown,1,cat
25,brown,4,dog
4,black,9,cat
22,white,8,dog
"""


def written(folder, content, name="pets.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    return str(path)


def every_row(task):
    """Inputs and targets of a task without a test file, in the order of the file."""
    order = torch.cat([task.train.inputs.index, task.test.inputs.index]).argsort()
    targets = torch.cat([task.train.labels(), task.test.labels()])
    return task.train.inputs.rows.tensor, targets[order]


@pytest.mark.parametrize("name", ["pets.csv", "pets.csv.gz"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_numbers_stay_and_text_is_one_column_a_value(tmp_path, name, delimiter):
    path = written(tmp_path, PETS.replace(",", delimiter), name)
    task = table.read(path, {"target": "kind"})
    assert (task.name, task.likelihood, task.classes) == ("pets", "categorical", ("cat", "dog"))
    assert task.input_shape == (5,)
    x, y = every_row(task)
    assert x[0].tolist() == [4.5, 1, 0, 0, 3]
    assert x[2].tolist() == [3.5, 0, 0, 1, 2]
    assert y.tolist() == [0, 1] * 4
    assert (len(task.train), len(task.test)) == (6, 2)


def test_columns_can_be_dropped(tmp_path):
    task = table.read(written(tmp_path, PETS), {"target": "kind", "drop": "colour, age"})
    assert task.input_shape == (1,)


def test_few_whole_numbers_are_classes_and_many_are_real(tmp_path):
    content = "a,few,many,real\n" + "".join(f"{i},{i % 3}.0,{i},{i / 7}\n" for i in range(60))
    path = written(tmp_path, content)
    few = table.read(path, {"target": "few"})
    assert (few.likelihood, few.classes) == ("categorical", ("0", "1", "2"))
    for target in ("many", "real"):
        task = table.read(path, {"target": target})
        assert (task.likelihood, task.classes) == ("gaussian", (target,))
    assert table.read(path, {"target": "few", "likelihood": "heteroscedastic"}).likelihood == "heteroscedastic"
    assert len(table.read(path, {"target": "many", "likelihood": "categorical", "test": path}).classes) == 60


def test_several_targets_are_real(tmp_path):
    task = table.read(written(tmp_path, PETS), {"target": "weight,age"})
    assert (task.likelihood, task.classes, task.train.targets.shape) == ("gaussian", ("weight", "age"), (2,))
    x, y = every_row(task)
    assert y[0].tolist() == [4.5, 3]
    assert x.shape == (8, 4)  # no training row is white


def test_a_test_file_has_the_same_columns_in_any_order(tmp_path):
    path = written(tmp_path, PETS)
    written(tmp_path, "kind,age,colour,weight\ndog,6,green,18\ncat,1,white,4\n", "more.csv")
    task = table.read(path, {"target": "kind", "test": "more.csv"})
    assert (len(task.train), len(task.test)) == (8, 2)
    assert task.test.inputs.take(torch.tensor([0, 1])).tolist() == [[18, 0, 0, 0, 6], [4, 0, 0, 1, 1]]
    assert task.test.labels().tolist() == [1, 0]


def test_quoted_cells_marks_and_blank_lines(tmp_path):
    content = '\ufeffname,"x, y",z\r\n"a, b",1,2.5\r\nc,0,1.5\r\n\r\n"a, b",1,0.5\r\nc,0,3.5\r\n'
    task = table.read(written(tmp_path, content), {"target": "name"})
    assert (task.classes, task.input_shape) == (("a, b", "c"), (2,))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(rows=st.lists(st.tuples(st.floats(width=32, allow_nan=False, allow_infinity=False), st.booleans()), min_size=1))
def test_numbers_are_read_back(tmp_path, rows):
    content = "a,b\n" + "".join(f"{a!r},{int(b)}\n" for a, b in rows)
    found = table.columns(tmp_path / written(tmp_path, content))
    np.testing.assert_array_equal(table.numbers(found["a"]), np.array([a for a, _ in rows]))
    np.testing.assert_array_equal(table.numbers(found["b"]), np.array([b for _, b in rows]))


@pytest.mark.parametrize("gap", ["", "NA", "nan", "?", "null", "inf"])
def test_missing_numbers_become_the_median_and_are_marked(tmp_path, gap):
    path = written(tmp_path, PETS.replace(",5,dog", f",{gap},dog").replace(",1,cat", f",{gap},cat"))
    task = table.read(path, {"target": "kind", "drop": "colour", "test": path})
    reason = "beyond float32 (3.4e+38)" if gap == "inf" else "missing"
    assert task.notes == (f"column 'age': {reason} in 2 of 8 training rows: filled with 5.5 and marked",)
    assert task.train.inputs.tensor[1].tolist() == [20, 5.5, 1]
    assert task.train.inputs.tensor[2].tolist() == [3.5, 2, 0]
    assert table.read(path, {"target": "kind", "drop": "age", "test": path}).input_shape == (4,)


def test_missing_text_is_a_value_and_rows_without_a_target_are_left_out(tmp_path):
    path = written(tmp_path, PETS.replace("white,2", ",2"))
    task = table.read(path, {"target": "kind", "test": path})
    assert task.notes == ("column 'colour': missing in 1 of 8 training rows: a value of its own",)
    assert task.input_shape == (6,)
    task = table.read(written(tmp_path, PETS.replace("8,dog", "8,")), {"target": "kind"})
    assert task.notes[0] == "1 of 8 rows has no target: left out"
    assert len(task.train) + len(task.test) == 7
    task = table.read(written(tmp_path, PETS.replace("30,", "NA,")), {"target": "weight"})
    assert (task.notes[0], task.likelihood) == ("1 of 8 rows has no target: left out", "gaussian")


def test_identifiers_are_dropped_unless_they_are_kept(tmp_path):
    content = "id,x,y\n" + "".join(f"n{i},{i * 7 % 13},{i % 2}\n" for i in range(101))
    path = written(tmp_path, content)
    task = table.read(path, {"target": "y", "test": path})
    assert task.notes == ("column 'id' has 101 distinct values in 101 training rows: dropped as an identifier",)
    assert task.input_shape == (1,)
    assert table.read(path, {"target": "y", "keep": "id", "test": path}).input_shape == (1,)  # no value occurs twice


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"csv needs \?target=COLUMN; the columns of .* are weight, colour, age, kind"),
        ({"target": "price"}, "no column 'price' to target; its columns are weight, colour, age, kind"),
        ({"target": "kind", "drop": "price"}, "no column 'price' to drop; its columns are"),
        ({"target": "kind", "likelihood": "dense"}, "one of categorical, gaussian, heteroscedastic, got 'dense'"),
        ({"target": "kind,age", "likelihood": "categorical"}, "classes must be one column, got target=kind,age"),
    ],
)
def test_wrong_options_say_what_there_is(tmp_path, options, words):
    with pytest.raises(OptionError, match=words):
        table.read(written(tmp_path, PETS), options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "kind", "drop": "weight,colour,age"}, "no input column left; drop fewer"),
        ({"target": "kind", "likelihood": "gaussian"}, "target column kind is text.*likelihood=categorical"),
        ({"target": "kind", "test": "none.csv"}, r"there is no file .*none\.csv"),
        ({"target": "kind", "test": "short.csv"}, "has no column colour, kind; add it or drop it"),
        (
            {"target": "kind", "test": "wordy.csv"},
            "column 'age': got cells such as 'old', expected the kind number; fix the column",
        ),
        ({"target": "kind", "test": "numbers.csv"}, "target kind is text in one file and numbers in the other"),
        ({"target": "kind", "test": "stranger.csv"}, "no training sample of class owl"),
    ],
)
def test_files_that_do_not_fit_say_so(tmp_path, options, words):
    written(tmp_path, "weight,age\n1,2\n", "short.csv")
    for name, row in (("wordy", "1,white,old,cat"), ("numbers", "1,white,2,3"), ("stranger", "1,white,2,owl")):
        written(tmp_path, f"weight,colour,age,kind\n{row}\n", f"{name}.csv")
    with pytest.raises(DataError, match=words):
        table.read(written(tmp_path, PETS), options)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no lines, expected a header and at least one row"),
        ("a,b\n", "has 1 line, expected"),
        ("1903,1,1\n1903,1,2\n", "has no header: its first line is 1903, 1, 1; add a line"),
        ("a,b,a\n1,2,3\n", "several columns are named a: give each its own name"),
        ("a,b\n1,2\n3\n", "row 2 has 1 cells, the header 2: fix that row"),
        (
            "a,a\n1\n1,2\n3\n",
            "named a: give .* name; row 1 has 1 cells, row 3 has 1 cells, the header 2: fix these rows",
        ),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, content, words):
    with pytest.raises(DataError, match=words):
        table.read(written(tmp_path, content), {"target": "a"})


def test_other_broken_files(tmp_path):
    with pytest.raises(DataError, match=r"there is no file .*none\.csv"):
        table.read(str(tmp_path / "none.csv"), {"target": "a"})
    path = tmp_path / "latin.csv"
    path.write_bytes("näme,b\n1,2\n".encode("latin1"))
    with pytest.raises(DataError, match=r"not UTF-8 text .*save it as UTF-8"):
        table.read(str(path), {"target": "b"})
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(gzip.compress(PETS.encode())[:-12])
    with pytest.raises(DataError, match=r"broken gzip file.*fetch it again"):
        table.read(str(path), {"target": "kind"})
    with pytest.raises(DataError, match="is not a csv table"):
        table.read(written(tmp_path, "a,b\n" + "x" * 200_000 + ",1\n"), {"target": "b"})


@pytest.mark.soak
def test_a_hundred_thousand_rows_in_a_few_seconds(tmp_path):
    rng = random.Random(0)
    lines = [",".join([rng.choice("rgb"), *(f"{rng.random():.6f}" for _ in range(19))]) for _ in range(100_000)]
    path = written(tmp_path, ",".join(f"c{i}" for i in range(20)) + "\n" + "\n".join(lines))
    start = time.process_time()
    task = table.read(path, {"target": "c19"})
    assert time.process_time() - start < 15  # 4 s alone on one core
    assert (len(task.train), task.input_shape) == (80_000, (21,))


@pytest.mark.realdata
def test_real_tables(real_data):
    folder = real_data / "malaria_prevalence"
    gambia = table.read(str(folder / "gambia.csv.gz"), {"target": "pos"})
    assert (len(gambia.train) + len(gambia.test), gambia.input_shape, gambia.classes) == (2035, (7,), ("0", "1"))
    kenya = table.read(str(folder / "kenya_highlands_rdt.csv.gz"), {"target": "elevation"})
    assert (len(kenya.train) + len(kenya.test), kenya.likelihood) == (8204, "gaussian")
    path = str(folder / "map_pfpr_by_country_2000-2019.csv.gz")
    whole = table.read(path, {"target": "PfPR_rmean"})
    assert whole.input_shape[0] > 2 * 190, "one column for each country, in two columns of text"
    world = table.read(path, {"target": "PfPR_rmean", "drop": "ISO,Name_0,Code_0,ID_0"})
    assert len(world.train) + len(world.test) == 190 * 20
    with pytest.raises(DataError, match="has no header: its first line is 1903, 1, 1, 3"):
        table.read(str(real_data / "ushcn_daily" / "CA_044997_livermore_prcp.csv.gz"), {"target": "prcp"})


def test_numbers_as_people_write_them_are_numbers(tmp_path):
    """Decimal commas, separators of thousands, currencies and percent give the task of the plain numbers."""
    rng = np.random.default_rng(0)
    values = rng.uniform(1000, 5000, 60).round(2)
    other = rng.uniform(-3, 3, 60).round(3)
    y = values + 100 * other

    def german(number: float) -> str:
        return f"{number:,.2f}".replace(",", " ").replace(".", ",").replace(" ", ".")

    def lines(separator: str, *columns: list[str]) -> str:
        return "\n".join([separator.join("abc"), *(separator.join(row) for row in zip(*columns, strict=True))])

    plain = lines(",", [f"{v:.2f}" for v in values], [f"{v:.3f}" for v in other], [f"{v:.2f}" for v in y])
    (tmp_path / "plain.csv").write_text(plain)
    (tmp_path / "semicolon.csv").write_text(
        lines(";", [*map(german, values)], [f"{v:.3f}".replace(".", ",") for v in other], [*map(german, y)])
    )
    (tmp_path / "pipe.csv").write_text(
        lines("|", [f"${v:,.2f}" for v in values], [f"{v:.3f}%" for v in other], [f"{v:,.2f} €" for v in y])
    )
    wanted = nk.task(f"csv:{tmp_path / 'plain.csv'}?target=c")
    for name in ("semicolon", "pipe"):
        task = nk.task(f"csv:{tmp_path / name}.csv?target=c")
        assert task.likelihood == "gaussian"
        for split, other_split in ((task.train, wanted.train), (task.test, wanted.test)):
            for mine, theirs in zip(split.all(), other_split.all(), strict=True):
                assert torch.allclose(mine, theirs)
    assert [note for note in task.notes if "are read as" in note] == [
        f"column 'a': numbers such as '${values[0]:,.2f}' are read as {values[0]:g}",
        f"column 'b': numbers such as '{other[0]:.3f}%' are read as {other[0]:g}",
    ]


def test_a_target_of_a_few_percentages_keeps_its_names(tmp_path):
    rows = [f"{i % 3},{'50%' if i % 3 else '100%'}" for i in range(30)]
    (tmp_path / "shares.csv").write_text("\n".join(["a,share", *rows]))
    assert nk.task(f"csv:{tmp_path / 'shares.csv'}?target=share").classes == ("100%", "50%")
