"""`short-finetune`: closed forms of its first steps, what it does not depend on, what it refuses."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, OptionError, TrainingError
from nearkin.core.events import Progress, finish
from nearkin.core.rng import Streams
from nearkin.distance.baselines.inputs import canonical_order
from nearkin.distance.short_finetune import SCHEDULE, FinetuneSchedule, short_finetune_loss
from nearkin.nets.heads import SCALE_SAMPLES, features
from nearkin.nets.registry import build
from nearkin.tasks.likelihood import Gaussian
from nearkin.tasks.likelihood import likelihood as likelihood_named

WHOLE = FinetuneSchedule(steps=4, batch_size=1000)
SHORT = FinetuneSchedule(steps=4, batch_size=8)


def samples(count: int = 40, width: int = 5, classes: int = 3) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(count, width, generator=rng, dtype=torch.float64)
    return x, (x[:, :classes] + 0.3 * torch.randn(count, classes, generator=rng)).argmax(1)


def network(width: int = 5, classes: int = 7) -> nn.Module:
    return build("mlp?hidden=6", (width,), classes, seed=0).double()


class Noisy(nn.Sequential):
    """With statistics that move and noise that is drawn."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 2))


class Listening(nn.Module):
    """Remembers the first column of every batch that it is trained on."""

    heard: list[Tensor] = []  # noqa: RUF012 - copies of the module share it, which is what it is for

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.heard.append(x[:, 0].clone())
        return x


def test_first_loss_is_that_of_an_answer_that_ignores_the_input():
    x, y = samples()
    assert short_finetune_loss(network(), x, y, num_outputs=3, schedule=FinetuneSchedule(steps=1)) == pytest.approx(
        math.log(3), abs=1e-12
    )


def test_second_loss_after_a_step_of_adam_by_hand():
    x, y = samples()
    rate = 0.05
    residual = torch.full((len(x), 3), 1 / 3, dtype=torch.float64) - F.one_hot(y, 3)
    gradients = residual.T @ x / len(x), residual.mean(0)
    weight, bias = (-rate * g / (g.abs() + 1e-8) for g in gradients)  # the first step of Adam is one of signs
    second = F.cross_entropy(x @ weight.T + bias, y)
    found = short_finetune_loss(
        nn.Linear(5, 4).double(), x, y, num_outputs=3, schedule=FinetuneSchedule(steps=2, learning_rate=rate)
    )
    assert found == pytest.approx((math.log(3) + float(second)) / 2, abs=1e-10)


def test_frozen_encoder_is_a_head_on_its_features():
    x, y = samples()
    model = network()
    model.body.requires_grad_(False)
    with torch.no_grad():
        seen = features(model, x, "head")
    alone = short_finetune_loss(nn.Linear(6, 2).double(), seen, y, num_outputs=3, schedule=WHOLE)
    assert short_finetune_loss(model, x, y, num_outputs=3, schedule=WHOLE) == pytest.approx(alone, abs=1e-12)


def test_names_of_classes_do_not_matter():
    x, y = samples()
    named = torch.tensor([2, 0, 1])[y]
    found = [short_finetune_loss(network(), x, labels, num_outputs=3, schedule=WHOLE) for labels in (y, named)]
    assert found[0] == pytest.approx(found[1], abs=1e-10)


@pytest.mark.parametrize("head", ["zero", "drawn", "scaled"])
def test_order_of_samples_does_not_matter_to_the_bit(head: str):
    x, y = samples(SCALE_SAMPLES + 40)
    turn = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    first, second = (
        short_finetune_loss(network(), a, b, num_outputs=3, head=head, schedule=SHORT)
        for a, b in ((x, y), (x[turn], y[turn]))
    )
    assert first == second


def test_canonical_order_tells_equal_inputs_apart_by_their_targets():
    x, y = torch.zeros(4, 1), torch.tensor([1, 0, 1, 0])
    assert y[canonical_order(x, y)].tolist() == [0, 0, 1, 1]


def test_same_seed_same_value_and_nothing_outside_moves():
    x, y = samples()
    model = Noisy().double().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first, second = (short_finetune_loss(model, x, y, num_outputs=3, schedule=SHORT, seed=3) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())
    assert first != short_finetune_loss(model, x, y, num_outputs=3, schedule=SHORT, seed=4)


def test_no_sample_comes_twice_before_all_have_come():
    x, y = samples()
    Listening.heard.clear()
    model = nn.Sequential(Listening(), nn.Linear(5, 2)).double()
    short_finetune_loss(model, x, y, num_outputs=3, schedule=FinetuneSchedule(steps=10, batch_size=8))
    epochs = torch.cat(Listening.heard).view(2, -1)
    assert all(torch.equal(epoch.sort().values, x[:, 0].sort().values) for epoch in epochs)
    assert not torch.equal(*epochs)


def test_more_steps_cost_less_on_what_can_be_learned():
    x, y = samples()
    heard: list[float] = []

    def listen(event: object) -> None:
        if isinstance(event, Progress):
            heard.append(event.values["loss"])

    pace = FinetuneSchedule(steps=30, batch_size=40, learning_rate=0.02)
    found = finish(short_finetune_loss.work(network(), x, y, num_outputs=3, schedule=pace), listen)
    assert len(heard) == 30
    assert found == pytest.approx(sum(heard) / 30, abs=1e-12)
    assert heard[-1] < 0.7 * heard[0]


