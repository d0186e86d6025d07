"""Augmentation: functions of a batch of images and a random generator, without state.

An augmentation maps float images `[B, C, H, W]` in [0, 1] to images of the same shape. Each image has its own random
parameters; a few tensor operations process the whole batch. The functions take the parameters of each image `[B]`, the
classes draw them. `str` of an augmentation is the text that `augmentation` reads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.numbers import quoted, real_number, whole_number

Augmentation: TypeAlias = Callable[[Tensor, Generator], Tensor]

MAX_PADDING = 4096  # pixels
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue (ITU-R BT.601)


def luma(images: Tensor) -> Tensor:
    """Grey images `[B, 1, H, W]`: weighted red, green and blue without alpha; the mean of one or two channels.

    >>> round(luma(torch.tensor([1.0, 0.5, 0.0]).view(1, 3, 1, 1)).item(), 4)
    0.5925
    """
    if images.shape[1] < 3:
        return images.mean(1, keepdim=True)
    red, green, blue = (weight * images[:, i : i + 1] for i, weight in enumerate(LUMA))
    return red + green + blue


def rotated(images: Tensor, degrees: Tensor) -> Tensor:
    """Images rotated counter-clockwise about their centre: bilinear, zero outside.

    >>> rotated(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([90.0])).round()
    tensor([[[[2., 4.],
              [1., 3.]]]])
    """
    height, width = images.shape[2:]
    angle = torch.deg2rad(degrees.to(images.dtype))
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # affine_grid uses units of half a side: sides that differ need a correction
    matrix = torch.stack([cos, -sin * (height / width), zero, sin * (width / height), cos, zero], -1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def blended(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """`other + factor (images − other)`, clamped to [0, 1]; a factor of 1 returns the images.

    Brightness is a blend with black, contrast with the mean of the image's luma, saturation with the luma.
    """
    return torch.lerp(other, images, factor.to(images.dtype).view(-1, 1, 1, 1)).clamp_(0, 1)


def hue_shifted(images: Tensor, turns: Tensor) -> Tensor:
    """Colour images `[B, 3, H, W]` with their hue shifted by `turns` of the colour circle; V and S do not change.

    >>> hue_shifted(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.tensor([1 / 3])).flatten().round()
    tensor([0., 1., 0.])
    """
    red, green, blue = images.unbind(1)
    high = images.amax(1)
    chroma = high - images.amin(1)
    unit = torch.where(chroma > 0, chroma, 1)
    from_green, from_blue = 2 + (blue - red) / unit, 4 + (red - green) / unit
    sixths = torch.where(high == red, (green - blue) / unit, torch.where(high == green, from_green, from_blue))
    offset = torch.tensor([5.0, 3.0, 1.0], dtype=images.dtype, device=images.device).view(3, 1, 1)
    angle = (sixths[:, None] + offset + 6 * turns.to(images.dtype).view(-1, 1, 1, 1)) % 6
    return high[:, None] - chroma[:, None] * torch.minimum(angle, 4 - angle).clamp_(0, 1)


@dataclass(frozen=True)
class Crop:
    """Pad the images with zeros, then cut a window of the old size at a random position of each."""

    padding: int = 4

    def __post_init__(self) -> None:
        whole = isinstance(self.padding, int) and 0 <= self.padding <= MAX_PADDING
        require(whole, f"crop padding must be a whole number from 0 to {MAX_PADDING}, got {self.padding}; try crop=4")

    def __call__(self, images: Tensor, rng: Generator) -> Tensor:
        """Cropped images `[B, C, H, W]`."""
        top, left = (_uniform(images, rng, 2) * (2 * self.padding + 1)).long()
        windows = F.pad(images, [self.padding] * 4).unfold(2, images.shape[2], 1).unfold(3, images.shape[3], 1)
        return windows[torch.arange(len(images), device=images.device), :, top, left]

    def __str__(self) -> str:
        return f"crop={self.padding}"


@dataclass(frozen=True)
class Flip:
    """Mirror each image left to right with the given probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.probability <= 1, f"flip probability must lie in [0, 1], got {self.probability}; try flip")

    def __call__(self, images: Tensor, rng: Generator) -> Tensor:
        """Images `[B, C, H, W]`, some mirrored."""
        mirrored = _uniform(images, rng, 1)[0] < self.probability
        return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)

    def __str__(self) -> str:
        return "flip" if self.probability == 0.5 else f"flip={self.probability:.15g}"


@dataclass(frozen=True)
class Rotation:
    """Rotate about the centre by an angle uniform in [−degrees, degrees]; zero outside."""

    degrees: float = 15.0

    def __post_init__(self) -> None:
        require(0 <= self.degrees <= 180, f"rotation must lie in [0, 180], got {self.degrees}; try rotation=15")

    def __call__(self, images: Tensor, rng: Generator) -> Tensor:
        """Rotated images `[B, C, H, W]`."""
        return rotated(images, (2 * _uniform(images, rng, 1)[0] - 1) * self.degrees)

    def __str__(self) -> str:
        return f"rotation={self.degrees:.15g}"


