"""The diagonal against a loop of single samples in float64, for every layer, every likelihood, every kind of label."""

import copy
import math
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import nearkin as nk
from nearkin.core.errors import DataError, MismatchError, NearkinError, OptionError
from nearkin.core.events import Event, Note, finish
from nearkin.fisher import FisherDiagonal, contraction, convolution, diagonal, multitask_fisher, scores
from nearkin.fisher.planned_tape import plan_for
from nearkin.fisher.tape import detached_weights
from nearkin.tasks.likelihood import likelihood


def loop(model: nn.Module, x: Tensor, y: Tensor, form: str = "categorical") -> dict[str, Tensor]:
    """The definition: one sample, one backward pass, squares, mean."""
    total = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for b in range(len(x)):
        loss = likelihood(form).nll(model(x[b : b + 1]), y[b : b + 1]).sum()
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        for (name, _), gradient in zip(model.named_parameters(), found, strict=True):
            total[name] += 0 if gradient is None else gradient.square()
    return {name: value / len(x) for name, value in total.items()}


def assert_same(found: FisherDiagonal, truth: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    assert found.values.keys() == truth.keys()
    for name, value in truth.items():
        scale = float(value.norm()) + 1e-30
        assert float((found.values[name] - value).norm()) <= tolerance * scale, name


def classifier(body: nn.Module, x: Tensor) -> nn.Module:
    """A body with a linear head, in float64 and evaluation mode, batch statistics away from 0 and 1."""
    torch.manual_seed(0)
    width = body.eval()(x[:1]).flatten(1).shape[1]
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(width, 3)).double().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, nn.modules.batchnorm._NormBase | nn.LayerNorm | nn.GroupNorm):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model


IMAGES, SEQUENCES, VOLUMES = (4, 6, 6), (5, 4), (2, 3, 4, 4)
LAYERS = {
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 7), nn.Tanh()), IMAGES),
    "linear without bias": (lambda: nn.Linear(6, 7, bias=False), IMAGES),
    "linear on sequences": (lambda: nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 2)), SEQUENCES),
    "conv1d": (lambda: nn.Conv1d(5, 3, 3, padding=1), SEQUENCES),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1), IMAGES),
    "conv2d 1x1": (lambda: nn.Conv2d(4, 6, 1), IMAGES),
    "conv2d large map": (lambda: nn.Conv2d(4, 3, 3, padding=4), IMAGES),
    "conv2d grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, stride=2), IMAGES),
    "conv2d depthwise dilated": (lambda: nn.Conv2d(4, 4, 2, groups=4, dilation=2), IMAGES),
    "conv2d reflect": (lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"), IMAGES),
    "conv2d circular": (lambda: nn.Conv2d(4, 3, 3, padding=2, padding_mode="circular"), IMAGES),
    "conv2d same": (lambda: nn.Conv2d(4, 3, (3, 5), padding="same"), IMAGES),
    "conv2d rectangular": (lambda: nn.Conv2d(4, 3, (1, 3), stride=(2, 1), padding=(0, 2)), IMAGES),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), VOLUMES),
    "conv transpose": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), IMAGES),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU()), IMAGES),
    "batch norm 1d": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.BatchNorm1d(5)), IMAGES),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm((6, 6)), nn.Tanh()), IMAGES),
    "layer norm on sequences": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh()), SEQUENCES),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Tanh()), IMAGES),
    "instance norm": (lambda: nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.Tanh()), IMAGES),
    "instance norm, kept moments": (
        lambda: nn.Sequential(nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.Tanh()), IMAGES),
    "in place at the first": (lambda: nn.Sequential(nn.Conv2d(4, 5, 3), nn.ReLU(inplace=True)), IMAGES),
    "prelu": (lambda: nn.Sequential(nn.Conv2d(4, 5, 3), nn.PReLU()), IMAGES),
    "in place": (
        lambda: nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU(inplace=True), nn.Conv2d(5, 2, 2)),
        IMAGES),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("count", [1, 7])
