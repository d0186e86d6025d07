import math
import statistics
from collections.abc import Callable, Iterable

import pytest
from torch import Generator

from nearkin.core.budget import Budget
from nearkin.core.errors import MismatchError, OptionError, TrainingError
from nearkin.core.events import Caution, Event, Work, finish
from nearkin.core.state import State
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.evolution import CHILD, Evolution, evolution
from nearkin.search.methods.local_search import local_search
from nearkin.search.methods.random_search import DRAWN, random_search
from nearkin.search.methods.sampling import GIVEN, Sampling, Trials
from nearkin.search.methods.warm_start import KIN_CHILD, OPENING, WarmStart, warm_start_search
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.searcher import run_search
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.limited import limit_space
from nearkin.search.spaces.restricted import restrict_space

SPACE = GeneralSpace((3,), ("zero", "identity", "conv3", "max3"))
PLAIN = GeneralSpace((2,), ("conv3", "conv5", "conv7", "max3", "avg3", "dil3", "dil5"))
LARGE = GeneralSpace()
MAKES: dict[str, Callable[[Space, Objective, Iterable[Genotype]], Sampling]] = {
    "random": lambda space, objective, first: random_search(space, objective, first=first),
    "evolution": lambda space, objective, first: evolution(space, objective, population=4, tournament=2, first=first),
    "local": lambda space, objective, first: local_search(space, objective, first=first),
    "warm-start": warm_start_search,
}


class Counting(Objective):
    """Any function as objective, with a list of what was asked."""

    def __init__(self, function: Callable[[Genotype], float]) -> None:
        self.function = function
        self.asked: list[Genotype] = []

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        yield from ()
        self.asked.append(genotype)
        return ObjectiveValue(self.function(genotype))

    def settings(self) -> dict[str, float]:
        return {}


def hashed(genotype: Genotype) -> float:
    return sum(map(ord, str(genotype))) * 0.618 % 1


def convolutions(genotype: Genotype) -> float:
    return str(genotype).count("conv3")


def trials_of(searcher: Sampling, steps: int, seed: int = 0) -> Trials:
    state = searcher.init(seed)
    for _ in range(steps):
        state = finish(searcher.step(state))
    return state


@pytest.fixture(params=MAKES.values(), ids=MAKES.keys())
def make(request: pytest.FixtureRequest) -> Callable[[Space, Objective, Iterable[Genotype]], Sampling]:
    found: Callable[[Space, Objective, Iterable[Genotype]], Sampling] = request.param
    return found


Make = Callable[[Space, Objective, Iterable[Genotype]], Sampling]


def test_a_class_is_measured_once_and_all_are_before_the_search_ends(make: Make) -> None:
    classes = {SPACE.unique_key(genotype) for genotype in SPACE.enumerate()}
    assert len(classes) < SPACE.size()
    objective = Counting(hashed)
    found = run_search(make(SPACE, objective, [SPACE.at(3)]), Budget(steps=500))
    asked = list(map(SPACE.unique_key, objective.asked))
    assert len(asked) == len(set(asked)) == found.evaluations == len(classes)
    assert found.steps == len(classes) + 1
    assert found.reason == "1,000 proposals in a row were measured before"
    assert found.best.score == max(map(hashed, objective.asked))


def test_upcoming_genotypes_are_those_that_follow(make: Make) -> None:
    """The next one is certain; draws and a first population are certain to their end, and the state stays."""
    objective = Counting(hashed)
    searcher = make(SPACE, objective, [SPACE.at(3), SPACE.at(40)])
    certain = {"random": 12, "evolution": 4, "local": 1, "warm-start": 6}[searcher.name]
    for start in (0, 7):
        state = trials_of(searcher, start)
        before = searcher.capture(state)
        upcoming = searcher.upcoming(state, 12, 3)
        assert searcher.capture(state).to_bytes() == before.to_bytes()
        objective.asked.clear()
        for _ in range(12):
            state = finish(searcher.step(state))
        exact = certain if start == 0 else 12 if searcher.name == "random" else 1
        assert upcoming[:exact] == objective.asked[:exact]
        assert len(upcoming) == max(exact, 3)


