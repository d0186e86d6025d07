"""From a trained module to an adopted network: how it is built again, where its head is, and a check of both.

What is stored is data: a network string, layers of `torch.nn` or a configuration, and tensors. Before anything is
stored, the network is built again from that data, and its outputs must equal those of the module.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, NearkinError, OptionError, require
from nearkin.core.state import copied
from nearkin.core.types import Buffers, Params
from nearkin.nets.adopted import AdoptedNetwork, adopted, wrapped
from nearkin.nets.adopted_spec import AdoptedSpec
from nearkin.nets.functional import evaluation_mode, load
from nearkin.nets.heads import head_name, linear_layer
from nearkin.nets.layer_tree import describe
from nearkin.nets.registry import build, path_of
from nearkin.nets.spec import NETWORKS, NetworkSpec, text_of, value_of
from nearkin.nets.weight_files import HALF
from nearkin.tasks.input_fields import InputField
from nearkin.tasks.network_inputs import NetworkInputs

NEW = "new"
"""Name of the head for a network that returns features: a new linear layer follows it."""

ADVICE = "if it returns features, say head='new'"
PROBES = 3  # inputs on which outputs are compared
TOLERANCE = 1e-4  # relative
FOLLOWING: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda scores: scores,
    lambda scores: scores.log_softmax(1),
    lambda scores: scores.softmax(1),
    lambda scores: scores.sigmoid(),
)
"""What may follow a head."""


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
    module: nn.Module, probe: Tensor, spec: AdoptedSpec, *, head: str | None, num_outputs: int | None
) -> AdoptedModel:
    """A trained module as it is stored.

    Args:
        module: with its trained weights.
        probe: a few inputs `[N, *input_shape]`, packed if the module has named inputs.
        spec: what builds it, and its inputs and outputs; the head is found.
        head: name of its last linear layer, or `new` if it returns features (default: found).
        num_outputs: width of a new head (default: 1).
    """
    module = _single_precision(module)
    bare = wrapped(module, spec)
    outputs = _outputs(bare, probe)
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
        path = f"network.{head}" if head else head_name(bare, probe)
        layer = _require_head(bare, path, probe)
        spec = replace(spec, head=path.removeprefix("network").removeprefix("."))
        whole, width, num_features = wrapped(module, spec), layer.out_features, layer.in_features
    network, stored = _stored_form(whole, spec, probe, width)
    return AdoptedModel(network, spec.label, width, num_features, *stored)


def _single_precision(module: nn.Module) -> nn.Module:
    half = any(value.dtype in HALF for value in (*module.parameters(), *module.buffers()))
    copy_of = copy.deepcopy(module)
    return (copy_of.float() if half else copy_of).cpu().eval()


def described(module: nn.Module) -> AdoptedSpec:
    """What builds a module: layers of `torch.nn`, a configuration of transformers, or its class and attributes."""
    kind = type(module)
    tree = describe(module)
    if tree is not None:
        return AdoptedSpec(label=kind.__name__, layers=tree)
    config: Any = getattr(module, "config", None)
    if kind.__module__.startswith("transformers.models.") and config is not None:
        settings: dict[str, Any] = {**config.to_diff_dict(), "architectures": [kind.__name__]}
        return AdoptedSpec(label=kind.__name__, config=settings)
    return AdoptedSpec(label=kind.__name__, network=_class_string(module))


def _class_string(module: nn.Module) -> str:
    """The network string of a module of a user's class, with options from attributes of the same names."""
    kind = type(module)
    advice = f"give its code as a network string: zoo.adopt(name, 'package.module:{kind.__name__}?…', weights=model)"
    try:
        path = path_of(kind)
    except OptionError as hidden:
        raise OptionError(f"{kind.__name__} cannot be built again ({hidden})") from None
    options = []
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(module, name, parameter.default)
        if isinstance(value, list):
            value = tuple(value)
        if value is parameter.empty or isinstance(value, Tensor | nn.Module):
            value = parameter.default
        if value is parameter.empty and path in NETWORKS and name in ("input_shape", "num_outputs"):
            continue
        if value is parameter.empty:
            raise OptionError(
                f"{kind.__name__} does not keep the argument {name!r} of its constructor, so that it cannot be built "
                f"again; {advice}"
            )
        if value == parameter.default:
            continue
        try:
            same = value_of(text_of(value)) == value
        except (TypeError, ValueError, AttributeError):
            same = False
        require(same, f"{kind.__name__}: the argument {name} is {str(value)[:60]}, expected a number or text; {advice}")
        options.append((name, value))
    return str(NetworkSpec(path, tuple(options)).anchored())


