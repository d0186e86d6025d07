"""The autoencoder of the Fréchet paper for image-to-image tasks, with sizes scaled to the images.

On 512x512 images the encoder is the one in the paper: a 5x5 convolution of stride 4 to 16 channels, then linear layers
(262144, 512) and (512, 128). (The first layer alone has 134 M weights; the paper counts 50.51 M for the whole network.)
The decoder mirrors the encoder.
"""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from nearkin.nets.small import image_shape, scaled

KERNEL = 5
PADDING = 2


def stride_for(height: int, width: int) -> int:
    """Stride of the convolution: 4 for large images as in the paper, less for small images.

    >>> stride_for(8, 8), stride_for(28, 28), stride_for(512, 512)
    (1, 2, 4)
    """
    side = max(height, width)
    return 1 if side <= 16 else 2 if side <= 64 else 4


class Autoencoder(nn.Module):
    """Image to image through a code of 128 numbers: `[N, C, H, W]` to `[N, K, H, W]`.

    The layer that depends on the number of output channels is created last, so that the random initial weights of all
    other layers are the same for every number of channels.

    Args:
        input_shape: `(C, H, W)`, with sides of 4 pixels or more; a side may be odd.
        num_outputs: K, the channels of the target.
        width: factor on every layer's size.

    >>> import torch
    >>> Autoencoder((1, 9, 8), 3, width=0.25)(torch.zeros(2, 1, 9, 8)).shape
    torch.Size([2, 3, 9, 8])
    """

    def __init__(self, input_shape: Sequence[int], num_outputs: int, width: float = 1.0) -> None:
        super().__init__()
        channels, height, breadth = image_shape("autoencoder", input_shape)
        stride = stride_for(height, breadth)
        maps, wide, code = (scaled(size, width) for size in (16, 512, 128))
        small = (math.ceil(height / stride), math.ceil(breadth / stride))
        flat = maps * math.prod(small)
        self.encoder = nn.Sequential(
            *(nn.Conv2d(channels, maps, KERNEL, stride, PADDING), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(flat, wide), nn.ReLU(), nn.Linear(wide, code)),
        )
        self.decoder = nn.Sequential(
            *(nn.Linear(code, wide), nn.ReLU(), nn.Linear(wide, flat), nn.ReLU()),
            nn.Unflatten(1, (maps, *small)),
        )
        skipped = ((height - 1) % stride, (breadth - 1) % stride)  # rows and columns that the stride skipped
        self.output = nn.ConvTranspose2d(maps, num_outputs, KERNEL, stride, PADDING, output_padding=skipped)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, K, H, W]`."""
        outputs: Tensor = self.output(self.decoder(self.encoder(x)))
        return outputs
