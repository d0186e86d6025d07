"""`task("SOURCE?modifier&…")`: from one string to a Task.

Modifiers are applied in one fixed order, whatever order they are written in: the samples are split, then the pixels
changed, then the classes, then the number of samples, then the labels, and last the question (`dense`).
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.numbers import quoted
from nearkin.core.opening import local_path
from nearkin.tasks import derive, pixels
from nearkin.tasks.builtin import BUILTIN
from nearkin.tasks.datastring import DataString, flag, height_width, names, share, whole
from nearkin.tasks.dense import dense
from nearkin.tasks.papers import malaria, sinusoids
from nearkin.tasks.papers import precipitation as ushcn
from nearkin.tasks.readers import cifar, folder, hub, idx, npz, table
from nearkin.tasks.readers import text as prose
from nearkin.tasks.task import Task


@dataclass(frozen=True)
class Reader:
    """How a source is read, and the options that are the reader's own."""

    read: Callable[[str, Mapping[str, str]], Task]
    options: tuple[str, ...] = ()
    is_path: bool = True


READERS: dict[str, Reader] = {
    "idx": Reader(idx.read, idx.OPTIONS),
    "npz": Reader(npz.read, npz.OPTIONS),
    "cifar": Reader(cifar.read, cifar.OPTIONS),
    "folder": Reader(folder.read, folder.OPTIONS),
    "csv": Reader(table.read, table.OPTIONS),
    "text": Reader(prose.read, prose.OPTIONS),
    "hf": Reader(hub.read, hub.OPTIONS, is_path=False),
    "ushcn": Reader(ushcn.read, ushcn.OPTIONS),
    "malaria": Reader(malaria.read, malaria.OPTIONS),  # with a location; a built-in set without one
}

BUILTIN_OPTIONS = {
    "cifar100": ("labels",),
    "sinusoids": sinusoids.OPTIONS,
    "precipitation": tuple(option for option in ushcn.OPTIONS if option != "element"),
    "malaria": ("place", *malaria.OPTIONS),
}


def _classes(task: Task, value: str, options: Mapping[str, str]) -> Task:
    return derive.only(task, names(value, "classes"), options.get("rest") or "drop")


def _merged(task: Task, value: str) -> Task:
    return derive.merged(task, [[part.strip() for part in group.split("+")] for group in names(value, "merge")])


def _limited(task: Task, value: str, options: Mapping[str, str]) -> Task:
    even = "even" in options and flag(options["even"], "even")
    return derive.limited(task, whole(value, "limit", least=1), even=even)


def _when(change: Callable[[Task], Task], name: str) -> Callable[[Task, str, Mapping[str, str]], Task]:
    """A modifier that stands alone, such as `grey`."""
    return lambda task, value, options: change(task) if flag(value, name) else task


MODIFIERS: dict[str, Callable[[Task, str, Mapping[str, str]], Task]] = {  # in the order they are applied
    "split": lambda task, value, options: derive.resplit(task, whole(value, "split")),
    "size": lambda task, value, options: pixels.resized(task, height_width(value)),
    "grey": _when(pixels.grey, "grey"),
    "rgb": _when(pixels.rgb, "rgb"),
    "invert": _when(pixels.inverted, "invert"),
    "classes": _classes,
    "merge": lambda task, value, options: _merged(task, value),
    "detect": lambda task, value, options: derive.detect(task, names(value, "detect")),
    "parity": _when(derive.parity, "parity"),
    "balance": _when(derive.balanced, "balance"),
    "limit": _limited,
    "corrupt": lambda task, value, options: derive.corrupted(task, share(value, "corrupt")),
    "dense": lambda task, value, options: dense(task, value),
}


def task(text: str, name: str | None = None) -> Task:
    """The task that a data string names; relative paths are taken from the working folder.

    >>> some = task("digits?classes=0,1,2,3&rest=other")
    >>> some.classes, len(some.train), some.input_shape
    (('0', '1', '2', '3', 'other'), 1438, (1, 8, 8))
    >>> task("digits?detect=0").name
    'digits?detect=0'
    """
    try:
        return _task(text, name)
    except OSError as error:
        raise DataError(f"cannot read {error.filename or quoted(text)}: {error.strerror or error}; check it") from error
    except MemoryError as error:
        raise DataError(f"{quoted(text)} does not fit in memory; use a smaller size or fewer samples") from error


def _task(text: str, name: str | None) -> Task:
    """Read the source and apply the modifiers."""
    data = DataString.parse(text)
    own = _own_options(data)
    options = dict(data.options)
    _check_options(data, own)
    if _is_builtin(data):
        require(not data.location, f"{data.source} takes no location, got {data.location!r}; write {data.source}?…")
        made = BUILTIN[data.source](options)
    else:
        reader = READERS[data.source]
        require(bool(data.location), f"{data.source} wants a place to read from, as in {data.source}:PATH")
        path = local_path(data.location)
        if reader.is_path or path.exists():
            data = replace(data, location=str(path))
        made = reader.read(data.location, options)
    made = replace(made, name=name or text, source=str(data))
    for modifier, change in MODIFIERS.items():
        if modifier in options and modifier not in own:
            made = change(made, options[modifier], options)
    return made


def _is_builtin(data: DataString) -> bool:
    """Whether a built-in set is meant; a name that is a reader's too is the reader's where there is a location."""
    return data.source in BUILTIN and not (data.location and data.source in READERS)


def _own_options(data: DataString) -> tuple[str, ...]:
    """Options that the source's own reader takes."""
    if _is_builtin(data):
        return BUILTIN_OPTIONS.get(data.source, ())
    if data.source in READERS:
        return READERS[data.source].options
    known = [*BUILTIN, *(f"{source}:PATH" for source in READERS)]
    near = difflib.get_close_matches(data.source, [*BUILTIN, *READERS], 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise OptionError(f"unknown data source {data.source!r}; {hint}sources are {', '.join(known)}")


def _check_options(data: DataString, own: tuple[str, ...]) -> None:
    """Refuse what neither the reader nor the modifiers know, before anything is read."""
    known = [*own, *MODIFIERS, "rest", "even"]
    for option, value in data.options:
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise OptionError(f"unknown modifier {option!r} for {data.source}; {hint}it takes {', '.join(known)}")
        if option == "rest":
            require(
                any(name == "classes" for name, _ in data.options),
                "rest goes with classes=…, as in classes=0,1&rest=other",
            )
            require(value in ("other", "drop"), f"rest must be other or drop, got {value!r}")
        if option == "even" and option not in own:
            require(any(name == "limit" for name, _ in data.options), "even goes with limit=…, as in limit=500&even")
