"""Tables of byte arrays in pickle files, read without Python's unpickler.

A pickle is a program for a small stack machine. This module runs the instructions that build containers, numbers, text
and arrays of bytes, and refuses all others, so that nothing named in a file is imported or called. It also allocates no
memory that the file does not fill; `pickle` allocates any index or length that an instruction states.
"""

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.core.errors import DataError
from nearkin.core.opening import read_file


def pickled_table(path: Path) -> dict[str, Any]:
    """The table in a pickle file: keys are text, Python 2 text is bytes, arrays are of bytes.

    Raises:
        DataError: the file has other content, or would run code.
    """
    try:
        content = _Machine(path).run(bytes(read_file(path)))
        if not isinstance(content, dict):
            raise ValueError("it has no table of arrays")
        values = {key: value.array() if isinstance(value, _Array) else value for key, value in content.items()}
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can fail in many ways
        raise DataError(f"{path} is not a complete CIFAR batch ({error}); fetch the official file") from error
    return {key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key): values[key] for key in values}


class _Type:
    """Replaces `numpy.dtype`: stores only the code of the type."""

    def __init__(self, code: str | bytes, *flags: object) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code


class _Array:
    """Replaces `numpy.ndarray`: stores the pickled state of an array of bytes."""

    def __init__(self, *parts: object) -> None:
        self.state: tuple[Any, ...] = ()

    def array(self) -> np.ndarray[Any, Any]:
        """The array; NumPy checks that shape and bytes agree."""
        _, shape, kind, fortran, data = self.state
        if kind.code not in ("u1", "|u1"):
            raise ValueError(f"an array is of type {kind.code}, expected bytes")
        return np.frombuffer(_checked(data, bytes), np.uint8).reshape(shape, order="F" if fortran else "C")


def _latin1(text: str, encoding: str) -> bytes:
    """The function that protocol 2 calls to convert text to bytes."""
    return text.encode("latin1")


REPLACEMENTS: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _latin1,
}


class _Machine:
    """The stack machine of a pickle, with few instructions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, program: bytes) -> object:
        """The value that the program builds."""
        for instruction, argument, _ in pickletools.genops(program):
            self._step(instruction.name, argument)
        return self.stack.pop()

    def _step(self, name: str, argument: Any) -> None:
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                self.marks.append(len(self.stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                self.stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "STRING" | "BINSTRING" | "SHORT_BINSTRING":
                self.stack.append(argument.encode("latin1"))
            case "GLOBAL" | "STACK_GLOBAL":
                self.stack.append(self._replacement(*(argument.split(" ", 1) if argument else self._top(2))))
            case "EMPTY_LIST" | "EMPTY_DICT" | "EMPTY_TUPLE":
                self.stack.append({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}[name]())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.stack.append(tuple(self._top(int(name[-1]))))
            case "TUPLE" | "LIST":
                self.stack.append((tuple if name == "TUPLE" else list)(self._marked()))
            case "DICT":
                self.stack.append({})
                self._set_items(self._marked(below=1))
            case "APPEND" | "APPENDS":
                values = self._top(1) if name == "APPEND" else self._marked()
                _checked(self.stack[-1], list).extend(values)
            case "SETITEM" | "SETITEMS":
                self._set_items(self._top(2) if name == "SETITEM" else self._marked())
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if name == "MEMOIZE" else int(argument)] = self.stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                self.stack.append(self.memo[int(argument)])
            case "REDUCE":
                function, arguments = self._top(2)
                if function not in REPLACEMENTS.values():
                    raise ValueError("it calls a value that is not a function")
                self.stack.append(function(*_checked(arguments, tuple)))
            case "BUILD":
                (state,) = self._top(1)
                if isinstance(self.stack[-1], _Array):
                    self.stack[-1].state = _checked(state, tuple)
            case _ if isinstance(argument, str | bytes | bytearray | int | float):
                self.stack.append(argument)
            case _:
                raise ValueError(f"its instruction {name} does not belong to a table of arrays")

    def _top(self, count: int) -> list[Any]:
        values = self.stack[-count:]
        if len(values) < count:
            raise ValueError("it reads more values than it wrote")
        del self.stack[-count:]
        return values

    def _marked(self, below: int = 0) -> list[Any]:
        """Remove the values after the last mark of the stack, except the last `below` values."""
        start, end = self.marks.pop(), len(self.stack) - below
        values = self.stack[start:end]
        del self.stack[start:end]
        return values

    def _set_items(self, values: list[Any]) -> None:
        table = _checked(self.stack[-1], dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | bytes | int):  # hashing nested tuples of a hostile file could take forever
                raise ValueError(f"a key of its table is a {type(key).__name__}")
            table[key] = value

    def _replacement(self, module: str, name: str) -> Callable[..., object]:
        if (module, name) not in REPLACEMENTS:
            raise DataError(f"{self.path} would run {module}.{name}, so it is no CIFAR batch; fetch the official file")
        return REPLACEMENTS[module, name]


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"got a {type(value).__name__}, expected a {kind.__name__}")
    return value
