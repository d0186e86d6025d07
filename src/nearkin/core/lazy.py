"""Modules that are imported when first used: no command waits for what it does not use."""

import importlib
from types import ModuleType
from typing import Any


class Lazy(ModuleType):
    """Stands for a module until one of its names is asked for.

    >>> Lazy("math").sqrt(9.0)
    3.0
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)
