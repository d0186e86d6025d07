"""Models of the library transformers: build one from a configuration, and rename weights as the library does.

Only classes of the library itself are built. Nothing is read from the network, whatever a configuration names.
"""

import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, NearkinError, optional, require

LIBRARY = "transformers"
POOLER = "add_pooling_layer"
"""Argument of constructors, and here also key of a configuration: whether the layer after the first token is built."""

IGNORED = (
    "auto_map", "dtype", "torch_dtype", "quantization_config", "fusion_config", "transformers_weights",
    "attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation",
)  # fmt: skip
"""Keys of a configuration, also of its parts, that name code, files, or other types of numbers."""

_LOCK = threading.RLock()


def transformers_model(config: Mapping[str, Any]) -> nn.Module:
    """The model of a configuration, with new weights; without a pooler if the configuration says so."""
    factory = _factory(config)
    takes_pooler = POOLER in inspect.signature(factory).parameters
    options = {POOLER: config[POOLER]} if takes_pooler and type(config.get(POOLER)) is bool else {}
    try:
        with _offline():
            settings = factory.config_class.from_dict(_safe(config))
            settings._attn_implementation = "eager"  # the others have no second derivatives
            model: nn.Module = factory(settings, **options)
    except NearkinError:
        raise
    except ConnectionError as refused:
        raise DataError(
            f"the configuration of {factory.__name__} refers to another model on the Hugging Face hub, which is not "
            f"read; expected all of it in one folder: adopt another model"
        ) from refused
    except Exception as wrong:  # the library checks values with exceptions of its own
        raise DataError(
            f"{factory.__name__} cannot be built from its configuration ({_line(wrong)}); fetch the folder again"
        ) from wrong
    return model.float()


def encoder_config(config: Mapping[str, Any], pooler: bool) -> dict[str, Any]:
    """The configuration of a model's encoder, which returns features instead of scores.

    Args:
        config: of a model with a head, or of an encoder.
        pooler: whether the encoder has a layer that follows the first token.
    """
    factory, library = _factory(config), optional(LIBRARY, "text", "this model")
    encoder = factory if is_encoder(factory.__name__) else library.MODEL_MAPPING.get(factory.config_class, None)
    encoder = encoder[0] if isinstance(encoder, tuple) else encoder
    require(
        encoder is not None,
        f"the library transformers has no encoder for {factory.__name__}; expected a model that returns features or "
        f"scores of classes: adopt another one",
        DataError,
    )
    without = {} if pooler or POOLER not in inspect.signature(encoder).parameters else {POOLER: False}
    kept = {key: value for key, value in config.items() if key != POOLER}
    return {**kept, "architectures": [encoder.__name__], **without}


def is_encoder(architecture: str) -> bool:
    """Whether a class of the library returns features, as far as its name says.

    >>> is_encoder("BertModel"), is_encoder("GPT2LMHeadModel")
    (True, False)
    """
    return architecture.endswith("Model") and not predicts_words(architecture)


def predicts_words(architecture: str) -> bool:
    """Whether a class of the library predicts parts of its inputs, such as words, as far as its name says."""
    return architecture.endswith(
        ("ForMaskedLM", "LMHeadModel", "ForCausalLM", "ForPreTraining", "HeadsModel", "ForMaskedImageModeling")
    )


def _factory(config: Mapping[str, Any]) -> Any:
    """The class of the library that a configuration names."""
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
    return factory


def is_library_model(network: nn.Module) -> bool:
    """Whether the class of a network is one of the library."""
    return _is_own(type(network)) and hasattr(network, "config")


def renamed_weights(
    network: nn.Module, tensors: Mapping[str, Tensor], origin: str, derived: tuple[str, ...]
) -> Mapping[str, Tensor]:
    """Weights of a file under the names that the network has in memory; the library changes them between versions.

    An encoder is also read from a file of a model with a head, without the head, and without a pooler that it lacks.

    Args:
        network: a model of the library; it is not changed.
        tensors: by their names in the file.
        origin: names the file in errors.
        derived: ends of names that the file may lack or have in addition.
    """
    library = optional(LIBRARY, "text", "this model")
    factory: Any = type(network)
    without_pooler = getattr(network, "pooler", network) is None and POOLER in inspect.signature(factory).parameters
    options = {POOLER: False} if without_pooler else {}
    try:
        with _offline(), _silent(library.utils.logging):
            model, report = factory.from_pretrained(
                None, config=network.config, state_dict=dict(tensors), dtype=torch.float32, output_loading_info=True,
                ignore_mismatched_sizes=True, local_files_only=True, trust_remote_code=False,
                **options,
            )  # fmt: skip
    except Exception as wrong:  # of any class
        raise MismatchError(
            f"{origin} does not fit {factory.__name__} ({_line(wrong)}); fetch the folder again"
        ) from wrong
    for problem in ("missing", "unexpected", "mismatched"):
        keys = sorted(str(key if isinstance(key, str) else key[0]) for key in report[f"{problem}_keys"])
        keys = [key for key in keys if not key.endswith(derived)]
        if problem == "unexpected":
            keys = [key for key in keys if not _is_dropped(key, network, tensors)]
        require(
            not keys,
            f"{origin} does not fit {factory.__name__}: {', '.join(keys[:3])} {'are' if keys[1:] else 'is'} {problem}; "
            f"use the network and options it was trained with",
            MismatchError,
        )
    weights: dict[str, Tensor] = model.state_dict()
    return weights


def _is_dropped(name: str, network: Any, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a weight of a file belongs to a head that an encoder does not have, or to a pooler that it lacks."""
    prefix = f"{network.base_model_prefix}."
    encoder = network.base_model is network and any(key.startswith(prefix) for key in tensors)
    if encoder and not name.startswith(prefix):
        return True
    return getattr(network, "pooler", network) is None and name.removeprefix(prefix).startswith("pooler.")


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
