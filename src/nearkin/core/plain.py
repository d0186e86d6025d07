"""Read JSON values by type annotations; a value of another type raises an error that names it."""

import hashlib
import json
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from nearkin.core.errors import DataError, require

T = TypeVar("T")

MAX_DEPTH = 64
"""Most levels of nesting that are read; files of nearkin have fewer than ten."""

CHECKSUM = "sha256"
"""Key of the checksum in files that hold one."""

_SURROGATES = re.compile("[\ud800-\udfff]")  # UTF-8 cannot hold them
_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", types.NoneType: "null"}


def typed(kind: type[T], value: Any, origin: str) -> T:
    """Read a JSON value as a type: a dataclass, a TypedDict, a tuple, a mapping, a union, or a plain type.

    A TypedDict may hold further keys; a dataclass may not, and its fields with defaults may be absent. A class with a
    `parse` method is read from text.

    Args:
        kind: a type with annotations that can be resolved at run time.
        value: what `json.loads` returned.
        origin: name of the file or record, for the error.

    >>> typed(tuple[int, ...], [1, 2], "a.json")
    (1, 2)
    >>> typed(dict[str, float], {"loss": "low"}, "a.json")
    Traceback (most recent call last):
    nearkin.core.errors.DataError: a.json: loss is 'low', expected a number; the file is damaged or ...
    """
    try:
        return cast(T, _read(kind, value, ()))
    except _Unexpected as odd:
        name = ".".join(map(str, odd.path)) or "the content"
        shown = "missing" if odd.value is _MISSING else repr(odd.value)
        shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
        raise DataError(
            f"{origin}: {name} is {shown}, expected {odd.expected}; the file is damaged or of another version: "
            f"write or fetch it again"
        ) from None


def json_object(text: str | bytes, origin: str) -> dict[str, Any]:
    """Parse a JSON object; repeated keys, deep nesting and values that are not objects raise `DataError`.

    >>> json_object('{"a": [1]}', "a.json")
    {'a': [1]}
    >>> json_object('{"a": 1, "a": 2}', "a.json")
    Traceback (most recent call last):
    nearkin.core.errors.DataError: a.json holds no JSON object (the key 'a' occurs twice); write or fetch it again
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique)
        if not isinstance(value, dict):
            raise ValueError(f"it is of type {type(value).__name__}")
        if _depth(value) > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    except (ValueError, RecursionError) as broken:
        reason = " ".join(str(broken).split())[:200]
        raise DataError(f"{origin} holds no JSON object ({reason}); write or fetch it again") from None
    return value


def sealed(facts: Mapping[str, Any]) -> bytes:
    """Write facts as JSON together with their checksum, which `unsealed` verifies.

    >>> unsealed(sealed({"a": 1.5}), "a.json")
    {'a': 1.5}
    >>> unsealed(sealed({"a": 1.5}).replace(b"1.5", b"1.6"), "a.json")
    Traceback (most recent call last):
    nearkin.core.errors.DataError: a.json: its checksum does not match: it was altered after it was written; ...
    """
    return json.dumps({**facts, CHECKSUM: _checksum(facts)}, allow_nan=False).encode()


def unsealed(data: bytes, origin: str) -> dict[str, Any]:
    """Read and verify what `sealed` wrote; files of older versions have no checksum and are not verified."""
    facts = json_object(data, origin)
    checksum = facts.pop(CHECKSUM, None)
    require(
        checksum is None or checksum == _checksum(facts),
        f"{origin}: its checksum does not match: it was altered after it was written; remove it",
        DataError,
    )
    return facts


def _checksum(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class _Unexpected(Exception):
    def __init__(self, path: tuple[str | int, ...], value: Any, expected: str) -> None:
        super().__init__()
        self.path, self.value, self.expected = path, value, expected


_MISSING = object()


def _read(kind: Any, value: Any, path: tuple[str | int, ...]) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if kind in _NAMES:
        return _plain(kind, value, path)
    if origin in (Union, types.UnionType):
        return _union(arguments, value, path)
    if is_typeddict(kind) or is_dataclass(kind):
        return _record(kind, value, path)
    if hasattr(kind, "parse"):
        return kind.parse(_plain(str, value, path))
    if origin is tuple or origin in (list, Sequence):
        return _sequence(origin, arguments, value, path)
    if origin in (dict, Mapping):
        _require(isinstance(value, dict), path, value, "an object")
        return {key: _read(arguments[1], item, (*path, key)) for key, item in value.items()}
    raise TypeError(f"{kind} cannot be read from JSON")


def _plain(kind: type, value: Any, path: tuple[str | int, ...]) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        fits = number and isinstance(value, int) and -(2**63) <= value < 2**63
    elif kind is float:
        fits = number and (isinstance(value, float) or abs(value) < 2**1000)
    elif kind is str:
        fits = isinstance(value, str) and not _SURROGATES.search(value)
    else:
        fits = isinstance(value, kind)
    _require(fits, path, value, _NAMES[kind])
    return value


def _union(arguments: tuple[Any, ...], value: Any, path: tuple[str | int, ...]) -> Any:
    problems = []
    for kind in arguments:
        try:
            return _read(kind, value, path)
        except _Unexpected as odd:
            problems.append(odd)
    deepest = max(problems, key=lambda odd: len(odd.path))
    if len(deepest.path) > len(path):
        raise deepest
    raise _Unexpected(path, value, " or ".join(odd.expected for odd in problems))


def _sequence(origin: Any, arguments: tuple[Any, ...], value: Any, path: tuple[str | int, ...]) -> Any:
    _require(isinstance(value, list | tuple), path, value, "a list")
    kinds: Sequence[Any] = arguments
    if origin is not tuple or (len(arguments) == 2 and arguments[1] is Ellipsis):
        kinds = [arguments[0]] * len(value)
    _require(len(kinds) == len(value), path, value, f"a list of {len(kinds)} values")
    items = [_read(kind, item, (*path, i)) for i, (kind, item) in enumerate(zip(kinds, value, strict=True))]
    return tuple(items) if origin is tuple else items


def _record(kind: Any, value: Any, path: tuple[str | int, ...]) -> Any:
    _require(isinstance(value, dict), path, value, "an object")
    hints, needed, closed = _shape(kind)
    for name in needed:
        _require(name in value, (*path, name), _MISSING, _described(hints[name]))
    known = {name: _read(hint, value[name], (*path, name)) for name, hint in hints.items() if name in value}
    if not closed:
        return {**value, **known}
    for name in sorted(set(value) - set(hints)):
        raise _Unexpected((*path, name), value[name], "no such entry")
    return kind(**known)


@cache
def _shape(kind: Any) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    """Types by name, required names, and whether other names are refused."""
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        return hints, tuple(sorted(kind.__required_keys__)), False
    own = [item for item in fields(kind) if item.init]
    needed = tuple(item.name for item in own if item.default is item.default_factory)
    return {item.name: hints[item.name] for item in own}, needed, True


def _described(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(_described, get_args(kind)))
    return _NAMES.get(kind, "a list" if get_origin(kind) in (tuple, list, Sequence) else "an object")


def _require(condition: Any, path: tuple[str | int, ...], value: Any, expected: str) -> None:
    if not condition:
        raise _Unexpected(path, value, expected)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return items


def _depth(value: Any) -> int:
    """Levels of nesting of a JSON value, counted without recursion."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if depth > MAX_DEPTH:
            break
    return depth
