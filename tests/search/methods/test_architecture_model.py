"""Facts about the model of NAO: reproduced sequences, ranked scores, ascent of the prediction, members of the space."""

from collections.abc import Callable
from functools import cache

import pytest
import torch

from nearkin.core.errors import OptionError
from nearkin.core.rng import seeded
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.decisions import OPERATION, SOURCE
from nearkin.search.methods.nao.architecture_model import ArchitectureModel
from nearkin.search.methods.nao.ascent import ascend, draw_genotypes, propose_genotypes
from nearkin.search.methods.nao.model_training import ModelOptions, decisions_of, ranks, reorder_edges, train_model
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import ENAS_OPERATIONS, DartsSpace
from nearkin.search.spaces.general import GeneralSpace
from nearkin.search.spaces.limited import limit_space
from nearkin.search.spaces.recurrent_space import RecurrentSpace
from nearkin.search.spaces.registry import space as space_named

SPACES: dict[str, Space] = {
    "enas": space_named("enas"),
    "darts": DartsSpace(num_nodes=3, num_predecessors=1, reduction=False),
    "general": GeneralSpace((4,), ("zero", "identity", "conv3")),
    "recurrent": RecurrentSpace(5),
    "loose": RecurrentSpace(6, loose_ends=True),
}
CELLS = DartsSpace(ENAS_OPERATIONS, num_nodes=2)
SMALL = ModelOptions(model_size=24, model_steps=150, model_rate=0.01)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model_of(space: Space, seed: int = 0, options: ModelOptions = SMALL) -> ArchitectureModel:
    with seeded(seed):
        return options.model(space)[0]


def sampled(space: Space, count: int, seed: int = 0) -> list[Genotype]:
    return draw_genotypes(space, (), count, rng(seed))


def convolutions(genotype: Genotype) -> float:
    """Number of edges with a separable convolution; those of 3x3 count twice."""
    names = [name for part in genotype.operations().values() for name in part]
    return 2.0 * names.count("sep_conv_3x3") + names.count("sep_conv_5x5")


@cache
def trained(
    space: Space, score: Callable[[Genotype], float], seed: int, count: int = 60, options: ModelOptions = SMALL
) -> tuple[ArchitectureModel, list[Genotype]]:
    with seeded(seed):
        model, optimiser = options.model(space)
    genotypes = sampled(space, count, seed)
    train_model(model, optimiser, genotypes, list(map(score, genotypes)), options, rng(seed))
    return model, genotypes


def spearman(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([ranks(a.double()), ranks(b.double())]))[0, 1])


@pytest.mark.parametrize("name", SPACES)
def test_what_any_embedding_decodes_to_is_a_member_of_the_space(name: str) -> None:
    """Untrained models, and embeddings that no genotype has."""
    space, genotypes = SPACES[name], set[Genotype]()
    for seed in range(10):
        model = model_of(space, seed)
        for weight in model.parameters():
            weight.data.mul_(8)
        embedding = torch.nn.functional.normalize(torch.randn(30, len(model.steps), 24, generator=rng(seed)), dim=-1)
        genotypes |= set(map(model.sequence.genotype, model.decode(embedding).tolist()))
    assert all(map(space.contains, genotypes))
    assert len(genotypes) > 20


@pytest.mark.parametrize("name", SPACES)
def test_probabilities_of_a_decision_add_up_to_one_and_are_zero_elsewhere(name: str) -> None:
    model = model_of(SPACES[name])
    decisions = decisions_of(model.sequence, sampled(SPACES[name], 4))
    embedding = model.encode(decisions)
    for number, step in enumerate(model.steps):
        total = torch.zeros(4)
        for option in range(step.size):
            other = decisions.clone()
            other[:, number] = option
            log = model.log_probabilities(embedding, other)[:, number]
            taken = (decisions[:, number - step.excluded : number] == option).any(1)
            assert torch.equal(log == -torch.inf, taken)
            total = total + log.exp()
        assert torch.allclose(total, torch.ones(4), atol=1e-5), (number, step)


def test_decoding_takes_the_most_probable_decision_after_the_ones_before() -> None:
    model = model_of(CELLS).double()
    embedding = model.encode(decisions_of(model.sequence, sampled(CELLS, 8)))
    decoded = model.decode(embedding)
    chosen = model.log_probabilities(embedding, decoded)
    for number, step in enumerate(model.steps):
        for option in range(step.size):
            other = decoded.clone()
            other[:, number] = option
            assert bool((model.log_probabilities(embedding, other)[:, number] <= chosen[:, number] + 1e-12).all())


def test_the_edges_of_a_node_in_another_order_are_the_same_genotype() -> None:
    for name, space in SPACES.items():
        sequence = model_of(space).sequence
        genotypes = sampled(space, 50)
        decisions = decisions_of(sequence, genotypes)
        reordered = reorder_edges(sequence, decisions, rng())
        assert list(map(sequence.genotype, reordered.tolist())) == genotypes
        share = float((reordered != decisions).any(1).double().mean())
        assert share > 0.9 if name == "enas" else share == 0, "only nodes with two chosen sources have two orders"


