"""Quality against closed forms and planted answers."""

import json
import math

import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, r2_score

from nearkin.solver.quality import Quality, class_quality, fitted_temperature, value_quality
from nearkin.tasks.metrics import share_interval
from nearkin.transfer.labels.calibration import calibration

RNG = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("right", "count"), [(0, 5), (3, 10), (90, 100), (359, 359), (5000, 10000)])
def test_the_interval_of_a_share_is_wilsons(right: int, count: int) -> None:
    wanted = binomtest(right, count).proportion_ci(method="wilson")
    assert share_interval(right / count, count) == pytest.approx((wanted.low, wanted.high), abs=1e-7)


def test_confusions_and_accuracy_are_those_of_scikit_learn() -> None:
    probabilities = torch.rand(200, 4, generator=RNG).softmax(1)
    labels = torch.randint(4, (200,), generator=RNG)
    found = class_quality(probabilities, labels, tuple("abcd"), loss=1.0, guess=0.3)
    said = probabilities.argmax(1)
    assert torch.tensor(found.confusion).tolist() == confusion_matrix(labels, said).tolist()
    assert found.metric == pytest.approx(float((said == labels).double().mean()))
    assert sum(count for _, _, count in found.calibration) == 200


def test_the_surest_mistakes_come_first_and_are_mistakes() -> None:
    probabilities = torch.rand(100, 3, generator=RNG).softmax(1)
    labels = torch.randint(3, (100,), generator=RNG)
    found = class_quality(probabilities, labels, ("a", "b", "c"), loss=1.0, guess=0.3)
    surest = [one.probability for one in found.mistakes]
    assert surest == sorted(surest, reverse=True)
    for one in found.mistakes:
        assert one.given == "abc"[labels[one.row]] != one.said == "abc"[probabilities[one.row].argmax()]
    wrong = (probabilities.argmax(1) != labels).nonzero().flatten()
    assert surest[0] == pytest.approx(float(probabilities[wrong].max()))


def test_certainty_that_is_earned_has_no_calibration_error() -> None:
    logits = torch.randn(40_000, 3, generator=RNG).double() * 2
    labels = torch.distributions.Categorical(logits=logits).sample()
    assert calibration(logits.softmax(1), labels).error < 0.01
    assert calibration((3 * logits).softmax(1), labels).error > 0.1


def test_temperature_undoes_a_scale_exactly() -> None:
    logits = torch.randn(500, 4, generator=RNG).double()
    labels = torch.distributions.Categorical(logits=logits).sample()
    base = fitted_temperature(logits, labels)
    assert fitted_temperature(5 * logits, labels) == pytest.approx(5 * base, rel=1e-6)

    def loss(heat: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits / heat, labels))

    assert loss(base) <= min(loss(1.01 * base), loss(base / 1.01))


@pytest.mark.parametrize("repeats", [1, 20, 200])
def test_perfect_scores_are_as_certain_as_their_number_allows(repeats: int) -> None:
    logits, labels = torch.eye(3).repeat(repeats, 1), torch.arange(3).repeat(repeats)
    confidence = (logits / fitted_temperature(logits, labels)).softmax(1).amax(1)
    assert confidence.mean() == pytest.approx(1 - 1 / (3 * repeats + 2), abs=1e-4)


def test_temperature_stays_within_its_bounds() -> None:
    assert fitted_temperature(1e-4 * torch.eye(3), torch.arange(3)) == pytest.approx(1 / 20, rel=1e-3)
    assert fitted_temperature(1e4 * torch.eye(3), torch.arange(3)) == pytest.approx(20, rel=1e-3)


def test_values_are_judged_by_r_squared_with_an_interval_around_it() -> None:
    targets = torch.randn(300, 2, generator=RNG)
    outputs = targets + 0.5 * torch.randn(300, 2, generator=RNG)
    found = value_quality(outputs, targets, loss=0.1)
    assert found.metric == pytest.approx(r2_score(targets, outputs, multioutput="variance_weighted"), abs=1e-3)
    low, high = found.interval
    assert low < found.metric < high
    assert high - low < 0.2


def test_constant_values_are_no_division_by_zero() -> None:
    found = value_quality(torch.zeros(5, 1), torch.ones(5, 1), loss=0.0)
    assert found.metric == 0.0
    assert all(math.isfinite(end) for end in found.interval)


def test_quality_survives_json() -> None:
    probabilities = torch.rand(30, 3, generator=RNG).softmax(1)
    one = class_quality(probabilities, torch.arange(30) % 3, ("a", "b", "c"), loss=1.0, guess=0.3)
    assert Quality.from_dict(json.loads(json.dumps(one.to_dict(), allow_nan=False))) == one


def test_many_classes_have_no_table() -> None:
    probabilities = torch.rand(100, 100, generator=RNG).softmax(1)
    names = tuple(str(i) for i in range(100))
    assert class_quality(probabilities, torch.arange(100), names, loss=1.0, guess=0.0).confusion is None
