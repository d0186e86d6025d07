"""Importance against dense per-sample autograd, and Ω against the exact posterior of two linear models."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.search.plasticity.importance import drawn_samples
from nearkin.search.plasticity.plasticity_options import PlasticityOptions


def data(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=rng, dtype=torch.float64), torch.randint(3, (count,), generator=rng)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3)).double()


def per_sample(model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Tensor]]:
    """Gradients of single samples by plain autograd, in evaluation mode."""
    model.eval()
    rows = []
    for n in range(len(x)):
        model.zero_grad()
        F.cross_entropy(model(x[n : n + 1]), y[n : n + 1]).backward()
        rows.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    return rows


@given(count=st.integers(2, 9), seed=st.integers(0, 50))
def test_observed_importance_is_the_mean_of_squared_gradients(count: int, seed: int) -> None:
    model, (x, y) = network(seed), data(count, seed)
    gradients = per_sample(model, x, y)
    model.train()
    plasticity = nk.WeightPlasticity(model[0].named_parameters(), normalise=False)
    plasticity.anchor(model, x, y)
    assert model.training  # measured in evaluation mode, without a change of the model
    for name, value in plasticity.importance.items():
        expected = torch.stack([row[f"0.{name}"] for row in gradients]).square().mean(0)
        assert torch.allclose(value, expected, rtol=1e-9, atol=1e-15)


def test_normalised_importance_has_mean_one() -> None:
    model, (x, y) = network(), data(50)
    raw, scaled = (nk.WeightPlasticity(model, normalise=normalise) for normalise in (False, True))
    for plasticity in (raw, scaled):
        plasticity.anchor(model, x, y)
    flat = [torch.cat([v.flatten() for v in p.importance.values()]) for p in (raw, scaled)]
    assert torch.allclose(flat[1], flat[0] / flat[0].mean())


def test_batch_square_is_the_square_of_the_mean_gradient() -> None:
    model, (x, y) = network().eval(), data(20)
    gradients = per_sample(model, x, y)
    plasticity = nk.WeightPlasticity(model, importance="batch-square", normalise=False, batch_size=10)
    plasticity.anchor(model, x, y)
    for name, value in plasticity.importance.items():
        means = [torch.stack([row[name] for row in gradients[first : first + 10]]).mean(0) for first in (0, 10)]
        assert torch.allclose(value, torch.stack(means).square().mean(0), rtol=1e-9, atol=1e-15)


def test_sampled_importance_approaches_the_expected_one() -> None:
    """Labels drawn from the model give the true Fisher information in the mean (2,000 samples, error about 10 %)."""
    model, (x, y) = network(), data(2000)
    totals = {}
    for kind in ("sampled", "expected"):
        plasticity = nk.WeightPlasticity(model, importance=kind, normalise=False, samples=None)
        plasticity.anchor(model, x, y)
        totals[kind] = torch.cat([v.flatten() for v in plasticity.importance.values()])
    assert float((totals["sampled"] - totals["expected"]).norm() / totals["expected"].norm()) < 0.15


def test_uniform_importance_is_plain_l2() -> None:
    model, (x, y) = network(), data(4)
    plasticity = nk.WeightPlasticity(model, importance="uniform", alpha=3.0)
    plasticity.anchor(model, x, y)
    with torch.no_grad():
        model[0].weight.add_(2.0)
    assert float(plasticity.penalty().detach()) == pytest.approx(1.5 * 4.0 * model[0].weight.numel())


def test_batch_statistics_keep_their_buffers() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    x, y = data(16)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    plasticity = nk.WeightPlasticity(model, importance="batch-square")
    state = torch.get_rng_state()
    plasticity.anchor(model, x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert all(p.grad is None for p in model.parameters())


def test_half_precision_is_measured_in_float32() -> None:
    model, (x, y) = network().float(), data(30)
    exact, low = nk.WeightPlasticity(model), nk.WeightPlasticity(model)
    exact.anchor(model, x.float(), y)
    model.to(torch.bfloat16)
    low.anchor(model, x.to(torch.bfloat16), y)
    assert {value.dtype for value in low.importance.values()} == {torch.float32}
    assert {value.dtype for value in low.anchors.values()} == {torch.bfloat16}
    a, b = (torch.cat([v.flatten() for v in p.importance.values()]) for p in (exact, low))
    assert float((a - b).norm() / a.norm()) < 0.05


def test_samples_are_drawn_without_replacement_and_repeatably() -> None:
    x = torch.arange(1000.0)
    (first, _), (again, _) = (drawn_samples(x, None, PlasticityOptions(seed=3)) for _ in range(2))
    assert isinstance(first, Tensor)
    assert isinstance(again, Tensor)
    assert len(first.unique()) == 200
    assert torch.equal(first, again)


@pytest.mark.parametrize("structure", ["full", "kronecker"])
def test_matrices_have_the_diagonal_of_the_fisher(structure: str) -> None:
    """The exact matrix has it by definition; Kronecker factors of a linear network with one sample have it too."""
    model = nn.Sequential(nn.Linear(4, 3)).double()
    x, y = data(2)
    x, y = x[:1].repeat(2, 1), y[:1].repeat(2)  # A and G are then independent
    options = {"normalise": False, "samples": None}
    one, other = nk.WeightPlasticity(model, **options), nk.WeightPlasticity(model, structure=structure, **options)
    one.anchor(model, x, y)
    other.anchor(model, x, y)
    for name, value in one.importance.items():
        assert torch.allclose(other.importance[name], value, atol=1e-12)


class TwoBlocks(nn.Module):
    """A linear model $Xs$ + $Zt$ of shared weights s and private weights t, without noise of its own."""

    def __init__(self, shared: nn.Linear, private: int) -> None:
        super().__init__()
        self.shared, self.private = shared, nn.Linear(private, 1, bias=False).double()

    def forward(self, x: Tensor) -> Tensor:
        size = self.shared.in_features
        outputs: Tensor = self.shared(x[:, :size]) + self.private(x[:, size:])
        return outputs


def test_the_marginal_penalty_gives_the_exact_posterior_of_two_linear_models() -> None:
    """A's Ω as the only trace of A: the minimiser for B is the mode of the joint Gaussian posterior of A and B.

    Model k: y_k = X_k s + Z_k t_k + noise of variance 1, prior precision λ for s, t_1 and t_2. With α = N and damping
    λ/N, αΩ is the precision of A's marginal posterior of s. With F_ss instead (t_1 fixed), the mode differs.
    """
    rng = torch.Generator().manual_seed(0)
    count, size, private, prior = 60, 3, 2, 0.7
    inputs = [torch.randn(count, size + private, generator=rng, dtype=torch.float64) for _ in range(2)]
    targets = [torch.randn(count, 1, generator=rng, dtype=torch.float64) for _ in range(2)]
    joint = torch.zeros(2 * count, size + 2 * private, dtype=torch.float64)
    for k in range(2):
        rows, columns = slice(k * count, (k + 1) * count), slice(size + k * private, size + (k + 1) * private)
        joint[rows, :size], joint[rows, columns] = inputs[k][:, :size], inputs[k][:, size:]
    precision = joint.T @ joint + prior * torch.eye(joint.shape[1], dtype=torch.float64)
    mode = torch.linalg.solve(precision, joint.T @ torch.cat(targets)).flatten()

    errors = {}
    for structure in ("marginal", "full", "diagonal"):
        shared = nn.Linear(size, 1, bias=False).double()
        a, b = TwoBlocks(shared, private), TwoBlocks(shared, private)
        alone = torch.linalg.solve(
            inputs[0].T @ inputs[0] + prior * torch.eye(size + private, dtype=torch.float64), inputs[0].T @ targets[0]
        ).flatten()
        with torch.no_grad():
            shared.weight.copy_(alone[:size][None])
            a.private.weight.copy_(alone[size:][None])
        options = {"damping": prior / count} if structure != "diagonal" else {}
        plasticity = nk.WeightPlasticity(
            shared, alpha=float(count), structure=structure, importance="expected", likelihood="gaussian",
            normalise=False, samples=None, **options,
        )  # fmt: skip
        plasticity.anchor(a, inputs[0], targets[0])
        optimiser = torch.optim.LBFGS(b.parameters(), max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16)

        def objective(
            b: TwoBlocks = b, p: nk.WeightPlasticity = plasticity, o: torch.optim.Optimizer = optimiser
        ) -> Tensor:
            o.zero_grad()
            fit = 0.5 * (b(inputs[1]) - targets[1]).square().sum()
            loss = fit + 0.5 * prior * b.private.weight.square().sum() + p.penalty()
            loss.backward()
            return loss

        for _ in range(5):
            optimiser.step(objective)  # type: ignore[arg-type]
        errors[structure] = float((shared.weight.detach().flatten() - mode[:size]).abs().max())
        if structure == "marginal":
            omega = torch.linalg.inv(torch.linalg.inv(inputs[0].T @ inputs[0] + prior * torch.eye(5))[:size, :size])
            (block,) = plasticity.blocks
            assert torch.allclose(count * block.matrix(), omega, atol=1e-9)  # type: ignore[union-attr]
    assert errors["marginal"] < 1e-8
    assert errors["full"] > 1e-4
    assert errors["diagonal"] > 1e-3


def test_bad_validation_data_is_refused_in_one_line() -> None:
    model, (x, y) = network(), data(5)
    plasticity = nk.WeightPlasticity(model)
    with pytest.raises(DataError, match="the validation set has 1 sample, expected 2 or more; give about 200"):
        plasticity.anchor(model, x[:1], y[:1])
    with pytest.raises(DataError, match="5 validation inputs but 4 labels"):
        plasticity.anchor(model, x, y[:4])
    with pytest.raises(MismatchError, match="Linear holds none of the 4 shared parameters"):
        plasticity.anchor(nn.Linear(4, 3).double(), x, y)
    constant = nn.Sequential(nn.Linear(4, 3), nn.Threshold(1e9, 0.0)).double()
    with pytest.raises(MismatchError, match="the importance of all shared weights is zero"):
        nk.WeightPlasticity(constant).anchor(constant, x, y)
    for wrong, message in (("fisher", "importance must be one of observed"), ("observed ", "importance must be")):
        with pytest.raises(OptionError, match=message):
            PlasticityOptions(importance=wrong)
    with pytest.raises(OptionError, match="importance 'uniform' has a diagonal only"):
        PlasticityOptions(importance="uniform", structure="full")
    assert plasticity.models == 0
