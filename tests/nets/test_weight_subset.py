"""Subsets of weights in training: what moves, what stays, and that a run can be resumed."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import OptionError, TrainingError
from nearkin.core.events import Checkpoint, finish
from nearkin.nets.adopted import wrapped
from nearkin.nets.adopted_spec import AdoptedSpec
from nearkin.nets.lora import LoraLayer
from nearkin.nets.recipe import Recipe
from nearkin.nets.training import Training
from nearkin.nets.training_loop import fit
from nearkin.nets.weight_subset import checked_weights, chosen_names, free_weights
from nearkin.tasks.batches import ordered_batches
from nearkin.tasks.examples import Batch
from nearkin.tasks.task import Task


class Encoder(nn.Module):
    """Convolution, batch normalisation with and without weights, layer normalisation, dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.batch = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.body, self.plain = nn.Linear(64, 8), nn.BatchNorm1d(8, affine=False)
        self.layer, self.drop, self.head = nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.batch(self.conv(x)).relu().flatten(1)
        return self.head(self.drop(self.layer(self.plain(self.body(x)).relu())))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    net = Encoder()
    net(3 * torch.randn(30, 1, 4, 4) + 1)  # running statistics that are not those of a new layer
    return net


@pytest.fixture(scope="module")
def toy() -> Task:
    x = torch.randn(160, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0, 0, 0] > 0).long()
    return Task.from_arrays("toy", x[:120], y[:120], x[120:], y[120:], standardise=False)


MOVED = {
    "head": {"head.weight", "head.bias"},
    "norm": {"batch.weight", "batch.bias", "layer.weight", "layer.bias", "head.weight", "head.bias"},
    "lora?r=2": {"conv.weight", "body.weight", "head.weight", "head.bias"},
    "body": {"body.weight", "body.bias"},
    "all": {"conv.weight", "conv.bias", "batch.weight", "batch.bias", "body.weight", "body.bias", "layer.weight",
            "layer.bias", "head.weight", "head.bias"},
}  # fmt: skip
STATISTICS = {"head": set(), "norm": {"batch"}, "lora?r=2": set(), "body": set(), "all": {"batch", "plain"}}


@pytest.mark.parametrize("averaging", [0.0, 0.5])
@pytest.mark.parametrize("weights", MOVED)
def test_only_the_subset_moves(net: nn.Module, toy: Task, weights: str, averaging: float) -> None:
    """A normalisation layer keeps its running statistics unless a weight of it, or every weight, is trained."""
    before, flags = copy.deepcopy(net.state_dict()), [value.requires_grad for value in net.parameters()]
    done = fit(net, toy, Recipe(steps=8, batch_size=32, weight_decay=0.1, averaging=averaging), weights=weights)
    after = net.state_dict()
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed & {name for name, _ in net.named_parameters()} == MOVED[weights]
    assert {name.split(".")[0] for name in changed if "running" in name} == STATISTICS[weights]
    assert [value.requires_grad for value in net.parameters()] == flags
    assert not any(isinstance(module, LoraLayer) for module in net.modules())
    assert all(torch.equal(done.params[name], value) for name, value in net.named_parameters())
    assert all(torch.equal(done.buffers[name], value) for name, value in net.named_buffers())


def test_the_scores_are_those_of_the_merged_network(net: nn.Module, toy: Task) -> None:
    done = fit(net, toy, Recipe(steps=40, learning_rate=0.02), weights="lora?r=2")
    x, y = toy.test.all()
    with torch.no_grad():
        outputs = net.eval()(x)
    assert done.scores.metric == float((outputs.argmax(1) == y).double().mean())
    assert done.scores.loss == pytest.approx(float(nn.functional.cross_entropy(outputs, y)), rel=1e-4)
    assert done.scores.metric > 0.7


def test_averaged_weights_get_the_statistics_of_torch(net: nn.Module, toy: Task) -> None:
    fit(net, toy, Recipe(steps=8, batch_size=32, averaging=0.5), weights="all")
    own = copy.deepcopy(dict(net.named_buffers()))
    net.drop.p = 0.0  # it follows all batch normalisation
    torch.optim.swa_utils.update_bn((batch.x for batch in ordered_batches(toy.train, 32)), net)
    assert all(torch.equal(value, own[name]) for name, value in net.named_buffers())


def test_statistics_of_averaged_weights_restore_modes_and_momenta(net: nn.Module, toy: Task) -> None:
    run = Training(net, toy.form, Recipe(averaging=0.5), 2, 0, torch.device("cpu"), frozen_norms=[net.plain])
    run.train_mode()
    for _ in range(2):
        run.step(toy.train.first(32))
    run.load_final_weights(ordered_batches(toy.train, 32))
    assert (net.training, net.batch.training, net.plain.training) == (True, True, False)

    def broken() -> Iterator[Batch]:
        yield toy.train.first(32)
        raise OSError

    with pytest.raises(OSError, match=r"^$"):
        run.load_final_weights(broken())
    assert net.batch.momentum == 0.1
    assert not net.plain.training


