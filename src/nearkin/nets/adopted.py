"""Adopted networks: any trained module with its named inputs, its outputs and its head, as a network of one tensor.

All of nearkin works with networks that take one tensor and return one tensor. A module that takes several named inputs,
such as tokens and their mask, is wrapped: the inputs of a sample are packed into one row, and unpacked before the
module is called.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.nets.adopted_spec import AdoptedSpec
from nearkin.nets.functional import initialise
from nearkin.nets.heads import with_head
from nearkin.nets.layer_tree import build_layers
from nearkin.nets.library_models import transformers_model
from nearkin.nets.registry import create_network
from nearkin.tasks.input_fields import MASK
from nearkin.tasks.named_inputs import unpack_inputs
from nearkin.tasks.token_rows import cut_fields

HEAD = "head"


class AdoptedNetwork(nn.Module):
    """A module as a network that takes one tensor and returns one tensor.

    Args:
        network: the module.
        spec: its inputs and outputs.
        num_outputs: width of a new head, if the specification asks for one.
    """

    def __init__(self, network: nn.Module, spec: AdoptedSpec, num_outputs: int) -> None:
        super().__init__()
        self.network, self.spec = network, spec
        self.head = nn.Linear(spec.width, num_outputs) if spec.width else nn.Identity()

    @property
    def adopted_label(self) -> str:
        """Name of the module for people."""
        return self.spec.label

    @property
    def head_path(self) -> str:
        """Name of the last linear layer."""
        return HEAD if self.spec.width else f"network.{self.spec.head}" if self.spec.head else "network"

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of inputs `[N, ...]`, packed if the module has named inputs; texts may be cut."""
        fields = self.spec.fields
        if self.spec.cuts_padding:
            fields = tuple(cut_fields(fields, x.shape[1]))
        inputs = unpack_inputs(x, fields) if fields else {}
        if self.spec.reversed_channels:
            x = x.flip(1)
        outputs = select_output(self.network(**inputs) if fields else self.network(x), self.spec.output)
        if self.spec.pool:
            outputs = pooled(outputs, self.spec.pool, inputs.get(MASK))
        scores: Tensor = self.head(outputs)
        if self.spec.probabilities:
            return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()
        return scores


def select_output(outputs: Any, name: str) -> Tensor:
    """The output that a name or a position selects; the outputs themselves if the name is empty.

    >>> select_output({"logits": torch.ones(1)}, "logits"), select_output((torch.zeros(1), 5), "0")
    (tensor([1.]), tensor([0.]))
    """
    chosen = outputs
    if name:
        try:
            chosen = outputs[int(name)] if name.isdecimal() else outputs[name]
        except (KeyError, IndexError, TypeError):
            chosen = getattr(outputs, name, None)
    if isinstance(chosen, Tensor):
        return chosen
    if isinstance(outputs, Mapping):
        names = ", ".join(f"'{key}'" for key, value in outputs.items() if isinstance(value, Tensor))
    elif isinstance(outputs, tuple | list):
        names = ", ".join(f"'{i}'" for i, value in enumerate(outputs) if isinstance(value, Tensor))
    else:
        names = ""
    got = f"no output {name!r}" if name else f"a {type(outputs).__name__}"
    raise MismatchError(
        f"the network returns {got}, expected one tensor; "
        + (f"say which with output=…, one of {names}" if names else "wrap it in a module that returns one")
    )


def pooled(outputs: Tensor, pool: str, mask: Tensor | None = None) -> Tensor:
    """Outputs of a sequence `[N, L, D]` as those of a sample `[N, D]`; with a mask `[N, L]`, of its positions only.

    Outputs `[N, D, H, W]` of images are pooled over their positions.

    >>> pooled(torch.tensor([[[1.0], [3.0], [9.0]]]), "mean", torch.tensor([[1, 1, 0]]))
    tensor([[2.]])
    """
    if outputs.dim() > 3 or mask is None:
        outputs = outputs.flatten(2).transpose(1, 2) if outputs.dim() > 3 else outputs
        mask = outputs.new_ones(outputs.shape[:2])
    require(
        outputs.dim() == 3,
        f"outputs of shape {tuple(outputs.shape[1:])} cannot be pooled, expected a sequence (L, D); leave pool out",
        MismatchError,
    )
    kept = mask[:, :, None].to(outputs.dtype)
    if pool == "first":
        return outputs[:, 0]
    if pool == "max":
        return outputs.masked_fill(kept == 0, -torch.inf).amax(1)
    return (outputs * kept).sum(1) / kept.sum(1).clamp_min(1)


def inner_network(spec: AdoptedSpec) -> nn.Module:
    """The module of a specification, with new weights; code that it names must be trusted."""
    if spec.network:
        return create_network(spec.network)
    if spec.layers is not None:
        return build_layers(spec.layers)
    assert spec.config is not None
    return transformers_model(spec.config)


def adopted(*, spec: str, input_shape: Sequence[int], num_outputs: int) -> AdoptedNetwork:
    """A new network of a specification with this number of outputs, into which stored tensors are loaded."""
    known = AdoptedSpec.parse(spec)
    network = AdoptedNetwork(inner_network(known).float(), known, num_outputs)
    initialise(network, input_shape)
    if known.width:
        return network
    head = dict(network.named_modules()).get(network.head_path)
    if isinstance(head, nn.Linear) and head.out_features == num_outputs:
        return network
    changed = with_head(network, num_outputs, 0, network.head_path)
    assert isinstance(changed, AdoptedNetwork)
    return changed


def wrapped(network: nn.Module, spec: AdoptedSpec, num_outputs: int = 1) -> AdoptedNetwork:
    """A copy of a trained module as an adopted network; a new head starts at zero."""
    result = AdoptedNetwork(copy.deepcopy(network), spec, num_outputs)
    if isinstance(result.head, nn.Linear):
        with torch.no_grad():
            result.head.weight.zero_()
            result.head.bias.zero_()
    return result.eval()
