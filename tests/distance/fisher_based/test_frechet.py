"""The Fréchet distance: closed forms, its range, its aggregates, and the three readings of F_ab."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.errors import MismatchError, OptionError
from nearkin.core.events import finish
from nearkin.distance import frechet, full_frechet
from nearkin.distance.fisher_based.frechet import AGGREGATES, distances, embedded
from nearkin.distance.fisher_based.readings import backbone, information
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.fisher import FisherDiagonal, diagonal
from nearkin.fisher.full import fisher_matrix
from nearkin.tasks.dense import dense
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.task import Task


def fisher(*parts: Tensor) -> FisherDiagonal:
    return FisherDiagonal({str(i): part for i, part in enumerate(parts)}, "observed", 1)


def drawn(seed: int, *shapes: tuple[int, ...]) -> FisherDiagonal:
    rng = torch.Generator().manual_seed(seed)
    return fisher(*(torch.rand(shape, generator=rng).double() ** 4 for shape in shapes))


SHAPES = ((4, 3, 2), (4,), (5, 4))


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(list(AGGREGATES)), st.floats(1e-6, 1e6))
@settings(max_examples=40, deadline=None)
def test_it_lies_in_the_unit_interval_is_symmetric_and_ignores_scale(a: int, b: int, how: str, scale: float) -> None:
    f, g = drawn(a, *SHAPES), drawn(b, *SHAPES)
    far = frechet(f, g, how)
    assert 0 <= far <= 1
    assert far == pytest.approx(frechet(g, f, how), abs=1e-12)
    scaled = FisherDiagonal({name: value * scale for name, value in f.values.items()}, "observed", 1)
    assert far == pytest.approx(frechet(scaled, g, how), abs=1e-9)
    assert frechet(f, f, how) == 0.0


@given(st.integers(0, 10**6), st.sampled_from(list(AGGREGATES)))
@settings(max_examples=30, deadline=None)
def test_it_is_a_metric(seed: int, how: str) -> None:
    a, b, c = (drawn(seed + k, *SHAPES) for k in range(3))
    assert frechet(a, c, how) <= frechet(a, b, how) + frechet(b, c, how) + 1e-12


def test_informations_that_share_no_weight_are_at_one() -> None:
    f, g = fisher(torch.tensor([3.0, 0.0])), fisher(torch.tensor([0.0, 0.1]))
    assert frechet(f, g) == pytest.approx(1.0, abs=1e-12)


def test_the_embedding_is_on_the_sphere_and_the_distance_is_euclidean_there() -> None:
    f, g = drawn(1, *SHAPES), drawn(2, *SHAPES)
    for how in AGGREGATES:
        assert embedded(f, how).norm() == pytest.approx(1.0, abs=1e-12)
        far = (embedded(f, how) - embedded(g, how)).norm() / math.sqrt(2)
        assert frechet(f, g, how) == pytest.approx(float(far), abs=1e-12)


def test_mixed_is_half_the_layers_and_half_the_weights_within_each() -> None:
    """Against the formula written out with dense diagonal matrices, tensor by tensor."""
    for seed in range(10):
        f, g = drawn(seed, *SHAPES), drawn(seed + 100, *SHAPES)

        within = [
            full_frechet(torch.diag(f.values[name].flatten()), torch.diag(g.values[name].flatten())) ** 2
            for name in f.values
        ]
        tops = [torch.diag(torch.stack([value.sum() for value in one.values.values()])) for one in (f, g)]
        expected = (full_frechet(*tops) ** 2 + sum(within) / len(within)) / 2
        assert frechet(f, g, "mixed") ** 2 == pytest.approx(expected, abs=1e-9)


def test_mixed_with_tensors_that_have_no_information() -> None:
    some, none = torch.tensor([1.0, 3.0]), torch.zeros(2)
    f, g = fisher(some, none), fisher(some, some)
    assert frechet(f, f, "mixed") == 0.0
    assert 0 < frechet(f, g, "mixed") <= 1
    apart = fisher(none, some)
    assert frechet(f, apart, "mixed") <= 1


def test_coarser_sums_are_never_farther() -> None:
    """Summing two cells cannot raise a Hellinger distance: filters lie within weights, layers within filters."""
    for seed in range(20):
        found = distances(drawn(seed, *SHAPES), drawn(seed + 100, *SHAPES))
        assert found["layer"] <= found["filter"] + 1e-12
        assert found["filter"] <= found["weight"] + 1e-12
        assert found["sorted"] <= found["weight"] + 1e-12  # sorting both is the best matching of all


def test_sorted_does_not_mind_neurons_that_trade_places() -> None:
    f = drawn(3, *SHAPES)
    turned = FisherDiagonal({name: value.flip(0) for name, value in f.values.items()}, "observed", 1)
    assert max(frechet(f, turned, "sorted"), frechet(f, turned, "layer")) < 1e-12
    assert frechet(f, turned) > 0.05


def test_the_full_form_of_diagonal_matrices_is_the_diagonal_form() -> None:
    f, g = drawn(4, (7,)), drawn(5, (7,))
    full = full_frechet(torch.diag(f.values["0"]), torch.diag(g.values["0"]))
    assert full == pytest.approx(frechet(f, g), abs=1e-7)


def test_the_full_form_is_the_fidelity_of_rank_one_matrices() -> None:
    r"""For $uu^\top$ and $vv^\top$ of unit vectors, $d^2 = 1 - |u^\top v|$."""
    u, v = (torch.randn(5, generator=torch.Generator().manual_seed(k)).double() for k in (0, 1))
    u, v = u / u.norm(), v / v.norm()
    assert full_frechet(torch.outer(u, u), torch.outer(v, v)) ** 2 == pytest.approx(1 - float((u @ v).abs()), abs=1e-7)


def test_the_full_form_turns_with_the_axes_and_is_zero_on_itself() -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(6, 6).double() for _ in range(2))
    f, g = a @ a.t(), b @ b.t()
    turn = torch.linalg.qr(torch.randn(6, 6).double()).Q
    assert full_frechet(turn @ f @ turn.t(), turn @ g @ turn.t()) == pytest.approx(full_frechet(f, g), abs=1e-7)
    assert full_frechet(f, f) == 0.0
    assert 0 < full_frechet(f, g) < 1


def test_on_a_small_network_both_forms_order_two_drifts_alike() -> None:
    """Weights that moved little are nearer than weights that moved much, by the full form as by the diagonal one."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), torch.randn(60, 3).double()
    y = torch.randint(2, (60,))
    full, diag = fisher_matrix(model, x, y), diagonal(model, x, y)
    found = []
    for size in (0.01, 0.3):
        moved = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        moved.load_state_dict(
            {name: value + size * torch.randn_like(value) for name, value in model.state_dict().items()}
        )
        found.append((full_frechet(fisher_matrix(moved, x, y), full), frechet(diagonal(moved, x, y), diag)))
    assert found[0][0] < found[1][0] < 1
    assert found[0][1] < found[1][1] < 1
    assert torch.allclose(full.diagonal(), diag.flat(), rtol=1e-9)


