"""Which weights of a network are free to move: all, its head, norms, adapters, or those that are named."""

import difflib
import re
from collections.abc import Collection, Iterable
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
        weights: see `Weights`; a name of a layer stands for all weights below it.
        x: some inputs, by which the head is found for sure; without them it is the linear layer registered last.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    >>> chosen_names(net, "head"), chosen_names(net, "norm"), chosen_names(net, r".*bias")
    (('2.weight', '2.bias'), ('1.weight', '1.bias'), ('0.bias', '1.bias', '2.bias'))
    >>> chosen_names(net, "haed")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: Sequential has no weights 'haed'; did you mean head?
    """
    known = [name for name, value in model.named_parameters() if value.is_floating_point()]
    require(bool(known), f"{type(model).__name__} has no weights; there is nothing to linearize in")
    wanted = [weights] if isinstance(weights, str) else list(weights)
    require(bool(wanted), f"no weights are named; name some, or give one of {', '.join(KINDS)}")
    found = set().union(*(_matching(model, known, one, x) for one in wanted))
    return tuple(name for name in known if name in found)


def layer_of(name: str) -> str:
    """The layer that a weight belongs to; a weight of the network itself is a layer of its own.

    >>> layer_of("body.0.weight"), layer_of("scale")
    ('body.0', 'scale')
    """
    return name.rpartition(".")[0] or name


def layers_of(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Weights by their layers.

    >>> layers_of(["0.weight", "0.bias", "2.weight"])
    {'0': ('0.weight', '0.bias'), '2': ('2.weight',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        found[layer_of(name)] = (*found.get(layer_of(name), ()), name)
    return found


def _matching(model: nn.Module, known: list[str], one: str, x: Tensor | None) -> set[str]:
    """The weights that one word stands for."""
    require(isinstance(one, str), f"weights are named by text, got {one!r}; give one of {', '.join(KINDS)}, or names")
    if one in KINDS:
        found = _of_kind(model, known, one, x)
        require(
            bool(found),
            f"{type(model).__name__} has no weights of the kind {one!r}; its layers are {_some(layers_of(known))}",
        )
        return found
    found = {name for name in known if name == one or name.startswith(f"{one}.")} or _by_pattern(known, one)
    if not found:
        near = difflib.get_close_matches(one, [*KINDS, *layers_of(known), *known], n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"its layers are {_some(layers_of(known))}"
        raise OptionError(f"{type(model).__name__} has no weights {one!r}; {hint}")
    return found


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


def _by_pattern(known: list[str], pattern: str) -> set[str]:
    """Names that a regular expression covers whole; none if it is not one."""
    try:
        return {name for name in known if re.fullmatch(pattern, name)}
    except re.error:
        return set()


def _some(names: Collection[str]) -> str:
    first = list(names)[:6]
    return ", ".join(first) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
