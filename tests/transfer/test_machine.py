"""A closed-form transfer as a module says what its posterior says, and comes back from its string and tensors."""

import pytest
import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError
from nearkin.nets.registry import build
from nearkin.nets.spec import NETWORKS
from nearkin.transfer.classify import classify
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hyper import Hyper, Mean
from nearkin.transfer.linearized import linearize
from nearkin.transfer.machine import PATH, TangentMachine, as_machine, with_constant_outputs


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def again(machine: TangentMachine, shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    assert machine.network.startswith(PATH)
    found = build(machine.network, shape, outputs, seed=3)
    found.load_state_dict(machine.state_dict())
    return found


@pytest.mark.parametrize(("mean", "targets"), [("constant", 3), ("network", 2), ("zero", 1)])
def test_values_are_the_posterior_means(mean: Mean, targets: int) -> None:
    network = "mlp?hidden=6"
    x, y, new = drawn(0, 12, 3), drawn(1, 12, targets), drawn(2, 5, 3)
    hyper = Hyper(noise=0.1, scale=0.4, mean=mean)
    posterior = gaussian(linearize(build(network, (3,), 2, seed=0)), x, y, hyper, space="function")
    machine = as_machine(posterior, network)
    assert torch.allclose(machine(new).double(), posterior.mean(new), atol=1e-5)
    assert torch.equal(again(machine, (3,), targets)(new), machine(new))
    wide = with_constant_outputs(machine, torch.tensor([7.0]))
    assert torch.equal(wide(new), torch.cat([machine(new), torch.full((5, 1), 7.0)], 1))
    assert torch.equal(again(wide, (3,), targets + 1)(new), wide(new))


def test_classes_have_the_same_probabilities_where_nothing_may_be_differentiated() -> None:
    network, x, new = "lenet?width=0.5", drawn(0, 12, 1, 8, 8), drawn(1, 7, 1, 8, 8)
    found = classify(linearize(build(network, (1, 8, 8), 5, seed=0), dtype=None), x, torch.arange(12) % 3)
    machine = as_machine(found.posterior, network, found.temperatures["mean"])
    with torch.inference_mode():
        logits = machine(new.clone())
    assert torch.allclose(logits.double().softmax(1), found.probabilities(new), atol=1e-5)
    with torch.inference_mode():
        assert torch.equal(again(machine, (1, 8, 8), 3)(new), logits)


class Bag(nn.Module):
    """Mean embedding of tokens `[N, L]`, a hidden layer and a head."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(9, 4), nn.Linear(4, 5), nn.Linear(5, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.words(x).mean(1)).tanh())


def test_tokens_stay_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "bag", Bag)
    x, new = (torch.randint(9, (n, 6), generator=torch.Generator().manual_seed(n)) for n in (12, 7))
    found = classify(linearize(build("bag", (6,), 2, seed=0)), x, torch.arange(12) % 3)
    machine = as_machine(found.posterior, "bag", found.temperatures["mean"])
    assert machine.points.dtype == torch.int64
    assert torch.allclose(machine(new).double().softmax(1), found.probabilities(new), atol=1e-5)
    assert torch.equal(again(machine, (6,), 3)(new), machine(new))


def test_costs_count_the_points_and_their_jacobians() -> None:
    network = "mlp?hidden=4"
    base = build(network, (3,), 2, seed=0)
    posterior = gaussian(linearize(base), drawn(0, 5, 3), drawn(1, 5), Hyper(), space="function")
    machine, weights = as_machine(posterior, network), sum(one.numel() for one in base.parameters())
    assert machine.num_parameters == weights + 5 * 3 + 5 * 1 + 2 * 1 + 1
    assert machine.multiply_adds == (1 + 2 * 2) * (3 * 4 + 4 * 2) + 5 * (2 * weights + 1)


def test_what_cannot_be_a_module_is_refused() -> None:
    x, y, net = drawn(0, 30, 1), drawn(1, 30), build("mlp?hidden=2", (1,), 1, seed=0)
    with pytest.raises(MismatchError, match="function space"):
        as_machine(gaussian(linearize(net), x, y, Hyper(), space="weight"), "mlp?hidden=2")
    with pytest.raises(MismatchError, match="weights='all'"):
        as_machine(gaussian(linearize(net, "head"), x, y, Hyper(), space="function"), "mlp?hidden=2")
