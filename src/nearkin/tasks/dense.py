r"""Dense tasks: image to image, made from the images of any task.

| kind | input | target |
| --- | --- | --- |
| autoencode | image | the image |
| edges | image | size of the gradient of its luma |
| keypoints | image | heat map of its corners |
| denoise | image with gaussian noise | the image |
| colour | luma | red, green and blue |
| inpaint | image with a square hidden | the image |

Noise and hidden squares are functions of the sample's position, the part and the seed, so that every reader sees the
same task. Sums run pixel by pixel, not through convolutions, whose last bits would depend on the batch.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.rng import Streams
from nearkin.tasks.augment import luma
from nearkin.tasks.examples import Examples
from nearkin.tasks.pixels import as_read, require_images, value_range
from nearkin.tasks.rows import Mapped, Rows
from nearkin.tasks.task import Task

DENSE_KINDS = ("autoencode", "edges", "keypoints", "denoise", "colour", "inpaint")

NOISE = 0.25  # deviation, where images range over [0, 1]
NOISE_WINDOWS = 262_139  # prime, so that no two positions below it share their noise
NOISE_STRIDE = 86_243
HIDDEN_PLACES = 4_093  # prime: no period of a data set falls in step with it
LARGEST_GRADIENT = math.sqrt(20)  # of Sobel's on values in [0, 1]: 4 along one axis, 2 along the other
FAINTEST_CORNER = 1e-4  # responses far below it are a flat image


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
    require(
        kind != "colour" or channels == 3,
        f"{task.name}: dense=colour needs images of 3 channels, got {channels}; use a colour data set",
        DataError,
    )
    streams = Streams(seed).child("dense", kind)
    low, high = value_range(task.train.inputs) if kind == "denoise" else (0.0, 1.0)
    train, test = (
        _part(examples.inputs, kind, streams.at(name), NOISE * (high - low))
        for name, examples in (("train", task.train), ("test", task.test))
    )
    names = (kind,) if kind in ("edges", "keypoints") else channel_names(channels)
    made = replace(task, train=train, test=test, likelihood="dense", classes=names, input_shape=train.inputs.shape)
    return made.standardised()


def channel_names(count: int) -> tuple[str, ...]:
    """What the channels of an image are called.

    >>> channel_names(1), channel_names(3)
    (('grey',), ('red', 'green', 'blue'))
    """
    known = {1: ("grey",), 3: ("red", "green", "blue"), 4: ("red", "green", "blue", "alpha")}
    return known.get(count) or tuple(f"channel{i}" for i in range(count))


def gradient(images: Tensor) -> tuple[Tensor, Tensor]:
    """Sobel's derivatives of the luma along x and y, `[B, 1, H, W]` each; the border is carried on outside."""
    grey = F.pad(luma(images), [1, 1, 1, 1], mode="replicate")
    across, down = grey[..., 2:] - grey[..., :-2], grey[..., 2:, :] - grey[..., :-2, :]
    along_x = across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]
    return along_x, down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:]


def edge_map(images: Tensor) -> Tensor:
    r"""Size of the gradient $\sqrt{g_x^2 + g_y^2}$ `[B, 1, H, W]`, in [0, 1] for images in [0, 1].

    >>> edge_map(torch.tensor([[[[0.0, 0.0, 1.0, 1.0]]]])).mul(LARGEST_GRADIENT).round()
    tensor([[[[0., 4., 4., 0.]]]])
    """
    x, y = gradient(images)
    return (x.square() + y.square()).sqrt() / LARGEST_GRADIENT


def corner_map(images: Tensor) -> Tensor:
    r"""Heat map of corners `[B, 1, H, W]` in [0, 1), its peak near 1 unless the image is flat.

    The response is the smaller eigenvalue of the structure tensor $\overline{g g^\top}$ (Shi and Tomasi 1994): zero on
    flat ground and along straight edges.
    """
    x, y = (part / LARGEST_GRADIENT for part in gradient(images))
    xx, xy, yy = blurred(x * x), blurred(x * y), blurred(y * y)
    smaller = (xx + yy) / 2 - (((xx - yy) / 2).square() + xy.square()).sqrt()
    heat = blurred(smaller.clamp_min(0))
    return heat / (heat.amax((1, 2, 3), keepdim=True) + FAINTEST_CORNER)


def blurred(maps: Tensor) -> Tensor:
    """Maps `[B, 1, H, W]` under the binomial weights 1, 4, 6, 4, 1 along both axes: a blur of deviation one pixel.

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
class Noise:
    """Images with noise of their own: each position reads its window of one long table `[NOISE_WINDOWS + C·H·W]`."""

    table: Tensor

    def __call__(self, images: Tensor, index: Tensor) -> Tensor:
        """Noisy images `[B, C, H, W]` of the positions `index` `[B]`."""
        windows = self.table.unfold(0, images[0].numel(), 1)
        return images + windows[index * NOISE_STRIDE % NOISE_WINDOWS].view_as(images)


@dataclass(frozen=True, eq=False)
class Hidden:
    """Images with a square hidden under the mean of what can be seen: `corners` `[P, 2]` are its rows and columns."""

    corners: Tensor
    side: int

    def __call__(self, images: Tensor, index: Tensor) -> Tensor:
        """Images `[B, C, H, W]` of the positions `index` `[B]`, with a hole."""
        hidden = self.mask(index, images.shape[2], images.shape[3])
        seen = images.masked_fill(hidden, 0).sum((2, 3), keepdim=True, dtype=torch.float64)
        mean = seen / (~hidden).sum((2, 3), keepdim=True).clamp_min(1)
        return torch.where(hidden, mean.to(images.dtype), images)

    def mask(self, index: Tensor, height: int, width: int) -> Tensor:
        """Which pixels are hidden, `[B, 1, H, W]`."""
        top, left = self.corners[index % len(self.corners)][:, :, None].unbind(1)
        y, x = torch.arange(height), torch.arange(width)
        rows, columns = (y >= top) & (y < top + self.side), (x >= left) & (x < left + self.side)
        return rows[:, None, :, None] & columns[:, None, None, :]


def _part(images: Rows, kind: str, rng: Generator, noise: float) -> Examples:
    """Inputs and targets of one part."""
    match kind:
        case "edges":
            return Examples(images, as_read(images, edge_map))
        case "keypoints":
            return Examples(images, as_read(images, corner_map))
        case "colour":
            return Examples(as_read(images, luma), images)
        case "denoise":
            table = torch.randn(NOISE_WINDOWS + math.prod(images.shape), generator=rng) * noise
            return Examples(Mapped(images, Noise(table)), images)
        case "inpaint":
            _, height, width = images.shape
            side = max(1, min(height, width) // 2)
            limits = torch.tensor([height - side + 1, width - side + 1])
            corners = (torch.rand(HIDDEN_PLACES, 2, generator=rng) * limits).long()
            return Examples(Mapped(images, Hidden(corners, side)), images)
        case _:
            return Examples(images, images)
