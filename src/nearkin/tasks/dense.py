r"""Dense tasks: image-to-image tasks from the images of any task.

| kind | input | target |
| --- | --- | --- |
| autoencode | image | the image |
| edges | image | magnitude of the gradient of its luma |
| keypoints | image | heat map of its corners |
| denoise | image with gaussian noise | the image |
| colour | luma | red, green and blue |
| inpaint | image with a hidden square | the image |

Noise and hidden squares depend only on the sample's position, the split and the seed: every reader sees the same task.
Sums are computed pixel by pixel, because the last bits of a convolution would depend on the batch.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.errors import DataError, OptionError
from nearkin.core.rng import Streams
from nearkin.tasks.augment import luma
from nearkin.tasks.examples import Examples
from nearkin.tasks.pixels import as_read, require_images, value_range
from nearkin.tasks.rows import Mapped, Rows
from nearkin.tasks.task import Task

DENSE_KINDS = ("autoencode", "edges", "keypoints", "denoise", "colour", "inpaint")

NOISE = 0.25  # standard deviation, for images in [0, 1]
NOISE_WINDOWS = 262_139  # prime: positions below it have different noise
NOISE_STRIDE = 86_243
HIDDEN_SQUARES = 4_093  # prime: it does not coincide with a period of the data set
LARGEST_GRADIENT = math.sqrt(20)  # of Sobel's filter for values in [0, 1]: 4 along one axis, 2 along the other
FAINTEST_CORNER = 1e-4  # an image with far lower responses is flat


def dense(task: Task, kind: str, seed: int = 0) -> Task:
    """The image-to-image task of that kind on the images of a task.

    >>> task = Task.from_arrays("noise", torch.rand(10, 3, 8, 8), torch.arange(10) % 2)
    >>> edges = dense(task, "edges")
    >>> edges.likelihood, edges.classes, edges.train.targets.shape
    ('dense', ('edges',), (1, 8, 8))
    """
    if kind not in DENSE_KINDS:
        raise OptionError(f"unknown dense kind {kind!r}; choose one of {', '.join(DENSE_KINDS)}")
    require_images(task)
    channels = task.input_shape[0]
    if kind == "colour" and channels != 3:
        raise DataError(f"{task.name}: dense=colour needs images of 3 channels, got {channels}; use a colour data set")
    streams = Streams(seed).child("dense", kind)
    low, high = value_range(task.train.inputs) if kind == "denoise" else (0.0, 1.0)
    train, test = (
        _examples(examples.inputs, kind, streams.at(split), NOISE * (high - low))
        for split, examples in (("train", task.train), ("test", task.test))
    )
    names = (kind,) if kind in ("edges", "keypoints") else channel_names(channels)
    dense = replace(task, train=train, test=test, likelihood="dense", classes=names, input_shape=train.inputs.shape)
    return dense.standardised()


def channel_names(count: int) -> tuple[str, ...]:
    """Names of the channels of an image.

    >>> channel_names(1), channel_names(3)
    (('grey',), ('red', 'green', 'blue'))
    """
    known = {1: ("grey",), 3: ("red", "green", "blue"), 4: ("red", "green", "blue", "alpha")}
    return known.get(count) or tuple(f"channel{i}" for i in range(count))


def gradient(images: Tensor) -> tuple[Tensor, Tensor]:
    """Sobel's derivatives of the luma along x and y, `[B, 1, H, W]` each; the border is repeated outside."""
    grey = F.pad(luma(images), [1, 1, 1, 1], mode="replicate")
    across, down = grey[..., 2:] - grey[..., :-2], grey[..., 2:, :] - grey[..., :-2, :]
    along_x = across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]
    return along_x, down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:]


def edge_map(images: Tensor) -> Tensor:
    r"""Magnitude of the gradient $\sqrt{g_x^2 + g_y^2}$ `[B, 1, H, W]`, in [0, 1] for images in [0, 1].

    >>> edge_map(torch.tensor([[[[0.0, 0.0, 1.0, 1.0]]]])).mul(LARGEST_GRADIENT).round()
    tensor([[[[0., 4., 4., 0.]]]])
    """
    x, y = gradient(images)
    return (x.square() + y.square()).sqrt() / LARGEST_GRADIENT


