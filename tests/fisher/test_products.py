import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from nearkin.core.errors import DataError, MismatchError, NearkinError, OptionError
from nearkin.core.rng import seeded
from nearkin.core.types import Params
from nearkin.fisher.jacobian import Jacobian
from nearkin.fisher.products import (
    FisherProduct,
    fisher_vector_product,
    flat,
    jacobian_product,
    transposed_product,
    unflat,
)
from nearkin.fisher.recording import Recording
from nearkin.nets.registry import build
from nearkin.tasks.examples import Batch, Examples
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.rows import Values

N = 6


class Attentive(nn.Module):
    """A transformer layer with a direct parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x).mean(1)
        return outputs


class Written(nn.Module):
    """Writes its outputs into memory that was there before, and the weights in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        outputs = x.new_zeros(len(x), 3)
        outputs[:, 0] = (x @ self.weight[0]).tanh()
        outputs[:, 1:] = (x @ self.weight[1:].T).mul_(2).sin_()
        return outputs


def batchnormed() -> nn.Module:
    norm = nn.BatchNorm2d(3)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    with torch.no_grad():
        norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), norm, nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: build("mlp?hidden=5-4", (3,), 4, seed=0), (3,)),
    "conv": (lambda: build("lenet?width=0.25", (1, 8, 8), 4, seed=0), (1, 8, 8)),
    "residual": (lambda: build("resnet18?width=0.03", (1, 4, 4), 3, seed=0), (1, 4, 4)),
    "batchnorm": (batchnormed, (1, 8, 8)),
    "attention": (Attentive, (3, 4)),
    "written": (Written, (4,)),
    "lstm": (lambda: Last(nn.LSTM(3, 4, batch_first=True)), (5, 3)),
    "pool": (lambda: nn.Sequential(nn.Conv1d(2, 4, 2), nn.GELU(), nn.AvgPool1d(2), nn.Flatten()), (2, 5)),
    "norms": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.LogSigmoid(), nn.GroupNorm(2, 6)), (4,)),
}


