"""Text for people: numbers, durations, counts, shares, bytes, names."""

import json
import math
import unicodedata
from collections.abc import Sequence

MISSING = "–"
"""Shown if there is no value."""

MANY = 2000
"""Number of test samples from which a metric is shown with four decimals instead of three."""

_DIRECTIONS = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_SIZES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIMES = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def plain(text: str) -> str:
    r"""The text on one line; control characters and others that XML cannot hold are replaced.

    >>> plain("a\nb\x00"), plain("zero <6> & $x$")
    ('a b�', 'zero <6> & $x$')
    """
    return "".join(map(_visible, " ".join(text.split())))


def verbatim(text: str) -> str:
    r"""The text with its spaces and line breaks, for code and commands; other characters as in `plain`.

    >>> verbatim("a  'b'\n  c\x00")
    "a  'b'\n  c�"
    """
    return "".join(char if char == "\n" else _visible(" " if char.isspace() else char) for char in text)


def _visible(char: str) -> str:
    return "\ufffd" if unicodedata.category(char) in ("Cc", "Cs", "Cn") or char in _DIRECTIONS else char


def enumeration(words: Sequence[str]) -> str:
    """Words with commas and a final "and".

    >>> enumeration(["a"]), enumeration(["a", "b"]), enumeration(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)


def number(value: float | None, places: int = 3) -> str:
    """A number with fixed decimals and a minus sign; a dash if it is missing or not finite.

    >>> number(0.12345), number(-2.0, 1), number(float("nan")), number(None), number(-0.0001, 2)
    ('0.123', '−2.0', '–', '–', '0.00')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    written = f"{value:.{places}f}"
    return written.lstrip("-") if float(written) == 0 else written.replace("-", "−")


def decimals(values: Sequence[float]) -> int:
    """Decimals that show three significant digits of the largest value; 3 without values.

    >>> decimals([0.12, 0.98]), decimals([3.0, 40.0]), decimals([20000.0])
    (3, 1, 0)
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return 3 if largest == 0 else min(6, max(0, 2 - math.floor(math.log10(largest))))


def metric_places(count: int) -> int:
    """Decimals of a metric that a test set of `count` samples supports.

    >>> metric_places(360), metric_places(10_000)
    (3, 4)
    """
    return 3 if count < MANY else 4


def with_spread(mean: float, std: float | None, places: int) -> str:
    """`mean ± std`, or the mean alone if the standard deviation is unknown or 0.

    >>> with_spread(0.2512, 0.0311, 3), with_spread(0.25, 0.0, 2), with_spread(float("nan"), 0.0, 2)
    ('0.251 ± 0.031', '0.25', '–')
    """
    known = math.isfinite(mean) and std is not None and math.isfinite(std) and std > 0
    return f"{number(mean, places)} ± {number(std, places)}" if known else number(mean, places)


def interval(low: float, high: float, places: int = 3) -> str:
    """Lower and upper end of an interval.

    >>> interval(0.25, 0.5)
    '0.250 to 0.500'
    """
    return f"{number(low, places)} to {number(high, places)}"


def counted(value: float, noun: str = "") -> str:
    """A whole number with commas, and a noun in singular or plural.

    >>> counted(1234567), counted(1, "task"), counted(1200, "blob")
    ('1,234,567', '1 task', '1,200 blobs')
    """
    whole = round(value)
    return f"{whole:,} {noun}{'' if whole == 1 else 's'}" if noun else f"{whole:,}"


def brief(value: float) -> str:
    """A number in three significant digits with a unit such as k or M.

    >>> [brief(value) for value in (0.5, 12, 1234, 20000, 999_600, 3.21e6)]
    ['0.5', '12', '1.23 k', '20 k', '1 M', '3.21 M']
    """
    for size, unit in _SIZES:
        if abs(value) >= size * 0.9995:
            return f"{float(f'{value / size:.3g}'):g} {unit}"
    return f"{value:.3g}"


def byte_text(count: int) -> str:
    """A number of bytes with a binary unit.

    >>> byte_text(4 * 2**30), byte_text(1_600_000_000), byte_text(12)
    ('4 GiB', '1.49 GiB', '12 bytes')
    """
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count} bytes"


def duration(seconds: float) -> str:
    """A duration in at most two units.

    >>> [duration(value) for value in (0.0, 0.034, 9.96, 75, 3600, 90061)]
    ['0 s', '0.03 s', '10 s', '1 min 15 s', '1 h', '1 d 1 h']
    """
    if not math.isfinite(seconds):
        return MISSING
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds:.1g} s"
    whole = round(seconds)
    for size, unit, lower, name in _TIMES:
        if whole >= size:
            rest = whole % size // lower
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"


def percent(share: float) -> str:
    """A share in percent; a share that is close to 0 or 1 has more decimals, so that it is not shown as 0 % or 100 %.

    >>> percent(0.123), percent(0.9996), percent(1.0), percent(0.0004)
    ('12 %', '99.96 %', '100 %', '0.04 %')
    """
    if not math.isfinite(share):
        return MISSING
    near = 100 * min(abs(share), abs(1 - share))
    if 0 < near < 0.005:
        return "> 99.99 %" if share > 0.5 else "< 0.01 %"
    places = 0 if near >= 9.5 or near == 0 else 1 if near >= 0.05 else 2
    return f"{100 * share:.{places}f} %"


def fact_text(value: object) -> str:
    """A JSON value in a table: a number in four significant digits, a shape such as 1 × 8 × 8, or its JSON.

    >>> fact_text([1, 8, 8]), fact_text(True), fact_text(None), fact_text(-0.25), fact_text(3.2e-08)
    ('1 × 8 × 8', 'yes', '–', '−0.25', '3.2 × 10⁻⁸')
    """
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        digits, _, power = f"{value:.4g}".partition("e")
        raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) if power else ""
        return (f"{digits} × 10{raised}" if power else digits).replace("-", "−")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(side, int) for side in value):
        return " × ".join(map(str, value))
    return plain(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
