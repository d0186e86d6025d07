"""Preprocessing of an adopted model as data: size, scaling and channel order of images, or a tokenizer of texts."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.numbers import real_number, whole_number
from nearkin.core.opening import local_path, read_file
from nearkin.nets.solved import LARGEST_INPUT
from nearkin.tasks.input_fields import IDS, MASK, TYPES, InputField
from nearkin.tasks.named_inputs import stored_fields
from nearkin.tasks.network_inputs import NetworkInputs
from nearkin.tasks.task import Task
from nearkin.tasks.texts import Tokenizer

ORDERS = ("rgb", "bgr")


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """How raw inputs become those of a model.

    Attributes:
        size: height and width of images; one number for square ones.
        channels: of images (default: 3).
        mean: subtracted from each channel of images in [0, 1], or from each column of a table.
        std: by which each channel or column is then divided.
        order: of the channels, `rgb` or `bgr`.
        shape: of inputs that are no images.
        tokenizer: path of a file `tokenizer.json`, or its content.
        length: number of tokens of a text (default: 128).
        types: whether the model also takes the types of tokens (`token_type_ids`).
    """

    size: tuple[int, int] | None = None
    channels: int = 3
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    order: str = "rgb"
    shape: tuple[int, ...] | None = None
    tokenizer: str | None = None
    length: int = 128
    types: bool = False

    def __post_init__(self) -> None:
        require(self.order in ORDERS, f"the order of channels is {self.order!r}, expected one of {', '.join(ORDERS)}")
        require(self.channels >= 1, f"got {self.channels} channels, expected 1 or more")
        require(
            (self.mean is None) == (self.std is None),
            "got mean without std, or std without mean; give both, or neither for the scaling of each task",
        )
        require(self.std is None or all(value > 0 for value in self.std), f"std must be above 0, got {self.std}")
        given = [name for name in ("size", "shape", "tokenizer") if getattr(self, name) is not None]
        require(len(given) <= 1, f"got {' and '.join(given)}; give one of them")
        count = self.length if self.tokenizer is not None else math.prod(self._shape or (1,))
        require(
            count <= LARGEST_INPUT,
            f"one input has {count:,} values, expected {LARGEST_INPUT:,} at most; make it smaller",
        )

    @property
    def _shape(self) -> tuple[int, ...] | None:
        """Shape of inputs that are no texts; None if it is that of the task."""
        return self.shape if self.size is None else (self.channels, *self.size)

    @classmethod
    def of(cls, values: "Preprocess | Mapping[str, Any] | str | None") -> "Preprocess":
        """Preprocessing from a value, a dictionary or a text such as `size=224&mean=0.5&std=0.5&order=bgr`.

        >>> Preprocess.of("size=224&mean=0.5&std=0.25").mean
        (0.5,)
        """
        if isinstance(values, Preprocess):
            return values
        require(
            values is None or isinstance(values, str | Mapping),
            f"preprocessing is {str(values)[:80]!r}, expected a dictionary or text such as 'size=224&mean=0.5&std=0.5'",
        )
        pairs = [item.partition("=")[::2] for item in values.split("&") if item] if isinstance(values, str) else []
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        require(not twice, f"preprocessing has {', '.join(twice)} twice; give it once")
        given = dict(pairs) if isinstance(values, str) else dict(values or {})
        known = [item.name for item in fields(cls)]
        unknown = sorted(str(name) for name in given if name not in known)
        require(not unknown, f"preprocessing has no {', '.join(unknown)}; it has {', '.join(known)}")
        return cls(**{name: _read(name, value) for name, value in given.items()})

    def inputs(self, task: Task | None) -> NetworkInputs | None:
        """Inputs of the network; None if nothing is given: then they are those of the task."""
        if self.tokenizer is not None:
            names = (IDS, MASK, TYPES) if self.types else (IDS, MASK)
            tokenizer = Tokenizer(_tokenizer_content(self.tokenizer), self.length, names)
            return NetworkInputs((len(names) * self.length,), tokenizer=tokenizer)
        shape = self._shape
        if shape is None and task is not None and (self.mean is not None or self.order != "rgb"):
            shape = task.input_shape
        if shape is None:
            return None
        require(
            self.order == "rgb" or (len(shape) == 3 and shape[0] == 3),
            f"got the order of channels {self.order} for inputs of shape {shape}, expected images of 3 channels; leave "
            f"it out",
        )
        mean, std = (None if values is None else _each(values, shape[0]) for values in (self.mean, self.std))
        return NetworkInputs(shape, mean, std)


def input_fields(inputs: NetworkInputs | None, task: Task | None) -> tuple[InputField, ...]:
    """Named inputs of a model: those of its tokenizer, or of the task's own inputs; empty if it takes one tensor."""
    if inputs is not None and inputs.tokenizer is not None:
        return tuple(InputField(name, (inputs.tokenizer.length,)) for name in inputs.tokenizer.fields)
    return () if task is None else stored_fields(task.preprocessing)


def _each(values: tuple[float, ...], count: int) -> tuple[float, ...]:
    require(
        len(values) in (1, count),
        f"got {len(values)} values of mean or std, expected 1 or {count}, one for each channel",
    )
    return values if len(values) == count else values * count


def _tokenizer_content(text: str) -> str:
    if text.lstrip().startswith("{"):
        return text
    path = local_path(text)
    path = path / "tokenizer.json" if path.is_dir() else path
    require(path.exists(), f"there is no tokenizer {path}; expected a file tokenizer.json: check the path", DataError)
    return bytes(read_file(path)).decode("utf-8", "replace")


def _read(name: str, value: Any) -> Any:
    """A value of an option; texts are parsed, numbers of numpy and torch are taken."""
    if name in ("order", "tokenizer"):
        require(isinstance(value, str | Path), f"{name} is {value!r}, expected text")
        return str(value)
    if name == "types":
        require(value in (True, False, "true", "false", ""), f"types is {value!r}, expected true or false")
        return value in (True, "true", "")
    parse, example = (real_number, "0.5") if name in ("mean", "std") else (whole_number, "224")
    parts = value.split("x" if name == "size" and "x" in value else ",") if isinstance(value, str) else _plain(value)
    several = list(parts) if isinstance(parts, list | tuple) else [parts]
    numbers: list[Any] = [parse(item) if isinstance(item, str) else _plain(item) for item in several]
    kinds = (int, float) if parse is real_number else (int,)
    valid = bool(numbers) and all(type(item) in kinds and abs(item) <= sys.float_info.max for item in numbers)
    if not valid or (parse is whole_number and any(number < 1 for number in numbers)):
        raise OptionError(f"{name} is {value!r}, expected numbers such as {example}")
    if name == "size":
        require(len(numbers) in (1, 2), f"size is {value!r}, expected one or two numbers")
        return (numbers[0], numbers[-1])
    if name in ("channels", "length"):
        require(len(numbers) == 1, f"{name} is {value!r}, expected one number")
        return numbers[0]
    return tuple(map(float, numbers)) if parse is real_number else tuple(numbers)


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy and torch as those of Python; other values unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value
