"""Registry of search spaces: `NAME[?option=value&option=value]`, like network strings.

| name | options |
| --- | --- |
| `general`, `full` | `nodes=3-4`, `operations=conv3+max3` |
| `darts` | `nodes=4`, `predecessors=2`, `inputs=2`, `reduction=true`, `operations=…` |
| `enas` | `nodes=4`, `reduction=true` |
| `nasbench201`, `transnas101` | |
| `mobile` | `stages=2-4-4-4-4-1`, `kernels=3-5-7`, `expansions=3-6`, `skip_first=false` |
| `recurrent` | `nodes=8`, `activations=tanh+relu`, `loose_ends=false` |
"""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import TypeAlias

from nearkin.core.errors import OptionError, require
from nearkin.nets.spec import Value, value_of
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DARTS_OPERATIONS, ENAS_OPERATIONS, DartsSpace
from nearkin.search.spaces.general import GENERAL_OPERATIONS, GeneralSpace
from nearkin.search.spaces.mobile import MOBILE_STAGES, MobileSpace
from nearkin.search.spaces.nasbench201 import nasbench201, transnas101
from nearkin.search.spaces.recurrent_space import ACTIVATIONS, RecurrentSpace

Factory: TypeAlias = Callable[..., Space]
"""Function that makes a space from keyword options with defaults."""

Sizes: TypeAlias = int | tuple[int, ...]


def space(text: str) -> Space:
    """Space of a string.

    >>> space("general?nodes=3").size(), space("full").size()
    (1000, 1001000)
    >>> space("dart")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: unknown space 'dart'; did you mean darts? There are darts, enas, full, general, \
mobile, nasbench201, recurrent, transnas101
    >>> space("general?node=3")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: the space general has no option 'node'; did you mean nodes?
    """
    name, _, rest = text.strip().partition("?")
    if name not in SPACES:
        hint = f"{_hint(name, SPACES)} There are" if _hint(name, SPACES) else "choose one of"
        raise OptionError(f"unknown space {name!r}; {hint} {', '.join(sorted(SPACES))}")
    factory = SPACES[name]
    known = list(inspect.signature(factory).parameters)
    options: dict[str, Value] = {}
    for item in filter(None, rest.split("&")):
        option, equals, value = item.partition("=")
        require(bool(option and equals), f"{text}: options are written name=value, got {item!r}")
        require(option not in options, f"{text}: option {option} is given twice; give it once")
        if option not in known:
            hint = _hint(option, known) or f"it has {', '.join(known) or 'none'}"
            raise OptionError(f"the space {name} has no option {option!r}; {hint}")
        options[option] = value_of(value)
    try:
        return factory(**options)
    except (TypeError, ValueError) as broken:
        raise OptionError(f"the space {text} cannot be made: {broken}; correct its options") from broken


def register_space(name: str, factory: Factory) -> None:
    """Register a space under a name; the factory gets the options as keywords.

    >>> register_space("tiny", lambda nodes=2: GeneralSpace((nodes,), ("zero", "conv3")))
    >>> space("tiny?nodes=3").size()
    8
    >>> del SPACES["tiny"]
    """
    require(name not in SPACES, f"there is a space {name!r} already; choose another name")
    require(
        bool(name) and not set(name) & set("?&= "), f"the name of a space contains no ?, &, = or space, got {name!r}"
    )
    SPACES[name] = factory


def general(nodes: Sizes = (3, 4), operations: str = "") -> Space:
    """Complete cells (default: 3 or 4 nodes, ten operations)."""
    return GeneralSpace(_sizes("nodes", nodes), _names(operations, GENERAL_OPERATIONS))


def darts(
    nodes: int = 4, inputs: int = 2, predecessors: int = 2, reduction: bool = True, operations: str = ""
) -> Space:
    """Normal and reduction cells of DARTS."""
    for name, value in (("nodes", nodes), ("inputs", inputs), ("predecessors", predecessors)):
        _sizes(name, value, many=False)
    return DartsSpace(_names(operations, DARTS_OPERATIONS), inputs, nodes, predecessors, _flag("reduction", reduction))


def enas(nodes: int = 4, reduction: bool = True) -> Space:
    """Cells of the form of DARTS with the five operations of ENAS."""
    _sizes("nodes", nodes, many=False)
    return DartsSpace(ENAS_OPERATIONS, num_nodes=nodes, reduction=_flag("reduction", reduction), name="enas")


def mobile(
    stages: Sizes = MOBILE_STAGES, kernels: Sizes = (3, 5, 7), expansions: Sizes = (3, 6), skip_first: bool = False
) -> Space:
    """Chains of inverted bottlenecks."""
    sizes = (_sizes("stages", stages), _sizes("kernels", kernels), _sizes("expansions", expansions))
    return MobileSpace(*sizes, _flag("skip_first", skip_first))


def recurrent(nodes: int = 8, activations: str = "", loose_ends: bool = False) -> Space:
    """Recurrent cells with a tree of nodes."""
    _sizes("nodes", nodes, many=False)
    return RecurrentSpace(nodes, _names(activations, ACTIVATIONS), _flag("loose_ends", loose_ends))


SPACES: dict[str, Factory] = {
    "general": general,
    "full": general,
    "darts": darts,
    "enas": enas,
    "nasbench201": nasbench201,
    "transnas101": transnas101,
    "mobile": mobile,
    "recurrent": recurrent,
}
"""Spaces by name; `register_space` adds to them."""


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else ""


def _sizes(name: str, value: Value, many: bool = True) -> tuple[int, ...]:
    sizes = value if isinstance(value, tuple) else (value,)
    fits = all(type(size) is int for size in sizes) and (many or not isinstance(value, tuple))
    require(fits, f"{name} must be {'whole numbers, such as 3 or 3-4' if many else 'a whole number'}; got {value!r}")
    return tuple(int(size) for size in sizes)


def _flag(name: str, value: Value) -> bool:
    require(isinstance(value, bool), f"{name} must be true or false, got {value!r}")
    return bool(value)


def _names(text: Value, default: tuple[str, ...]) -> tuple[str, ...]:
    """Names joined by `+`."""
    return tuple(filter(None, str(text).split("+"))) or default