class Last(nn.Module):
    """The last outputs of a recurrent layer of torch, which has no forward-mode derivative."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)[0][:, -1]
        return outputs


LIKELIHOODS = ("categorical", "gaussian", "heteroscedastic", "dense", "language")


def tokens(cell: str, tied: bool) -> tuple[nn.Module, Tensor]:
    size = "embedding=3&hidden=3" if tied else "embedding=2&hidden=3"
    model = build(f"recurrent?{size}&tied={str(tied).lower()}&cell={cell}", (4,), 5, seed=0)
    return model.eval().double(), torch.randint(5, (N, 4), generator=torch.Generator().manual_seed(0))


def network(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    make, shape = NETWORKS[name]
    with seeded(1):
        model = make().eval().to(dtype)
        return model, torch.randn(N, *shape, dtype=dtype)


def for_likelihood(form: str) -> tuple[nn.Module, Tensor]:
    if form == "language":
        return tokens("lstm", tied=True)
    if form == "dense":
        with seeded(1):
            return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh()).double(), torch.randn(N, 1, 3, 2).double()
    return network("mlp")


def noise(model: nn.Module, seed: int = 0, scale: float = 1.0) -> Params:
    with seeded(seed):
        return {name: scale * torch.randn_like(value) for name, value in model.named_parameters()}


def dense_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """J `[N, out, P]` by reverse mode, row by row."""
    params = {name: value.detach() for name, value in model.named_parameters()}
    rows: Any = jacrev(lambda p: functional_call(model, p, (x,)).flatten(1), chunk_size=1)(params)
    return torch.cat([row.flatten(2) for row in rows.values()], 2)


def root_fisher(model: nn.Module, x: Tensor, form: str) -> Tensor:
    """R `[N·factors, P]` of F = RᵀR, with Λ from the factors of the likelihood, which are not what products use."""
    jacobian, outputs = dense_jacobian(model, x), model(x).detach()
    pulled = [torch.einsum("nc,ncp->np", s.flatten(1), jacobian) for s in likelihood(form).factors(outputs)]
    return torch.cat(pulled) / math.sqrt(len(x))


def dense_fisher(model: nn.Module, x: Tensor, form: str) -> Tensor:
    """F `[P, P]`."""
    root = root_fisher(model, x, form)
    return root.T @ root


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("method", ["auto", "jvp", "vjp"])
@pytest.mark.parametrize("form", LIKELIHOODS)
def test_products_are_those_of_the_dense_matrix(form: str, method: str) -> None:
    model, x = for_likelihood(form)
    v = noise(model)
    found = FisherProduct(model, x, form, method=method)(v)
    assert list(found) == list(v)
    assert all(value.shape == v[name].shape for name, value in found.items())
    assert error(flat(found), dense_fisher(model, x, form) @ flat(v)) < 1e-10


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_network(name: str, keep: bool) -> None:
    model, x = network(name)
    v, root = noise(model), root_fisher(model, x, "categorical")
    product = FisherProduct(model, x, keep=keep)
    for w in (v, noise(model, 1)):  # the second is played back from the record of another
        assert error(flat(product(w)), root.T @ (root @ flat(w))) < 1e-10
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_recurrent_networks_and_tied_weights(cell: str, tied: bool) -> None:
    model, x = tokens(cell, tied)
    v, expected = noise(model), dense_fisher(model, x, "language")
    for method in ("jvp", "vjp"):
        assert error(flat(FisherProduct(model, x, "language", method=method)(v)), expected @ flat(v)) < 1e-10


@pytest.mark.parametrize("method", ["auto", "jvp", "vjp"])
@pytest.mark.parametrize("name", ["mlp", "batchnorm"])
def test_jacobian_products(name: str, method: str) -> None:
    model, x = network(name)
    jacobian, v = dense_jacobian(model, x), noise(model)
    u = torch.randn(model(x).shape, dtype=x.dtype)
    forward, backward = jacobian.flatten(0, 1) @ flat(v), jacobian.flatten(0, 1).T @ u.flatten()
    for keep in (True, False):
        found = Jacobian(model, x, method=method, keep=keep)
        assert found.shape == u.shape
        assert error(found.push(v).flatten(), forward) < 1e-10
        assert error(flat(found.pull(u)), backward) < 1e-10
    assert error(jacobian_product(model, x, v).flatten(), forward) < 1e-10
    assert error(flat(transposed_product(model, x, u)), backward) < 1e-10


@pytest.mark.parametrize("form", LIKELIHOODS)
def test_finite_differences_in_float64(form: str) -> None:
    model, x = for_likelihood(form)
    v = noise(model, scale=7.0)
    exact = flat(FisherProduct(model, x, form)(v))
    for sides, bound in ((1, 1e-6), (2, 1e-8)):
        for keep in (True, False):
            product = FisherProduct(model, x, form, method="difference", sides=sides, keep=keep)
            assert error(flat(product(v)), exact) < bound


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("spec", ["mlp?hidden=64-32", "lenet", "resnet18?width=0.125"])
def test_finite_differences_in_float32(spec: str, sides: int) -> None:
    model = build(spec, (1, 16, 16), 10, seed=0).eval()
    with seeded(2):
        x = torch.randn(32, 1, 16, 16)
    for scale in (1e-3, 1.0, 1e3):
        v = noise(model, scale=scale)
        exact = flat(FisherProduct(model, x)(v))
        product = FisherProduct(model, x, method="difference", sides=sides)
        assert error(flat(product(v)), exact) < 1e-2


@pytest.mark.parametrize("sides", [1, 2])
def test_the_finite_difference_of_the_jacobian(sides: int) -> None:
    model, x = network("conv")
    v = noise(model)
    found = Jacobian(model, x, method="difference", sides=sides).push(v)
    assert error(found, jacobian_product(model, x, v)) < (1e-6, 1e-8)[sides - 1]


def test_float32_products_are_close_to_float64() -> None:
    model, x = network("batchnorm")
    v = noise(model)
    exact = flat(FisherProduct(model, x)(v))
    single = {name: value.float() for name, value in v.items()}
    for method in ("jvp", "vjp"):
        assert error(flat(FisherProduct(model.float(), x.float(), method=method)(single)).double(), exact) < 1e-5
        model.double()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["jvp", "vjp"]),
    st.sampled_from(LIKELIHOODS),
    st.integers(0, 2**16),
    st.floats(-3, 3),
    st.integers(1, 3),
)
def test_laws(method: str, form: str, seed: int, factor: float, size: int) -> None:
    """Linear, symmetric, positive semi-definite, and Fv only depends on the batches' union."""
    model, x = for_likelihood(form)
    v, w = noise(model, seed), noise(model, seed + 1)
    product = FisherProduct(model, x, form, method=method)
    a, b = flat(v), flat(w)
    joint, apart = product(a + factor * b), product(a) + factor * product(b)
    assert (joint - apart).norm() <= 1e-10 * (1 + apart.norm())
    assert math.isclose(float(b @ product(a)), float(a @ product(b)), rel_tol=1e-9, abs_tol=1e-9)
    assert float(a @ product(a)) >= -1e-12
    split = FisherProduct(model, x.split(size), form, method=method, keep=bool(seed % 2))
    assert error(split(a), product(a)) < 1e-10


