"""Reading a line of text piece by piece, with errors that say what was wanted, what was got and where."""

import math
import re
from collections.abc import Container, Sequence
from typing import NoReturn

from nearkin.core.errors import MismatchError, OptionError, require

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""Names of operations, blocks, options and activations."""

NOTHING = "nothing"
"""What is written where a node or an output gets nothing; no name of anything."""

Value = int | float | str
"""What an option may be."""

MAX_TEXT = 20_000
"""Most characters of a genotype; the longest that a search made had a few hundred."""

MAX_NODES = 32
"""Most nodes of a cell; the canonical form of 32 that are all alike takes a few seconds, of 64 more than a minute."""

_NUMBER = re.compile(r"[0-9]{1,9}(?![0-9])")
_VALUE = re.compile(r"-?[0-9][0-9.]*(?:e[+-]?[0-9]+)?")
_SHOWN = 20


class Scanner:
    """A text and how far it was read; white space between pieces is passed over.

    >>> scan = Scanner(" 1 = conv3(0)")
    >>> scan.number("a node"), scan.take("="), scan.name("an operation"), scan.found("[")
    (1, None, 'conv3', False)
    >>> scan.take("[")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: genotype, position 10: wanted '[', got '(0)'
    """

    def __init__(self, text: str) -> None:
        require(isinstance(text, str), f"a genotype is text, got {text!r:.100}")
        require(len(text) <= MAX_TEXT, f"a genotype has {MAX_TEXT:,} characters at most, got {len(text):,}")
        self.text = text
        self.place = 0
        self._skip()

    def found(self, mark: str) -> bool:
        """Whether this mark comes next; it is read if so."""
        if not self.text.startswith(mark, self.place):
            return False
        self._go(self.place + len(mark))
        return True

    def accept_name(self, name: str) -> bool:
        """Whether this name comes next, and not a longer one; it is read if so."""
        match = NAME.match(self.text, self.place)
        return match is not None and match[0] == name and self.found(name)

    def take(self, mark: str) -> None:
        """Read this mark."""
        if not self.found(mark):
            self.fail(repr(mark))

    def name(self, wanted: str) -> str:
        """Read a name."""
        return self._match(NAME, wanted)

    def one_of(self, names: Container[str], wanted: str) -> str:
        """Read one of these names."""
        place = self.place
        name = self.name(wanted)
        if name not in names:
            self.fail(wanted, place)
        return name

    def number(self, wanted: str, allowed: Container[int] | None = None) -> int:
        """Read a whole number, one of those allowed."""
        place = self.place
        number = int(self._match(_NUMBER, wanted))
        if allowed is not None and number not in allowed:
            self.fail(wanted, place)
        return number

    def value(self, wanted: str) -> Value:
        """Read a whole number, a real number or a name."""
        if not _VALUE.match(self.text, self.place):
            return self.name(wanted)
        place = self.place
        text = self._match(_VALUE, wanted)
        try:
            value = float(text) if re.search("[.e]", text) else int(text)
        except ValueError:
            self.fail(wanted, place)
        if isinstance(value, float) and not math.isfinite(value):
            self.fail(wanted, place)
        return value

    def end(self) -> None:
        """There is nothing more to read."""
        if self.place < len(self.text):
            self.fail("the end")

    def fail(self, wanted: str, place: int | None = None) -> NoReturn:
        """Say what was wanted and what stands there instead."""
        place = self.place if place is None else place
        rest = self.text[place:]
        got = "the end" if not rest else repr(rest if len(rest) <= _SHOWN else rest[:_SHOWN] + "…")
        raise OptionError(f"genotype, position {place}: wanted {wanted}, got {got}")

    def _match(self, pattern: re.Pattern[str], wanted: str) -> str:
        match = pattern.match(self.text, self.place)
        if match is None:
            self.fail(wanted)
        self._go(match.end())
        return match[0]

    def _go(self, place: int) -> None:
        self.place = place
        self._skip()

    def _skip(self) -> None:
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1


def read_nodes(scan: Scanner, allowed: range) -> tuple[int, ...]:
    """Nodes in brackets, each once."""
    scan.take("(")
    free, nodes = set(allowed), list[int]()
    while not nodes or scan.found(","):
        nodes.append(scan.number(f"a node from {allowed.start} to {allowed.stop - 1}, each once", free))
        free.discard(nodes[-1])
    scan.take(")")
    return tuple(nodes)


def require_name(name: str, wanted: str) -> None:
    """Refuse what `Scanner.name` would not read back."""
    require(
        NAME.fullmatch(name) is not None and name != NOTHING,
        f"{wanted} is named by letters, digits, _, . and -, beginning with a letter; got {name!r}",
    )


def require_count(given: Sequence[str], count: int, what: str) -> None:
    """Refuse operations that are not one for each place."""
    require(len(given) == count, f"there are {count} {what}, got {len(given)} operations", MismatchError)
