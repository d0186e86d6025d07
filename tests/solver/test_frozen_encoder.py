"""Adopted networks as contenders of a run."""

from pathlib import Path

import pytest
import torch
from torch import nn

import nearkin as nk
from interrupting import Stop, stopping_at
from nearkin.core.budget import Budget
from nearkin.core.errors import MismatchError, NearkinError
from nearkin.core.events import Caution, finish
from nearkin.nets.functional import outputs_of
from nearkin.nets.heads import features
from nearkin.solver import frozen_encoder
from nearkin.solver.encoder_head import with_fitted_head
from nearkin.solver.plan import Plan
from nearkin.solver.solving import kept_solution, solve
from nearkin.tasks.task import Task

ONLY = ("encoder", "encoder-finetune", "logistic")


def ring_samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes that no linear model of the inputs tells apart, each a ring."""
    noise = torch.Generator().manual_seed(seed)
    angle = torch.rand(count, generator=noise) * 6.2832
    y = torch.arange(count) // (count // 2)  # sorted: the first samples are of one class
    radius = 1.0 + y + 0.1 * torch.randn(count, generator=noise)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y


@pytest.fixture
def rings() -> Task:
    return Task.from_arrays("rings", *ring_samples(240, 0), *ring_samples(200, 1))


def encoder(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3)).eval()


def adopted(folder: Path) -> nk.Zoo:
    zoo = nk.Zoo(folder)
    zoo.adopt("random features", encoder(), preprocess="shape=2")
    return zoo


@pytest.mark.parametrize(
    "plan", [Plan(only=ONLY, budget=Budget(evaluations=2), epochs=3), Plan(only=ONLY, budget=Budget(minutes=0.4))]
)
def test_the_features_of_an_adopted_network_win_where_a_linear_model_cannot(
    tmp_path: Path, rings: Task, plan: Plan
) -> None:
    zoo = adopted(tmp_path / "zoo")
    solution = solve(rings, zoo, plan=plan)
    scores = {result.name: result.validation for result in solution.standings}
    assert scores["encoder"] is not None
    assert scores["logistic"] is not None
    assert scores["encoder"] > 0.9 > 0.8 > scores["logistic"]
    assert solution.chosen in ("encoder", "encoder-finetune")
    assert solution.quality.metric > 0.9
    frozen = next(result for result in solution.standings if result.name == "encoder")
    assert frozen.parameters > 64 * 2
    assert frozen.settings["encoder"] == "random features"


def test_a_feature_that_is_nearly_zero_in_training_does_no_harm(tmp_path: Path) -> None:
    """Divided by its own deviation, the third feature would decide all predictions of new samples."""
    noise, y = torch.Generator().manual_seed(0), torch.arange(400) % 2
    x = torch.randn(400, 3, generator=noise) + 4 * y[:, None]
    x[:200, 2] = 1e-6 * torch.rand(200, generator=noise)
    task = Task.from_arrays("rare unit", x[:200], y[:200], x[200:], y[200:])
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(3))
        network[0].bias.zero_()
    zoo = nk.Zoo(tmp_path / "zoo")
    zoo.adopt("units", network, preprocess={"shape": (3,), "mean": (0.0,), "std": (1.0,)})
    solution = solve(task, zoo, plan=Plan(only=("encoder",), budget=Budget(evaluations=1)))
    assert solution.quality.metric > 0.9


def test_the_model_is_the_network_with_the_fitted_head(tmp_path: Path, rings: Task) -> None:
    zoo = adopted(tmp_path / "zoo")
    solution = solve(rings, zoo, plan=Plan(only=("encoder",), budget=Budget(evaluations=2)))
    model, own = solution.solved.model(), zoo.solved("random features").model()
    x = rings.test.first(50).x
    head = model.get_submodule(str(model.head_path))
    torch.testing.assert_close(outputs_of(model, x), head(features(own, x, str(own.head_path))).detach())
    accuracy = (outputs_of(model, rings.test.all().x).argmax(1) == rings.test.labels()).float().mean()
    assert solution.quality.metric == pytest.approx(float(accuracy))
    predicted = solution.predict(x)
    assert torch.equal(torch.as_tensor(predicted.labels), outputs_of(model, x).argmax(1))


def test_values_are_predicted_too(tmp_path: Path) -> None:
    (x, y), (x_test, y_test) = ring_samples(240, 0), ring_samples(100, 1)
    task = Task.from_arrays("radius", x, x.norm(dim=1) + 0 * y, x_test, x_test.norm(dim=1) + 0 * y_test)
    solution = solve(
        task, adopted(tmp_path / "zoo"), plan=Plan(only=("encoder", "logistic"), budget=Budget(evaluations=2))
    )
    assert solution.chosen == "encoder"
    assert solution.quality.metric > 0.7


def test_the_better_of_two_networks_is_chosen(tmp_path: Path, rings: Task) -> None:
    zoo = nk.Zoo(tmp_path / "zoo")
    blind = encoder()
    with torch.no_grad():
        blind[0].weight.mul_(1e-6)
    zoo.adopt("blind", blind, preprocess="shape=2")
    zoo.adopt("random features", encoder(), preprocess="shape=2")
    zoo.adopt("images", nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), preprocess="shape=1,8,8")
    solution = solve(rings, zoo, plan=Plan(only=("encoder",), budget=Budget(evaluations=2)))
    assert solution.standings[0].settings["encoder"] == "random features"


def test_a_network_that_learned_from_the_test_samples_is_not_used(tmp_path: Path, rings: Task) -> None:
    zoo = nk.Zoo(tmp_path / "zoo")
    leaked = Task.from_arrays("leaked", *ring_samples(200, 1), *ring_samples(50, 2))
    torch.manual_seed(0)
    zoo.adopt("leaked", nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), task=leaked, preprocess="shape=2")
    with pytest.raises(NearkinError, match="none of the contenders"):
        solve(rings, zoo, plan=Plan(only=("encoder",), budget=Budget(evaluations=2)))


def test_texts_need_a_network_that_reads_them(tmp_path: Path) -> None:
    texts = [f"{word} {number}" for number in range(20) for word in ("good", "bad")]
    task = Task.from_texts("mood", texts, ["+", "-"] * 20)
    with pytest.raises(MismatchError, match="reads texts; adopt one"):
        solve(task, nk.Zoo(tmp_path / "zoo"), plan=Plan(budget=Budget(evaluations=2)))


def test_a_task_of_texts_is_solved_and_stored_with_its_model(tmp_path: Path, text_folder: Path) -> None:
    texts = [f"{word} {'very ' * (number % 3)}" for number in range(40) for word in ("good", "bad")]
    task = Task.from_texts("mood", texts, ["+", "-"] * 40)
    zoo = nk.Zoo(tmp_path / "zoo")
    zoo.adopt("bert", str(text_folder))
    solution = solve(task, zoo, plan=Plan(budget=Budget(evaluations=2), epochs=1))
    assert solution.quality.metric > 0.9
    assert "mood" in zoo
    again = nk.Zoo(tmp_path / "zoo")
    stored = kept_solution(again, "mood")
    assert stored is not None
    assert again.solved("mood").scores_on(task).metric == pytest.approx(solution.quality.metric)


@pytest.mark.parametrize("side", [8, 6])
def test_a_network_adopted_with_its_task_needs_no_preprocessing(tmp_path: Path, side: int) -> None:
    """Its inputs are scaled by the statistics of the whole task, also where images are resized a few at a time."""
    zoo = nk.Zoo(tmp_path / "zoo")
    low = nk.task(f"digits?classes=0,1,2,3,4&rest=drop&limit=200&size={side}", name="low")
    torch.manual_seed(0)
    width = 16 * (side - 2) ** 2
    network = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(width, 5))
    zoo.adopt("low", network, task=low)
    high = nk.task("digits?classes=5,6,7,8,9&rest=drop&limit=200", name="high")
    solution = solve(high, zoo, plan=Plan(only=("encoder",), budget=Budget(evaluations=2)))
    assert solution.chosen == "encoder"
    assert solution.quality.metric > 0.8
    known, few = zoo.solved("low"), high.train.chosen(torch.arange(4))
    alone = frozen_encoder._seen(frozen_encoder._inputs(known, high), high, few)
    torch.testing.assert_close(alone, known.inputs(high).train.first(4).x)


def test_with_a_time_limit_only_the_selected_model_reads_the_test_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large test set leaves the network in the contest, as long as there is time to predict it once."""
    task = Task.from_arrays("rings", *ring_samples(120, 0), *ring_samples(600, 1))
    plan, zoo = Plan(only=("encoder", "logistic"), budget=Budget(minutes=0.5)), adopted(tmp_path / "zoo")
    monkeypatch.setattr(frozen_encoder, "_pass_seconds", lambda *_: 0.02)  # 12 s for the test samples
    solution = solve(task, zoo, plan=plan)
    assert solution.chosen == "encoder"
    assert solution.standings[0].test is None
    assert solution.solved.metric == pytest.approx(solution.quality.metric)
    monkeypatch.setattr(frozen_encoder, "_pass_seconds", lambda *_: 0.04)  # 24 s
    warnings = [event.text for event in solve.work(task, zoo, plan=plan, restart=True) if isinstance(event, Caution)]
    assert any("its features of 600 samples would take 24 s, more than 50%" in text for text in warnings)


