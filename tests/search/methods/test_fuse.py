import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from laws.searcher import SearcherLaws
from nearkin.core.budget import Budget
from nearkin.core.errors import MismatchError, OptionError, TrainingError
from nearkin.core.events import Caution, Event, Progress, Work, finish
from nearkin.core.rng import Streams
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.fuse.candidates import Candidates, SearchSplit
from nearkin.search.methods.fuse.fuse import Fuse
from nearkin.search.methods.fuse.rounds import CandidateSelection, Fusion, RoundResult, SideBySide, entropy, mixture
from nearkin.search.networks.build import Skeleton, build_network
from nearkin.search.searcher import run_search
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.limited import limit_space

SPACE = GeneralSpace((3,), ("zero", "identity", "conv3", "max3"))
SKELETON = Skeleton(channels=4, num_cells=1, reductions=())
QUICK = Fusion(alternations=2, weight_steps=1, alpha_steps=1, batch_size=16)
GOOD = "normal(0): 1 = conv3(0); 2 = identity(0) + conv3(1); out = 2"
CRIPPLED = (
    "normal(0): 1 = zero(0); 2 = zero(0) + zero(1); out = 2",
    "normal(0): 1 = avg3(0); 2 = zero(0) + avg3(1); out = 2",
)


@pytest.fixture(scope="module")
def digits() -> nk.Task:
    return nk.task("digits?limit=300")


@dataclass(frozen=True)
class ByWeights(CandidateSelection):
    """The candidate of most weights wins; no training."""

    name: str = "by-weights"

    def settings(self) -> Mapping[str, Any]:
        return {}

    def judge(self, model: Candidates, split: SearchSplit, streams: Streams, stage: str) -> Work[RoundResult]:
        yield Progress(stage, 1, 1)
        sizes = tuple(float(sum(p.numel() for p in network.parameters())) for network in model.networks)
        return RoundResult(sizes, sizes, sizes)


def fuse(task: nk.Task, selection: CandidateSelection = QUICK, space: Space = SPACE, **changes: Any) -> Fuse:
    return replace(Fuse(space, task, SKELETON, selection, candidates=2, patience=2), **changes)


class TestLaws(SearcherLaws):
    STEPS = 4

    @pytest.fixture(
        params=[QUICK, SideBySide(steps=2, batch_size=16), ByWeights()], ids=lambda selection: selection.name
    )
    def make(self, request: pytest.FixtureRequest, digits: nk.Task) -> Callable[[], Fuse]:
        return lambda: fuse(digits, request.param, skeleton=replace(SKELETON, dropout=0.2), first=(SPACE.at(40),))

    @pytest.fixture
    def space(self) -> Space:
        return SPACE


# The round


def test_equal_weights_mix_to_the_mean_and_one_weight_to_its_candidate() -> None:
    outputs = torch.randn(3, 5, 2)
    torch.testing.assert_close(mixture(outputs, torch.zeros(3)), outputs.mean(0))
    torch.testing.assert_close(mixture(outputs, torch.tensor([0.0, 90.0, 0.0])), outputs[1])
    assert entropy(torch.tensor([0.0, 1.0])) == 0
    assert entropy(torch.full((7,), 1 / 7)) == pytest.approx(math.log(7))


def network(text: str, task: nk.Task, seed: int) -> nn.Module:
    return build_network(Genotype.parse(text), SKELETON, task.input_shape, task.num_outputs, seed)


def test_candidates_share_stem_and_head_and_compute_what_networks_with_these_would(digits: nk.Task) -> None:
    x = digits.train.first(8).x
    alone = [network(text, digits, seed).eval() for seed, text in enumerate((GOOD, CRIPPLED[1], GOOD))]
    for other in alone[1:]:
        other.stem, other.head = alone[0].stem, alone[0].head
    expected = torch.stack([other(x) for other in alone])
    together = [network(text, digits, seed) for seed, text in enumerate((GOOD, CRIPPLED[1], GOOD))]
    model = Candidates(together).eval()
    assert torch.equal(model(x), expected)
    assert len(list(model.parameters())) == len({id(p) for other in alone for p in other.parameters()})


