r"""Depthwise convolution with a large kernel that is trained faster on small feature maps.

torch computes the gradient of a depthwise kernel of 5x5 or more slowly. On a map of P pixels the convolution of one
channel is a product with a matrix $T$ `[P, P']` of entries of the kernel, $y_{nq} = \sum_p x_{np} T_{pq}$; for at most
64 pixels this product is faster in training, although it multiplies more. Both forms have the same results up to
rounding.

Notation: N samples, C channels, P pixels of the input, P' of the output, k kernel size, s stride.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGE_KERNEL = 5
"""Smallest kernel for which the product is used."""

SMALL_MAP = 64
"""Largest number of pixels for which it is used; measured with 24 to 648 channels."""


class DepthwiseConvolution(nn.Conv2d):
    """A filter for each channel, without bias; at stride 1 it keeps height and width.

    Args:
        channels: C.
        kernel: k, odd.
        stride: s.
    """

    def __init__(self, channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, C, ⌈H/s⌉, ⌈W/s⌉]`."""
        height, width = x.shape[2:]
        if not self.training or self.kernel_size[0] < LARGE_KERNEL or height * width > SMALL_MAP:
            return super().forward(x)
        return matrix_convolution(x, self.weight, self.stride[0])


def matrix_convolution(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Depthwise convolution `[N, C, H, W]` with kernels `[C, 1, k, k]` as one product of matrices for each channel.

    >>> x, weight = torch.ones(1, 2, 3, 3), torch.ones(2, 1, 5, 5)
    >>> matrix_convolution(x, weight, 1)[0, 0].tolist() == F.conv2d(x, weight, padding=2, groups=2)[0, 0].tolist()
    True
    """
    (channels, _, kernel, _), (height, width) = weight.shape, x.shape[2:]
    entries = kernel_entries(height, width, kernel, stride).to(x.device)
    matrices = F.pad(weight.view(channels, -1), (0, 1)).index_select(1, entries.flatten())
    outputs = torch.bmm(x.flatten(2).transpose(0, 1), matrices.view(channels, *entries.shape))
    images: Tensor = outputs.transpose(0, 1).unflatten(2, (-(-height // stride), -(-width // stride)))
    return images


@functools.lru_cache(maxsize=64)
def kernel_entries(height: int, width: int, kernel: int, stride: int) -> Tensor:
    """For each input and output pixel `[P, P']` the number of the kernel's entry between them; k² for none.

    >>> kernel_entries(1, 3, 1, 1).tolist()
    [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    """
    offsets = [
        torch.arange(side)[:, None] - stride * torch.arange(-(-side // stride)) + kernel // 2
        for side in (height, width)
    ]
    inside = [(offset >= 0) & (offset < kernel) for offset in offsets]
    entries = kernel * offsets[0][:, None, :, None] + offsets[1][None, :, None, :]
    both = inside[0][:, None, :, None] & inside[1][None, :, None, :]
    return entries.where(both, torch.tensor(kernel**2)).flatten(2).flatten(0, 1)