def noisy_images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of noise in which the length of two pixels tells the class."""
    x, y = ring_samples(count, seed)
    images = torch.rand(count, 1, 10, 10, generator=torch.Generator().manual_seed(seed))
    images[:, 0, 4, 4:6] = 0.5 + x / 6
    return images, y


def reader_of_two_pixels() -> nn.Sequential:
    """A network whose features are random functions of the two pixels."""
    torch.manual_seed(0)
    first = nn.Linear(100, 64)
    with torch.no_grad():
        kept = torch.zeros(100)
        kept[44:46] = 1
        first.weight.copy_(3 * torch.randn(64, 100) * kept)
        first.bias.copy_(torch.randn(64))
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(64, 3)).eval()


@pytest.fixture(scope="module")
def rings_in_noise() -> Task:
    return Task.from_arrays("rings in noise", *noisy_images(240, 0), *noisy_images(200, 1))


def test_a_network_whose_features_beat_pixels_gets_most_of_the_time(tmp_path: Path, rings_in_noise: Task) -> None:
    zoo = nk.Zoo(tmp_path / "zoo")
    zoo.adopt("two pixels", reader_of_two_pixels(), preprocess="size=10&channels=1&mean=0.5&std=0.17")
    plan = Plan(only=("encoder", "encoder-finetune", "cnn"), budget=Budget(cpu_minutes=0.35), join=False)
    notes: list[str] = []
    solution = finish(solve.work(rings_in_noise, zoo, plan=plan), lambda e: notes.append(getattr(e, "text", "")))
    assert any("'two pixels' suit the images better than their pixels" in note for note in notes)
    order = [next(i for i, note in enumerate(notes) if title in note) for title in (", fine-tuned: ", "CNN: ")]
    assert order == sorted(order), "the network is trained first"
    assert solution.chosen in ("encoder", "encoder-finetune")
    assert solution.quality.metric > 0.85


def test_fine_tuning_starts_from_a_head_that_is_fitted_to_the_features(rings_in_noise: Task) -> None:
    model = reader_of_two_pixels()
    started = with_fitted_head(model, rings_in_noise, seed=0)
    x, y = rings_in_noise.train.all()
    assert (outputs_of(started, x).argmax(1) == y).double().mean() > 0.9
    assert all(torch.equal(a, b) for a, b in zip(list(model.parameters())[:2], started.parameters(), strict=False))
    values = Task.from_arrays("values", noisy_images(240, 0)[0], 2.0 * noisy_images(240, 0)[1])
    fitted = outputs_of(with_fitted_head(model, values, seed=0), values.train.all().x)
    assert float((fitted - values.train.all().y).square().mean()) < 0.5, "scaled values have a variance of 1"


def test_stopped_at_every_second_checkpoint_it_ends_in_the_same_weights(tmp_path: Path, rings: Task) -> None:
    """A resumed fine-tuning loads its weights and fits no head again."""
    plan = Plan(only=("encoder", "encoder-finetune"), budget=Budget(evaluations=1), epochs=6, join=False)
    with adopted(tmp_path / "whole") as zoo:
        whole = solve(rings, zoo, plan=plan)
    with adopted(tmp_path / "stopped") as zoo:
        for number in range(1, 200, 2):
            try:
                stopped = finish(solve.work(rings, zoo, plan=plan), stopping_at(number))
                break
            except Stop:
                continue
    assert number > 9
    assert stopped.chosen == whole.chosen
    for ours, theirs in zip(whole.standings, stopped.standings, strict=True):
        assert (ours.name, ours.validation, ours.test) == (theirs.name, theirs.validation, theirs.test)
    for name, value in whole.solved.trials[0].params.items():
        assert torch.equal(value, stopped.solved.trials[0].params[name])
