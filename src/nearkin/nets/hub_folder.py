"""Folders in the layout of the Hugging Face hub: `config.json`, weights as safetensors, tokenizer, model card.

Only files with data are read. Code in the folder is never run, and `auto_map` in a configuration is ignored.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.core.errors import DataError, require
from nearkin.core.opening import local_path, read_file
from nearkin.core.plain import json_object
from nearkin.nets.adopted_spec import AdoptedSpec, Pool

CONFIG, CARD, TOKENIZER_FILE = "config.json", "README.md", "tokenizer.json"
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
}
_LICENCE = re.compile(r"^licen[sc]e:[ \t]*(\S[^\n]{0,200})$", re.MULTILINE)


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
        file = self.path / TOKENIZER_FILE
        return bytes(read_file(file)).decode("utf-8", "replace") if file.exists() else None

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
        """How the outputs of a sequence are pooled; the mean if the folder does not say."""
        modes = _json(self.path / "1_Pooling" / CONFIG)
        return next((pool for mode, pool in _POOLING.items() if modes.get(mode) is True), "mean")

    @property
    def returns_features(self) -> bool:
        """Whether the model returns features of a sequence, not scores of classes."""
        return self.architecture.endswith("Model")

    def spec(self) -> AdoptedSpec:
        """What builds the model, and which of its outputs is used."""
        if self.returns_features:
            return AdoptedSpec(
                label=self.architecture, config=self.config, output="last_hidden_state", pool=self.pool, width=0
            )
        return AdoptedSpec(label=self.architecture, config=self.config, output="logits")

    @property
    def image_preprocessing(self) -> dict[str, Any]:
        """Size, mean and standard deviation of images; empty if the folder does not say."""
        facts = _json(self.path / "preprocessor_config.json")
        size = facts.get("crop_size", facts.get("size"))
        if isinstance(size, dict):
            size = size.get("height", size.get("shortest_edge"))
        mean, std = facts.get("image_mean"), facts.get("image_std")
        if type(size) is not int or not isinstance(mean, list) or not isinstance(std, list):
            return {}
        return {"size": size, "mean": tuple(map(float, mean)), "std": tuple(map(float, std))}

    @property
    def licence(self) -> str:
        """Licence that the model card states; empty if it states none."""
        file = self.path / CARD
        text = bytes(read_file(file)).decode("utf-8", "replace") if file.exists() else ""
        head = text.split("---")[1] if text.startswith("---") and text.count("---") >= 2 else ""
        found = _LICENCE.search(head)
        return found[1].strip().strip("\"'") if found else ""


def _json(file: Path) -> dict[str, Any]:
    return json_object(bytes(read_file(file)), str(file)) if file.exists() else {}
