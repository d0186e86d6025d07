"""Source code of a network as one Python file that needs only torch.

The file contains the classes of the network, copied from the sources of this package with all that they use, and their
options as literals.
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
_PACKAGE = "nearkin"


def python_source(
    genotype: Genotype, skeleton: Skeleton, input_shape: Sequence[int], num_outputs: int, *, notes: Sequence[str] = ()
) -> str:
    """One readable Python file that needs only torch and whose `build()` returns the network of a genotype.

    Its weights have the same names. As a script it prints the number of parameters and runs one forward pass;
    `load(path)` returns the network with exported weights (safetensors, or a torch file of tensors only).

    Args:
        genotype: of the network.
        skeleton: macro-architecture of the network.
        input_shape: shape of one input.
        num_outputs: width of the head.
        notes: sentences for the docstring of the file, such as the scaling of inputs; each starts on a new line.
    """
    factory, options = blueprint(genotype, skeleton, input_shape, num_outputs)
    definitions = _Definitions()
    for name in ("torch", "nn"):
        definitions.include(operations, name)
    wirings = [value for value in options.values() if isinstance(value, Wiring)]
    used = sorted({edge.operation for wiring in wirings for edge in wiring.edges})
    if wirings:
        definitions.pieces[operations.__name__, "operation"] = _operations(definitions, used)
    definitions.include(_module(factory), factory.__name__)
    arguments = "".join(f"        {name}={definitions.literal(value, 8)},\n" for name, value in options.items())
    definitions.imports.add(("", "sys", "sys"))
    dtype = ", dtype=torch.int64" if len(input_shape) == 1 else ""
    lines = textwrap.wrap(str(genotype), _LINE, initial_indent="    ", subsequent_indent="    ")
    about = [line for note in notes for line in textwrap.wrap(note, _LINE)]
    about += [""] if about else []
    head = "\n".join([f"The network of a genotype, as {_PACKAGE} found it:", "", *lines, "", *about, *_USE])
    head = head.replace("\\", r"\\").replace('"""', r"\"\"\"")  # names in the notes may be anything
    tail = _TAIL.format(factory=factory.__name__, arguments=arguments, shape=tuple(input_shape), dtype=dtype)
    body = "\n\n".join(piece.strip("\n") if piece.count("\n") < 2 else "\n" + piece.strip("\n") for piece in
                       definitions.pieces.values())  # fmt: skip
    return f'"""{head}\n"""\n\n{definitions.import_lines()}\n\n{body.strip()}\n{tail}'


_USE = ("build() returns it with new weights, load(path) with exported ones; run this file to test it. It needs torch,",
        "and safetensors to read weights from such a file.")  # fmt: skip

_TAIL = '''

INPUT_SHAPE = {shape}


def build() -> {factory}:
    """The network with new weights."""
    return {factory}(
{arguments}    )


def load(path: str) -> {factory}:
    """The network with the weights of a .safetensors file, or of a torch file of tensors only."""
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
    """The module of an operation."""
    return OPERATIONS[name](channels, stride, affine)
'''


def _operations(definitions: "_Definitions", names: Sequence[str]) -> str:
    """The table of operations that are used, and the function that looks them up."""
    definitions.include(operations, "Builder")
    rows = "".join(f"    {json.dumps(name)}: {_expression(definitions, name)},\n" for name in names)
    return f"OPERATIONS: dict[str, Builder] = {{\n{rows}}}\n\n\n{_OPERATION}"


def _expression(definitions: "_Definitions", name: str) -> str:
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
    module = _module(function)
    definitions.include(module, outer)
    if nested:
        known = inspect.signature(getattr(module, outer)).parameters
        held = inspect.getclosurevars(function).nonlocals
        arguments = {key: held[key] for key in known if key in held}
    text = ", ".join(f"{key}={definitions.literal(value, 0)}" for key, value in arguments.items())
    if isinstance(builder, functools.partial):
        definitions.imports.add(("", "functools", "functools"))
        return f"functools.partial({outer}, {text})"
    return f"{outer}({text})" if nested else outer


def _module(definition: Any) -> ModuleType:
    return sys.modules[definition.__module__]