def test_limits_are_kept(make: Make) -> None:
    space = limit_space(LARGE, lambda cell: str(cell).count("conv"), 2, name="convolutions")
    objective = Counting(hashed)
    run_search(make(space, objective, ()), Budget(steps=40))
    assert len(objective.asked) == 40
    assert all(space.contains(genotype) for genotype in objective.asked)


@pytest.mark.parametrize("make", [MAKES[name] for name in ("random", "evolution", "local")])
def test_what_is_given_comes_first_in_its_order_and_each_class_once(make: Make) -> None:
    twins = [SPACE.at(index) for index in (5, 9, 5, 30)]
    objective = Counting(hashed)
    state = trials_of(make(SPACE, objective, twins), 6)
    assert objective.asked[:3] == [SPACE.at(5), SPACE.at(9), SPACE.at(30)]
    assert [record.facts["origin"] for record in state.records][:3] == [GIVEN] * 3
    assert GIVEN not in [record.facts["origin"] for record in state.records][3:]


def test_given_genotypes_that_a_limit_forbids_are_passed_over_with_a_caution(make: Make) -> None:
    space = limit_space(SPACE, convolutions, 1, name="convolutions")
    dear, cheap = SPACE.at(SPACE.operations.index("conv3") * 21), SPACE.at(0)
    events: list[Event] = []
    searcher = make(space, Counting(hashed), [dear, cheap])
    state = finish(searcher.step(searcher.init(0)), events.append)
    assert state.records[0].genotype == cheap
    (event,) = events
    assert isinstance(event, Caution)
    assert "its convolutions is 3, at most 1 are allowed" in event.text


def test_given_genotypes_of_another_space_are_refused(make: Make) -> None:
    with pytest.raises(MismatchError, match="not in the space general"):
        make(SPACE, Counting(hashed), [Genotype.parse("chain: skip")])


def test_a_score_that_is_no_number_is_worse_than_any(make: Make) -> None:
    objective = Counting(lambda genotype: math.nan if "conv3" in str(genotype) else -1e9)
    state = trials_of(make(SPACE, objective, [SPACE.at(42)]), 12)
    assert state.records[0].score == -math.inf
    assert state.records[state.best].score == -1e9


def test_a_genotype_whose_training_fails_is_worse_than_any_and_the_search_goes_on(make: Make) -> None:
    def score(genotype: Genotype) -> float:
        if "conv3" in str(genotype):
            raise TrainingError("the loss became nan")
        return -1.0

    events: list[Event] = []
    searcher = make(SPACE, Counting(score), [SPACE.at(42), SPACE.at(0)])
    state = finish(searcher.step(searcher.init(0)), events.append)
    state = finish(searcher.step(state), events.append)
    assert (state.records[0].score, state.best) == (-math.inf, 1)
    assert [event.text.split(":")[0] for event in events if isinstance(event, Caution)] == [
        "training of a genotype failed, it counts as the worst (the loss became nan)"
    ]
    assert searcher.restore(State.from_bytes(searcher.capture(state).to_bytes())).records == state.records


def test_the_best_is_the_earliest_of_equals(make: Make) -> None:
    assert trials_of(make(SPACE, Counting(lambda genotype: 1.0), ()), 8).best == 0


def test_random_search_finds_the_best_after_the_draws_that_combinatorics_gives() -> None:
    """The place of the best of n in a random order is uniform: mean (n + 1) / 2."""
    count = PLAIN.size()
    best = max(PLAIN.enumerate(), key=hashed)
    found = []
    for seed in range(300):
        objective = Counting(hashed)
        trials_of(random_search(PLAIN, objective), count, seed)
        found.append(1 + objective.asked.index(best))
    deviation = math.sqrt((count**2 - 1) / 12 / len(found))
    assert abs(statistics.fmean(found) - (count + 1) / 2) < 3 * deviation


def test_the_population_is_the_latest_and_children_are_neighbours_of_its_members() -> None:
    searcher = evolution(LARGE, Counting(hashed), population=5, tournament=3, first=[LARGE.at(7)])
    state = searcher.init(0)
    for step in range(40):
        living = [state.records[place].genotype for place in state.marks]
        state = finish(searcher.step(state))
        newest = state.records[-1]
        assert newest.facts["origin"] == (GIVEN if step == 0 else DRAWN if step < 5 else CHILD)
        if newest.facts["origin"] == CHILD:
            assert any(newest.genotype in LARGE.neighbours(member) for member in living)
    assert state.marks[-1] == 39
    assert len(state.marks) == 5


