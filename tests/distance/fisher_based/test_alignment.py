"""Hidden units that trade places: the function stays, a permuted copy is found again, and nothing gets worse."""

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.core.events import Progress
from nearkin.distance import frechet
from nearkin.distance.fisher_based import alignment
from nearkin.distance.fisher_based.alignment import aligned, aligned_fisher
from nearkin.distance.fisher_based.unit_groups import UnitGroup, permuted, unit_groups
from nearkin.fisher import FisherDiagonal, diagonal
from nearkin.nets.functional import load, view
from nearkin.nets.recurrent import RecurrentLanguageModel
from nearkin.nets.registry import build
from nearkin.tasks.sources import task

IMAGE, ODD = (1, 8, 8), (2, 9, 8)
NETWORKS = {  # units of every group, in the order in which they are written
    "mlp?hidden=7-5": (IMAGE, [7, 5]),
    "lenet?width=0.5": (IMAGE, [3, 8, 60, 42]),
    "vgg16?width=0.0625": (IMAGE, [4] * 2 + [8] * 2 + [16] * 3 + [32] * 6),
    "resnet18?width=0.0625": (ODD, [4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32]),
    "densenet121?width=0.0625": (IMAGE, None),
    "autoencoder?width=0.125": (ODD, [2, 64, 16, 64, 2]),
}
QUICK = [name for name in NETWORKS if not name.startswith("densenet")]


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """The network in float64 with biases, norms and statistics that tell units apart."""
    rng = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.dim() == 1:
                value += 0.5 * torch.rand(value.shape, generator=rng, dtype=torch.float64)
    return model


def network(name: str, seed: int = 0, outputs: int = 3) -> nn.Module:
    return shaken(build(name, NETWORKS[name][0], outputs, seed=seed), seed)


def samples(name: str, num: int = 24, seed: int = 0) -> Tensor:
    return noise(num, *NETWORKS[name][0], seed=seed)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(groups: tuple[UnitGroup, ...], seed: int = 0) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {group.name: torch.randperm(group.num, generator=rng) for group in groups}


def values(model: nn.Module) -> dict[str, Tensor]:
    return {**view(model).params, **view(model).buffers}


def require_same_function(model: nn.Module, x: Tensor) -> tuple[UnitGroup, ...]:
    groups = unit_groups(model, x)
    for seed in range(2):
        moved = permuted(values(model), groups, drawn(groups, seed))
        with torch.no_grad():
            torch.testing.assert_close(functional_call(model, moved, (x,)), model(x), rtol=1e-10, atol=1e-10)
    return groups


