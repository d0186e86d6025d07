"""Folders of the library transformers: which class is built, which weights are read, and what is refused."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import nearkin as nk
from nearkin.core.errors import DataError, MismatchError
from nearkin.nets.heads import features

transformers = pytest.importorskip("transformers", reason="needs the extra text")
SIZES = {
    "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "max_position_embeddings": 16, "num_labels": 3, "pad_token_id": 0,
}  # fmt: skip
TEXTS = ["good a", "bad", "a b good bad bad"]


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[nk.Zoo]:
    with nk.Zoo(tmp_path / "zoo") as opened:
        yield opened


@pytest.fixture
def save(text_folder: Path) -> Callable[..., Any]:
    """A function that saves a small model with a tokenizer, and returns the model."""
    (text_folder / "model.safetensors").unlink()

    def saved(kind: str) -> Any:
        family = next(name for name in ("Bert", "GPT2", "Llama") if kind.startswith(name))
        sizes = SIZES if family != "GPT2" else {
            "vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16, "num_labels": 3,
            "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1,
        }  # fmt: skip
        torch.manual_seed(0)
        model = getattr(transformers, kind)(getattr(transformers, f"{family}Config")(**sizes)).eval()
        model.save_pretrained(text_folder)
        return model

    return saved


def changed(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change the weights of a folder."""
    import safetensors.torch

    file = folder / "model.safetensors"
    safetensors.torch.save_file(change(safetensors.torch.load_file(file)), file, metadata={"format": "pt"})


def require_features_of(zoo: nk.Zoo, name: str, encoder: Any, output: str = "") -> None:
    """The features of an adopted model are those of an encoder, pooled by the mean unless an output is named."""
    solved = zoo.solved(name)
    assert solved.inputs.tokenizer is not None
    x = solved.inputs.tokenizer(TEXTS)
    ids, mask = x.chunk(2, 1)
    with torch.no_grad():
        outputs = encoder(input_ids=ids, attention_mask=mask)
        found = features(solved.model(), x, "head")
    hidden = outputs.last_hidden_state
    pooled = outputs[output] if output else (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    assert torch.allclose(found, pooled, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("BertForMaskedLM", {}), ("BertForPreTraining", {}), ("GPT2LMHeadModel", {}), ("LlamaForCausalLM", {}),
        ("BertForSequenceClassification", {"head": "new"}), ("GPT2ForSequenceClassification", {"head": "new"}),
        ("BertForTokenClassification", {"head": "new"}), ("BertForMaskedLM", {"output": "last_hidden_state"}),
    ],
)  # fmt: skip
def test_the_encoder_of_a_model_with_another_head(
    zoo: nk.Zoo, save: Callable[..., Any], text_folder: Path, tmp_path: Path, kind: str, options: dict[str, str]
) -> None:
    encoder = save(kind).base_model
    record = zoo.adopt("net", str(text_folder), licence="mit", **options)
    assert record.facts["adopted"]["label"] == type(encoder).__name__
    require_features_of(zoo, "net", encoder)
    zoo.push("net", tmp_path / "pushed")
    zoo.pull(tmp_path / "pushed", "pulled")
    zoo.adopt("again", str(tmp_path / "pushed"), licence="mit")
    for name in ("pulled", "again"):
        require_features_of(zoo, name, encoder)
        assert zoo.record(name).parameters == record.parameters


@pytest.mark.parametrize("kind", ["BertForTokenClassification", "GPT2ForSequenceClassification"])
def test_heads_for_each_token_are_refused(zoo: nk.Zoo, save: Callable[..., Any], text_folder: Path, kind: str) -> None:
    save(kind)
    with pytest.raises(MismatchError, match=f"{kind} applies its head to each token, .* say head='new'"):
        zoo.adopt("net", str(text_folder))


