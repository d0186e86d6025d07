"""Augmentation sets: half of each task, different examples, in the units of the networks, the same for a seed."""

import pytest
import torch
from torch import Generator

from multitask_examples import bright
from nearkin.core.errors import DataError, MismatchError
from nearkin.multitask.augmentation_sets import (
    SetSource,
    draw_sets,
    require_examples,
    usual_augmentation,
    with_common_inputs,
)
from nearkin.tasks.task import Task


def rng(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def numbered(name: str, start: int, *, count: int = 12, size: int = 6) -> Task:
    """Images of one grey value each, so that an image names its example."""
    x = (start + torch.arange(count).float()).view(-1, 1, 1, 1).expand(-1, 1, size, size).clone()
    return Task.from_arrays(name, x, torch.arange(count) % 2, x, torch.arange(count) % 2, standardise=False)


LOW, HIGH, LARGE = numbered("low", 0), numbered("high", 100), numbered("large", 200, size=8)


def source(task: Task, text: str = "flip") -> SetSource:
    return SetSource.of(task, task.train, text)


def test_half_of_the_sets_come_from_each_task() -> None:
    (sets,) = draw_sets([source(LOW), source(HIGH)], 8, 3, rng())
    assert sets.shape == (8, 3, 1, 6, 6)
    values = sets.flatten(1)
    assert torch.equal(values.amin(1), values.amax(1)), "the images of a set come from one example"
    assert [bool(value < 100) for value in values[:, 0]] == [True] * 4 + [False] * 4
    assert len(set(values[:, 0].tolist())) == 8, "sets come from different examples"


def test_images_of_a_set_are_different_augmentations_of_one_example() -> None:
    task = bright("bright", 1)
    (sets,) = draw_sets([source(task, "crop=2,rotation=30")] * 2, 4, 5, rng())
    assert all(len({image.numpy().tobytes() for image in images}) == 5 for images in sets)
    (copies,) = draw_sets([source(task)] * 2, 4, 1, rng())
    known = {image.numpy().tobytes() for image in task.train.all().x}
    assert all(images[0].numpy().tobytes() in known for images in copies), "one augmentation is the example itself"


def test_inputs_are_scaled_as_those_of_training() -> None:
    task = bright("bright", 1)
    raw = task.train.inputs.take(torch.arange(len(task.train)))
    mean, std = raw.mean(), raw.std(correction=0)
    assert abs(float(mean)) > 0.1, "else scaling would change nothing"
    (sets,) = draw_sets([source(task, "flip")] * 2, 2 * len(task.train), 1, rng())
    values = sets[: len(task.train)]
    assert abs(float(values.mean())) < 1e-5
    torch.testing.assert_close(
        values.flatten().sort()[0], ((raw - mean) / std).flatten().sort()[0], rtol=1e-4, atol=1e-4
    )


def test_images_of_different_sizes_are_not_joined() -> None:
    small, large = draw_sets([source(LOW), source(LARGE)], 6, 2, rng())
    assert (small.shape, large.shape) == ((3, 2, 1, 6, 6), (3, 2, 1, 8, 8))


def test_there_are_no_more_sets_than_examples() -> None:
    (sets,) = draw_sets([source(numbered("few", 0, count=4)), source(HIGH)], 20, 2, rng())
    assert len(sets) == 4 + 10


def test_a_seed_gives_the_same_sets_and_another_one_others() -> None:
    first, again, other = (draw_sets([source(LOW), source(HIGH)], 8, 3, rng(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("size", "shift", "text"), [
    (8, 0.0, "crop=1,flip,rotation=15,jitter=0.4"),
    (32, 0.0, "crop=4,flip,rotation=15,jitter=0.4"),
    (16, 2.0, "crop=2,flip,rotation=15"),
])  # fmt: skip
def test_the_usual_augmentation_suits_size_and_values(size: int, shift: float, text: str) -> None:
    x = torch.rand(8, 1, size, size, generator=rng()) + shift
    assert usual_augmentation(Task.from_arrays("some", x, torch.arange(8) % 2)) == text


def test_grey_images_become_colour_images_beside_colour_images() -> None:
    x = torch.rand(8, 3, 6, 6, generator=rng())
    colour = Task.from_arrays("colour", x, torch.arange(8) % 2)
    first, second = with_common_inputs([LOW, colour])
    assert first.input_shape == second.input_shape == (3, 6, 6)
    image = first.train.inputs.take(torch.tensor([0]))[0]
    assert torch.equal(image[0], image[1])
    assert torch.equal(image[0], image[2])
    assert with_common_inputs([LOW, LARGE]) == [LOW, LARGE]


def test_tasks_without_common_inputs_are_refused() -> None:
    two = Task.from_arrays("two", torch.rand(8, 2, 6, 6), torch.arange(8) % 2)
    with pytest.raises(MismatchError, match="'low' has 1, 'two' has 2; leave one out"):
        with_common_inputs([LOW, two])
    table = Task.from_arrays("table", torch.rand(8, 5), torch.arange(8) % 2)
    with pytest.raises(MismatchError, match=r"'table' has inputs of shape \(5,\); tasks that share an encoder need"):
        with_common_inputs([LOW, table])
    require_examples(LOW, len(LOW.train) // 2)
    with pytest.raises(DataError, match="expected 14 or more, so that training and validation have 7 each"):
        require_examples(LOW, 7)
