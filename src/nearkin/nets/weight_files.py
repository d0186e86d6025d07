"""Read trained weights from files of others, and load them into a network. No file is unpickled.

safetensors files, files of `torch.save` (read with `weights_only=True`), and folders with `model.safetensors` or its
parts. Weights of half precision become float32, since few operations on a CPU take them.
"""

import pickle
import struct
import warnings
import zipfile
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.opening import local_path, open_regular, read_file, require_bytes
from nearkin.core.plain import json_object
from nearkin.nets.functional import differences
from nearkin.nets.library_models import is_library_model, renamed_weights

HALF = (torch.float16, torch.bfloat16)
WHOLE_FILE = "model.safetensors"
PARTS_FILE = "model.safetensors.index.json"
NESTED = ("state_dict", "model", "model_state_dict", "ema_state_dict")  # keys under which scripts store the weights
PREFIX = "module."  # of weights saved from DataParallel
DERIVED = ("num_batches_tracked", "position_ids")  # buffers that a file may lack or have in addition
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
    files = json_object(bytes(read_file(index)), str(index)).get("weight_map")
    names = sorted({str(file) for file in files.values()}) if isinstance(files, dict) else []
    require(bool(names) and all("/" not in name and name != ".." for name in names), f"{index} is damaged", DataError)
    return {name: value for file in names for name, value in _safetensors(path / file).items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    with open_regular(path) as file:
        require_bytes(path.stat().st_size, str(path))
        try:
            return safetensors.torch.load(file.read())
        except safetensors.SafetensorError as broken:
            raise DataError(f"{path} is not an intact safetensors file ({_line(broken)}); fetch it again") from None


def _torch(path: Path) -> dict[str, Tensor]:
    with open_regular(path) as file:
        require_bytes(path.stat().st_size, str(path))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of other versions of pickle
                content: Any = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as broken:
            if "Unsupported" not in str(broken) and "not an allowed" not in str(broken):
                raise DataError(f"{path} is not a file of torch.save ({_line(broken)}); fetch it again") from None
            raise DataError(
                f"{path} holds more than tensors, and reading it would run code; save only the weights: "
                f"torch.save(model.state_dict(), …), or better as safetensors"
            ) from None
        except _BROKEN as broken:
            raise DataError(f"{path} is not a file of torch.save ({_line(broken)}); fetch it again") from None
    for key in NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    tensors = content if isinstance(content, Mapping) else {}
    require(
        bool(tensors) and all(isinstance(value, Tensor) for value in tensors.values()),
        f"{path} holds a {type(content).__name__} without weights by name, expected a state_dict; save "
        f"model.state_dict()",
        DataError,
    )
    return {str(name): value.detach() for name, value in tensors.items()}


def without_prefix(tensors: Mapping[str, Tensor], names: Container[str]) -> Mapping[str, Tensor]:
    """Tensors without the prefix of DataParallel, if all have it and the network has none of these names.

    >>> list(without_prefix({"module.weight": torch.ones(1)}, ["weight"]))
    ['weight']
    >>> list(without_prefix({"module.weight": torch.ones(1)}, ["module.weight"]))
    ['module.weight']
    """
    if any(not name.startswith(PREFIX) or name in names for name in tensors):
        return tensors
    return {name.removeprefix(PREFIX): value for name, value in tensors.items()}


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
    persistent = network.state_dict()
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


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
