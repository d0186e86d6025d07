"""Options of a measure or a search method: read from the fields of its settings, typed, and checked by name.

Options are the plain fields (numbers, true or false, text) of the dataclasses that configure a measure or a method.
Name, type and default come from the class, the description from the section "Attributes" of its docstring.
"""

import inspect
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from nearkin.core.errors import OptionError

PLAIN = (bool, int, float, str)
FORMS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: of the option.
        kind: `bool`, `int`, `float` or `str`.
        optional: whether `none` is allowed.
        default: used where the option is not given.
        summary: one sentence.
    """

    name: str
    kind: type
    optional: bool
    default: Any
    summary: str

    def typed(self, value: Any, owner: str) -> Any:
        """The value in the option's type; text is read, and anything else must have the type already.

        >>> Option("order", int, False, 1, "").typed("2", "darts")
        2
        >>> Option("order", int, False, 1, "").typed("two", "darts")
        Traceback (most recent call last):
        nearkin.core.errors.OptionError: option order of darts is a whole number, got 'two'; its default is 1
        """
        if self.optional and (value is None or value == "none"):
            return None
        read: Any = _read(self.kind, value) if isinstance(value, str) else value
        if self.kind is float and type(read) is int:
            read = float(read)
        if type(read) is not self.kind or (isinstance(read, float) and not math.isfinite(read)):
            form = FORMS[self.kind] + (" or none" if self.optional else "")
            raise OptionError(f"option {self.name} of {owner} is {form}, got {value!r}; its default is {self.default}")
        return read


def _read(kind: type, text: str) -> Any:
    """A value from text; the text itself where it is none of that kind."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind is int and re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    if kind is float:
        try:
            return float(text)
        except ValueError:
            return text
    return text


def options_of(settings: Sequence[Any], without: Collection[str] = ()) -> tuple[Option, ...]:
    """The options of several settings, each a dataclass, or a value of one where its defaults differ.

    Args:
        settings: the dataclasses or values.
        without: names of fields that are no options.

    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     '''How to search.
    ...
    ...     Attributes:
    ...         rate: of learning.
    ...     '''
    ...     rate: float = 0.1
    >>> options_of([Settings(rate=0.5)])
    (Option(name='rate', kind=<class 'float'>, optional=False, default=0.5, summary='of learning.'),)
    """
    found: dict[str, Option] = {}
    for part in settings:
        owner = part if isinstance(part, type) else type(part)
        hints, summaries = get_type_hints(owner), _summaries(owner)
        for field in fields(owner):
            kinds = [kind for kind in get_args(hints[field.name]) or (hints[field.name],) if kind is not NoneType]
            if field.name not in without and len(kinds) == 1 and kinds[0] in PLAIN:
                optional = NoneType in get_args(hints[field.name])
                default, summary = getattr(part, field.name), summaries.get(field.name, "")
                found[field.name] = Option(field.name, kinds[0], optional, default, summary)
    return tuple(found.values())


def typed(options: Sequence[Option], given: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The given values in their options' types; unknown names are refused with a list of the known ones."""
    known = {option.name: option for option in options}
    unknown = sorted(set(given) - set(known))
    if unknown:
        names = f"its options are {', '.join(sorted(known))}" if known else "it has none"
        raise OptionError(f"{owner} has no option {', '.join(unknown)}; {names}")
    return {name: known[name].typed(value, owner) for name, value in given.items()}


def _summaries(owner: type) -> dict[str, str]:
    """Descriptions of the fields in the section Attributes of a class's docstring."""
    _, _, text = (inspect.getdoc(owner) or "").partition("Attributes:\n")
    rows = re.findall(r"^    (\w+): ((?:.*)(?:\n        .*)*)", text.split("\n\n")[0], re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in rows}