@pytest.mark.parametrize("broken", [torch.zeros(3), torch.tensor([1.0, math.nan]), torch.tensor([math.inf, 1.0])])
def test_an_information_that_is_none_is_refused(broken: Tensor) -> None:
    with pytest.raises(MismatchError, match="trace"):
        frechet(fisher(broken), fisher(torch.ones_like(broken)))


def test_networks_that_differ_are_refused_by_the_weight_that_differs() -> None:
    with pytest.raises(MismatchError, match=r"1 has shape \(2,\) in one and \(3,\) in the other"):
        frechet(fisher(torch.ones(2), torch.ones(2)), fisher(torch.ones(2), torch.ones(3)))
    with pytest.raises(MismatchError, match="none"):
        frechet(fisher(torch.ones(2)), fisher(torch.ones(2), torch.ones(3)))
    with pytest.raises(OptionError, match="aggregate is one of"):
        frechet(fisher(torch.ones(2)), fisher(torch.ones(2)), "neuron")


# Readings


@pytest.fixture(scope="module")
def ten() -> Task:
    return nk.task("digits?limit=300")


@pytest.fixture(scope="module")
def two() -> Task:
    return nk.task("digits?detect=0&limit=300")


def sight(task: Task, outputs: int, own: str = "categorical", seed: int = 0) -> SourceOnTarget:
    model = nk.build("mlp?hidden=16", task.input_shape, outputs, seed)
    return SourceOnTarget(model.eval(), task, likelihood(own), num_train=100)


