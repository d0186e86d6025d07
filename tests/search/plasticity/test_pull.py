"""Proximal step and explicit penalty: closed forms, first order, bounds, dtypes, odd shapes."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.errors import OptionError, TrainingError
from nearkin.search.plasticity import pull_plan
from nearkin.search.plasticity.penalty_blocks import DenseBlock

SHAPES = st.lists(st.integers(0, 5), min_size=0, max_size=3).map(tuple)


def anchored(
    shapes: list[tuple[int, ...]], alpha: float, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[nk.WeightPlasticity, dict[str, Tensor]]:
    """An object with random importance whose weights have moved away from their anchors; and the importance."""
    rng = torch.Generator().manual_seed(seed)
    shared = {f"w{i}": torch.randn(shape, generator=rng, dtype=dtype) for i, shape in enumerate(shapes)}
    importance = {name: torch.rand(value.shape, generator=rng, dtype=dtype) * 3 for name, value in shared.items()}
    plasticity = nk.WeightPlasticity(shared, alpha=alpha)
    plasticity.remember(importance)
    for value in shared.values():
        value.add_(torch.randn(value.shape, generator=rng, dtype=dtype))
    return plasticity, importance


@given(
    shapes=st.lists(SHAPES, min_size=1, max_size=4), scale=st.floats(0, 1e6), chunk=st.integers(1, 9),
    kept=st.integers(0, 200),
)  # fmt: skip
def test_the_step_minimises_its_quadratic(shapes: list[tuple[int, ...]], scale: float, chunk: int, kept: int) -> None:
    """The gradient of (u - θ)²/2η + α F (u - θ̂)²/2 is zero at the result, whatever the shapes and the chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pull_plan, "CHUNK", chunk)
        patch.setattr(pull_plan, "KEPT", kept)
        plasticity, importance = anchored(shapes, alpha=scale)
        before = {name: value.clone() for name, value in plasticity.shared.items()}
        plasticity.pull(1.0)
    for name, u in plasticity.shared.items():
        theta, anchor, f = before[name], plasticity.anchors[name], scale * importance[name]
        gradient = (u - theta) + f * (u - anchor)
        assert (gradient.abs() <= 1e-12 * (1 + f) * (1 + theta.abs() + anchor.abs())).all()
        assert torch.allclose(u, (theta + f * anchor) / (1 + f), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kept", [0, 100])
def test_the_pull_follows_the_learning_rate(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """Steps with the same rate, another one and the first one again, whether the pull is kept or not."""
    monkeypatch.setattr(pull_plan, "KEPT", kept)
    plasticity, importance = anchored([(4, 3), (5,)], alpha=2.0)
    expected = {name: value.clone() for name, value in plasticity.shared.items()}
    for lr in (0.1, 0.1, 0.5, 0.1):
        plasticity.pull(lr)
        for name, f in importance.items():
            expected[name] = (expected[name] + 2 * lr * f * plasticity.anchors[name]) / (1 + 2 * lr * f)
            assert torch.allclose(plasticity.shared[name], expected[name], rtol=0, atol=1e-12)


def test_weights_without_importance_keep_their_bits() -> None:
    weight = torch.randn(1000)
    plasticity = nk.WeightPlasticity({"w": weight}, alpha=1e6)
    importance = torch.rand(1000)
    importance[::2] = 0
    plasticity.remember({"w": importance})
    weight.add_(torch.randn(1000))
    before = weight.clone()
    plasticity.pull(0.1)
    assert torch.equal(weight[::2], before[::2])
    assert not torch.equal(weight[1::2], before[1::2])


def test_explicit_and_proximal_steps_agree_to_first_order() -> None:
    """Their difference is of order η²: a tenth of η gives a hundredth of the difference."""
    differences = []
    for lr in (1e-3, 1e-4):
        plasticity, _ = anchored([(4, 3), (5,)], alpha=2.0)
        for value in plasticity.shared.values():
            value.requires_grad_()
        leaves = list(plasticity.shared.values())
        gradients = torch.autograd.grad(plasticity.penalty(), leaves)
        weights = [value.detach() for value in leaves]
        explicit = [value - lr * gradient for value, gradient in zip(weights, gradients, strict=True)]
        plasticity.pull(lr)
        differences.append(max(float((a - b).abs().max()) for a, b in zip(weights, explicit, strict=True)))
    assert 95 < differences[0] / differences[1] < 105


def descend(optimiser: torch.optim.Optimizer, plasticity: nk.WeightPlasticity, steps: int) -> None:
    for _ in range(steps):
        optimiser.zero_grad()
        plasticity.penalty().backward()
        optimiser.step()


def test_the_explicit_penalty_warns_at_its_bound_and_the_proximal_step_needs_none() -> None:
    weight = nn.Parameter(torch.zeros(2))
    plasticity = nk.WeightPlasticity({"w": weight}, alpha=10.0)
    plasticity.remember({"w": torch.tensor([0.5, 4.0])})
    with torch.no_grad():
        weight.add_(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plasticity.penalty(lr=2 / (10.0 * 4.0) * 0.999)
        plasticity.penalty()
    with pytest.warns(RuntimeWarning, match=r"lr \* alpha \* max F is 4, expected at most 2; .* an alpha below 5"):
        plasticity.penalty(lr=0.1)
    optimiser = torch.optim.SGD([weight], lr=0.1)
    diverged = pytest.raises(TrainingError, match=r"the explicit penalty is (inf|nan).*use pull")
    with diverged:  # as the warning says
        descend(optimiser, plasticity, steps=500)
    with torch.no_grad():
        weight.fill_(1.0)
    for _ in range(500):
        plasticity.pull(0.1)
    assert float(weight.detach().abs().max()) < 1e-6


@pytest.mark.parametrize("scale", [1e30, 1e38, 1e300])
def test_huge_strengths_end_at_the_anchor(scale: float) -> None:
    plasticity, _ = anchored([(3,)], alpha=scale, dtype=torch.float32)
    plasticity.pull(1.0)
    assert torch.equal(plasticity.shared["w0"], plasticity.anchors["w0"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_weights_are_pulled_with_full_precision(dtype: torch.dtype) -> None:
    weight = torch.zeros(50, dtype=dtype)
    plasticity = nk.WeightPlasticity({"w": weight}, alpha=1.0)
    plasticity.remember({"w": torch.linspace(0, 5, 50)})
    weight.fill_(1.0)
    plasticity.pull(1.0)
    eps = float(torch.finfo(dtype).eps)
    assert torch.allclose(weight.float(), 1 / (1 + torch.linspace(0, 5, 50)), rtol=eps, atol=2e-7)


def test_weights_that_moved_to_other_memory_are_pulled() -> None:
    layer = nn.Linear(3, 2)
    plasticity = nk.WeightPlasticity(layer, alpha=1e9, importance="uniform")
    plasticity.anchor(layer, torch.randn(4, 3), torch.zeros(4, dtype=torch.long))
    anchor = layer.weight.detach().clone()
    plasticity.pull(1.0)
    layer.double()  # replaces the memory of the parameters
    with torch.no_grad():
        layer.weight.add_(1.0)
    plasticity.pull(1.0)
    assert torch.allclose(layer.weight, anchor.double())


def test_transposed_memory_is_pulled() -> None:
    weight = torch.randn(3, 4).T
    plasticity = nk.WeightPlasticity({"w": weight}, alpha=1.0)
    plasticity.remember({"w": torch.ones(4, 3)})
    anchor = weight.clone()
    weight.add_(2.0)
    plasticity.pull(1.0)
    assert torch.allclose(weight, anchor + 1.0)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), rows=st.integers(1, 3), scale=st.floats(0, 1e3),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_dense_blocks_solve_their_linear_system(sizes: list[int], rows: int, scale: float, seed: int) -> None:
    """Kronecker products of any size, joined from several tensors, against a dense solve."""
    rng = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    a, g = random(sum(sizes), 3), random(rows, 2)
    a, g = a @ a.T, g @ g.T
    names, shapes = [f"w{i}" for i in range(len(sizes))], [torch.Size([rows, size]) for size in sizes]
    block = DenseBlock.of(names, shapes, a, g)
    weights = {name: random(*shape) for name, shape in zip(names, shapes, strict=True)}
    anchors = {name: random(*shape) for name, shape in zip(names, shapes, strict=True)}
    v = torch.cat([weights[name] - anchors[name] for name in names], 1).flatten()
    matrix = torch.kron(g, a)
    assert torch.allclose(block.energy(weights, anchors), v @ matrix @ v)
    diagonal = torch.cat([block.diagonal()[name] for name in names], 1).flatten()
    assert torch.allclose(diagonal, matrix.diagonal())
    block.contract(weights, anchors, scale)
    expected = torch.linalg.solve(torch.eye(len(matrix)).double() + scale * matrix, v)
    result = torch.cat([weights[name] - anchors[name] for name in names], 1).flatten()
    assert torch.allclose(result, expected, atol=1e-9)


def test_bad_rates_and_strengths_are_refused_in_one_line() -> None:
    plasticity, _ = anchored([(2,)], alpha=1.0)
    for lr in (-0.1, float("nan"), float("inf")):
        with pytest.raises(OptionError, match=r"lr is .*, expected a finite number >= 0"):
            plasticity.pull(lr)
    for alpha in (-1.0, float("inf")):
        with pytest.raises(OptionError, match=r"alpha is .*, expected a finite number >= 0"):
            nk.WeightPlasticity({"w": torch.zeros(1)}, alpha=alpha)
    with pytest.raises(OptionError, match="plasticity has no option strength; its options are alpha"):
        nk.WeightPlasticity({"w": torch.zeros(1)}, strength=1.0)
