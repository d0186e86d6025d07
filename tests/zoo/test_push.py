"""A model as a folder: what is pushed comes back equal, transformers reads it, and damaged folders are refused."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from hostile import Canary, canary_in
from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution
from nearkin.core.plain import CHECKSUM, sealed
from nearkin.nets import trusted_code
from nearkin.nets.adopted_spec import AdoptedSpec
from nearkin.nets.trusted_code import TrustError
from nearkin.search.networks.named import network_string
from nearkin.search.networks.skeleton import Skeleton
from nearkin.search.spaces.registry import space
from nearkin.zoo import model_card as cards
from nearkin.zoo import pushed_files
from nearkin.zoo.pushed_files import EXTRA, MANIFEST

QUICK = nk.Recipe(epochs=2)
DATA = "digits?detect=6&limit=100"
LENET = "lenet?width=0.25"
NETWORK_FILE = """
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.body, self.last = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.last(self.body(x).tanh())
"""


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust that tests give is not remembered by the user who runs them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[nk.Zoo]:
    with nk.Zoo(tmp_path / "from") as zoo:
        yield zoo


@pytest.fixture
def other(tmp_path: Path) -> Iterator[nk.Zoo]:
    with nk.Zoo(tmp_path / "to") as zoo:
        yield zoo


def sequential() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    layers(torch.randn(16, 3))  # running statistics that are not the initial ones
    return layers.eval()


def pushed(zoo: nk.Zoo, folder: Path, **options: Any) -> Path:
    """A small adopted model as a folder."""
    zoo.adopt("net", sequential(), preprocess="shape=3", licence="mit", source="a test")
    zoo.push("net", folder, **options)
    return folder


def tensors(solved: nk.Solved) -> dict[str, Tensor]:
    return {**solved.trials[0].params, **solved.trials[0].buffers}


def require_equal(first: nk.Solved, second: nk.Solved) -> None:
    """Weights, buffers and outputs are equal to the last bit."""
    a, b = tensors(first), tensors(second)
    assert set(a) == set(b)
    assert all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)
    assert set(first.trials[0].params) == set(second.trials[0].params)
    assert first.facts["classes"] == second.facts["classes"]
    assert first.inputs == second.inputs
    shape = first.inputs.shape
    x = torch.ones(2, *shape, dtype=torch.int64) if first.inputs.tokenizer else torch.randn(2, *shape)
    assert torch.equal(first.model()(x), second.model()(x))


def texts() -> tuple[Any, str]:
    """A tiny model of transformers and the content of a tokenizer."""
    transformers = pytest.importorskip("transformers", reason="the library transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="the library tokenizers is not installed")
    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *(f"w{i}" for i in range(48))])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]"])
    return transformers, tokenizer.to_str()


def bert(transformers: Any, kind: str) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50,
        max_position_embeddings=32,
    )  # fmt: skip
    model: nn.Module = getattr(transformers, kind)(config)
    return model.eval()


TOKENS = torch.arange(16).view(2, 8)


class TestRoundTrip:
    def test_adopted_layers(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        folder = pushed(zoo, tmp_path / "folder")
        record = other.pull(folder)
        assert (record.name, record.trials, record.parameters) == ("net", 0, zoo.record("net").parameters)
        assert record.facts["adopted"] == zoo.record("net").facts["adopted"]
        assert record.facts["adopted"]["licence"] == "mit"
        require_equal(zoo.solved("net"), other.solved("net"))
        assert not other.records(), "it is no task"
        names = set(nn.Sequential(*sequential()).state_dict())
        assert set(nk.nets.weight_files.read_weights(folder)) == names, "the names are those of the module"

    def test_pulled_model_can_be_pushed_again(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        zoo.add(nk.task(DATA, name="six"), LENET, trials=1, recipe=QUICK)
        zoo.push("six", tmp_path / "first", licence="mit")
        other.pull(tmp_path / "first")
        other.push("six", tmp_path / "second")
        one, two = (json.loads((tmp_path / name / MANIFEST).read_text()) for name in ("first", "second"))
        changed = {key for key in one if one[key] != two[key]}
        assert changed <= {"fit", "files", CHECKSUM}, "only the time of the training and the card differ"
        assert one["files"]["model.safetensors"] == two["files"]["model.safetensors"]

    @pytest.mark.parametrize("trial", [0, 1])
    def test_task_of_a_zoo(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path, trial: int) -> None:
        task = nk.task(DATA, name="six")
        zoo.add(task, LENET, trials=2, recipe=QUICK)
        zoo.push("six", tmp_path / "folder", trial=trial)
        record = other.pull(tmp_path / "folder", "mine")
        original, solved = zoo.solved("six"), other.solved("mine")
        params = original.trials[trial].params
        assert all(torch.equal(params[name], value) for name, value in solved.trials[0].params.items())
        assert solved.scores_on(task) == original.scores_on(task, trial)
        assert record.metric == original.trials[trial].scores.metric
        with pytest.raises(NearkinError, match="'mine' is a model without a task; name a task"):
            other.near("mine")

    def test_with_its_task_it_is_measured(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        task = nk.task(DATA, name="six")
        zoo.add(task, LENET, trials=1, recipe=QUICK)
        zoo.push("six", tmp_path / "folder")
        record = other.pull(tmp_path / "folder", task=task)
        assert (record.metric, record.trials) == (zoo.record("six").metric, 1)
        assert torch.equal(other.fisher("six").flat(), zoo.fisher("six").flat())

    def test_task_with_another_scaling_is_read_with_that_of_the_model(
        self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path
    ) -> None:
        zoo.add(nk.task(DATA, name="six"), LENET, trials=1, recipe=QUICK)
        zoo.push("six", tmp_path / "folder")
        task = nk.task("digits?detect=6&limit=300", name="more")
        record = other.pull(tmp_path / "folder", task=task)
        assert record.metric == zoo.solved("six").scores_on(task).metric

    def test_task_of_another_kind_is_refused(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        zoo.add(nk.task(DATA, name="six"), LENET, trials=1, recipe=QUICK)
        zoo.push("six", tmp_path / "folder")
        for data in ("digits?limit=100", "digits?detect=0&limit=100"):
            with pytest.raises(NearkinError, match="give the task it was trained on, or pull it without a task"):
                other.pull(tmp_path / "folder", task=nk.task(data))
        assert not len(other)

    def test_values(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        x = torch.randn(60, 4)
        task = nk.Task.from_arrays("line", x, 3 * x[:, :1] + 5, likelihood="gaussian")
        zoo.add(task, "mlp?hidden=4", trials=1, recipe=QUICK)
        zoo.push("line", tmp_path / "folder")
        other.pull(tmp_path / "folder")
        require_equal(zoo.solved("line"), other.solved("line"))
        assert other.solved("line").scores_on(task) == zoo.solved("line").scores_on(task)

    def test_images_with_their_preprocessing(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        layers = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 6 * 6, 2))
        zoo.adopt("image", layers, preprocess="size=8&mean=0.5,0.25,0.125&std=0.5&order=bgr", licence="mit")
        zoo.push("image", tmp_path / "folder")
        config = json.loads((tmp_path / "folder" / "preprocessor_config.json").read_text())
        assert (config["size"], config["image_mean"]) == ({"height": 8, "width": 8}, [0.5, 0.25, 0.125])
        other.pull(tmp_path / "folder")
        require_equal(zoo.solved("image"), other.solved("image"))
        assert other.record("image").facts["adopted"]["channel_order"] == "bgr"

    def test_searched_network(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        task = nk.task("digits?detect=6&limit=60", name="six")
        genotype = space("general").sample(torch.Generator().manual_seed(0))
        network = network_string(genotype, Skeleton(channels=4, num_cells=1))
        zoo.add(task, network, trials=1, recipe=nk.Recipe(epochs=1))
        zoo.push("six", tmp_path / "folder")
        other.pull(tmp_path / "folder")
        require_equal(zoo.solved("six"), other.solved("six"))

    def test_pulled_model_is_used_for_transfer(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        zoo.add(nk.task(DATA, name="six"), LENET, trials=1, recipe=QUICK)
        zoo.push("six", tmp_path / "folder")
        other.pull(tmp_path / "folder")
        result = other.transfer("six", nk.task("digits?detect=0&limit=60", name="zero"), 5, weights="head")
        assert 0 <= result.to_dict()["metric"] <= 1


class TestTransformers:
    def test_features(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        transformers, tokenizer = texts()
        model, folder = bert(transformers, "BertModel"), tmp_path / "folder"
        how = {"tokenizer": tokenizer, "length": 8}
        zoo.adopt("bert", model, head="new", output="last_hidden_state", pool="mean", preprocess=how, licence="mit")
        assert zoo.push("bert", folder).library == "transformers"
        other.pull(folder)
        require_equal(zoo.solved("bert"), other.solved("bert"))
        assert other.solved("bert").inputs.tokenizer == zoo.solved("bert").inputs.tokenizer
        assert (folder / EXTRA).exists(), "the new head"
        for library_class in (transformers.BertModel, transformers.AutoModel):
            read = library_class.from_pretrained(folder).eval()
            assert torch.equal(read(TOKENS).last_hidden_state, model(TOKENS).last_hidden_state)
        encoded = transformers.AutoTokenizer.from_pretrained(folder)(["w1 w2", "w3"], padding=True)
        assert encoded["input_ids"] == [[3, 4], [5, 0]]
        again = other.adopt("hub", str(folder), licence="mit")
        assert again.parameters == other.record("bert").parameters, "other tools see a folder of the hub"

    def test_classes_and_tied_weights(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        transformers, tokenizer = texts()
        how = {"tokenizer": tokenizer, "length": 8}
        for kind, options in (
            ("BertForSequenceClassification", {}),
            ("BertForMaskedLM", {"head": "new", "pool": "mean"}),
        ):
            model, folder = bert(transformers, kind), tmp_path / kind
            zoo.adopt(kind, model, output="logits", preprocess=how, licence="mit", **options)
            zoo.push(kind, folder)
            other.pull(folder)
            require_equal(zoo.solved(kind), other.solved(kind))
            read, about = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
            assert not any(about.values()), "no weight is missing or unexpected"
            assert torch.equal(read.eval()(TOKENS).logits, model(TOKENS).logits)
            model.save_pretrained(tmp_path / f"{kind} saved")
            names = [set(nk.nets.weight_files.read_weights(path)) for path in (folder, tmp_path / f"{kind} saved")]
            assert names[0] == names[1], "the names of save_pretrained"

    def test_code_in_a_configuration_is_not_written(self, zoo: nk.Zoo, tmp_path: Path) -> None:
        transformers, tokenizer = texts()
        bert(transformers, "BertForSequenceClassification").save_pretrained(tmp_path / "hub")
        file = tmp_path / "hub" / "config.json"
        config = {**json.loads(file.read_text()), "auto_map": {"AutoModel": "evil.Model"}, "torch_dtype": "float16"}
        file.write_text(json.dumps(config))
        (tmp_path / "hub" / "tokenizer.json").write_text(tokenizer)
        zoo.adopt("hub", str(tmp_path / "hub"), licence="mit")
        zoo.push("hub", tmp_path / "folder")
        written = json.loads((tmp_path / "folder" / "config.json").read_text())
        assert not {"auto_map", "torch_dtype"} & set(written)
        assert written["dtype"] == "float32"


class TestModelCard:
    def test_sections_and_figures(self, zoo: nk.Zoo, tmp_path: Path) -> None:
        for digit in (0, 6):
            zoo.add(nk.task(f"digits?detect={digit}&limit=100", name=f"d{digit}"), LENET, trials=1, recipe=QUICK)
        distance = next(iter(zoo.near("d6", "frechet"))).distance
        zoo.push("d6", tmp_path / "folder", licence="MIT")
        card = (tmp_path / "folder" / "README.md").read_text()
        assert card.startswith("---\nlicense: mit\nlibrary_name: nearkin\n")
        assert "pipeline_tag: image-classification" in card
        assert f"| accuracy on 359 test samples | {zoo.record('d6').metric:.4f} |" in card
        assert "trace of the Fisher information" in card
        assert f"| d0 | frechet | {distance:.3f} |" in card

    def test_folders_of_this_machine_are_not_published(self, zoo: nk.Zoo, tmp_path: Path) -> None:
        rows = "\n".join(f"{i},{i % 7},{'yes' if i % 2 else 'no'}" for i in range(60))
        (tmp_path / "secret place").mkdir()
        (tmp_path / "secret place" / "t.csv").write_text(f"a,b,c\n{rows}\n")
        zoo.add(nk.task(f"csv:{tmp_path}/secret place/t.csv?target=c", name="t"), "mlp", trials=1, recipe=QUICK)
        zoo.push("t", tmp_path / "folder")
        for file in (tmp_path / "folder").iterdir():
            assert b"secret place" not in file.read_bytes()
        assert "csv:t.csv" in (tmp_path / "folder" / "README.md").read_text()

    @pytest.mark.parametrize(
        "text",
        [
            'mit"\ntags: [evil]',
            "x\n---\n# evil",
            "a: b #c",
            "'",
            "\u2028evil: true",
            "\x1b[31m",
            "!!python/object",
            "a\\",
        ],
    )
    def test_texts_cannot_change_the_front_matter(self, text: str) -> None:
        yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
        facts: Any = {
            "name": text, "network": "mlp", "label": text, "licence": text, "source": text, "channel_order": "rgb",
            "data": text, "seed": 0, "trial": 0, "figures": {"parameters": 3}, "versions": {"a": text},
            "kin": [{"name": text, "measure": text, "distance": 0.5}],
            "task": {"likelihood": "categorical", "classes": [text, "b"], "input_shape": [3]},
            "fit": {"metric": 0.5, "loss": 0.5, "count": 10, "seconds": 1.0, "reached": True},
        }  # fmt: skip
        card = cards.model_card(facts, {text: text})
        front = card.split("\n---\n")[0].removeprefix("---\n")
        values = yaml.safe_load(front)
        assert set(values) == {"license", "license_name", "library_name", "tags", "pipeline_tag"}
        assert (values["license"], values["tags"], values["library_name"]) == ("other", ["nearkin"], "nearkin")
        assert values["license_name"] == nk.core.text.plain(text)
        assert sum(line.startswith("# ") for line in card.splitlines()) == 1
        assert not {"\x1b", "\u2028"} & set(card)


class TestWriting:
    def test_folder_with_files_is_refused_and_foreign_files_stay(self, zoo: nk.Zoo, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "README.md").write_text("my project")
        with pytest.raises(NearkinError, match="is not empty; choose another one, or add --overwrite"):
            pushed(zoo, folder)
        for manifest in (None, "{}", "[", '{"format": "other"}'):
            if manifest is not None:
                (folder / MANIFEST).write_text(manifest)
            with pytest.raises(NearkinError, match="replaces only models that it wrote: choose another folder"):
                zoo.push("net", folder, overwrite=True)
        assert (folder / "README.md").read_text() == "my project"
        (folder / MANIFEST).unlink()
        (folder / "README.md").unlink()
        zoo.push("net", folder)
        (folder / "mine.txt").write_text("mine")
        (folder / "tokenizer.json").write_text("of an earlier model")
        zoo.push("net", folder, overwrite=True)
        assert (folder / "mine.txt").read_text() == "mine"
        assert not (folder / "tokenizer.json").exists(), "the model has no tokenizer"
        assert not (folder / pushed_files.UNFINISHED).exists()

    def test_bad_places_and_names(self, zoo: nk.Zoo, tmp_path: Path) -> None:
        pushed(zoo, tmp_path / "folder")
        (tmp_path / "file").write_text("")
        for words, options, message in (
            (("net", tmp_path / "file"), {}, "is a file, expected a folder"),
            (("nothing", tmp_path / "new"), {}, "the zoo has no task named 'nothing'"),
            (("net", tmp_path / "new"), {"trial": 1}, "'net' has trials 0 to 0, got 1"),
            (("net", tmp_path / "new"), {"licence": "a\nb"}, "it holds control characters"),
        ):
            with pytest.raises(NearkinError, match=message):
                zoo.push(*words, **options)
        assert not (tmp_path / "new").exists()

    def test_licence_is_warned_about(self, zoo: nk.Zoo, tmp_path: Path) -> None:
        pushed(zoo, tmp_path / "folder")
        events = list(zoo.push.work("net", tmp_path / "other", licence="cc-by-nc-4.0"))
        assert any(isinstance(event, Caution) and "forbids commercial use" in event.text for event in events)

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_interrupted_push_leaves_no_model(
        self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
    ) -> None:
        """Stopped before each of its files, it leaves a folder that neither pull nor adopt accepts."""
        folder, write = pushed(zoo, tmp_path / "folder"), pushed_files.write_durably
        count = len(list(folder.iterdir()))
        for number in range(count):
            place = folder if overwrite else tmp_path / f"folder {number}"
            calls: list[Path] = []

            def stopping(path: Path, data: bytes, calls: list[Path] = calls, number: int = number) -> None:
                if len(calls) == number:
                    raise KeyboardInterrupt
                calls.append(path)
                write(path, data)

            monkeypatch.setattr(pushed_files, "write_durably", stopping)
            with pytest.raises(KeyboardInterrupt):
                zoo.push("net", place, overwrite=overwrite)
            monkeypatch.setattr(pushed_files, "write_durably", write)
            with pytest.raises(NearkinError, match=r"there is no folder|has no nearkin\.json"):
                other.pull(place)
            with pytest.raises(NearkinError):
                other.adopt("half", str(place), licence="mit")
        zoo.push("net", place, overwrite=True)
        other.pull(place, "last")
        zoo.push("net", folder, overwrite=True)
        other.pull(folder)

    def test_killed_push_leaves_no_model(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        pushed(zoo, tmp_path / "folder")
        program = (
            "import os, signal, sys, nearkin as nk\n"
            "from nearkin.zoo import pushed_files\n"
            "write = pushed_files.write_durably\n"
            "def killing(path, data):\n"
            "    os.kill(os.getpid(), signal.SIGKILL) if path.name == 'nearkin.json' else write(path, data)\n"
            "pushed_files.write_durably = killing\n"
            "nk.Zoo(sys.argv[1]).push('net', sys.argv[2])\n"
        )
        words = [sys.executable, "-c", program, str(tmp_path / "from"), str(tmp_path / "killed")]
        ended = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, timeout=120)
        assert ended.returncode == -signal.SIGKILL
        assert (tmp_path / "killed" / "model.safetensors").exists()
        with pytest.raises(NearkinError, match=r"has no nearkin\.json: nearkin push did not write it, or was"):
            other.pull(tmp_path / "killed")


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a folder, with a new checksum, as an attacker can."""
    facts = json.loads((folder / MANIFEST).read_text())
    del facts[CHECKSUM]
    change(facts)
    (folder / MANIFEST).write_bytes(sealed(facts))


