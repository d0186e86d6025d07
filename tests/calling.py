"""A command line called in this process: what it said, and how it ended."""

import json
from collections.abc import Callable
from typing import NamedTuple


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        assert self.out.count("\n") == 1, "exactly one JSON object"
        return json.loads(self.out)


Call = Callable[..., Said]
