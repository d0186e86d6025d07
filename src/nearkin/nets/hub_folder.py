"""Folders in the layout of the Hugging Face hub: `config.json`, weights as safetensors, tokenizer, model card.

Only files with data are read. Code in the folder is never run, and `auto_map` in a configuration is ignored.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.opening import local_path, read_file
from nearkin.core.plain import json_object
from nearkin.core.text import plain
from nearkin.nets.adopted_spec import AdoptedSpec, Pool
from nearkin.nets.library_models import encoder_config, is_encoder, predicts_words, transformers_model
from nearkin.nets.weight_files import weight_names

CONFIG, CARD, TOKENIZER_FILE, IMAGE_CONFIG = "config.json", "README.md", "tokenizer.json", "preprocessor_config.json"
LOGITS, POOLED = "logits", "pooler_output"
FEATURES = ("last_hidden_state", POOLED)
"""Outputs of an encoder: features of a sequence, or of the whole input."""

PER_TOKEN = ("ForTokenClassification", "ForQuestionAnswering")
MODULES = ("Transformer", "Pooling", "Normalize")
"""Parts of a model of sentence-transformers; the last one does not change which texts are near to each other."""

STEPS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
HARMLESS = ("do_convert_rgb", "do_flip_channel_order", "do_reduce_labels")
"""Steps of the preprocessing of images: those that are read, and those that are done anyway or concern labels."""

LENGTH = 128  # tokens of a text, if the model takes as many
OFFSET = frozenset({
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "longformer", "luke", "markuplm", "mluke", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
"""Kinds of models that number positions from the padding token on, so that a text has fewer tokens than positions."""
_POOLING: dict[str, Pool] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "cls": "first",
    "mean": "mean",
    "max": "max",
}


def is_hub_folder(location: str | Path) -> bool:
    """Whether a path is a folder with a configuration."""
    try:
        return (local_path(str(location)) / CONFIG).is_file()
    except DataError:
        return False


@dataclass(frozen=True)
class HubFolder:
    """A folder with a model: its configuration and, where they are present, tokenizer, image preprocessing, licence."""

    path: Path
    config: dict[str, Any]

    @classmethod
    def read(cls, location: str | Path) -> "HubFolder":
        """The folder at a path."""
        path = local_path(str(location))
        return cls(path, _json(path / CONFIG))

    @property
    def architecture(self) -> str:
        """Name of the class of the model."""
        names = self.config.get("architectures")
        name = names[0] if isinstance(names, list) and names else None
        require(
            isinstance(name, str),
            f"{self.path / CONFIG} names no architecture; adopt the model as a network string with weights={self.path}",
            DataError,
        )
        assert isinstance(name, str)
        return name

    @property
    def tokenizer(self) -> str | None:
        """Content of the tokenizer; None if the folder has none."""
        if not (self.path / TOKENIZER_FILE).exists():
            return None
        content = self._content(TOKENIZER_FILE).decode("utf-8", "replace")
        require(
            content.lstrip().startswith("{"),
            f"{self.path / TOKENIZER_FILE} is no tokenizer, expected JSON; fetch the file itself"
            + (" with git lfs pull" if content.startswith("version https://git-lfs") else ""),
            DataError,
        )
        return content

    @property
    def length(self) -> int:
        """Number of tokens of a text: that of the model, at most 128."""
        most = self.config.get("max_position_embeddings", self.config.get("n_positions"))
        if type(most) is int and self.config.get("model_type") in OFFSET:
            pad = self.config.get("pad_token_id", 1)
            most -= 1 + (pad if type(pad) is int else 1)
        known = _json(self.path / "sentence_bert_config.json").get("max_seq_length")
        given = [value for value in (most, known) if type(value) is int and value >= 1]
        return min([LENGTH, *given])

    @property
    def pad_token(self) -> str | None:
        """Name of the token that fills short texts; None if the folder does not say."""
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            token = _json(self.path / file).get("pad_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                return token
        return None

    @property
    def pool(self) -> Pool:
        """How the outputs of a sequence are pooled; the mean if the folder does not say.

        The modules that follow the model in folders of sentence-transformers are read; those that change features in
        another way are refused.
        """
        file = self.path / "modules.json"  # a list
        modules = json_object(b'{"": %b}' % self._content(file.name, b"[]"), str(file))[""]
        kinds = [item.get("type") for item in modules if isinstance(item, dict)] if isinstance(modules, list) else []
        other = [name for name in (str(kind).rpartition(".")[2] for kind in kinds) if name not in MODULES]
        require(
            not other,
            f"{self.path}: the module {_shown(other)} after the model is not supported; expected Pooling and Normalize "
            f"only: say pool='mean', 'first' or 'max' to adopt the model without it",
            DataError,
        )
        file = self.path / "1_Pooling" / CONFIG
        facts = _json(file)
        modes = [key for key, value in facts.items() if key.startswith("pooling_mode_") and value is True]
        if isinstance(facts.get("pooling_mode"), str):
            modes.append(facts["pooling_mode"])
        if not modes and not file.exists():
            return "mean"
        require(
            len(modes) == 1 and modes[0] in _POOLING,
            f"{file}: pooling by {_shown(modes) or 'an unknown rule'} is not supported; expected mean, cls or "
            f"max: say pool='mean', 'first' or 'max' to use another one",
            DataError,
        )
        return _POOLING[modes[0]]

    def spec(self, output: str = "", pool: str = "", new_head: bool = False) -> AdoptedSpec:
        """What builds the model, and which of its outputs is used.

        Of a model that predicts words only the encoder is built, and of other models with a head if a new head shall
        replace it; it returns features.

        Args:
            output: name of the output (default: features of an encoder, or scores of classes).
            pool: how features of a sequence are pooled (default: as the folder says).
            new_head: whether a new head follows the model.
        """
        name = self.architecture
        encodes = is_encoder(name) or predicts_words(name) or new_head
        if output in FEATURES or (encodes and not output):
            output = output or FEATURES[0]
            names = weight_names(self.path)
            known = any("pooler" in weight.split(".")[:2] for weight in names) if names else is_encoder(name)
            config = encoder_config(self.config, pooler=known or output == POOLED)
            pool = pool or ("" if output == POOLED else self.pool)
            return AdoptedSpec(label=config["architectures"][0], config=config, output=output, pool=pool)
        return AdoptedSpec(label=name, config=self.config, output=output or LOGITS, pool=pool)

    def network(self, spec: AdoptedSpec, new_head: bool = False) -> nn.Module:
        """The model of `spec`, with new weights; one that scores each token needs a new head."""
        assert spec.config is not None
        network = transformers_model(spec.config)
        scored = hasattr(network, "score") and spec.label.endswith("ForSequenceClassification")
        require(
            new_head or spec.output != LOGITS or not (scored or spec.label.endswith(PER_TOKEN)),
            f"{spec.label} applies its head to each token, which is not supported as the head of a text; say "
            f"head='new' to adopt its encoder with a new head",
            MismatchError,
        )
        return network

    @property
    def image_preprocessing(self) -> dict[str, Any]:
        """Size, mean, standard deviation and order of channels of images; empty if the folder does not say.

        Mean and standard deviation are those of values in [0, 1], also if the folder has them for another range. Images
        are resized to the size of a crop, without cutting off their borders.
        """
        file = self.path / IMAGE_CONFIG
        return _image_facts(_json(file), str(file))

    @property
    def licence(self) -> str:
        """Licence that the model card states; empty if it states none."""
        lines = self._content(CARD).decode("utf-8", "replace").splitlines()
        if not lines or lines[0].rstrip() != "---":
            return ""
        head = list(itertools.takewhile(lambda line: line.rstrip() != "---", lines[1:]))
        licences = _yaml_values(head, "licen[sc]e")
        return ", ".join(_yaml_values(head, "licen[sc]e_name") or licences if licences == ["other"] else licences)[:200]

    def _content(self, name: str, default: bytes = b"") -> bytes:
        """Content of a file of the folder; the default if there is none."""
        file = self.path / name
        return bytes(read_file(file)) if file.exists() else default


def _image_facts(facts: Mapping[str, Any], origin: str) -> dict[str, Any]:
    steps = {name: facts.get(name) is not False for name in STEPS}
    crop = facts.get("crop_size") if steps["do_center_crop"] else None
    size = facts.get("size") if crop is None else crop
    mean, std = (
        facts.get(key) if steps["do_normalize"] else [value] for key, value in (("image_mean", 0), ("image_std", 1))
    )
    if size is None or mean is None or std is None:
        return {}
    known = {*STEPS, *HARMLESS}
    odd = [key for key in facts if key.startswith("do_") and key not in known and facts[key] is True]
    odd += [key for key in ("offset", "rescale_offset", "include_top") if facts.get(key) is True]
    odd += [] if steps["do_resize"] else ["do_resize: false"]
    sides, lists = _sides(size), all(isinstance(values, list) and values for values in (mean, std))
    factor = facts.get("rescale_factor", 1 / 255) if steps["do_rescale"] else 1
    valid = sides and lists and all(map(_is_number, (*mean, *std, factor))) and factor > 1e-6
    odd += [] if valid else ["its sizes or numbers"]
    require(
        not odd,
        f"{origin}: {_shown(odd)} cannot be expressed; give the preprocessing: size=224&mean=0.5&std=0.5",
        DataError,
    )
    scale = 1 if math.isclose(255 * factor, 1) else 255 * factor  # of values in [0, 1]
    flipped = {"order": "bgr"} if facts.get("do_flip_channel_order") is True else {}
    return {"size": sides, "mean": tuple(x / scale for x in mean), "std": tuple(x / scale for x in std), **flipped}


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width of a size; None if it is no size.

    >>> _sides({"height": 32, "width": 16}), _sides({"shortest_edge": 24}), _sides(8)
    ((32, 16), (24, 24), (8, 8))
    """
    if isinstance(size, Mapping):
        size = [size.get("height"), size.get("width")] if "height" in size else size.get("shortest_edge")
    sides = size if isinstance(size, list) else [size, size]
    return (sides[0], sides[1]) if len(sides) == 2 and all(type(side) is int and side >= 1 for side in sides) else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e6


