import math

import numpy as np
import pytest
import torch
from scipy import stats

from nearkin.core.errors import OptionError
from nearkin.core.rng import Streams
from nearkin.tasks import sources
from nearkin.tasks.papers.sinusoids import FREQUENCIES, Sinusoid, Sinusoids, sinusoid_tasks

PRINTED = Sinusoids(frequency=FREQUENCIES["wide"], inputs="normal")


def values(examples):
    return examples.all().x.double(), examples.all().y.double()


def test_without_noise_the_targets_are_the_curve_itself():
    law = Sinusoids(noise=0.0, points=40)
    task, curve = law.draw(seed=3, number=1)
    for part in (task.train, task.test):
        x, y = values(part)
        exact = curve.amplitude * np.sin(curve.frequency * x.numpy() + curve.phase)
        np.testing.assert_allclose(y.numpy(), exact, atol=2e-6 * curve.amplitude)


def test_a_curve_repeats_after_its_period():
    curve = Sinusoid(amplitude=3.0, frequency=0.7, phase=1.1)
    x = torch.linspace(-5, 5, 50, dtype=torch.float64)
    np.testing.assert_allclose(curve(x + 2 * math.pi / 0.7), curve(x), atol=1e-12)
    assert float(curve(x).abs().max()) <= 3.0


@pytest.mark.parametrize("noise", [0.01, 0.2])
def test_noise_is_a_share_of_the_amplitude(noise):
    law = Sinusoids(noise=noise, points=4000)
    task, curve = law.draw(seed=0, number=0)
    x, y = values(task.train)
    ratio = float((y - curve(x)).std() / (noise * curve.amplitude))
    assert ratio == pytest.approx(1.0, abs=0.06)  # five deviations of a deviation of 4,000 draws


@pytest.mark.parametrize("law", [Sinusoids(), PRINTED, Sinusoids(frequency=(1.0, 1.5), amplitude=(2.0, 3.0))])
def test_curves_follow_their_uniform_laws(law):
    curves = [law.curve(Streams(seed)) for seed in range(400)]
    for name in ("amplitude", "frequency", "phase"):
        low, high = getattr(law, name)
        drawn = [getattr(curve, name) for curve in curves]
        assert low <= min(drawn)
        assert max(drawn) <= high
        assert stats.kstest(drawn, stats.uniform(low, high - low).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("inputs", "law"), [("uniform", stats.uniform(-5, 10)), ("normal", stats.norm())])
def test_inputs_follow_their_law_and_rise(inputs, law):
    task, _ = Sinusoids(inputs=inputs, points=2000).draw(seed=1, number=0)
    x, _ = values(task.train)
    assert stats.kstest(x[:, 0].numpy(), law.cdf).pvalue > 1e-3
    assert bool((x.diff(dim=0) >= 0).all())


def test_values_keep_their_units():
    task = sources.task("sinusoids?seed=5")
    assert torch.equal(task.train.all().x, task.train.inputs.tensor)
    assert torch.equal(task.train.all().y, task.train.targets.tensor)
    assert task.train.scaling.mean is None


def test_tasks_of_a_seed_differ_and_more_of_them_change_none():
    few, many = sinusoid_tasks(3, seed=4), sinusoid_tasks(6, seed=4)
    assert [task.fingerprint() for task in few] == [task.fingerprint() for task in many[:3]]
    prints = {task.fingerprint() for task in [*many, *sinusoid_tasks(6, seed=5)]}
    assert len(prints) == 12


@pytest.mark.parametrize(
    "law",
    [
        Sinusoids(),
        PRINTED,
        Sinusoids(frequency=(0.1, 1 / 3), amplitude=(1.0, 1.0), phase=(-1.0, 0.0), noise=0.05, points=7, test=9),
    ],
)
def test_every_task_reads_again_by_its_data_string(law):
    for task in sinusoid_tasks(2, seed=8, law=law):
        again = sources.task(task.source)
        assert again.fingerprint() == task.fingerprint()
        assert again.source == task.source


def test_a_data_string_names_a_task_of_the_law():
    task = sources.task("sinusoids?frequency=wide&inputs=normal&points=20&test=30&seed=2&task=3")
    law = Sinusoids(frequency=FREQUENCIES["wide"], inputs="normal", points=20, test=30)
    assert task.fingerprint() == law.draw(2, 3)[0].fingerprint()
    assert (task.likelihood, task.classes, task.input_shape) == ("gaussian", ("y",), (1,))
    assert (len(task.train), len(task.test)) == (20, 30)
    fixed = sources.task("sinusoids?frequency=1&amplitude=2&phase=0&noise=0")
    x, y = values(fixed.test)
    np.testing.assert_allclose(y, 2 * torch.sin(x), atol=1e-6)


def test_the_number_of_points_does_not_change_the_curve_or_the_test_part():
    few, many = sources.task("sinusoids?points=5"), sources.task("sinusoids?points=50")
    assert torch.equal(few.test.all().y, many.test.all().y)


def test_limit_and_split_work():
    assert len(sources.task("sinusoids?points=30&limit=12").train) == 12
    whole = sources.task("sinusoids?points=30&test=10")
    again = sources.task("sinusoids?points=30&test=10&split=1")
    assert (len(again.train), len(again.test)) == (30, 10)
    pooled = [torch.cat([task.train.labels(), task.test.labels()]).sort(dim=0).values for task in (whole, again)]
    assert torch.equal(*pooled)
    assert not torch.equal(whole.test.labels(), again.test.labels())
    assert again.train.scaling.mean is None  # it is read as it is, however it is split
    assert again.train.target_scaling.mean is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("frequency=3,1", "frequency must be two rising numbers.*got 3,1"),
        ("frequency=broad", "frequency=narrow, frequency=wide or frequency=0.5,2; got 'broad'"),
        ("amplitude=1,2,3", "amplitude must be one number or two"),
        ("amplitude=nan", "amplitude must be a number"),
        ("phase=0,inf", "phase must be a number"),
        ("noise=-1", "noise must be 0 or more, got -1"),
        ("noise=nan", "noise must be a number.*got 'nan'"),
        ("points=0", "points must be a whole number of 1 or more, got '0'"),
        ("test=none", "test must be a whole number of 1 or more, got 'none'"),
        ("seed=-1", "seed must be a whole number of 0 or more, got '-1'"),
        ("inputs=grid", "inputs must be uniform or normal, got 'grid'"),
        ("frequence=1", "did you mean frequency"),
    ],
)
def test_nonsense_is_refused(options, says):
    with pytest.raises(OptionError, match=says):
        sources.task(f"sinusoids?{options}")


def test_no_location_and_no_empty_list():
    with pytest.raises(OptionError, match="sinusoids takes no location"):
        sources.task("sinusoids:here")
    with pytest.raises(OptionError, match="count must be 1 or more, got 0"):
        sinusoid_tasks(0)
