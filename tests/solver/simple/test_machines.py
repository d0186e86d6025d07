"""The machines against closed forms and against scikit-learn, and what they cost."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.metrics.pairwise import rbf_kernel
from torch import nn

from nearkin.core.errors import OptionError
from nearkin.nets.functional import check, load
from nearkin.nets.registry import build
from nearkin.solver.simple.machines import (
    KernelMachine,
    LinearMachine,
    Machine,
    costs,
    kernel_machine,
    linear_machine,
    squared_distances,
)
from nearkin.solver.simple.tree_machines import AveragedTrees, BoostedTrees, averaged_trees, boosted_trees
from nearkin.solver.simple.trees import averaged_from, boosted_from, floored


def rebuilt(machine: Machine, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """The machine that its network string and tensors alone give."""
    again = build(machine.network, input_shape, num_outputs, seed=3)
    load(again, dict(machine.named_parameters()), dict(machine.named_buffers()))
    return again.eval()


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def stump() -> BoostedTrees:
    """Two trees: one compares input 1 with 0.5 and gives 1 or 2 to output 0, one is a leaf of 7 for output 1."""
    machine = BoostedTrees(trees=2, nodes=3, depth=1, num_outputs=2)
    machine.feature[0], machine.threshold[0], machine.missing[0] = 1, 0.5, 1
    machine.below[0] = torch.tensor([1, 2])
    machine.value.copy_(torch.tensor([0.0, 1.0, 2.0, 7.0, 0.0, 0.0]))
    machine.output.copy_(torch.tensor([0, 1]))
    machine.baseline.copy_(torch.tensor([10.0, 20.0]))
    return machine


MACHINES = [
    LinearMachine(drawn(3, 8), drawn(3)),
    KernelMachine(drawn(5, 8), drawn(5, 3), drawn(3), drawn(8).abs(), drawn(8)),
    BoostedTrees(trees=4, nodes=1, depth=0, num_outputs=3),
    AveragedTrees(trees=4, nodes=1, depth=0, num_outputs=3),
]


@pytest.mark.parametrize("machine", MACHINES, ids=["linear", "kernel", "boosted trees", "averaged trees"])
class TestEveryMachine:
    def test_its_network_string_and_tensors_build_it_again(self, machine: Machine) -> None:
        x = drawn(6, 2, 2, 2)
        assert torch.equal(rebuilt(machine, (2, 2, 2), 3)(x), machine(x))

    def test_it_is_a_network_for_its_task(self, machine: Machine) -> None:
        check(build(machine.network, (2, 2, 2), 3, seed=0), (2, 2, 2), 3, "categorical")

    def test_widened_it_says_the_same_and_constants(self, machine: Machine) -> None:
        x, constants = drawn(6, 8), torch.tensor([1.5, -2.0])
        wide = machine.widened(constants)
        assert wide(x).shape == (6, 5)
        torch.testing.assert_close(wide(x)[:, :3], machine(x))
        assert torch.equal(wide(x)[:, 3:], constants.expand(6, 2))

    def test_no_input_gives_no_output(self, machine: Machine) -> None:
        assert machine(torch.zeros(0, 8)).shape == (0, 3)

    def test_costs_are_its_own(self, machine: Machine) -> None:
        assert costs(machine, (8,)) == (machine.num_parameters, machine.multiply_adds)


def test_kernel_machine_is_the_weighted_sum_of_rbf_kernels() -> None:
    vectors, coefficients, bias, scale, shift = drawn(5, 4), drawn(5, 3), drawn(3), drawn(4).abs(), drawn(4)
    x = drawn(7, 4)
    kernel = rbf_kernel((x * scale + shift).double().numpy(), vectors.double().numpy(), gamma=1.0)
    expected = kernel @ coefficients.double().numpy() + bias.double().numpy()
    machine = KernelMachine(vectors, coefficients, bias, scale, shift)
    np.testing.assert_allclose(machine(x).detach().numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(machine.sharpened(3.0)(x).detach().numpy(), 3 * expected, atol=1e-5)


def test_squared_distances_are_never_negative() -> None:
    x = drawn(20, 3) + 1000
    assert bool((squared_distances(x, x) >= 0).all())


class TestBoostedTrees:
    def test_the_threshold_itself_goes_to_the_first_child_and_what_is_missing_where_it_should(self) -> None:
        x = torch.tensor([[9.0, 0.4], [9.0, 0.5], [9.0, 0.6], [9.0, float("nan")]])
        assert stump()(x).tolist() == [[11.0, 27.0], [11.0, 27.0], [12.0, 27.0], [12.0, 27.0]]

    def test_costs_count_what_is_reached(self) -> None:
        machine = stump()
        assert machine.num_parameters == 2 + 2 + 1 + 2  # one comparison, two leaves, one leaf, two baselines
        assert machine.multiply_adds == 1 + 2  # one comparison, two additions

    def test_rows_walked_in_pieces_give_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = drawn(9, 2)
        whole = stump()(x)
        monkeypatch.setattr("nearkin.solver.simple.tree_machines.BLOCK", 4)
        assert torch.equal(stump()(x), whole)

    def test_a_string_without_depth_allows_the_deepest_tree(self) -> None:
        assert boosted_trees(trees=2, nodes=7, input_shape=(2,), num_outputs=1).depth == 3
        assert averaged_trees(trees=2, nodes=7, input_shape=(2,), num_outputs=1).depth == 3

    def test_trees_without_nodes_are_refused(self) -> None:
        with pytest.raises(OptionError, match="need nodes"):
            BoostedTrees(trees=0, nodes=3, depth=1, num_outputs=1)


class TestAgainstScikitLearn:
    @pytest.mark.parametrize("classes", [2, 3])
    def test_classes_of_a_table(self, classes: int) -> None:
        x, y = load_iris(return_X_y=True)
        x, y = x[y < classes].astype(np.float32), y[y < classes]
        x += np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
        self.agrees(GradientBoostingClassifier(n_estimators=20).fit(x, y), x, classes)

    def test_classes_of_images(self) -> None:
        x, y = load_digits(return_X_y=True)
        x = x[:600].astype(np.float32)
        self.agrees(GradientBoostingClassifier(n_estimators=8, max_leaf_nodes=15).fit(x, y[:600]), x, 10)

    def test_values(self) -> None:
        x, y = load_diabetes(return_X_y=True)
        x, targets = x.astype(np.float32), (y / y.std(), -y / y.std())
        models = [GradientBoostingRegressor(n_estimators=20).fit(x, target) for target in targets]
        expected = np.stack([model.predict(x) for model in models], 1)
        np.testing.assert_allclose(boosted_from(models, 2)(torch.from_numpy(x)).numpy(), expected, atol=2e-6)

    @pytest.mark.parametrize("maker", [RandomForestClassifier, ExtraTreesClassifier])
    @pytest.mark.parametrize("classes", [2, 3])
    def test_forests_of_classes(self, maker: type[RandomForestClassifier], classes: int) -> None:
        x, y = load_iris(return_X_y=True)
        x, y = x[y < classes].astype(np.float32), y[y < classes]
        x += np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
        model = maker(n_estimators=20, random_state=0).fit(x[::2], y[::2])
        said = rebuilt(averaged_from(model, classes), x.shape[1:], classes)(torch.from_numpy(x)).softmax(1).numpy()
        expected = model.predict_proba(x)
        np.testing.assert_allclose(said, (20 * expected + 1 / classes) / 21, atol=1e-6)
        assert (said.argmax(1) == model.predict(x)).mean() > 0.97, "only ties may differ"

    def test_classes_that_a_forest_never_saw_have_no_probability_but_that_of_smoothing(self) -> None:
        x = drawn(30, 2).numpy()
        model = RandomForestClassifier(n_estimators=9, random_state=0).fit(x, np.where(x[:, 0] > 0, 3, 1))
        said = averaged_from(model, 5)(torch.from_numpy(x)).softmax(1).numpy()
        np.testing.assert_allclose(said[:, [0, 2, 4]], 1 / 50, atol=1e-6)
        np.testing.assert_allclose(said[:, [1, 3]], (9 * model.predict_proba(x) + 0.2) / 10, atol=1e-6)

    @pytest.mark.parametrize("maker", [RandomForestRegressor, ExtraTreesRegressor])
    def test_forests_of_values(self, maker: type[RandomForestRegressor]) -> None:
        x, y = load_diabetes(return_X_y=True)
        x, targets = x.astype(np.float32), np.stack([y / y.std(), -2 * y / y.std()], 1)
        model = maker(n_estimators=20, random_state=0).fit(x[::2], targets[::2])
        said = rebuilt(averaged_from(model, 2), x.shape[1:], 2)(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(said, model.predict(x), atol=2e-6)

    def agrees(self, model: GradientBoostingClassifier, x: np.ndarray, classes: int) -> None:
        machine = boosted_from([model], classes)
        said = rebuilt(machine, x.shape[1:], classes)(torch.from_numpy(x)).softmax(1)
        np.testing.assert_allclose(said.numpy(), model.predict_proba(x), atol=1e-6)


def test_floored_thresholds_part_float32_inputs_alike() -> None:
    rng = np.random.default_rng(0)
    threshold = rng.normal(size=500)
    for x in (threshold.astype(np.float32), np.nextafter(threshold.astype(np.float32), np.float32(9))):
        assert ((x.astype(np.float64) <= threshold) == (x <= floored(threshold))).all()


def test_costs_of_machines_that_wait_for_their_tensors() -> None:
    assert costs(linear_machine(input_shape=(1, 2, 2), num_outputs=3), (1, 2, 2)) == (15, 12)
    assert costs(kernel_machine(vectors=5, input_shape=(4,), num_outputs=3), (4,)) == (20 + 15 + 3 + 8, 4 + 20 + 15)
    assert costs(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), (1, 2, 2)) == (15, 12)