class _ModuleNames(NamedTuple):
    """Definitions and imports at the top level of a module."""

    defined: dict[str, ast.stmt]
    imported: dict[str, tuple[str, str]]
    lines: list[str]


class _Definitions:
    """Definitions copied from modules with all that they use, each after those that it needs."""

    def __init__(self) -> None:
        self.pieces: dict[tuple[str, str], str] = {}
        self.imports: set[tuple[str, str, str]] = set()  # module, name, as

    def include(self, module: ModuleType, name: str) -> None:
        """Add a definition, or an import, and all that it uses."""
        names = _names(module)
        if name in names.imported:
            source, original = names.imported[name]
            if source.split(".")[0] in (_PACKAGE, module.__name__.split(".")[0]) and original:
                self.include(importlib.import_module(source), original)
            else:
                self.imports.add((source, original, name) if original else ("", source, name))
        elif name in names.defined and (module.__name__, name) not in self.pieces:
            clash = next((other for other, taken in self.pieces if taken == name and other != module.__name__), None)
            require(
                clash is None,
                f"{name} is defined in {module.__name__} and in {clash}, which cannot be in one file; rename one",
            )
            node = names.defined[name]
            self.pieces[module.__name__, name] = ""
            for used in sorted({inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} - {name}):
                self.include(module, used)
            del self.pieces[module.__name__, name]
            self.pieces[module.__name__, name] = _text(names.lines, node)

    def literal(self, value: Any, indent: int) -> str:
        """A value as code, on several lines if it is long; classes of named tuples are included."""
        fields = getattr(value, "_fields", None)
        if isinstance(value, tuple):
            if fields:
                self.include(_module(type(value)), type(value).__name__)
            items = [self.literal(item, indent + 4) for item in value]
            items = [f"{field}={item}" for field, item in zip(fields, items, strict=True)] if fields else items
            opening = f"{type(value).__name__}(" if fields else "("
            short = opening + ", ".join(items) + ("," if len(items) == 1 and not fields else "") + ")"
            if len(short) + indent < _LINE and "\n" not in short:
                return short
            pad = " " * (indent + 4)
            return f"{opening}\n" + "".join(f"{pad}{item},\n" for item in items) + " " * indent + ")"
        if isinstance(value, str):
            return json.dumps(value)
        require(
            value is None or isinstance(value, bool | int | float),
            f"{value!r} cannot be written to a Python file; use numbers, text and tuples of them",
        )
        return repr(value)

    def import_lines(self) -> str:
        """Import statements: the standard library, then other packages, each in alphabetical order."""
        whole = {(name, f"import {name}" + (f" as {alias}" if alias != name else ""))
                 for source, name, alias in self.imports if not source}  # fmt: skip
        groups: dict[str, list[str]] = {}
        for source, name, alias in sorted(self.imports):
            if source:
                groups.setdefault(source, []).append(name if name == alias else f"{name} as {alias}")
        lines = whole | {(source, f"from {source} import {', '.join(names)}") for source, names in groups.items()}
        blocks = [sorted(line for source, line in lines if (source.split(".")[0] in sys.stdlib_module_names) is first)
                for first in (True, False)]  # fmt: skip
        return "\n\n".join(
            "\n".join(sorted(block, key=lambda line: line.startswith("from"))) for block in blocks if block
        )


@functools.lru_cache(maxsize=64)
def _names(module: ModuleType) -> _ModuleNames:
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError) as missing:
        raise OptionError(f"the source of {module.__name__} cannot be read; define operations in a file") from missing
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
    return _ModuleNames(defined, imported, text.splitlines())


def _text(lines: Sequence[str], node: ast.stmt) -> str:
    """The source of a definition with its decorators, without doctests and comments for linters."""
    first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
    kept: list[str] = []
    example = False
    for line in lines[first - 1 : node.end_lineno]:
        plain = line.strip()
        ends = plain == "" or plain.endswith('"""')
        example = not ends if example else plain.startswith(">>>")
        if not example and not (plain == "" and kept and kept[-1].strip() == ""):
            kept.append(re.sub(r"\s+# (type: ignore\S*|fmt: skip)$", "", line))
    return re.sub(r'\n\s*\n(\s*""")', r"\n\1", "\n".join(kept)) + "\n"
