"""Named inputs of a network: their names, shapes and types. This module imports no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nearkin.core.errors import require

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
TOKEN_FIELDS = (IDS, MASK, TYPES)
"""Names of the inputs of a network that reads texts."""

DTYPES = ("int64", "float32")
MOST_VALUES = 2**24  # of one packed input


@dataclass(frozen=True)
class InputField:
    """One named input of a network: its name, the shape for one sample, and its type, `int64` or `float32`."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "int64"

    def __post_init__(self) -> None:
        require(self.name.isidentifier(), f"an input is named {self.name!r}, expected a name such as input_ids")
        require(
            all(side >= 1 for side in self.shape) and self.size <= MOST_VALUES,
            f"the input {self.name} has shape {self.shape}, expected sides of 1 or more",
        )
        require(
            self.dtype in DTYPES, f"the input {self.name} has type {self.dtype}, expected one of {', '.join(DTYPES)}"
        )

    @property
    def size(self) -> int:
        """Number of values for one sample."""
        return math.prod(self.shape)


def are_tokens(fields: Sequence[InputField]) -> bool:
    """Whether the inputs of a network are tokens of texts with their mask, and nothing else.

    >>> are_tokens([InputField("attention_mask", (8,)), InputField("input_ids", (8,))])
    True
    >>> are_tokens([InputField("attention_mask", (8,)), InputField("age", (), "float32")])
    False
    """
    names, forms = [field.name for field in fields], {(field.shape, field.dtype) for field in fields}
    return {IDS, MASK} <= set(names) <= set(TOKEN_FIELDS) and len(forms) == 1 and len(fields[0].shape) == 1
