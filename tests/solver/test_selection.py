"""Selection by outputs for held-out samples, and ensembles."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import nearkin as nk
from nearkin.nets.evaluate import Scores
from nearkin.nets.history import History
from nearkin.nets.registry import build
from nearkin.nets.solved import Solved
from nearkin.nets.training_loop import Fit
from nearkin.nets.trusted_code import TrustError, is_trusted
from nearkin.solver.ensemble import ENSEMBLE, Member, combined
from nearkin.solver.quality import class_quality
from nearkin.solver.run_noise import selection_variance, with_run_noise
from nearkin.solver.selection import averaged, clearly_better, greedy_weights, select_single
from nearkin.solver.splits import Splits
from nearkin.solver.validation import ValidationOutputs, common_rows, lead, merged
from nearkin.tasks.likelihood import likelihood

CLASSES, VALUES = likelihood("categorical"), likelihood("gaussian")


def outputs(right: Tensor, sure: float = 2.0, rows: Tensor | None = None) -> ValidationOutputs:
    """Two classes, all of class 0: right where `right`, with the logit `sure`."""
    logits = torch.zeros(len(right), 2)
    logits[:, 0] = torch.where(right, sure, -sure)
    rows = torch.arange(len(right)) if rows is None else rows
    return ValidationOutputs(rows, logits, torch.zeros(len(right), dtype=torch.int64), CLASSES)


def shares(count: int, wrong: int, shift: int = 0) -> Tensor:
    right = torch.ones(count, dtype=torch.bool)
    right[shift : shift + wrong] = False
    return right


def test_a_lead_is_measured_on_the_common_rows() -> None:
    first = outputs(shares(100, 10))
    second = outputs(shares(50, 20), rows=torch.arange(50, 100))
    assert torch.equal(common_rows(first, second), torch.arange(50, 100))
    ahead, low, high = lead(first, second)
    assert ahead == pytest.approx(0.4)
    error = math.sqrt(0.4 * 0.6 * 50 / 49 / 50)
    assert (low, high) == (pytest.approx(0.4 - 1.96 * error, abs=1e-4), pytest.approx(0.4 + 1.96 * error, abs=1e-4))


def test_merged_outputs_average_over_the_models_that_did_not_learn_from_a_row() -> None:
    first = ValidationOutputs(torch.tensor([0, 1]), torch.tensor([[2.0], [4.0]]), torch.zeros(2, 1), VALUES)
    second = ValidationOutputs(torch.tensor([1, 5]), torch.tensor([[8.0], [1.0]]), torch.zeros(2, 1), VALUES)
    both = merged([first, second])
    assert both.rows.tolist() == [0, 1, 5]
    assert both.outputs.flatten().tolist() == [2.0, 6.0, 1.0]
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    classes = [ValidationOutputs(torch.arange(4), part, torch.arange(4) % 3, CLASSES) for part in (logits, -logits)]
    expected = (logits.softmax(1) + (-logits).softmax(1)) / 2
    assert torch.allclose(merged(classes).outputs.exp(), expected, atol=1e-6)


def test_within_one_standard_error_the_loss_decides_and_beyond_it_the_metric() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    side = 2.0 * labels - 1
    logit = side + 1.4 * torch.randn(200, generator=rng)
    noisy = ValidationOutputs(torch.arange(200), torch.stack([-logit, logit], 1), labels, CLASSES)
    blunt = noisy.outputs.sign() * 3  # as accurate, but equally sure of its mistakes
    mistake = int(torch.nonzero(blunt.argmax(1) != labels)[0])
    blunt[mistake] = -blunt[mistake]  # one more right
    same = ValidationOutputs(noisy.rows, blunt, labels, CLASSES)
    assert same.scores().metric > noisy.scores().metric
    assert select_single({"noisy": noisy, "same": same}) == "noisy"
    clear = torch.stack([-side, side], 1) / 10
    clear[:10] = -clear[:10]
    better = ValidationOutputs(noisy.rows, clear, labels, CLASSES)
    assert select_single({"noisy": noisy, "better": better}) == "better"


def test_greedy_weights_take_models_whose_errors_differ() -> None:
    rng = torch.Generator().manual_seed(1)
    labels = torch.randint(2, (400,), generator=rng)
    signal = (2.0 * labels - 1)[:, None] * torch.tensor([[-1.0, 1.0]])
    first, second = (signal + 2 * torch.randn(400, 2, generator=rng) for _ in range(2))
    models = {
        name: ValidationOutputs(torch.arange(400), logits, labels, CLASSES)
        for name, logits in (("first", first), ("second", second), ("noise", torch.randn(400, 2, generator=rng)))
    }
    weights = greedy_weights(models)
    assert {"first", "second"} <= set(weights)
    assert weights.get("noise", 0.0) < 0.15
    assert sum(weights.values()) == pytest.approx(1.0)
    both = averaged(models, weights)
    assert both.scores().metric > models["first"].scores().metric
    assert clearly_better(both, models["first"])
    assert not clearly_better(models["first"], both)
    assert not clearly_better(models["first"], models["first"])


def test_the_average_of_values_is_that_of_the_members() -> None:
    targets = torch.randn(50, 1, generator=torch.Generator().manual_seed(0))
    models = {
        name: ValidationOutputs(torch.arange(50), targets + shift, targets, VALUES)
        for name, shift in (("above", 1.0), ("below", -1.0))
    }
    weights = greedy_weights(models)
    assert weights == {"above": 0.5, "below": 0.5}
    assert torch.allclose(averaged(models, weights).outputs, targets, atol=1e-6)


def solved(network: str, seed: int, shape: tuple[int, ...] = (6,), classes: int = 3) -> Solved:
    model = build(network, shape, classes, seed)
    facts = {
        "likelihood": "categorical", "classes": ["a", "b", "c"][:classes], "input_shape": list(shape), "source": "",
        "scaling": None, "target_scaling": None,
    }  # fmt: skip
    fit = Fit(
        dict(model.named_parameters()), dict(model.named_buffers()), History(torch.zeros(0)), Scores(0.5, 1.0, 2), 1.0,
        reached=True,
    )  # fmt: skip
    return Solved("toy", network, facts, seed, (fit,))


def test_an_ensemble_is_the_weighted_mean_of_calibrated_probabilities_also_after_storing(tmp_path: Path) -> None:
    first, second = solved("mlp?hidden=8", 0), solved("mlp?hidden=5-4", 1)
    pair = combined([Member(first, 3.0, 2.0), Member(second, 1.0, 0.5)], Scores(0.5, 1.0, 2), 2.0)
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = [member.model()(x) for member in (first, second)]
        expected = 0.75 * (logits[0] / 2).softmax(1) + 0.25 * (logits[1] / 0.5).softmax(1)
        assert torch.allclose(pair.model()(x).exp(), expected, atol=1e-6)
        nested = combined([Member(pair, 0.5), Member(first, 0.5)], Scores(0.5, 1.0, 2), 3.0)
        flat = 0.5 * expected + 0.5 * logits[0].softmax(1)
        assert torch.allclose(nested.model()(x).exp(), flat, atol=1e-6), "an ensemble in an ensemble is resolved"
    assert nested.network.count("mlp") == 3


def test_a_stored_ensemble_cannot_name_untrusted_code() -> None:
    hostile = f"{ENSEMBLE}?classes=true&members=mlp,os%3Asystem%3Fcommand%3Ddate"
    assert not is_trusted(hostile)
    assert is_trusted(f"{ENSEMBLE}?classes=true&members=mlp,lenet")
    with pytest.raises(TrustError):
        build(hostile, (6,), 3, seed=0)
    inner = f"{ENSEMBLE}%3Fclasses%3Dtrue%26members%3Dmlp"
    with pytest.raises(nk.NearkinError, match="as member of an ensemble"):
        build(f"{ENSEMBLE}?classes=true&members={inner}", (6,), 3, seed=0)


def test_splits_cover_every_sample_once_in_cross_validation() -> None:
    labels = torch.arange(53) % 3
    task = nk.Task.from_arrays("toy", torch.randn(53, 2), labels, torch.randn(6, 2), torch.arange(6) % 3)
    folds = Splits.of(task, 0.2, seed=0, cross_validate=True)
    assert len(folds) == 5
    assert torch.cat([folds.rows(number) for number in range(5)]).sort().values.tolist() == list(range(53))
    assert torch.equal(folds.rows(7), folds.rows(2))
    part = folds.task(task, 1)
    assert len(part.train) + len(part.test) == 53
    assert torch.equal(part.test.inputs.take(torch.arange(len(part.test))), task.train.inputs.take(folds.rows(1)))
    single = Splits.of(task, 0.2, seed=0, cross_validate=False)
    assert (len(single), len(single.rows())) == (1, 11)


def test_the_interval_includes_the_noise_between_runs() -> None:
    logits = torch.zeros(100, 2)
    logits[:, 0] = 1
    quality = class_quality(logits.softmax(1), (torch.arange(100) < 20).long(), ("a", "b"), loss=1.0, guess=0.5)
    low, high = quality.interval
    assert with_run_noise(quality, 0.0).interval == (pytest.approx(low), pytest.approx(high))
    wider = with_run_noise(quality, 0.05)
    assert quality.metric - wider.interval[0] == pytest.approx(math.hypot(quality.metric - low, 1.96 * 0.05), abs=1e-3)
    assert with_run_noise(quality, 10.0).interval == (0.0, 1.0)
    assert selection_variance((0.0, -0.0196, 0.0196)) > selection_variance((0.05, 0.0304, 0.0696))
    assert selection_variance((0.1, 0.1, 0.1)) == 0.0
