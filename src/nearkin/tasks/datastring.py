"""Data strings: `SOURCE[:LOCATION][?name=value&flag…]`, the one line that names any task."""

from dataclasses import dataclass
from urllib.parse import quote, unquote

from nearkin.core.errors import OptionError, require
from nearkin.core.numbers import quoted, real_number, whole_number


@dataclass(frozen=True)
class DataString:
    """A data string taken apart; options are sorted, so that equal tasks have equal strings.

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
        """Take a string apart; what the parts mean is the reader's business."""
        head, _, tail = text.strip().partition("?")
        source, _, location = head.partition(":")
        require(source != "", f"a data string begins with its source, got {text!r}; try digits or npz:FILE")
        options: dict[str, str] = {}
        for part in filter(None, tail.split("&")):
            name, _, value = part.partition("=")
            name = unquote(name.strip())
            require(name not in options, f"{name} is given twice in {text!r}; give it once")
            options[name] = unquote(value.strip())
        return cls(source.strip(), unquote(location.strip()), tuple(sorted(options.items())))

    def __str__(self) -> str:
        head = f"{self.source}:{_escaped(self.location, '?')}" if self.location else self.source
        pairs = [(_escaped(name, "&="), _escaped(value, "&")) for name, value in self.options]
        parts = [f"{name}={value}" if value else name for name, value in pairs]
        return head + ("?" + "&".join(parts) if parts else "")


def _escaped(text: str, marks: str) -> str:
    """Text with `%`, the given marks and white space at its ends written as in a web address.

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
    found = [part.strip() for part in value.split(",") if part.strip()]
    require(bool(found), f"{modifier} wants names or numbers of classes, as in {modifier}=0,1")
    return found


def whole(value: str, modifier: str, least: int = 0) -> int:
    """A whole number.

    >>> whole("2000", "limit", least=1)
    2000
    """
    number = whole_number(value)
    if number is None or number < least:
        raise OptionError(f"{modifier} wants a whole number from {least} on, got {quoted(value)}")
    return number


def share(value: str, modifier: str) -> float:
    """A number from 0 to 1.

    >>> share("0.4", "corrupt")
    0.4
    """
    number = real_number(value)
    if number is None or not 0 <= number <= 1:
        raise OptionError(f"{modifier} wants a number from 0 to 1, got {quoted(value)}")
    return number


def height_width(value: str, modifier: str = "size") -> tuple[int, int]:
    """A square's side, or height×width.

    >>> height_width("14"), height_width("14x20")
    ((14, 14), (14, 20))
    """
    sides = [whole_number(part) or 0 for part in value.lower().split("x")]
    if len(sides) > 2 or min(sides) < 1:
        shown = f"{modifier}=32 or {modifier}=32x48"
        raise OptionError(f"{modifier} wants a side in pixels, as in {shown}, got {quoted(value)}")
    return sides[0], sides[-1]


def flag(value: str, modifier: str) -> bool:
    """A modifier that stands alone.

    >>> flag("", "grey")
    True
    """
    if value.lower() in ("", "1", "true", "yes"):
        return True
    if value.lower() in ("0", "false", "no"):
        return False
    raise OptionError(f"{modifier} stands alone, without a value; got {quoted(value)}")
