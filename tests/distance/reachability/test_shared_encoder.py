"""Loss of one encoder with several heads: against the losses of its networks, and differences."""

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import NearkinError
from nearkin.distance.reachability.potentials import NetworkPotential
from nearkin.distance.reachability.shared_encoder import SharedEncoderPotential, with_fitted_head
from nearkin.tasks.likelihood import likelihood


def network(outputs: int, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, outputs)).double().eval()


def data(classes: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(12, 3, generator=rng, dtype=torch.float64), torch.arange(12) % classes


@pytest.fixture
def joint() -> tuple[SharedEncoderPotential, list[nn.Module], list[NetworkPotential]]:
    torch.manual_seed(0)
    nets = [network(2), network(3)]
    nets[1][0].load_state_dict(nets[0][0].state_dict())  # type: ignore[index]
    parts = [NetworkPotential(net, *data(classes, classes)) for net, classes in zip(nets, (2, 3), strict=True)]
    return SharedEncoderPotential(parts, "2"), nets, parts


def test_value_is_the_mean_of_the_losses_and_the_gradient_that_of_differences(
    joint: tuple[SharedEncoderPotential, list[nn.Module], list[NetworkPotential]],
) -> None:
    potential, nets, parts = joint
    w = potential.point([dict(net.named_parameters()) for net in nets])
    assert len(w) == 16 + 10 + 15
    expected = sum(float(part.value(part.point())) for part in parts) / 2
    assert float(potential.value(w)) == pytest.approx(expected, rel=1e-12)
    slope, step = potential.gradient(torch.stack([w, 2 * w]))[0], 1e-6
    units = step * torch.eye(len(w), dtype=w.dtype)
    differences = (potential.value(w + units) - potential.value(w - units)) / (2 * step)
    assert torch.allclose(slope, differences, atol=1e-8)


def test_encoders_that_differ_are_refused() -> None:
    parts = [NetworkPotential(network(2, width), *data(2, 0)) for width in (4, 5)]
    with pytest.raises(NearkinError, match=r"the encoders differ: 0\.weight has shape"):
        SharedEncoderPotential(parts, "2")


def test_a_fitted_head_has_a_lower_loss_than_a_random_one_and_leaves_the_encoder() -> None:
    torch.manual_seed(1)
    net, (x, y) = network(5), data(3, 3)
    fitted = with_fitted_head(net, x, y, likelihood("categorical"), 3)
    assert torch.equal(fitted[0].weight, net[0].weight)  # type: ignore[index]
    loss = nn.functional.cross_entropy(fitted(x), y).detach()
    assert fitted(x).shape == (12, 3)
    assert float(loss) < 1.0986  # that of equal probabilities
    assert net(x).shape == (12, 5)
