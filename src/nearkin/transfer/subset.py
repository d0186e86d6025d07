"""Selection of the weights that are free to move: all, the head, norms, adapters, or named ones."""

import difflib
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TypeAlias

from torch import Tensor, nn

from nearkin.core.errors import OptionError, require
from nearkin.nets.heads import head_name

Weights: TypeAlias = str | Collection[str]
"""`all`, `head`, `norm`, `adapters`, names of parameters or layers, or a regular expression for whole names."""

KINDS = ("all", "head", "norm", "adapters")
ADAPTERS = ("adapter", "lora")
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def chosen_names(model: nn.Module, weights: Weights = "all", x: Tensor | None = None) -> tuple[str, ...]:
    """Names of the chosen weights, in the order of `model.named_parameters()`.

    Args:
        model: the network.
        weights: see `Weights`; the name of a layer selects all its weights.
        x: some inputs, with which the head is determined exactly; without them it is the last registered linear layer.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    >>> chosen_names(net, "head"), chosen_names(net, "norm"), chosen_names(net, r".*bias")
    (('2.weight', '2.bias'), ('1.weight', '1.bias'), ('0.bias', '1.bias', '2.bias'))
    >>> chosen_names(net, "haed")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: Sequential has no weights 'haed'; did you mean head?
    """
    known = [name for name, value in model.named_parameters() if value.is_floating_point()]
    require(bool(known), f"{type(model).__name__} has no weights to linearize; give a network with weights")
    wanted = [weights] if isinstance(weights, str) else list(weights)
    require(bool(wanted), f"got no names of weights, expected some; name weights, or give one of {', '.join(KINDS)}")
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


def _matching(model: nn.Module, known: list[str], pattern: str, x: Tensor | None) -> set[str]:
    """The weights that one kind, name or regular expression selects."""
    require(
        isinstance(pattern, str),
        f"weights are named by text, got {pattern!r}; give one of {', '.join(KINDS)}, or names",
    )
    network, layers = type(model).__name__, layers_of(known)
    some = ", ".join(list(layers)[:6]) + (f" and {len(layers) - 6} more" if len(layers) > 6 else "")
    if pattern in KINDS:
        chosen = _of_kind(model, known, pattern, x)
        require(bool(chosen), f"{network} has no weights of the kind {pattern!r}; its layers are {some}")
        return chosen
    chosen = {name for name in known if name == pattern or name.startswith(f"{pattern}.")}
    if not chosen:
        with suppress(re.error):
            chosen = {name for name in known if re.fullmatch(pattern, name)}
    if not chosen:
        near = difflib.get_close_matches(pattern, [*KINDS, *layers, *known], n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"its layers are {some}"
        raise OptionError(f"{network} has no weights {pattern!r}; {hint}")
    return chosen


def _of_kind(model: nn.Module, known: list[str], kind: str, x: Tensor | None) -> set[str]:
    if kind == "all":
        return set(known)
    if kind == "adapters":
        return {name for name in known if any(word in name.lower() for word in ADAPTERS)}
    if kind == "norm":
        layers = {name for name, module in model.named_modules() if isinstance(module, NORMS)}
        return {name for name in known if name.rpartition(".")[0] in layers}
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if x is None and not linear:
        return set()
    head = linear[-1] if x is None else head_name(model, x[:1])
    return {name for name in known if name.rpartition(".")[0] == head}
