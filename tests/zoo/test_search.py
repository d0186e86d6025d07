"""Architecture search beside a zoo: stopped anywhere, it goes on to the same end."""

from dataclasses import replace
from pathlib import Path

import pytest

import nearkin as nk
from interrupting import Stop, stopping_at
from nearkin.core.budget import Budget
from nearkin.core.errors import TrainingError
from nearkin.core.events import Caution, Event, Note, finish
from nearkin.core.state import State
from nearkin.search.networks.build import Skeleton
from nearkin.search.searcher import ScoredGenotype
from nearkin.search.spaces.registry import space as space_named
from nearkin.zoo.best_cells import BestCells
from nearkin.zoo.search import Architecture, Search
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


def figures(found: Architecture) -> tuple[object, ...]:
    facts = found.to_dict()
    return facts["genotype"], facts["metric"], facts["loss"], facts["search"]["history"]


@pytest.fixture(scope="module")
def task() -> nk.Task:
    return nk.task("digits?classes=0,1,2&rest=other&limit=120")


def test_stopped_at_every_checkpoint_it_ends_alike(tmp_path: Path, task: nk.Task) -> None:
    whole = Zoo(tmp_path / "whole").search(task, HOW)
    zoo, stops = Zoo(tmp_path / "stopped"), 0
    while True:
        try:
            found = finish(zoo.search.work(task, HOW), stopping_at(2))  # type: ignore[arg-type]
            break
        except Stop:
            stops += 1
    assert stops >= 3
    assert figures(found) == figures(whole)
    assert not list((tmp_path / "stopped" / "work").glob("*.safetensors"))


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path, task: nk.Task) -> None:
    zoo = Zoo(tmp_path / "zoo")
    with pytest.raises(Stop):
        finish(zoo.search.work(task, HOW), stopping_at(2))  # type: ignore[arg-type]
    (file,) = (tmp_path / "zoo" / "work").glob("search-*")
    state = State.load(file)
    State(state.tensors, {**state.facts, "search": {**state.facts["search"], "version": 0}}).save(file)
    with pytest.raises(TrainingError, match="version 0, expected 1"):
        zoo.search(task, HOW)
    found = zoo.search(task, HOW, restart=True)
    assert found.outcome.evaluations == 4


def heard(zoo: Zoo, task: nk.Task, how: Search, **options: bool) -> tuple[Architecture, list[str]]:
    events: list[Event] = []
    found = finish(zoo.search.work(task, how, **options), events.append)  # type: ignore[arg-type]
    return found, [event.text for event in events if isinstance(event, Note | Caution)]


def test_other_questions_do_not_continue_it_and_say_so(tmp_path: Path, task: nk.Task) -> None:
    zoo = Zoo(tmp_path / "zoo")
    whole = Zoo(tmp_path / "whole").search(task, HOW)
    with pytest.raises(Stop):
        finish(zoo.search.work(task, HOW), stopping_at(2))  # type: ignore[arg-type]
    (file,) = (tmp_path / "zoo" / "work").glob("search-*")
    for other in (replace(HOW, method="random"), replace(HOW, options={"population": 3, "tournament": 2})):
        _, notes = heard(zoo, task, other)
        assert f"this one starts from the beginning, and the other one is kept in {file.name}" in " ".join(notes)
        assert not any("resumed after" in note for note in notes)
    found, notes = heard(zoo, task, HOW)
    assert any("resumed after step 2" in note for note in notes)
    assert figures(found) == figures(whole)


def test_a_larger_budget_continues_the_search_and_restart_does_not(tmp_path: Path, task: nk.Task) -> None:
    zoo = Zoo(tmp_path / "zoo")
    more = replace(HOW, budget=Budget(evaluations=5))
    for options, continued in (({}, True), ({"restart": True}, False)):
        with pytest.raises(Stop):
            finish(zoo.search.work(task, HOW), stopping_at(2))  # type: ignore[arg-type]
        found, notes = heard(zoo, task, more, **options)
        assert any("resumed after" in note for note in notes) is continued
        assert found.outcome.evaluations == 5


def test_a_finished_search_is_not_used_for_another_budget(tmp_path: Path, task: nk.Task) -> None:
    """Stopped in the last training; a larger budget must search further, another recipe must not."""
    zoo = Zoo(tmp_path / "zoo")
    with pytest.raises(Stop):
        finish(zoo.search.work(task, HOW), stopping_at(5))  # type: ignore[arg-type]
    assert list((tmp_path / "zoo" / "work").glob("training-*"))
    other, notes = heard(zoo, task, replace(HOW, recipe=nk.Recipe(steps=3)))
    assert "the search is finished; continuing with the training of its best genotype" in notes
    assert (other.outcome.evaluations, other.evaluated.steps) == (4, 3)
    longer, _ = heard(zoo, task, replace(HOW, budget=Budget(evaluations=6)))
    assert longer.outcome.evaluations == 6


