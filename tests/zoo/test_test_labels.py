"""No measure, and no choice that rests on one, may depend on the labels of the target's test part."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nearkin as nk
from nearkin.distance.fisher_based.readings import READINGS
from nearkin.distance.registry import MEASURES
from nearkin.tasks.rows import Values
from nearkin.zoo.zoo import Zoo

QUICK = nk.Recipe(steps=40, batch_size=32)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    made = Zoo(tmp_path_factory.mktemp("labels") / "zoo")
    for name, data in {"zero": "detect=0", "even": "parity", "all": ""}.items():
        made.add(nk.task(f"digits?{data}&limit=200", name=name), "mlp?hidden=12", trials=1, recipe=QUICK)
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    for name, y in {"sum": x.sum(1), "difference": x[:, 0] - x[:, 1]}.items():
        made.add(nk.Task.from_arrays(name, x, y), "mlp?hidden=8", trials=1, recipe=QUICK)
    return made


def with_test_targets(task: nk.Task, change: Callable[[torch.Tensor], torch.Tensor]) -> nk.Task:
    changed = change(task.test.labels())
    assert not torch.equal(changed, task.test.labels())
    return replace(task, test=replace(task.test, targets=Values(changed)), source="")


def permuted(y: torch.Tensor) -> torch.Tensor:
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]


def images() -> nk.Task:
    return nk.task("digits?classes=0,1,2&rest=other&limit=200", name="new")


def values() -> nk.Task:
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(2))
    return nk.Task.from_arrays("new", x, x[:, 1] + x[:, 2])


def ranked(zoo: Zoo, task: nk.Task, measure: str, **options: Any) -> tuple[object, ...]:
    ranking = zoo.near(task, measure, samples=120, **options)
    return tuple((kin.name, kin.trials, dict(kin.beside), kin.form) for kin in ranking)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("measure", list(MEASURES))
def test_every_measure_is_the_same_bit_for_bit_with_other_test_labels(zoo: Zoo, measure: str) -> None:
    task = images()
    assert ranked(zoo, task, measure) == ranked(zoo, with_test_targets(task, permuted), measure)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("measure", [name for name, known in MEASURES.items() if "gaussian" in known.targets])
def test_so_it_is_for_values(zoo: Zoo, measure: str) -> None:
    task = values()
    assert ranked(zoo, task, measure) == ranked(zoo, with_test_targets(task, permuted), measure)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("reading", ["auto", *READINGS])
def test_the_frechet_distance_is_the_same_with_other_test_labels(zoo: Zoo, reading: str) -> None:
    task = images()
    other = with_test_targets(task, permuted)
    assert ranked(zoo, task, "frechet", reading=reading) == ranked(zoo, other, "frechet", reading=reading)


def test_so_is_what_screening_finds(zoo: Zoo) -> None:
    task = images()
    other = with_test_targets(task, permuted)
    assert ranked(zoo, task, "frechet", screen=1) == ranked(zoo, other, "frechet", screen=1)


def test_training_labels_do_matter(zoo: Zoo, tmp_path: Path) -> None:
    """The test above could pass because nothing reads labels at all."""
    task = images()
    y = task.train.labels()
    other = replace(task, train=replace(task.train, targets=Values(permuted(y))), source="")
    for measure in ("knn", "head", "cka", "evidence", "task2vec", "logme"):
        assert ranked(zoo, task, measure) != ranked(zoo, other, measure), measure
