"""Limits on what is read from files."""

import os

from nearkin.core.errors import OptionError

DEFAULT_MAX_BYTES = 4 * 2**30


def max_bytes() -> int:
    """Bytes that one file may have, unpacked: `$NEARKIN_MAX_BYTES` (default: 4 GiB)."""
    text = os.environ.get("NEARKIN_MAX_BYTES", "")
    if not text:
        return DEFAULT_MAX_BYTES
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise OptionError(f"$NEARKIN_MAX_BYTES is {text!r}, expected a number of bytes above 0, such as {2**30}")
    return int(text)