def test_candidates_without_a_common_stem_stand_alone() -> None:
    networks = [nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))]
    x = torch.randn(5, 3)
    assert torch.equal(Candidates(networks)(x), torch.stack([network(x) for network in networks]))


def split_of(task: nk.Task) -> SearchSplit:
    return fuse(task).split


def test_the_first_step_of_alpha_is_its_rate_towards_the_smaller_validation_loss(digits: nk.Task) -> None:
    """Adam's first step has the length of its rate; the crippled candidate's output is a constant."""
    selection = Fusion(alternations=1, weight_steps=30, alpha_steps=1, alpha_rate=0.25)
    model = Candidates([network(GOOD, digits, 0), network(CRIPPLED[0], digits, 1)])
    result = finish(selection.judge(model, split_of(digits), Streams(0), "round"))
    assert result.scores[0] == pytest.approx(1 / (1 + math.exp(-0.5)), abs=1e-5)
    assert sum(result.scores) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_good_cell_wins_against_crippled_ones(digits: nk.Task, seed: int) -> None:
    model = Candidates([network(text, digits, 10 * seed + place) for place, text in enumerate((*CRIPPLED, GOOD))])
    result = finish(Fusion().judge(model, split_of(digits), Streams(seed), "round"))
    assert result.winner == 2
    assert result.scores[2] >= 0.95
    assert result.facts["ended"] == "certain"
    assert result.facts["alternations"] < 12, "the number that was fixed before"


@pytest.mark.parametrize(
    ("settings", "ended", "turns"),
    [
        (Fusion(certain=0.5), "certain", 1),
        (Fusion(window=2, tolerance=1.0), "settled", 3),
        (Fusion(alternations=3, certain=1.0, tolerance=1e-9), "limit of alternations", 3),
    ],
    ids=["certain", "settled", "limit"],
)
def test_a_round_ends_when_alpha_has_converged(digits: nk.Task, settings: Fusion, ended: str, turns: int) -> None:
    model = Candidates([network(GOOD, digits, 0), network(CRIPPLED[0], digits, 1)])
    events: list[Event] = []
    result = finish(settings.judge(model, split_of(digits), Streams(0), "round"), events.append)
    assert result.facts == {"alternations": turns, "ended": ended}
    assert [event.done for event in events if isinstance(event, Progress)] == list(range(1, turns + 1))


def test_the_weights_rest_after_their_cycle(digits: nk.Task) -> None:
    """Learning rate and Adam's steps are spent; what goes on is α."""
    short, long = (
        Fusion(cycle=2, alternations=turns, weight_steps=2, alpha_steps=1, tolerance=1e-9, certain=1.0)
        for turns in (2, 6)
    )
    models = [Candidates([network(GOOD, digits, 0), network(CRIPPLED[1], digits, 1)]) for _ in range(2)]
    verdicts = [
        finish(selection.judge(model, split_of(digits), Streams(0), "round"))
        for selection, model in zip((short, long), models, strict=True)
    ]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert abs(verdicts[0].scores[0] - verdicts[1].scores[0]) > 0.01


@pytest.mark.parametrize("seed", range(2))
def test_so_it_does_side_by_side(digits: nk.Task, seed: int) -> None:
    model = Candidates([network(text, digits, 10 * seed + place) for place, text in enumerate((*CRIPPLED, GOOD))])
    result = finish(SideBySide().judge(model, split_of(digits), Streams(seed), "round"))
    assert result.winner == 2
    assert result.scores == tuple(-loss for loss in result.losses)
    assert result.metrics[2] == max(result.metrics) > 0.2


