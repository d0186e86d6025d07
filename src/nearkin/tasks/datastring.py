"""Data strings: `SOURCE[:LOCATION][?name=value&flag…]`, one line that names a task."""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import quote, unquote

from nearkin.core.errors import OptionError, require
from nearkin.core.numbers import quoted, real_number, whole_number


@dataclass(frozen=True)
class DataString:
    """A parsed data string; options are sorted, so that equal tasks have equal strings.

    `&`, `?`, `=` and `%` inside a value are written as in a web address (`%26`).

    >>> text = DataString.parse("csv:prices.csv?target=price&limit=500&balance")
    >>> text.source, text.location, dict(text.options)
    ('csv', 'prices.csv', {'balance': '', 'limit': '500', 'target': 'price'})
    >>> str(text)
    'csv:prices.csv?balance&limit=500&target=price'
    """

    source: str
    location: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "DataString":
        """Split a string into source, location and options, without interpreting them."""
        head, _, tail = text.strip().partition("?")
        source, _, location = head.partition(":")
        require(source != "", f"got {text!r}, but a data string begins with its source; try digits or npz:FILE")
        options: dict[str, str] = {}
        for option in filter(None, tail.split("&")):
            name, _, value = option.partition("=")
            name = unquote(name.strip())
            require(name not in options, f"{name} is given twice in {text!r}; give it once")
            options[name] = unquote(value.strip())
        return cls(source.strip(), unquote(location.strip()), tuple(sorted(options.items())))

    def __str__(self) -> str:
        head = f"{self.source}:{_escaped(self.location, '?')}" if self.location else self.source
        pairs = [(_escaped(name, "&="), _escaped(value, "&")) for name, value in self.options]
        options = "&".join(f"{name}={value}" if value else name for name, value in pairs)
        return f"{head}?{options}" if options else head


def _escaped(text: str, marks: str) -> str:
    """Text with `%`, the given marks and white space at its ends percent-encoded.

    >>> _escaped("salt & pepper", "&")
    'salt %26 pepper'
    """
    inner = "".join(quote(c, safe="") if c in marks + "%" else c for c in text)
    lead, trail = len(inner) - len(inner.lstrip()), len(inner.rstrip())
    return "".join(quote(c, safe="") if i < lead or i >= trail else c for i, c in enumerate(inner))


def names(value: str, modifier: str) -> list[str]:
    """A list of names, `a,b,c`.

    >>> names("0, 6", "detect")
    ['0', '6']
    """
    listed = [name.strip() for name in value.split(",") if name.strip()]
    require(bool(listed), f"{modifier} got no value, expected names or numbers of classes, as in {modifier}=0,1")
    return listed


def whole(value: str, modifier: str, least: int = 0) -> int:
    """A whole number.

    >>> whole("2000", "limit", least=1)
    2000
    """
    number = whole_number(value)
    if number is None or number < least:
        raise OptionError(f"{modifier} must be a whole number of {least} or more, got {quoted(value)}")
    return number


def one_of(value: str, modifier: str, allowed: Collection[str]) -> str:
    """One of the allowed words.

    >>> one_of("fine", "labels", ("coarse", "fine"))
    'fine'
    """
    listed = " or ".join(allowed) if len(allowed) <= 2 else f"one of {', '.join(allowed)}"
    require(value in allowed, f"{modifier} must be {listed}, got {quoted(value)}")
    return value


def share(value: str, modifier: str) -> float:
    """A number from 0 to 1.

    >>> share("0.4", "corrupt")
    0.4
    """
    number = real_number(value)
    if number is None or not 0 <= number <= 1:
        raise OptionError(f"{modifier} must be a number from 0 to 1, got {quoted(value)}")
    return number


def height_width(value: str, modifier: str = "size") -> tuple[int, int]:
    """Height and width from `14` (a square) or `14x20`.

    >>> height_width("14"), height_width("14x20")
    ((14, 14), (14, 20))
    """
    sides = [whole_number(text) or 0 for text in value.lower().split("x")]
    if len(sides) > 2 or min(sides) < 1:
        example = f"{modifier}=32 or {modifier}=32x48"
        raise OptionError(f"{modifier} must be a side in pixels, as in {example}, got {quoted(value)}")
    return sides[0], sides[-1]


def parts(value: str, modifier: str = "part") -> tuple[int, int]:
    """Number of a part and number of all parts, from `1/2`.

    >>> parts("2/3")
    (2, 3)
    """
    numbers = [whole_number(text) for text in value.split("/")]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        raise OptionError(f"{modifier} must be a part of all parts, as in {modifier}=1/2, got {quoted(value)}")
    return numbers[0], numbers[1]


def flag(value: str, modifier: str) -> bool:
    """Whether a modifier without a value is on.

    >>> flag("", "grey")
    True
    """
    if value.lower() in ("", "1", "true", "yes"):
        return True
    if value.lower() in ("0", "false", "no"):
        return False
    raise OptionError(f"{modifier} takes no value, got {quoted(value)}; write {modifier} alone")
