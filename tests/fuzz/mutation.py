"""Mutated inputs and the one rule for them: a reader returns a value or raises one line of our own error family.

A mutation is a function of a valid input and a generator, so that every failure can be repeated from its number.
"""

import os
import random
import resource
import string
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nearkin.core.errors import NearkinError

INPUTS = int(os.environ.get("NEARKIN_FUZZ_INPUTS", "100"))
"""Inputs per format; `make soak` sets more."""
SEED = int(os.environ.get("NEARKIN_FUZZ_SEED", "0"))
MAX_SECONDS = 5.0  # for one input; a hang in C code is caught by the limit of the whole run
MAX_GROWTH = 512 * 2**20  # bytes of resident memory over all inputs of one format

INTERESTING = (0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
WORDS = ("", "nan", "inf", "-1", "1e300", "²", "٣", "\0", "..", "/", "\n", "{", "[]", "null", "true", "0x10", "é", "💥")


@dataclass(frozen=True)
class FuzzCount:
    """How the inputs of one format ended."""

    format: str
    inputs: int
    accepted: int
    refused: int


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to four random edits: flipped bits, other bytes, numbers at the edge of a type, cuts, copies and repeats.

    >>> mutated(b"abcdef", random.Random(1)) != b"abcdef"
    True
    """
    edited = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        size = len(edited)
        start = rng.randrange(size + 1)
        end = min(size, start + rng.choice((1, 2, 4, 8, 64)))
        match rng.randrange(8):
            case 0 if start < size:
                edited[start] ^= 1 << rng.randrange(8)
            case 1:
                edited[start:end] = rng.randbytes(end - start)
            case 2:
                del edited[start:end]
            case 3:
                del edited[start:]
            case 4:
                edited[start:start] = rng.randbytes(rng.randint(1, 16))
            case 5:
                width = rng.choice((1, 2, 4, 8))
                number = rng.choice(INTERESTING) % 2 ** (8 * width)
                edited[start : start + width] = number.to_bytes(width, rng.choice(("little", "big")))
            case 6:
                edited[start:start] = edited[start:end] * rng.randint(1, 8)
            case _:
                edited[start:end] = rng.choice(WORDS).encode()
    return bytes(edited)


def mutated_text(text: str, rng: random.Random) -> str:
    """The same for text: characters, words and pieces of the text itself, replaced, removed, repeated and moved."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.randint(0, 6))
        other = rng.randrange(len(text) + 1)
        inserted = rng.choice(
            (
                rng.choice(WORDS),
                rng.choice(string.printable),
                str(rng.choice(INTERESTING)),
                text[other : other + rng.randint(1, 8)],
                chr(rng.randrange(0x110000)) if rng.random() < 0.2 else "",
            )
        )
        text = text[:start] + inserted + text[end:]
    return text


def fuzz(
    format: str,
    make: Callable[[random.Random], object],
    read: Callable[[object], object],
    inputs: int = INPUTS,
    allowed: Sequence[type[Exception]] = (NearkinError,),
) -> FuzzCount:
    """Read many made inputs; anything but a value or one line of our own errors fails, with the input's number.

    Args:
        format: named in the table of counts.
        make: an input (bytes, text, or a path that was written) from a generator of its own number.
        read: what is tested.
        inputs: how many.
        allowed: errors that count as a refusal.
    """
    accepted = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for number in range(inputs):
        made = make(random.Random(f"{format}/{SEED}/{number}"))
        begun = time.perf_counter()
        try:
            read(made)
            accepted += 1
        except tuple(allowed) as refused:
            said = str(refused).strip()
        except Exception as error:
            shown = repr(made)[:300]
            raise AssertionError(f"{format} input {number} of seed {SEED}, {shown}: {error!r}") from error
        else:
            said = "read"
        assert said, f"{format} input {number} of seed {SEED}: the error says nothing"
        seconds = time.perf_counter() - begun
        assert seconds < MAX_SECONDS, f"{format} input {number} of seed {SEED} took {seconds:.1f} s: {made!r:.300}"
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert growth < MAX_GROWTH, f"{format}: memory grew by {growth / 2**20:.0f} MiB over {inputs} inputs"
    return FuzzCount(format, inputs, accepted, inputs - accepted)
