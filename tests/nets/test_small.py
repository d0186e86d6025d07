import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from nearkin.core.errors import MismatchError, OptionError
from nearkin.core.rng import seeded
from nearkin.nets.functional import num_parameters
from nearkin.nets.small import MLP, LeNet, half_pool


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None]
    x, y = (x - x.mean()) / x.std(), torch.tensor(data.target)
    learn, judge = train_test_split(torch.arange(len(x)), test_size=0.2, stratify=data.target, random_state=0)
    return x[learn], y[learn], x[judge], y[judge]


def test_mlp_without_hidden_layers_is_the_linear_model() -> None:
    model, x = MLP((2, 3), 4, hidden=()), torch.randn(5, 2, 3)
    assert torch.allclose(model(x), x.flatten(1) @ model.head.weight.T + model.head.bias)
    assert [name for name, _ in model.named_parameters()] == ["head.weight", "head.bias"]


def test_mlp_matches_the_formula() -> None:
    model, x = MLP((6,), 2, hidden=(5, 4)), torch.randn(3, 6)
    h = x
    for layer in (model.body[1], model.body[3]):
        h = (h @ layer.weight.T + layer.bias).clamp_min(0)
    assert torch.allclose(model(x), h @ model.head.weight.T + model.head.bias)
    assert num_parameters(model) == 6 * 5 + 5 + 5 * 4 + 4 + 4 * 2 + 2


def test_mlp_refuses_empty_layers() -> None:
    with pytest.raises(OptionError, match="sizes >= 1"):
        MLP((4,), 2, hidden=(8, 0))


def test_lenet_has_the_layers_of_lenet_5() -> None:
    model = LeNet((1, 28, 28), 10)
    counts = [6 * 25 + 6, 16 * 6 * 25 + 16, 120 * 16 * 7 * 7 + 120, 84 * 120 + 84, 10 * 84 + 10]
    assert num_parameters(model) == sum(counts)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(4, 64), st.integers(4, 64), st.integers(1, 5), st.sampled_from([0.1, 0.5]))
def test_lenet_takes_every_image(channels: int, height: int, width: int, outputs: int, factor: float) -> None:
    model = LeNet((channels, height, width), outputs, width=factor)
    assert model(torch.zeros(2, channels, height, width)).shape == (2, outputs)


@given(st.integers(1, 70), st.integers(1, 70))
def test_half_pool_tells_the_sides_it_leaves(height: int, width: int) -> None:
    pool, rows, columns = half_pool(torch.nn.MaxPool2d, height, width)
    assert pool(torch.zeros(1, 1, height, width)).shape == (1, 1, rows, columns)
    assert min(rows, columns) >= 1


@pytest.mark.parametrize("shape", [(8, 8), (1, 3, 8), (1, 8, 2)])
def test_lenet_refuses_what_is_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(MismatchError, match="use mlp"):
        LeNet(shape, 10)


@pytest.mark.parametrize("width", [0.0, -1.0, float("nan"), float("inf")])
def test_width_is_positive(width: float) -> None:
    with pytest.raises(OptionError, match="width is a factor > 0"):
        LeNet((1, 8, 8), 10, width=width)


def test_lenet_learns_digits_in_seconds() -> None:
    x, y, x_test, y_test = digits()
    with seeded(0):
        model = LeNet((1, 8, 8), 10)
        optimiser = torch.optim.Adam(model.parameters())
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.01, epochs=20, steps_per_epoch=len(x) // 64 + 1)
        for _ in range(20):
            for batch in torch.randperm(len(x)).split(64):
                optimiser.zero_grad()
                F.cross_entropy(model(x[batch]), y[batch]).backward()
                optimiser.step()
                cycle.step()
    assert (model(x_test).argmax(1) == y_test).double().mean() >= 0.95  # 0.964 to 0.981 on different processors
