"""Names and modules that are imported when they are first used, so that a command loads only what it needs."""

import importlib
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from nearkin._moved import renamed

_EXPORT = re.compile(r"^    from ([\w.]+) import (\w+) as \2$", re.MULTILINE)


class Lazy(ModuleType):
    """Stands for a module that is imported when one of its names is first used.

    >>> Lazy("math").sqrt(9.0)
    3.0
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` of a package that imports its names when they are first used.

    The names are read from the lines `    from MODULE import NAME as NAME` below `if TYPE_CHECKING:` in the source of
    the package, so that there is one list for type checkers and for the run. Old names are looked up in `RENAMED`.

    >>> get, _, names = exports("nearkin.core")
    >>> get("Budget").__name__, names[0]
    ('Budget', 'Budget')
    """
    spec = sys.modules[package].__spec__
    source = spec.loader.get_source(package)  # type: ignore[union-attr]
    modules = {name: module for module, name in _EXPORT.findall(source)}

    def get(name: str) -> Any:
        if name not in modules:
            return renamed(package, name)
        if modules[name] == package:
            return importlib.import_module(f"{package}.{name}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(modules)
    return get, lambda: names, names