def corner_map(images: Tensor) -> Tensor:
    r"""Heat map of corners `[B, 1, H, W]` in [0, 1), with a peak near 1 unless the image is flat.

    The response is the smaller eigenvalue of the structure tensor $\overline{g g^\top}$ (Shi and Tomasi 1994), which is
    zero in flat regions and along straight edges.
    """
    x, y = (derivative / LARGEST_GRADIENT for derivative in gradient(images))
    xx, xy, yy = blurred(x * x), blurred(x * y), blurred(y * y)
    smaller = (xx + yy) / 2 - (((xx - yy) / 2).square() + xy.square()).sqrt()
    response = blurred(smaller.clamp_min(0))
    return response / (response.amax((1, 2, 3), keepdim=True) + FAINTEST_CORNER)


def blurred(maps: Tensor) -> Tensor:
    """Maps `[B, 1, H, W]` blurred by the weights 1, 4, 6, 4, 1 along both axes (standard deviation: one pixel).

    >>> blurred(torch.ones(1, 1, 3, 3)).unique()
    tensor([1.])
    """
    height, width = maps.shape[2:]
    wide = F.pad(maps, [2, 2, 2, 2], mode="replicate")
    rows = [wide[..., i : i + height, :] for i in range(5)]
    tall = (rows[0] + rows[4] + 4 * (rows[1] + rows[3]) + 6 * rows[2]) / 16
    columns = [tall[..., i : i + width] for i in range(5)]
    return (columns[0] + columns[4] + 4 * (columns[1] + columns[3]) + 6 * columns[2]) / 16


@dataclass(frozen=True, eq=False)
class PositionNoise:
    """Add noise to each image, from a window of `table` `[NOISE_WINDOWS + C·H·W]` that depends on its position."""

    table: Tensor

    def __call__(self, images: Tensor, index: Tensor) -> Tensor:
        """Noisy images `[B, C, H, W]` of the positions `index` `[B]`."""
        windows = self.table.unfold(0, images[0].numel(), 1)
        return images + windows[index * NOISE_STRIDE % NOISE_WINDOWS].view_as(images)


@dataclass(frozen=True, eq=False)
class HiddenSquare:
    """Replace a square of each image by the mean of the other pixels; `corners` `[P, 2]` are its rows and columns."""

    corners: Tensor
    side: int

    def __call__(self, images: Tensor, index: Tensor) -> Tensor:
        """Images `[B, C, H, W]` of the positions `index` `[B]`, with a hidden square."""
        hidden = self.mask(index, images.shape[2], images.shape[3])
        total = images.masked_fill(hidden, 0).sum((2, 3), keepdim=True, dtype=torch.float64)
        mean = total / (~hidden).sum((2, 3), keepdim=True).clamp_min(1)
        return torch.where(hidden, mean.to(images.dtype), images)

    def mask(self, index: Tensor, height: int, width: int) -> Tensor:
        """Hidden pixels of the images at positions `index`, `[B, 1, H, W]`."""
        top, left = self.corners[index % len(self.corners)][:, :, None].unbind(1)
        y, x = torch.arange(height), torch.arange(width)
        rows, columns = (y >= top) & (y < top + self.side), (x >= left) & (x < left + self.side)
        return rows[:, None, :, None] & columns[:, None, None, :]


def _examples(images: Rows, kind: str, rng: Generator, noise: float) -> Examples:
    match kind:
        case "edges":
            return Examples(images, as_read(images, edge_map))
        case "keypoints":
            return Examples(images, as_read(images, corner_map))
        case "colour":
            return Examples(as_read(images, luma), images)
        case "denoise":
            table = torch.randn(NOISE_WINDOWS + math.prod(images.shape), generator=rng) * noise
            return Examples(Mapped(images, PositionNoise(table)), images)
        case "inpaint":
            _, height, width = images.shape
            side = max(1, min(height, width) // 2)
            limits = torch.tensor([height - side + 1, width - side + 1])
            corners = (torch.rand(HIDDEN_SQUARES, 2, generator=rng) * limits).long()
            return Examples(Mapped(images, HiddenSquare(corners, side)), images)
        case _:
            return Examples(images, images)
