"""What builds a trained module again, as data: layers of `torch.nn`, a configuration, or its class with its arguments.

Modules that nothing builds again are refused; the error says what to do.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nearkin.core.errors import OptionError, require
from nearkin.nets.adopted_spec import AdoptedSpec
from nearkin.nets.layer_tree import describe
from nearkin.nets.registry import path_of
from nearkin.nets.spec import NETWORKS, NetworkSpec, text_of, value_of

SHOWN = 60  # characters of an argument


def unwrapped(model: Any) -> Any:
    """The module inside DataParallel, DistributedDataParallel and `torch.compile`; any other value is returned.

    >>> unwrapped(nn.DataParallel(nn.ReLU()))
    ReLU()
    """
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = model.module if parallel else getattr(model, "_orig_mod", None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def described(module: nn.Module) -> AdoptedSpec:
    """What builds a module: layers of `torch.nn`, a configuration of transformers, or its class and attributes."""
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise OptionError(
            f"{module.original_name} is a scripted module, whose code is not kept; {_as_code(module.original_name)}"
        )
    if kind.__module__.startswith("torch.nn."):
        try:
            return AdoptedSpec(label=kind.__name__, layers=describe(module))
        except OptionError as reason:
            raise OptionError(f"{kind.__name__} cannot be built again: {reason}; {rebuilding_advice(module)}") from None
    config: Any = getattr(module, "config", None)
    if kind.__module__.startswith("transformers.models.") and config is not None:
        settings: dict[str, Any] = {**config.to_diff_dict(), "architectures": [kind.__name__]}
        return AdoptedSpec(label=kind.__name__, config=settings)
    return AdoptedSpec(label=kind.__name__, network=_class_string(module))


def rebuilding_advice(module: nn.Module, again: nn.Module | None = None) -> str:
    """What to do if a module cannot be built again: remove what was added to its layers, or give code that builds it.

    Args:
        module: of the user.
        again: the module as it was built again, whose own parametrizations and hooks need not be removed.

    >>> rebuilding_advice(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    "remove the parametrization first: torch.nn.utils.parametrize.remove_parametrizations(model, 'weight')"
    """
    layers_again = {} if again is None else dict(again.named_modules())
    for path, layer in module.named_modules():
        name, other = f"model.get_submodule({path!r})" if path else "model", layers_again.get(path, nn.Identity())
        if parametrize.is_parametrized(layer) and not parametrize.is_parametrized(other):
            weight = next(iter(layer.parametrizations))
            call = f"torch.nn.utils.parametrize.remove_parametrizations({name}, '{weight}')"
            return f"remove the parametrization first: {call}"
        hooks = _hooks(layer)
        if len(hooks) > len(_hooks(other)):
            norm = next((norm for norm in map(_norm, hooks) if norm), "")
            if norm:
                return f"call torch.nn.utils.remove_{norm}({name}), or use torch.nn.utils.parametrizations.{norm}"
            return f"remove the hooks of {name} first"
    kind = type(module)
    return _as_code("factory" if kind.__module__.startswith("torch.") else kind.__name__)


def _hooks(layer: nn.Module) -> list[Any]:
    return [*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()]


def _norm(hook: object) -> str:
    """Name of the normalisation of weights that a hook computes; empty for other hooks."""
    return {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm"}.get(type(hook).__name__, "")


def _as_code(name: str) -> str:
    """Advice to name a class or function that builds a module."""
    return (
        f"give the code that builds it as a network string with all options, and the weights: "
        f"zoo.adopt(name, 'package.module:{name}?…', weights=model)"
    )


def _class_string(module: nn.Module) -> str:
    """The network string of a module of a user's class, with options from attributes of the same names."""
    kind = type(module)
    try:
        path = path_of(kind)
    except OptionError as hidden:
        raise OptionError(f"{kind.__name__} cannot be built again ({hidden})") from None
    options = []
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
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
                f"again; {_as_code(kind.__name__)}"
            )
        if _equal(value, parameter.default):
            continue
        require(
            _is_written(value),
            f"{kind.__name__}: the argument {name} is {' '.join(str(value).split())[:SHOWN]}, expected a number or "
            f"text; {_as_code(kind.__name__)}",
        )
        options.append((name, value))
    return str(NetworkSpec(path, tuple(options)).anchored())


def _is_written(value: Any) -> bool:
    """Whether a network string can hold a value."""
    try:
        return _equal(value_of(text_of(value)), value)
    except (TypeError, ValueError, AttributeError):
        return False


def _equal(value: Any, other: Any) -> bool:
    """Whether two values are equal; arrays never are."""
    try:
        return value is other or bool(value == other)
    except (TypeError, ValueError, RuntimeError):  # arrays give one answer for each number
        return False
