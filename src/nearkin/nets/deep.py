"""The three approximation networks of the Fréchet paper in their variants for small images.

VGG-16 (Simonyan and Zisserman 2015), ResNet-18 (He et al. 2016) and DenseNet-121 (Huang et al. 2017): a 3x3 first
convolution without pooling after it, batch normalisation, global average pooling, one linear `head`. `width` scales
every layer; with 1/16 a network is small enough to be trained in a test.

Notation: N samples, C channels, K outputs.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.nets.small import half_pool, image_shape, scaled

VGG16_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
RESNET18_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride, two blocks each
DENSENET121_BLOCKS = (6, 12, 24, 16)
GROWTH = 32
BOTTLENECK = 4  # channels of the 1x1 convolution, in units of growth


def initialise(model: nn.Module) -> None:
    """Draw convolution weights by Kaiming's rule (normal, fan out, ReLU) and set their biases to zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def convolution(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A padded convolution without bias, for use with batch normalisation."""
    return nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)


class PooledNetwork(nn.Module):
    """Convolutional features, their mean over the map, then the head: `[N, C, H, W]` to `[N, K]`.

    The constructors of the three networks take the input shape `(C, H, W)` with sides of 4 pixels or more, the number
    of outputs K, and `width`, a factor on every layer's size. A side of one pixel is not pooled further.
    """

    def __init__(self, features: nn.Module, channels: int, num_outputs: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(channels, num_outputs)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, K]`."""
        outputs: Tensor = self.head(self.features(x).mean((2, 3)))
        return outputs


class VGG16(PooledNetwork):
    """Thirteen 3x3 convolutions in five stages with a pool after each stage, then one linear layer.

    >>> VGG16((1, 8, 8), 10, width=1 / 16)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, input_shape: Sequence[int], num_outputs: int, width: float = 1.0) -> None:
        channels, rows, columns = image_shape("vgg16", input_shape)
        layers: list[nn.Module] = []
        for stage in VGG16_STAGES:
            for size in stage:
                out = scaled(size, width)
                layers += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
                channels = out
            pool, rows, columns = half_pool(nn.MaxPool2d, rows, columns)
            layers.append(pool)
        super().__init__(nn.Sequential(*layers), channels, num_outputs)


class ResidualBlock(nn.Module):
    r"""Two 3x3 convolutions f with a shortcut s: $x ↦ \mathrm{ReLU}(s(x) + f(x))$."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(convolution(channels, out, 3, stride), nn.BatchNorm2d(out))
        self.second = nn.Sequential(convolution(out, out, 3), nn.BatchNorm2d(out))
        same = stride == 1 and channels == out
        projection = (convolution(channels, out, 1, stride), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if same else nn.Sequential(*projection)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, C', H', W']`."""
        return F.relu(self.shortcut(x) + self.second(F.relu(self.first(x))))


class ResNet18(PooledNetwork):
    """A 3x3 convolution and four stages of two residual blocks each, with strides 1, 2, 2, 2.

    >>> ResNet18((3, 32, 32), 10, width=1 / 16)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, input_shape: Sequence[int], num_outputs: int, width: float = 1.0) -> None:
        channels, _, _ = image_shape("resnet18", input_shape)
        stem = scaled(RESNET18_STAGES[0][0], width)
        layers: list[nn.Module] = [convolution(channels, stem, 3), nn.BatchNorm2d(stem), nn.ReLU()]
        channels = stem
        for size, stride in RESNET18_STAGES:
            out = scaled(size, width)
            layers += [ResidualBlock(channels, out, stride), ResidualBlock(out, out, 1)]
            channels = out
        super().__init__(nn.Sequential(*layers), channels, num_outputs)


class DenseLayer(nn.Module):
    """A layer of a dense block: a 1x1 and a 3x3 convolution, whose `growth` new maps are appended to the input."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        inner = BOTTLENECK * growth
        self.squeeze = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), convolution(channels, inner, 1))
        self.grow = nn.Sequential(nn.BatchNorm2d(inner), nn.ReLU(), convolution(inner, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, C + growth, H, W]`."""
        return torch.cat([x, self.grow(self.squeeze(x))], 1)


class DenseNet121(PooledNetwork):
    """Dense blocks of 6, 12, 24 and 16 layers; between two blocks the channels and the sides are halved.

    Here `width` is a factor on the growth of 32 maps per layer.

    >>> DenseNet121((1, 8, 8), 10, width=1 / 16)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, input_shape: Sequence[int], num_outputs: int, width: float = 1.0) -> None:
        channels, rows, columns = image_shape("densenet121", input_shape)
        growth = scaled(GROWTH, width)
        layers: list[nn.Module] = [convolution(channels, 2 * growth, 3)]
        channels = 2 * growth
        for number, depth in enumerate(DENSENET121_BLOCKS):
            if number > 0:
                pool, rows, columns = half_pool(nn.AvgPool2d, rows, columns)
                halving = convolution(channels, channels // 2, 1)
                layers += [nn.BatchNorm2d(channels), nn.ReLU(), halving, pool]
                channels //= 2
            layers += [DenseLayer(channels + i * growth, growth) for i in range(depth)]
            channels += depth * growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), channels, num_outputs)
