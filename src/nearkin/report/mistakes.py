"""Wrong answers with the highest probability, as small PNG images inside the page and as a table."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nearkin.core.text import counted, percent, plain
from nearkin.report.html import HtmlTable
from nearkin.report.svg import png_uri
from nearkin.solver.solution import Solution

LARGEST = 64
"""Pixels of the longer side; larger inputs are scaled down."""


@dataclass(frozen=True)
class MistakeImage:
    """A wrong answer with its input; `source` is a data URI, `alternative` the text for readers who see no image."""

    source: str
    alternative: str
    true_class: str
    answer: str
    probability: str


def mistake_images(solution: Solution) -> list[MistakeImage]:
    """The mistakes with their images; none for tables and other inputs that are not images."""
    images = []
    if solution.pictures.dim() == 4 and len(solution.pictures):
        for picture, mistake in zip(solution.pictures, solution.quality.mistakes, strict=False):
            true_class, answer, probability = plain(mistake.given), plain(mistake.said), percent(mistake.probability)
            title = f"Test sample {mistake.row}: true class {true_class}, answer {answer}"
            text = f"{title} with a probability of {probability}"
            images.append(MistakeImage(png_uri(image_bytes(picture)), text, true_class, answer, probability))
    return images


def mistakes_table(solution: Solution) -> HtmlTable | None:
    """Row, true class, answer and probability of each mistake."""
    rows = [
        (counted(mistake.row), plain(mistake.given), plain(mistake.said), percent(mistake.probability))
        for mistake in solution.quality.mistakes
    ]
    heads = ("Row of the test set", "True class", "Answer", "Probability")
    return HtmlTable("Wrong answers with the highest probability", heads, rows, frozenset({0, 3})) if rows else None


def image_bytes(image: Tensor) -> np.ndarray:
    """RGB bytes `[H, W, 3]` of one raw input `[C, H, W]`, bytes or floats; one channel is grey, three are colours.

    Other numbers of channels are shown by their mean. Floats outside 0 to 255 are stretched to the whole range.
    """
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
    pixels: np.ndarray = values.round().clamp(0, 255).byte().expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    return pixels