def test_a_network_that_has_learned_the_task_is_nearer_than_its_start():
    x, _ = samples(400)
    y = (x[:, 0] * x[:, 1] > 0).long()  # no linear head can tell these
    start, learned = (build("mlp?hidden=16", (5,), 2, seed=0).double() for _ in range(2))
    optimiser = torch.optim.Adam(learned.parameters(), 0.02)
    for _ in range(150):
        optimiser.zero_grad()
        F.cross_entropy(learned(x[:200]), y[:200]).backward()
        optimiser.step()
    values = [short_finetune_loss(model, x[200:], y[200:], num_outputs=2) for model in (learned, start)]
    assert values[0] < values[1] - 0.05


def test_real_targets_and_images_have_their_first_loss():
    x, _ = samples()
    y = x[:, :2] * 3 + 1
    first = float(Gaussian().loss(torch.zeros_like(y), y))
    found = short_finetune_loss(
        network(), x, y, num_outputs=2, likelihood="gaussian", schedule=FinetuneSchedule(steps=1)
    )
    assert found == pytest.approx(first, rel=1e-12)
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model = build("autoencoder?width=0.1", (1, 8, 8), 1, seed=0).eval()
    with torch.no_grad():
        own = float(model(images).sub(images).square().mean())
    values = [
        short_finetune_loss(
            model, images, images, num_outputs=1, likelihood="dense", schedule=FinetuneSchedule(steps=k)
        )
        for k in (1, 10)
    ]
    assert values[1] < values[0]
    assert values[0] >= 0.5 * own  # half the square, and a constant where the likelihood has one


def test_drawn_heads_are_one_for_all_sources_of_a_seed():
    x, y = samples()
    model = network()
    with torch.no_grad():
        model.body[1].weight.zero_()  # features are then what the biases are, so the head alone tells values apart
    found = {
        short_finetune_loss(
            model, x, y, num_outputs=3, head="drawn", seed=seed, schedule=FinetuneSchedule(steps=1, batch_size=1000)
        )
        for seed in (0, 0, 1)
    }
    assert len(found) == 2


def test_many_drawn_heads_leave_less_to_luck():
    x, y = samples()
    model = network()
    with torch.no_grad():
        model.body[1].weight.mul_(5)
    spread = {
        count: torch.tensor(
            [
                short_finetune_loss(model, x, y, num_outputs=3, head="drawn", num_heads=count, seed=s, schedule=WHOLE)
                for s in range(8)
            ]
        ).std()
        for count in (1, 32)
    }
    assert spread[32] < 0.4 * spread[1]


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian", "language"])
def test_heads_side_by_side_are_heads_apart_while_the_encoder_rests(likelihood: str):
    """One step of H heads on a frozen encoder: their losses are those of single heads, and their mean is the value."""
    rng = torch.Generator().manual_seed(0)
    if likelihood == "language":
        x, width = torch.randint(5, (6, 4), generator=rng), 5
        y = torch.randint(5, (6, 4), generator=rng)
        model: nn.Module = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    else:
        x, labels = samples(6)
        width, y = 3, labels if likelihood == "categorical" else x[:, :3]
        model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)).double()
    heard: list[Tensor] = []

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.last = model[0], model[1]

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.last(self.body(x))
            heard.append(outputs.detach())
            return outputs

    options = {"num_outputs": width, "likelihood": likelihood, "head": "drawn", "num_heads": 3}
    found = short_finetune_loss(Kept(), x, y, schedule=FinetuneSchedule(steps=1, batch_size=6), **options)
    order = canonical_order(x, y)
    at = torch.randperm(6, generator=Streams(0).at("kin order", 0))
    form = likelihood_named(likelihood)
    each = [float(form.loss(part, y[order][at])) for part in heard[-1].split(width, -1)]
    assert found == pytest.approx(sum(each) / 3, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"x": torch.full((4, 5), math.nan).double()}, DataError, "inputs are NaN"),
        ({"y": torch.tensor([0, 1, 2, 9])}, DataError, "labels run from 0 to 9, expected 0 to 2"),
        ({"y": torch.tensor([0, 1])}, MismatchError, "4 samples but 2 targets"),
        ({"x": torch.zeros(1, 5).double(), "y": torch.tensor([0])}, DataError, "1 samples, expected two"),
        ({"head": "fitted"}, OptionError, "head must be one of zero, drawn, scaled"),
    ],
)
def test_refuses_what_it_cannot_measure(change: dict[str, object], error: type[Exception], said: str):
    asked = {"x": torch.ones(4, 5).double(), "y": torch.tensor([0, 1, 2, 0]), "num_outputs": 3, **change}
    with pytest.raises(error, match=said):
        short_finetune_loss(network(), **asked)


def test_refuses_weights_that_diverged():
    x, y = samples()
    model = network()
    with torch.no_grad():
        model.body[1].weight[0, 0] = math.nan
    with pytest.raises(TrainingError, match=f"the loss is nan at step 0 of {SCHEDULE.steps}"):
        short_finetune_loss(model, x, y, num_outputs=3)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"batch_size": 1}, {"learning_rate": math.inf}])
def test_pace_is_checked_at_birth(wrong: dict[str, float]):
    with pytest.raises(OptionError):
        FinetuneSchedule(**wrong)
