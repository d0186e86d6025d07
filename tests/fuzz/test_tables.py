"""Fuzzed table encodings: a mutated encoding encodes a table or is refused in one line, and so are odd new rows."""

import random
from collections.abc import Callable

import numpy as np

from fuzz.data_files import ODD_CELLS
from fuzz.mutation import FuzzCount, fuzz
from fuzz.structure import mutated_json
from nearkin.tasks.table_encoding import TableEncoding

TABLE = {
    "size": [str(i / 2) for i in range(40)] + [""],
    "when": [f"2024-{i % 12 + 1:02d}-01" for i in range(41)],
    "member": ["yes", "no"] * 20 + [""],
    "city": ["Oslo", "Rome", ""] * 13 + ["Oslo", "Rome"],
    "note": [f"the {'good' if i % 2 else 'bad'} dog number {i}" for i in range(41)],
    "many": [f"v{i % 30 if i < 35 else i}" for i in range(41)],
}
ENCODING, _ = TableEncoding.fit(TABLE)


def test_mutated_encodings(count_inputs: Callable[[FuzzCount], FuzzCount]) -> None:
    def read(facts: object) -> None:
        assert isinstance(facts, dict) or facts is not None
        encoding = TableEncoding.from_dict(facts, "this table") if isinstance(facts, dict) else ENCODING
        encoded = encoding.encode(TABLE)
        assert encoded.shape == (41, encoding.width)
        assert np.isfinite(encoded).all()

    def make(rng: random.Random) -> object:
        facts = mutated_json(ENCODING.to_dict(), rng)
        return facts if isinstance(facts, dict) else {}

    count = count_inputs(fuzz("table encoding", make, read))
    assert 0 < count.accepted < count.inputs


def test_odd_new_rows(count_inputs: Callable[[FuzzCount], FuzzCount]) -> None:
    def read(table: object) -> None:
        assert isinstance(table, dict)
        encoded = ENCODING.encode(table)
        assert encoded.shape == (len(table["size"]), ENCODING.width)
        assert np.isfinite(encoded).all()

    def make(rng: random.Random) -> object:
        rows = rng.choice((1, 1, 2, 10))
        return {name: [rng.choice((*cells, *ODD_CELLS)) for _ in range(rows)] for name, cells in TABLE.items()}

    count = count_inputs(fuzz("rows of a table", make, read))
    assert 0 < count.accepted < count.inputs