def test_the_padded_reading_is_the_plain_diagonal_where_widths_agree(ten: Task) -> None:
    seen = sight(ten, 10)
    x, y = ten.train.fixed_subset(100)
    found, truth = finish(information(seen, "padded", 10)), diagonal(seen.model, x, y)
    assert all(torch.equal(found.values[name], truth.values[name]) for name in truth.values)


def test_the_padded_reading_of_a_narrow_head_takes_labels_it_never_saw(ten: Task) -> None:
    seen = sight(ten, 2)
    found = finish(information(seen, "padded", 10))
    assert found.values["head.weight"].shape == (10, 16)
    assert float(found.values["head.weight"][5].sum()) > 0  # class 5 occurs, and its row has a gradient
    assert seen.model.head.out_features == 2  # the network itself is as it was


def test_a_wider_head_changes_nothing_but_rows_of_zeros(two: Task) -> None:
    """Padded classes never occur and cannot be answered: the information of a task's own network has one value."""
    seen = sight(two, 2)
    narrow, wide = (finish(information(seen, "padded", width)) for width in (2, 7))
    for name, value in narrow.values.items():
        assert torch.allclose(wide.values[name][: len(value)], value, rtol=1e-5, atol=1e-9), name
    assert float(wide.values["head.weight"][2:].abs().max()) < 1e-9


def test_the_model_reading_needs_no_labels_and_leaves_the_head_out(ten: Task) -> None:
    seen = sight(ten, 3)
    found = finish(information(seen, "model", 10))
    assert not any(name.startswith("head") for name in found.values)
    assert list(found.values) == backbone(seen)
    again = finish(information(seen, "model", 10))
    assert all(torch.equal(found.values[name], again.values[name]) for name in found.values)


def test_the_refit_reading_has_a_head_of_the_target_that_knows_its_training_data(two: Task) -> None:
    seen = sight(two, 10)
    found = finish(information(seen, "refit", 10))
    assert found.values["head.weight"].shape == (2, 16)
    untrained = finish(information(sight(two, 2), "padded", 2))
    assert found.values["head.bias"].sum() < 0.5 * untrained.values["head.bias"].sum()  # it errs less


def test_order_of_samples_changes_nothing(ten: Task) -> None:
    seen = sight(ten, 10)
    x, y = ten.test.fixed_subset(100)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    mixed = Task.from_arrays("mixed", x[order], y[order], x, y, classes=ten.classes, standardise=False)
    straight = Task.from_arrays("straight", x, y, x, y, classes=ten.classes, standardise=False)
    f, g = (finish(information(SourceOnTarget(seen.model, task, seen.own), "padded", 10)) for task in (straight, mixed))
    assert frechet(f, g) < 1e-4


def test_regression_is_compared_too() -> None:
    torch.manual_seed(0)
    x = torch.randn(80, 5)
    task = Task.from_arrays("line", x, x[:, :2] @ torch.ones(2, 2), likelihood="gaussian")
    model = nk.build("mlp?hidden=8", (5,), 1, 0).eval()
    seen = SourceOnTarget(model, task, task.form)
    padded, refit = (finish(information(seen, reading, 2)) for reading in ("padded", "refit"))
    assert padded.values["head.weight"].shape == (2, 8) == refit.values["head.weight"].shape
    assert padded.values["head.bias"].sum() > refit.values["head.bias"].sum() > 0  # the fitted head errs less


