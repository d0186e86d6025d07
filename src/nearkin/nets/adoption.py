"""From a trained module to an adopted network: how it is built again, where its head is, and a check of both.

What is stored is data: a network string, layers of `torch.nn` or a configuration, and tensors. Before anything is
stored, the network is built again from that data, and its outputs must equal those of the module.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, NearkinError, require
from nearkin.core.state import copied
from nearkin.core.types import Buffers, Params
from nearkin.nets.adopted import AdoptedNetwork, wrapped
from nearkin.nets.adopted_spec import AdoptedSpec
from nearkin.nets.functional import class_name, differences, evaluation_mode, is_lazy, load, reason_of
from nearkin.nets.heads import head_name, linear_layer
from nearkin.nets.module_source import rebuilding_advice
from nearkin.nets.registry import build
from nearkin.nets.spec import NETWORKS, NetworkSpec
from nearkin.tasks.input_fields import MASK, InputField, are_tokens
from nearkin.tasks.network_inputs import NetworkInputs
from nearkin.tasks.token_rows import STEP, cut, text_lengths

NEW = "new"
"""Name of the head for a network that returns features: a new linear layer follows it."""

ADVICE = "if it returns features, say head='new'"
PROBES = 3  # inputs on which outputs are compared
TOLERANCE = 1e-4  # relative
SOFTMAX, SIGMOID = "softmax", "sigmoid"
FOLLOWING: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda scores: scores,
    "log-softmax": lambda scores: scores.log_softmax(1),
    SOFTMAX: lambda scores: scores.softmax(1),
    SIGMOID: lambda scores: scores.sigmoid(),
}
"""What may follow a head, by name."""


@dataclass(frozen=True, eq=False)
class AdoptedModel:
    """A trained network, as it is stored.

    Attributes:
        network: its network string.
        label: name for people.
        num_outputs: width of its head.
        num_features: number of inputs of its head.
        params: weights by name.
        buffers: running statistics by name.
    """

    network: str
    label: str
    num_outputs: int
    num_features: int
    params: Params
    buffers: Buffers

    @property
    def num_parameters(self) -> int:
        """Number of weights."""
        return sum(value.numel() for value in self.params.values())


def adopt_module(
    module: nn.Module, probe: Tensor, spec: AdoptedSpec, *, head: str | None, num_outputs: int | None, advice: str = ""
) -> AdoptedModel:
    """A trained module as it is stored.

    Args:
        module: with its trained weights.
        probe: a few inputs `[N, *input_shape]`, packed if the module has named inputs.
        spec: what builds it, and its inputs and outputs; the head is found.
        head: name of its last linear layer, or `new` if it returns features (default: found).
        num_outputs: width of a new head (default: 1).
        advice: what to do if it cannot read the inputs.
    """
    require_values(module)
    module = copied_module(module).float().cpu().eval()
    bare = wrapped(module, spec)
    outputs = _outputs(bare, probe, advice)
    if head == NEW:
        require(
            outputs.dim() == 2,
            f"{spec.label} returns {tuple(outputs.shape[1:])} for one input, a new head needs features (D,); say "
            f"how to pool them: pool='mean', 'first' or 'max'",
            MismatchError,
        )
        spec = replace(spec, head="", width=outputs.shape[1])
        width, num_features = num_outputs or 1, spec.width
        whole = wrapped(module, spec, width)
    else:
        path = f"network.{head}" if head else head_name(bare, probe, ADVICE)
        layer, following = _require_head(bare, path, probe)
        path = path.removeprefix("network").removeprefix(".")
        spec = replace(spec, head=path, probabilities=following == SOFTMAX)
        whole, width, num_features = wrapped(module, spec), layer.out_features, layer.in_features
    spec = whole.spec = replace(
        spec, cuts_padding=_needs_no_padding(whole, probe), channels_last=_reads_channels_last(whole, probe)
    )
    network, stored = _stored_form(whole, spec, probe, width)
    return AdoptedModel(network, spec.label, width, num_features, *stored)


def require_shapes(module: nn.Module) -> None:
    """Refuse a module with weights whose shape a first input will define."""
    for name, value in module.named_parameters():
        require(
            not is_lazy(value),
            f"{type(module).__name__}: {name} has no shape yet; call the model once on a batch, then adopt it",
            MismatchError,
        )


def require_values(module: nn.Module) -> None:
    """Refuse a module with weights that have no values, or values that are not finite; buffers may have infinity."""
    require_shapes(module)
    label, weights, buffers = type(module).__name__, dict(module.named_parameters()), dict(module.named_buffers())
    for name, value in (weights | buffers).items():
        require(
            not value.is_meta,
            f"{label}: {name} is on the meta device and has no values; create it on the CPU, and load its weights",
            MismatchError,
        )
        finite = value.isfinite().all() if name in weights else not value.isnan().any()
        require(bool(finite), f"{label}: {name} has values that are not finite; correct the model", DataError)


def copied_module(module: nn.Module) -> nn.Module:
    """A copy of a module; one that python cannot copy, such as one with the older `weight_norm`, is refused."""
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError) as failed:
        raise MismatchError(
            f"{type(module).__name__} cannot be copied ({reason_of(failed)}); {rebuilding_advice(module)}"
        ) from None


def _outputs(network: AdoptedNetwork | nn.Module, probe: Tensor, advice: str = "") -> Tensor:
    """Outputs in evaluation mode; an error of one line if the network cannot read its inputs."""
    try:
        with evaluation_mode(network):
            outputs: Tensor = network(probe)
    except NearkinError:
        raise
    except Exception as failed:
        raise MismatchError(
            f"{class_name(network)} cannot read inputs of shape {tuple(probe.shape[1:])} ({reason_of(failed)})"
            f"{f'; {advice}' if advice else ''}"
        ) from failed
    require(
        bool(outputs.isfinite().all()),
        f"{class_name(network)} gives outputs that are not finite; check its weights and preprocessing",
        MismatchError,
    )
    return outputs


def _results(network: nn.Module, x: Tensor) -> Tensor:
    """Outputs of a network; the inputs of a new head, whose outputs are zero."""
    if not isinstance(network, AdoptedNetwork) or not network.spec.width:
        return _outputs(network, x)
    read: list[Tensor] = []
    with network.head.register_forward_pre_hook(lambda head, inputs: read.append(inputs[0])):
        _outputs(network, x)
    return read[0]


def _require_head(network: AdoptedNetwork, path: str, probe: Tensor) -> tuple[nn.Linear, str]:
    """The head and what follows it; a layer whose scores, or probabilities of them, are not returned is refused."""
    scores: list[Tensor] = []
    label = network.spec.label
    layer = linear_layer(network.network, path.removeprefix("network").removeprefix("."), ADVICE)
    with layer.register_forward_hook(lambda layer, inputs, outputs: scores.append(outputs.clone())):
        outputs = _outputs(network, probe)
    returned = len(scores) == 1 and scores[0].shape == outputs.shape and outputs.dim() == 2
    following = [name for name, f in FOLLOWING.items() if returned and torch.allclose(f(scores[0]), outputs, atol=1e-6)]
    require(
        bool(following),
        f"the layer {path.removeprefix('network.')!r} is not the head of {label}, which returns "
        f"{tuple(outputs.shape[1:])} from other layers; name the last linear layer with head=…, or say head='new' "
        f"if it returns features",
        MismatchError,
    )
    two = " and with two outputs for two classes, of which the first is always 0" if outputs.shape[1] == 1 else ""
    require(
        following[0] != SIGMOID,
        f"{label} ends in a sigmoid, but scores of classes that exclude each other are expected; adopt it without the "
        f"sigmoid{two}",
        MismatchError,
    )
    return layer, following[0]


def _needs_no_padding(network: AdoptedNetwork, probe: Tensor) -> bool:
    """Whether the outputs of texts stay the same without their padding, also those of a text of one token."""
    fields = network.spec.fields
    if not are_tokens(fields):
        return False
    short = probe[text_lengths(probe, fields) <= fields[0].size - STEP]
    if not len(short):
        return False
    first = short[:1].clone().view(len(fields), -1)
    first[[field.name for field in fields].index(MASK), 1:] = 0
    cutting = copy.copy(network)
    cutting.spec = replace(network.spec, cuts_padding=True)
    try:
        return all(
            _difference(_results(cutting, cut(x, fields)), _results(network, x)) <= TOLERANCE
            for x in (*short.split(1), first.view(1, -1))
        )
    except MismatchError:  # it reads texts of one length only
        return False


def _reads_channels_last(network: AdoptedNetwork, probe: Tensor) -> bool:
    """Whether the outputs of images stay the same if the channels are last in memory."""
    if probe.dim() != 4 or not probe.is_floating_point():
        return False
    try:
        results = _results(network, probe.contiguous(memory_format=torch.channels_last))
    except MismatchError:  # its code asks for channels first
        return False
    return _difference(results, _results(network, probe)) <= TOLERANCE


def _difference(outputs: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    return float((outputs - expected).abs().max()) / (1 + float(expected.abs().max()))


def _stored_form(
    network: AdoptedNetwork, spec: AdoptedSpec, probe: Tensor, num_outputs: int
) -> tuple[str, tuple[Params, Buffers]]:
    """The network string and tensors; built again from them, the network gives the same outputs."""
    shape, expected = tuple(probe.shape[1:]), _results(network, probe)
    own = spec.is_plain and NetworkSpec.parse(spec.network).name in NETWORKS
    source: nn.Module = network.network if own else network
    text = spec.network if own else spec.network_string
    params, buffers = copied(dict(source.named_parameters())), copied(dict(source.named_buffers()))
    again = build(text, shape, num_outputs, seed=0)
    inside = again.network if isinstance(again, AdoptedNetwork) else again
    advice = rebuilding_advice(network.network, inside)
    wrong = differences({**params, **buffers}, {**dict(again.named_parameters()), **dict(again.named_buffers())})
    require(not wrong, f"{spec.label}, built again from its class, has other weights: {wrong}; {advice}", MismatchError)
    load(again, params, buffers)
    error = _difference(_results(again, probe), expected)
    require(
        error <= TOLERANCE,
        f"{spec.label}, built again from its class, gives other outputs (by {error:.1e}); {advice}",
        MismatchError,
    )
    return text, (params, buffers)


def probe_inputs(inputs: NetworkInputs | None, shape: Sequence[int], fields: Sequence[InputField] = ()) -> Tensor:
    """A few random inputs: standard normal, tokens of texts, or zeros and ones for named inputs of whole numbers.

    Args:
        inputs: of the network, if they are known.
        shape: of its inputs.
        fields: its named inputs.
    """
    if inputs is not None and inputs.tokenizer is not None:
        return inputs.tokenizer.probe(PROBES)
    rng = torch.Generator().manual_seed(0)
    if fields and all(item.dtype == "int64" for item in fields):
        return torch.randint(0, 2, (PROBES, *shape), generator=rng)
    return torch.randn(PROBES, *shape, generator=rng)


def token_fields(module: nn.Module, shape: Sequence[int]) -> tuple[InputField, ...]:
    """Tokens as a named input, for a module that reads whole numbers only; empty for other modules.

    Args:
        module: with its trained weights; the name is that of its first argument.
        shape: of its inputs.
    """
    embeds = len(shape) == 1 and any(isinstance(layer, nn.Embedding) for layer in module.modules())
    if not embeds or any(map(is_lazy, module.parameters())):
        return ()
    name = next((name for name in inspect.signature(module.forward).parameters), "")
    for dtype in (torch.float32, torch.int64):
        with suppress(Exception), evaluation_mode(module):
            module(torch.zeros(PROBES, *shape, dtype=dtype))
            return (InputField(name, tuple(shape)),) if dtype == torch.int64 else ()
    return ()
