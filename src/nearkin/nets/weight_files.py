"""Read trained weights from files of others, and load them into a network. No file is unpickled.

safetensors files, files of `torch.save` (read with `weights_only=True`), and folders with `model.safetensors` or its
parts. Weights of half precision become float32, since few operations on a CPU take them.
"""

import io
import pickle
import struct
import warnings
import zipfile
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.opening import local_path, open_regular, read_file, require_bytes
from nearkin.core.plain import json_object
from nearkin.core.text import plain
from nearkin.nets.functional import differences
from nearkin.nets.library_models import is_library_model, renamed_weights

HALF = (torch.float16, torch.bfloat16)
WHOLE_FILE = "model.safetensors"
PARTS_FILE = "model.safetensors.index.json"
NESTED = ("state_dict", "model", "model_state_dict", "ema_state_dict")  # keys under which scripts store the weights
DERIVED = (
    "num_batches_tracked",
    "position_ids",
    "masked_bias",
    "inv_freq",
)  # buffers that a file may lack or have in addition
POINTER = b"version https://git-lfs"
"""Start of the small text that git leaves in place of a large file."""

LARGEST_HEADER = 10**8  # bytes; the limit of safetensors
SHOWN = 8  # keys that an error names
_BROKEN = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError,
    ValueError, struct.error, zipfile.BadZipFile,
)  # fmt: skip
"""Exceptions of `torch.load` for files that are damaged or of another kind."""


def read_weights(location: str | Path) -> dict[str, Tensor]:
    """Tensors by name from a file or a folder; those of half precision as float32."""
    path = local_path(str(location))
    if path.is_dir():
        tensors = _folder(path)
    elif path.suffix == ".safetensors":
        tensors = _safetensors(path)
    else:
        tensors = _torch(path)
    require(bool(tensors), f"{path} holds no weights; expected a state_dict", DataError)
    require(
        all(name.isprintable() for name in tensors),
        f"{path} has weights whose names hold control characters; fetch it again",
        DataError,
    )
    return {name: value.float() if value.dtype in HALF else value for name, value in tensors.items()}


def _folder(path: Path) -> dict[str, Tensor]:
    if (path / WHOLE_FILE).exists():
        return _safetensors(path / WHOLE_FILE)
    index = path / PARTS_FILE
    require(
        index.exists(),
        f"the folder {path} has no {WHOLE_FILE}; expected weights as safetensors: convert them, or name the file",
        DataError,
    )
    names = sorted(set(_weight_map(index).values()))
    require(bool(names) and all("/" not in name and name != ".." for name in names), f"{index} is damaged", DataError)
    return {name: value for file in names for name, value in _safetensors(path / file).items()}


def _weight_map(index: Path) -> dict[str, str]:
    """Files by the names of the weights that they hold."""
    files = json_object(bytes(read_file(index)), str(index)).get("weight_map")
    return {name: str(file) for name, file in files.items()} if isinstance(files, dict) else {}


