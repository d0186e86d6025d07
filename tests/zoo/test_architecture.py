"""Architecture search beside a zoo: stopped anywhere, it goes on to the same end."""

from dataclasses import replace
from pathlib import Path

import pytest

import nearkin as nk
from nearkin.core.errors import TrainingError
from nearkin.core.events import Checkpoint, Event, finish
from nearkin.core.state import State
from nearkin.search.budget import Budget
from nearkin.search.network import Skeleton
from nearkin.zoo.architecture import Architecture, Search
from nearkin.zoo.zoo import Zoo

SKELETON = Skeleton(channels=4, num_cells=1)
HOW = Search(
    method="evolution",
    space="general?nodes=3",
    budget=Budget(evaluations=4),
    skeleton=SKELETON,
    proxy=nk.Recipe(steps=6),
    recipe=nk.Recipe(steps=40, batch_size=16),
)


class Stop(Exception):
    pass


def stopping(after: int) -> object:
    seen = 0

    def listen(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, Checkpoint)
        if seen == after:
            raise Stop

    return listen


def figures(found: Architecture) -> tuple[object, ...]:
    facts = found.to_dict()
    return facts["genotype"], facts["metric"], facts["loss"], facts["search"]["history"]


@pytest.fixture(scope="module")
def task() -> nk.Task:
    return nk.task("digits?classes=0,1,2&rest=other&limit=120")


def test_stopped_at_every_checkpoint_it_ends_alike(tmp_path: Path, task: nk.Task) -> None:
    whole = finish(Zoo(tmp_path / "whole").searching(task, HOW))
    zoo, stops = Zoo(tmp_path / "stopped"), 0
    while True:
        try:
            found = finish(zoo.searching(task, HOW, resume=stops > 0), stopping(2))  # type: ignore[arg-type]
            break
        except Stop:
            stops += 1
    assert stops >= 3
    assert figures(found) == figures(whole)
    assert not list((tmp_path / "stopped" / "work").glob("*.safetensors"))


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path, task: nk.Task) -> None:
    zoo = Zoo(tmp_path / "zoo")
    with pytest.raises(Stop):
        finish(zoo.searching(task, HOW), stopping(2))  # type: ignore[arg-type]
    (file,) = (tmp_path / "zoo" / "work").glob("search-*")
    state = State.load(file)
    State(state.tensors, {**state.facts, "search": {**state.facts["search"], "version": 0}}).save(file)
    with pytest.raises(TrainingError, match="version 0, this is 1"):
        finish(zoo.searching(task, HOW, resume=True))


def test_limits_hold(tmp_path: Path, task: nk.Task) -> None:
    zoo = Zoo(tmp_path / "zoo")
    free, held = (finish(zoo.searching(task, replace(HOW, parameters=limit))).outcome for limit in (None, 300))
    assert max(one.facts["parameters"] for one in free.found) > 300  # else the limit would be none
    assert len(held.found) == 4
    assert max(one.facts["parameters"] for one in held.found) <= 300


def test_cells_are_kept_and_the_nearest_with_cells_gives_them(tmp_path: Path, task: nk.Task) -> None:
    zoo = Zoo(tmp_path / "zoo")
    recipe = nk.Recipe(steps=40)
    for name, data in {"zero": "digits?detect=0&limit=120", "six": "digits?detect=6&limit=120"}.items():
        zoo.add(nk.task(data, name=name), "mlp?hidden=16", trials=1, recipe=recipe)
    assert zoo.cells("zero") is None
    kept = finish(zoo.celling("zero", SKELETON, Budget(evaluations=2)))
    finish(zoo.celling("six", SKELETON, Budget(evaluations=2), seed=1))
    assert zoo.cells("zero") == kept
    nearest = zoo.near(task, "frechet").nearest.name
    found = finish(zoo.searching(task, replace(HOW, method="kin", space="nearest", budget=Budget(evaluations=3))))
    assert found.ground.kin == nearest
    wanted = zoo.cells(nearest)
    assert wanted is not None
    assert found.ground.first == wanted.genotypes
    assert found.outcome.history[0][0] == 1
