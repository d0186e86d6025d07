"""The CNN: shapes, averaging over shifts, exact Fisher information."""

import pytest
import torch
import torch.nn.functional as F

import nearkin as nk
from nearkin.nets.cnn import CNN


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 8, 8), (2, 16, 5), (1, 28, 28), (3, 32, 32), (3, 100, 64)])
@pytest.mark.parametrize("residual", [False, True])
def test_images_of_any_size_are_read(shape: tuple[int, int, int], residual: bool) -> None:
    network = CNN(shape, 7, width=0.25, residual=residual)
    assert network(torch.randn(3, *shape)).shape == (3, 7)
    assert network.eval()(torch.randn(1, *shape)).shape == (1, 7)


def test_large_images_are_reduced_so_that_the_head_stays_small() -> None:
    assert CNN((3, 256, 256), 10).head.in_features <= CNN((3, 32, 32), 10).head.in_features


def test_outputs_are_averaged_over_shifts_in_evaluation_only() -> None:
    plain, shifted = (nk.build(f"cnn?shifts={flag}", (1, 8, 8), 3, seed=0) for flag in ("false", "true"))
    x = torch.randn(4, 1, 8, 8)
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    views = [padded[:, :, i : i + 8, j : j + 8] for i, j in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))]
    plain.eval(), shifted.eval()
    expected = torch.stack([plain(view) for view in views]).mean(0)
    torch.testing.assert_close(shifted(x), expected)
    assert not torch.allclose(shifted(x), plain(x))
    torch.testing.assert_close(shifted.train()(x), plain.train()(x))


def test_the_fisher_diagonal_equals_the_mean_of_squared_gradients() -> None:
    network = nk.build("cnn?width=0.25&residual=true", (1, 8, 8), 3, seed=0).eval().double()
    x, y = torch.randn(5, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])
    fisher = nk.fisher.diagonal(network, x, y, likelihood="categorical", labels="observed")
    total = {name: torch.zeros_like(value) for name, value in network.named_parameters()}
    for i in range(5):
        network.zero_grad()
        F.cross_entropy(network(x[i : i + 1]), y[i : i + 1]).backward()
        for name, value in network.named_parameters():
            total[name] += value.grad.square() / 5
    for name, value in total.items():
        torch.testing.assert_close(fisher.values[name].double(), value, rtol=1e-4, atol=1e-10)
