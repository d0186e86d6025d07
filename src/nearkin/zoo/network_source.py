"""Source code that builds a network: the call of its class or function, after all definitions that it uses."""

import functools
import inspect
import json
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import nearkin.search.networks.operations as operations
from nearkin.core.errors import MismatchError, require
from nearkin.nets.registry import Factory, creation
from nearkin.nets.trusted_code import ENSEMBLE, SEARCHED, TANGENT_MACHINE, member_networks
from nearkin.search.networks.build import blueprint
from nearkin.search.networks.cells import Wiring
from nearkin.search.networks.named import parse_network
from nearkin.zoo.copied_source import LINE, Definitions, module_of


class _Call(NamedTuple):
    """The class or function of a network, and its keywords."""

    factory: Factory
    options: dict[str, Any]


def network_code(
    definitions: Definitions, network: str, shape: tuple[int, ...], num_outputs: int
) -> tuple[list[str], str]:
    """Include the code of a network; returns its description in lines, and the expression that creates it.

    An ensemble is created from its members; its weights and temperatures are among the tensors to load.
    """
    members = member_networks(network)
    calls = [_call(member, shape, num_outputs) for member in members]
    wirings = [value for call in calls for value in call.options.values() if isinstance(value, Wiring)]
    if wirings:
        used = sorted({edge.operation for wiring in wirings for edge in wiring.edges})
        definitions.add(operations, "operation", _operations(definitions, used))
    if network.startswith(SEARCHED):
        title = ["The network of a genotype, as nearkin found it:", "", *_indented(str(parse_network(network)[0]))]
    else:
        title = ["A trained model of nearkin, with its preprocessing:", ""]
        title += [line for member in members for line in _indented(member)]
    if not network.startswith(ENSEMBLE):
        return title, _expression(definitions, calls[0], 4)
    title[0] = f"An ensemble of {len(members)} trained models of nearkin, with its preprocessing:"
    factory, options = creation(network, shape, num_outputs)
    title_in_file = definitions.include(module_of(factory), "Ensemble")
    listed = "".join(f"            {_expression(definitions, call, 12)},\n" for call in calls)
    ones = f"torch.ones({len(members)})"
    return title, (
        f"{title_in_file}(\n        nn.ModuleList([\n{listed}        ]),\n        {definitions.literal(members, 8)},\n"
        f"        weights={ones},\n        temperatures={ones},\n        classes={options['classes']},\n    )"
    )


def _call(network: str, shape: tuple[int, ...], num_outputs: int) -> _Call:
    """How a network that is no ensemble is created."""
    require(
        not network.startswith(TANGENT_MACHINE),
        "a network solved in closed form predicts with derivatives of its network, which cannot be written as a Python "
        "file; use --to torch, or solve without transfer",
        MismatchError,
    )
    if network.startswith(SEARCHED):
        return _Call(*blueprint(*parse_network(network), shape, num_outputs))
    return _Call(*creation(network, shape, num_outputs))


def _expression(definitions: Definitions, call: _Call, indent: int) -> str:
    """The call as code, with its definitions included; its last line starts at `indent`."""
    pad, name = " " * indent, definitions.include(module_of(call.factory), call.factory.__name__)
    arguments = [
        f"{pad}    {option}={definitions.literal(value, indent + 4)},\n" for option, value in call.options.items()
    ]
    return f"{name}(\n{''.join(arguments)}{pad})"


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, LINE, initial_indent="    ", subsequent_indent="    ")


_OPERATION = '''def operation(name: str, channels: int, stride: int = 1, affine: bool = True) -> nn.Module:
    """The module of an operation."""
    return OPERATIONS[name](channels, stride, affine)
'''


def _operations(definitions: Definitions, names: Sequence[str]) -> str:
    """The table of operations that are used, and the function that looks them up."""
    definitions.include(operations, "Builder")
    rows = "".join(f"    {json.dumps(name)}: {_builder(definitions, name)},\n" for name in names)
    return f"OPERATIONS: dict[str, Builder] = {{\n{rows}}}\n\n\n{_OPERATION}"


def _builder(definitions: Definitions, name: str) -> str:
    """The code that gives the builder of an operation: a function's name, or a call of the function that made it."""
    builder = operations.builder(name)
    function, arguments = builder, {}
    if isinstance(builder, functools.partial):
        require(
            not builder.args,
            f"operation {name!r}: got functools.partial with positional arguments, which cannot be "
            f"written to a file; use keywords only",
        )
        function, arguments = builder.func, builder.keywords
    outer, nested, _ = getattr(function, "__qualname__", "<lambda>").partition(".<locals>.")
    require(
        outer.isidentifier() and "<lambda>" not in getattr(function, "__qualname__", "<lambda>"),
        f"operation {name!r} is a lambda or an object, which cannot be written to a file; register a function that is "
        f"defined at the top level of a module",
    )
    module = module_of(function)
    title = definitions.include(module, outer)
    if nested:
        known = inspect.signature(getattr(module, outer)).parameters
        held = inspect.getclosurevars(function).nonlocals
        arguments = {key: held[key] for key in known if key in held}
    text = ", ".join(f"{key}={definitions.literal(value, 0)}" for key, value in arguments.items())
    if isinstance(builder, functools.partial):
        definitions.imports.add(("", "functools", "functools"))
        return f"functools.partial({title}, {text})"
    return f"{title}({text})" if nested else title
