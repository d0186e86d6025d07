"""What every measure must hold to.

A test class inherits `DistanceLaws` and gives a fixture `measure`. Everything happens in memory: no zoo is needed.
Measures for which theory does not say that a task is nearer to itself than to noise are excluded by `ORDERED`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

import nearkin as nk
from nearkin.core.errors import MismatchError, NearkinError
from nearkin.core.events import Caution, Checkpoint, Note, Progress, finish
from nearkin.distance.measure import Measure, Need
from nearkin.distance.pair import Pair, Source, Target
from nearkin.tasks.rows import Values

LIKELIHOODS = ("categorical", "gaussian", "heteroscedastic")
NETWORK = "mlp?hidden=8"
SAMPLES = 80


def _targets(x: Tensor, likelihood: str) -> Tensor:
    """Two classes, or values, that both coordinates of the input determine."""
    return (x[:, 0] * x[:, 1] > 0).long() if likelihood == "categorical" else x[:, 0] * x[:, 1]


@cache
def task(likelihood: str, noise: bool = False) -> nk.Task:
    """A target that a small network can learn, or noise: other inputs, and targets that are independent of them."""
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(int(noise)))
    y = _targets(x, likelihood)
    if noise:
        x, y = x**3, y[torch.randperm(len(y), generator=torch.Generator().manual_seed(2))]
    return nk.Task.from_arrays("noise" if noise else "signs", x, y, x[:30], y[:30], likelihood=likelihood)


@cache
def solved(likelihood: str, noise: bool = False) -> nk.Solved:
    """A network trained on the task, from the same start for both."""
    learned = task(likelihood, noise)
    model = nk.build(NETWORK, learned.input_shape, learned.num_outputs, 0)
    fit = nk.fit(model, learned, nk.Recipe(steps=300, batch_size=32, learning_rate=1e-2))
    return nk.Solved(learned.name, NETWORK, learned.facts(), 0, (fit,))


def pair(likelihood: str, noise: bool = False, target: nk.Task | None = None) -> Pair:
    """The target's own network, or that of noise, beside the target."""
    source = Source.of(solved(likelihood, noise), task(likelihood, noise))
    return Pair(source, Target(target or task(likelihood), solved(likelihood)))


@cache
def measured(measure: Measure, likelihood: str, noise: bool = False) -> float:
    """The measure of this pair; that it is the same each time is tested below."""
    return measure(pair(likelihood, noise))


@dataclass(frozen=True)
class Unreadable(Values):
    """Targets that nobody may read."""

    def take(self, index: Tensor) -> Tensor:
        """Fail."""
        raise AssertionError("a measure read targets of the test set")


def known(measure: Measure) -> list[str]:
    """Likelihoods of both source and target that are tried here."""
    return [likelihood for likelihood in LIKELIHOODS if measure.knows(likelihood, likelihood)]


class DistanceLaws:
    ORDERED: Callable[[str], bool] = staticmethod(lambda name: True)
    """Whether theory says that the measure of this name is smaller for the target's own network than for noise."""

    def test_it_is_described(self, measure: Measure) -> None:
        assert measure.name
        assert measure.summary
        assert "\n" not in measure.summary + measure.about + measure.title
        assert not measure.summary.endswith(".")
        assert all(option.summary for option in measure.options)
        assert set(measure.targets) | set(measure.sources) <= {*LIKELIHOODS, "dense", "language"}

    def test_it_is_a_finite_number_and_yields_events(self, measure: Measure) -> None:
        for likelihood in known(measure):
            events: list[object] = []
            value = finish(measure.work(pair(likelihood)), events.append)
            assert type(value) is float
            assert math.isfinite(value)
            assert all(isinstance(event, Progress | Note | Caution | Checkpoint) for event in events)

    @pytest.mark.thinned(3)
    def test_it_depends_on_the_pair_alone(self, measure: Measure) -> None:
        """Neither on global random state, which it leaves as it is, nor on what was measured before."""
        for likelihood in known(measure):
            first = measured(measure, likelihood, noise=True)
            torch.manual_seed(2)
            state = torch.get_rng_state()
            shared = pair(likelihood, noise=True)
            assert measure(shared) == measure(shared) == first
            assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.thinned(3)
    def test_smaller_is_nearer(self, measure: Measure) -> None:
        if not self.ORDERED(measure.name):
            pytest.skip("theory does not order these")
        for likelihood in known(measure):
            assert measured(measure, likelihood) < measured(measure, likelihood, noise=True), likelihood

    @pytest.mark.thinned(3)
    def test_it_never_reads_targets_of_the_test_set(self, measure: Measure) -> None:
        for likelihood in known(measure):
            plain = task(likelihood)
            hidden = replace(plain, test=replace(plain.test))
            object.__setattr__(hidden.test, "targets", Unreadable(plain.test.labels()))  # a new task is checked once
            assert measure(pair(likelihood, target=hidden)) == measured(measure, likelihood)

    @pytest.mark.thinned(3)
    def test_it_leaves_the_source_as_it_is(self, measure: Measure) -> None:
        for likelihood in known(measure):
            params = solved(likelihood, noise=True).trials[0].params
            before = {name: value.clone() for name, value in params.items()}
            measure(pair(likelihood, noise=True))
            assert all(torch.equal(value, before[name]) for name, value in params.items())

    def test_other_likelihoods_are_refused_in_one_line(self, measure: Measure) -> None:
        for likelihood in set(LIKELIHOODS) - set(known(measure)):
            with pytest.raises(MismatchError, match=f"the measure {measure.name} supports") as refused:
                measure(pair(likelihood))
            assert "\n" not in str(refused.value)

    @pytest.mark.thinned(3)
    @pytest.mark.parametrize("need", [Need.SOURCE_DATA, Need.TARGET_NETWORK])
    def test_what_it_needs_and_does_not_have_is_refused_in_one_line(self, measure: Measure, need: Need) -> None:
        for likelihood in known(measure):
            whole = pair(likelihood)
            if need is Need.SOURCE_DATA:
                bare = replace(whole, source=Source.of(solved(likelihood)))
            else:
                bare = replace(whole, target=Target(task(likelihood)))
            if need not in measure.needs:
                assert measure(bare) == measured(measure, likelihood)
                continue
            with pytest.raises(
                MismatchError, match=f"the measure {measure.name} needs {need}, which 'signs'"
            ) as refused:
                measure(bare)
            assert "\n" not in str(refused.value)

    def test_more_trials_than_there_are_are_refused(self, measure: Measure) -> None:
        for likelihood in known(measure):
            with pytest.raises(NearkinError, match="'signs' has 1 trials, but 2 are needed"):
                measure(replace(pair(likelihood), trial=1, trials=2))

    def test_weights_that_diverged_are_refused_in_one_line(self, measure: Measure) -> None:
        if not {Need.WEIGHTS, Need.FEATURES, Need.OUTPUTS} & set(measure.needs):
            pytest.skip("it does not look at the weights")
        for likelihood in known(measure):
            good = solved(likelihood, noise=True)
            broken = {name: torch.full_like(value, torch.nan) for name, value in good.trials[0].params.items()}
            source = replace(good, trials=(replace(good.trials[0], params=broken),))
            with pytest.raises(NearkinError) as refused:
                measure(replace(pair(likelihood), source=Source.of(source, task(likelihood, noise=True))))
            assert "\n" not in str(refused.value)
