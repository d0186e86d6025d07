"""Push a trained network to a folder in the layout of the Hugging Face hub.

The weights of a model of the library transformers have the names that its class expects, so that `from_pretrained`
reads the folder. What the class does not store, such as a head of nearkin, is in a second file. Nothing is uploaded.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from nearkin.core.errors import ZooError, require
from nearkin.core.events import Caution, Note, Work
from nearkin.core.opening import local_path
from nearkin.core.plain import typed
from nearkin.core.text import byte_text
from nearkin.distance.fisher_based.forms import DEFAULT, FALLBACK
from nearkin.nets.adopted import AdoptedNetwork
from nearkin.nets.adopted_spec import ADOPTED_FACTS, AdoptedSpec, adopted_spec, network_label
from nearkin.nets.hub_folder import CARD, CONFIG, IMAGE_CONFIG, TOKENIZER_FILE
from nearkin.nets.solved import Solved, fit_facts
from nearkin.nets.training_loop import Fit
from nearkin.nets.weight_files import WHOLE_FILE
from nearkin.store.records import TaskRecord, require_plain
from nearkin.tasks.network_inputs import NetworkInputs
from nearkin.tasks.texts import Tokenizer
from nearkin.zoo.adopted_rows import LONGEST_TEXT, without_tokenizer
from nearkin.zoo.licences import licence_caution
from nearkin.zoo.model_card import model_card
from nearkin.zoo.pushed_files import (
    EXTRA,
    MANIFEST,
    TASK_KEYS,
    TOKENIZER_CONFIG,
    KinFacts,
    ModelFigures,
    PushedFacts,
    require_place,
    write_folder,
)
from nearkin.zoo.solved_tasks import SolvedTasks

NEAREST = 5  # kin in the model card
PREFIX = "network."  # of the weights of the module in an adopted network
PULLED = "pulled"
"""Key among the facts of a row for what `pull` read: figures, kin, and the data of the training."""


@dataclass(frozen=True)
class PushedModel:
    """Result of a push.

    Attributes:
        name: of the model in the zoo.
        folder: that was written.
        files: names of its files.
        bytes: their size.
        licence: of the model; empty if it is not stated.
        library: that reads the weights: `transformers` or `nearkin`.
    """

    name: str
    folder: Path
    files: tuple[str, ...]
    bytes: int
    licence: str
    library: str

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**vars(self), "folder": str(self.folder), "files": list(self.files)}


def push_model(
    zoo: SolvedTasks, name: str, folder: str | Path, *, trial: int = 0, overwrite: bool = False, licence: str = ""
) -> Work[PushedModel]:
    """Write one trained network of a zoo to a folder.

    Args:
        zoo: the zoo.
        name: of the task or model.
        folder: to write; it is created.
        trial: which of its networks.
        overwrite: replace the files of a model in the folder.
        licence: of the model (default: the stored one).
    """
    require_plain("licence", licence)
    require(len(licence) <= LONGEST_TEXT, f"the licence has {len(licence)} characters, expected {LONGEST_TEXT} at most")
    record, path = zoo.record(name), local_path(str(folder))
    require_place(path, overwrite)
    solved = zoo.solved(name)
    require(
        0 <= trial < len(solved.trials),
        f"'{name}' has trials 0 to {len(solved.trials) - 1}, got {trial}; choose one of these",
    )
    model, fit, spec = solved.model(trial), solved.trials[trial], adopted_spec(solved.network)
    facts = _facts(zoo, record, solved, trial, licence)
    if warning := licence_caution(name, facts["licence"]):
        yield Caution(warning)
    own, extra = _tensors(model, fit)
    files = {WHOLE_FILE: _safetensors(own), **({EXTRA: _safetensors(extra)} if extra else {})}
    files |= {file: _json(values) for file, values in _configurations(solved, facts, spec).items()}
    if tokenizer := solved.inputs.tokenizer:
        files[TOKENIZER_FILE] = tokenizer.content.encode("utf-8", "replace")
    files[CARD] = model_card(facts, record.facts.get("recipe")).encode("utf-8", "replace")
    write_folder(path, facts, files)
    size = sum(map(len, files.values())) + (path / MANIFEST).stat().st_size
    yield Note(f"'{name}': {facts['label']}, {byte_text(size)} in {path}")
    library = "transformers" if spec is not None and spec.config is not None else "nearkin"
    return PushedModel(name, path, (*files, MANIFEST), size, facts["licence"], library)


def _facts(zoo: SolvedTasks, record: TaskRecord, solved: Solved, trial: int, licence: str) -> PushedFacts:
    about, pulled = record.facts.get(ADOPTED_FACTS, {}), record.facts.get(PULLED, {})
    task = without_tokenizer(solved.facts)
    return PushedFacts(
        name=record.name,
        network=solved.network,
        label=network_label(solved.network),
        licence=licence or about.get("licence", ""),
        source=about.get("source", ""),
        channel_order=about.get("channel_order", "rgb"),
        data=_without_folders(record.data) or pulled.get("data", ""),
        task={key: task[key] for key in TASK_KEYS if key in task},
        seed=solved.seed,
        trial=trial,
        fit=fit_facts(solved.trials[trial]),  # type: ignore[typeddict-item]
        figures=_figures(zoo, record, solved, trial, pulled.get("figures", {})),
        kin=stored_kin(zoo, record.name) or pulled.get("kin", []),
        versions=_versions(),
    )


def _without_folders(data: str) -> str:
    """A data string whose location is the last part of a path: folders of this machine are not published.

    >>> _without_folders("csv:/home/me/reviews.csv?target=stars"), _without_folders("digits?detect=0")
    ('csv:reviews.csv?target=stars', 'digits?detect=0')
    """
    if not data:
        return ""
    source, mark, options = data.partition("?")
    reader, colon, location = source.partition(":")
    return f"{reader}{colon}{location.rstrip('/').rpartition('/')[2]}{mark}{options}"


def _figures(
    zoo: SolvedTasks, record: TaskRecord, solved: Solved, trial: int, pulled: Mapping[str, Any]
) -> ModelFigures:
    """Measured figures; those that were pulled, where this zoo measured none."""
    weights = sum(value.numel() for value in solved.trials[trial].params.values())
    for item in zoo.catalogue.artifacts(record.name, kind="fisher"):
        if item.trial == trial and {"trace", "num_samples"} <= set(item.facts):
            trace, count = item.facts["trace"], item.facts["num_samples"]
            return ModelFigures(parameters=weights, fisher_trace=trace, fisher_samples=count)
    return typed(ModelFigures, {**pulled, "parameters": weights}, f"the figures of '{record.name}'")


def stored_kin(zoo: SolvedTasks, name: str) -> list[KinFacts]:
    """The tasks that are nearest to a task by stored distances, nearest first; the mean of their trials."""
    values: dict[tuple[str, str], list[float]] = {}
    for key, source, _, facts in zoo.catalogue.pairs_to(name):
        value = facts.get("distance", facts.get(_aggregate(key)))
        if source != name and isinstance(value, int | float):
            values.setdefault((key, source), []).append(float(value))
    if not values:
        return []
    first = min(key for key, _ in values)  # distances of two measures are not comparable
    means = {source: sum(items) / len(items) for (key, source), items in values.items() if key == first}
    measure, nearest = first.partition(" ")[0], sorted(means, key=lambda source: (means[source], source))
    return [KinFacts(name=source, measure=measure, distance=means[source]) for source in nearest[:NEAREST]]


def _aggregate(key: str) -> str:
    """Which of several stored distances a measure uses by default, for the key of stored values."""
    return (FALLBACK if f" {FALLBACK.reading} " in key else DEFAULT).aggregate


def _versions() -> dict[str, str]:
    versions = {"nearkin": version("nearkin"), "torch": str(torch.__version__)}
    with suppress(PackageNotFoundError):
        versions["transformers"] = version("transformers")
    return versions


def _tensors(model: nn.Module, fit: Fit) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors that the class of the network stores, under its own names, and all others under nearkin's names.

    A weight with two names is written once, under the first, as `save_pretrained` does.
    """
    adopted = isinstance(model, AdoptedNetwork)
    module, prefix = (model.network, PREFIX) if isinstance(model, AdoptedNetwork) else (model, "")
    known = {f"{prefix}{name}" for name in module.state_dict()}
    tensors = {**fit.params, **fit.buffers}
    own = {name.removeprefix(prefix) if adopted else name: value for name, value in tensors.items() if name in known}
    return own, {name: value for name, value in tensors.items() if name not in known}