def test_a_broken_checkpoint_is_named_and_the_search_done_again(tmp_path: Path, task: nk.Task) -> None:
    zoo = Zoo(tmp_path / "zoo")
    with pytest.raises(Stop):
        finish(zoo.search.work(task, HOW), stopping_at(2))  # type: ignore[arg-type]
    (file,) = (tmp_path / "zoo" / "work").glob("search-*")
    file.write_bytes(file.read_bytes()[:-1000])
    found, notes = heard(zoo, task, HOW)
    assert any(str(file) in note and "done again" in note for note in notes)
    assert figures(found) == figures(Zoo(tmp_path / "whole").search(task, HOW))


def test_limits_hold(tmp_path: Path, task: nk.Task) -> None:
    zoo = Zoo(tmp_path / "zoo")
    free, held = (zoo.search(task, replace(HOW, parameters=limit)).outcome for limit in (None, 300))
    assert max(one.facts["parameters"] for one in free.found) > 300  # else the limit would be none
    assert len(held.found) == 4
    assert max(one.facts["parameters"] for one in held.found) <= 300


def test_cells_are_kept_and_the_nearest_with_cells_gives_them(tmp_path: Path, task: nk.Task) -> None:
    zoo = Zoo(tmp_path / "zoo")
    recipe = nk.Recipe(steps=40)
    for name, data in {"zero": "digits?detect=0&limit=120", "six": "digits?detect=6&limit=120"}.items():
        zoo.add(nk.task(data, name=name), "mlp?hidden=16", trials=1, recipe=recipe)
    assert zoo.cells("zero") is None
    kept = zoo.search_cells("zero", SKELETON, Budget(evaluations=2))
    zoo.search_cells("six", SKELETON, Budget(evaluations=2), seed=1)
    assert zoo.cells("zero") == kept
    nearest = zoo.near(task, "frechet").nearest.name
    found = zoo.search(task, replace(HOW, method="warm-start", space="nearest", budget=Budget(evaluations=3)))
    assert found.domain.kin == nearest
    wanted = zoo.cells(nearest)
    assert wanted is not None
    assert found.domain.first == wanted.genotypes
    assert found.outcome.history[0][0] == 1


def test_without_seed_cells_random_is_a_pure_control(tmp_path: Path, task: nk.Task) -> None:
    zoo = Zoo(tmp_path / "zoo")
    zoo.add(nk.task("digits?detect=0&limit=120", name="zero"), "mlp?hidden=16", trials=1, recipe=nk.Recipe(steps=5))
    cells = zoo.search_cells("zero", SKELETON, Budget(evaluations=3), proxy=nk.Recipe(steps=2))
    control = replace(HOW, method="random", space="nearest", budget=Budget(evaluations=3))
    seeded, plain = (zoo.search(task, replace(control, seed_cells=given)) for given in (True, False))
    assert {best.genotype for best in seeded.outcome.found} == set(cells.genotypes)
    assert {best.facts["origin"] for best in plain.outcome.found} == {"drawn"}
    assert plain.domain.space.name == seeded.domain.space.name
    assert (seeded.to_dict()["seed_cells"], plain.to_dict()["seed_cells"]) == (True, False)


def test_cells_are_searched_by_any_method(tmp_path: Path) -> None:
    zoo = Zoo(tmp_path / "zoo")
    zoo.add(nk.task("digits?detect=0&limit=120", name="zero"), "mlp?hidden=16", trials=1, recipe=nk.Recipe(steps=5))
    options = {"candidates": 2, "alternations": 2}
    found = zoo.search_cells("zero", SKELETON, Budget(steps=2), method="fuse", options=options)
    assert found.method == "fuse"
    assert zoo.cells("zero") == found


@pytest.mark.parametrize("method", ["darts", "random"])
def test_chains_of_other_stages_are_searched_and_trained(tmp_path: Path, task: nk.Task, method: str) -> None:
    space, budget = "mobile?stages=1-2&kernels=3-5&expansions=2", Budget(steps=2)
    found = Zoo(tmp_path / "zoo").search(task, replace(HOW, method=method, space=space, budget=budget))
    assert found.skeleton.stages == (1, 2)
    assert found.to_dict()["genotype"].count("mbconv") >= 1
    assert found.domain.space.contains(found.evaluated.genotype)


def test_a_restricted_space_of_chains_has_its_stages_too(tmp_path: Path, task: nk.Task) -> None:
    zoo, space = Zoo(tmp_path / "zoo"), "mobile?stages=1-2&kernels=3-5&expansions=2"
    zoo.add(nk.task("digits?detect=0&limit=120", name="zero"), "mlp?hidden=16", trials=1, recipe=nk.Recipe(steps=5))
    chains = [ScoredGenotype(space_named(space).at(number), 0.5, {}) for number in (0, 5)]
    zoo.keep_cells("zero", BestCells(space, replace(SKELETON, stages=(1, 2)).to_dict(), "random", tuple(chains)))
    found = zoo.search(task, replace(HOW, method="random", space="nearest", budget=Budget(evaluations=2)))
    assert found.skeleton.stages == (1, 2)
    assert found.domain.space.contains(found.evaluated.genotype)
