"""The head of an adopted network, from a linear model of its features."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.state import copied
from nearkin.distance.baselines.linear_head import fitted_head
from nearkin.nets.forward_passes import in_passes
from nearkin.nets.functional import evaluation_mode
from nearkin.nets.heads import features, head_name, linear_layer, with_head
from nearkin.nets.solved import Solved
from nearkin.tasks.network_inputs import NETWORK_INPUTS
from nearkin.tasks.task import Task

HEAD_SAMPLES = 2000  # to which a head is fitted before fine-tuning


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


def with_fitted_head(model: nn.Module, task: Task, seed: int) -> nn.Module:
    """A copy of a network with a new head that is fitted to its features of the training samples, 2,000 at most.

    Fine-tuning from such a head keeps the features (Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features and
    Underperform Out-of-Distribution").
    """
    x, y = task.train.fixed_subset(HEAD_SAMPLES)
    head = head_name(model, x[:1])
    with evaluation_mode(model):
        known = in_passes(model, x, partial(features, model, head=head))
    classes = len(task.classes) if task.likelihood == "categorical" else None
    fitted = fitted_head(known, y, task.form, num_classes=classes, seed=seed)
    changed = with_head(model, task.num_outputs, 0, head)
    layer = linear_layer(changed, head)
    with torch.no_grad():
        layer.weight.copy_(fitted.weight)
        if layer.bias is not None:
            layer.bias.copy_(fitted.bias)
    return changed


def model_facts(encoder: Solved, task: Task) -> dict[str, Any]:
    """Facts of a model that reads the raw inputs of a task as an adopted network does."""
    if NETWORK_INPUTS in encoder.facts:
        return {**task.facts(), NETWORK_INPUTS: encoder.facts[NETWORK_INPUTS]}
    return encoder.inputs(task).facts()


def with_head_weights(encoder: Solved, weight: Tensor, bias: Tensor) -> nn.Module:
    """The network with these weights in its head."""
    model = encoder.model()
    head = str(model.head_path)  # of an adopted network
    changed = with_head(model, len(bias), 0, head)
    layer = changed.get_submodule(head)
    assert isinstance(layer, nn.Linear)
    require(
        layer.bias is not None,
        f"the head of '{encoder.name}' has no bias, a new head needs one; adopt it with head='new'",
        MismatchError,
    )
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return changed.eval()
