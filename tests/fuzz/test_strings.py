"""Fuzzed strings: whatever a person or a file writes is read or refused in one line."""

import random
from collections.abc import Callable

from fuzz.mutation import FuzzCount, fuzz, mutated_text
from nearkin.tasks.datastring import DataString

DATA_STRINGS = (
    "digits?classes=0,1,2,3&rest=other&limit=2000",
    "npz:folder/file.npz?labels=coarse",
    "digits?merge=0+1,2+3&corrupt=0.4&split=3&size=14&grey",
)


def test_data_strings(count_inputs: Callable[[FuzzCount], FuzzCount]) -> None:
    def make(rng: random.Random) -> str:
        return mutated_text(rng.choice(DATA_STRINGS), rng)

    count_inputs(fuzz("data strings, parsed", make, lambda text: DataString.parse(str(text))))