def test_the_best_of_the_living_has_the_child_where_a_tournament_meets_them_all() -> None:
    searcher = evolution(LARGE, Counting(hashed), population=4, tournament=4)
    state = trials_of(searcher, 4)
    for _ in range(10):
        best = max((state.records[place] for place in state.marks), key=lambda record: record.score)
        child, _ = searcher.proposer.propose(state, LARGE)
        assert child in LARGE.neighbours(best.genotype)


def test_the_oldest_dies_however_good_it_is_and_what_is_not_new_does_not_join() -> None:
    searcher = evolution(SPACE, Counting(hashed), population=3, tournament=2, first=[SPACE.at(42)])
    state = trials_of(searcher, 8)
    assert state.marks == [5, 6, 7]
    state.repeats = 1
    searcher.proposer.observe(state, 0)
    assert state.marks == [5, 6, 7]


def test_local_search_climbs_a_slope_without_measuring_more_than_the_neighbours_of_its_path() -> None:
    space = GeneralSpace((3,), ("conv3", "conv5", "max3", "avg3"))
    summit = max(space.enumerate(), key=convolutions)
    for seed in range(5):
        objective = Counting(convolutions)
        searcher = local_search(space, objective)
        state = searcher.init(seed)
        while state.best < 0 or state.records[state.best].score < 3:
            state = finish(searcher.step(state))
            assert [record.facts["origin"] for record in state.records].count(DRAWN) == 1
        assert state.records[state.best].genotype == summit
        assert len(state.records) <= 1 + 3 * len(space.neighbours(summit))


def test_local_search_leaves_a_foothold_for_a_better_neighbour_or_from_a_summit() -> None:
    searcher = local_search(SPACE, Counting(hashed))
    state = finish(searcher.step(searcher.init(0)))
    restarts = 0
    for _ in range(25):
        before = state.records[state.marks[0]]
        keys = set(map(SPACE.unique_key, SPACE.neighbours(before.genotype)))
        state = finish(searcher.step(state))
        known = [state.records[state.index_of[key]].score for key in keys if key in state.index_of]
        if state.records[-1].facts["origin"] == CHILD:
            assert state.records[state.marks[0]].score >= before.score
        else:
            restarts += 1
            assert len(known) == len(keys) or max(known) > before.score
    assert restarts > 0


def test_local_search_from_kin_starts_at_the_best_of_them() -> None:
    kin = [SPACE.at(index) for index in (3, 11, 60)]
    state = trials_of(local_search(SPACE, Counting(hashed), first=kin), 3)
    assert state.marks == [state.best]


def origins(state: Trials) -> list[object]:
    return [record.facts["origin"] for record in state.records]


def test_a_warm_start_opens_with_cells_of_the_kin_and_draws_in_turn() -> None:
    rng = Generator().manual_seed(3)
    kin = [LARGE.sample(rng) for _ in range(4)]
    state = trials_of(warm_start_search(LARGE, Counting(hashed), kin), len(OPENING))
    assert origins(state) == list(OPENING) == [GIVEN, DRAWN] * 3
    assert [record.genotype for record in state.records[::2]] == kin[:3]


def test_the_marks_of_a_warm_start_are_the_parents_with_the_largest_bound() -> None:
    """The bound is written here a second time, genotype by genotype."""
    rng = Generator().manual_seed(3)
    searcher = warm_start_search(LARGE, Counting(hashed), [LARGE.sample(rng) for _ in range(3)], exploration=0.3)
    state = searcher.init(0)
    for step in range(40):
        scores, parents = [record.score for record in state.records], list(state.marks)
        state = finish(searcher.step(state))
        assert state.marks[:-1] == parents
        parent, newest = state.marks[-1], state.records[-1]
        if newest.facts["origin"] == CHILD:
            values = []
            for index in range(step):
                children = [child for child in range(step) if parents[child] == index != child]
                credits = [sum(scores[j] < scores[i] for j in range(i)) / i for i in children]
                own = sum(score < scores[index] for score in scores) / step
                mean = (own + sum(credits)) / (1 + len(children))
                values.append(mean + 0.3 * math.sqrt(math.log(1 + step) / (1 + len(children))))
            assert values[parent] == pytest.approx(max(values))
            assert newest.genotype in LARGE.neighbours(state.records[parent].genotype)
        elif newest.facts["origin"] != KIN_CHILD:
            assert parent == step
    assert origins(state).count(CHILD) >= 5


