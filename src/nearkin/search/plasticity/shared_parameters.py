"""The parameters that several models share, by name."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.types import Params

Shared: TypeAlias = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Tensor] | nn.Module
SEPARATOR = "|"  # of names in the names of stored tensors


def named_parameters(shared: Shared) -> Params:
    """Parameters by name, each once; parameters without names are numbered.

    >>> layer = nn.Linear(2, 1)
    >>> list(named_parameters(layer)), list(named_parameters(layer.parameters()))
    (['weight', 'bias'], ['0', '1'])
    """
    if isinstance(shared, nn.Module):
        shared = shared.named_parameters()
    entries: list[Any] = list(shared.items() if isinstance(shared, Mapping) else shared)
    pairs = [(str(number), e) if isinstance(e, Tensor) else tuple(e) for number, e in enumerate(entries)]
    named: Params = {}
    for name, value in pairs:
        require(
            isinstance(value, Tensor) and value.is_floating_point(),
            f"shared parameter {name!r} is a {getattr(value, 'dtype', type(value).__name__)}, expected floating-point "
            f"parameters by name, as in model.named_parameters()",
        )
        require(SEPARATOR not in name, f"the name {name!r} contains {SEPARATOR!r}; rename this shared parameter")
        require(name not in named, f"two shared parameters have the name {name!r}; give each its own")
        if not any(value is other for other in named.values()):
            named[name] = value
    require(bool(named), "there are no shared parameters; give model.named_parameters() or a mapping of some of them")
    return named


def names_in(model: nn.Module, shared: Mapping[str, Tensor]) -> dict[str, str]:
    """Shared name by the model's own name, for the shared parameters that the model holds.

    >>> layer = nn.Linear(2, 1)
    >>> names_in(nn.Sequential(layer), {"first": layer.weight})
    {'0.weight': 'first'}
    """
    known = {id(value): name for name, value in shared.items()}
    names = {name: known[id(value)] for name, value in model.named_parameters() if id(value) in known}
    require(
        bool(names),
        f"{type(model).__name__} holds none of the {len(shared)} shared parameters (the same objects, not copies); "
        f"build it from the shared layers, or call rebind(model) if it holds copies of them",
        MismatchError,
    )
    return names


def matching(shared: Mapping[str, Tensor], others: Shared) -> Params:
    """Parameters of another model by the shared names; an error names what is missing or has another shape."""
    found = named_parameters(others)
    missing = [name for name in shared if name not in found]
    require(
        not missing,
        f"the second model has no parameter {', '.join(missing[:3])}, expected all {len(shared)} shared ones; share "
        f"fewer parameters, or pass a mapping from shared names to its parameters",
        MismatchError,
    )
    for name, value in shared.items():
        require(
            found[name].shape == value.shape,
            f"{name} has shape {tuple(found[name].shape)} in the second model, expected {tuple(value.shape)}; share "
            f"parameters of the same shape only",
            MismatchError,
        )
    return {name: found[name] for name in shared}
