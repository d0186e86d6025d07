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

    @property
    def error(self) -> str:
        """The one line of error of a command that ended with status 1."""
        assert self.code == 1, self
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line


Call = Callable[..., Said]
