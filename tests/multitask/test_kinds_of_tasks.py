"""Classification, regression, images as outputs and boxes together in one search; options by name."""

from dataclasses import replace

import pytest
import torch
from torch import Generator

from laws.searcher import contents
from multitask_examples import GRADIENT, SPACE, all_bits, bright, passes
from nearkin.core.budget import Budget
from nearkin.core.errors import OptionError
from nearkin.core.events import finish
from nearkin.core.options import read_options
from nearkin.core.state import State
from nearkin.multitask.encoder_transfer import EncoderTransfer
from nearkin.multitask.interleave import Interleave, InterleaveOptions
from nearkin.multitask.named_options import SEARCH, gradient_fields, gradient_options
from nearkin.search.searcher import run_search
from nearkin.tasks.task import Task

SIZE = 16


def images(seed: int, count: int = 24) -> torch.Tensor:
    return torch.rand(count, 1, SIZE, SIZE, generator=Generator().manual_seed(seed))


def kinds() -> list[Task]:
    """A task of every kind, with images of different sizes."""
    x = images(2)
    boxes = [[[1, 1, 9, 9]], [[4, 2, 12, 14]], []] * 8
    labels = [["small"], ["large"], []] * 8
    return [
        bright("classes", 1, count=24, size=8, classes=3),
        Task.from_arrays("values", x, x.mean((1, 2, 3))),
        Task.from_arrays("dense", x, 1 - x),
        Task.from_boxes("boxes", images(3), boxes, labels),
    ]


OPTIONS = InterleaveOptions(
    gradient=replace(GRADIENT, epochs=2, warmup=0), transfer=EncoderTransfer(num_sets=4, num_augmentations=2, every=1)
)


def test_tasks_of_every_kind_share_one_architecture() -> None:
    tasks = kinds()
    assert [task.likelihood for task in tasks] == ["categorical", "gaussian", "dense", "detection"]
    searcher = Interleave(tasks, SPACE, OPTIONS)
    result = run_search(searcher, Budget())
    assert SPACE.contains(result.best.genotype)
    records = result.details["rounds"]
    assert {record["task"] for record in records} == {task.name for task in tasks}
    assert all(torch.isfinite(torch.tensor([record["loss"], record["metric"]])).all() for record in records)
    scales = result.details["scales"]
    assert len(set(scales)) == 4


def test_every_kind_learns_and_weighs_alike() -> None:
    searcher = Interleave(kinds(), SPACE, OPTIONS)
    fresh, state = passes(searcher, 0), passes(searcher, 1)
    for before, after in zip(all_bits(fresh), all_bits(state), strict=True):
        assert before != after
    factors = searcher._factors(state, [0.0] * 4)
    scaled = [factor * scale for factor, scale in zip(factors, state.scales, strict=True)]
    assert scaled == pytest.approx([sum(state.scales) / 4] * 4)


def test_the_search_resumes_with_every_kind() -> None:
    searcher = Interleave(kinds(), SPACE, OPTIONS)
    state = passes(searcher, 1)
    states = [searcher.restore(State.from_bytes(searcher.capture(state).to_bytes())), state]
    resumed, continued = (contents(searcher.capture(finish(searcher.step(item))).to_bytes()) for item in states)
    assert resumed == continued


def test_options_by_name_reach_the_supernets() -> None:
    values = read_options(
        gradient_fields(), {"epochs": "10", "channels": "4", "entropy": "0", "watched": "3", "order": "2"}, "interleave"
    )
    options = gradient_options(values)
    assert (options.epochs, options.warmup, options.order) == (10, 3, 2)
    assert (options.frame.channels, options.frame.num_cells) == (4, SEARCH.frame.num_cells)
    assert (options.guards.entropy, options.forgetting.watched) == (0.0, 3)
    assert gradient_options({}) == SEARCH
    assert gradient_options({"epochs": 5, "warmup": 4}).warmup == 4


def test_options_by_name_have_one_owner_and_a_description() -> None:
    names = [option.name for option in gradient_fields()]
    assert len(names) == len(set(names))
    assert all(option.summary for option in gradient_fields())
    with pytest.raises(OptionError, match="interleave has no option chanels"):
        read_options(gradient_fields(), {"chanels": "4"}, "interleave")