def test_the_output_of_the_pooler(zoo: nk.Zoo, save: Callable[..., Any], text_folder: Path) -> None:
    model = save("BertModel")
    zoo.adopt("net", str(text_folder), output="pooler_output", licence="mit")
    require_features_of(zoo, "net", model, "pooler_output")
    save("BertForMaskedLM")
    with pytest.raises(MismatchError, match=r"pooler\.dense\.bias, pooler\.dense\.weight are missing"):
        zoo.adopt("none", str(text_folder), output="pooler_output")


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: {f"bert.{name}": value for name, value in weights.items()},
        lambda weights: {f"bert.{name}": value for name, value in weights.items()} | {"cls.bias": torch.ones(2)},
        lambda weights: {
            name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): value
            for name, value in weights.items()
        },
        lambda weights: {name: value for name, value in weights.items() if "pooler" not in name},
    ],
    ids=["prefix", "head", "older names", "no pooler"],
)
def test_other_forms_of_the_weights_of_an_encoder(
    zoo: nk.Zoo, save: Callable[..., Any], text_folder: Path, change: Callable[[Any], Any]
) -> None:
    model = save("BertModel")
    changed(text_folder, change)
    zoo.adopt("net", str(text_folder), licence="mit")
    require_features_of(zoo, "net", model)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_masks_that_older_files_hold_are_not_read(
    zoo: nk.Zoo, save: Callable[..., Any], text_folder: Path, dtype: torch.dtype
) -> None:
    model = save("GPT2LMHeadModel")
    masks = {"attn.bias": torch.ones(1, 1, 16, 16).tril().to(dtype), "attn.masked_bias": torch.tensor(-1e4)}
    head = {"lm_head.weight": model.lm_head.weight.detach().clone()}
    changed(text_folder, lambda weights: weights | head | {f"transformer.h.0.{key}": masks[key] for key in masks})
    zoo.adopt("net", str(text_folder), licence="mit")
    require_features_of(zoo, "net", model.transformer)


def test_a_vision_transformer_without_pooler(zoo: nk.Zoo, image_folder: Callable[[str], Path]) -> None:
    folder = image_folder("ViTModel")
    model = transformers.ViTModel.from_pretrained(folder).eval()
    changed(folder, lambda weights: {name: value for name, value in weights.items() if "pooler" not in name})
    zoo.adopt("net", str(folder), licence="mit")
    x = torch.randn(2, 3, 16, 16)
    found = features(zoo.solved("net").model(), x, "head")
    assert torch.allclose(found, model(x).last_hidden_state.mean(1), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weights: {**weights, "zzz": torch.ones(1)}, "zzz is unexpected"),
        (lambda weights: dict(list(weights.items())[1:]), "is missing"),
        (lambda weights: {f"bert.{name}": value.to(torch.int8) for name, value in weights.items()}, "of type int8"),
    ],
)
def test_other_weights_are_refused(
    zoo: nk.Zoo, save: Callable[..., Any], text_folder: Path, change: Callable[[Any], Any], words: str
) -> None:
    save("BertModel")
    changed(text_folder, change)
    with pytest.raises((DataError, MismatchError), match=words) as caught:
        zoo.adopt("net", str(text_folder))
    assert "\n" not in str(caught.value)
    assert zoo.names() == []


def test_pooling_that_is_not_supported_needs_another_one(zoo: nk.Zoo, text_folder: Path) -> None:
    (text_folder / "1_Pooling").mkdir()
    (text_folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    with pytest.raises(DataError, match="pooling by pooling_mode_lasttoken is not supported"):
        zoo.adopt("net", str(text_folder))
    zoo.adopt("net", str(text_folder), pool="mean", licence="mit")
    require_features_of(zoo, "net", transformers.BertModel.from_pretrained(text_folder).eval())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda facts: facts.clear(), "the tokenizer cannot be read"),
        (lambda facts: facts["model"]["vocab"].update(more=20), "numbers its words up to 20, the network has 20 words"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(
    zoo: nk.Zoo, text_folder: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    file = text_folder / "tokenizer.json"
    facts = json.loads(file.read_text())
    change(facts)
    file.write_text(json.dumps(facts))
    with pytest.raises((DataError, MismatchError), match=words):
        zoo.adopt("net", str(text_folder))
    assert zoo.names() == []
