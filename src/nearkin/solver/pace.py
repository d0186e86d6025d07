"""How large a network and how long a training fit into some seconds, measured on the very data."""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from nearkin.core.errors import TrainingError, require
from nearkin.nets.functional import multiply_adds
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.tasks.batches import num_batches
from nearkin.tasks.task import Task

FEWEST_STEPS = 30  # fewer teach a network nothing
PATIENCE = 3.0  # times its allowance that a network may take for these
LONGEST = 2.0  # times the usual number of steps, where time allows it
TIMED = 2
BACKWARD = 3  # a training step costs about three passes


@dataclass(frozen=True)
class Pace:
    """A network that fits, and how it is trained."""

    network: str
    recipe: Recipe

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"network": self.network, "recipe": self.recipe.to_dict()}


def step_seconds(model: nn.Module, task: Task, batch_size: int) -> float:
    """Seconds of one training step, the better of two after one to warm up; the model is left as it is."""
    x, y = task.train.first(batch_size)
    twin, best = copy.deepcopy(model).train(), float("inf")
    for number in range(TIMED + 1):
        begun = time.perf_counter()
        loss = task.form.loss(twin(x), y)
        torch.autograd.grad(loss, [p for p in twin.parameters() if p.requires_grad], allow_unused=True)
        if number:
            best = min(best, time.perf_counter() - begun)
    return best


def paced(
    networks: Sequence[str],
    task: Task,
    recipe: Recipe,
    seconds: float | None,
    usual: int = 0,
    fewest: int = FEWEST_STEPS,
) -> Pace:
    """The largest of some networks, smallest first, that can take all steps of a recipe in that time.

    Where even the smallest cannot, it takes as many as it can; where there is time left, up to twice as many. Without
    a limit of time it is the one at `usual`, with the recipe as it is.

    Args:
        networks: network strings, smallest first.
        task: what is learned.
        recipe: how, without regard to time.
        seconds: of training.
        usual: place of the network for runs without a limit.
        fewest: steps that it takes in any case; where even these would take several times as long, it is refused.
    """
    if seconds is None:
        return Pace(networks[min(usual, len(networks) - 1)], recipe)
    wanted = recipe.total_steps(num_batches(len(task.train), recipe.batch_size))
    chosen: Pace | None = None
    rate = 0.0  # multiply-adds a second, of the network before
    for network in networks:
        model = build(network, task.input_shape, task.num_outputs, seed=0)
        work = BACKWARD * multiply_adds(model, task.input_shape) * min(recipe.batch_size, len(task.train))
        if chosen is not None and rate > 0 and wanted * work / rate > 2 * seconds:
            break  # surely too large: not even tried
        step = step_seconds(model, task, recipe.batch_size)
        rate = work / step
        room = int(seconds / step)
        if chosen is not None and room < wanted:
            break
        require(
            fewest * step <= PATIENCE * seconds,
            f"even its smallest form takes {step:.2g} s a step, so {seconds:.1f} s are too few; give a larger budget",
            TrainingError,
        )
        chosen = Pace(network, replace(recipe, steps=max(fewest, min(room, round(LONGEST * wanted)))))
    assert chosen is not None
    return chosen
