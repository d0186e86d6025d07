"""Block of a chain."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nearkin.core.errors import MismatchError, require
from nearkin.search.genotypes.notation import Scanner, Value, require_name


@dataclass(frozen=True, init=False)
class Block:
    """Block of a chain: a name, and options in alphabetical order.

    >>> print(Block("mbconv", {"kernel": 5, "expansion": 3}))
    mbconv(expansion=3, kernel=5)
    """

    name: str
    options: tuple[tuple[str, Value], ...] = ()

    def __init__(self, name: str, options: Mapping[str, Value] | Sequence[tuple[str, Value]] = ()) -> None:
        pairs = list(options.items() if isinstance(options, Mapping) else options)
        require_name(name, "a block")
        require(len(dict(pairs)) == len(pairs), f"block {name}: an option is given twice in {pairs}; give it once")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "options", tuple(sorted((key, _writable(name, key, value)) for key, value in pairs)))

    @staticmethod
    def parse(text: str) -> "Block":
        """Read the text of a block."""
        scan = Scanner(text)
        block = read_block(scan)
        scan.end()
        return block

    def __getitem__(self, option: str) -> Value:
        require(option in dict(self.options), f"{self} has no option {option!r}; add it to the block", MismatchError)
        return dict(self.options)[option]

    def __str__(self) -> str:
        inner = ", ".join(f"{option}={value}" for option, value in self.options)
        return f"{self.name}({inner})" if inner else self.name


def read_block(scan: Scanner) -> Block:
    """Read `name` or `name(option=value, …)`."""
    name = scan.name("a block")
    options: list[tuple[str, Value]] = []
    if scan.accept("("):
        while not options or scan.accept(","):
            position = scan.position
            option = scan.name("an option")
            if option in dict(options):
                scan.fail("an option that was not given before", position)
            scan.expect("=")
            options.append((option, scan.value(f"a number or name for {option}")))
        scan.expect(")")
    return Block(name, options)


def _writable(block: str, option: str, value: Value) -> Value:
    """Value that text represents without loss; a number without fraction, true and false become integers."""
    require_name(option, "an option")
    if isinstance(value, str):
        require_name(value, f"the value of {block}'s option {option}")
        return value
    require(
        isinstance(value, int) or math.isfinite(value),
        f"{block}: option {option} must be a finite number or a name, got {value}",
    )
    return int(value) if value == int(value) else value
