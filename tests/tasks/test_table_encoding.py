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
        "column 'when' is a date (%d %b %Y %H:%M): encoded as weekday, hour, seconds",
        "column 'colour': missing in 20 of 60 training rows: a value of its own",
        "column 'note' is text: encoded as TF-IDF of its 2 most frequent words",
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
    assert x[0].tolist() == [1969, 12, 2, 23, 0, 0]
    assert x[1, :4].tolist() == [2024, 2, 3, 10]
    assert x[2, 5] == 1


def test_unseen_rare_and_frequent_values():
    few = CategoryColumn.fit(["a", "b", "a"])
    assert few.encode(["c", " a ", ""]).tolist() == [[0, 0], [1, 0], [0, 0]]
    rare = CategoryColumn.fit(["a"] * 600 + ["b"] * 400 + ["c"])
    assert (rare.values, rare.encode(["c", "d"]).tolist()) == (("a", "b"), [[0, 0, 1], [0, 0, 1]])
    many = CategoryColumn.fit([f"v{i}" for i in range(300)] * 3 + ["w"])
    assert len(many.values) == 100
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
