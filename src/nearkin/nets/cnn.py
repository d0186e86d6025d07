"""A small convolutional network with a strong result per second of training on small images."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.nets.small import half_pool, image_shape, scaled

CHANNELS = (16, 32, 64)
LARGEST_SIDE = 32  # pixels after the stem; larger images are reduced by its stride
SMALL_SIDE = 16  # pixels; below this the last block has no pool
SHIFTS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))


class CNN(nn.Module):
    """Three blocks of convolution, batch norm, ReLU and max pool, then a linear head: `[N, C, H, W]` to `[N, K]`.

    Args:
        input_shape: `(C, H, W)`, sides of 4 pixels or more.
        num_outputs: K.
        width: factor on the channels 16, 32, 64.
        residual: adds a residual pair of convolutions to each block.
        shifts: in evaluation mode, averages the outputs over the image and its four shifts by one pixel.

    >>> CNN((1, 8, 8), 10)(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        width: float = 1.0,
        residual: bool = False,
        shifts: bool = False,
    ) -> None:
        super().__init__()
        channels, rows, columns = image_shape("cnn", input_shape)
        require(num_outputs >= 1, f"num_outputs must be 1 or more, got {num_outputs}")
        self.shifts, small = shifts, min(rows, columns) < SMALL_SIDE
        stride = 1
        while max(rows, columns) / stride > LARGEST_SIDE:
            stride *= 2
        rows, columns = -(-rows // stride), -(-columns // stride)
        blocks: list[nn.Module] = []
        for number, size in enumerate(scaled(size, width) for size in CHANNELS):
            blocks.append(_convolution(channels, size, stride if number == 0 else 1))
            if number < len(CHANNELS) - 1 or not small:
                pool, rows, columns = half_pool(nn.MaxPool2d, rows, columns)
                blocks.append(pool)
            if residual:
                blocks.append(ResidualPair(size))
            channels = size
        self.body = nn.Sequential(*blocks, nn.Flatten())
        self.head = nn.Linear(channels * rows * columns, num_outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # 6 to 35 % faster on a CPU

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, K]`."""
        if self.training or not self.shifts:
            return self._outputs(x)
        padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
        rows, columns = x.shape[2:]
        views = [padded[:, :, 1 + i : 1 + i + rows, 1 + j : 1 + j + columns] for i, j in SHIFTS]
        return torch.stack([self._outputs(view) for view in views]).mean(0)

    def _outputs(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.body(x.contiguous(memory_format=torch.channels_last)))
        return outputs


class ResidualPair(nn.Module):
    """`x + conv(conv(x))`, each convolution 3×3 with batch norm and ReLU: `[N, C, H, W]` to the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = _convolution(channels, channels), _convolution(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to the same shape."""
        added: Tensor = x + self.second(self.first(x))
        return added


def _convolution(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