def moved_copy(model: nn.Module, copy: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Write the network into the copy with its units in another order; the permutations."""
    groups = unit_groups(model, x)
    orders = drawn(groups, 7)
    load(copy, permuted(view(model).params, groups, orders), permuted(view(model).buffers, groups, orders))
    return orders


@pytest.mark.parametrize("name", NETWORKS)
def test_a_permuted_network_computes_the_same_function(name: str) -> None:
    model, x = network(name), samples(name, 4)
    groups = require_same_function(model, x)
    nums = NETWORKS[name][1]
    if nums is not None:
        assert [group.num for group in groups] == nums
    else:  # two groups a dense layer, the stem, and three halvings
        assert len(groups) == 2 * (6 + 12 + 24 + 16) + 1 + 3


@pytest.mark.parametrize("name", QUICK)
def test_a_weight_that_does_not_move_along_changes_the_function(name: str) -> None:
    """Else the law above would hold for units that do not matter."""
    model, x = network(name), samples(name, 4)
    groups = unit_groups(model, x)
    own = values(model)
    moved = permuted(own, groups, {group.name: torch.arange(group.num).roll(1) for group in groups})
    first = groups[0].name
    with torch.no_grad():
        broken = functional_call(model, {**moved, first: own[first]}, (x,))
        assert (broken - model(x)).abs().max() > 1e-4 * model(x).std(0).max()


@pytest.mark.parametrize("name", NETWORKS)
def test_inputs_and_outputs_stay(name: str) -> None:
    model, x = network(name), samples(name, 2)
    groups = unit_groups(model, x)
    names = [name for name, _ in model.named_parameters()]
    placed = {(item.tensor, item.axis) for group in groups for item in group.slices}
    assert (names[0], 1) not in placed
    assert (names[-1], 0) not in placed  # the bias of the last layer
    assert (names[-2], 1 if name.startswith("auto") else 0) not in placed
    assert (names[0], 0) in placed


@pytest.mark.parametrize("by", alignment.BY)
@pytest.mark.parametrize("name", QUICK)
def test_a_permuted_copy_is_brought_back_exactly(name: str, by: str) -> None:
    b, a, x = network(name), network(name, seed=1), samples(name)
    orders = moved_copy(b, a, x)
    found = aligned(a, b, x, by)
    assert found.after == pytest.approx(1.0, abs=1e-9)
    assert found.before < 0.95
    for own, theirs in ((found.params, view(b).params), (found.buffers, view(b).buffers)):
        assert all(torch.equal(own[name], value) for name, value in theirs.items())
    for group in found.groups:
        assert torch.equal(orders[group.name][found.permutations[group.name]], torch.arange(group.num))
    f = FisherDiagonal({name: value.square() for name, value in view(b).params.items()}, "observed", 1)
    other = FisherDiagonal({name: value.square() for name, value in view(a).params.items()}, "observed", 1)
    assert frechet(other, f) > 0.05
    assert frechet(aligned_fisher(other, found), f) == 0.0


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize("by", alignment.BY)
def test_a_permuted_copy_of_a_dense_network_is_brought_back_exactly(by: str) -> None:
    test_a_permuted_copy_is_brought_back_exactly("densenet121?width=0.0625", by)


@pytest.mark.parametrize("by", alignment.BY)
@pytest.mark.parametrize("name", QUICK)
def test_alignment_never_worsens_keeps_the_function_and_is_deterministic(name: str, by: str) -> None:
    """Heads of two widths, so that the last layer is matched by what it reads only."""
    a, b, x = network(name, seed=1, outputs=5), network(name), samples(name)
    found, again = (aligned(a, b, x, by) for _ in range(2))
    assert found.after > found.before
    assert aligned(b, b, x, by).after == pytest.approx(1.0, abs=1e-9)
    for group in found.groups:
        assert torch.equal(found.permutations[group.name], again.permutations[group.name])
    with torch.no_grad():
        outputs = functional_call(a, {**found.params, **found.buffers}, (x,))
        torch.testing.assert_close(outputs, a(x), rtol=1e-10, atol=1e-10)
    twice = network(name, outputs=5)
    load(twice, found.params, found.buffers)
    assert aligned(twice, b, x, by).before == pytest.approx(found.after, abs=1e-9)


def small(seed: int, hidden: int = 5) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2)).double()


def test_correlations_and_their_best_matching_against_all_permutations() -> None:
    a, b, x = small(0), small(1), noise(50, 3)
    found = aligned(a, b, x)
    views = []
    for layers in (1, 2):  # as the first layer writes units, and as the second reads them
        heard = torch.cat([b[:layers](x), a[:layers](x)], 1).detach()
        views.append(torch.corrcoef(heard.T)[:5, 5:])
    score = torch.stack(views).mean(0)
    best = max(float(score[range(5), list(order)].mean()) for order in permutations(range(5)))
    assert found.before == pytest.approx(float(score.trace()) / 5, abs=1e-12)
    assert found.after == pytest.approx(best, abs=1e-12)


def test_one_hidden_layer_is_matched_by_weights_as_by_trying_all_permutations() -> None:
    a, b, x = small(2), small(3), noise(2, 3)
    found = aligned(a, b, x, by="weights")
    groups, own, theirs = found.groups, view(a).params, view(b).params
    flat = torch.cat([value.flatten() for value in theirs.values()])

    def cosine(order: tuple[int, ...]) -> float:
        moved = permuted(own, groups, {"0.weight": torch.tensor(order)})
        return float(torch.cosine_similarity(torch.cat([value.flatten() for value in moved.values()]), flat, 0))

    assert found.before == pytest.approx(cosine((0, 1, 2, 3, 4)), abs=1e-12)
    assert found.after == pytest.approx(max(map(cosine, permutations(range(5)))), abs=1e-12)


def test_samples_may_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "lenet?width=0.5"
    a, b, x = network(name, seed=1), network(name), samples(name, 9)
    whole = aligned(a, b, x)
    monkeypatch.setattr(alignment, "HELD_FLOATS", 1)
    events = list(aligned.work(a, b, x))
    assert [event.done for event in events if isinstance(event, Progress)] == list(range(1, 10))
    parts = aligned(a, b, x)
    assert (parts.before, parts.after) == pytest.approx((whole.before, whole.after), abs=1e-10)
    assert all(torch.equal(parts.permutations[name], order) for name, order in whole.permutations.items())


def test_the_information_moves_with_the_weights() -> None:
    name = "lenet?width=0.5"
    b, a, x = network(name), network(name, seed=1), samples(name, 30)
    moved_copy(b, a, x)
    y = torch.arange(30) % 3
    found = aligned(a, b, x)
    f, g = diagonal(a, x, y), diagonal(b, x, y)
    assert frechet(aligned_fisher(f, found), g) < 1e-7 < frechet(f, g)
    backbone = FisherDiagonal({name: v for name, v in f.values.items() if "head" not in name}, "observed", 30)
    part = aligned_fisher(backbone, found)
    assert list(part.values) == list(backbone.values)
    assert all(torch.equal(value, aligned_fisher(f, found).values[name]) for name, value in part.values.items())


def test_networks_with_starts_of_their_own_come_nearer() -> None:
    """No law, but so for wide layers: over pairs of seeds the ratio was 0.60 to 0.75."""
    digits = task("digits")
    x, y = digits.train.fixed_subset(400)
    informations, models = [], []
    for seed in (0, 1):
        model = build("mlp", digits.input_shape, digits.num_outputs, seed=seed)
        optimiser = torch.optim.Adam(model.parameters(), 0.005)
        for _ in range(30):
            optimiser.zero_grad()
            digits.form.loss(model(x), y).backward()
            optimiser.step()
        models.append(model.eval())
        informations.append(diagonal(model, x, y))
    f, g = informations
    for by in alignment.BY:
        found = aligned(models[0], models[1], x, by)
        assert frechet(aligned_fisher(f, found), g) < 0.85 * frechet(f, g)


class Written(nn.Module):
    """Layers by name, and a forward pass of any kind."""

    def __init__(self, forward: "Callable[[Written, Tensor], Tensor]", **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.way = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def conv(channels: int, out: int, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, 3, padding=1, groups=groups)


ODD_ONES: dict[str, tuple[list[int], Callable[[], nn.Module]]] = {
    "one unit": ([], lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 1), nn.ReLU(), nn.Linear(1, 2))),
    "no hidden layer": ([], lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 2))),
    "norm of the inputs": ([6], lambda: nn.Sequential(nn.BatchNorm2d(2), conv(2, 6), nn.PReLU(6), conv(6, 1))),
    "depthwise": (
        [4, 3],
        lambda: nn.Sequential(conv(2, 4), nn.ReLU(), conv(4, 8, 4), conv(8, 3), nn.ReLU(), conv(3, 1)),
    ),
    "grouped": ([3], lambda: nn.Sequential(conv(2, 4), nn.ReLU(), conv(4, 6, 2), nn.ReLU(), conv(6, 3), conv(3, 1))),
    "layer norm": (
        [5],
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 5, bias=False), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 2)),
    ),
    "one layer called twice": (
        [4],
        lambda: Written(
            lambda m, x: m.c(F.relu(m.b(F.relu(m.b(F.relu(m.a(x))))))), a=conv(2, 4), b=conv(4, 4), c=conv(4, 1)
        ),
    ),
    "skip over a concatenation": (  # 3 + 3 maps meet 6 of one layer: those stay in place
        [],
        lambda: Written(
            lambda m, x: m.d(torch.cat([m.a(x), m.b(x)], 1) + m.c(x)),
            a=conv(2, 3),
            b=conv(2, 3),
            c=conv(2, 6),
            d=conv(6, 1),
        ),
    ),
    "smaller and larger": (
        [3, 4],
        lambda: nn.Sequential(
            conv(2, 3), nn.AvgPool2d(2), conv(3, 4), nn.ReLU6(), nn.Upsample(scale_factor=2), conv(4, 1)
        ),
    ),
    "inputs beside units": (
        [3],
        lambda: Written(lambda m, x: m.b(torch.cat([x, m.a(x).relu_(), x], 1)), a=conv(2, 3), b=conv(7, 1)),
    ),
    "a scale and a gate": (
        [3, 3],
        lambda: Written(
            lambda m, x: m.b(m.a(x) * m.scale * m.gate(m.a(x).mean((2, 3), keepdim=True)).sigmoid() - m.mean(x)),
            a=conv(2, 3),
            b=conv(3, 1),
            mean=conv(2, 1),
            gate=nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1)),
            scale=nn.Parameter(torch.rand(3, 1, 1)),
        ),
    ),
    "a weight seen elsewhere": (
        [],
        lambda: Written(lambda m, x: m.b(m.a(x).relu()) + m.a.weight.flatten()[0], a=conv(2, 3), b=conv(3, 1)),
    ),
    "attention over inputs": (
        [8],
        lambda: Written(lambda m, x: m.a(x.flatten(2)), a=nn.TransformerEncoderLayer(16, 2, 8)),
    ),
    "sequences": (
        [4, 6],
        lambda: Written(
            lambda m, x: m.c(F.relu(m.b(m.a(x.flatten(2))).flatten(1))),
            a=nn.Linear(16, 4),
            b=nn.Linear(4, 6),
            c=nn.Linear(12, 2),
        ),
    ),
}


@pytest.mark.parametrize("name", ODD_ONES)
def test_odd_networks_keep_their_function_too(name: str) -> None:
    nums, make = ODD_ONES[name]
    model, x = shaken(make()), noise(6, 2, 4, 4)
    groups = require_same_function(model, x)
    assert [group.num for group in groups] == nums
    found = aligned(model, model, x)
    assert all(torch.equal(order, torch.arange(len(order))) for order in found.permutations.values())


@pytest.mark.parametrize(
    ("model", "x", "reason"),
    [
        (RecurrentLanguageModel(9, 4, 4), torch.zeros(2, 3, dtype=torch.int64), "new_zeros"),
        (Written(lambda m, x: m.b(m.a(x).cumsum(-1)), a=nn.Linear(3, 4), b=nn.Linear(4, 2)), noise(2, 3), "cumsum"),
        (Written(lambda m, x: m.b(m.a(x)[:, :3]), a=nn.Linear(3, 4), b=nn.Linear(3, 2)), noise(2, 3), "getitem"),
        (Written(lambda m, x: F.linear(m.a(x), m.a.weight.t()), a=nn.Linear(3, 4)), noise(2, 3), "computed"),
        (nn.Sequential(nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 8)), noise(2, 3, 4), "attention"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_line(model: nn.Module, x: Tensor, reason: str) -> None:
    model = model.double() if x.is_floating_point() else model
    with pytest.raises(MismatchError, match="aggregate='sorted'") as refused:
        unit_groups(model, x)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_code_that_hides_is_found_out_by_trying() -> None:
    def hidden(m: nn.Module, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            y = m.a(x) * torch.arange(4.0)
        return m.b(F.relu(m.c(x)) + y)

    model = Written(hidden, a=nn.Linear(3, 4), c=nn.Linear(3, 4), b=nn.Linear(4, 2)).double()
    assert unit_groups(model, noise(2, 3)) == ()  # a summand that nothing is known of keeps the units in place

    def seen(m: nn.Module, x: Tensor) -> Tensor:
        y = m.a(x)
        with torch._C.DisableTorchFunction():
            y = y * torch.arange(4.0)
        return m.b(y)

    with pytest.raises(MismatchError, match="cannot be traced"):
        unit_groups(Written(seen, a=nn.Linear(3, 4), b=nn.Linear(4, 2)).double(), noise(2, 3))


def test_networks_samples_and_options_that_do_not_fit_are_refused() -> None:
    x = noise(4, 3)
    with pytest.raises(MismatchError, match="one architecture"):
        aligned(small(0, 5), small(0, 6), x)
    with pytest.raises(OptionError, match="activations, weights"):
        aligned(small(0), small(1), x, by="magic")
    with pytest.raises(DataError, match="expected two or more to match units"):
        aligned(small(0), small(1), x[:1])
    with pytest.raises(MismatchError, match="cannot read"):
        aligned(small(0), small(1), noise(4, 2))
    broken = small(1)
    with torch.no_grad():
        broken[0].weight[0] = torch.nan
    with pytest.raises(MismatchError, match="diverged"):
        aligned(broken, small(0), x)
    groups = unit_groups(small(0), x)
    with pytest.raises(OptionError, match="each of 0 to 4 once"):
        permuted(view(small(0)).params, groups, {"0.weight": torch.tensor([0, 0, 1, 2, 3])})
    with pytest.raises(MismatchError, match="use groups and values of one network"):
        permuted(view(small(0, 4)).params, groups, {})
