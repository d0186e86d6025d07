"""Small networks that are trained in seconds: a multilayer perceptron and LeNet-5.

Notation: N samples, D features of a flattened input, K outputs.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require

SMALLEST_SIDE = 4  # of an image; in a smaller one a 5x5 or strided 3x3 convolution reads mostly padding


def scaled(size: int, width: float) -> int:
    """A layer's size times a width factor, rounded, at least one.

    >>> scaled(64, 0.25), scaled(6, 1 / 16)
    (16, 1)
    """
    require(math.isfinite(width) and width > 0, f"width is a factor > 0, got {width}; use 1 for the published size")
    return max(1, round(size * width))


def image_shape(network: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """`(C, H, W)` of an input that this network can read; an error for any other shape.

    >>> image_shape("lenet", (1, 8, 8))
    (1, 8, 8)
    >>> image_shape("lenet", (13,))
    Traceback (most recent call last):
    nearkin.core.errors.MismatchError: lenet reads images (C, H, W), got inputs of shape (13,); use mlp for tables
    """
    require(
        len(input_shape) == 3,
        f"{network} reads images (C, H, W), got inputs of shape {tuple(input_shape)}; use mlp for tables",
        MismatchError,
    )
    channels, height, width = input_shape
    require(
        channels >= 1 and min(height, width) >= SMALLEST_SIDE,
        f"{network} reads images of {SMALLEST_SIDE}x{SMALLEST_SIDE} pixels or more, got shape {tuple(input_shape)}; "
        f"enlarge the images or use mlp",
        MismatchError,
    )
    return channels, height, width


def half_pool(kind: type[nn.MaxPool2d] | type[nn.AvgPool2d], height: int, width: int) -> tuple[nn.Module, int, int]:
    """A 2x2 pool that does not pool a side of one pixel, and the sides of the map after it.

    >>> half_pool(nn.MaxPool2d, 5, 1)[1:]
    (2, 1)
    """
    kernel = (min(2, height), min(2, width))
    pool = kind(kernel) if max(kernel) > 1 else nn.Identity()
    return pool, height // kernel[0], width // kernel[1]


class MLP(nn.Module):
    """Linear layers with ReLU between them, on the flattened input: `[N, ...]` to `[N, K]`.

    Args:
        input_shape: shape of one input, with any number of axes.
        num_outputs: K.
        hidden: sizes of the hidden layers; an empty sequence gives a linear model.

    >>> import torch
    >>> MLP((1, 8, 8), 10, hidden=(32,))(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(self, input_shape: Sequence[int], num_outputs: int, hidden: Sequence[int] = (256, 128)) -> None:
        super().__init__()
        require(all(size >= 1 for size in hidden), f"hidden layers have sizes >= 1, got {tuple(hidden)}; change hidden")
        sizes = (math.prod(input_shape), *hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(sizes[-1], num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, ...]` to `[N, K]`."""
        outputs: Tensor = self.head(self.body(x))
        return outputs


class LeNet(nn.Module):
    """LeNet-5 (LeCun et al. 1998) with ReLU, max pooling and padded convolutions: `[N, C, H, W]` to `[N, K]`.

    Args:
        input_shape: `(C, H, W)`, with sides of 4 pixels or more.
        num_outputs: K.
        width: factor on every layer's size.

    >>> import torch
    >>> LeNet((1, 8, 8), 10)(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(self, input_shape: Sequence[int], num_outputs: int, width: float = 1.0) -> None:
        super().__init__()
        channels, rows, columns = image_shape("lenet", input_shape)
        first, second, third, fourth = (scaled(size, width) for size in (6, 16, 120, 84))
        first_pool, rows, columns = half_pool(nn.MaxPool2d, rows, columns)
        second_pool, rows, columns = half_pool(nn.MaxPool2d, rows, columns)
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(channels, first, 5, padding=2), nn.ReLU(), first_pool),
            *(nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), second_pool),
        )
        self.body = nn.Sequential(
            nn.Flatten(),
            *(nn.Linear(second * rows * columns, third), nn.ReLU()),
            *(nn.Linear(third, fourth), nn.ReLU()),
        )
        self.head = nn.Linear(fourth, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, K]`."""
        outputs: Tensor = self.head(self.body(self.convolutions(x)))
        return outputs
