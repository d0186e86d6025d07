"""One family of errors, each a single line that says what was got, what was wanted and what to do."""

import importlib
from types import ModuleType


class NearkinError(Exception):
    """Whatever nearkin itself has to say; the command line prints it as one `error:` line and exits 1."""


class OptionError(NearkinError):
    """An option or argument outside its range."""


class DataError(NearkinError):
    """Data that is missing, broken or does not fit the task."""


class MismatchError(NearkinError):
    """Two things that must agree (networks, shapes, likelihoods) and do not."""


class ZooError(NearkinError):
    """A zoo that is absent, damaged, of another version, or does not hold what was asked for."""


class TrainingError(NearkinError):
    """Training that diverged or cannot go on from the given state."""


class MissingExtraError(NearkinError):
    """An optional package that the request needs and that is not installed."""


def require(condition: bool, message: str, error: type[NearkinError] = OptionError) -> None:
    """Raise `error(message)` unless the condition holds.

    >>> require(2 > 1, "never said")
    >>> require(-1 >= 0, "strength must be >= 0, got -1")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: strength must be >= 0, got -1
    """
    if not condition:
        raise error(message)


def optional(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional package, or say which extra brings it.

    >>> optional("math", "none", "arithmetic").sqrt(4.0)
    2.0
    >>> optional("no_such_package", "vision", "reading images")
    Traceback (most recent call last):
    nearkin.core.errors.MissingExtraError: reading images needs no_such_package: pip install 'nearkin[vision]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        package = module.split(".")[0]
        raise MissingExtraError(f"{purpose} needs {package}: pip install 'nearkin[{extra}]'") from missing
