"""`task("SOURCE?modifier&…")`: read a task from a data string.

Modifiers are applied in a fixed order, independent of the order in the string: the split, the part, the pixels, the
classes, the number of samples, the labels, and last the targets (`dense`).
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.numbers import quoted
from nearkin.core.opening import local_path
from nearkin.tasks import derive, pixels, scenes
from nearkin.tasks.builtin import BUILTIN
from nearkin.tasks.datastring import DataString, flag, height_width, names, parts, share, whole
from nearkin.tasks.dense import dense
from nearkin.tasks.papers import malaria, precipitation, sinusoids
from nearkin.tasks.readers import cifar, coco, folder, hub, idx, language, npz, table
from nearkin.tasks.task import Task


@dataclass(frozen=True)
class Reader:
    """The function that reads a source, and the options that only this reader has."""

    read: Callable[[str, Mapping[str, str]], Task]
    options: tuple[str, ...] = ()
    is_path: bool = True


READERS: dict[str, Reader] = {
    "idx": Reader(idx.read, idx.OPTIONS),
    "npz": Reader(npz.read, npz.OPTIONS),
    "cifar": Reader(cifar.read, cifar.OPTIONS),
    "folder": Reader(folder.read, folder.OPTIONS),
    "coco": Reader(coco.read, coco.OPTIONS),
    "csv": Reader(table.read, table.OPTIONS),
    "text": Reader(language.read, language.OPTIONS),
    "hf": Reader(hub.read, hub.OPTIONS, is_path=False),
    "ushcn": Reader(precipitation.read, precipitation.OPTIONS),
    "malaria": Reader(malaria.read, malaria.OPTIONS),  # with a location; without one it is a named data set
}

BUILTIN_OPTIONS = {
    "cifar100": ("labels",),
    "sinusoids": sinusoids.OPTIONS,
    "precipitation": tuple(option for option in precipitation.OPTIONS if option != "element"),
    "malaria": ("place", *malaria.OPTIONS),
    "scenes": scenes.OPTIONS,
}


def _merged(task: Task, value: str, options: Mapping[str, str]) -> Task:
    return derive.merged(task, [[name.strip() for name in group.split("+")] for group in names(value, "merge")])


def _limited(task: Task, value: str, options: Mapping[str, str]) -> Task:
    even = "even" in options and flag(options["even"], "even")
    return derive.limited(task, whole(value, "limit", least=1), even=even)


def _when(change: Callable[[Task], Task], name: str) -> Callable[[Task, str, Mapping[str, str]], Task]:
    return lambda task, value, options: change(task) if flag(value, name) else task


MODIFIERS: dict[str, Callable[[Task, str, Mapping[str, str]], Task]] = {  # in the order they are applied
    "split": lambda task, value, options: derive.resplit(task, whole(value, "split")),
    "part": lambda task, value, options: derive.part(task, *parts(value, "part")),
    "size": lambda task, value, options: pixels.resized(task, height_width(value)),
    "grey": _when(pixels.grey, "grey"),
    "rgb": _when(pixels.rgb, "rgb"),
    "invert": _when(pixels.inverted, "invert"),
    "classes": lambda task, value, options: derive.only(task, names(value, "classes"), options.get("rest") or "drop"),
    "merge": _merged,
    "detect": lambda task, value, options: derive.detect(task, names(value, "detect")),
    "parity": _when(derive.parity, "parity"),
    "balance": _when(derive.balanced, "balance"),
    "limit": _limited,
    "corrupt": lambda task, value, options: derive.corrupted(task, share(value, "corrupt")),
    "dense": lambda task, value, options: dense(task, value),
}


def task(text: str, name: str | None = None) -> Task:
    """The task that a data string names; relative paths start at the working folder.

    >>> digits = task("digits?classes=0,1,2,3&rest=other")
    >>> digits.classes, len(digits.train), digits.input_shape
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
    data = DataString.parse(text)
    own = _own_options(data)
    options = dict(data.options)
    _check_options(data, own)
    if _is_builtin(data):
        require(not data.location, f"{data.source} takes no location, got {data.location!r}; write {data.source}?…")
        result = BUILTIN[data.source](options)
    else:
        reader = READERS[data.source]
        require(bool(data.location), f"{data.source} got no location; add one, as in {data.source}:PATH")
        path = local_path(data.location)
        if reader.is_path or path.exists():
            data = replace(data, location=str(path))
        result = reader.read(data.location, options)
    result = replace(result, name=name or text, source=str(data))
    for modifier, change in MODIFIERS.items():
        if modifier in options and modifier not in own:
            result = change(result, options[modifier], options)
    return result


def _is_builtin(data: DataString) -> bool:
    """Whether the source is a named data set; with a location, a reader of the same name goes first."""
    return data.source in BUILTIN and not (data.location and data.source in READERS)


def _own_options(data: DataString) -> tuple[str, ...]:
    if _is_builtin(data):
        return BUILTIN_OPTIONS.get(data.source, ())
    if data.source in READERS:
        return READERS[data.source].options
    known = [*BUILTIN, *(f"{source}:PATH" for source in READERS)]
    hint = _reader_hint(data.source) or _suggestion(data.source, [*BUILTIN, *READERS])
    raise OptionError(f"unknown data source {data.source!r}; {hint}sources are {', '.join(known)}")


def _reader_hint(text: str) -> str:
    """How to write the data string of a file or folder that was given without its reader."""
    path = local_path(text)
    if path.is_dir():
        return f"for a folder of images or texts by class write folder:{text}; "
    if not path.is_file():
        return ""
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    example = {"csv": "csv:{}?target=COLUMN", "tsv": "csv:{}?target=COLUMN", "npz": "npz:{}"}.get(ending)
    return f"for this file write {example.format(text)}; " if example else ""


def _suggestion(text: str, known: list[str]) -> str:
    near = difflib.get_close_matches(text, known, 1)
    return f"did you mean {near[0]}? " if near else ""


def _check_options(data: DataString, own: tuple[str, ...]) -> None:
    known, options = [*own, *MODIFIERS, "rest", "even"], dict(data.options)
    for option in options:
        if option not in known:
            hint = _suggestion(option, known)
            raise OptionError(f"unknown modifier {option!r} for {data.source}; {hint}it takes {', '.join(known)}")
    if "rest" in options:
        require("classes" in options, "rest needs classes=…, as in classes=0,1&rest=other")
        require(options["rest"] in ("other", "drop"), f"rest must be other or drop, got {options['rest']!r}")
    if "even" in options and "even" not in own:
        require("limit" in options, "even needs limit=…, as in limit=500&even")
