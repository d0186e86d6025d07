"""The laws, held to by every registered measure, and by one that a user writes."""

import math

import pytest
import torch

from laws.measure import DistanceLaws, pair
from nearkin.core.errors import OptionError
from nearkin.core.events import Progress, Work, listening
from nearkin.distance.measure import Measure, Need
from nearkin.distance.pair import Pair
from nearkin.distance.registry import DEFAULT, MEASURES, STRUCTURE, measure_named, title_of

UNORDERED = ("short-finetune-drawn", "finetune", "gradnorm", "task2vec-asymmetric", "source", "random")
"""A drawn head starts from a larger loss on stronger features, and a small gradient can mean that nothing is left to
learn or that nothing can be learned; the others do not compare both sides."""


class TestRegistered(DistanceLaws):
    ORDERED = staticmethod(lambda name: name not in UNORDERED)

    @pytest.fixture(params=MEASURES)
    def measure(self, request: pytest.FixtureRequest) -> Measure:
        return MEASURES[request.param]


def weight_change(pair: Pair) -> Work[float]:
    """Distance of the weights of both networks: a measure in five lines."""
    own = yield from pair.target.networks(pair.source, pair.trials)
    mine, other = (solved.trials[pair.trial].params for solved in (pair.source.solved, own))
    yield Progress("weights", 1, 1)
    return math.sqrt(sum(float((mine[name] - other[name]).square().sum()) for name in mine))


class TestOwn(DistanceLaws):
    @pytest.fixture
    def measure(self) -> Measure:
        needs = (Need.WEIGHTS, Need.TARGET_NETWORK)
        return Measure("weights", "Euclidean distance of the weights of both networks", weight_change, needs)


@pytest.mark.parametrize("name", ["frechet", "task2vec", "fid"])
def test_a_task_is_at_distance_zero_from_itself(name: str) -> None:
    assert MEASURES[name](pair("categorical")) == pytest.approx(0, abs=1e-9)


def test_every_long_measure_passes_its_events_on() -> None:
    for name, steps in (("short-finetune", 16), ("short-finetune-drawn", 16), ("finetune", 200)):
        events = list(MEASURES[name].work(pair("categorical")))
        assert [event.done for event in events if isinstance(event, Progress)] == list(range(1, steps + 1))
    for name in ("frechet", "task2vec"):
        heard: list[object] = []
        with listening(heard.append):
            MEASURES[name](pair("categorical"))
        assert any(isinstance(event, Progress) for event in heard), name


def test_options_are_typed_and_checked() -> None:
    measure = MEASURES["short-finetune"].with_options({"steps": "2", "learning_rate": 0.1})
    assert len(list(measure.work(pair("categorical")))) == 2
    assert MEASURES["short-finetune"].with_options({}) is MEASURES["short-finetune"]
    with pytest.raises(
        OptionError, match="option steps of the measure short-finetune is 'two', expected a whole number"
    ):
        measure.with_options({"steps": "two"})
    with pytest.raises(OptionError, match="the measure leep has no option steps; it has none"):
        MEASURES["leep"].with_options({"steps": "2"})
    with pytest.raises(OptionError, match="reading is one of auto, padded, model, refit, got 'none'"):
        MEASURES["frechet"].with_options({"reading": "none"})


def test_names_and_aliases_are_unique_and_lead_to_their_measure() -> None:
    names = [name for measure in MEASURES.values() for name in (measure.name, *measure.aliases)]
    assert len(set(names)) == len(names)
    assert all(name in (measure_named(name).name, *measure_named(name).aliases) for name in names)
    assert {DEFAULT, STRUCTURE} <= set(MEASURES)
    assert {beside for measure in MEASURES.values() for beside in measure.beside} <= set(MEASURES)
    assert title_of("unheard of") == "unheard of"
    with pytest.raises(OptionError, match="unknown measure 'frechett'; choose one of short-finetune, "):
        measure_named("frechett")


def test_a_first_look_is_at_a_share_of_the_samples() -> None:
    whole = pair("categorical")
    part = Pair(whole.source, whole.target, share=0.25, samples=100)
    assert len(part.view.train.x) == 25
    assert len(Pair(whole.source, whole.target, samples=60).view.train.x) == 60
    assert torch.equal(part.source_features, part.view.features_of(whole.source.task.train.fixed_subset(25).x))


def test_names_of_earlier_versions_are_recognised() -> None:
    for old, new in (("kin", "short-finetune"), ("kin-drawn", "short-finetune-drawn")):
        assert measure_named(old) is MEASURES[new]
        assert MEASURES[new].stored_name == old, "keys of stored results do not change"
        assert title_of(old) == title_of(new)
    assert MEASURES["frechet"].stored_name == "frechet"
