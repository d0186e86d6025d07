"""Small tasks, a space and options for tests of searches for several tasks."""

from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from nearkin.core.events import finish
from nearkin.multitask.multitask_search import MultitaskSearch
from nearkin.search.methods.darts.gradient_options import PARTIAL
from nearkin.search.methods.darts.guards import Guards
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.supernet.reference import Frame
from nearkin.tasks.task import Task

SPACE = GeneralSpace((3,), ("zero", "identity", "conv3"))
FRAME = Frame(channels=4, num_cells=2, channel_fraction=0.25)
GRADIENT = replace(PARTIAL, frame=FRAME, epochs=3, warmup=1, batch_size=8, guards=Guards(entropy=0.0))


def bright(name: str, seed: int, *, count: int = 32, size: int = 6, classes: int = 2) -> Task:
    """Images whose class is the row that is bright."""
    y = torch.arange(count) % classes
    x = 0.5 * torch.rand(count, 1, size, size, generator=Generator().manual_seed(seed))
    for number, label in enumerate(y.tolist()):
        x[number, :, label] += 0.5
    return Task.from_arrays(name, x, y, x, y)


ONE, TWO, THREE = bright("one", 1), bright("two", 2, classes=3), bright("three", 3, count=24, size=8)


def passes(searcher: MultitaskSearch, count: int, seed: int = 0) -> Any:
    """State after some passes."""
    state = searcher.init(seed)
    for _ in range(count):
        state = finish(searcher.step(state))
    return state


def bits(values: dict[str, Tensor]) -> dict[str, bytes]:
    """Tensors as bytes."""
    return {name: value.detach().numpy().tobytes() for name, value in values.items()}


def all_bits(state: Any) -> list[dict[str, bytes]]:
    """Architecture, weights and statistics of a state as bytes."""
    return [bits(state.architecture), *(bits(slot.supernet.state_dict()) for slot in state.slots)]


def without_times(facts: Any) -> Any:
    """JSON values without the keys that hold seconds."""
    if isinstance(facts, dict):
        return {key: without_times(value) for key, value in facts.items() if key != "seconds"}
    return [without_times(value) for value in facts] if isinstance(facts, list) else facts
