"""Exported ensembles take raw inputs and give the predictions of the solution, where nearkin is not installed."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import nearkin as nk
from nearkin.core.errors import MismatchError
from nearkin.nets.solved import Solved
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.named import network_string
from nearkin.search.networks.skeleton import Skeleton
from nearkin.solver.ensemble import Member, combined
from nearkin.solver.model_outputs import predict_inputs
from nearkin.solver.simple.models import fit_simple
from nearkin.tasks.new_inputs import read_inputs
from nearkin.transfer.machine import TangentMachine
from nearkin.zoo.export import exported
from solver.exporting import TOLERANCE, RunPython, run_onnx, visits, write

TEMPERATURE = 1.7  # of the solution
CELLS = (
    "normal(0): 1 = conv3(0); 2 = max3(0) + conv3(1); out = 2",
    "normal(0): 1 = sep_conv_3x3(0); 2 = conv5(0) + identity(1); out = 2",
)
SEARCHED = [network_string(Genotype.parse(cell), Skeleton(channels=2, num_cells=1)) for cell in CELLS]


SETTINGS = {
    "logistic": {"C": 1.0, "alpha": 1.0},
    "svm": {"C": 1.0, "gamma": 0.1},
    "boosting": {"learning_rate": 0.1, "rounds": 5, "leaves": 4, "least": 2, "columns": 4},
    "extra-trees": {"trees": 5, "least": 2, "columns": 4},
}


def member(name: str, task: nk.Task, weight: float) -> Member:
    """A simple model or a network, with a weight and a temperature."""
    if name in SETTINGS:
        done = fit_simple(name, task, fixed=SETTINGS[name])
        network, fit = done.network, done.fit
    else:
        network = name
        fit = nk.fit(nk.build(name, task.input_shape, task.num_outputs, seed=0), task, nk.Recipe(steps=20))
    return Member(Solved(task.name, network, task.facts(), 0, (fit,)), weight, 0.5 + weight)


def ensemble_of(names: list[str], task: nk.Task) -> Solved:
    members = [member(name, task, 1.0 + number) for number, name in enumerate(names)]
    return combined(members, members[0].solved.trials[0].scores, 1.0)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    write(folder / "visits.csv", visits(160, 0))
    write(folder / "new.csv", [{**row, "city": "Berlin"} if i % 3 else row for i, row in enumerate(visits(40, 1))])
    return folder


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("target", ["verdict", "age,spent"])
def test_kernel_machines_trees_linear_machines_and_networks_of_a_table(
    target: str, table: Path, tmp_path: Path, run_python: RunPython
) -> None:
    task = nk.task(f"csv:{table / 'visits.csv'}?target={target}&drop=street", name="visits")
    solved = ensemble_of(["svm", "mlp?hidden=8", "boosting", "logistic", "extra-trees", "svm"], task)
    inputs = read_inputs(table / "new.csv", task.facts(), "visits")
    said = predict_inputs(solved, inputs, TEMPERATURE)
    wanted = said.mean if said.probabilities is None else said.probabilities
    scale = max(1.0, float(wanted.abs().max()))
    for to, file in (("python", tmp_path / "m.py"), ("onnx", tmp_path / "m.onnx")):
        assert exported(solved, to, file, temperature=TEMPERATURE)["error"] <= TOLERANCE
    assert (run_python(tmp_path / "m.py", table / "new.csv") - wanted).abs().max() <= TOLERANCE * scale
    encoded = inputs.rows.take(torch.arange(len(inputs.rows)))
    assert (run_onnx(tmp_path / "m.onnx", encoded)[0] - wanted).abs().max() <= TOLERANCE * scale


@pytest.mark.soak
@pytest.mark.slow
def test_networks_and_machines_of_images(tmp_path: Path, run_python: RunPython) -> None:
    task = nk.task("digits?classes=0,1,2&rest=drop&limit=90", name="digits")
    solved = ensemble_of(["cnn", "cnn?residual=true&shifts=true", "svm", "boosting"], task)
    x = task.test.inputs.take(torch.arange(30)).float()
    as_bytes = (x * 255).round().to(torch.uint8)
    exported(solved, "python", tmp_path / "m.py", temperature=TEMPERATURE)
    exported(solved, "onnx", tmp_path / "m.onnx", temperature=TEMPERATURE, as_bytes=True)
    wanted = predict_inputs(solved, read_inputs(as_bytes, task.facts(), "digits"), TEMPERATURE).probabilities
    assert (run_onnx(tmp_path / "m.onnx", as_bytes)[0] - wanted).abs().max() <= TOLERANCE
    for inputs in (x, as_bytes):
        wanted = predict_inputs(solved, read_inputs(inputs, task.facts(), "digits"), TEMPERATURE).probabilities
        torch.save(inputs, tmp_path / "x.pt")
        assert (run_python(tmp_path / "m.py", tmp_path / "x.pt") - wanted).abs().max() <= TOLERANCE


@pytest.mark.slow
def test_searched_and_hand_made_networks_whose_definitions_have_equal_names(
    tmp_path: Path, run_python: RunPython
) -> None:
    """`convolution` is defined by the operations of cells and by the hand-made networks."""
    task = nk.task("digits?classes=0,1&rest=drop&limit=40", name="digits")
    names = [*SEARCHED, "resnet18?width=0.05", "vgg16?width=0.05", "lenet", "mlp?hidden=8"]
    solved = ensemble_of(names, task)
    torch.save(task.test.inputs.take(torch.arange(30)), tmp_path / "x.pt")
    assert exported(solved, "python", tmp_path / "m.py")["error"] <= TOLERANCE
    wanted = predict_inputs(solved, read_inputs(torch.load(tmp_path / "x.pt"), task.facts(), "digits")).probabilities
    assert (run_python(tmp_path / "m.py", tmp_path / "x.pt") - wanted).abs().max() <= TOLERANCE
    text = (tmp_path / "m.py").read_text()
    assert "def convolution(" in text
    assert "def convolution_2(" in text


def test_a_member_in_closed_form_is_refused(tmp_path: Path) -> None:
    task = nk.task("digits?classes=0,1&rest=drop&limit=40", name="digits")
    solved = ensemble_of(["mlp?hidden=4", "mlp?hidden=4"], task)
    model = solved.model()
    model.members[1] = TangentMachine.__new__(TangentMachine)
    torch.nn.Module.__init__(model.members[1])
    with (
        patch.object(Solved, "model", lambda self, trial=0: model),
        pytest.raises(MismatchError, match=r"neither ONNX nor a Python file.*; use --to torch"),
    ):
        exported(solved, "python", tmp_path / "m.py")
