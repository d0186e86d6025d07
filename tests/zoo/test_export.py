"""Networks out of the house: each kind of file gives our outputs, and tells a stranger how to use it."""

import ast
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

import nearkin as nk
from nearkin.core.errors import NearkinError, OptionError
from nearkin.core.state import State
from nearkin.nets.solved import Solved
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.build import Skeleton
from nearkin.search.networks.named import network_string
from nearkin.tasks.readers.language import language_task
from nearkin.zoo.export import MANY, exported, notes
from nearkin.zoo.export_formats import load_network

CELL = Genotype.parse("normal(0): 1 = conv3(0); 2 = max3(0) + conv3(1); out = 2")
SEARCHED = network_string(CELL, Skeleton(channels=2, num_cells=1))
QUICK = nk.Recipe(steps=2, batch_size=8)


def solved_by(network: str, task: nk.Task, trials: int = 1) -> Solved:
    done = []
    for trial in range(trials):
        model = nk.build(network, task.input_shape, task.num_outputs, seed=0, trial=trial)
        done.append(nk.fit(model, task, QUICK))
    return Solved(task.name, network, task.facts(), 0, tuple(done))


@pytest.fixture(scope="module")
def images() -> nk.Task:
    """Noise of mean 5 and deviation 3 in the first channel, of mean -2 and deviation 0.5 in the second."""
    rng = torch.Generator().manual_seed(0)
    scale, shift = torch.tensor([3.0, 0.5]).view(2, 1, 1), torch.tensor([5.0, -2.0]).view(2, 1, 1)
    x = scale * torch.randn(40, 2, 8, 8, generator=rng) + shift
    return nk.Task.from_arrays("noise", x, torch.arange(40) % 3, classes=["cat", 'the "dog"', "c\\d"])


@pytest.fixture(scope="module")
def searched(images: nk.Task) -> Solved:
    return solved_by(SEARCHED, images, trials=2)


@pytest.fixture(scope="module")
def plain(images: nk.Task) -> Solved:
    return solved_by("mlp?hidden=4", images)


