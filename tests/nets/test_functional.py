import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError
from nearkin.core.rng import seeded
from nearkin.nets.functional import (
    blank,
    check,
    evaluation_mode,
    load,
    load_common,
    multiply_adds,
    num_parameters,
    outputs_of,
    view,
)
from nearkin.nets.recurrent import RecurrentLanguageModel
from nearkin.nets.registry import NETWORKS, build

SHAPES = {"mlp": (6,), "recurrent": (5,)}
TINY = {
    "mlp": "mlp?hidden=8-4",
    "recurrent": "recurrent?embedding=6&hidden=6&tied=true",
    **{name: f"{name}?width=0.0625" for name in ("autoencoder", "cnn", "densenet121", "lenet", "resnet18", "vgg16")},
}


def sample(model: nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    like = blank(model, shape, 3)
    return torch.randn_like(like) if like.is_floating_point() else torch.randint(4, like.shape)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("training", [False, True])
def test_the_view_is_the_network(name: str, training: bool) -> None:
    shape = SHAPES.get(name, (1, 8, 8))
    model = build(TINY[name], shape, 4, seed=0).train(training)
    x = sample(model, shape)
    with torch.no_grad():
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5)
    v = view(model)
    assert set(v.params) == {name for name, _ in model.named_parameters()}
    assert not any(value.requires_grad for value in v.params.values())
    assert torch.equal(v.f(v.params, v.buffers, x), model(x))


def test_the_view_follows_given_weights_in_tied_places_too() -> None:
    model = RecurrentLanguageModel(6, embedding=3, hidden=3, tied=True)
    v, tokens = view(model), torch.randint(6, (2, 4))
    moved = {name: value + 1 for name, value in v.params.items()}
    through = v.f(moved, v.buffers, tokens)
    assert not torch.equal(through, model(tokens))
    load(model, moved, v.buffers)
    assert torch.equal(through, model(tokens))


def test_the_view_is_a_copy() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    v = view(model)
    kept = {name: value.clone() for name, value in {**v.params, **v.buffers}.items()}
    with torch.no_grad():
        model[0].weight.add_(1)
    model(torch.randn(4, 3))
    assert all(torch.equal(value, kept[name]) for name, value in {**v.params, **v.buffers}.items())


def test_loading_undoes_everything() -> None:
    model = build("resnet18?width=0.0625", (1, 8, 8), 3, seed=0)
    v, x = view(model), torch.randn(4, 1, 8, 8)
    before = outputs_of(model, x)
    model(x).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert not torch.equal(outputs_of(model, x), before)
    load(model, v.params, v.buffers)
    assert torch.equal(outputs_of(model, x), before)


def test_loading_names_at_most_three_faults_and_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = view(model).params
    wrong = {"0.weight": torch.zeros(2, 2), "0.bias": torch.zeros(3), "extra": torch.zeros(1), "more": torch.zeros(1)}
    with pytest.raises(MismatchError) as caught:
        load(model, wrong, {})
    message = str(caught.value)
    assert "1.weight is missing, 1.bias is missing, extra is unexpected and 2 more" in message
    assert "\n" not in message
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_loading_the_common_part() -> None:
    class Net(nn.Module):
        def __init__(self, outputs: int) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 3), nn.Linear(3, outputs)
            self.register_buffer("outputs", torch.tensor(outputs))
            self.register_buffer("basis", torch.randn(3))

    first, second = Net(2), Net(5)
    head = second.head.weight.clone()
    load_common(second, first)
    assert torch.equal(second.body.weight, first.body.weight)
    assert torch.equal(second.basis, first.basis)
    assert torch.equal(second.head.weight, head)
    assert int(second.outputs) == 5


