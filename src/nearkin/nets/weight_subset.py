"""Subsets of a network's weights that fine-tuning or closed-form transfer may change.

| name | weights |
| --- | --- |
| `all` | all |
| `head` | the last linear layer; a weight it shares with another layer changes in both |
| `norm` | normalisation layers and the head |
| `lora?r=4&alpha=4` | adapters of rank r beside linear layers and convolutions, and the head; see `nearkin.nets.lora` |
| `adapters` | parameters of the network itself with "adapter" or "lora" in their name |
| others | names of parameters or layers, or a regular expression for whole names |

Names in an adopted network are those in the adopted module: `encoder.0` also selects `network.encoder.0`.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.nets.adopted import AdoptedNetwork
from nearkin.nets.heads import head_name
from nearkin.nets.lora import Lora, LoraLayer, with_lora

Weights: TypeAlias = str | Collection[str]
"""The name of a subset, or several names, whose union is meant; see the table of `nearkin.nets.weight_subset`."""

KINDS = ("all", "head", "norm", "lora", "adapters")
ADAPTERS = ("adapter", "lora")
INNER = "network."  # before the names of the module in an adopted network
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True, eq=False)
class FreeWeights:
    """A network and the names of those of its weights that may change.

    Attributes:
        model: the given network; for LoRA a copy with adapters.
        names: in the order of `model.named_parameters()`.
    """

    model: nn.Module
    names: tuple[str, ...]

    @contextmanager
    def trainable(self) -> Iterator[None]:
        """Let only these weights require gradients within a `with` block; afterwards all are as before."""
        before = [(value, value.requires_grad) for value in self.model.parameters()]
        try:
            for name, value in self.model.named_parameters():
                value.requires_grad_(name in self.names)
            yield
        finally:
            for value, required in before:
                value.requires_grad_(required)

    def frozen_norms(self) -> tuple[nn.Module, ...]:
        """Normalisation layers that keep their running statistics in training: those of which no weight changes.

        If all weights of the network change there are none, not even layers without weights.
        """
        whole = len(self.names) == sum(value.is_floating_point() for value in self.model.parameters())
        chosen = {id(value) for name, value in self.model.named_parameters() if name in self.names}
        norms = [module for module in self.model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
        moving = [norm for norm in norms if any(id(value) in chosen for value in norm.parameters())]
        return tuple(norm for norm in norms if not whole and norm.running_mean is not None and norm not in moving)


def checked_weights(weights: Weights) -> tuple[str, ...]:
    """The names of a subset as a tuple; an error of one line if they cannot be read for any network.

    >>> checked_weights("lora?r=4")
    ('lora?r=4',)
    """
    kinds = ", ".join(KINDS)
    require(isinstance(weights, Collection), f"the weights are {weights!r}, expected one of {kinds}, or names")
    wanted = (weights,) if isinstance(weights, str) else tuple(weights)
    require(bool(wanted), f"got no names of weights, expected some; name weights, or give one of {kinds}")
    for name in wanted:
        require(isinstance(name, str), f"weights are named by text, got {name!r}; give one of {kinds}, or names")
    adapters = [Lora.parse(name) for name in wanted if _is_lora(name)]
    require(len(adapters) <= 1, f"got LoRA {len(adapters)} times, expected it once; give one rank")
    return wanted


def free_weights(model: nn.Module, weights: Weights = "all", x: Tensor | None = None, seed: int = 0) -> FreeWeights:
    """The weights of a network that may change; LoRA adds adapters to a copy of it.

    Args:
        model: the network; it is not changed.
        weights: see `Weights`.
        x: some inputs, with which the head is determined exactly; without them it is the last registered linear layer.
        seed: of the adapters.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> free_weights(net, "lora?r=1").names
    ('0.down.weight', '0.up.weight', '2.weight', '2.bias')
    """
    wanted = checked_weights(weights)
    adapters = [Lora.parse(name) for name in wanted if _is_lora(name)]
    if not adapters:
        return FreeWeights(model, chosen_names(model, wanted, x))
    head = _head(model, x)
    adapted = with_lora(model, adapters[0], skip=[] if head is None else [head], seed=seed)
    return FreeWeights(adapted, chosen_names(adapted, wanted, x))


def chosen_names(model: nn.Module, weights: Weights = "all", x: Tensor | None = None) -> tuple[str, ...]:
    """Names of the chosen weights, in the order of `model.named_parameters()`.

    Args:
        model: the network; `lora` selects the adapters it already has, and the head.
        weights: see `Weights`; the name of a layer selects all its weights.
        x: some inputs, with which the head is determined exactly; without them it is the last registered linear layer.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    >>> chosen_names(net, "head"), chosen_names(net, "1"), chosen_names(net, r".*bias")
    (('2.weight', '2.bias'), ('1.weight', '1.bias'), ('0.bias', '1.bias', '2.bias'))
    >>> chosen_names(net, "norm")
    ('1.weight', '1.bias', '2.weight', '2.bias')
    >>> chosen_names(net, "haed")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: Sequential has no weights 'haed'; did you mean head?
    """
    wanted = checked_weights(weights)
    known = [name for name, value in model.named_parameters() if value.is_floating_point()]
    require(bool(known), f"{type(model).__name__} has no weights to linearize; give a network with weights")
    chosen = set().union(*(_matching(model, known, pattern, x) for pattern in wanted))
    return tuple(name for name in known if name in chosen)


def layer_of(name: str) -> str:
    """The layer of a weight; a weight of the network itself counts as a layer.

    >>> layer_of("body.0.weight"), layer_of("scale")
    ('body.0', 'scale')
    """
    return name.rpartition(".")[0] or name


def layers_of(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Names of weights by layer.

    >>> layers_of(["0.weight", "0.bias", "2.weight"])
    {'0': ('0.weight', '0.bias'), '2': ('2.weight',)}
    """
    layers: dict[str, tuple[str, ...]] = {}
    for name in names:
        layers[layer_of(name)] = (*layers.get(layer_of(name), ()), name)
    return layers