def test_both_orders_of_two_edges_are_equally_frequent() -> None:
    sequence = model_of(CELLS).sequence
    rows = decisions_of(sequence, [CELLS.at(5)]).expand(2000, -1)
    reordered = reorder_edges(sequence, rows, rng())
    sources = [number for number, step in enumerate(model_of(CELLS).steps) if step.kind == SOURCE]
    shares = (reordered[:, sources[::2]] < reordered[:, sources[1::2]]).double().mean(0)
    assert len(shares) == 4
    assert bool(((shares - 0.5).abs() < 5 * 0.5 / 2000**0.5).all())


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("space", [CELLS, RecurrentSpace(4)], ids=["cells", "recurrent"])
def test_the_decoder_reproduces_its_input_sequences(space: Space) -> None:
    options = ModelOptions(model_size=32, model_steps=250, model_rate=0.01)
    for seed in range(3):
        model, genotypes = trained(space, lambda genotype: 0.0, seed, 40, options)
        decisions = decisions_of(model.sequence, genotypes)
        for order in (decisions, reorder_edges(model.sequence, decisions, rng(seed))):
            same = model.decode(model.encode(order)) == order
            assert float(same.double().mean()) >= 0.99


@pytest.mark.soak
@pytest.mark.slow
def test_the_predictor_ranks_new_genotypes_by_their_scores() -> None:
    """Trained on 80 genotypes, measured on 100 others."""
    for seed in range(3):
        model, genotypes = trained(CELLS, convolutions, seed, 80)
        others = [genotype for genotype in sampled(CELLS, 100, seed + 100) if genotype not in genotypes]
        predicted = model.predict(model.encode(decisions_of(model.sequence, others)))
        assert spearman(predicted.detach(), torch.tensor(list(map(convolutions, others)))) > 0.9


def test_a_small_step_raises_every_predicted_score_and_keeps_the_length_of_rows() -> None:
    for name, space in SPACES.items():
        model = model_of(space).double()
        start = model.encode(decisions_of(model.sequence, sampled(space, 20))).detach()
        before = model.predict(start)
        after = ascend(model, start, 1e-4)
        assert bool((model.predict(after) > before).all()), name
        assert torch.allclose(after.norm(dim=-1), torch.ones(()).double())
        assert not start.requires_grad
        assert not after.requires_grad


def test_the_gain_of_a_small_step_is_the_length_of_the_projected_gradient() -> None:
    """Against central differences of the predicted score along the step."""
    model, rate = model_of(CELLS).double(), 1e-5
    start = model.encode(decisions_of(model.sequence, sampled(CELLS, 5))).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.predict(start).sum(), start)
    tangent = gradient - (gradient * start).sum(-1, keepdim=True) * start
    slope = (tangent.square().sum(-1) / gradient.norm(dim=-1)).sum(-1)
    gain = (model.predict(ascend(model, start, rate)) - model.predict(ascend(model, start, -rate))) / (2 * rate)
    assert torch.allclose(gain, slope, rtol=1e-5)


@pytest.mark.slow
def test_proposals_of_a_trained_model_score_higher_than_draws_and_than_their_starts() -> None:
    gains, leads = [], []
    for seed in range(4):
        model, genotypes = trained(CELLS, convolutions, seed, 80)
        best = sorted(genotypes, key=convolutions, reverse=True)
        known = set(map(CELLS.unique_key, genotypes))
        proposed = propose_genotypes(model, CELLS, best, known, 10, SMALL, rng())
        assert len(proposed) == len(set(map(CELLS.unique_key, proposed)) - known) == 10
        scores, starts = list(map(convolutions, proposed)), list(map(convolutions, best[:10]))
        gains.append(sum(scores) / 10 - sum(starts) / 10)
        leads.append(sum(scores) / 10 - sum(map(convolutions, genotypes)) / 80)
    assert sum(leads) / 4 > 3
    assert sum(gains) / 4 > 0


def test_proposals_respect_limits_and_end_when_a_space_is_used_up() -> None:
    few = limit_space(CELLS, convolutions, 3.0, name="convolutions")
    best = sampled(few, 5)
    known = set(map(few.unique_key, best))
    proposed = propose_genotypes(model_of(few), few, best, known, 8, SMALL, rng())
    assert len(proposed) == 8
    assert all(map(few.contains, proposed))

    tiny = GeneralSpace((2,), ("zero", "identity", "conv3"))
    rest = propose_genotypes(model_of(tiny), tiny, [tiny.at(0)], {tiny.unique_key(tiny.at(0))}, 8, SMALL, rng())
    assert set(rest) == {tiny.at(1), tiny.at(2)}


def test_ranks_are_those_of_scores_with_ties_and_failures() -> None:
    scores = torch.tensor([0.5, -torch.inf, 0.5, 2.0, -torch.inf])
    assert ranks(scores).tolist() == pytest.approx([0.625, 0.125, 0.625, 1.0, 0.125])
    assert ranks(torch.tensor([3.0])).tolist() == [0.5]
    assert ranks(scores.exp() * 7).tolist() == ranks(scores).tolist(), "they do not depend on the scale"


def test_tokens_are_shared_by_decisions_of_one_kind_only() -> None:
    model = model_of(CELLS)
    sizes = {(step.kind, step.part): step.size for step in model.steps}  # the last node has most sources
    assert set(sizes) == {(kind, part) for kind in (SOURCE, OPERATION) for part in ("normal", "reduction")}
    assert model.allowed.shape == (len(model.steps), sum(sizes.values()))
    assert model.allowed.sum(1).tolist() == [step.size for step in model.steps]
    for i, one in enumerate(model.steps):
        for j, other in enumerate(model.steps):
            same = (one.kind, one.part) == (other.kind, other.part)
            assert bool((model.allowed[i] & model.allowed[j]).any()) == same


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_steps": 0}, "model_steps must be 1 or more, got 0"),
        ({"ascent_rate": 0.0}, "ascent_rate must be above 0, got 0.0"),
        ({"prediction_weight": 1.0}, r"prediction_weight must lie in \(0, 1\), got 1.0"),
        ({"model_decay": -1.0}, "model_decay must be 0 or more, got -1.0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ModelOptions(**options)
