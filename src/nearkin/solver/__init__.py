"""From a target task to a solution: checks, kin, search, training, a contest under equal budget, one answer.

The room is called like its main function, and Python gives a package the name of its folder; so the room itself can be
called: `nearkin.solve(task, zoo)` is `nearkin.solve.solving.solve(task, zoo)`.
"""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A module that can be called."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Solve a task beside a zoo; see `nearkin.solve.solving.solve`."""
        from nearkin.solve.solving import solve

        return solve(*args, **keywords)


sys.modules[__name__].__class__ = _Room
