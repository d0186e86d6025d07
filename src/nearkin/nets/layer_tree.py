"""Networks made of layers of `torch.nn`, as JSON values: describe one, and build it again.

A layer keeps the arguments of its constructor as attributes, so that its class and these attributes describe it. Only
layers of `torch.nn` are described and built: nothing else that a description names is imported. The caller compares the
outputs of the built network with those of the first one.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from nearkin.core.errors import DataError, OptionError, require

MOST_LAYERS = 10_000
LONGEST = 1_000  # of a list or text among the arguments
TIES = "ties"  # key of the tied weights of a network
_PLACED = ("self", "device", "dtype")
_PLAIN = (bool, int, float, str, type(None))


def describe(network: nn.Module) -> dict[str, Any]:
    """The layers of a network as JSON values; an error names a layer that cannot be described.

    >>> describe(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))["layers"][0]
    ['0', {'class': 'Flatten', 'arguments': {'start_dim': 1, 'end_dim': -1}}]
    """
    tree, ties = _described(network, "", {}), _ties(network)
    return {**tree, TIES: ties} if ties else tree


def _described(layer: nn.Module, path: str, seen: dict[int, str]) -> dict[str, Any]:
    if id(layer) in seen:
        return {"same": seen[id(layer)]}
    seen[id(layer)] = path
    kind = type(layer)
    if kind is nn.Sequential:
        layers = [[name, _described(child, f"{path}.{name}".lstrip("."), seen)] for name, child in _children(layer)]
        return {"class": "Sequential", "layers": layers}
    shown = f"{f'its layer {path!r}' if path else 'it'} is {kind.__module__}.{kind.__name__}"
    require(getattr(nn, kind.__name__, None) is kind, f"{shown}, which is no layer of torch.nn")
    arguments = _arguments(layer)
    if arguments is None:
        raise OptionError(f"{shown}, which does not keep the arguments of its constructor")
    return {"class": kind.__name__, "arguments": arguments}


def _ties(network: nn.Module) -> dict[str, str]:
    """Weights that are the weight of an earlier layer, by name; those of one layer that occurs twice are left out."""
    first: dict[int, str] = {}
    names = [
        (name, value)
        for path, layer in network.named_modules()
        for name, value in layer.named_parameters(path, recurse=False, remove_duplicate=False)
    ]
    return {name: first[id(value)] for name, value in names if first.setdefault(id(value), name) != name}


def _children(layer: nn.Module) -> list[tuple[str, nn.Module]]:
    """Layers by name; one that occurs twice is listed twice, unlike in `named_children`."""
    return [(name, child) for name, child in layer._modules.items() if child is not None]


def _arguments(layer: nn.Module) -> dict[str, Any] | None:
    """Arguments of the constructor, read from attributes; None if one is not known."""
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(layer).__init__).parameters.items():
        if name in _PLACED:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            if next(layer.parameters(), None) is not None:  # its arguments are not known by name
                return None
            continue
        value = getattr(layer, name, parameter.default)
        if isinstance(value, Tensor) or (name == "bias" and value is None):
            value = value is not None
        if value is parameter.empty or not _is_plain(value):
            return None
        arguments[name] = list(value) if isinstance(value, tuple) else value
    return arguments


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return len(value) <= LONGEST and all(type(item) in _PLAIN for item in value)
    return type(value) in _PLAIN and not (isinstance(value, str) and len(value) > LONGEST)


def build_layers(tree: Mapping[str, Any]) -> nn.Module:
    """The network of a description, with new weights.

    >>> build_layers(describe(nn.Sequential(nn.Linear(4, 2), nn.ReLU())))
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
      (1): ReLU()
    )
    """
    network = _built(tree, "", {})
    ties = tree.get(TIES, {})
    named = isinstance(ties, Mapping) and all(isinstance(first, str) for first in ties.values())
    require(named, "the tied weights are not described", DataError)
    weights = dict(network.named_parameters(remove_duplicate=False))
    for name, first in ties.items():
        require(
            name in weights and first in weights and weights[name].shape == weights[first].shape,
            f"the weights {str(name)[:80]!r} and {str(first)[:80]!r} cannot be tied",
            DataError,
        )
        path, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(path), attribute, weights[first])
    return network


def _built(tree: Any, path: str, made: dict[str, nn.Module]) -> nn.Module:
    require(isinstance(tree, Mapping) and len(made) < MOST_LAYERS, f"the layer {path!r} is not described", DataError)
    if "same" in tree:
        require(tree["same"] in made, f"the layer {path!r} names no earlier layer ({tree['same']!r})", DataError)
        return made[tree["same"]]
    kind = tree.get("class")
    if kind == "Sequential":
        network = made[path] = nn.Sequential()
        layers = tree.get("layers")
        pairs = isinstance(layers, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in layers)
        require(pairs, f"the layer {path!r} has no list of names and layers", DataError)
        for name, child in layers:
            network.add_module(str(name), _built(child, f"{path}.{name}".lstrip("."), made))
        return network
    factory = getattr(nn, kind, None) if isinstance(kind, str) else None
    known = inspect.isclass(factory) and issubclass(factory, nn.Module) and factory.__module__.startswith("torch.nn.")
    arguments = tree.get("arguments")
    require(
        known and isinstance(arguments, Mapping) and all(map(_is_plain, arguments.values())),
        f"the layer {path!r} is {str(kind)[:80]!r}, expected a layer of torch.nn with plain arguments",
        DataError,
    )
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    try:
        made[path] = factory(**values)  # type: ignore[misc]
    except (TypeError, ValueError, RuntimeError) as wrong:
        raise DataError(f"the layer {path!r} cannot be built ({' '.join(str(wrong).split())[:160]})") from None
    return made[path]
