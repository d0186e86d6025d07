"""Choose the size of a network and its number of steps for a time limit, by timing training steps."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from nearkin.core.clock import now
from nearkin.core.errors import TrainingError, require
from nearkin.nets.cnn import CNN
from nearkin.nets.forward_passes import fast_inputs
from nearkin.nets.functional import multiply_adds
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.solver.allocation import CONTINUED, ENOUGH_EPOCHS, ENOUGH_PRETRAINED, LEAST_STEPS
from nearkin.solver.encoder_head import HEAD_SAMPLES
from nearkin.tasks.batches import num_batches
from nearkin.tasks.task import Task

FEWEST_STEPS = 30  # fewer steps train nothing
FEWEST_PRETRAINED = 15  # fewer steps change nothing; they have to fit into the time
PATIENCE = 3.0  # factor by which a network may exceed its time for these steps
LONGEST = 2.0  # factor on the usual number of steps, when time allows
TIMED = 2  # timed steps, after one to warm up
SCORED = 1.2  # passes over the test set, and over the validation set
VIEWS = 5  # of an image whose shifts are averaged
BACKWARD = 3  # a training step costs about three forward passes


@dataclass(frozen=True)
class SizedNetwork:
    """A network of chosen size, its recipe, and how many such networks are trained and averaged."""

    network: str
    recipe: Recipe
    members: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `members` is left out if it is 1."""
        facts = {"network": self.network, "recipe": self.recipe.to_dict()}
        return facts if self.members == 1 else {**facts, "members": self.members}


def step_seconds(model: nn.Module, task: Task, batch_size: int) -> float:
    """Seconds of one training step: the minimum of two timings. The model is not changed."""
    x, y = task.train.first(batch_size)
    copied, best = copy.deepcopy(model).train(), float("inf")
    for number in range(TIMED + 1):
        begun = now()
        loss = task.form.loss(copied(fast_inputs(copied, x)), y)
        torch.autograd.grad(loss, [p for p in copied.parameters() if p.requires_grad], allow_unused=True)
        if number:
            best = min(best, now() - begun)
    return best


def size_network(
    networks: Sequence[str],
    task: Task,
    recipe: Recipe,
    seconds: float | None,
    usual: int = 0,
    fewest: int = FEWEST_STEPS,
) -> SizedNetwork:
    """Choose the largest network that can run all steps of a recipe within the time.

    If none can, the smallest runs as many steps as fit; if time is left, up to twice the steps. Without a time limit
    the network with index `usual` is chosen, with the recipe unchanged.

    Args:
        networks: network strings, smallest first.
        task: the training task.
        recipe: recipe without a time limit.
        seconds: time limit of the training.
        usual: index of the network without a time limit.
        fewest: minimum number of steps; an error if these take more than three times the limit.
    """
    if seconds is None:
        return SizedNetwork(networks[min(usual, len(networks) - 1)], recipe)
    wanted = recipe.total_steps(num_batches(len(task.train), recipe.batch_size))
    chosen: SizedNetwork | None = None
    rate = 0.0  # multiply-adds per second of the previous network
    for network in networks:
        model = build(network, task.input_shape, task.num_outputs, seed=0)
        work = BACKWARD * multiply_adds(model, task.input_shape) * min(recipe.batch_size, len(task.train))
        if chosen is not None and rate > 0 and wanted * work / rate > 2 * seconds:
            break  # certainly too large: not timed
        step = step_seconds(model, task, recipe.batch_size)
        rate = work / step
        possible = int(seconds / step)
        if chosen is not None and possible < wanted:
            break
        require(
            fewest * step <= PATIENCE * seconds,
            f"the smallest form needs {step:.2g} s per step, more than {seconds:.1f} s allow; increase the budget",
            TrainingError,
        )
        chosen = SizedNetwork(network, replace(recipe, steps=max(fewest, min(possible, round(LONGEST * wanted)))))
    assert chosen is not None
    return chosen


def with_time_limit(
    network: str, recipe: Recipe, task: Task, seconds: float, test_samples: int, most_scoring: float, most: int = 1,
    pretrained: bool = False,
) -> SizedNetwork:  # fmt: skip
    """A network whose recipe ends with the time, for a first and a final training and the scores on a test set.

    Shifted views are averaged at test time only if scoring then takes at most `most_scoring` seconds. One network does
    not use time beyond `ENOUGH_EPOCHS`; up to `most` networks are trained instead. A pretrained one needs fewer epochs,
    and a pass over training samples, to whose features its head is fitted.
    """
    model = build(network, task.input_shape, task.num_outputs, seed=0)
    step = step_seconds(model, task, recipe.batch_size)
    one = step / BACKWARD / min(recipe.batch_size, len(task.train))  # seconds of a forward pass for one sample
    scoring = SCORED * test_samples * one
    if isinstance(model, CNN) and VIEWS * scoring <= most_scoring:
        network, scoring = f"{network}{'&' if '?' in network else '?'}shifts=true", VIEWS * scoring
    epochs = ENOUGH_PRETRAINED if pretrained else ENOUGH_EPOCHS
    enough = step * max(epochs * num_batches(len(task.train), recipe.batch_size), LEAST_STEPS)
    fitting = one * min(HEAD_SAMPLES, len(task.train)) if pretrained else 0.0
    usable = seconds - (scoring + fitting) / (1 + CONTINUED)
    members = max(1, min(most, int(usable // enough)))
    limit = min(usable / members, enough)
    if not pretrained:
        limit = max(FEWEST_STEPS * step, limit)
    elif limit < FEWEST_PRETRAINED * step:
        raise TrainingError(
            f"{FEWEST_PRETRAINED} steps of {step:.2g} s each do not fit into {limit:.1f} s; increase the budget"
        )
    return SizedNetwork(network, replace(recipe, seconds=limit, epochs=2 * epochs, steps=None), members)
