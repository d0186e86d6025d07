"""Augmentation: functions of a batch of images and a generator, no state, no modules.

An augmentation maps float images `[B, C, H, W]` in [0, 1] to images of the same shape. Each sample draws its own
parameters, all in a handful of tensor operations for the whole batch.
"""

from collections.abc import Callable
from typing import TypeAlias

from torch import Generator, Tensor

Augmentation: TypeAlias = Callable[[Tensor, Generator], Tensor]

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, the weights of red, green and blue in grey
