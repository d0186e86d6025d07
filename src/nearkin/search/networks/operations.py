"""Operations on the edges of a cell by name: from C channels to C channels, with stride 1 or 2.

Every operation maps `[N, C, H, W]` to `[N, C, ⌈H/s⌉, ⌈W/s⌉]`, so operations are interchangeable.
To add one, register a function `(channels, stride, affine) -> nn.Module` under a name:

>>> register("blur5", lambda channels, stride, affine: nn.AvgPool2d(5, stride, padding=2))
>>> operation("blur5", 4, 2)(torch.ones(1, 4, 9, 9)).shape
torch.Size([1, 4, 5, 5])
>>> del OPERATIONS["blur5"]

Notation: N samples, C channels, s stride.
"""

import difflib
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from nearkin.core.errors import OptionError, require

Builder: TypeAlias = Callable[[int, int, bool], nn.Module]
"""(channels, stride, affine) → a new module; `affine` says whether batch norms have weights."""


class Zero(nn.Module):
    """Zeros of the right shape."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to zeros."""
        return torch.zeros_like(x[:, :, :: self.stride, :: self.stride])


class FactorizedReduction(nn.Module):
    """Halve height and width with two 1x1 convolutions of stride 2, the second shifted by one pixel; batch norm."""

    def __init__(self, channels: int, out: int, affine: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out // 2, 1, stride=2, bias=False)
        self.second = nn.Conv2d(channels, out - out // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(out, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, out, ⌈H/2⌉, ⌈W/2⌉]`."""
        x = torch.relu(x)
        moved = nn.functional.pad(x[:, :, 1:, 1:], (0, x.shape[3] % 2, 0, x.shape[2] % 2))
        outputs: Tensor = self.norm(torch.cat([self.first(x), self.second(moved)], 1))
        return outputs


def convolution(channels: int, out: int, kernel: int | tuple[int, int], stride: int = 1, affine: bool = True,
                *, dilation: int = 1, groups: int = 1) -> list[nn.Module]:  # fmt: skip
    """A convolution that keeps height and width (at stride 1), and its batch norm."""
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = tuple(dilation * (side // 2) for side in sides)
    layer = nn.Conv2d(channels, out, sides, stride, padding, dilation, groups, bias=False)  # type: ignore[arg-type]
    return [layer, nn.BatchNorm2d(out, affine=affine)]


class ResidualReduction(nn.Module):
    """Halve height and width: two 3x3 convolutions plus an average pool with a 1x1 convolution, as in NAS-Bench-201."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        second = convolution(out, out, 3)
        self.body = nn.Sequential(nn.ReLU(), *convolution(channels, out, 3, 2), nn.ReLU(), *second)
        pool = nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False)
        self.shortcut = nn.Sequential(pool, nn.Conv2d(channels, out, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to `[N, out, ⌈H/2⌉, ⌈W/2⌉]`."""
        outputs: Tensor = self.shortcut(x) + self.body(x)
        return outputs


def drop_samples(x: Tensor, rate: float) -> Tensor:
    """Set samples of `[N, …]` to zero with this probability; scale the others to keep the mean."""
    kept = torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device) >= rate
    return x * kept / (1 - rate)


def identity(channels: int, stride: int, affine: bool) -> nn.Module:
    """The input itself; with stride 2 a factorized reduction."""
    return nn.Identity() if stride == 1 else FactorizedReduction(channels, channels, affine)


def plain(kernel: int, dilation: int = 1) -> Builder:
    """ReLU, convolution, batch norm."""

    def build(channels: int, stride: int, affine: bool) -> nn.Module:
        return nn.Sequential(nn.ReLU(), *convolution(channels, channels, kernel, stride, affine, dilation=dilation))

    return build


def separable(kernel: int) -> Builder:
    """Twice: ReLU, depthwise convolution, 1x1 convolution, batch norm."""

    def build(channels: int, stride: int, affine: bool) -> nn.Module:
        layers: list[nn.Module] = []
        for steps in (stride, 1):
            alone, _ = convolution(channels, channels, kernel, steps, groups=channels)
            layers += [nn.ReLU(), alone, *convolution(channels, channels, 1, 1, affine)]
        return nn.Sequential(*layers)

    return build


def dilated(kernel: int) -> Builder:
    """ReLU, depthwise convolution with dilation 2, 1x1 convolution, batch norm."""

    def build(channels: int, stride: int, affine: bool) -> nn.Module:
        alone, _ = convolution(channels, channels, kernel, stride, dilation=2, groups=channels)
        return nn.Sequential(nn.ReLU(), alone, *convolution(channels, channels, 1, 1, affine))

    return build


def crossed(kernel: int) -> Builder:
    """ReLU, k x 1 convolution, 1 x k convolution, batch norm."""

    def build(channels: int, stride: int, affine: bool) -> nn.Module:
        first, _ = convolution(channels, channels, (kernel, 1), stride)
        second, norm = convolution(channels, channels, (1, kernel), 1, affine)
        return nn.Sequential(nn.ReLU(), first, second, norm)

    return build


def max_pool(channels: int, stride: int, affine: bool) -> nn.Module:
    """Maximum of 3x3 pixels."""
    return nn.MaxPool2d(3, stride, padding=1)


def average_pool(channels: int, stride: int, affine: bool) -> nn.Module:
    """Mean of 3x3 pixels without the padding."""
    return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)


def zero(channels: int, stride: int, affine: bool) -> nn.Module:
    """Zeros: no connection."""
    return Zero(stride)


OPERATIONS: dict[str, Builder] = {
    "zero": zero,
    "identity": identity,
    "max3": max_pool,
    "avg3": average_pool,
    "conv3": plain(3),
    "conv5": plain(5),
    "conv7": plain(7),
    "dil3": plain(3, dilation=2),
    "dil5": plain(5, dilation=2),
    "conv7x1-1x7": crossed(7),
    "none": zero,
    "skip_connect": identity,
    "max_pool_3x3": max_pool,
    "avg_pool_3x3": average_pool,
    "sep_conv_3x3": separable(3),
    "sep_conv_5x5": separable(5),
    "dil_conv_3x3": dilated(3),
    "dil_conv_5x5": dilated(5),
    "nor_conv_1x1": plain(1),
    "nor_conv_3x3": plain(3),
}
"""Operations of the general space of the Fréchet paper, of DARTS, and of NAS-Bench-201."""


def register(name: str, builder: Builder) -> None:
    """Register an operation under a name for use in cells."""
    require(name not in OPERATIONS, f"there is an operation {name!r} already; choose another name")
    OPERATIONS[name] = builder


def builder(name: str) -> Builder:
    """Builder of the operation with this name.

    >>> builder("conv4")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: there is no operation 'conv4'; did you mean conv7?
    """
    if name not in OPERATIONS:
        near = difflib.get_close_matches(name, OPERATIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else "register it with operations.register"
        raise OptionError(f"there is no operation {name!r}; {hint}")
    return OPERATIONS[name]


def operation(name: str, channels: int, stride: int = 1, affine: bool = True) -> nn.Module:
    """New module of the operation with this name.

    >>> operation("conv7x1-1x7", 4, 2)(torch.ones(2, 4, 7, 7)).shape
    torch.Size([2, 4, 4, 4])
    """
    return builder(name)(channels, stride, affine)
