"""Every search method with every likelihood in every space: it runs, or it is refused in one line before any work."""

import pytest
import torch

import nearkin as nk
from nearkin.core.budget import Budget
from nearkin.core.errors import NearkinError
from nearkin.core.events import Event, Progress, finish
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.build import Skeleton
from nearkin.search.registry import METHODS
from nearkin.search.searcher import ScoredGenotype
from nearkin.search.spaces.registry import space as space_named
from nearkin.tasks.readers.language import language_task
from nearkin.zoo.best_cells import BestCells
from nearkin.zoo.search import Search
from nearkin.zoo.zoo import Zoo

IMAGES = ("categorical", "gaussian", "heteroscedastic")
LIKELIHOODS = (*IMAGES, "dense", "language")
CELL_SPACES = ("full", "general?nodes=3", "darts?nodes=2", "nasbench201")
SPACES = (*CELL_SPACES, "mobile?stages=1-1", "recurrent?nodes=2", "nearest")
SUPERNETS = ("random-shared", "darts", "pcdarts", "enas", "nao")
TINY = {
    "fuse": {"candidates": 2, "alternations": 1, "weight_steps": 1, "alpha_steps": 1, "batch_size": 8},
    "side-by-side": {"candidates": 2, "steps": 1, "batch_size": 8},
    "random-shared": {"epochs": 1, "batches_per_architecture": 9, "batch_size": 4},
    "darts": {"epochs": 1, "batch_size": 8},
    "pcdarts": {"epochs": 1, "warmup": 0, "batch_size": 8},
    "enas": {"epochs": 1, "batches_per_architecture": 9, "batch_size": 4, "controller_steps": 1},
    "nao": {"epochs": 1, "batches_per_architecture": 9, "batch_size": 4, "pool": 3, "replaced": 1, "model_steps": 1},
}
CELL_OF_IMAGES = "normal(0): 1 = conv3(0); 2 = identity(0) + max3(1); out = 2"


def runs(method: str, likelihood: str, space: str) -> bool:
    """What is promised."""
    if likelihood == "language":
        if method in ("random-shared", "enas", "nao"):
            return space in ("full", "recurrent?nodes=2")
        return method not in SUPERNETS and space in ("full", "recurrent?nodes=2", "nearest")
    if method in SUPERNETS:
        chains = space.startswith("mobile") and method in ("darts", "pcdarts")
        return likelihood in IMAGES and (space in CELL_SPACES or chains)
    return space in (*CELL_SPACES, "nearest") or (space.startswith("mobile") and likelihood in IMAGES)


@pytest.fixture(scope="module")
def tasks() -> dict[str, nk.Task]:
    x = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return {
        "categorical": nk.Task.from_arrays("signs", x, (torch.arange(24) % 2)),
        "gaussian": nk.Task.from_arrays("means", x, x.mean((1, 2, 3))),
        "heteroscedastic": nk.Task.from_arrays("noisy", x, x.mean((1, 2, 3)), likelihood="heteroscedastic"),
        "dense": nk.Task.from_arrays("squares", x, x.square(), likelihood="dense"),
        "language": language_task("song", "la la li lo\n" * 30, "la la li lo\n" * 10, {"length": "4"}),
    }


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory, tasks: dict[str, nk.Task]) -> Zoo:
    """Two tasks with cells: one of images, one of text."""
    zoo = Zoo(tmp_path_factory.mktemp("combinations") / "zoo")
    known = {"images": (tasks["categorical"], "mlp?hidden=4"), "text": (tasks["language"], "recurrent?hidden=4")}
    for name, (task, network) in known.items():
        renamed = nk.Task(name, task.train, task.test, task.likelihood, task.classes, task.input_shape, task.source)
        zoo.add(renamed, network, trials=1, recipe=nk.Recipe(steps=1))
        space = "recurrent?nodes=2" if name == "text" else "general"
        cell = space_named(space).at(0) if name == "text" else Genotype.parse(CELL_OF_IMAGES)
        zoo.keep_cells(name, BestCells(space, {}, "random", (ScoredGenotype(cell, 0.5),)))
    return zoo


@pytest.mark.thinned(4)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("method", METHODS)
def test_it_runs_or_is_refused_before_any_work(
    method: str, likelihood: str, space: str, tasks: dict[str, nk.Task], zoo: Zoo
) -> None:
    task = tasks[likelihood]
    how = Search(
        method=method, space=space, budget=Budget(steps=2), options=TINY.get(method, {}),
        skeleton=Skeleton.of_task(task, channels=4, num_cells=1, stages=(1, 1)),
        proxy=nk.Recipe(steps=1, batch_size=8), recipe=nk.Recipe(steps=1, batch_size=8),
    )  # fmt: skip
    events: list[Event] = []
    work = zoo.search.work(task, how)
    if not runs(method, likelihood, space):
        with pytest.raises(NearkinError) as refused:
            finish(work, events.append)
        assert "\n" not in str(refused.value)
        assert ";" in str(refused.value), "it says what to do"
        assert not any(isinstance(event, Progress) for event in events)
        return
    found = finish(work, events.append)
    assert found.evaluated.metric <= 1
    x = task.test.first(3).x
    assert found.evaluated.network(x).shape == {
        "dense": (3, 1, 8, 8), "language": (3, 4, task.num_outputs)
    }.get(likelihood, (3, task.num_outputs))  # fmt: skip