def _safetensors(tensors: dict[str, Tensor]) -> bytes:
    values = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    data: bytes = safetensors.torch.save(values, metadata={"format": "pt"})
    return data


def _configurations(solved: Solved, facts: PushedFacts, spec: AdoptedSpec | None) -> dict[str, dict[str, Any]]:
    """The JSON files by name: of the network, its tokenizer and its images."""
    inputs = solved.inputs
    if spec is not None and spec.config is not None:
        config = {key: value for key, value in spec.config.items() if key not in ("auto_map", "torch_dtype")}
        config["dtype"] = "float32"  # adopted weights of half precision are float32
    else:
        config = {
            "model_type": "nearkin", "architectures": [facts["label"]], "network": solved.network,
            "input_shape": list(inputs.shape), "num_outputs": solved.num_outputs,
        }  # fmt: skip
    files = {CONFIG: config}
    if inputs.tokenizer is not None:
        files[TOKENIZER_CONFIG] = _tokenizer_config(inputs.tokenizer)
    if len(inputs.shape) == 3 and inputs.mean is not None:
        files[IMAGE_CONFIG] = _image_config(inputs)
    return files


def _tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    padding = tokenizer.padding
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": tokenizer.length,
        "padding_side": padding["direction"],
    }  # fmt: skip
    known = tokenizer.id_of(padding["pad_token"]) == padding["pad_id"]
    return {**config, "pad_token": padding["pad_token"]} if known else config


def _image_config(inputs: NetworkInputs) -> dict[str, Any]:
    """Preprocessing of images as transformers reads it."""
    _, height, width = inputs.shape
    return {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": height, "width": width},
        "resample": 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
        "image_mean": list(inputs.mean or ()), "image_std": list(inputs.std or ()),
    }  # fmt: skip


def _json(values: dict[str, Any]) -> bytes:
    try:
        return json.dumps(values, indent=2, sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as odd:
        raise ZooError(f"the configuration of the network is not plain JSON ({odd}); adopt it again") from odd