class Broken(nn.Module):
    """Outputs that are no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(10))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * math.nan).expand(len(x), 10)


def test_a_candidate_without_numbers_loses_side_by_side_and_stops_a_fusion(digits: nk.Task) -> None:
    def model() -> Candidates:
        return Candidates([Broken(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))])

    result = finish(SideBySide(steps=3).judge(model(), split_of(digits), Streams(0), "round"))
    assert result.winner == 1
    with pytest.raises(TrainingError, match="diverged; lower the learning rate"):
        finish(QUICK.judge(model(), split_of(digits), Streams(0), "round"))


# The search


def test_data_to_learn_from_and_to_judge_by_are_apart_and_make_up_the_training_part(digits: nk.Task) -> None:
    split = fuse(digits, validation=0.25).split
    images = [{x.numpy().tobytes() for x in examples.all().x} for examples in (split.train, split.validation)]
    whole = {x.numpy().tobytes() for x in digits.train.all().x}
    assert not images[0] & images[1]
    assert images[0] | images[1] == whole
    assert len(split.validation) == pytest.approx(0.25 * len(digits.train), abs=10)


def test_the_test_part_is_not_touched(digits: nk.Task) -> None:
    other = replace(digits, test=digits.train.chosen(torch.arange(20)))
    found = [run_search(fuse(task), Budget(steps=3)) for task in (digits, other)]
    assert found[0].best == found[1].best
    assert found[0].history == found[1].history


def test_the_incumbent_is_the_best_seen_and_the_search_converges_when_it_wins_in_a_row(digits: nk.Task) -> None:
    searcher = fuse(digits, ByWeights(), patience=3)
    state = searcher.init(0)
    streaks, sizes = [], []
    while not searcher.ended(state):
        state = finish(searcher.step(state))
        streaks.append(state.streak)
        best = searcher.best(state)
        assert best is not None
        sizes.append(best.score)
    assert sizes == sorted(sizes)
    assert [found.score for found in searcher.top(state, 99)] == sorted(set(sizes), reverse=True)
    assert streaks[-4:] == [0, 1, 2, 3]
    assert searcher.ended(state) == "the incumbent won 3 rounds in a row"
    assert searcher.evaluations(state) == 2 * len(sizes)


def test_a_space_that_is_used_up_ends_the_search_with_its_best(digits: nk.Task) -> None:
    space = GeneralSpace((2,), ("zero", "conv3", "conv5"))
    found = run_search(fuse(digits, ByWeights(), space, patience=9), Budget(steps=20))
    assert found.reason == "every architecture of the space took part"
    assert found.evaluations == 3
    assert str(found.best.genotype) == "normal(0): 1 = conv5(0); out = 1"


def test_an_architecture_takes_part_once_besides_as_incumbent(digits: nk.Task) -> None:
    searcher = fuse(digits, ByWeights(), patience=99)
    state = searcher.init(1)
    while not searcher.ended(state):
        state = finish(searcher.step(state))
    assert len(state.seen) == len(set(state.seen)) == len({SPACE.unique_key(cell) for cell in SPACE.enumerate()})


def test_genotypes_given_take_part_first_and_those_a_limit_forbids_are_passed_over(digits: nk.Task) -> None:
    space = limit_space(SPACE, lambda cell: str(cell).count("conv3"), 1, name="convolutions")
    kin = tuple(map(Genotype.parse, (GOOD, CRIPPLED[0])))
    events: list[Event] = []
    searcher = fuse(digits, ByWeights(), space, first=kin)
    state = finish(searcher.step(searcher.init(0)), events.append)
    assert state.seen[0] == SPACE.unique_key(kin[1])
    assert "its convolutions is 2, at most 1 are allowed" in next(e.text for e in events if isinstance(e, Caution))
    with pytest.raises(MismatchError, match="not in the space general"):
        fuse(digits, first=(Genotype.parse("chain: skip"),))


def test_rounds_tell_how_far_they_are(digits: nk.Task) -> None:
    events: list[Event] = []
    searcher = fuse(digits)
    finish(searcher.step(searcher.init(0)), events.append)
    seen = [event for event in events if isinstance(event, Progress)]
    assert [(event.stage, event.done, event.total) for event in seen] == [("round 1", 1, 2), ("round 1", 2, 2)]
    assert all(0 <= event.values["entropy"] <= math.log(2) + 1e-6 for event in seen)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": 0}, "candidates must be 1 or more, got 0"),
        ({"patience": 0}, "patience must be 1 round or more, got 0"),
        ({"validation": 1.0}, "a fraction between 0 and 1, got 1.0"),
    ],
)
def test_impossible_settings_are_refused(digits: nk.Task, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fuse(digits, **changes)
    with pytest.raises(OptionError, match="alternations of a round must be above 0, got 0"):
        Fusion(alternations=0)