def _shown(names: Sequence[str]) -> str:
    return plain(", ".join(names))[:80]


def _yaml_values(lines: Sequence[str], key: str) -> list[str]:
    """The values of a key at the start of a line of YAML: one, or a list in one of its two forms.

    >>> _yaml_values(["license: 'mit' # free", "tags:", "- a", "- b"], "license")
    ['mit']
    >>> _yaml_values(["license: 'mit' # free", "tags:", "- a", "- b"], "tags")
    ['a', 'b']
    """
    for number, line in enumerate(lines):
        if match := re.match(rf"{key}[ \t]*:(?:[ \t]+(.*))?$", line):
            value = _scalar(match[1] or "")
            if value.startswith("["):
                values = value.strip("[]").split(",")
            elif value:
                values = [value]
            else:
                items = (re.match(r"[ \t]*-[ \t]+(.*)$", item) for item in lines[number + 1 :])
                values = [item[1] for item in itertools.takewhile(bool, items) if item]
            return [scalar for scalar in map(_scalar, values) if scalar]
    return []


def _scalar(text: str) -> str:
    """A YAML scalar on one line, without quotes and comment.

    >>> _scalar("mit # c"), _scalar('"a # b"')
    ('mit', 'a # b')
    """
    text = text.strip()
    if text[:1] in ("'", '"') and text[:1] in text[1:]:
        return text[1 : text.index(text[0], 1)].strip()
    return re.split(r"(?:^|\s)#", text)[0].strip()


def _json(file: Path) -> dict[str, Any]:
    return json_object(bytes(read_file(file)), str(file)) if file.exists() else {}
