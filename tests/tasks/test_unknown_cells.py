"""What is said about new rows whose cells the model does not know."""

import random

from nearkin.tasks.table_encoding import TableEncoding
from nearkin.tasks.unknown_cells import SHOWN, unknown_cells

RNG = random.Random(0)
TRAINING = {
    "size": [f"{RNG.gauss(0, 1):.3f}" for _ in range(60)],
    "gaps": [RNG.choice(("", f"{RNG.random():.3f}")) for _ in range(60)],
    "sold": [f"2024-{RNG.randrange(1, 13):02d}-03" for _ in range(60)],
    "fresh": [RNG.choice(("yes", "no")) for _ in range(60)],
    "colour": [RNG.choice(("red", "blue")) for _ in range(60)],
    "review": [" ".join(RNG.choice(("good", "bad", "room", "food")) for _ in range(6)) for _ in range(60)],
}
ENCODING, _ = TableEncoding.fit(TRAINING)
KINDS = [column.encoding.kind for column in ENCODING.columns]


def test_training_rows_are_known() -> None:
    assert KINDS == ["number", "number", "date", "boolean", "category", "text"]
    assert unknown_cells(ENCODING, TRAINING) == ()


def test_every_kind_of_unknown_cell_is_counted_in_one_line_per_column() -> None:
    new = {name: list(cells[:10]) for name, cells in TRAINING.items()}
    new["size"][2:4], new["size"][5] = ["", "n/a"], "large"
    new["gaps"][1] = ""
    new["sold"][0] = "3 May 2024"
    new["fresh"][4:6] = ["maybe", "perhaps"]
    new["colour"][7:9] = ["green", ""]
    new["review"][9] = "excellent!"
    assert unknown_cells(ENCODING, new) == (
        "column 'size': 1 of 10 cells is not a number, such as 'large': filled with the training median",
        "column 'size': 2 of 10 cells are missing, none was in training: filled with the training median",
        "column 'sold': 1 of 10 cells is not a date (iso), such as '3 May 2024': filled with the training median",
        "column 'fresh': 2 of 10 cells are not a boolean, such as 'maybe': filled with the training median",
        "column 'colour': 2 of 10 cells are a value that training did not have, such as 'green'",
        "column 'review': 1 of 10 cells is a text without a word of the training texts",
    )


def test_values_that_may_have_been_rare_in_training_are_not_called_new() -> None:
    cells = ["a"] * 1500 + ["b"] * 1500 + ["rare"]
    encoding, _ = TableEncoding.fit({"x": cells})
    assert encoding.columns[0].encoding.other
    assert unknown_cells(encoding, {"x": ["rare", "new"]}) == ()
    many = [f"v{number % 150}" for number in range(600)]
    counted, _ = TableEncoding.fit({"x": many})
    assert unknown_cells(counted, {"x": ["v3", "v149"]}) == ()
    assert len(unknown_cells(counted, {"x": ["v3", "v150"]})) == 1


def test_a_wide_table_gives_few_lines() -> None:
    table = {f"c{number}": ["red", "blue", "red"] for number in range(SHOWN + 5)}
    encoding, _ = TableEncoding.fit(table)
    lines = unknown_cells(encoding, {name: ["green"] for name in table})
    assert len(lines) == SHOWN + 1
    assert lines[-1] == "5 more lines about columns"
