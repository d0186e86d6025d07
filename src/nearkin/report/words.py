"""Names and numbers as they are written in pictures and tables."""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import matplotlib
from matplotlib.font_manager import get_font

NOT_COMPARABLE = "–"
_DIRECTIONS = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNITS = 1000


def plain(text: str) -> str:
    r"""The text on one line, with what neither XML nor a reader can take replaced.

    >>> plain("a\nb\x00"), plain("zero <6> & $x$")
    ('a b�', 'zero <6> & $x$')
    """
    kept = (
        "\ufffd" if unicodedata.category(sign) in ("Cc", "Cs", "Cn") or sign in _DIRECTIONS else sign
        for sign in " ".join(text.split())
    )
    return "".join(kept)


def verbatim(text: str) -> str:
    r"""The text with its blanks and line breaks, for what is to be copied; the rest as `plain` has it.

    >>> verbatim("a  'b'\n  c\x00")
    "a  'b'\n  c�"
    """
    return "".join(sign if sign in " \n" else plain(sign) or " " for sign in text)


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Width of a text in pixels, as DejaVu Sans sets it: wider than the fonts of most systems, so a safe bound.

    >>> text_width("mm", 10) > text_width("ii", 10) > 0, text_width("", 10)
    (True, 0)
    """
    return sum(_advance(sign, bold) for sign in text) * size


@lru_cache(maxsize=4096)
def _advance(sign: str, bold: bool) -> float:
    """Advance of one character in units of the font size."""
    font = get_font(Path(matplotlib.get_data_path(), "fonts", "ttf", f"DejaVuSans{'-Bold' * bold}.ttf"))
    if font.get_char_index(ord(sign)) == 0:
        return 1.0 if unicodedata.east_asian_width(sign) in "WF" else 0.8
    font.set_size(_UNITS, 72)
    return float(font.load_char(ord(sign)).linearHoriAdvance) / 65536 / _UNITS


def shortened(text: str, size: float, room: float) -> str:
    """The text if it fits into `room` pixels, else its beginning and its end.

    >>> shortened("digits-0-vs-6", 10, 200), shortened("mnist?classes=0,1,2,3&rest=other", 10, 100)
    ('digits-0-vs-6', 'mnist?cla…t=other')
    """
    if text_width(text, size) <= room:
        return text
    for kept in range(len(text) - 1, 1, -1):
        head = math.ceil(kept * 0.55)
        short = text[:head] + "…" + text[len(text) - kept + head :]
        if text_width(short, size) <= room:
            return short
    return "…"


def labels(names: Iterable[str], size: float, room: float) -> tuple[str, ...]:
    """Short names that still differ from each other: what collides is numbered.

    >>> labels(["task-aaaaaaaaaaaa-x", "task-aaaabaaaaaaa-x", "b"], 10, 60)
    ('task-…a-x·1', 'task-…a-x·2', 'b')
    """
    full = [plain(name) for name in names]
    short = [shortened(name, size, room) for name in full]
    for twin in {name for name in short if short.count(name) > 1}:
        places = [place for place, name in enumerate(short) if name == twin]
        for count, place in enumerate(places, 1):
            mark = f"·{count}"
            short[place] = shortened(full[place], size, room - text_width(mark, size)) + mark
    return tuple(short)


def decimals(values: Sequence[float]) -> int:
    """Decimals that show three figures of the largest of the values; 3 without any.

    >>> decimals([0.12, 0.98]), decimals([3.0, 40.0]), decimals([20000.0])
    (3, 1, 0)
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return 3 if largest == 0 else min(6, max(0, 2 - math.floor(math.log10(largest))))


def number(value: float, places: int = 3) -> str:
    """A number with its decimals and a true minus; a dash where there is none.

    >>> number(0.12345), number(-2.0, 1), number(float("nan")), number(-0.0001, 2)
    ('0.123', '−2.0', '–', '0.00')
    """
    if not math.isfinite(value):
        return NOT_COMPARABLE
    written = f"{value:.{places}f}"
    return written.lstrip("-") if float(written) == 0 else written.replace("-", "−")


def listed(parts: Sequence[str]) -> str:
    """An enumeration.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)
