"""What a folder of the Hugging Face hub says about pooling, images, its licence and its tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest

from nearkin.core.errors import DataError
from nearkin.nets.hub_folder import HubFolder
from nearkin.nets.weight_files import weight_names

COLOURS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.5, 0.25]}
MEAN, STD = (0.5, 0.4, 0.3), (0.5, 0.5, 0.25)


@pytest.fixture
def folder(tmp_path: Path) -> HubFolder:
    (tmp_path / "config.json").write_text("{}")
    return HubFolder.read(tmp_path)


def write(folder: HubFolder, name: str, content: Any) -> None:
    file = folder.path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("facts", "pool"),
    [
        (None, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "include_prompt": True}, "first"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, None),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
        ({"pooling_mode_mean_tokens": False, "x\n": True}, None),
        ({"pooling_mode\n": True, "pooling_mode": "la\nst"}, None),
    ],
)
def test_pooling_is_read_or_refused(folder: HubFolder, facts: Any, pool: str | None) -> None:
    if facts is not None:
        write(folder, "1_Pooling/config.json", facts)
    if pool is not None:
        assert folder.pool == pool
        return
    with pytest.raises(DataError, match="is not supported; expected mean, cls or max") as caught:
        _ = folder.pool
    assert "\n" not in str(caught.value)


def test_modules_after_pooling_that_change_features_are_refused(folder: HubFolder) -> None:
    kinds = ["Transformer", "Pooling", "Normalize"]
    write(folder, "modules.json", [{"idx": 0, "type": f"sentence_transformers.models.{kind}"} for kind in kinds])
    assert folder.pool == "mean"
    write(folder, "modules.json", [{"type": f"sentence_transformers.models.{kind}"} for kind in [*kinds, "Dense"]])
    with pytest.raises(DataError, match="the module Dense after the model is not supported"):
        _ = folder.pool
    for odd in ("3", "{}", "[1, null]"):
        write(folder, "modules.json", odd)
        assert folder.pool == "mean"
    write(folder, "modules.json", "[")
    with pytest.raises(DataError, match=r"modules\.json holds no JSON"):
        _ = folder.pool


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"size": {"height": 32, "width": 16}, **COLOURS}, ((32, 16), MEAN, STD)),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 24, "width": 20}, **COLOURS}, ((24, 20), MEAN, STD)),
        ({"size": 224, "crop_size": 200, "do_center_crop": False, **COLOURS}, ((224, 224), MEAN, STD)),
        ({"size": 8, "rescale_factor": 0.00392156862745098, "do_rescale": True, **COLOURS}, ((8, 8), MEAN, STD)),
        ({"size": 8, "do_normalize": False, **COLOURS}, ((8, 8), (0,), (1,))),
        ({"size": 8, "do_rescale": False, "do_normalize": False}, ((8, 8), (0,), (1 / 255,))),
        ({"size": 8, "rescale_factor": 1 / 127.5, **COLOURS}, ((8, 8), (0.25, 0.2, 0.15), (0.25, 0.25, 0.125))),
        ({"size": 8, "crop_size": None, "do_pad": None, **COLOURS}, ((8, 8), MEAN, STD)),
    ],
)
def test_preprocessing_of_images(folder: HubFolder, facts: dict[str, Any], expected: tuple[Any, ...]) -> None:
    write(folder, "preprocessor_config.json", facts)
    read = folder.image_preprocessing
    assert read["size"] == expected[0]
    assert read["mean"] == pytest.approx(expected[1])
    assert read["std"] == pytest.approx(expected[2])


def test_the_order_of_channels(folder: HubFolder) -> None:
    write(folder, "preprocessor_config.json", {"size": 8, "do_normalize": False, "do_flip_channel_order": True})
    assert folder.image_preprocessing["order"] == "bgr"


@pytest.mark.parametrize(
    "change",
    [
        {"do_resize": False}, {"do_pad": True}, {"do_\n": True}, {"rescale_offset": True},
        {"size": {"longest_edge": 8}}, {"size": [8]}, {"size": "8"}, {"image_mean": ["a"]}, {"image_std": []},
        {"image_mean": 0.5}, {"rescale_factor": "x"}, {"rescale_factor": 10**400}, {"rescale_factor": 0},
    ],
)  # fmt: skip
def test_preprocessing_that_cannot_be_expressed_is_refused(folder: HubFolder, change: dict[str, Any]) -> None:
    write(folder, "preprocessor_config.json", {"size": 8, **COLOURS, **change})
    with pytest.raises(DataError, match="cannot be expressed; give the preprocessing") as caught:
        _ = folder.image_preprocessing
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("facts", [{}, {"size": 8}, {"size": 8, "image_mean": [0.5]}, COLOURS])
def test_preprocessing_that_is_not_stated_is_empty(folder: HubFolder, facts: dict[str, Any]) -> None:
    write(folder, "preprocessor_config.json", facts)
    assert folder.image_preprocessing == {}


@pytest.mark.parametrize(
    ("head", "licence"),
    [
        ("license: mit", "mit"),
        ("licence: 'mit' # c", "mit"),
        ("license: mit # c", "mit"),
        ("license:\n- cc-by-nc-4.0", "cc-by-nc-4.0"),
        ("license:\n  - cc-by-nc-4.0\n  - mit\nother: x", "cc-by-nc-4.0, mit"),
        ('license: [mit, "apache-2.0"]', "mit, apache-2.0"),
        ("tags:\n- sub---x\nlicense: cc-by-nc-4.0", "cc-by-nc-4.0"),
        ("license: other\nlicense_link: x", "other"),
        ("license: other\nlicense_name: apple-amlr", "apple-amlr"),
        ("license:\ntags:\n- x", ""),
        ("license_name: x", ""),
    ],
)
def test_licence_of_a_model_card(folder: HubFolder, head: str, licence: str) -> None:
    write(folder, "README.md", f"---\n{head}\n---\nbody\nlicense: gpl\n")
    assert folder.licence == licence
    write(folder, "README.md", f"# No front matter\n---\n{head}\n---\n")
    assert folder.licence == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [("version https://git-lfs.github.com/spec/v1", "git lfs pull"), ("/etc/passwd", "expected JSON"), ("", "JSON")],
)
def test_a_tokenizer_is_json(folder: HubFolder, content: str, words: str) -> None:
    write(folder, "tokenizer.json", content)
    with pytest.raises(DataError, match=words):
        _ = folder.tokenizer


def test_names_of_weights_are_read_from_headers(tmp_path: Path) -> None:
    import safetensors.torch
    import torch

    assert weight_names(tmp_path) == []
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.b": "x", "c": "x"}}))
    assert weight_names(tmp_path) == ["a.b", "c"]
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    assert weight_names(tmp_path) == ["w"]
    for damaged in (b"", b"abc", b"\xff" * 20, (5).to_bytes(8, "little") + b"[1,2]"):
        (tmp_path / "model.safetensors").write_bytes(damaged)
        assert weight_names(tmp_path) == []
