"""A small zoo with cells, and a target beside it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import nearkin as nk
from nearkin.core.budget import Budget
from nearkin.solver.contenders import search_skeleton
from nearkin.solver.plan import Plan
from solver.exporting import RunPython, python_runner

EPOCHS = 3
NAMES = (
    "kin-search", "random-search", "full-search", "finetune", "transfer", "lenet", "resnet18", "logistic", "svm",
)  # fmt: skip


@pytest.fixture(scope="session")
def made_kin_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "zoo"
    with nk.Zoo(folder) as zoo:
        for name, data in (("zero", "detect=0"), ("even", "parity"), ("high", "classes=5,6,7&rest=other")):
            task = nk.task(f"digits?{data}&limit=150", name=name)
            zoo.add(task, "mlp?hidden=16", trials=1, recipe=nk.Recipe.suited(task, epochs=EPOCHS))
            if name != "zero":
                zoo.search_cells(name, search_skeleton(task, channels=2), Budget(evaluations=1))
    return folder


@pytest.fixture
def kin_zoo(made_kin_zoo: Path, tmp_path: Path) -> Iterator[nk.Zoo]:
    """Three tasks, two of them with cells."""
    with nk.Zoo(shutil.copytree(made_kin_zoo, tmp_path / "zoo")) as zoo:
        yield zoo


@pytest.fixture
def target() -> nk.Task:
    return nk.task("digits?classes=0,1,2&rest=other&limit=200", name="new")


@pytest.fixture
def quick() -> Plan:
    """The whole way in a few seconds, the same every time; boosting alone would take longer than all others."""
    return Plan(budget=Budget(evaluations=1), hand_made=("resnet18",), epochs=1, only=NAMES)


@pytest.fixture(scope="session")
def run_python() -> Iterator[RunPython]:
    with python_runner() as run:
        yield run
