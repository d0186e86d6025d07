"""Exceptions of nearkin. A message is one line: what was received, what was expected, what to do."""

import importlib
import math
from types import ModuleType


class NearkinError(Exception):
    """Base class; the command line prints the message as one line after `error:` and exits with status 1."""


class OptionError(NearkinError):
    """An option or argument outside its range."""


class DataError(NearkinError):
    """Data that is missing, damaged or does not fit the task."""


class MismatchError(NearkinError):
    """Networks, shapes or likelihoods that must agree and do not."""


class ZooError(NearkinError):
    """A zoo that is missing, damaged or of another version, or that lacks a requested task or file."""


class TrainingError(NearkinError):
    """Training that diverged or cannot be resumed from a checkpoint."""


class LostProcessError(TrainingError):
    """A training in several processes, of which one ended or did not answer."""


class StoppedError(NearkinError):
    """A training in several processes, of which another one was stopped."""


class MissingExtraError(NearkinError):
    """An optional package that is needed and not installed."""


def require(condition: bool, message: str, error: type[NearkinError] = OptionError) -> None:
    """Raise `error(message)` unless the condition holds.

    >>> require(2 > 1, "not raised")
    >>> require(-1 >= 0, "strength must be >= 0, got -1")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: strength must be >= 0, got -1
    """
    if not condition:
        raise error(message)


def require_positive(name: str, value: float) -> None:
    """Raise an `OptionError` unless a number is finite and above 0.

    >>> require_positive("beta", float("nan"))
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: beta must be > 0 and finite, got nan
    """
    require(math.isfinite(value) and value > 0, f"{name} must be > 0 and finite, got {value}")


def optional(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional package; if it is missing, the error says which extra installs it.

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