@dataclass(frozen=True)
class ColourJitter:
    """Change brightness, contrast, saturation and hue, in this order, each as torchvision defines it.

    Factors are uniform in [max(0, 1 − b), 1 + b], the shift of hue is uniform in [−hue, hue] turns. Saturation and hue
    change only images of three channels. The text is `jitter=b/c/s/h`, or `jitter=b` for the first three equal.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        strengths = (self.brightness, self.contrast, self.saturation)
        require(all(0 <= s < math.inf for s in strengths), f"jitter must be >= 0, got {strengths}; try jitter=0.4")
        require(0 <= self.hue <= 0.5, f"jitter of hue must lie in [0, 0.5] turns, got {self.hue}; try 0.1")

    def __call__(self, images: Tensor, rng: Generator) -> Tensor:
        """Images `[B, C, H, W]` with changed colours."""
        draws = _uniform(images, rng, 4)
        low, high = (float(bound) for bound in images.aminmax())
        message = f"jitter expects images in [0, 1], got {low:g} to {high:g}; scale them or leave jitter out"
        require(low >= -1e-3 and high <= 1.001, message, DataError)
        if self.brightness:
            images = blended(images, images.new_zeros(()), _factor(draws[0], self.brightness))
        if self.contrast:
            images = blended(images, luma(images).mean((1, 2, 3), keepdim=True), _factor(draws[1], self.contrast))
        if self.saturation and images.shape[1] == 3:
            images = blended(images, luma(images), _factor(draws[2], self.saturation))
        return hue_shifted(images, (2 * draws[3] - 1) * self.hue) if self.hue and images.shape[1] == 3 else images

    def __str__(self) -> str:
        values = (self.brightness, self.contrast, self.saturation, self.hue)
        same = len(set(values[:3])) == 1 and self.hue == 0
        return "jitter=" + "/".join(f"{value:.15g}" for value in (values[:1] if same else values))


@dataclass(frozen=True)
class Cutout:
    """Set a square around a random pixel of each image to zero; near the border the square is cut off."""

    size: int

    def __post_init__(self) -> None:
        whole = isinstance(self.size, int) and self.size >= 1
        require(whole, f"cutout size must be a whole number >= 1, got {self.size}; try cutout=8")

    def __call__(self, images: Tensor, rng: Generator) -> Tensor:
        """Images `[B, C, H, W]` with a square of zeros."""
        inside = []
        for draws, side in zip(_uniform(images, rng, 2), images.shape[2:], strict=True):
            start = (draws[:, None] * side).long() - self.size // 2
            pixel = torch.arange(side, device=images.device)
            inside.append((pixel >= start) & (pixel < start + self.size))
        return images.mul(~(inside[0][:, None, :, None] & inside[1][:, None, None, :]))

    def __str__(self) -> str:
        return f"cutout={self.size}"


@dataclass(frozen=True)
class AugmentationChain:
    """Apply several augmentations in order."""

    steps: tuple[Augmentation, ...]

    def __call__(self, images: Tensor, rng: Generator) -> Tensor:
        """Images `[B, C, H, W]` after all steps."""
        for step in self.steps:
            images = step(images, rng)
        return images

    def __str__(self) -> str:
        return ",".join(str(step) for step in self.steps)


def augmentation(text: str) -> Augmentation | None:
    """The augmentation that a text describes; None for the empty text and for `none`.

    >>> print(augmentation("crop=4, flip, jitter=0.4"))
    crop=4,flip,jitter=0.4
    """
    if text.strip() in ("", "none"):
        return None
    steps = tuple(_step(step.strip()) for step in text.split(","))
    return steps[0] if len(steps) == 1 else AugmentationChain(steps)


_FORMS: dict[str, tuple[Callable[..., Augmentation], str]] = {
    "crop": (Crop, "crop=4"),
    "flip": (Flip, "flip or flip=0.5"),
    "rotation": (Rotation, "rotation=15"),
    "jitter": (lambda b, *rest: ColourJitter(b, *(rest or (b, b))), "jitter=0.4 or jitter=0.4/0.4/0.4/0.1"),
    "cutout": (Cutout, "cutout=8"),
}


def _step(text: str) -> Augmentation:
    name, _, values = text.partition("=")
    if name not in _FORMS:
        raise OptionError(f"unknown augmentation {text!r}; choose from {', '.join(_FORMS)} or none, as in crop=4,flip")
    form, example = _FORMS[name]
    try:
        return form(*(_number(value) for value in values.split("/") if values))
    except (TypeError, ValueError):
        raise OptionError(f"augmentation {text!r} cannot be read; write {example}") from None


def _number(text: str) -> float:
    """A whole number as int, any other as float."""
    whole, real = whole_number(text), real_number(text)
    if real is None:
        raise ValueError(f"{quoted(text)} is not a number")
    return real if whole is None else whole


def _factor(draws: Tensor, strength: float) -> Tensor:
    """Draws in [0, 1) spread over [max(0, 1 − strength), 1 + strength)."""
    return draws * min(2 * strength, 1 + strength) + max(0.0, 1 - strength)


def _uniform(images: Tensor, rng: Generator, count: int) -> Tensor:
    """Draws `[count, B]` in [0, 1) from the generator's device, moved to that of the images."""
    message = f"augmentation expects float images [B, C, H, W], got {images.dtype} {list(images.shape)}; leave it out"
    require(images.dim() == 4 and images.is_floating_point(), message, DataError)
    return torch.rand(count, len(images), generator=rng, device=rng.device).to(images.device)
