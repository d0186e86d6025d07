"""Strict parsing of numbers from options and files: ASCII only, of limited length, finite."""

import re

LARGEST = 2**63 - 1
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,6})?) ?([kKMGT]i?B|B?)", re.ASCII)


def whole_number(text: str) -> int | None:
    """Parse a whole number of at most 64 bits; None if the text is none.

    >>> whole_number("2000"), whole_number("-3"), whole_number("²"), whole_number("1_0"), whole_number("9" * 5000)
    (2000, -3, None, None, None)
    """
    if _WHOLE.fullmatch(text) is None:
        return None
    number = int(text)
    return number if abs(number) <= LARGEST else None


def real_number(text: str) -> float | None:
    """Parse a finite real number; None if the text is none.

    >>> real_number("0.4"), real_number("1e-3"), real_number("nan"), real_number("1e400"), real_number("٣")
    (0.4, 0.001, None, None, None)
    """
    if len(text) > 400 or _REAL.fullmatch(text) is None:
        return None
    number = float(text)
    return number if abs(number) < float("inf") else None


def byte_count(text: str) -> int | None:
    """Parse a number of bytes, with or without a decimal (MB) or binary (MiB) unit; None if the text is none.

    >>> byte_count("4GiB"), byte_count("500MB"), byte_count("1.5 kB"), byte_count("200"), byte_count("many")
    (4294967296, 500000000, 1500, 200, None)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    unit = match[2].removesuffix("B")
    step = 1024 if unit.endswith("i") else 1000
    return round(float(match[1]) * float(step) ** ("", "k", "m", "g", "t").index(unit[:1].lower()))


def quoted(text: str, most: int = 60) -> str:
    """A received text for an error message, in quotes and shortened if it is long.

    >>> quoted("abc"), quoted("9" * 100, most=5)
    ("'abc'", "'99999'… (100 characters)")
    """
    return repr(text) if len(text) <= most else f"{text[:most]!r}… ({len(text)} characters)"