def test_a_parent_whose_children_are_bad_gives_way_to_others() -> None:
    """One genotype is better than all others: its children, of average rank, do not keep it the only parent."""
    top = LARGE.at(4_321)
    searcher = warm_start_search(LARGE, Counting(lambda genotype: 2.0 if genotype == top else hashed(genotype)), [top])
    state = trials_of(searcher, 40)
    children = [index for index, mark in enumerate(state.marks) if mark != index]
    assert state.best == 0
    assert len(children) >= 20
    assert sum(state.marks[index] == 0 for index in children) < len(children) / 2


def test_cells_of_the_kin_are_measured_in_their_order_behind_those_that_a_limit_forbids() -> None:
    space = limit_space(LARGE, lambda cell: str(cell).count("conv"), 0, name="convolutions")
    cells = [LARGE.at(number) for number in range(0, 4_000, 10)]
    kin = [cell for cell in cells if not space.contains(cell)][:3] + [cell for cell in cells if space.contains(cell)]
    state = trials_of(warm_start_search(space, Counting(hashed), kin), 12)
    given = [record.genotype for record in state.records if record.facts["origin"] == GIVEN]
    assert len(given) >= 2
    assert given == kin[3 : 3 + len(given)]


def test_a_warm_start_without_kin_has_children_in_the_whole_space() -> None:
    state = trials_of(warm_start_search(LARGE, Counting(hashed), []), 30)
    assert origins(state) == [DRAWN] * 6 + [CHILD] * 24


def test_children_in_the_kins_space_have_its_operations() -> None:
    rng = Generator().manual_seed(3)
    kin = [LARGE.sample(rng) for _ in range(4)]
    inside = restrict_space(LARGE, kin)
    state = trials_of(warm_start_search(LARGE, Counting(hashed), kin, exploration=1.0), 20)
    children = [record.genotype for record in state.records if record.facts["origin"] == KIN_CHILD]
    assert len(children) >= 3
    assert all(map(inside.contains, children))


def test_proposers_that_return_more_are_asked_more() -> None:
    """If every cell of the kin beats every other cell, all are measured in turn; if none does, few are."""
    rng = Generator().manual_seed(3)
    kin = [LARGE.sample(rng) for _ in range(20)]
    asked = {}
    for sign in (1, -1):
        objective = Counting(lambda genotype, sign=sign: sign * (genotype in kin) + 0.01 * hashed(genotype))
        asked[sign] = origins(trials_of(warm_start_search(LARGE, objective, kin), 24)).count(GIVEN)
    assert asked[1] >= 12
    assert asked[-1] <= 6


def test_far_kin_is_left_and_near_kin_is_kept() -> None:
    """The nearer to a cell, by the number of equal operations, the better (near kin) or the worse (far kin)."""
    space = GeneralSpace((4,))
    kin = space.at(123_456)
    names = kin.operations()["normal"]

    def likeness(genotype: Genotype) -> int:
        return sum(map(str.__eq__, genotype.operations()["normal"], names))

    late = {}
    for sign in (1, -1):
        objective = Counting(lambda genotype, sign=sign: sign * likeness(genotype) + 0.01 * hashed(genotype))
        trials_of(warm_start_search(space, objective, [kin]), 60)
        late[sign] = statistics.fmean(map(likeness, objective.asked[30:]))
    assert late[1] > 3
    assert late[-1] < 1


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: Evolution(1, 1), "a population has at least 2 members, got 1"),
        (lambda: Evolution(4, 5), "a tournament has 1 to 4 members, the population; got 5"),
        (lambda: WarmStart(exploration=-0.5), "exploration must be a number of 0 or more, got -0.5"),
    ],
)
def test_impossible_settings_are_refused(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        attempt()