def test_every_layer_against_the_loop(name: str, count: int) -> None:
    make, shape = LAYERS[name]
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))
    model = classifier(make(), x)
    x, y = x.double(), torch.arange(count) % 3
    assert_same(diagonal(model, x, y, batch_size=4), loop(model, x, y))


class Twice(nn.Module):
    """A layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(x).tanh()).tanh())


class Tied(nn.Module):
    """An embedding whose weight is the decoder's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.middle = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 7)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.middle(self.embedding(x)).tanh().mean(1))


class Direct(nn.Module):
    """Weights used outside their layer, a bare parameter, and a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 3)
        self.scale, self.idle = nn.Parameter(torch.rand(5)), nn.Parameter(torch.rand(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.layer(x) * self.scale + self.layer.weight.sum(0)).tanh())


class Own(nn.Linear):
    """A layer that looks like one we know and does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight**2, self.bias)


class Branches(nn.Module):
    """Values decide which way the sample goes: no vmap can follow."""

    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.scale, self.head, self.sign = nn.Parameter(torch.rand(5)), nn.Linear(5, 3), sign

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.stack([one * self.scale if self.sign * one[0].item() > 0 else one for one in x]))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Cells(nn.Module):
    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = cell(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        state: Tensor | None = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


CELL = ("cell.weight_ih", "cell.weight_hh", "cell.bias_ih", "cell.bias_hh")
UNUSUAL = {
    "called twice": (Twice, (5,), ()),
    "direct use": (Direct, (5,), ("layer.weight", "layer.bias", "scale")),
    "home-made": (lambda: nn.Sequential(Own(5, 4), nn.Tanh(), nn.Linear(4, 3)), (5,), ("0.weight", "0.bias")),
    "branches": (Branches, (5,), ("scale", "head.weight", "head.bias")),
    "branches, unused at first": (lambda: Branches(sign=-1), (5,), ("scale", "head.weight", "head.bias")),
    "attention": (Attention, (5, 4), ("attention.in_proj_weight", "attention.in_proj_bias",
                                      "attention.out_proj.weight", "attention.out_proj.bias")),
    "gru cell": (lambda: Cells(nn.GRUCell), (5, 4), CELL),
    "rnn cell": (lambda: Cells(nn.RNNCell), (5, 4), CELL),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_has_no_formula_falls_back_and_is_right(name: str) -> None:
    make, shape, rest = UNUSUAL[name]
    torch.manual_seed(0)
    model, x, y = make().double().eval(), torch.randn(6, *shape).double(), torch.arange(6) % 3
    heard: list[Event] = []
    found = finish(diagonal.work(model, x, y, batch_size=4), heard.append)
    assert_same(found, loop(model, x, y))
    assert set(plan_for(model, detached_weights(model), x, list(found.values)).rest) == set(rest)
    assert any(isinstance(event, Note) for event in heard) == bool(rest)


class Switch(nn.Module):
    """A network whose course follows a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head, self.twice = nn.Linear(5, 5), nn.Linear(5, 3), False

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x).tanh()
        return self.head(self.layer(x).tanh() if self.twice else x)


def test_a_remembered_plan_is_forgotten_when_the_network_changes() -> None:
    torch.manual_seed(0)
    model, x, y = Switch().double(), torch.randn(4, 5).double(), torch.arange(4) % 3
    assert_same(diagonal(model, x, y), loop(model, x, y))
    model.twice = True
    assert_same(diagonal(model, x, y), loop(model, x, y))
    model.twice = False
    model.head.weight = nn.Parameter(torch.randn(3, 5).double())
    assert_same(diagonal(model, x, y), loop(model, x, y))
    model.layer.forward = lambda x: F.linear(x, model.layer.weight**2, model.layer.bias)  # type: ignore[method-assign]
    assert_same(diagonal(model, x, y), loop(model, x, y))
    model.head = nn.Linear(5, 3, bias=False).double()
    assert_same(diagonal(model, x, y), loop(model, x, y))


def test_tied_weights_are_one_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x, y = Tied().double(), torch.randint(7, (9, 5)), torch.arange(9) % 7
    truth = loop(model, x, y)
    assert_same(diagonal(model, x, y), truth)
    monkeypatch.setattr(scores, "MEMORY_BYTES", 1)
    monkeypatch.setattr(scores.chunk_size, "__defaults__", (1,))
    assert_same(diagonal(model, x, y), truth)


@pytest.mark.parametrize("padding", [None, 2])
def test_embeddings(padding: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4, padding_idx=padding), nn.Flatten(), nn.Tanh(), nn.Linear(20, 3)).double()
    x, y = torch.randint(6, (8, 5)), torch.arange(8) % 3
    assert_same(diagonal(model, x, y), loop(model, x, y))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_convolutions_of_any_shape(data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([1, 2, 3]))
    channels, filters = groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 3))
    kernel = tuple(data.draw(st.integers(1, 3)) for _ in range(2))
    options = {
        "stride": data.draw(st.integers(1, 3)),
        "dilation": data.draw(st.integers(1, 2)),
        "padding": data.draw(st.integers(0, 2)),
        "padding_mode": data.draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
        "bias": data.draw(st.booleans()),
    }
    size = data.draw(st.integers(5, 11))
    x = torch.randn(data.draw(st.integers(1, 5)), channels, size, size, generator=torch.Generator().manual_seed(0))
    model = classifier(nn.Conv2d(channels, filters, kernel, groups=groups, **options), x)
    y = torch.arange(len(x)) % 3
    assert_same(diagonal(model, x.double(), y), loop(model, x.double(), y))


@pytest.mark.parametrize("way", ["_by_sample", "_by_group", "_by_patch"])
def test_every_way_of_a_convolution_is_the_same(way: str) -> None:
    layer = nn.Conv2d(4, 5, 3, padding=1, stride=2).double()
    x, g = torch.randn(6, 4, 16, 16).double(), torch.randn(6, 5, 8, 8).double()
    truth = convolution.convolution_gradients(layer, x, g).square().sum(0)
    into = torch.zeros_like(layer.weight)
    getattr(convolution, way)(layer, x, g, (1, 1), into)
    assert torch.allclose(into, truth, rtol=1e-11)


@pytest.mark.parametrize(
    "way", [contraction.sample_by_sample, contraction.in_sample_batches, contraction.in_position_pairs]
)
def test_every_way_of_a_contraction_is_the_same(way: contraction.Contraction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contraction, "BUFFER_FLOATS", 20)
    monkeypatch.setattr(contraction, "SMALL_FLOATS", 20)
    g, u = torch.randn(5, 7, 4).double(), torch.randn(5, 4, 6).double()
    into = torch.zeros(7, 6).double()
    way(g, u, into)
    assert torch.allclose(into, torch.einsum("bol,blk->bok", g, u).square().sum(0), rtol=1e-11)


@pytest.mark.parametrize("held", [0, 200, 1 << 21])
def test_gradients_of_several_passes_may_wait_for_each_other_or_not(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["nearkin.fisher.diagonals"], "STACKED_FLOATS", held)
    torch.manual_seed(0)
    grouped = nn.Conv2d(4, 4, 3, groups=2)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), grouped, nn.Flatten(), nn.Linear(36, 5)
    ).double().eval()  # fmt: skip
    x = torch.randn(3, 1, 7, 7).double()
    found = diagonal(model, x, labels="expected").values
    jacobian = torch.func.vmap(
        torch.func.jacrev(lambda w, one: torch.func.functional_call(model, w, one[None])[0]), (None, 0)
    )
    p = model(x).softmax(-1)
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    for name, rows in jacobian(dict(model.named_parameters()), x).items():
        truth = torch.einsum("bc...,bcd,bd...->b...", rows, middle, rows).mean(0)
        assert torch.allclose(found[name], truth, rtol=1e-9, atol=1e-14), name


OUTPUTS = {"categorical": 3, "gaussian": 2, "heteroscedastic": 4}


def case(form: str, count: int = 6) -> tuple[nn.Module, Tensor, Tensor]:
    """A small smooth network, inputs and targets for a likelihood."""
    torch.manual_seed(0)
    if form == "language":
        model = nk.build("recurrent?hidden=5&embedding=4", (3,), 6, seed=0)
        return model.double().eval(), torch.randint(6, (count, 3)), torch.randint(6, (count, 3))
    if form == "dense":
        model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 1)).double()
        return model, torch.randn(count, 1, 4, 4).double(), torch.randn(count, 2, 4, 4).double()
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, OUTPUTS[form])).double()
    x = torch.randn(count, 5).double()
    y = torch.arange(count) % 3 if form == "categorical" else torch.randn(count, 2).double()
    return model, x, y


def expected(model: nn.Module, x: Tensor, form: str) -> dict[str, Tensor]:
    """diag(Jᵀ Λ J) from dense Jacobians."""
    params = dict(model.named_parameters())
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for b in range(len(x)):

        def f(p: dict[str, Tensor], one: Tensor = x[b : b + 1]) -> Tensor:
            return torch.func.functional_call(model, p, (one,))

        outputs = f(params).detach()
        jacobian = torch.func.jacrev(f)({name: value.detach() for name, value in params.items()})
        size = outputs.numel()
        units = torch.eye(size, dtype=torch.float64)
        information = torch.stack([likelihood(form).information(outputs, u.view_as(outputs)).flatten() for u in units])
        for name, j in jacobian.items():
            flat = j.reshape(size, -1)
            total[name] += torch.einsum("cp,cd,dp->p", flat, information, flat).view_as(total[name]) / len(x)
    return total


@pytest.mark.thinned(2)
@pytest.mark.parametrize("form", ["categorical", "gaussian", "heteroscedastic", "dense", "language"])
def test_every_likelihood(form: str) -> None:
    model, x, y = case(form)
    assert_same(diagonal(model, x, y, likelihood=form, batch_size=4), loop(model, x, y, form))
    exact = diagonal(model, x, likelihood=form, labels="expected")
    assert_same(exact, expected(model, x, form), 1e-9)
    many = diagonal(model, x, likelihood=form, labels="sampled", num_samples=3000 if form != "language" else 600)
    assert many.trace() == pytest.approx(exact.trace(), rel=0.12)
    again = diagonal(model, x, likelihood=form, labels="sampled", num_samples=2, seed=4)
    assert_same(again, diagonal(model, x, likelihood=form, labels="sampled", num_samples=2, seed=4).values, 0.0)


def test_empirical_and_model_fisher_agree_at_the_truth() -> None:
    """Labels drawn from the model itself make the two the same in expectation."""
    model, x, _ = case("categorical", 4000)
    y = likelihood("categorical").sample(model(x), torch.Generator().manual_seed(1))
    observed, exact = diagonal(model, x, y), diagonal(model, x, labels="expected")
    assert observed.trace() == pytest.approx(exact.trace(), rel=0.1)


@pytest.mark.parametrize("network", ["vgg16", "resnet18", "densenet121"])
def test_the_deep_networks_in_float32(network: str) -> None:
    model = nk.build(f"{network}?width=0.0625", (1, 8, 8), 4, seed=0).eval()
    x, y = torch.randn(5, 1, 8, 8), torch.arange(5) % 4
    truth = loop(model.double(), x.double(), y)
    found = diagonal(model.float(), x, y)
    flat = torch.cat([value.flatten() for value in truth.values()]).float()
    assert float((found.flat() - flat).norm() / flat.norm()) < 1e-5


def test_all_forms_of_data_are_the_same_data() -> None:
    task = nk.task("digits?limit=60")
    model = nk.build("lenet", task.input_shape, 10, seed=0)
    x, y = task.train.all()
    whole = diagonal(model, x, y)
    for found in (diagonal(model, task.train, batch_size=17), diagonal(model, DataLoader(TensorDataset(x, y), 13))):
        assert found.num_samples == 60
        assert_same(found, whole.values, 1e-5)
    order = torch.randperm(60)
    assert_same(diagonal(model, x[order], y[order]), whole.values, 1e-5)


def test_a_subset_of_parameters_and_nothing_left_behind() -> None:
    model, x, y = case("categorical")
    hooks = [len(module._forward_hooks) for module in model.modules()]
    found = diagonal(model, x, y, names=["2.weight"])
    assert list(found.values) == ["2.weight"]
    assert_same(found, {"2.weight": loop(model, x, y)["2.weight"]})
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(value.grad is None and value.requires_grad for value in model.parameters())


@pytest.mark.parametrize("name", ["called twice", "direct use", "attention"])
def test_sample_gradients_are_those_of_single_samples(name: str) -> None:
    make, shape, _ = UNUSUAL[name]
    torch.manual_seed(0)
    model, x, y = make().double().eval(), torch.randn(7, *shape).double(), torch.arange(7) % 3
    blocks = list(
        scores.sample_gradients(
            model, x, y, batch_size=5, memory=2 * 2 * 8 * sum(p.numel() for p in model.parameters())
        )
    )
    assert len(blocks) > 2
    for key, value in model.named_parameters():
        found = torch.cat([block[key] for block in blocks])
        each = []
        for b in range(7):
            loss = likelihood("categorical").nll(model(x[b : b + 1]), y[b : b + 1]).sum()
            (gradient,) = torch.autograd.grad(loss, value, allow_unused=True)
            each.append(torch.zeros_like(value) if gradient is None else gradient)
        assert torch.allclose(found, torch.stack(each), atol=1e-12), key


def test_a_function_of_weights_is_a_network() -> None:
    model, x, y = case("categorical")
    params = {name: value.detach() for name, value in model.named_parameters()}
    found = diagonal(lambda p, x: torch.func.functional_call(model, p, (x,)), x, y, params=params)
    assert_same(found, loop(model, x, y))
    with pytest.raises(OptionError, match="without params"):
        diagonal(lambda p, x: x, x, y)


def test_values_travel() -> None:
    model, x, y = case("categorical")
    found = diagonal(model, x, y)
    again = FisherDiagonal.from_state(found.to_state())
    assert_same(again, found.values, 0.0)
    assert (again.labels, again.num_samples) == ("observed", 6)
    assert found.unit_trace().trace() == pytest.approx(1)


def poisoned(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    return model


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x - x.mean(0))


def frozen_net() -> nn.Module:
    return nn.Linear(5, 3).double().requires_grad_(False)


MODEL, X, Y = case("categorical")
BAD = [
    (lambda: diagonal(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).double(), X, Y), OptionError, "model.eval"),
    (lambda: diagonal(nn.Sequential(nn.Linear(5, 3), nn.Dropout()).double(), X, Y), OptionError, "dropout 1 "),
    (lambda: diagonal(frozen_net(), X, Y), OptionError, "frozen"),
    (lambda: diagonal(nn.Tanh(), X, Y), OptionError, "no parameters"),
    (lambda: diagonal(nn.Linear(5, 3).half(), X.half(), Y), OptionError, "float16 on the CPU"),
    (lambda: diagonal(MODEL, X, Y + 7), DataError, "labels range from 7 to 9, but the network has 3"),
    (lambda: diagonal(nn.Linear(5, 1).double(), X, X[:, 0], likelihood="gaussian"), DataError, r"y\[:, None\]"),
    (lambda: diagonal(MODEL, X, Y[:2]), DataError, "6 inputs but 2 targets"),
    (lambda: diagonal(MODEL, X), OptionError, "needs targets, got none"),
    (lambda: diagonal(MODEL, []), DataError, "the data is empty"),
    (lambda: diagonal(MODEL, X[:0], Y[:0]), DataError, "empty"),
    (lambda: diagonal(MODEL, X, Y, labels="guessed"), OptionError, "observed, sampled, expected"),
    (lambda: diagonal(MODEL, X, Y, likelihood="poisson"), OptionError, "poisson"),
    (lambda: diagonal(MODEL, X, Y, names=["nose"]), OptionError, "no parameter nose"),
    (lambda: diagonal(poisoned(case("categorical")[0]), X, Y), MismatchError, "gradients of .* are NaN .* in batch 0"),
    (lambda: diagonal(Mixing().double(), X, Y), MismatchError, "depends on the other samples"),
    (lambda: diagonal(nn.Conv2d(1, 64, 1), torch.rand(2, 1, 9, 9), likelihood="dense", labels="expected"), OptionError,
     "use labels='sampled'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), BAD)
def test_bad_input_gets_one_clear_line(call: object, kind: type[NearkinError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_it_does_not_matter_whether_gradients_are_on() -> None:
    torch.manual_seed(0)
    model, x, y = (
        nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2)),
        torch.randn(5, 3),
        torch.tensor([0, 1] * 2 + [0]),
    )
    truth = diagonal(model, x, y)
    with torch.no_grad():
        found = diagonal(copy.deepcopy(model), x, y)
    assert_same(found, truth.values, 0.0)


class Routed(nn.Module):
    """Samples take one of two layers by their sign."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        mask = x[:, 0] > 0
        out = x.new_zeros(len(x), 2)
        return out.index_put((mask,), self.left(x[mask])).index_put((~mask,), self.right(x[~mask]))


def test_samples_that_take_different_ways_and_sparse_embeddings_are_right() -> None:
    torch.manual_seed(0)
    model, x, y = Routed().double(), torch.randn(7, 3).double(), torch.randint(2, (7,))
    assert_same(diagonal(model, x, y), loop(model, x, y))
    words = nn.Sequential(nn.Embedding(6, 3, sparse=True), nn.Flatten(), nn.Linear(12, 2)).double()
    plain = nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(12, 2)).double()
    plain.load_state_dict(words.state_dict())
    tokens = torch.randint(6, (7, 4))
    assert_same(diagonal(words, tokens, y), loop(plain, tokens, y))


class Reused(nn.Module):
    """A layer whose weight is used a second time, past the layer."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.layer, self.head, self.use = nn.Linear(5, 5), nn.Linear(5, 3), use

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x).tanh()
        if self.use == "always":
            h = h + F.linear(x, self.layer.weight)
        elif self.use == "where":
            h = torch.where(x[:, :1] > 0, F.linear(x, self.layer.weight), h)
        elif self.use == "if" and x.sum() > 0:
            h = h + F.linear(x, self.layer.weight)
        elif self.use == "call" and x.sum() > 0:
            h = self.layer(h)
        return self.head(h)


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("use", ["always", "where", "if", "call"])
def test_a_second_use_of_a_weight_is_found_though_the_first_sample_has_a_zero_gradient(
    use: str, batch_size: int
) -> None:
    torch.manual_seed(0)
    model, x, y = Reused(use).double(), torch.randn(8, 5).double(), torch.arange(8) % 3
    x[0] = 0
    truth = loop(model, x, y)
    assert_same(diagonal(model, x, y, batch_size=batch_size), truth)
    blocks = scores.sample_gradients(model, x, y, batch_size=batch_size)
    squares = torch.cat([block["layer.weight"] for block in blocks]).square().mean(0)
    torch.testing.assert_close(squares, truth["layer.weight"])


def test_a_second_use_that_only_a_later_batch_has_is_found() -> None:
    """The plan was made, and is remembered, while a plain attribute that nobody can compare said otherwise."""
    torch.manual_seed(0)
    model, x, y = Reused("never").double(), torch.randn(6, 5).double(), torch.arange(6) % 3
    switch = {"on": False}
    plain = model.forward

    def switched(x: Tensor) -> Tensor:
        return plain(x) + (model.layer.weight[:3, 0] if switch["on"] else 0)

    model.forward = switched  # type: ignore[method-assign]
    assert_same(diagonal(model, x, y), loop(model, x, y))
    switch["on"] = True
    assert_same(diagonal(model, x, y, batch_size=4), loop(model, x, y))


class Sized(nn.Module):
    """A network that takes another layer for single samples."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.many = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if len(x) == 1 else self.many(x)


def test_samples_are_batches_of_one() -> None:
    torch.manual_seed(0)
    model, x, y = Sized().double(), torch.randn(6, 5).double(), torch.arange(6) % 3
    assert_same(diagonal(model, x, y, batch_size=4), loop(model, x, y))


class ChangedInPlace(nn.Module):
    """Works in place on what a norm returned, which is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, bias=False), nn.InstanceNorm2d(4, affine=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.norm(self.first(x))
        maps += 1
        return self.head(F.relu(maps, inplace=True).mean((2, 3)))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_layer_whose_output_is_a_view_that_is_changed_in_place(batch_size: int) -> None:
    torch.manual_seed(0)
    model, x, y = ChangedInPlace().double(), torch.randn(6, 2, 5, 5).double(), torch.arange(6) % 3
    x[0] = 0
    truth = loop(model, x, y)
    del truth["norm.bias"]
    model.norm.bias.requires_grad_(False)  # it alone has a gradient in the first sample
    assert_same(diagonal(model, x, y, batch_size=batch_size), truth)


def test_tied_norms_and_inputs_that_require_gradients() -> None:
    torch.manual_seed(0)
    first, second = nn.LayerNorm(5), nn.LayerNorm(5)
    second.weight = first.weight
    model = nn.Sequential(first, nn.Tanh(), second, nn.Linear(5, 3)).double()
    x, y = torch.randn(6, 5).double().requires_grad_(), torch.arange(6) % 3
    assert_same(diagonal(model, x, y, batch_size=4), loop(model, x.detach(), y))
    assert x.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_formulas_are_compared_with_autograd_again_on_later_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of a known class whose class computes something else from the third batch on: only values show it."""
    torch.manual_seed(0)
    model, x, y = (
        nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double(),
        torch.randn(8, 5).double(),
        torch.arange(8) % 3,
    )
    diagonal(model, x, y, batch_size=4)
    plain = nn.Linear.forward
    monkeypatch.setattr(
        nn.Linear.forward, "__code__", (lambda self, input: F.linear(input, self.weight**2, self.bias)).__code__
    )
    assert plain is nn.Linear.forward
    batches = [(x[part : part + 4], y[part : part + 4]) for part in (0, 4)]
    for _ in range(2):
        diagonal(model, batches)
    assert_same(diagonal(model, batches), loop(model, x, y))


def test_the_fisher_of_several_tasks_is_that_of_their_samples_together() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double(), X, Y
    tasks = [diagonal(model, x[:2], y[:2]), diagonal(model, x[2:], y[2:])]
    assert_same(multitask_fisher(tasks), diagonal(model, x, y).values)
    equal = multitask_fisher(tasks, "tasks")
    assert_same(equal, {name: (tasks[0].values[name] + tasks[1].values[name]) / 2 for name in equal.values})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda fisher: FisherDiagonal({"other": torch.ones(1)}, fisher.labels, 2), "1 has other parameters"),
        (lambda fisher: FisherDiagonal(fisher.values, "expected", 2), "1 has expected labels"),
    ],
)
def test_tasks_of_other_networks_are_not_combined(
    change: Callable[[FisherDiagonal], FisherDiagonal], words: str
) -> None:
    fisher = FisherDiagonal({"w": torch.ones(2)}, "observed", 3)
    with pytest.raises(MismatchError, match=words):
        multitask_fisher([fisher, change(fisher)])
    with pytest.raises(OptionError, match="no Fisher diagonals"):
        multitask_fisher([])


def test_a_diagonal_prints_as_one_line() -> None:
    model = nk.build("resnet18?width=0.125", (3, 16, 16), 10, 0)
    fisher = FisherDiagonal({name: value.detach() for name, value in model.named_parameters()}, "observed", 1234)
    assert len(repr(fisher)) < 120
    assert "\n" not in repr(fisher)
    assert "1,234 samples" in repr(fisher)


def test_weights_in_channels_last_memory_give_the_same_diagonal() -> None:
    plain = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(96, 3)
    ).double()
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    x, y = torch.randn(7, 3, 6, 6, dtype=torch.float64), torch.arange(7) % 3
    for labels in ("observed", "expected"):
        expected = diagonal(plain, x, y, likelihood="categorical", labels=labels)
        found = diagonal(last, x.to(memory_format=torch.channels_last), y, likelihood="categorical", labels=labels)
        for name, value in expected.values.items():
            assert value.sum() > 0
            torch.testing.assert_close(found.values[name], value, rtol=1e-12, atol=1e-15)
