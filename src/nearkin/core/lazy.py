"""Names and modules that are imported when first used: no command waits for what it does not use."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


class Lazy(ModuleType):
    """Stands for a module until one of its names is asked for.

    >>> Lazy("math").sqrt(9.0)
    3.0
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def exports(
    package: str, names: Mapping[str, Sequence[str]], packages: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package that imports its names when they are first asked for.

    Args:
        package: name of the package.
        names: exported names by the module of the package that defines them.
        packages: packages below it that are attributes as well.

    >>> get, _, every = exports("xml", {"etree.ElementTree": ("XML",), "sax": ("parse",)}, packages=("dom",))
    >>> get("XML")("<a/>").tag, get("dom").__name__, every
    ('a', 'xml.dom', ['XML', 'dom', 'parse'])
    """
    homes = {name: module for module, own in names.items() for name in own}

    def get(name: str) -> Any:
        if name in packages:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    every = sorted([*homes, *packages])
    return get, lambda: every, every
