"""A network as one Python file that needs torch alone.

The file holds the very classes that make the network, gathered from our sources together with whatever they use, and
their options as literals.
"""

import ast
import functools
import importlib.util
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import nearkin.search.networks.operations as operations
from nearkin.core.errors import OptionError, require
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.build import blueprint
from nearkin.search.networks.cells import Wiring
from nearkin.search.networks.skeleton import Skeleton

_LINE = 100
_HOUSE = "nearkin"


def python_source(
    genotype: Genotype, skeleton: Skeleton, input_shape: Sequence[int], num_outputs: int, *, notes: Sequence[str] = ()
) -> str:
    """One readable Python file that needs torch alone and whose `build()` makes the network of a genotype.

    Its weights have the names of ours. Run as a script it counts the parameters and tries a pass; `load(path)` gives
    the network with exported weights (safetensors, or a torch file of tensors alone).

    Args:
        genotype: what the network is made of.
        skeleton: what the genotype is set into.
        input_shape: shape of one input.
        num_outputs: width of the head.
        notes: sentences for the head of the file, such as how inputs are to be scaled; each begins a line.
    """
    factory, options = blueprint(genotype, skeleton, input_shape, num_outputs)
    gathered = _Gathered()
    for name in ("torch", "nn"):
        gathered.include(operations, name)
    wirings = [value for value in options.values() if isinstance(value, Wiring)]
    used = sorted({edge.operation for wiring in wirings for edge in wiring.edges})
    if wirings:
        gathered.pieces[operations.__name__, "operation"] = _operations(gathered, used)
    gathered.include(_module(factory), factory.__name__)
    arguments = "".join(f"        {name}={gathered.literal(value, 8)},\n" for name, value in options.items())
    gathered.imports.add(("", "sys", "sys"))
    dtype = ", dtype=torch.int64" if len(input_shape) == 1 else ""
    lines = textwrap.wrap(str(genotype), _LINE, initial_indent="    ", subsequent_indent="    ")
    told = [line for note in notes for line in textwrap.wrap(note, _LINE)]
    told += [""] if told else []
    head = "\n".join([f"The network of a genotype, as {_HOUSE} found it:", "", *lines, "", *told, *_USE])
    head = head.replace("\\", r"\\").replace('"""', r"\"\"\"")  # names in the notes may be anything
    tail = _TAIL.format(factory=factory.__name__, arguments=arguments, shape=tuple(input_shape), dtype=dtype)
    body = "\n\n".join(piece.strip("\n") if piece.count("\n") < 2 else "\n" + piece.strip("\n") for piece in
                       gathered.pieces.values())  # fmt: skip
    return f'"""{head}\n"""\n\n{gathered.import_lines()}\n\n{body.strip()}\n{tail}'


_USE = ("build() makes it with fresh weights, load(path) with exported ones; run this file to try it. It needs torch,",
        "and safetensors for weights in such a file.")  # fmt: skip

_TAIL = '''

INPUT_SHAPE = {shape}


def build() -> {factory}:
    """A new network with fresh weights."""
    return {factory}(
{arguments}    )


def load(path: str) -> {factory}:
    """The network with the weights of a .safetensors file, or of a torch file that holds tensors alone."""
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        weights = load_file(path)
    else:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    model = build()
    model.load_state_dict(weights)
    return model.eval()


if __name__ == "__main__":
    model = load(sys.argv[1]) if len(sys.argv) > 1 else build().eval()
    with torch.no_grad():
        outputs = model(torch.zeros(2, *INPUT_SHAPE{dtype}))
    if not torch.isfinite(outputs).all():
        sys.exit("the outputs are not finite")
    print(f"{{sum(weight.numel() for weight in model.parameters())}} parameters, outputs {{list(outputs.shape)}}")
'''

_OPERATION = '''def operation(name: str, channels: int, stride: int = 1, affine: bool = True) -> nn.Module:
    """A new module that does what the name says."""
    return OPERATIONS[name](channels, stride, affine)
'''


def _operations(gathered: "_Gathered", names: Sequence[str]) -> str:
    """The table of operations that are used, and the function that looks them up."""
    gathered.include(operations, "Builder")
    rows = "".join(f"    {json.dumps(name)}: {_expression(gathered, name)},\n" for name in names)
    return f"OPERATIONS: dict[str, Builder] = {{\n{rows}}}\n\n\n{_OPERATION}"


def _expression(gathered: "_Gathered", name: str) -> str:
    """The code that gives the builder of an operation: a function's name, or a call of the function that made it."""
    builder = operations.builder(name)
    made, arguments = builder, {}
    if isinstance(builder, functools.partial):
        require(not builder.args, f"operation {name!r}: give functools.partial keywords alone, to be written to a file")
        made, arguments = builder.func, builder.keywords
    outer, nested, _ = getattr(made, "__qualname__", "<lambda>").partition(".<locals>.")
    require(
        outer.isidentifier() and "<lambda>" not in getattr(made, "__qualname__", "<lambda>"),
        f"operation {name!r} is a lambda or an object, which cannot be written to a file; register a function that is "
        f"defined at the top level of a module",
    )
    module = _module(made)
    gathered.include(module, outer)
    if nested:
        known = inspect.signature(getattr(module, outer)).parameters
        held = inspect.getclosurevars(made).nonlocals
        arguments = {key: held[key] for key in known if key in held}
    given = ", ".join(f"{key}={gathered.literal(value, 0)}" for key, value in arguments.items())
    if isinstance(builder, functools.partial):
        gathered.imports.add(("", "functools", "functools"))
        return f"functools.partial({outer}, {given})"
    return f"{outer}({given})" if nested else outer


