"""Mistakes: the inputs that were answered wrongly and surely, as small PNG pictures inside the page."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nearkin.core.text import counted, percent, plain
from nearkin.report.html import Table
from nearkin.report.svg import png_uri
from nearkin.solver.solution import Solution

LARGEST = 64
"""Pixels of the longer side; larger inputs are made smaller."""


@dataclass(frozen=True)
class Seen:
    """A mistake that can be looked at; `source` is a data URI, `alternative` the text in its place."""

    source: str
    alternative: str
    given: str
    said: str
    sure: str


def seen_mistakes(solution: Solution) -> list[Seen]:
    """The surest mistakes with their pictures; none for tables and other inputs that are not images."""
    pictures, mistakes = solution.pictures, solution.quality.mistakes
    if pictures.dim() != 4 or not len(pictures):
        return []
    found = []
    for image, one in zip(pictures, mistakes, strict=False):
        given, said, sure = plain(one.given), plain(one.said), percent(one.probability)
        words = f"Test sample {one.row}: given {given}, said {said} with {sure} certainty"
        found.append(Seen(png(image), words, given, said, sure))
    return found


def mistakes_table(solution: Solution) -> Table | None:
    """The surest mistakes in figures."""
    rows = [
        (counted(one.row), plain(one.given), plain(one.said), percent(one.probability))
        for one in solution.quality.mistakes
    ]
    heads = ("Row of the test part", "Given", "Said", "How sure")
    return Table("The surest mistakes", heads, rows, frozenset({0, 3})) if rows else None


def png(image: Tensor) -> str:
    """A data URI of one raw input `[C, H, W]`: bytes or floats; one channel is grey, three are colours.

    Other numbers of channels are shown by their mean. Floats outside 0 to 255 are stretched to the whole range.

    >>> png(torch.zeros(1, 2, 2)).startswith("data:image/png;base64,")
    True
    """
    return png_uri(shown(image))


def shown(image: Tensor) -> np.ndarray:
    """Bytes `[H, W, 3]` of what a reader sees."""
    values = image.detach().to("cpu").double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    values = values if len(values) in (1, 3) else values.mean(0, keepdim=True)
    longer = max(values.shape[1:])
    if longer > LARGEST:
        height, width = (max(1, round(side * LARGEST / longer)) for side in values.shape[1:])
        values = functional.adaptive_avg_pool2d(values[None], (height, width))[0]
    low, high = float(values.min()), float(values.max())
    if image.dtype != torch.uint8 and (low < 0 or high > 255):
        values = (values - low) / (high - low or 1.0) * 255
    elif image.dtype != torch.uint8 and high <= 1:
        values = values * 255
    found: np.ndarray = values.round().clamp(0, 255).byte().expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    return found
