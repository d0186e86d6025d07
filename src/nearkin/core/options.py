"""Options of a measure or a search method, derived from the dataclasses that configure it.

Every field that is a number, a text, one of several texts, or true or false is an option. Name, type and default come
from the class, the description from the section "Attributes" of its docstring.
"""

import inspect
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from nearkin.core.errors import OptionError
from nearkin.core.numbers import real_number, whole_number

PLAIN = (bool, int, float, str)
FORMS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Option:
    """Name, type, default and description of one option.

    Attributes:
        name: as in `--option name=value`.
        kind: `bool`, `int`, `float` or `str`.
        optional: whether `none` is allowed.
        default: value if the option is not set.
        summary: description in one sentence.
    """

    name: str
    kind: type
    optional: bool
    default: Any
    summary: str

    def read(self, value: Any, owner: str) -> Any:
        """Convert a value to the type of the option; a text is parsed, other values must have the type already.

        >>> Option("order", int, False, 1, "").read("2", "darts")
        2
        >>> Option("order", int, False, 1, "").read("two", "darts")
        Traceback (most recent call last):
        nearkin.core.errors.OptionError: option order of darts is 'two', expected a whole number; its default is 1
        """
        if self.optional and (value is None or value == "none"):
            return None
        parsed: Any = _parse(self.kind, value) if isinstance(value, str) else value
        if self.kind is float and type(parsed) is int:
            parsed = float(parsed)
        if type(parsed) is not self.kind or (isinstance(parsed, float) and not math.isfinite(parsed)):
            form = FORMS[self.kind] + (" or none" if self.optional else "")
            raise OptionError(
                f"option {self.name} of {owner} is {value!r}, expected {form}; its default is {self.default}"
            )
        return parsed


def _parse(kind: type, text: str) -> Any:
    """Parse a text; the text itself is returned if it does not have that type."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    number = whole_number(text) if kind is int else real_number(text) if kind is float else None
    return text if number is None else number


def options_of(settings: Sequence[Any], without: Collection[str] = ()) -> tuple[Option, ...]:
    """List the options of several settings.

    Args:
        settings: dataclasses, or values of dataclasses if other defaults apply.
        without: names of fields that are not options.

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
    options: dict[str, Option] = {}
    for setting in settings:
        owner = setting if isinstance(setting, type) else type(setting)
        hints, summaries = get_type_hints(owner), _summaries(owner)
        for field in fields(owner):
            hint = str if get_origin(hints[field.name]) is Literal else hints[field.name]
            kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
            if field.name not in without and len(kinds) == 1 and kinds[0] in PLAIN:
                optional = NoneType in get_args(hints[field.name])
                default, summary = getattr(setting, field.name), summaries.get(field.name, "")
                options[field.name] = Option(field.name, kinds[0], optional, default, summary)
    return tuple(options.values())


def read_options(options: Sequence[Option], values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Convert values to the types of their options; an unknown name raises an error that lists the known ones."""
    known = {option.name: option for option in options}
    unknown = sorted(set(values) - set(known))
    if unknown:
        names = f"its options are {', '.join(sorted(known))}" if known else "it has none"
        raise OptionError(f"{owner} has no option {', '.join(unknown)}; {names}")
    return {name: known[name].read(value, owner) for name, value in values.items()}


def _summaries(owner: type) -> dict[str, str]:
    """Descriptions of the fields in the sections "Attributes" of the docstrings of a class and of its bases."""
    summaries: dict[str, str] = {}
    for part in reversed(owner.__mro__):
        _, _, text = inspect.cleandoc(part.__doc__ or "").partition("Attributes:\n")
        rows = re.findall(r"^    (\w+): ((?:.*)(?:\n        .*)*)", text.split("\n\n")[0], re.MULTILINE)
        summaries |= {name: " ".join(words.split()) for name, words in rows}
    return summaries
