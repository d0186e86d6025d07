"""The expansion of a network against its Jacobian written out, and the choice of weights."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.nets.registry import build
from nearkin.nets.weight_subset import chosen_names
from nearkin.transfer.linearized import linearize

N, M, C = 5, 4, 3


@pytest.fixture
def model() -> nn.Module:
    return build("mlp?hidden=6-5", (4,), C, seed=0)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def x2() -> Tensor:
    return torch.randn(M, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def jacobian(model: nn.Module, x: Tensor, names: list[str] | None = None) -> Tensor:
    """J `[N, C, P]`."""
    model = copy.deepcopy(model).double().eval()
    free = {n: p.detach() for n, p in model.named_parameters() if names is None or n in names}
    rows = jacrev(lambda some: functional_call(model, some, (x,)))(free)
    return torch.cat([row.flatten(2) for row in rows.values()], 2)


def near(found: Tensor, wanted: Tensor, bound: float = 1e-12) -> bool:
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= bound * wanted.abs().max())


def test_kernels_are_those_of_the_jacobian(model: nn.Module, x: Tensor, x2: Tensor) -> None:
    a, b = jacobian(model, x), jacobian(model, x2)
    whole = torch.einsum("acp,bdp->acbd", a, b)
    assert near(linearize(model, outputs="all").kernel(x, x2), whole.reshape(N * C, M * C))
    assert near(linearize(model, outputs="sum").kernel(x, x2), torch.einsum("acp,bcp->ab", a, b) / C)
    assert near(linearize(model, outputs=2).kernel(x, x2), whole[:, 2, :, 2])


@pytest.mark.parametrize("outputs", ["sum", "all", 1])
def test_kernel_features_layers_and_diagonal_agree(model: nn.Module, x: Tensor, outputs: str | int) -> None:
    flat = linearize(model, outputs=outputs)
    gram, features = flat.kernel(x), flat.features(x)
    assert torch.equal(gram, gram.t())
    assert near(features @ features.t(), gram)
    assert near(flat.diagonal(x), gram.diagonal())
    parts = flat.layer_kernels(x)
    assert len(parts) == 3
    assert near(torch.stack(list(parts.values())).sum(0), gram)
    assert all(float(torch.linalg.eigvalsh(part)[0]) > -1e-10 for part in parts.values())


def test_the_jacobian_dense_and_by_products(model: nn.Module, x: Tensor) -> None:
    flat, wanted = linearize(model, "head"), jacobian(model, x, ["head.weight", "head.bias"])
    assert near(flat.jacobian(x), wanted)
    assert near(linearize(model, "head", outputs=1).jacobian(x), wanted[:, 1:2])
    assert near(flat.jacobian_operator(x).to_dense(), wanted.flatten(0, 1))


def test_the_expansion_is_the_network_to_first_order(model: nn.Module, x: Tensor) -> None:
    flat = linearize(model)
    twin = copy.deepcopy(model).double().eval()
    step = {
        n: torch.randn(p.shape, generator=torch.Generator().manual_seed(3)).double() for n, p in twin.named_parameters()
    }
    errors = []
    for size in (1e-2, 1e-3):
        moved = {n: p.detach() + size * step[n] for n, p in twin.named_parameters()}
        there = functional_call(twin, moved, (x,)).detach()
        errors.append(float((flat.at({n: size * v for n, v in step.items()}, x) - there).norm()))
    assert errors[0] < 0.1
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.2)  # what is left is of second order
    vector = torch.cat([v.flatten() for v in step.values()])
    assert torch.equal(flat.at(vector, x), flat.at(step, x))
    assert near(flat.at(torch.zeros_like(vector), x), twin(x).detach())


def test_later_training_does_not_reach_it(model: nn.Module, x: Tensor) -> None:
    flat = linearize(model)
    before, name = flat.kernel(x), flat.fingerprint
    with torch.no_grad():
        for value in model.parameters():
            value.add_(1.0)
    assert torch.equal(flat.kernel(x), before)
    assert linearize(model).fingerprint != name
    assert linearize(model, "head").fingerprint != linearize(model).fingerprint


def test_images_float32_and_its_own_dtype() -> None:
    net, x = (
        build("lenet?width=0.25", (1, 8, 8), 2, seed=0),
        torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)),
    )
    exact, quick = linearize(net), linearize(net, dtype=None)
    assert exact.kernel(x).dtype == quick.kernel(x).dtype == torch.float64
    assert near(quick.kernel(x), exact.kernel(x), 1e-5)
    assert near(quick.mean(x), exact.mean(x), 1e-5)


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(2, 3), nn.LayerNorm(3)
        self.lora_A, self.head, self.Adapter = nn.Linear(3, 1), nn.Linear(3, 1), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.body(x)) * self.Adapter
        return self.head(y) + self.lora_A(y)


def test_the_choice_of_weights() -> None:
    net = Adapted()
    assert chosen_names(net, "norm") == ("norm.weight", "norm.bias", "head.weight", "head.bias")
    assert chosen_names(net, r"norm\..*") == ("norm.weight", "norm.bias")
    assert chosen_names(net, "adapters") == ("Adapter", "lora_A.weight", "lora_A.bias")
    assert chosen_names(net, "head") == ("head.weight", "head.bias")
    assert chosen_names(net, ["head.bias", "body"]) == ("body.weight", "body.bias", "head.bias")
    assert chosen_names(net, r"(body|head)\.weight") == ("body.weight", "head.weight")
    assert len(chosen_names(net)) == len(list(net.parameters()))
    assert linearize(net, "adapters").layers == {"Adapter": ("Adapter",), "lora_A": ("lora_A.weight", "lora_A.bias")}


def test_the_head_is_found_by_what_runs_last() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.first = nn.Linear(3, 1), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.first(x))

    assert linearize(Backwards(), "head", x=torch.zeros(1, 2)).names == ("out.weight", "out.bias")


def test_frozen_weights_may_move_when_they_are_named(model: nn.Module, x: Tensor) -> None:
    before = linearize(model).kernel(x)
    model.requires_grad_(False)
    assert torch.equal(linearize(model).kernel(x), before)


def test_bad_choices_are_refused_in_one_line(model: nn.Module) -> None:
    for weights, words in {
        "haed": "did you mean head",
        "norm": "no weights of the kind 'norm'",
        "adapters": "no weights of the kind",
        "head.wieght": r"did you mean head\.weight",
        "(": "no weights",
    }.items():
        with pytest.raises(OptionError, match=words) as told:
            linearize(model, weights)
        assert "\n" not in str(told.value)
    with pytest.raises(OptionError, match="got no names of weights"):
        linearize(model, [])
    for outputs in ("none", -1, True, 1.5):
        with pytest.raises(OptionError, match="outputs is"):
            linearize(model, outputs=outputs)
    with pytest.raises(OptionError, match="has no weights to linearize"):
        linearize(nn.Tanh())
    with pytest.raises(MismatchError, match=r"nn\.Module"):
        linearize(lambda x: x)
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    with pytest.raises(DataError, match=r"head\.bias are not finite"):
        linearize(model)


def test_bad_inputs_are_refused_in_one_line(model: nn.Module, x: Tensor) -> None:
    flat = linearize(model)
    bad = x.clone()
    bad[3, 1] = float("inf")
    for reading in (flat.mean, flat.kernel, flat.features, flat.diagonal, lambda one: flat.kernel(x, one)):
        with pytest.raises(DataError, match="not finite at sample 3"):
            reading(bad)
    with pytest.raises(DataError, match="no samples"):
        flat.kernel(x[:0])
    with pytest.raises(MismatchError, match="cannot read"):
        flat.kernel(x[:, :2])
    with pytest.raises(MismatchError, match="index below 3"):
        linearize(model, outputs=3).features(x)
    with pytest.raises(OptionError, match="jacobian_operator"):
        linearize(nn.Linear(2000, 2000)).jacobian(torch.zeros(100, 2000))


def test_norms_of_a_deep_network() -> None:
    net = build("resnet18?width=0.0625", (1, 8, 8), 2, seed=0)
    flat = linearize(net, "norm")
    assert 0 < flat.num_weights < 0.1 * sum(value.numel() for value in net.parameters())
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    features = flat.features(x)
    assert near(features @ features.t(), flat.kernel(x), 1e-9)


def test_tokens() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body, self.head = nn.Embedding(7, 3), nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(self.table(x))[0][:, -1])

    with torch.random.fork_rng():
        torch.manual_seed(0)
        flat = linearize(Words(), outputs="all")
    x = torch.randint(7, (5, 4), generator=torch.Generator().manual_seed(0))
    features = flat.features(x)
    assert near(features @ features.t(), flat.kernel(x), 1e-9)
    assert near(torch.stack(list(flat.layer_kernels(x).values())).sum(0), flat.kernel(x), 1e-9)