def _outputs(network: nn.Module, probe: Tensor) -> Tensor:
    """Outputs in evaluation mode; an error of one line if the network cannot read its inputs."""
    try:
        with evaluation_mode(network):
            outputs: Tensor = network(probe)
    except NearkinError:
        raise
    except Exception as failed:
        reason = " ".join(str(failed).split())[:160]
        label = network.spec.label if isinstance(network, AdoptedNetwork) else type(network).__name__
        raise MismatchError(
            f"{label} cannot read inputs of shape {tuple(probe.shape[1:])} ({reason}); give its preprocessing, such as "
            f"size=224 or, for texts, length=64, or the task it was trained on"
        ) from failed
    require(
        bool(outputs.isfinite().all()),
        "the network gives outputs that are not finite; check its weights and preprocessing",
        MismatchError,
    )
    return outputs


def _require_head(network: AdoptedNetwork, path: str, probe: Tensor) -> nn.Linear:
    """The head; a layer whose outputs, or probabilities of them, the network does not return is refused."""
    scores: list[Tensor] = []
    layer = linear_layer(network.network, path.removeprefix("network").removeprefix("."), ADVICE)
    with layer.register_forward_hook(lambda layer, inputs, outputs: scores.append(outputs)):
        outputs = _outputs(network, probe)
    returned = len(scores) == 1 and scores[0].shape == outputs.shape and outputs.dim() == 2
    require(
        returned and any(torch.allclose(follow(scores[0]), outputs, atol=1e-6) for follow in FOLLOWING),
        f"the layer {path.removeprefix('network.')!r} is not the head of {network.spec.label}, which returns "
        f"{tuple(outputs.shape[1:])} from other layers; name the last linear layer with head=…, or say head='new' "
        f"if it returns features",
        MismatchError,
    )
    return layer


def _stored_form(
    network: AdoptedNetwork, spec: AdoptedSpec, probe: Tensor, num_outputs: int
) -> tuple[str, tuple[Params, Buffers]]:
    """The network string and tensors; built again from them, the network gives the same outputs."""
    shape, expected = tuple(probe.shape[1:]), _outputs(network, probe)
    own = spec.is_plain and NetworkSpec.parse(spec.network).name in NETWORKS
    source: nn.Module = network.network if own else network
    text = spec.network if own else spec.network_string
    params, buffers = copied(dict(source.named_parameters())), copied(dict(source.named_buffers()))
    again = build(text, shape, num_outputs, seed=0) if own else adopted(
        spec=spec.to_text(), input_shape=shape, num_outputs=num_outputs
    )  # fmt: skip
    try:
        load(again, params, buffers)
    except MismatchError as wrong:
        raise MismatchError(
            f"{spec.label}, built again from its class, has other weights ({wrong}); give its code as a network "
            f"string with all options: zoo.adopt(name, 'package.module:{spec.label}?…', weights=model)"
        ) from None
    outputs = _outputs(again, probe)
    error = float((outputs - expected).abs().max()) / (1 + float(expected.abs().max()))
    require(
        error <= TOLERANCE,
        f"{spec.label}, built again from its class, gives other outputs (by {error:.1e}); give its code as a network "
        f"string with all options: zoo.adopt(name, 'package.module:{spec.label}?…', weights=model)",
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