@pytest.mark.parametrize("method", ["jvp", "vjp", "difference"])
@pytest.mark.parametrize("name", ["mlp", "conv", "batchnorm", "written", "lstm"])
@pytest.mark.filterwarnings("error")
def test_matrices_are_columns(name: str, method: str) -> None:
    model, x = network(name)
    product = FisherProduct(model, x, method=method, sides=2)
    matrix = torch.stack([flat(noise(model, seed)) for seed in range(11)], 1)
    found = product(matrix)
    assert found.shape == matrix.shape
    for k in range(11):
        assert error(found[:, k], product(matrix[:, k])) < 1e-12
    by_name = product(unflat(matrix[:, 0].contiguous(), dict(model.named_parameters())))
    assert error(flat(by_name), product(matrix[:, 0])) < 1e-12
    with pytest.raises(DataError, match="along v are not all finite"):
        product(matrix * math.nan)


def test_flat_and_unflat_are_inverses() -> None:
    model, _ = network("conv")
    v = noise(model)
    back = unflat(flat(v), v)
    assert all(torch.equal(back[name], v[name]) for name in v)
    with pytest.raises(MismatchError, match=r"has shape \(\d+,\), got \(3,\)"):
        unflat(torch.zeros(3), v)


def test_batches_of_all_kinds_agree() -> None:
    model, x = network("mlp")
    v = noise(model)
    whole = flat(FisherProduct(model, x)(v))
    y = torch.zeros(N, dtype=torch.int64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    examples = Examples(Values(x), Values(y))
    for data in (
        x.split(4),
        (part for part in x.split(4)),
        loader,
        [Batch(x[:1], y[:1]), Batch(x[1:], y[1:])],
        examples,
    ):
        for keep in (None, True):
            if isinstance(data, Examples) or not hasattr(data, "__next__") or keep is None:
                product = FisherProduct(model, data, keep=keep)
                assert error(flat(product(v)), whole) < 1e-10
                assert error(flat(product(v)), whole) < 1e-10


def test_a_function_of_weights_and_a_choice_of_weights() -> None:
    model, x = network("mlp")
    params, v = {name: value.detach() for name, value in model.named_parameters()}, noise(model)
    whole = FisherProduct(model, x)(v)
    through = FisherProduct(lambda p, x: functional_call(model, p, (x,)), x, params=params)(v)
    assert error(flat(through), flat(whole)) < 1e-12
    head = {name: value for name, value in params.items() if name.startswith("head")}
    part = FisherProduct(model, x, params=head)({name: v[name] for name in head})
    size = sum(value.numel() for value in head.values())
    assert error(flat(part), dense_fisher(model, x, "categorical")[-size:, -size:] @ flat(v)[-size:]) < 1e-10
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in head)
    assert list(FisherProduct(model, x).jacobian.params) == list(head)