def weight_names(folder: Path) -> list[str]:
    """Names of the weights of a folder, without reading them; empty if it has none as safetensors, or is damaged."""
    with suppress(DataError):
        if (folder / WHOLE_FILE).exists():
            with open_regular(folder / WHOLE_FILE) as file:
                size = min(int.from_bytes(file.read(8), "little"), LARGEST_HEADER)
                return list(json_object(file.read(size), WHOLE_FILE))
        if (folder / PARTS_FILE).exists():
            return list(_weight_map(folder / PARTS_FILE))
    return []


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file that may hold weights, opened; one that is empty, a pointer of git-lfs or a web page is refused."""
    with open_regular(path) as file:
        require_bytes(path.stat().st_size, str(path))
        start = file.read(64)
        file.seek(0)
        require(bool(start), f"{path} is empty, expected weights; fetch it again", DataError)
        require(
            not start.startswith(POINTER),
            f"{path} is a pointer of git-lfs, expected the weights themselves; fetch them with git lfs pull",
            DataError,
        )
        require(
            not start.lstrip().startswith(b"<"),
            f"{path} is a web page (HTML), expected weights; fetch the file itself",
            DataError,
        )
        yield file


def _safetensors(path: Path) -> dict[str, Tensor]:
    with _opened(path) as file:
        try:
            return safetensors.torch.load(file.read())
        except safetensors.SafetensorError as broken:
            raise DataError(f"{path} is not an intact safetensors file ({_line(broken)}); fetch it again") from None


def _torch(path: Path) -> dict[str, Tensor]:
    with _opened(path) as file:
        pickled = file.peek(1).startswith((b"\x80", b"PK"))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of other versions of pickle
                content: Any = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            require(pickled, f"{path} is not a file of torch.save; fetch it again", DataError)
            raise DataError(
                f"{path} holds more than tensors, and reading it would run code; save only the weights: "
                f"torch.save(model.state_dict(), …), or better as safetensors"
            ) from None
        except _BROKEN as broken:
            require(
                "TorchScript" not in str(broken),
                f"{path} is an archive of TorchScript, expected a state_dict; save "
                f"torch.jit.load(…).state_dict() with torch.save",
                DataError,
            )
            reason = f" ({_line(broken).partition('. ')[0]})" if isinstance(broken, RuntimeError) else ""
            raise DataError(f"{path} is not a file of torch.save{reason}; fetch it again") from None
    return {str(name): value.detach() for name, value in _state_dict(content, path).items()}


def _state_dict(content: Any, path: Path) -> Mapping[str, Tensor]:
    """The weights by name in the content of a file: under a usual key, or the only ones under any key."""
    for key in NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    keys = list(content) if isinstance(content, Mapping) else []
    states = [value for value in (content, *(content[key] for key in keys)) if _is_state_dict(value)]
    if states and (len(states) == 1 or states[0] is content):
        return dict(states[0])
    kind = f"a {type(content).__name__}"
    if keys:
        kind += f" with the keys {', '.join(plain(str(key))[:40] for key in keys[:SHOWN])}"
        kind += f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    raise DataError(f"{path} holds {kind}, expected weights by name; save only model.state_dict()")


def _is_state_dict(content: Any) -> bool:
    return isinstance(content, Mapping) and bool(content) and all(isinstance(v, Tensor) for v in content.values())


def without_prefix(tensors: Mapping[str, Tensor], names: Container[str]) -> Mapping[str, Tensor]:
    """Tensors without a prefix that all their names share, if the network then has some of these names.

    DataParallel (`module.`), `torch.compile` (`_orig_mod.`) and training scripts (`model.`) add such prefixes.

    >>> list(without_prefix({"module._orig_mod.weight": torch.ones(1)}, ["weight"]))
    ['weight']
    >>> list(without_prefix({"module.weight": torch.ones(1)}, ["module.weight"]))
    ['module.weight']
    """
    shorter = dict(tensors)
    while not any(name in names for name in shorter):
        prefixes = {name.partition(".")[0] for name in shorter}
        if len(prefixes) != 1 or any("." not in name for name in shorter):
            return tensors
        shorter = {name.partition(".")[2]: value for name, value in shorter.items()}
    return shorter


def load_weights(network: nn.Module, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Copy tensors of a file into a network; every weight must be there, with its shape, under one of its names.

    Weights that are tied in the network stay tied. Buffers that can be computed again may be absent. Models of the
    library transformers may have other names in files, as the library reads them. After an error the network is as
    before.

    Args:
        network: the network.
        tensors: by name.
        origin: names the file in errors.
    """
    expected = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    first_names = {id(value): name for name, value in expected.items()}
    names = {
        name: first_names[id(value)]
        for listed in (network.named_parameters, network.named_buffers)
        for name, value in listed(remove_duplicate=False)
    }
    tensors = without_prefix(tensors, names)
    persistent = network.state_dict()
    tensors = {
        name: value
        for name, value in tensors.items()
        if name not in names or name in persistent or _same_kind(value, expected[names[name]])
    }
    _require_same_kinds(tensors, {name: expected[first] for name, first in names.items()}, origin)
    if is_library_model(network) and any(name not in names and not name.endswith(DERIVED) for name in tensors):
        tensors = renamed_weights(network, tensors, origin, DERIVED)
    values: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in names and name.endswith(DERIVED):
            continue
        first = names.get(name, name)
        known = values.setdefault(first, tensor)
        require(
            known.shape == tensor.shape and (known is tensor or torch.equal(known, tensor)),
            f"{origin}: {name} and {first} are one weight in {type(network).__name__}, but have different values; use "
            f"the network that they were saved from",
            MismatchError,
        )
    needed = {
        name: value
        for name, value in expected.items()
        if name in values or (name in persistent and not name.endswith(DERIVED))
    }
    wrong = differences(values, needed)
    require(
        not wrong,
        f"{origin} does not fit {type(network).__name__}: {wrong}; use the network and options it was trained with",
        MismatchError,
    )
    for name in needed:
        require(
            bool(values[name].isfinite().all()) if values[name].is_floating_point() else True,
            f"{origin}: {name} has values that are not finite; fetch the file again",
            DataError,
        )
    with torch.no_grad():
        for name, value in needed.items():
            value.copy_(values[name])


def _require_same_kinds(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], origin: str) -> None:
    """Refuse tensors that are not dense arrays of the kind of numbers that the network has there.

    A tensor that the network has under another name may be of whole numbers if a tensor of the network, whose name ends
    in the same word, is.
    """
    whole = {name.rpartition(".")[2] for name, value in expected.items() if not value.is_floating_point()}
    for name, value in tensors.items():
        like = expected.get(name)
        if like is None:
            mask = name.endswith(".bias") and value.dim() == 4  # of attention; the library does not read it
            fits = value.is_floating_point() or mask or name.rpartition(".")[2] in whole
        else:
            fits = like.is_complex() or (_same_kind(value, like) and not value.is_complex())
        kinds = {
            "without values": value.is_meta,
            "sparse": value.layout != torch.strided,
            "quantised": value.is_quantized or (value.is_floating_point() and value.element_size() == 1),
            f"of type {_type(value)}": not fits and not name.endswith(DERIVED),
        }
        wanted = "floating point numbers" if like is None else f"a dense tensor of type {_type(like)}"
        for kind, holds in kinds.items():
            require(
                not holds, f"{origin}: {name} is {kind}, expected {wanted}; save the state_dict in float32", DataError
            )


def _same_kind(first: Tensor, second: Tensor) -> bool:
    return first.is_floating_point() == second.is_floating_point()


def _type(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
