"""What all tests share: one thread, the real data sets, and a look at what lies behind a tensor."""

import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from postgres_server import postgres_server, shared_address  # noqa: F401  fixtures

ROOT = Path(__file__).resolve().parents[1]
MAPS = Path("/proc/self/maps")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

SLOW = (
    "cli/", "distance/test_measures", "distance/test_theory", "docs/", "fuzz/", "report/test_solution_browser",
    "search/methods/", "search/supernet/", "solver/", "store/test_bundle", "store/test_concurrency", "transfer/",
    "web/", "zoo/",
)  # fmt: skip
"""Folders and files whose tests start processes, train networks or solve tasks: all of them are marked slow."""

torch.set_num_threads(1)

# The same cases in every run, so that what passed here passes there; look for others with --hypothesis-profile=explore.
settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    max_examples=50,  # where a test does not say how many; `explore` has 100
    suppress_health_check=[HealthCheck.too_slow],  # on a busy machine
)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets: `$NEARKIN_DATA`, or `shared/data` beside the repository."""
    given = os.environ.get("NEARKIN_DATA", "")
    folder = Path(given).expanduser() if given else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data sets in {folder}; set NEARKIN_DATA")
    return folder


@pytest.fixture
def real_folder(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A function that names one of these data sets' folders; data strings find it too."""

    def named(name: str) -> Path:
        folder = real_data / name
        if not folder.is_dir():
            pytest.skip(f"there is no {name} in {real_data}")
        monkeypatch.setenv("NEARKIN_DATA", str(real_data))
        return folder

    return named


@pytest.fixture(scope="session")
def tables(real_data: Path) -> Path:
    """The folder of architecture tables, `tables` beside the real data sets."""
    folder = real_data.parent / "tables"
    if not folder.is_dir():
        pytest.skip(f"no tables in {folder}, beside the real data sets")
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where the system's Chromium is."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser found among {', '.join(BROWSERS)}; on Debian: apt-get install chromium")
    return found


@pytest.fixture(scope="session")
def mapped_file() -> Callable[[Tensor], str]:
    """A function that names the file whose mapping holds a tensor's memory; empty where it is plain memory."""
    if not MAPS.is_file():
        pytest.skip("this system does not list its mappings in /proc/self/maps")

    def behind(tensor: Tensor) -> str:
        for line in MAPS.read_text().splitlines():
            span, *_, last = line.split(maxsplit=5)
            start, end = (int(edge, 16) for edge in span.split("-"))
            if start <= tensor.data_ptr() < end:
                return last if last.startswith("/") else ""
        return ""

    return behind


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that `make test` or `make quick` leave out.

    Of a test with the mark `thinned(n)`, every n-th set of parameters stays and at least one, beginning at another one
    for each test; the others are for `make soak`. Every test of `SLOW`, on real data or for `make soak` is slow.
    """
    sets, seen = Counter(item.nodeid.split("[")[0] for item in items), Counter[str]()
    for item in items:
        if thinned := item.get_closest_marker("thinned"):
            test = item.nodeid.split("[")[0]
            if (zlib.crc32(test.encode()) + seen[test]) % min(thinned.args[0], sets[test]):
                item.add_marker(pytest.mark.soak)
            seen[test] += 1
        marked = any(item.get_closest_marker(name) for name in ("realdata", "soak"))
        if marked or item.nodeid.removeprefix("tests/").startswith(SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the tables of fuzzed inputs and of faults, from all workers."""

    def collected(property: str) -> list[tuple[Any, ...]]:
        reports = terminalreporter.stats.get("passed", [])
        return sorted(tuple(value) for report in reports for name, value in report.user_properties if name == property)

    if rows := collected("fuzz"):
        terminalreporter.section("fuzzed inputs")
        for format, inputs, accepted, refused in rows:
            terminalreporter.write_line(f"{format:<24} {inputs:>8} inputs {accepted:>8} read {refused:>8} refused")
        total = sum(row[1] for row in rows)
        terminalreporter.write_line(f"{'all':<24} {total:>8} inputs, none ended outside the error family")
    if rows := collected("fault"):
        terminalreporter.section("faults")
        for fault, faults, equal in rows:
            terminalreporter.write_line(f"{fault:<44} {faults:>6} faults {equal:>5} runs ended in equal results")
        total = sum(row[1] for row in rows)
        failed = sum("tests/faults" in report.nodeid for report in terminalreporter.stats.get("failed", []))
        found = f"damage in {failed} tests, which are not in this table" if failed else "no damage found"
        terminalreporter.write_line(f"{'all':<44} {total:>6} faults, {found}")


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[[str], Path]:
    """A function that makes a small, untrained model of images in the layout of the Hugging Face hub."""
    transformers = pytest.importorskip("transformers", reason="needs the extra text")
    vit = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    options = {
        "ViT": {**vit, "intermediate_size": 8}, "DeiT": {**vit, "intermediate_size": 8},
        "Dinov2": {**vit, "mlp_ratio": 1},
        "Swin": {"image_size": 16, "patch_size": 2, "embed_dim": 4, "depths": [1, 1], "num_heads": [1, 2],
                 "window_size": 2},
        "ResNet": {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic"},
    }  # fmt: skip

    def made(kind: str) -> Path:
        torch.manual_seed(0)
        name = next(name for name in options if kind.startswith(name))
        folder = tmp_path / kind
        config = getattr(transformers, f"{name}Config")(num_labels=3, **options[name])
        getattr(transformers, kind)(config).save_pretrained(folder)
        facts = {"size": {"height": 16, "width": 16}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.25, 0.25, 0.5]}
        (folder / "preprocessor_config.json").write_text(json.dumps(facts))
        return folder

    return made


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """A small, untrained text encoder in the layout of the Hugging Face hub."""
    transformers = pytest.importorskip("transformers", reason="needs the extra text")
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra text")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16,
    )  # fmt: skip
    folder = tmp_path / "bert"
    transformers.BertModel(config).save_pretrained(folder)
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "b", "good", "bad"])}
    encoder = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    encoder.save(str(folder / "tokenizer.json"))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    return folder