@pytest.mark.parametrize("method", ["jvp", "vjp", "difference"])
def test_products_stay_at_their_weights(method: str) -> None:
    model, x = network("mlp")
    v = noise(model)
    moved = {name: value.detach() + 0.1 for name, value in model.named_parameters()}
    before, there = (FisherProduct(model, x, params=given, method=method) for given in (None, moved))
    first, second = before(v), there(v)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert torch.equal(flat(before(v)), flat(first))
    assert error(flat(FisherProduct(model, x, method=method)(v)), flat(second)) < 1e-12


class Solver(torch.autograd.Function):
    """A product inside a function that is not differentiated, as linear_operator makes them."""

    @staticmethod
    def forward(ctx: Any, product: FisherProduct, v: Tensor) -> Tensor:
        return product(v)


@pytest.mark.parametrize("method", ["jvp", "vjp", "difference"])
@pytest.mark.parametrize("keep", [True, False])
def test_products_where_derivatives_are_switched_off(method: str, keep: bool) -> None:
    model, x = network("conv")
    v = noise(model)
    expected = flat(FisherProduct(model, x, sides=2)(v))
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            product = FisherProduct(model, x, method=method, sides=2, keep=keep)
            first, second = product(v), product(v)
            assert error(flat(first), expected) < 1e-8
        assert all(torch.equal(first[name], second[name]) and not first[name].requires_grad for name in v)
    assert error(Solver.apply(product, flat(v)), expected) < 1e-8


def test_one_product_alone() -> None:
    model, x = network("conv")
    v = noise(model)
    assert error(flat(fisher_vector_product(model, x, v)), flat(FisherProduct(model, x)(v))) < 1e-12


def test_the_zero_vector() -> None:
    model, x = network("mlp")
    zero = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for method in ("jvp", "vjp", "difference"):
        assert not flat(FisherProduct(model, x, method=method)(zero)).any()


def test_outputs_that_do_not_depend_on_the_weights() -> None:
    x, params = torch.randn(3, 2), {"w": torch.ones(2)}
    for keep in (True, False):
        found = FisherProduct(lambda p, x: x, x, "gaussian", params=params, keep=keep)(params)
        assert found["w"].tolist() == [0, 0]


def test_attention_has_both_derivatives() -> None:
    model, x = network("attention")
    v = noise(model)
    expected = flat(FisherProduct(model, x, method="vjp")(v))
    assert error(flat(FisherProduct(model, x, method="jvp")(v)), expected) < 1e-10