class TestDamage:
    @pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
    def test_changed_or_missing_files(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path, name: str) -> None:
        folder = pushed(zoo, tmp_path / "folder")
        content = bytearray((folder / name).read_bytes())
        for changed in (content[:-1], content + b" ", content[:-1] + bytes([content[-1] ^ 1])):
            (folder / name).write_bytes(changed)
            with pytest.raises(NearkinError, match="is not the file that was pushed: its checksum differs"):
                other.pull(folder)
        (folder / name).unlink()
        with pytest.raises(NearkinError, match=f"{name} is missing; fetch the folder again"):
            other.pull(folder)
        assert not len(other)
        assert not list(other.catalogue.blobs.digests())

    def test_changed_card_is_accepted(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        folder = pushed(zoo, tmp_path / "folder")
        (folder / "README.md").write_text("# a card of my own")
        assert other.pull(folder).name == "net"

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda facts: facts["files"].update({"../a": facts["files"]["config.json"]}), r"names the file \['../a"),
            (lambda facts: facts["files"].update({"/etc/passwd": {"bytes": 1, "sha256": ""}}), "names the file"),
            (lambda facts: facts["files"].pop("model.safetensors"), "names no model.safetensors"),
            (lambda facts: facts.update(version=2), "install a newer nearkin"),
            (lambda facts: facts.update(format="other"), "is of another format"),
            (lambda facts: facts.update(name="../evil"), "cannot name a task"),
            (lambda facts: facts.update(licence="\x1b[31m"), "it holds control characters"),
            (lambda facts: facts.update(source="x" * 1000), "source has 1000 characters, expected 500 at most"),
            (lambda facts: facts.update(channel_order="gbr"), "the order of channels is 'gbr'"),
            (lambda facts: facts.update(seed="zero"), "seed is 'zero', expected a whole number"),
            (lambda facts: facts["task"].update(classes=["a"] * 7), "do not fit|does not hold what was expected"),
            (lambda facts: facts["task"]["network_inputs"].update(shape=[4]), "cannot read"),
            (lambda facts: facts["task"]["network_inputs"].update(tokenizer={"length": 3}), "no tokenizer.json"),
            (lambda facts: facts.update(network="mlp"), "do not fit"),
            (lambda facts: facts.update(network=facts["network"][:-20]), "adopted network is damaged"),
            (lambda facts: facts.update(network="os:system?command=date"), "not trusted on this machine"),
        ],
    )  # fmt: skip
    def test_edited_manifests(
        self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
    ) -> None:
        folder = pushed(zoo, tmp_path / "folder")
        edited(folder, change)
        with pytest.raises(NearkinError, match=message) as refused:
            other.pull(folder)
        assert "\n" not in str(refused.value)
        assert not len(other)

    def test_manifest_without_its_checksum(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        file = pushed(zoo, tmp_path / "folder") / MANIFEST
        facts = json.loads(file.read_text())
        file.write_text(json.dumps({**facts, "licence": "apache-2.0"}))
        with pytest.raises(NearkinError, match="its checksum does not match"):
            other.pull(file.parent)
        del facts[CHECKSUM]
        for text, message in ((json.dumps(facts), "has no checksum"), ("[", "holds no JSON object"), ("", "no JSON")):
            file.write_text(text)
            with pytest.raises(NearkinError, match=message):
                other.pull(file.parent)

    def test_huge_header(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        folder = pushed(zoo, tmp_path / "folder")
        data = (2**60).to_bytes(8, "little") + b"{}"
        (folder / "model.safetensors").write_bytes(data)
        known = {"bytes": len(data), "sha256": pushed_files._digest(data)}
        edited(folder, lambda facts: facts["files"].update({"model.safetensors": known}))
        with pytest.raises(NearkinError, match="is not an intact safetensors file"):
            other.pull(folder)

    def test_places_without_a_pushed_model(self, other: nk.Zoo, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        (tmp_path / "folder").mkdir()
        for name, message in (
            ("nothing", "there is no folder"),
            ("file", "is a file, expected a folder"),
            ("folder", "store a model of others with nearkin adopt"),
        ):
            with pytest.raises(NearkinError, match=message):
                other.pull(tmp_path / name)

    def test_names_in_use(self, zoo: nk.Zoo, tmp_path: Path) -> None:
        folder = pushed(zoo, tmp_path / "folder")
        with pytest.raises(NearkinError, match="the zoo already has a task named 'net'"):
            zoo.pull(folder)
        assert zoo.pull(folder, "second").name == "second"

    def test_adopt_points_to_pull(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        folder = pushed(zoo, tmp_path / "folder")
        with pytest.raises(
            NearkinError, match="is a folder that nearkin push wrote; store its model with nearkin pull"
        ):
            other.adopt("net", str(folder))


class TestTrust:
    @pytest.fixture
    def canary(self, tmp_path: Path) -> Iterator[Canary]:
        with canary_in(tmp_path) as canary:
            yield canary

    def test_code_of_a_folder_is_not_run(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path, canary: Canary) -> None:
        folder = pushed(zoo, tmp_path / "folder")
        for network in canary.networks.values():
            for text in (network, AdoptedSpec(label="x", network=network, width=3).network_string):
                edited(folder, lambda facts, text=text: facts.update(network=text))
                with pytest.raises(NearkinError):
                    other.pull(folder)
        assert not canary.sang
        assert not len(other)

    def test_class_of_a_file(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("net.py", "copy.py"):
            (tmp_path / name).write_text(NETWORK_FILE)
        network = f"{tmp_path}/net.py:Net?width=6"
        nk.trust(str(tmp_path / "net.py"))
        model = nk.nets.registry.create_network(network)
        zoo.adopt("own", network, weights=model, preprocess="shape=3", licence="mit")
        zoo.push("own", tmp_path / "folder")
        assert "It needs code that is not in this folder: net.py:Net" in (tmp_path / "folder" / "README.md").read_text()
        other.pull(tmp_path / "folder", "trusted")
        require_equal(zoo.solved("own"), other.solved("trusted"))
        monkeypatch.setattr(trusted_code, "_process", set())
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other user"))
        with pytest.raises(TrustError, match="not trusted on this machine"):
            other.pull(tmp_path / "folder")
        assert other.pull(tmp_path / "folder", code=str(tmp_path / "copy.py")).name == "own"
        assert "copy.py" in str(nk.nets.adopted_spec.adopted_spec(other.record("own").network))
        x = torch.randn(2, 3)
        assert torch.equal(other.solved("own").model()(x), model(x))

    def test_code_for_a_network_that_needs_none(self, zoo: nk.Zoo, other: nk.Zoo, tmp_path: Path) -> None:
        folder = pushed(zoo, tmp_path / "folder")
        with pytest.raises(NearkinError, match="needs no code; leave it out"):
            other.pull(folder, code="net.py")