def test_images_to_images_are_compared() -> None:
    task = nk.task("digits?dense=edges&limit=60")
    model = nk.build("autoencoder?width=0.1", task.input_shape, task.num_outputs, 0).eval()
    seen = SourceOnTarget(model, task, task.form, num_train=20)
    assert finish(information(seen, "padded", task.num_outputs)).trace() > 0
    assert all(not name.startswith("output") for name in finish(information(seen, "model", 1)).values)
    with pytest.raises(MismatchError, match="no head can be fitted"):
        finish(information(seen, "refit", 1))
    wide = finish(information(seen, "padded", 3))  # its own information, but for channels of zeros
    narrow = finish(information(seen, "padded", 1))
    for name, value in narrow.values.items():
        kept = wide.values[name][:, :1] if name == "output.weight" else wide.values[name][: len(value)]
        assert torch.allclose(kept, value, rtol=1e-4, atol=1e-9), name
    assert float(wide.values["output.weight"][:, 1:].abs().max()) < 1e-9


def test_image_tasks_of_unlike_channels_are_padded() -> None:
    """A network for three channels and one for a single channel, each on the other's task."""
    torch.manual_seed(0)
    photos = Task.from_arrays("photos", torch.rand(40, 3, 8, 8), torch.arange(40) % 2)
    three, one = dense(photos, "autoencode"), dense(photos, "edges")
    seen = {
        task.num_outputs: SourceOnTarget(
            nk.build("autoencoder?width=0.1", (3, 8, 8), task.num_outputs, 0).eval(), task, task.form
        )
        for task in (three, one)
    }
    for target in (three, one):
        own, other = seen[target.num_outputs], seen[4 - target.num_outputs]
        f_bb = finish(information(own, "padded", 3))
        f_ab = finish(information(SourceOnTarget(other.model, target, target.form), "padded", 3))
        assert f_ab.values["output.weight"].shape == f_bb.values["output.weight"].shape
        assert 0 < frechet(f_ab, f_bb, "mixed") <= 1
    assert seen[1].model.output.out_channels == 1  # the network itself is as it was


def test_outputs_that_cannot_be_widened_are_refused_with_a_way_out() -> None:
    x = torch.randn(30, 4)
    task = Task.from_arrays("values", x, x[:, :1], likelihood="heteroscedastic")
    seen = SourceOnTarget(nk.build("mlp?hidden=8", (4,), task.num_outputs, 0).eval(), task, task.form)
    with pytest.raises(MismatchError, match="cannot be padded to 4 in a heteroscedastic task; use reading='model'"):
        finish(information(seen, "padded", 4))


def test_other_likelihoods_meet_in_the_model_reading_only(ten: Task) -> None:
    seen = sight(ten, 1, own="gaussian")
    with pytest.raises(MismatchError, match="use reading='model'"):
        finish(information(seen, "padded", 10))
    assert finish(information(seen, "model", 10)).trace() > 0


def test_images_are_brought_to_the_networks_shape_or_refused(ten: Task) -> None:
    assert fitted_to(ten, ten.input_shape) is ten
    wide = fitted_to(ten, (3, 12, 10))
    assert wide.input_shape == (3, 12, 10)
    assert wide.train.first(3).x.shape == (3, 3, 12, 10)
    table = Task.from_arrays("table", torch.randn(20, 4), torch.arange(20) % 2)
    with pytest.raises(MismatchError, match="only images can be converted"):
        fitted_to(table, (1, 8, 8))
    with pytest.raises(MismatchError, match="only one and three channels"):
        fitted_to(ten, (4, 8, 8))


def test_unknown_readings_are_named(ten: Task) -> None:
    with pytest.raises(OptionError, match="reading is one of padded, model, refit"):
        finish(information(sight(ten, 10), "plain", 10))