def _is_lora(pattern: str) -> bool:
    return pattern == "lora" or pattern.startswith("lora?")


def _matching(model: nn.Module, known: list[str], pattern: str, x: Tensor | None) -> set[str]:
    """The weights that one kind, name or regular expression selects."""
    network, prefix = (model.spec.label, INNER) if isinstance(model, AdoptedNetwork) else (type(model).__name__, "")
    layers = [name.removeprefix(prefix) for name in layers_of(known)]
    some = ", ".join(layers[:6]) + (f" and {len(layers) - 6} more" if len(layers) > 6 else "")
    if pattern in KINDS or _is_lora(pattern):
        chosen = _of_kind(model, known, pattern.partition("?")[0], x)
        require(bool(chosen), f"{network} has no weights of the kind {pattern!r}; its layers are {some}")
        return chosen
    names = [(name, text) for name in known for text in {name, name.removeprefix(prefix)}]
    chosen = {name for name, text in names if text == pattern or text.startswith(f"{pattern}.")}
    if not chosen:
        with suppress(re.error):
            chosen = {name for name, text in names if re.fullmatch(pattern, text)}
    if not chosen:
        weights = [name.removeprefix(prefix) for name in known]
        near = difflib.get_close_matches(pattern, [*KINDS, *layers, *weights], n=2, cutoff=0.7)
        hint = f"did you mean {' or '.join(near)}?" if near else f"give one of {', '.join(KINDS)}, or its layers {some}"
        raise OptionError(f"{network} has no weights {pattern!r}; {hint}")
    return chosen


def _of_kind(model: nn.Module, known: list[str], kind: str, x: Tensor | None) -> set[str]:
    """The weights of one kind; none if the network has no such layers."""
    if kind == "all":
        return set(known)
    if kind == "adapters":
        return {name for name in known if any(word in name.lower() for word in ADAPTERS)}
    layers: list[nn.Module] = []
    if kind == "norm":
        layers = [module for module in model.modules() if isinstance(module, NORMS)]
    elif kind == "lora":
        adapted = [module for module in model.modules() if isinstance(module, LoraLayer)]
        layers = [part for module in adapted for part in (module.down, module.up)]
    if kind != "head" and not layers:
        return set()
    head = _head(model, x, needed=kind == "head")
    if head is not None:
        layers.append(model.get_submodule(head))
    chosen = {id(value) for layer in layers for value in layer.parameters(recurse=False)}
    return {name for name, value in model.named_parameters() if id(value) in chosen and name in known}


def _head(model: nn.Module, x: Tensor | None, needed: bool = False) -> str | None:
    """Name of the head; None if there is none, which is an error if it is needed and inputs are given."""
    if x is not None:
        try:
            return head_name(model, x[:1])
        except MismatchError:
            if needed:
                raise
            return None
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None