def _module(thing: Any) -> ModuleType:
    return sys.modules[thing.__module__]


class _Names(NamedTuple):
    """What a module defines and imports at its top level."""

    defined: dict[str, ast.stmt]
    imported: dict[str, tuple[str, str]]
    lines: list[str]


class _Gathered:
    """Definitions taken from modules with all that they use, in an order in which Python can read them."""

    def __init__(self) -> None:
        self.pieces: dict[tuple[str, str], str] = {}
        self.imports: set[tuple[str, str, str]] = set()  # module, name, as

    def include(self, module: ModuleType, name: str) -> None:
        """Take a definition, or an import, and what it uses."""
        names = _names(module)
        if name in names.imported:
            source, original = names.imported[name]
            if source.split(".")[0] in (_HOUSE, module.__name__.split(".")[0]) and original:
                self.include(importlib.import_module(source), original)
            else:
                self.imports.add((source, original, name) if original else ("", source, name))
        elif name in names.defined and (module.__name__, name) not in self.pieces:
            clash = next((other for other, taken in self.pieces if taken == name and other != module.__name__), None)
            require(clash is None, f"{name} of {module.__name__} and of {clash} cannot stand in one file; rename one")
            node = names.defined[name]
            self.pieces[module.__name__, name] = ""
            for used in sorted({inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} - {name}):
                self.include(module, used)
            del self.pieces[module.__name__, name]
            self.pieces[module.__name__, name] = _text(names.lines, node)

    def literal(self, value: Any, indent: int) -> str:
        """A value as code, on several lines where it is long; named tuples bring their class."""
        fields = getattr(value, "_fields", None)
        if isinstance(value, tuple):
            if fields:
                self.include(_module(type(value)), type(value).__name__)
            parts = [self.literal(item, indent + 4) for item in value]
            parts = [f"{field}={part}" for field, part in zip(fields, parts, strict=True)] if fields else parts
            opening = f"{type(value).__name__}(" if fields else "("
            short = opening + ", ".join(parts) + ("," if len(parts) == 1 and not fields else "") + ")"
            if len(short) + indent < _LINE and "\n" not in short:
                return short
            pad = " " * (indent + 4)
            return f"{opening}\n" + "".join(f"{pad}{part},\n" for part in parts) + " " * indent + ")"
        if isinstance(value, str):
            return json.dumps(value)
        require(
            value is None or isinstance(value, bool | int | float),
            f"{value!r} cannot be written to a Python file; use numbers, names and tuples of them",
        )
        return repr(value)

    def import_lines(self) -> str:
        """The standard library's first, then the others, each in alphabetical order."""
        whole = {(name, f"import {name}" + (f" as {alias}" if alias != name else ""))
                 for source, name, alias in self.imports if not source}  # fmt: skip
        groups: dict[str, list[str]] = {}
        for source, name, alias in sorted(self.imports):
            if source:
                groups.setdefault(source, []).append(name if name == alias else f"{name} as {alias}")
        lines = whole | {(source, f"from {source} import {', '.join(names)}") for source, names in groups.items()}
        ours = [sorted(line for source, line in lines if (source.split(".")[0] in sys.stdlib_module_names) is standard)
                for standard in (True, False)]  # fmt: skip
        return "\n\n".join("\n".join(sorted(part, key=lambda line: line.startswith("from"))) for part in ours if part)


@functools.lru_cache(maxsize=64)
def _names(module: ModuleType) -> _Names:
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError) as missing:
        raise OptionError(f"the source of {module.__name__} is not at hand; define operations in a file") from missing
    defined: dict[str, ast.stmt] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id: node for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), module.__package__)
            imported |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name.split(".")[0]: (alias.name, "") for alias in node.names}
    return _Names(defined, imported, text.splitlines())


def _text(lines: Sequence[str], node: ast.stmt) -> str:
    """The source of a definition with its decorators, without examples in docstrings and marks for our tools."""
    first = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", ()))])
    kept: list[str] = []
    example = False
    for line in lines[first - 1 : node.end_lineno]:
        plain = line.strip()
        ends = plain == "" or plain.endswith('"""')
        example = not ends if example else plain.startswith(">>>")
        if not example and not (plain == "" and kept and kept[-1].strip() == ""):
            kept.append(re.sub(r"\s+# (type: ignore\S*|fmt: skip)$", "", line))
    return re.sub(r'\n\s*\n(\s*""")', r"\n\1", "\n".join(kept)) + "\n"
