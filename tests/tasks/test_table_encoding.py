"""Laws of table encodings: finite numbers, a round trip through JSON, training rows only, one line for every change."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.core.errors import DataError
from nearkin.tasks.column_encodings import CategoryColumn, DateColumn, NumberColumn, TextColumn, TruthColumn
from nearkin.tasks.column_kinds import column_kind
from nearkin.tasks.table_cells import date_format
from nearkin.tasks.table_encoding import TableEncoding, TableReport
from nearkin.tasks.table_examples import read_table
from nearkin.tasks.task import Task

ODD = ["", " ", "NA", "0", "1", "2.5", "-1e300", "inf", "yes", "no", "2024-02-29", "29/02/2024", "red", "blue",
       "字 字 字 字",       "the cat sat on the mat", "a dog", "é", "💥", "\0", "9" * 40, "1_000"]  # fmt: skip
CELL = st.one_of(st.sampled_from(ODD), st.text(st.characters(codec="utf-8"), max_size=12))
TABLES = st.integers(1, 30).flatmap(
    lambda rows: st.dictionaries(
        st.text("abc_", min_size=1, max_size=4),
        st.one_of(
            st.lists(st.sampled_from(ODD), min_size=rows, max_size=rows),
            st.lists(CELL, min_size=rows, max_size=rows),
            st.lists(st.floats(-1e6, 1e6).map(repr), min_size=rows, max_size=rows),
            st.lists(st.dates().map(str), min_size=rows, max_size=rows),
        ),
        min_size=1,
        max_size=4,
    )
)


def stored(encoding):
    return TableEncoding.from_dict(json.loads(json.dumps(encoding.to_dict(), allow_nan=False)), "this table")


@settings(max_examples=150, deadline=None)
@given(table=TABLES)
def test_any_table_is_encoded_as_finite_varying_columns(table):
    encoding, report = TableEncoding.fit(table)
    used = {name for name in table if name in encoding.names}
    dropped = {name for name in table if any(line.startswith(f"column {name!r} ") for line in report.lines)}
    assert used | dropped == set(table)
    if not encoding.columns:
        return
    x = encoding.encode(table)
    assert (x.dtype, x.shape) == (np.float32, (len(next(iter(table.values()))), encoding.width))
    assert np.isfinite(x).all()
    assert (x.max(0) > x.min(0)).all()
    again = stored(encoding)
    assert again == encoding
    np.testing.assert_array_equal(again.encode(table), x)


@settings(max_examples=50, deadline=None)
@given(table=TABLES, data=st.data())
def test_rows_are_encoded_one_by_one(table, data):
    """A row is encoded in the same way whatever rows are beside it, so nothing leaks from other rows."""
    encoding, _ = TableEncoding.fit(table)
    if encoding.columns:
        count = len(next(iter(table.values())))
        row = data.draw(st.integers(0, count - 1))
        try:
            alone = encoding.encode({name: [cells[row]] for name, cells in table.items()})
        except DataError:  # the one cell of a column of numbers is text
            return
        np.testing.assert_array_equal(alone[0], encoding.encode(table)[row])


def test_every_kind_is_detected():
    rows = range(60)
    table = {
        "row": [str(i) for i in rows],
        "PassengerId": [str(8_000 + 13 * i) for i in rows],
        "code": [f"550e8400-e29b-41d4-a716-{i:012d}" for i in rows],
        "paid": [str(100 + 13 * i) for i in rows],
        "year": [str(1950 + i) for i in rows],
        "flag": [("yes", "no")[i % 2] for i in rows],
        "when": [f"{i % 28 + 1} May 2024 {i % 24:02d}:30" for i in rows],
        "colour": [("red", "blue", "")[i % 3] for i in rows],
        "note": [f"a {('good', 'bad')[i % 2]} thing of kind {i}" for i in rows],
        "same": ["x"] * 60,
        "empty": ["NA"] * 60,
    }
    encoding, report = TableEncoding.fit(table)
    assert {column.name: column.encoding.kind for column in encoding.columns} == {
        "paid": "number", "year": "number", "flag": "boolean", "when": "date", "colour": "category", "note": "text",
    }  # fmt: skip
    assert report.lines == (
        "column 'row' has 60 distinct values in 60 training rows: dropped as an identifier",
        "column 'PassengerId' has 60 distinct values in 60 training rows: dropped as an identifier",
        "column 'code' has 60 distinct values in 60 training rows: dropped as an identifier",
        "column 'when' is a date (%d %b %Y %H:%M): encoded as weekday, hour, seconds, "
        "sine of the season, cosine of the season",
        "column 'colour': missing in 20 of 60 training rows: a value of its own",
        "column 'note' is text: encoded as TF-IDF of its 6 most frequent words and pairs",
        "column 'same' has the one value 'x': dropped as constant",
        "column 'empty' has no values: dropped",
    )
    kept, _ = TableEncoding.fit(table, keep=["row"])
    assert kept.names[0] == "row"


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["2024-01-31", "2024-02-01T10:00"], "iso"),
        (["01/31/2024", "02/01/2024"], "%m/%d/%Y"),
        (["31/01/2024", "02/01/2024"], "%d/%m/%Y"),
        (["31.01.2024 10:00", "02.01.2024 11:30"], "%d.%m.%Y %H:%M"),
        (["Jan 3, 2024", "May 4, 2024"], "%b %d, %Y"),
        (["12:30", "13:30"], None),
        (["2024", "x"], None),
        (["", "NA"], None),
    ],
)
def test_date_forms(cells, form):
    assert date_format(cells) == form


def test_parts_of_dates_are_those_of_the_calendar():
    column = DateColumn.fit(["1969-12-31T23:00:00", "2024-02-29T12:00:00+02:00", ""])
    x = column.encode(["1969-12-31T23:00:00", "2024-02-29T12:00:00+02:00", "nan"])
    assert x[0, :6].tolist() == [1969, 12, 2, 23, 0, 0]
    assert x[1, :4].tolist() == [2024, 2, 3, 10]
    assert x[2, 5] == 1


def test_the_season_is_an_angle_that_comes_back_every_year():
    column = DateColumn.fit(["1999-12-31", "2024-07-01"])
    winter, summer, later = column.encode(["2001-12-31", "2002-01-01", "2002-07-02"])[:, 5:]
    assert np.linalg.norm(winter - summer) < 0.02
    assert np.linalg.norm(winter - later) > 1.99
    years = column.encode([f"{year}-03-05" for year in range(1950, 2050)])[:, 5:]
    assert np.abs(years - years.mean(0)).max() < 0.03  # leap days move a date by at most a day or two
    assert column.titles[5:] == ("sine of the season", "cosine of the season")


@pytest.mark.parametrize(
    ("encoding", "marks"),
    [
        (NumberColumn(1.0, True), (False, True)),
        (NumberColumn(1.0, False), (False,)),
        (TruthColumn(1.0, True), (True, True)),
        (DateColumn.fit(["2024-01-01", ""]), (False,) * 5 + (True,) + (False,) * 2),
        (CategoryColumn(("a", "b"), True, {"a": 3}), (True, True, True, False)),
        (TextColumn(("good", "very good"), (1.0, 2.0)), (True, True)),
    ],
)
def test_marks_are_the_numbers_from_0_to_1(encoding, marks):
    assert encoding.marks == marks
    assert len(marks) == len(encoding.titles)


def test_marks_of_rare_values_keep_their_scale():
    rng = np.random.default_rng(0)
    table = {
        "size": [str(value) for value in rng.normal(50, 10, 400)],
        "kind": ["rare" if row < 4 else "usual" for row in range(400)],
        "target": ["yes", "no"] * 200,
    }
    task = Task.of("toy", **read_table("toy", table, ["target"])._asdict())
    x = task.train.all().x
    assert x[:, 0].std() == pytest.approx(1, rel=0.01)
    assert x[:, 1:].amax() - x[:, 1:].amin() <= 2
    assert x.mean(0).abs().max() < 1e-5


def test_pairs_of_words_tell_the_order():
    column = TextColumn.fit(["dog bites man", "man bites dog", "dog bites man", "man bites dog"])
    first, second = column.encode(["dog bites man", "man bites dog"])
    assert "dog bites" in column.words
    assert "bites" not in column.words  # in all rows
    assert float(first @ second) < 0.9


def test_unseen_rare_and_frequent_values():
    few = CategoryColumn.fit(["a", "b", "a"])
    assert few.encode(["c", " a ", ""]).tolist() == [[0, 0], [1, 0], [0, 0]]
    rare = CategoryColumn.fit(["a"] * 600 + ["b"] * 400 + ["c"])
    assert (rare.values, rare.encode(["c", "d"]).tolist()) == (("a", "b"), [[0, 0, 1], [0, 0, 1]])
    many = CategoryColumn.fit([f"v{i}" for i in range(450)] * 3 + ["w"])
    assert len(many.values) == 400
    x = many.encode(["w", "never", many.values[0]])
    np.testing.assert_allclose(x[:, -1], np.log1p([1, 0, 3]), rtol=1e-6)
    assert x[:, -2].tolist() == [1, 1, 0]


def test_text_is_tf_idf_of_length_one():
    column = TextColumn.fit(["good dog", "bad dog dog", "good cat", "bad cat", "odd"], most=3)
    assert column.words == ("bad", "cat", "dog")
    x = column.encode(["dog dog cat", "unknown", ""])
    weight = np.array([(1 + np.log(1)), (1 + np.log(2))]) * np.log(6 / 3)
    np.testing.assert_allclose(x[0], [0, *(weight / np.linalg.norm(weight))], rtol=1e-6)
    assert not x[1:].any()


def test_missing_and_extra_columns_in_new_data():
    encoding, _ = TableEncoding.fit({"a": ["1", "2", ""], "b": ["x", "y", "x"], "c": ["yes", "no", "yes"]})
    x = encoding.encode({"b": ["z"], "a": ["?"], "c": [""], "more": ["1"]})
    assert x.tolist() == [[1.5, 1, 0, 0, 1]]
    with pytest.raises(DataError, match=r"no column 'b', 'c'; it needs a, b, c: add them, with empty cells"):
        encoding.encode({"a": ["1"]})
    with pytest.raises(
        DataError, match=r"column 'a': got cells such as 'old', expected the kind number; fix the column"
    ):
        encoding.encode({"a": ["old", ""], "b": ["", ""], "c": ["", ""]})


def test_a_few_unreadable_numbers_count_as_missing():
    cells = [str(i / 3) for i in range(99)] + ["unknown"]
    kind = column_kind("size", cells)
    assert kind.encoding == NumberColumn(float(np.median(np.arange(99) / 3)), True)
    assert column_kind("size", [*cells[:9], "unknown"]).encoding.kind == "category"
    assert isinstance(column_kind("flag", ["t", "f", "NA"]).encoding, TruthColumn)


def test_stored_encodings_are_checked():
    encoding, _ = TableEncoding.fit({"a": ["1", "2"], "b": ["x", "y"]})
    for change, words in (
        ({"version": 2}, "has version 2, expected 1; solve the task again"),
        ({"columns": []}, "no columns or several of one name"),
        ({"columns": [{"name": "a", "kind": "pickle", "kept": [0]}]}, "column kind 'pickle' is not one of number"),
        ({"columns": [{"name": "a", "kind": "number", "kept": [1], "fill": 0.0, "gaps": False}]}, "kept positions"),
        ({"columns": [{"name": "a", "kind": "number", "kept": [0], "fill": 1e39, "gaps": False}]}, "the fill value"),
        ({"columns": [{"name": "a", "kind": "number", "kept": [0], "gaps": False}]}, "fill is missing"),
    ):
        with pytest.raises(DataError, match=words):
            TableEncoding.from_dict({**encoding.to_dict(), **change}, "this table")


def test_wide_tables_have_a_short_report():
    rng = random.Random(0)
    table = {f"c{i}": [rng.choice(("", "1", "2", "3")) for _ in range(20)] for i in range(50)}
    _, report = TableEncoding.fit(table)
    assert len(report.lines) == 50
    assert report.shown()[-1] == "20 more lines about columns"
    assert TableReport().shown() == ()
