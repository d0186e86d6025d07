"""Texts as rows of UTF-8 bytes, filled with zeros, so that they are split, limited and stored like all other inputs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.opening import require_bytes
from nearkin.tasks.rows import Values

KIND, TEXT, COLUMN = "kind", "text", "column"
"""Keys of the stored preprocessing of a task of texts, and its kind."""

MOST_BYTES = 2**16  # of one text; longer ones are cut


def pack_texts(texts: Any, name: str, width: int | None = None) -> Tensor:
    """Texts as rows of UTF-8 bytes `[N, L]`, filled with zeros.

    Zero bytes become spaces, and surrogates without a partner question marks.

    >>> pack_texts(["ab", "é"], "toy").tolist()
    [[97, 98], [195, 169]]
    """
    require(
        not isinstance(texts, str | bytes),
        f"{name}: got one text, expected a list of texts; put it into a list",
        DataError,
    )
    odd = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
    require(odd is None, f"{name}: text {odd} is no string, expected a list of texts; convert it", DataError)
    rows = [encoded_text(text) for text in texts]
    width = width or max(map(len, rows), default=0) or 1
    require_bytes(len(rows) * width, f"{name} as {len(rows)} texts of up to {width} bytes")
    if not rows:
        return torch.zeros(0, width, dtype=torch.uint8)
    return torch.frombuffer(
        bytearray(b"".join(row[:width].ljust(width, b"\0") for row in rows)), dtype=torch.uint8
    ).view(len(rows), width)


def encoded_text(text: str) -> bytes:
    """UTF-8 bytes of a text as they are stored, at most `MOST_BYTES`."""
    return text.replace("\0", " ").encode("utf-8", "replace")[:MOST_BYTES]


def unpack_texts(rows: Tensor) -> list[str]:
    """The inverse of `pack_texts`; a character that was cut is left out."""
    return [bytes(row).rstrip(b"\0").decode("utf-8", "ignore") for row in rows.to(torch.uint8).numpy()]


def text_rows(name: str, texts: Any, texts_test: Any = None) -> tuple[Values, Values | None]:
    """Texts of a training and a test set as rows of one width."""
    splits = [
        given if isinstance(given, str | bytes) else list(given) for given in (texts, texts_test) if given is not None
    ]
    for given in splits:
        require(len(given) > 0, f"{name}: got no texts, expected one for each sample; add some", DataError)
    packed = [pack_texts(given, name) for given in splits]
    width = max(rows.shape[1] for rows in packed)
    rows = [Values(pack_texts(given, name, width)) for given in splits]
    return rows[0], rows[1] if len(rows) > 1 else None


def text_notes(texts: Sequence[str]) -> list[str]:
    """What a reader should know about texts, one line each: those without words, and those that are cut."""
    empty, long = (
        sum(not text.strip() for text in texts),
        sum(len(text.encode("utf-8", "replace")) > MOST_BYTES for text in texts),
    )
    notes = []
    if empty:
        notes.append(f"{empty} of {len(texts)} texts {'is' if empty == 1 else 'are'} empty")
    if long:
        notes.append(f"{long} of {len(texts)} texts {'is' if long == 1 else 'are'} cut to {MOST_BYTES:,} bytes")
    return notes