class Secret(torch.autograd.Function):
    """Doubles, and knows its first derivative only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def half_secret(p: Params, x: Tensor) -> Tensor:
    outputs: Tensor = Secret.apply(p["w"] * x) + p["b"]
    return outputs


@pytest.mark.parametrize("keep", [True, False])
def test_missing_derivatives_are_said(keep: bool) -> None:
    model, x = network("lstm", torch.float32)
    v = noise(model)
    with pytest.raises(MismatchError, match=r"no forward-mode derivative .* use method='vjp'"):
        FisherProduct(model, x, method="jvp", keep=keep)(v)
    by_difference = FisherProduct(model, x, method="difference", keep=keep)(v)
    assert error(flat(FisherProduct(model, x, keep=keep)(v)), flat(by_difference)) < 1e-2

    params = {"w": torch.tensor([3.0]), "b": torch.tensor([1.0])}
    with pytest.raises(MismatchError, match=r"no second derivative .* use method='difference'"):
        FisherProduct(half_secret, x[:, 0], "gaussian", params=params, keep=keep)(params)
    found = FisherProduct(half_secret, x[:, 0], "gaussian", params=params, method="difference", keep=keep)(params)
    outputs = 6 * x[:, 0] + 1  # Jv at v = θ, for it is linear
    assert float(found["b"]) == pytest.approx(float(outputs.sum(1).mean()), rel=1e-3)


def test_memory_from_elsewhere_is_not_played_back() -> None:
    v, elsewhere = torch.ones(2), torch.zeros(2)
    recording = Recording([v])
    with recording:
        tangent = elsewhere.add_(v)
    assert recording.playback(tangent) is None
    assert recording.playback(torch.ones(2)) is None


def wrong(change: Callable[[Params], Params]) -> Params:
    return change(noise(network("mlp")[0]))


@pytest.mark.parametrize(
    ("v", "line"),
    [
        (wrong(lambda v: {n: t for n, t in v.items() if n != "head.bias"}), "head.bias is missing"),
        (wrong(lambda v: {**v, "tail": torch.zeros(1)}), "tail is unexpected"),
        (wrong(lambda v: {**v, "head.bias": torch.zeros(7)}), r"head.bias has shape \(7,\), expected \(4,\)"),
        (wrong(lambda v: {**v, "head.bias": torch.zeros(4)}), "head.bias is torch.float32, expected torch.float64"),
        (wrong(lambda v: {**v, "head.bias": v["head.bias"] * math.nan}), "along v are not all finite"),
        (torch.zeros(3), "a flat vector of these weights has shape"),
        (torch.zeros(3, 2, 1), r"takes a vector \[P\] or a matrix \[P, K\]"),
    ],
)
def test_wrong_vectors(v: Any, line: str) -> None:
    model, x = network("mlp")
    with pytest.raises(NearkinError, match=line):
        FisherProduct(model, x)(v)


def test_wrong_inputs() -> None:
    model, x = network("mlp")
    v = noise(model)
    for data in (x[:0], [], iter(())):
        with pytest.raises(DataError, match="the data is empty"):
            FisherProduct(model, data)
    for keep in (True, False):
        with pytest.raises(DataError, match="outputs are not all finite"):
            FisherProduct(model, x * math.nan, keep=keep)(v)
        with pytest.raises(MismatchError, match="cannot be run on these inputs"):
            FisherProduct(model, x[:, :2], keep=keep)(v)
    with pytest.raises(MismatchError, match="for 6 samples"):
        transposed_product(model, x, torch.zeros(5, 4))


def test_wrong_networks() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(OptionError, match="in training mode"):
        FisherProduct(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), x)
    with pytest.raises(OptionError, match="has no parameters"):
        FisherProduct(nn.ReLU(), x)
    with pytest.raises(OptionError, match="frozen"):
        FisherProduct(nn.Linear(4, 2).requires_grad_(False), x)
    with pytest.raises(OptionError, match="float16"):
        FisherProduct(nn.Linear(4, 2).half(), x)
    with pytest.raises(OptionError, match="give params"):
        FisherProduct(lambda p, x: x, x)
    with pytest.raises(MismatchError, match="params does not fit"):
        FisherProduct(nn.Linear(4, 2), x, params={"bias": torch.zeros(3)})
    with pytest.raises(OptionError, match="no parameter tail"):
        FisherProduct(nn.Linear(4, 2), x, params={"tail": torch.zeros(3)})


def test_wrong_options() -> None:
    model, x = network("mlp")
    with pytest.raises(OptionError, match="method is one of auto, jvp, vjp, difference, got 'exact'"):
        FisherProduct(model, x, method="exact")
    with pytest.raises(OptionError, match="1 or 2 sides, got 3"):
        FisherProduct(model, x, method="difference", sides=3)
    with pytest.raises(OptionError, match="unknown likelihood"):
        FisherProduct(model, x, "poisson")


def test_the_step_of_the_difference_is_settable() -> None:
    """The error of a one-sided difference of a smooth network is of first order in the step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, v = torch.randn(5, 4).double(), torch.randn(51).double()
    exact = FisherProduct(net, x)(v)
    near, far = (torch.dist(FisherProduct(net, x, method="difference", step=step)(v), exact) for step in (1e-6, 1e-3))
    assert 300 < float(far / near) < 3000
    default = FisherProduct(net, x, method="difference")(v)
    assert torch.equal(FisherProduct(net, x, method="difference", step=1e-8)(v), default)


@pytest.mark.parametrize("options", [{"method": "difference", "step": 0.0}, {"method": "difference", "step": math.nan},
                                     {"method": "difference", "step": -1.0}, {"step": 1e-3}])  # fmt: skip
def test_a_bad_step_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="step"):
        FisherProduct(nn.Linear(2, 1), torch.ones(1, 2), **options)
