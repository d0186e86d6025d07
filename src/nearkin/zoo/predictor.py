"""Predictor: a network together with its preprocessing, as it is exported.

The classes use only torch, so `nearkin.zoo.python_source` can write them to a separate file.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.tasks.augment import luma

PROBABILITIES, VALUES, MEANS = "probabilities", "values", "means"
"""Kinds of answers; with `means`, the first half of the outputs are values and the second half log variances."""


class Predictor(nn.Module):
    r"""Raw inputs x to probabilities $\mathrm{softmax}(f((x - m) / s) / T)$ or values $t f((x - m) / s) + u$.

    Bytes of images are divided by 255 first. The buffers are m, s (`mean`, `std`), T (`temperature`), u and t
    (`target_mean`, `target_std`); without a scaling they are 0 and 1.

    Args:
        network: f, the trained network.
        answer: `probabilities`, `values` or `means`.
        axes: number of axes of one input; 3 for images, 0 for tokens, which are not scaled.
        scaled: number of channels or columns that have a mean.
        targets: number of target columns that have a mean.
        resize: (C, H, W) of the network's images if they differ from those of the data.

    >>> predictor = Predictor(nn.Flatten(), "values", 3, 1, 1)
    >>> predictor(torch.full((1, 1, 1, 2), 255, dtype=torch.uint8))
    tensor([[1., 1.]])
    """

    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor
    temperature: Tensor

    def __init__(
        self,
        network: nn.Module,
        answer: str,
        axes: int,
        scaled: int = 1,
        targets: int = 1,
        resize: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.network, self.answer, self.axes = network, answer, axes
        self.resize = None if resize is None else tuple(resize)
        self.register_buffer("mean", torch.zeros(scaled, *[1] * (axes - 1)))
        self.register_buffer("std", torch.ones(scaled, *[1] * (axes - 1)))
        self.register_buffer("target_mean", torch.zeros(targets))
        self.register_buffer("target_std", torch.ones(targets))
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, ...]` in the units of the data to probabilities `[N, C]` or values `[N, K]`."""
        outputs: Tensor = self.network(self.prepared(x) if self.axes else x)
        if self.answer == "probabilities":
            return (outputs / self.temperature).softmax(-1)
        means = outputs.chunk(2, -1)[0] if self.answer == "means" else outputs
        axes = (-1, *[1] * (means.dim() - 2))
        return means * self.target_std.view(axes) + self.target_mean.view(axes)

    def prepared(self, x: Tensor) -> Tensor:
        """Inputs as the network reads them: floats of its size, scaled."""
        is_bytes = x.dtype == torch.uint8 and self.axes == 3
        x = x.float() / 255 if is_bytes else x.float()
        if self.resize is not None:
            x = fitted_images(x, self.resize, is_bytes)
        return (x - self.mean) / self.std


def fitted_images(x: Tensor, shape: Sequence[int], is_bytes: bool) -> Tensor:
    """Images `[N, C, H, W]` with another size (bilinear, antialiased) and one or three channels; bytes stay bytes."""
    channels, height, width = shape
    if tuple(x.shape[2:]) != (height, width):
        x = F.interpolate(x, size=(height, width), mode="bilinear", align_corners=False, antialias=True)
        x = x.mul(255).round().clamp(0, 255) / 255 if is_bytes else x
    if channels == 1 and x.shape[1] != 1:
        x = luma(x)
        x = x.mul(255).round().clamp(0, 255) / 255 if is_bytes else x
    return x.expand(-1, channels, -1, -1)
