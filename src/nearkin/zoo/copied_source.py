"""Copy definitions from the sources of modules, with all that they use, into the text of one file.

Methods of nearkin's own networks that a forward pass does not need are left out.
"""

import ast
import functools
import importlib
import importlib.util
import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from nearkin.core.errors import OptionError, require

LINE = 100  # characters
PACKAGE = "nearkin"


def module_of(definition: Any) -> ModuleType:
    """The module that defines a class or function."""
    return sys.modules[definition.__module__]


class _ModuleNames(NamedTuple):
    """Definitions and imports at the top level of a module."""

    defined: dict[str, ast.stmt]
    imported: dict[str, tuple[str, str]]
    lines: list[str]


class Definitions:
    """Definitions copied from modules with all that they use, each after those that it needs.

    A definition whose name is taken in the file gets another name.
    """

    def __init__(self) -> None:
        self.pieces: dict[tuple[str, str], str] = {}
        self.imports: set[tuple[str, str, str]] = set()  # module, name, as
        self.attributes: set[str] = set()  # attributes that the copied code reads
        self.taken: set[str] = set()  # names in the file
        self._included: set[tuple[str, str]] = set()  # module and name in it
        self._names: dict[tuple[str, str], str] = {}  # in the file, by module and name in it

    def include(self, module: ModuleType, name: str) -> str:
        """Add a definition, or an import, and all that it uses; returns its name in the file."""
        names = _names(module)
        if name in names.imported:
            source, original = names.imported[name]
            if source.split(".")[0] in (PACKAGE, module.__name__.split(".")[0]) and original:
                return self.include(importlib.import_module(source), original)
            self.imports.add((source, original, name) if original else ("", source, name))
        if name not in names.defined:
            return name
        key = module.__name__, name
        if key in self._included:
            return self._names[key]
        self._included.add(key)
        if key not in self._names:
            self.reserve(module, name)
        node = names.defined[name]
        dropped = self._unused_methods(module, name, node)
        kept = list(_walk(node, dropped))
        self.attributes |= {inner.attr for inner in kept if isinstance(inner, ast.Attribute)}
        used = {inner.id for inner in kept if isinstance(inner, ast.Name)} - {name}
        renamed = {other: self.include(module, other) for other in sorted(used)} | {name: self._names[key]}
        lines = _renamed(names.lines, node, kept, {old: new for old, new in renamed.items() if old != new})
        self.pieces[key] = _text(lines, node, dropped)
        return self._names[key]

    def add(self, module: ModuleType, name: str, text: str) -> None:
        """Add a definition with another text than in its module."""
        self.reserve(module, name)
        self._included.add((module.__name__, name))
        self.pieces[module.__name__, name] = text

    def reserve(self, module: ModuleType, name: str) -> None:
        """Choose the name in the file for a definition: its own, with a number if that is taken."""
        numbered = (name if number == 1 else f"{name}_{number}" for number in itertools.count(1))
        free = next(candidate for candidate in numbered if candidate not in self.taken)
        self.taken.add(free)
        self._names[module.__name__, name] = free

    def _unused_methods(self, module: ModuleType, name: str, node: ast.stmt) -> list[ast.stmt]:
        """Methods of one of nearkin's networks that neither its forward pass nor the code copied so far calls."""
        known = getattr(module, name, None)
        if not (isinstance(node, ast.ClassDef) and isinstance(known, type) and issubclass(known, nn.Module)):
            return []
        if module.__name__.split(".")[0] != PACKAGE:
            return []
        classes = [_names(module_of(base)).defined[base.__name__] for base in known.__mro__
                   if base.__module__.split(".")[0] == PACKAGE]  # fmt: skip
        methods = [item for one in classes for item in one.body if isinstance(item, ast.FunctionDef)]  # type: ignore[attr-defined]
        used, size = {"forward", *self.attributes}, 0
        while len(used) > size:
            size = len(used)
            needed = [item for item in methods if item.name in used or item.name.startswith("__")]
            used |= {inner.attr for item in needed for inner in ast.walk(item) if isinstance(inner, ast.Attribute)}
        return [item for item in node.body if item in methods and item not in needed]

    def literal(self, value: Any, indent: int) -> str:
        """A value as code, on several lines if it is long; classes of named tuples are included."""
        fields = getattr(value, "_fields", None)
        if isinstance(value, tuple):
            title = self.include(module_of(type(value)), type(value).__name__) if fields else ""
            parts = [self.literal(item, indent + 4) for item in value]
            parts = [f"{field}={part}" for field, part in zip(fields, parts, strict=True)] if fields else parts
            opening = f"{title}("
            short = opening + ", ".join(parts) + ("," if len(parts) == 1 and not fields else "") + ")"
            if len(short) + indent < LINE and "\n" not in short:
                return short
            pad = " " * (indent + 4)
            return f"{opening}\n" + "".join(f"{pad}{part},\n" for part in parts) + " " * indent + ")"
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


def _walk(node: ast.AST, dropped: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of a definition but those of the dropped methods."""
    yield node
    for child in ast.iter_child_nodes(node):
        if child not in dropped:
            yield from _walk(child, dropped)


def _span(node: ast.stmt) -> range:
    """Numbers of the lines of a definition with its decorators."""
    first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
    return range(first, (node.end_lineno or first) + 1)


def _renamed(lines: Sequence[str], node: ast.stmt, kept: Sequence[ast.AST], names: Mapping[str, str]) -> Sequence[str]:
    """The lines of a module with other names in one definition; an argument of the same name stays."""
    arguments = {inner.arg for inner in kept if isinstance(inner, ast.arg)}
    found = [inner for inner in kept if isinstance(inner, ast.Name) and inner.id in names.keys() - arguments]
    title = getattr(node, "name", None)
    if not found and title not in names:
        return lines
    encoded = [line.encode() for line in lines]  # positions count bytes
    for inner in sorted(found, key=lambda inner: -inner.col_offset):
        line = encoded[inner.lineno - 1]
        end = inner.col_offset + len(inner.id.encode())
        encoded[inner.lineno - 1] = line[: inner.col_offset] + names[inner.id].encode() + line[end:]
    changed = [line.decode() for line in encoded]
    if title in names:
        first = node.lineno - 1
        changed[first] = re.sub(rf"\b{re.escape(str(title))}\b", names[str(title)], changed[first], count=1)
    return changed


def _text(lines: Sequence[str], node: ast.stmt, dropped: Sequence[ast.stmt]) -> str:
    """The source of a definition without dropped methods, doctests and comments for linters."""
    left_out = {number for method in dropped for number in _span(method)}
    kept: list[str] = []
    example = False
    for number in _span(node):
        line = lines[number - 1]
        plain = line.strip()
        if number in left_out:
            continue
        ends = plain == "" or plain.endswith('"""')
        example = not ends if example else plain.startswith(">>>")
        if not example and not (plain == "" and kept and kept[-1].strip() == ""):
            kept.append(re.sub(r"\s+# (type: ignore\S*|fmt: skip|noqa\S*)(?=\s|$)", "", line))
    text = re.sub(r'\n\s*\n(\s*""")', r"\n\1", "\n".join(kept).rstrip()) + "\n"
    return re.sub(r'("""[^"\n]+)\n\s*"""', r'\1"""', text)
