"""Regularisers of recurrent networks in training: one mask for all positions, dropped weights, averaged SGD."""

import pytest
import torch

import nearkin as nk
from nearkin.core.errors import OptionError
from nearkin.core.rng import seeded
from nearkin.search.genotype_evaluation import evaluate_genotype
from nearkin.search.genotypes.genotype import Genotype, Recurrent
from nearkin.search.networks.build import build_network
from nearkin.search.networks.recurrent_cells import RecurrentNetwork, VariationalDropout
from nearkin.search.networks.skeleton import Skeleton
from nearkin.tasks.readers.language import language_task

CELL = Recurrent(((0, "tanh"), (1, "relu")))
TOKENS = torch.randint(7, (3, 6), generator=torch.Generator().manual_seed(0))


def network(**rates: float) -> RecurrentNetwork:
    built = build_network(CELL, Skeleton(channels=8, **rates), (6,), 7)
    assert isinstance(built, RecurrentNetwork)
    return built.double()


def test_variational_dropout_has_one_mask_for_all_positions_and_keeps_the_mean() -> None:
    x, layer = torch.rand(40, 5, 30, dtype=torch.float64) + 1, VariationalDropout(0.3)
    with seeded(0):
        dropped = layer(x)
    kept = dropped != 0
    assert bool((kept == kept[:, :1]).all())
    assert torch.allclose(dropped[kept], x[kept] / 0.7)
    assert abs(float(kept.double().mean()) - 0.7) < 0.05
    assert len({tuple(row.tolist()) for row in kept[:, 0]}) > 1, "sequences have different masks"
    assert torch.equal(layer.eval()(x), x)


def test_dropped_weights_are_those_of_one_draw_for_all_positions() -> None:
    net, plain = network(weight_drop=0.5), network()
    with seeded(3):
        outputs = net(TOKENS)
    with seeded(3):
        weight = torch.nn.functional.dropout(plain.recur.weight, 0.5)
    with torch.no_grad():
        plain.recur.weight.copy_(weight)
    assert torch.allclose(outputs, plain(TOKENS), rtol=0, atol=1e-12)
    outputs.square().sum().backward()
    assert net.recur.weight.grad is not None
    assert torch.equal(net.recur.weight.grad != 0, weight != 0), "dropped weights get no gradient"
    assert torch.equal(net.eval()(TOKENS), network().eval()(TOKENS))


def test_rates_change_training_only_and_not_the_initial_weights() -> None:
    plain, other = network(), network(dropout=0.3, weight_drop=0.3)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in plain.state_dict().items())
    with seeded(0):
        assert not torch.allclose(other(TOKENS), plain(TOKENS))


def test_weight_drop_is_refused_for_cells_without_recurrent_weights() -> None:
    cells = Genotype.parse("normal(0): 1 = conv3(0); out = 1")
    with pytest.raises(OptionError, match=r"cells have no recurrent weights, got weight_drop=0.5; set it to 0"):
        build_network(cells, Skeleton(weight_drop=0.5), (1, 8, 8), 2)


def test_a_cell_is_trained_with_all_regularisers_and_averaged_sgd() -> None:
    song = "la la li lo la li li lo la\nlo la li li lo la la lo\n" * 30
    task = language_task("song", song, song[:200], {"length": "5"})
    recipe = nk.Recipe(steps=120, batch_size=16, optimiser="sgd", learning_rate=0.5, clip=1.0, averaging=0.5)
    done = evaluate_genotype(CELL, task, Skeleton(channels=8, dropout=0.1, weight_drop=0.2), recipe)
    untrained = evaluate_genotype(CELL, task, Skeleton(channels=8), nk.Recipe(steps=1, learning_rate=1e-9))
    assert done.loss < 0.8 * untrained.loss
