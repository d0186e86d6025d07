"""Augmentation sets: several augmentations of each of some examples of two tasks.

The images of a set come from one example, so for an encoder that knows what an image shows they are alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.tasks.augment import Augmentation, augmentation
from nearkin.tasks.examples import Examples
from nearkin.tasks.pixels import rgb
from nearkin.tasks.rows import Joined, Rows, Values
from nearkin.tasks.task import Task

COLOUR = "jitter=0.4"
CROPPED = 8  # the padding of a crop is this fraction of the side, as 4 of 32 pixels


def usual_augmentation(task: Task) -> str:
    """Crop, flip and rotation that suit the size of a task's images, and jitter if their values lie in [0, 1].

    >>> task = Task.from_arrays("noise", torch.rand(10, 1, 8, 8), torch.arange(10) % 2)
    >>> usual_augmentation(task)
    'crop=1,flip,rotation=15,jitter=0.4'
    """
    padding = max(1, min(task.input_shape[1:]) // CROPPED)
    values = task.train.inputs.take(torch.arange(min(64, len(task.train))))
    bounded = values.is_floating_point() and float(values.min()) >= 0 and float(values.max()) <= 1
    return f"crop={padding},flip,rotation=15" + (f",{COLOUR}" if bounded else "")


@dataclass(frozen=True, eq=False)
class SetSource:
    """Images of one task from which augmentation sets are made.

    Attributes:
        examples: examples in their own units; their targets are not used.
        augment: the augmentation, None for copies.
    """

    examples: Examples
    augment: Augmentation | None

    @classmethod
    def of(cls, task: Task, examples: Examples, text: str = "", unlabelled: Rows | None = None) -> "SetSource":
        """Source of some examples of a task.

        Args:
            task: the task.
            examples: its examples.
            text: the augmentation (default: the usual one).
            unlabelled: further inputs of the task, in its own units.
        """
        if unlabelled is not None:
            inputs = Joined(examples.inputs, unlabelled)
            examples = Examples(inputs, Values(torch.zeros(len(inputs))), examples.scaling)
        return cls(examples, augmentation(text or usual_augmentation(task)))

    def draw(self, count: int, num_augmentations: int, rng: Generator) -> Tensor:
        """Augmentation sets of different examples `[count, num_augmentations, C, H, W]`, scaled as the task's inputs.

        With one augmentation these are the examples themselves.
        """
        count = min(count, len(self.examples))
        index = torch.randperm(len(self.examples), generator=rng)[:count]
        augment = self.augment if num_augmentations > 1 else None
        batch = self.examples.take(index.repeat_interleave(num_augmentations), augment, rng)
        sets: Tensor = batch.x.unflatten(0, (count, num_augmentations))
        return sets


def draw_sets(sources: Sequence[SetSource], num_sets: int, num_augmentations: int, rng: Generator) -> list[Tensor]:
    """Sets of which each source gives an equal share; sources of the same size of images give one tensor.

    Returns:
        Tensors `[S, C, c, H, W]`; together they have `num_sets` sets, or as many as there are examples.
    """
    share = num_sets // len(sources)
    drawn = [source.draw(share, num_augmentations, rng) for source in sources]
    same = all(part.shape[1:] == drawn[0].shape[1:] for part in drawn)
    return [torch.cat(drawn)] if same else drawn


def with_common_inputs(tasks: Sequence[Task]) -> list[Task]:
    """The tasks with images of the same number of channels: grey images are repeated if another task has colour.

    Sizes may differ, as encoders are convolutional.
    """
    for task in tasks:
        require(
            len(task.input_shape) == 3,
            f"{task.name!r} has inputs of shape {task.input_shape}; tasks that share an encoder need images "
            f"(channels, height, width); leave it out",
            MismatchError,
        )
    channels = {task.input_shape[0] for task in tasks}
    if len(channels) == 1:
        return list(tasks)
    listed = ", ".join(f"{task.name!r} has {task.input_shape[0]}" for task in tasks)
    require(
        channels == {1, 3},
        f"tasks that share an encoder need the same number of channels, or 1 and 3, of which grey images become "
        f"colour images; {listed}; leave one out, or convert its images",
        MismatchError,
    )
    return [rgb(task) for task in tasks]


def require_examples(task: Task, count: int) -> None:
    """Raise if a task has too few training examples for augmentation sets."""
    require(
        len(task.train) >= 2 * count,
        f"{task.name!r} has {len(task.train)} training samples, expected {2 * count} or more, so that training and "
        f"validation have {count} each; add some, or lower num_sets",
        DataError,
    )
