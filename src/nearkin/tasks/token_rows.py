"""Packed rows of texts: the inputs of a network that reads tokens and their mask, one after the other.

Short texts are filled up to the length of all rows. What follows the end of the longest text can be cut.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nearkin.tasks.input_fields import MASK, InputField

STEP = 8  # rows that are cut have a multiple of it as their number of tokens


def text_lengths(x: Tensor, fields: Sequence[InputField]) -> Tensor:
    """Number of tokens `[N]` of packed texts, up to the last one that the mask keeps.

    >>> fields = (InputField("attention_mask", (3,)), InputField("input_ids", (3,)))
    >>> text_lengths(torch.tensor([[1, 1, 0, 7, 8, 0], [0, 1, 1, 0, 9, 9]]), fields)
    tensor([2, 3])
    """
    mask = _by_field(x, fields)[:, [field.name for field in fields].index(MASK)] != 0
    return (mask * torch.arange(1, mask.shape[1] + 1, device=x.device)).amax(1)


def cut(x: Tensor, fields: Sequence[InputField]) -> Tensor:
    """Packed texts `[N, K L]` without what follows the end of the longest one, up to a multiple of `STEP` tokens.

    They are returned as they are if the mask keeps nothing of one: then a network reads its padding.

    >>> fields = (InputField("attention_mask", (12,)), InputField("input_ids", (12,)))
    >>> cut(torch.eye(1, 24, dtype=torch.int64), fields).shape
    torch.Size([1, 16])
    """
    rows, lengths = _by_field(x, fields), text_lengths(x, fields)
    if not len(x) or int(lengths.min()) == 0:
        return x
    kept = -(-int(lengths.max()) // STEP) * STEP
    return x if kept >= rows.shape[2] else rows[:, :, :kept].flatten(1)


def cut_fields(fields: Sequence[InputField], width: int) -> list[InputField]:
    """The inputs of packed rows of `width` values, which may have been cut.

    >>> [field.shape for field in cut_fields([InputField("attention_mask", (12,)), InputField("input_ids", (12,))], 16)]
    [(8,), (8,)]
    """
    return [replace(field, shape=(width // len(fields),)) for field in fields]


def _by_field(x: Tensor, fields: Sequence[InputField]) -> Tensor:
    """Packed texts as `[N, K, L]`."""
    return x.reshape(len(x), len(fields), x.shape[1] // len(fields))
