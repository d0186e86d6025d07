"""The head of an adopted network, from a linear model of its features."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.core.state import copied
from nearkin.nets.heads import with_head
from nearkin.nets.solved import Solved
from nearkin.tasks.network_inputs import NETWORK_INPUTS
from nearkin.tasks.task import Task


def with_linear_head(encoder: Solved, linear: Solved, task: Task) -> Solved:
    """The encoder with the weights of a linear model of its features as its head, as the model of a task."""
    fit = linear.trials[0]
    weight, bias = fit.params["weight"], fit.params["bias"]
    changed = with_head_weights(encoder, weight, bias)
    tensors = copied(dict(changed.named_parameters())), copied(dict(changed.named_buffers()))
    facts = model_facts(encoder, task)
    return Solved(
        task.name, encoder.network, facts, encoder.seed, (replace(fit, params=tensors[0], buffers=tensors[1]),)
    )


def model_facts(encoder: Solved, task: Task) -> dict[str, Any]:
    """Facts of a model that reads the raw inputs of a task as an adopted network does."""
    if NETWORK_INPUTS in encoder.facts:
        return {**task.facts(), NETWORK_INPUTS: encoder.facts[NETWORK_INPUTS]}
    return encoder.inputs(task).facts()


def with_head_weights(encoder: Solved, weight: Tensor, bias: Tensor) -> torch.nn.Module:
    """The network with these weights in its head."""
    model = encoder.model()
    head = str(model.head_path)  # of an adopted network
    changed = with_head(model, len(bias), 0, head)
    layer = changed.get_submodule(head)
    assert isinstance(layer, torch.nn.Linear)
    require(
        layer.bias is not None,
        f"the head of '{encoder.name}' has no bias, a new head needs one; adopt it with head='new'",
        MismatchError,
    )
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return changed.eval()