def module_of(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("outside", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("trial", [0, 1])
def test_the_python_file_and_its_weights_make_the_network_of_the_trial(
    searched: Solved, images: nk.Task, trial: int, tmp_path: Path
) -> None:
    done = exported(searched, "python", tmp_path / "net.py", trial)
    assert done["files"] == [str(tmp_path / "net.py"), str(tmp_path / "net.safetensors")]
    assert done["error"] <= 1e-5
    raw, x = images.test.inputs.take(torch.arange(len(images.test))), images.test.all().x
    model = module_of(tmp_path / "net.py").load(str(tmp_path / "net.safetensors"))
    assert torch.allclose(model(raw), searched.model(trial)(x).softmax(1), atol=1e-5)
    assert not torch.allclose(model(raw), searched.model(1 - trial)(x).softmax(1), atol=1e-5)


def test_weights_of_a_searched_network_are_read_back(searched: Solved, images: nk.Task, tmp_path: Path) -> None:
    done = exported(searched, "torch", tmp_path / "net.safetensors")
    assert done == {"files": [str(tmp_path / "net.safetensors")], "error": 0.0}
    x = images.test.all().x
    assert torch.equal(load_network(tmp_path / "net.safetensors")(x), searched.model()(x))


def test_weights_of_any_network_have_their_names(plain: Solved, tmp_path: Path) -> None:
    assert exported(plain, "torch", tmp_path / "net.safetensors")["error"] == 0.0
    found, wanted = load_file(tmp_path / "net.safetensors"), plain.model().state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["searched", "plain"])
def test_onnx_is_written_of_any_network(
    kind: str, images: nk.Task, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    solved: Solved = request.getfixturevalue(kind)
    assert exported(solved, "onnx", tmp_path / "net.onnx")["error"] <= 1e-5
    raw = images.test.inputs.take(torch.arange(len(images.test)))
    session = runtime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (outputs,) = session.run(["probabilities"], {"x": raw.numpy()})
    assert torch.allclose(torch.from_numpy(outputs), solved.model()(images.test.all().x).softmax(1), atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["cat", 'the "dog"', "c\\d"]


# What a stranger is told


def test_raw_inputs_give_the_metric_in_the_head_of_the_file(searched: Solved, images: nk.Task, tmp_path: Path) -> None:
    exported(searched, "python", tmp_path / "net.py")
    told = " ".join((ast.get_docstring(ast.parse((tmp_path / "net.py").read_text("utf-8"))) or "").split())
    raw, labels = images.test.inputs.take(torch.arange(len(images.test))), images.test.labels()
    model = module_of(tmp_path / "net.py").load()
    accuracy = (model(raw).argmax(1) == labels).double().mean().item()
    assert f"On the {len(labels)} test examples of 'noise': accuracy {accuracy:.4f}." in told
    assert r'the classes "cat", "the \"dog\"", "c\\d", in this order' in told


def test_by_the_notes_alone_the_weights_give_the_metric(searched: Solved, images: nk.Task) -> None:
    """Raw inputs, scaled by the numbers in the notes of `--to torch`, give the accuracy that they state."""
    told = " ".join(notes(searched))
    scaling = told.partition(": mean ")[2].partition(". ")[0]
    mean, deviation = (
        torch.tensor([float(number) for number in part.split(", ")]).view(2, 1, 1)
        for part in scaling.split("; deviation ")
    )
    assert torch.allclose(mean.flatten(), torch.tensor([5.0, -2.0]), atol=0.5)
    raw, labels = images.test.inputs.take(torch.arange(len(images.test))), images.test.labels()
    accuracy = (searched.model()((raw - mean) / deviation).argmax(1) == labels).double().mean().item()
    assert f"On the {len(labels)} test examples of 'noise': accuracy {accuracy:.4f}." in told


def test_both_kinds_of_weights_tell_the_same(searched: Solved, plain: Solved, tmp_path: Path) -> None:
    for solved in (searched, plain):
        exported(solved, "torch", tmp_path / "net.safetensors")
        facts = State.load(tmp_path / "net.safetensors").facts
        assert facts["notes"] == notes(solved)
        assert facts["task"] == solved.facts
        assert "(x − mean) / deviation for each channel" in facts["notes"][0]


def test_values_are_told_with_the_way_back_to_their_units() -> None:
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    inputs, outputs, metric = notes(solved_by("mlp?hidden=2", nk.Task.from_arrays("line", x, 50 + 9 * x[:, :1])))
    assert "for each column" in inputs
    assert "output · deviation + mean: mean" in outputs
    assert "r2" in metric
    as_they_are = nk.Task.from_arrays("raw", x, torch.arange(30) % 2, standardise=False)
    assert notes(solved_by("mlp?hidden=2", as_they_are))[0].endswith("without scaling.")


def test_of_a_vocabulary_the_beginning_is_told() -> None:
    words = " ".join(f"w{number}" for number in range(300))
    task = language_task("song", f"{words}\n" * 2, f"{words}\n", {"length": "4"})
    cell = Genotype.parse("recurrent(0): 1 = tanh(0); out = mean(1)")
    solved = solved_by(network_string(cell, Skeleton(channels=2)), task)
    inputs, outputs, _ = notes(solved)
    assert "indices of tokens" in inputs
    assert outputs.count('"') == 2 * MANY
    assert f"({len(task.classes)} in all" in outputs


# What cannot be written


def test_what_cannot_be_written_is_said_in_one_line(searched: Solved, tmp_path: Path) -> None:
    wrong: list[tuple[Solved, str, str, int, type[NearkinError], str]] = [
        (searched, "torch", "net.py", 0, OptionError, r"ends in \.safetensors, got .*net\.py"),
        (searched, "python", "net", 0, OptionError, r"ends in \.py"),
        (searched, "keras", "net.h5", 0, OptionError, "torch, onnx, python, got 'keras'"),
        (searched, "torch", "net.safetensors", 2, OptionError, "'noise' has trials 0 to 1, got 2"),
        (searched, "python", "net.py", -1, OptionError, "'noise' has trials 0 to 1, got -1"),
    ]
    for solved, to, name, trial, error, message in wrong:
        with pytest.raises(error, match=message) as said:
            exported(solved, to, tmp_path / name, trial)
        assert "\n" not in str(said.value)
    assert not list(tmp_path.iterdir())


OWN_NETWORK = """
import torch
from torch import nn

SIZE = 5


def layers(sizes):
    return nn.Sequential(nn.Flatten(), nn.Linear(128, sizes), nn.Tanh())


class Mine(nn.Module):
    def __init__(self, num_outputs, hidden=3):
        super().__init__()
        self.body, self.head = layers(hidden + SIZE), nn.Linear(hidden + SIZE, num_outputs)

    def forward(self, x):
        return self.outputs(x)

    def outputs(self, x):
        return self.head(self.body(x))


class Fixed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(128, 4))


class Late(Mine):
    def __init__(self, num_outputs):
        super().__init__(num_outputs, globals()["SIZES"])


globals()["SIZES"] = 2
"""


def test_networks_of_a_file_are_copied_or_refused_in_one_line(images: nk.Task, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_NETWORK)
    nk.trust(str(tmp_path / "own.py"))
    solved = solved_by(f"{tmp_path}/own.py:Mine?hidden=4", images)
    assert exported(solved, "python", tmp_path / "net.py")["error"] == 0
    raw = images.test.inputs.take(torch.arange(len(images.test)))
    wanted = solved.model()(images.test.all().x).softmax(1)
    assert torch.allclose(module_of(tmp_path / "net.py").predict(raw), wanted, atol=1e-6)
    for name, message in (
        ("Fixed", "takes no number of outputs.*export it as ONNX"),
        ("Late", "KeyError.*use --to onnx"),
    ):
        with pytest.raises(NearkinError, match=message) as said:
            exported(solved_by(f"{tmp_path}/own.py:{name}", images), "python", tmp_path / "other.py")
        assert "\n" not in str(said.value)
    assert not (tmp_path / "other.py").exists()
