"""Models of the library transformers: build one from a configuration, and rename weights as the library does.

Only classes of the library itself are built. Nothing is read from the network, whatever a configuration names.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, NearkinError, optional, require

LIBRARY = "transformers"
IGNORED = (
    "auto_map", "dtype", "torch_dtype", "quantization_config", "fusion_config", "transformers_weights",
    "attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation",
)  # fmt: skip
"""Keys of a configuration, also of its parts, that name code, files, or other types of numbers."""

_LOCK = threading.RLock()


def transformers_model(config: Mapping[str, Any]) -> nn.Module:
    """The model of a configuration, with new weights."""
    library = optional(LIBRARY, "text", "this model")
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    factory = getattr(library, name, None) if name.isidentifier() else None
    valid = isinstance(factory, type) and issubclass(factory, library.PreTrainedModel) and _is_own(factory)
    require(
        valid,
        f"the configuration names the architecture {name!r}, expected a model of the library transformers "
        f"{library.__version__}; adopt it as a network string instead",
        DataError,
    )
    assert factory is not None
    try:
        with _offline():
            settings = factory.config_class.from_dict(_safe(config))
            settings._attn_implementation = "eager"  # the others have no second derivatives
            model: nn.Module = factory(settings)
    except NearkinError:
        raise
    except ConnectionError as refused:
        raise DataError(
            f"the configuration of {name} refers to another model on the Hugging Face hub, which is not read; expected "
            f"all of it in one folder: adopt another model"
        ) from refused
    except Exception as wrong:  # the library checks values with exceptions of its own
        raise DataError(
            f"{name} cannot be built from its configuration ({_line(wrong)}); fetch the folder again"
        ) from wrong
    return model.float()


def is_library_model(network: nn.Module) -> bool:
    """Whether the class of a network is one of the library."""
    return _is_own(type(network)) and hasattr(network, "config")


def renamed_weights(
    network: nn.Module, tensors: Mapping[str, Tensor], origin: str, derived: tuple[str, ...]
) -> Mapping[str, Tensor]:
    """Weights of a file under the names that the network has in memory; the library changes them between versions.

    Args:
        network: a model of the library; it is not changed.
        tensors: by their names in the file.
        origin: names the file in errors.
        derived: ends of names that the file may lack or have in addition.
    """
    library = optional(LIBRARY, "text", "this model")
    factory: Any = type(network)
    try:
        with _offline(), _silent(library.utils.logging):
            model, report = factory.from_pretrained(
                None, config=network.config, state_dict=dict(tensors), dtype=torch.float32, output_loading_info=True,
                ignore_mismatched_sizes=True, local_files_only=True, trust_remote_code=False,
            )  # fmt: skip
    except Exception as wrong:  # of any class
        raise MismatchError(
            f"{origin} does not fit {factory.__name__} ({_line(wrong)}); fetch the folder again"
        ) from wrong
    for problem in ("missing", "unexpected", "mismatched"):
        keys = sorted(str(key if isinstance(key, str) else key[0]) for key in report[f"{problem}_keys"])
        keys = [key for key in keys if not key.endswith(derived)]
        require(
            not keys,
            f"{origin} does not fit {factory.__name__}: {', '.join(keys[:3])} {'are' if keys[1:] else 'is'} {problem}; "
            f"use the network and options it was trained with",
            MismatchError,
        )
    weights: dict[str, Tensor] = model.state_dict()
    return weights


def _is_own(kind: type) -> bool:
    return kind.__module__.startswith(f"{LIBRARY}.models.")


def _safe(value: Any) -> Any:
    """A configuration without the keys that are ignored, at every level; it asks for no weights of other models."""
    if isinstance(value, list):
        return [_safe(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept = {key: _safe(item) for key, item in value.items() if key not in IGNORED}
    return kept | ({"use_pretrained_backbone": False} if "use_pretrained_backbone" in kept else {})


@contextmanager
def _offline() -> Iterator[None]:
    """Refuse requests to the Hugging Face hub within a `with` block."""
    constants: Any = optional("huggingface_hub.constants", "text", "this model")
    with _LOCK:
        before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


@contextmanager
def _silent(messages: Any) -> Iterator[None]:
    """No messages and no bars of the library within a `with` block."""
    with _LOCK:
        level, bars = messages.get_verbosity(), messages.is_progress_bar_enabled()
        messages.set_verbosity(messages.CRITICAL)
        messages.disable_progress_bar()
        try:
            yield
        finally:
            messages.set_verbosity(level)
            if bars:
                messages.enable_progress_bar()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