def test_the_optimiser_stores_moments_of_moving_weights_only(net: nn.Module, toy: Task) -> None:
    for weights in ("head", "lora?r=2"):
        free = free_weights(net, weights, toy.train.first(1).x)
        with free.trainable():
            run = Training(free.model, toy.form, Recipe(), 3, 0, torch.device("cpu"), frozen_norms=free.frozen_norms())
            run.train_mode()
            run.step(toy.train.first(32))
        shapes = [value.shape for name, value in free.model.named_parameters() if name in free.names]
        assert [entry["exp_avg"].shape for entry in run.optimiser.state_dict()["state"].values()] == shapes


def test_weights_of_none_are_those_that_require_gradients(net: nn.Module, toy: Task) -> None:
    net.requires_grad_(False)
    net.head.requires_grad_(True)
    before = copy.deepcopy(net.state_dict())
    fit(net, toy, Recipe(steps=3))
    after = net.state_dict()
    assert {name for name, _ in net.named_parameters() if not torch.equal(before[name], after[name])} == MOVED["head"]
    assert not torch.equal(before["batch.running_mean"], after["batch.running_mean"])
    fit(net, toy, Recipe(steps=3), weights="all")  # frozen weights may move if they are selected
    assert not torch.equal(before["conv.weight"], net.conv.weight)
    assert not net.conv.weight.requires_grad


@pytest.mark.parametrize("weights", ["norm", "lora?r=2"])
def test_a_run_continues_from_its_checkpoint(net: nn.Module, toy: Task, weights: str) -> None:
    recipe = Recipe(epochs=4, batch_size=32)
    whole, start = copy.deepcopy(net), copy.deepcopy(net)
    fit(whole, toy, recipe, weights=weights)
    states: Iterator[Checkpoint] = (e for e in fit.work(net, toy, recipe, weights=weights) if isinstance(e, Checkpoint))
    state = next(states).capture()
    resumed = copy.deepcopy(start)
    finish(fit.work(resumed, toy, recipe, weights=weights, resume=state))
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in resumed.state_dict().items())
    with pytest.raises(TrainingError, match="other trained weights"):
        fit(copy.deepcopy(start), toy, recipe, weights="head", resume=state)


def test_a_tied_head_is_selected_by_its_weight() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.body, self.out = nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5)
            self.out.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.body(self.words(x)).mean(1))

    net, x = Tied(), torch.tensor([[0, 1]])
    assert chosen_names(net, "head", x) == ("words.weight", "out.bias")
    free = free_weights(net, "lora?r=2", x)
    assert free.names == ("words.weight", "body.down.weight", "body.up.weight", "out.bias")


def test_a_network_without_a_head_has_norms_and_adapters() -> None:
    net, x = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), torch.zeros(1, 1, 4, 4)
    assert chosen_names(net, "norm", x) == ("1.weight", "1.bias")
    assert free_weights(net, "lora?r=1", x).names == ("0.down.weight", "0.up.weight")


def test_several_names_are_a_union(net: nn.Module) -> None:
    free = free_weights(net, ["lora?r=1", "norm", "conv.base.bias"])
    wanted = MOVED["norm"] | {f"{layer}.{part}.weight" for layer in ("conv", "body") for part in ("down", "up")}
    assert set(free.names) == wanted | {"conv.base.bias"}


def test_bad_names_are_refused_in_one_line(net: nn.Module, toy: Task) -> None:
    weights: Any
    for weights, words in {
        "lora?r=a": "expected numbers",
        "lora?k=1": "no option 'k'",
        "haed": "did you mean head",
        ("lora?r=1", "lora?r=2"): "got LoRA 2 times",
        (): "got no names",
        "nope": "has no weights 'nope'; give one of all, head, norm, lora, adapters, or its layers conv",
    }.items():
        with pytest.raises(OptionError, match=words) as told:
            fit(net, toy, Recipe(steps=1), weights=weights)
        assert "\n" not in str(told.value)
    with pytest.raises(OptionError, match="named by text, got 3"):
        checked_weights([3])  # type: ignore[list-item]
    for other in (None, 3):
        with pytest.raises(OptionError, match=f"the weights are {other}, expected one of all"):
            checked_weights(other)  # type: ignore[arg-type]
    assert checked_weights(["a", "b"]) == ("a", "b")


def test_messages_name_layers_of_an_adopted_network_as_in_its_module() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    model = wrapped(module, AdoptedSpec(label="Mine", layers={}, head="2"))
    for weights, words in {
        "nope": "Mine has no weights 'nope'; give one of all, head, norm, lora, adapters, or its layers 0, 2",
        "norm": "Mine has no weights of the kind 'norm'; its layers are 0, 2",
        "2.wieght": "Mine has no weights '2.wieght'; did you mean 2.weight",
    }.items():
        with pytest.raises(OptionError, match=words):
            chosen_names(model, weights)
