"""Derived tasks with changed images: another size, grey, three channels, inverted.

Images in memory are changed at once, in blocks, and bytes stay bytes. Images in files, and images that take more than
1 GiB after the change, are changed when they are read.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.opening import require_bytes
from nearkin.tasks.augment import luma
from nearkin.tasks.boxes import scaled_boxes
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Chosen, Joined, Mapped, Pixels, Rows, Values, blocks
from nearkin.tasks.task import Task

BLOCK = 1024  # images changed at a time, fewer if they are large
BLOCK_BYTES = 64 * 2**20
MOST_CONVERTED = 2**30  # bytes of images that are converted at once; more are converted when they are read
RANGE_SAMPLES = 1024  # evenly spaced images of a file, to tell [0, 1] from other ranges


def resized(task: Task, size: tuple[int, int]) -> Task:
    """The task with images, and dense targets, resized to `size` (H, W): bilinear, with antialiasing; boxes are scaled.

    >>> task = Task.from_arrays("noise", torch.rand(10, 3, 8, 8), torch.arange(10) % 2)
    >>> resized(task, (4, 6)).input_shape
    (3, 4, 6)
    """
    require_images(task)
    height, width = size
    require(height >= 1 and width >= 1, f"an image has at least one pixel, got size {height} x {width}; try 14 x 14")
    _require_memory(task, (task.input_shape[0], height, width), targets=task.likelihood == "dense")
    change = partial(_interpolated, size=(height, width))
    if task.likelihood == "detection":
        _, old_height, old_width = task.input_shape
        return _changed(task, change, partial(scaled_boxes, height=height / old_height, width=width / old_width))
    return _changed(task, change, partial(converted, function=change) if task.likelihood == "dense" else None)


def grey(task: Task) -> Task:
    """The task with images of one channel, their luma; grey images do not change.

    >>> task = Task.from_arrays("noise", torch.rand(10, 3, 8, 8), torch.arange(10) % 2)
    >>> grey(task).input_shape
    (1, 8, 8)
    """
    require_images(task)
    return task if task.input_shape[0] == 1 else _changed(task, luma)


def coloured(task: Task) -> Task:
    """The task with grey images repeated to red, green and blue; other images do not change.

    >>> task = Task.from_arrays("noise", torch.rand(10, 1, 8, 8), torch.arange(10) % 2)
    >>> coloured(task).input_shape
    (3, 8, 8)
    """
    require_images(task)
    if task.input_shape[0] != 1:
        return task
    _require_memory(task, (3, *task.input_shape[1:]))
    return _changed(task, _repeated)


def rgb(task: Task) -> Task:
    """The task with images of three channels; grey images are repeated to red, green and blue.

    >>> task = Task.from_arrays("noise", torch.rand(10, 1, 8, 8), torch.arange(10) % 2)
    >>> rgb(task).input_shape
    (3, 8, 8)
    """
    require_images(task)
    channels = task.input_shape[0]
    if channels not in (1, 3):
        raise DataError(f"{task.name}: rgb takes images of 1 or 3 channels, got {channels}; leave it out")
    return coloured(task)


def inverted(task: Task) -> Task:
    """The task with inverted brightness: `low + high − x`, which is `1 − x` for images in [0, 1].

    >>> images = torch.full((10, 1, 2, 2), 0.25)
    >>> inverted(Task.from_arrays("dim", images, torch.arange(10) % 2)).train.inputs.take(torch.tensor([0])).unique()
    tensor([0.7500])
    """
    require_images(task)
    low, high = value_range(task.train.inputs)
    return _changed(task, partial(_mirrored, total=low + high))


def require_images(task: Task) -> None:
    """Refuse a task whose inputs are not images."""
    if len(task.input_shape) != 3:
        raise DataError(
            f"{task.name}: this needs images (C, H, W), but its inputs have shape {task.input_shape}; use an image task"
        )


def value_range(rows: Rows) -> tuple[float, float]:
    """Lowest and highest value of images: (0, 1) if all values are inside, else the observed values.

    All rows in memory are read, of other rows a sample.

    >>> value_range(Values(torch.tensor([[-2.0, 3.0]]))), value_range(Values(torch.tensor([[0.1, 0.2]])))
    ((-2.0, 3.0), (0.0, 1.0))
    """
    dtype = _kept_dtype(rows)
    if dtype == torch.uint8:
        return 0.0, 1.0
    count = len(rows) if dtype is not None else min(len(rows), RANGE_SAMPLES)
    index = torch.arange(count) * len(rows) // count
    bounds = [torch.stack(rows.take(block).aminmax()) for block in index.split(BLOCK)]
    low, high = float(torch.stack(bounds)[:, 0].min()), float(torch.stack(bounds)[:, 1].max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def as_read(rows: Rows, function: Callable[[Tensor], Tensor]) -> Rows:
    """Rows of images with a function applied when they are read; it must be defined in a module, for pickling."""
    return Mapped(rows, partial(_each, function))


def converted(rows: Rows, function: Callable[[Tensor], Tensor]) -> Rows:
    """Apply a function `[B, C, H, W]` → `[B, C', H', W']` to rows of images: at once in memory, else when read.

    >>> converted(Pixels(torch.tensor([[[[0, 100]]]], dtype=torch.uint8)), lambda x: x / 3).tensor
    tensor([[[[ 0, 33]]]], dtype=torch.uint8)
    """
    lazy = as_read(rows, function)
    dtype = _kept_dtype(rows)
    if dtype is None or len(rows) * math.prod(lazy.shape) * dtype.itemsize > MOST_CONVERTED:
        return lazy
    out = torch.empty((len(rows), *lazy.shape), dtype=dtype)
    count = max(1, min(BLOCK, BLOCK_BYTES // (4 * max(math.prod(lazy.shape), math.prod(rows.shape)))))
    for block, images in zip(out.split(count), blocks(rows, count), strict=True):
        value = function(images)
        block.copy_(value.mul(255).round_().clamp_(0, 255) if dtype == torch.uint8 else value)
    return Pixels(out) if dtype == torch.uint8 else Values(out)


def _changed(task: Task, function: Callable[[Tensor], Tensor], targets: Callable[[Rows], Rows] | None = None) -> Task:
    def changed(examples: Examples) -> Examples:
        inputs = converted(examples.inputs, function)
        if targets is None:
            return replace(examples, inputs=inputs)
        same = examples.targets is examples.inputs
        return replace(examples, inputs=inputs, targets=inputs if same else targets(examples.targets))

    train, test = changed(task.train), changed(task.test)
    return replace(task, train=train, test=test, input_shape=train.inputs.shape).rescaled()


def _require_memory(task: Task, shape: tuple[int, ...], targets: bool = False) -> None:
    """Refuse images of `shape` that exceed the limit: all of them if they are in memory, else a single one."""
    both = [task.train.inputs, task.test.inputs, *((task.train.targets, task.test.targets) if targets else ())]
    size = math.prod(shape)
    total = 4 * size
    total += sum(len(rows) * size * dtype.itemsize for rows in both if (dtype := _kept_dtype(rows)) is not None)
    require_bytes(total, f"{task.name} as images of {' x '.join(map(str, shape))} (channels, height, width)")


def _kept_dtype(rows: Rows) -> torch.dtype | None:
    """The type of images in memory, uint8 or a float; None for rows that are computed or read on demand."""
    match rows:
        case Pixels():
            return torch.uint8
        case Values():
            return rows.tensor.dtype if rows.tensor.is_floating_point() else None
        case Chosen():
            return _kept_dtype(rows.rows)
        case Joined():
            first, second = _kept_dtype(rows.first), _kept_dtype(rows.second)
            return first if first == second else None
        case _:
            return None


def _each(function: Callable[[Tensor], Tensor], images: Tensor, index: Tensor) -> Tensor:
    return function(images)


def _interpolated(images: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=True)


def _repeated(images: Tensor) -> Tensor:
    return images.expand(-1, 3, -1, -1)


def _mirrored(images: Tensor, total: float) -> Tensor:
    return total - images


def fitted_to(task: Task, input_shape: tuple[int, ...]) -> Task:
    """The task with inputs of that shape: images are resized and converted to one or three channels.

    >>> images = Task.from_arrays("noise", torch.rand(10, 3, 8, 8), torch.arange(10) % 2)
    >>> fitted_to(images, (1, 14, 14)).input_shape
    (1, 14, 14)
    """
    if task.input_shape == input_shape:
        return task
    if len(task.input_shape) != 3 or len(input_shape) != 3:
        raise MismatchError(
            f"{task.name} has inputs of shape {task.input_shape}, the network expects {input_shape}; only images can "
            f"be converted to another shape"
        )
    channels, height, width = input_shape
    if (task.input_shape[1], task.input_shape[2]) != (height, width):
        task = resized(task, (height, width))
    task = grey(task) if channels == 1 else coloured(task) if channels == 3 else task
    if task.input_shape != input_shape:
        raise MismatchError(
            f"{task.name} has {task.input_shape[0]} channels, the network expects {channels}; only one and three "
            f"channels can be converted into each other"
        )
    return task