def test_evaluating_puts_back_every_module_even_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval(), nn.Linear(2, 2))
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    with pytest.raises(RuntimeError), evaluation_mode(model):
        model(torch.zeros(1, 5))
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("model", "shape", "products"),
    [
        (nn.Linear(7, 5), (7,), 35),
        (nn.Conv2d(4, 6, 3, padding=1), (4, 8, 8), 6 * 64 * 4 * 9),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (4, 8, 8), 6 * 16 * 2 * 9),
        (nn.Conv1d(3, 2, 5), (3, 9), 2 * 5 * 3 * 5),
        (nn.ConvTranspose2d(4, 6, 5, stride=2, padding=2), (4, 8, 8), 4 * 64 * 6 * 25),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)), (1, 4, 4), 72 + 24),
    ],
)
def test_multiply_adds_of_closed_forms(model: nn.Module, shape: tuple[int, ...], products: int) -> None:
    assert multiply_adds(model, shape) == products
    assert not any(module._forward_hooks for module in model.modules())


def test_multiply_adds_of_a_recurrent_network_and_of_the_known_resnet() -> None:
    tokens, size, words = 5, 8, 11
    model = RecurrentLanguageModel(words, embedding=size, hidden=size)
    assert multiply_adds(model, (tokens,)) == tokens * (2 * 4 * size * size + size * words)
    with torch.device("meta"):
        resnet = NETWORKS["resnet18"]((3, 32, 32), 10)
    assert multiply_adds(resnet, (3, 32, 32)) == 555_422_720


def test_a_layer_that_runs_twice_counts_twice_and_its_weights_once() -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert multiply_adds(model, (4,)) == 32
    assert num_parameters(model) == 20


@pytest.mark.parametrize("name", NETWORKS)
def test_check_passes_every_network_on_its_own_kind_of_task(name: str) -> None:
    shape = SHAPES.get(name, (1, 8, 8))
    like = {"autoencoder": "dense", "recurrent": "language"}.get(name, "categorical")
    model = build(TINY[name], shape, 4, seed=0)
    check(model, shape, 4, like)
    assert model.training


@pytest.mark.parametrize(
    ("network", "built_for", "shape", "outputs", "likelihood", "message"),
    [
        ("lenet", (1, 8, 8), (13,), 3, "categorical", "LeNet cannot read inputs of shape"),
        ("mlp", (13,), (1, 8, 8), 3, "categorical", "MLP cannot read inputs of shape"),
        ("mlp", (6,), (6,), 4, "categorical", r"gives outputs of shape \(3,\)"),
        ("mlp", (64,), (1, 8, 8), 3, "dense", r"needs \(3, 8, 8\)"),
        ("autoencoder?width=0.1", (1, 8, 8), (1, 8, 8), 3, "categorical", r"needs \(3,\)"),
        ("recurrent?hidden=4", (6,), (6,), 3, "categorical", "RecurrentLanguageModel cannot read inputs"),
        ("mlp", (6,), (6,), 3, "language", "MLP cannot read tokens"),
        ("recurrent?hidden=4", (6,), (6,), 9, "language", r"needs \(6, 9\)"),
    ],
)
def test_check_says_in_one_line_what_does_not_fit(
    network: str, built_for: tuple[int, ...], shape: tuple[int, ...], outputs: int, likelihood: str, message: str
) -> None:
    with pytest.raises(MismatchError, match=message) as caught:
        check(build(network, built_for, 3, seed=0), shape, outputs, likelihood)
    assert "\n" not in str(caught.value)


def test_check_wants_one_tensor() -> None:
    with pytest.raises(MismatchError, match="returns a tuple"):
        check(nn.LSTM(3, 2), (4, 3), 2, "categorical")


def test_blank_takes_the_networks_precision() -> None:
    with seeded(0):
        assert blank(nn.Linear(2, 2).double(), (2,), 4).dtype == torch.float64
    assert blank(nn.ReLU(), (2,), 4).shape == (4, 2)


class Masked(nn.Module):
    """A network that takes several inputs."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


def test_a_network_of_several_inputs_is_to_be_adopted() -> None:
    with pytest.raises(MismatchError, match=r"'mask'\); if it takes several inputs, adopt it first"):
        outputs_of(Masked(), torch.zeros(2, 3))
