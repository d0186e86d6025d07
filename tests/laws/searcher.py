"""What every searcher must hold to.

A test class inherits `SearcherLaws` and gives two fixtures: `make`, a function that makes the same searcher anew each
time, and `space`, the space that it looks in. Searchers whose steps are dear lower `STEPS`; those that have no best
after the first step say in `FIRST` when they have.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from nearkin.core.budget import Budget
from nearkin.core.errors import TrainingError
from nearkin.core.events import Checkpoint, Event, finish
from nearkin.core.state import State
from nearkin.search.searcher import ScoredGenotype, Searcher, SearchResult, run_search
from nearkin.search.spaces.base import Space

Make = Callable[[], Searcher[Any]]
Searched = tuple[SearchResult, list[bytes]]

WHOLE: dict[tuple[object, ...], Searched] = {}
"""The whole search of each class and each parameter of its fixtures `make` or `case`."""


def searched(searcher: Searcher[Any], budget: Budget, seed: int = 0, resume: State | None = None) -> Searched:
    """The outcome, and the checkpoint after every step as it would lie on disk."""
    saved: list[bytes] = []

    def listen(event: Event) -> None:
        if isinstance(event, Checkpoint):
            saved.append(event.capture().to_bytes())

    return finish(run_search.work(searcher, budget, seed=seed, resume=resume), listen), saved


def timeless(facts: Any) -> Any:
    """Facts without those that the clock writes."""
    if isinstance(facts, dict):
        return {name: timeless(value) for name, value in facts.items() if "seconds" not in name}
    return [timeless(value) for value in facts] if isinstance(facts, list | tuple) else facts


def course(outcome: SearchResult) -> tuple[object, ...]:
    """All of an outcome that the clock has no part in."""
    best, history = outcome.best, outcome.history
    facts = timeless(dict(best.facts))
    return best.genotype, best.score, facts, outcome.steps, outcome.evaluations, outcome.reason, history


def contents(data: bytes) -> tuple[dict[str, bytes], Any]:
    """Tensors as bytes and facts of a checkpoint."""
    state = State.from_bytes(data)
    return {name: value.numpy().tobytes() for name, value in state.tensors.items()}, timeless(dict(state.facts))


def altered(saved: bytes, name: str, value: object) -> State:
    """A checkpoint with another entry of the driver's."""
    state = State.from_bytes(saved)
    return State(state.tensors, {**state.facts, "search": {**state.facts["search"], name: value}})


class SearcherLaws:
    STEPS = 6
    FIRST = 1

    @pytest.fixture
    def whole_search(self, request: pytest.FixtureRequest, make: Make) -> Searched:
        """A search of `STEPS` steps and its checkpoints, done once for each searcher."""
        params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
        key = type(self), params.get("make"), params.get("case")
        if key not in WHOLE:
            WHOLE[key] = searched(make(), Budget(steps=self.STEPS))
        return WHOLE[key]

    def test_killed_after_any_step_and_resumed_it_ends_the_same_bit_for_bit(
        self, make: Make, whole_search: Searched
    ) -> None:
        self.check_resumed(make, whole_search)

    def check_resumed(self, make: Make, done: Searched | None = None) -> None:
        """A search that is resumed from each of its checkpoints ends as the whole one."""
        budget = Budget(steps=self.STEPS)
        whole, saved = done or searched(make(), budget)
        assert len(saved) == whole.steps > 0
        for step, data in enumerate(saved[:-1], 1):
            again, rest = searched(make(), budget, resume=State.from_bytes(data))
            assert course(again) == course(whole)
            assert list(map(contents, rest)) == list(map(contents, saved[step:]))

    def test_a_capture_is_a_copy_that_later_steps_leave_alone(self, make: Make) -> None:
        searcher = make()
        state = finish(searcher.step(searcher.init(0)))
        saved = searcher.capture(state)
        then = saved.to_bytes()
        for _ in range(2):
            if not searcher.ended(state):
                state = finish(searcher.step(state))
        assert saved.to_bytes() == then
        assert contents(searcher.capture(searcher.restore(saved)).to_bytes()) == contents(then)

    def test_the_same_seed_gives_the_same_course_whatever_the_global_generator(self, make: Make) -> None:
        budget = Budget(steps=self.STEPS)
        courses = []
        for outside in (1, 2):
            torch.manual_seed(outside)
            before = torch.get_rng_state()
            courses.append(course(searched(make(), budget, seed=3)[0]))
            assert torch.equal(torch.get_rng_state(), before)
        assert courses[0] == courses[1]

    def test_budgets_are_kept(self, make: Make) -> None:
        first, _ = searched(make(), Budget(steps=self.FIRST))
        assert first.steps == self.FIRST
        for limit in (1, self.STEPS):
            found, _ = searched(make(), Budget(evaluations=limit, steps=self.STEPS))
            assert found.steps <= self.STEPS
            assert all(count < limit for count, _ in found.history[:-1])

    def test_the_best_is_a_member_of_the_space_after_every_step(self, make: Make, space: Space) -> None:
        searcher = make()
        state = searcher.init(0)
        found: list[ScoredGenotype | None] = [searcher.best(state)]
        while len(found) <= self.STEPS and not searcher.ended(state):
            state = finish(searcher.step(state))
            found.append(searcher.best(state))
        assert found[-1] is not None
        assert all(space.contains(best.genotype) for best in found if best is not None)
        top = searcher.top(state, 3)
        assert top[0] == found[-1]
        assert len(top) == len({space.unique_key(best.genotype) for best in top}) <= 3
        assert all(space.contains(best.genotype) for best in top)

    def test_the_course_of_the_driver_is_that_of_the_searcher(self, make: Make, whole_search: Searched) -> None:
        searcher = make()
        state = searcher.init(0)
        history = []
        for _ in range(self.STEPS):
            if searcher.ended(state):
                break
            state = finish(searcher.step(state))
            if (best := searcher.best(state)) is not None:
                history.append((searcher.evaluations(state), best.score))
        assert whole_search[0].history == tuple(history)

    def test_settings_are_plain_json(self, make: Make) -> None:
        settings = dict(make().settings())
        assert json.loads(json.dumps(settings)) == settings

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("version", 0, "the checkpoint has version 0, expected"),
            ("method", "guessing", r"made with another method: guessing, expected"),
            ("seed", 77, r"made with another seed: 77, expected 0"),
            ("settings", {"other": 1}, "made with another settings"),
        ],
    )
    def test_a_checkpoint_of_another_search_is_refused_in_one_line(
        self, make: Make, whole_search: Searched, name: str, value: object, message: str
    ) -> None:
        _, saved = whole_search
        with pytest.raises(TrainingError, match=message) as refused:
            searched(make(), Budget(steps=self.FIRST + 1), resume=altered(saved[0], name, value))
        assert "\n" not in str(refused.value)

    def test_a_state_that_is_no_checkpoint_of_a_search_is_refused(self, make: Make) -> None:
        with pytest.raises(TrainingError, match="not one of a search"):
            searched(make(), Budget(steps=2), resume=State({}, {"step": 3}))
