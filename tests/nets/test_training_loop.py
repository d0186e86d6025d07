"""The training loop: oracles in plain PyTorch, and the law that a killed run ends in the same bits."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nearkin.core.clock import timed_by
from nearkin.core.errors import NearkinError, TrainingError
from nearkin.core.events import Checkpoint, Event, Progress, finish
from nearkin.core.rng import Streams
from nearkin.core.state import State
from nearkin.nets import training_loop as fit_module
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.training_loop import Fit, fit
from nearkin.run.checkpoints import FolderCheckpoints, save_checkpoints
from nearkin.tasks.batches import epoch_batches
from nearkin.tasks.sources import task as read
from nearkin.tasks.task import Task


@pytest.fixture(scope="module")
def few() -> Task:
    return read("digits?limit=200")


class Restless(nn.Module):
    """Dropout and batch normalisation: everything that makes resuming hard."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 24)
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(self.norm(self.first(x.flatten(1))).relu(), 0.3, self.training))


def restless(seed: int = 0) -> Restless:
    torch.manual_seed(seed)
    return Restless()


def same(a: Fit, b: Fit) -> bool:
    weights = all(torch.equal(a.params[name], b.params[name]) for name in a.params)
    buffers = all(torch.equal(a.buffers[name], b.buffers[name]) for name in a.buffers)
    return weights and buffers and torch.equal(a.history.losses, b.history.losses) and a.scores == b.scores


RECIPES = {
    "adam": Recipe(epochs=4, batch_size=32),
    "sgd": Recipe(epochs=4, batch_size=32, optimiser="sgd", learning_rate=0.05, schedule="step", weight_decay=1e-3),
    "steps": Recipe(steps=23, batch_size=32, schedule="constant", clip=0.5, smoothing=0.1),
    "averaged": Recipe(epochs=4, batch_size=32, averaging=0.5),
    "patient": Recipe(epochs=6, batch_size=32, patience=2, target=0.99),
    "augmented": Recipe(epochs=3, batch_size=32, augment="crop=1,flip"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_killed_anywhere_and_resumed_it_ends_in_the_same_bits(
    few: Task, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_module, "TICK_SECONDS", 0.0)
    whole = fit(restless(), few, RECIPES[name], seed=5)
    file = tmp_path / "kept"
    for stop_at in (1, 4, 7, 8, 13):

        class Stop:
            seen = 0

            def __call__(self, event: Event, stop_at: int = stop_at) -> None:
                self.seen += isinstance(event, Checkpoint)
                if self.seen == stop_at:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            finish(
                save_checkpoints(fit.work(restless(), few, RECIPES[name], seed=5), FolderCheckpoints(tmp_path), "kept"),
                Stop(),
            )
        torch.rand(7)
        again = fit(restless(9), few, RECIPES[name], seed=5, resume=State.load(file))
        assert same(again, whole), f"stopped at checkpoint {stop_at}"


def test_sgd_steps_are_those_of_plain_pytorch(few: Task) -> None:
    recipe = Recipe(epochs=2, batch_size=50, optimiser="sgd", learning_rate=0.1, momentum=0.9, schedule="constant",
                    warmup=0.0)  # fmt: skip
    mine, plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    plain.load_state_dict(mine.state_dict())
    done = fit(mine, few, recipe, seed=2)
    optimiser = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, nesterov=True)
    losses = []
    for epoch in range(2):
        for x, y in epoch_batches(few.train, 50, Streams(2), epoch):
            optimiser.zero_grad()
            loss = F.cross_entropy(plain(x), y)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    assert torch.allclose(done.history.losses, torch.tensor(losses), atol=1e-6)
    assert all(torch.allclose(done.params[n], p.detach(), atol=1e-6) for n, p in plain.named_parameters())


def test_averaging_is_the_mean_of_the_iterates(few: Task) -> None:
    def run(steps: int) -> Fit:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        recipe = Recipe(steps=steps, batch_size=50, schedule="constant", warmup=0.0)
        return fit(model, few, recipe)

    torch.manual_seed(0)
    averaged = fit(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), few,
                   Recipe(steps=8, batch_size=50, schedule="constant", warmup=0.0, averaging=0.5))  # fmt: skip
    iterates = [run(steps).params["1.weight"] for steps in (5, 6, 7, 8)]
    assert torch.allclose(averaged.params["1.weight"], torch.stack(iterates).mean(0), atol=1e-6)


def test_the_global_generator_is_left_alone(few: Task) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    model = restless(1)
    torch.manual_seed(3)
    fit(model, few, Recipe(epochs=2, batch_size=32))
    assert torch.equal(torch.rand(4), expected)


def test_target_stops_early_on_validation_data_only(few: Task) -> None:
    done = fit(build("mlp", few.input_shape, 10, 0), few, Recipe(epochs=60, target=0.8))
    assert done.reached
    assert len(done.history.losses) < 60 * 3
    assert done.history.measured[-1].metric >= 0.8
    missed = fit(build("mlp", few.input_shape, 10, 0), few, Recipe(epochs=1, target=0.999))
    assert not missed.reached


def test_patience_keeps_the_best_weights(few: Task) -> None:
    model = build("mlp", few.input_shape, 10, 0)
    done = fit(model, few, Recipe(epochs=40, learning_rate=0.02, schedule="constant", patience=3))
    losses = [row.loss for row in done.history.measured]
    assert len(losses) < 40
    assert losses.index(min(losses)) == len(losses) - 1 - 3


