"""Scanner for the text of a genotype; errors say what was expected, what was found and where."""

import math
import re
from collections.abc import Container, Sequence
from typing import NoReturn

from nearkin.core.errors import MismatchError, OptionError, require

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""Names of operations, blocks, options and activations."""

NOTHING = "nothing"
"""Word for a node or an output without any input; not allowed as a name."""

Value = int | float | str
"""Value of an option."""

MAX_TEXT = 20_000
"""Largest number of characters of a genotype; the longest of a search had a few hundred."""

MAX_NODES = 32
"""Largest number of nodes; the canonical form of 32 equivalent ones takes a few seconds, of 64 over a minute."""

_NUMBER = re.compile(r"[0-9]{1,9}(?![0-9])")
_VALUE = re.compile(r"-?[0-9][0-9.]*(?:e[+-]?[0-9]+)?")
_SHOWN = 20


class Scanner:
    """A text and the position up to which it was read; white space is skipped.

    >>> scan = Scanner(" 1 = conv3(0)")
    >>> scan.number("a node"), scan.expect("="), scan.name("an operation"), scan.accept("[")
    (1, None, 'conv3', False)
    >>> scan.expect("[")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: genotype, position 10: expected '[', got '(0)'
    """

    def __init__(self, text: str) -> None:
        require(isinstance(text, str), f"a genotype is text, got {text!r:.100}")
        require(len(text) <= MAX_TEXT, f"a genotype has at most {MAX_TEXT:,} characters, got {len(text):,}")
        self.text = text
        self.position = 0
        self._skip()

    def accept(self, mark: str) -> bool:
        """Whether this mark is next; if so, it is read."""
        if not self.text.startswith(mark, self.position):
            return False
        self._go(self.position + len(mark))
        return True

    def accept_name(self, name: str) -> bool:
        """Whether exactly this name is next; if so, it is read."""
        match = NAME.match(self.text, self.position)
        return match is not None and match[0] == name and self.accept(name)

    def expect(self, mark: str) -> None:
        """Read this mark, or raise an error with the position."""
        if not self.accept(mark):
            self.fail(repr(mark))

    def name(self, expected: str) -> str:
        """Read a name, or raise an error with the position."""
        return self._match(NAME, expected)

    def one_of(self, names: Container[str], expected: str) -> str:
        """Read one of these names."""
        position = self.position
        name = self.name(expected)
        if name not in names:
            self.fail(expected, position)
        return name

    def number(self, expected: str, allowed: Container[int] | None = None) -> int:
        """Read a whole number, one of those allowed."""
        position = self.position
        number = int(self._match(_NUMBER, expected))
        if allowed is not None and number not in allowed:
            self.fail(expected, position)
        return number

    def value(self, expected: str) -> Value:
        """Read a whole number, a real number or a name."""
        if not _VALUE.match(self.text, self.position):
            return self.name(expected)
        position = self.position
        text = self._match(_VALUE, expected)
        try:
            value = float(text) if re.search("[.e]", text) else int(text)
        except ValueError:
            self.fail(expected, position)
        if isinstance(value, float) and not math.isfinite(value):
            self.fail(expected, position)
        return value

    def end(self) -> None:
        """Raise if text is left."""
        if self.position < len(self.text):
            self.fail("the end")

    def fail(self, expected: str, position: int | None = None) -> NoReturn:
        """Raise an error with the expected and the actual text."""
        position = self.position if position is None else position
        rest = self.text[position:]
        got = "the end" if not rest else repr(rest if len(rest) <= _SHOWN else rest[:_SHOWN] + "…")
        raise OptionError(f"genotype, position {position}: expected {expected}, got {got}")

    def _match(self, pattern: re.Pattern[str], expected: str) -> str:
        match = pattern.match(self.text, self.position)
        if match is None:
            self.fail(expected)
        self._go(match.end())
        return match[0]

    def _go(self, position: int) -> None:
        self.position = position
        self._skip()

    def _skip(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1


def read_nodes(scan: Scanner, allowed: range) -> tuple[int, ...]:
    """Read distinct nodes in brackets."""
    scan.expect("(")
    free, nodes = set(allowed), list[int]()
    while not nodes or scan.accept(","):
        nodes.append(scan.number(f"a node from {allowed.start} to {allowed.stop - 1}, each once", free))
        free.discard(nodes[-1])
    scan.expect(")")
    return tuple(nodes)


def require_name(name: str, expected: str) -> None:
    """Raise if `Scanner.name` would not read the name."""
    require(
        NAME.fullmatch(name) is not None and name != NOTHING,
        f"{expected} must be a name of letters, digits, _, . and - that starts with a letter; got {name!r}",
    )


def require_count(operations: Sequence[str], count: int, items: str) -> None:
    """Raise unless there is one operation for each edge, block or node."""
    require(
        len(operations) == count,
        f"got {len(operations)} operations for {count} {items}; give one for each",
        MismatchError,
    )