def test_lenet_learns_the_digits() -> None:
    digits = read("digits")
    done = fit(build("lenet", digits.input_shape, 10, 0), digits, Recipe.suited(digits, epochs=12))
    assert done.scores.metric >= 0.95
    assert done.history.steps_to(0.5) is not None


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_regression_learns_a_line(likelihood: str) -> None:
    x = torch.linspace(-1, 1, 200)[:, None]
    line = Task.from_arrays("line", x, 300 + 70 * x[:, 0], x, 300 + 70 * x[:, 0], likelihood=likelihood)
    done = fit(build("mlp?hidden=16", (1,), line.num_outputs, 0), line, Recipe(steps=300, learning_rate=0.01))
    assert done.scores.metric > 0.98


def test_dense_tasks_learn() -> None:
    dense = read("digits?dense=denoise&limit=500")
    done = fit(build("autoencoder", dense.input_shape, dense.num_outputs, 0), dense, Recipe(steps=300))
    assert done.scores.metric > 0.3


def test_bfloat16_trains_too(few: Task) -> None:
    done = fit(build("mlp", few.input_shape, 10, 0), few, Recipe(epochs=10, precision="bfloat16"))
    assert done.scores.metric > 0.7
    assert done.params["head.weight"].dtype == torch.float32


def test_events_tell_progress_and_cost_nothing_unless_taken(few: Task) -> None:
    seen: list[Event] = []
    finish(fit.work(restless(), few, Recipe(epochs=3, batch_size=50)), seen.append)
    progress = [event for event in seen if isinstance(event, Progress)]
    assert [event.done for event in progress] == [4, 8, 12]
    assert all(event.total == 12 and event.values["loss"] > 0 for event in progress)


@pytest.mark.parametrize(
    ("model", "recipe", "words"),
    [
        (
            restless(),
            Recipe(steps=60, optimiser="sgd", learning_rate=1e9, warmup=0.0),
            "loss became .* lower the learning",
        ),
        (nn.Flatten(), Recipe(steps=1), "no weights that can be trained"),
    ],
)
def test_runs_that_cannot_go_on_say_why(few: Task, model: nn.Module, recipe: Recipe, words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        fit(model, few, recipe)


def test_a_checkpoint_of_another_run_is_refused(few: Task) -> None:
    taken: list[State] = []
    finish(fit.work(restless(), few, RECIPES["adam"], seed=1),
           lambda event: taken.append(event.capture()) if isinstance(event, Checkpoint) else None)  # fmt: skip
    with pytest.raises(TrainingError, match="another recipe"):
        fit(restless(), few, RECIPES["sgd"], seed=1, resume=taken[0])
    with pytest.raises(TrainingError, match="another seed"):
        fit(restless(), few, RECIPES["adam"], seed=2, resume=taken[0])


def test_augmentation_is_refused_where_it_would_mislead() -> None:
    dense = read("digits?dense=edges&limit=100")
    with pytest.raises(NearkinError, match="augmentation is for images with classes"):
        fit(build("autoencoder", dense.input_shape, dense.num_outputs, 0), dense, Recipe(steps=1, augment="flip"))


class Clock:
    """A clock that advances by a fixed time at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


def test_a_time_limit_ends_a_run_annealed_and_resumes_to_the_same_bits(few: Task) -> None:
    recipe = Recipe(epochs=1000, seconds=0.5, batch_size=20, optimiser="sgd", learning_rate=0.1)
    clock = Clock()
    states: list[State] = []
    rates: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, Checkpoint):
            states.append(event.capture())
            rates.append(recipe.rate(2000 * states[-1].facts["seconds"], 1000))

    done = finish(timed_by(clock, fit.work(Restless(), few, recipe)), listen)
    assert 20 <= len(done.history.losses) < 200, "the time ended it, not the epochs"
    assert 0.5 <= done.seconds < 0.6
    assert rates[-1] < 0.01 < 0.09 < max(rates), "the schedule followed the time"
    middle = states[len(states) // 2]
    again = finish(timed_by(clock, fit.work(Restless(), few, recipe, resume=middle)))
    assert len(again.history.losses) == len(done.history.losses)
    assert all(torch.equal(again.params[name], value) for name, value in done.params.items())


def test_a_recipe_without_a_time_limit_is_stored_as_before() -> None:
    assert "seconds" not in Recipe().to_dict()
    assert Recipe(**Recipe(seconds=3.0).to_dict()).seconds == 3.0
    with pytest.raises(NearkinError, match="seconds must be above 0"):
        Recipe(seconds=0.0)


def test_frozen_statistics_stay_while_weights_move(few: Task) -> None:
    def trained(frozen: bool) -> Fit:
        model = restless()
        model(few.train.first(64).x)  # statistics that are not those of a new network
        before.update({name: value.clone() for name, value in model.named_buffers()})
        return fit(model, few, Recipe(steps=5, averaging=0.5, frozen_statistics=frozen))

    before: dict[str, torch.Tensor] = {}
    kept, moved = trained(True), trained(False)
    assert all(torch.equal(kept.buffers[name], value) for name, value in before.items())
    assert not torch.equal(moved.buffers["norm.running_mean"], before["norm.running_mean"])
    assert not torch.equal(kept.params["norm.weight"], torch.ones(24))
