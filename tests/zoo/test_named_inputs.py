"""Tasks with named inputs in a zoo: the same inputs are compared in any order, other ones are refused in one line."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.budget import Budget
from nearkin.core.errors import MismatchError, NearkinError
from nearkin.solver.plan import Plan
from nearkin.solver.solving import solve
from nearkin.tasks.input_fields import InputField
from nearkin.tasks.named_inputs import pack_inputs, unpack_inputs

LENGTH = 5


class Reader(nn.Module):
    """Tokens and their mask; outputs depend on which is which."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.mix(self.norm(self.words(ids))).tanh() * mask[:, :, None]
        return self.head(hidden.sum(1) / mask.sum(1, keepdim=True))


def reviews(count: int = 60, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Tokens and their mask; the class is whether the first token is one of the upper half."""
    noise = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 12, (count, LENGTH), generator=noise)
    mask = (torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (count, 1), generator=noise)).long()
    return {"ids": ids, "mask": mask}, (ids[:, 0] > 5).long()


def task(name: str, change: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = dict, seed: int = 0) -> nk.Task:
    inputs, y = reviews(seed=seed)
    return nk.Task.from_arrays(name, change(inputs), y)


def renamed(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"hidden": inputs["mask"], "ids": inputs["ids"]}


def reshaped(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"ids": torch.cat([inputs["ids"], inputs["mask"][:, :1]], 1), "mask": inputs["mask"][:, 1:]}


def retyped(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"ids": inputs["ids"], "mask": inputs["mask"].float()}


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[nk.Zoo]:
    torch.manual_seed(0)
    with nk.Zoo(tmp_path / "zoo") as opened:
        opened.adopt("reader", Reader().eval(), task=task("own"))
        yield opened


def test_packed_inputs_are_unpacked_again() -> None:
    fields = (InputField("ids", (2,)), InputField("age", (), "float32"))
    inputs = {"age": torch.tensor([0.1, 0.2]), "ids": torch.tensor([[2**24, 1], [2, 3]])}
    again = unpack_inputs(pack_inputs(inputs, fields), fields)
    assert all(torch.equal(again[name], value) for name, value in inputs.items())
    assert unpack_inputs(torch.zeros(1, 3).double(), fields)["age"].dtype == torch.float64
    for wrong in (2**24 + 1, -(2**24) - 1):
        with pytest.raises(MismatchError, match="the input ids has numbers beyond"):
            pack_inputs({**inputs, "ids": torch.full((2, 2), wrong)}, fields)


def test_the_order_of_a_dictionary_does_not_matter(zoo: nk.Zoo) -> None:
    given = task("given", seed=1)
    reversed_order = task("given", lambda inputs: dict(reversed(inputs.items())), seed=1)
    assert given.digest() == reversed_order.digest()
    first, second = (nk.rank(each, ["zoo:reader"], sample=40, zoo=zoo).best for each in (given, reversed_order))
    assert first.measures == second.measures
    distances = [next(iter(zoo.near(each, "logme"))).distance for each in (given, reversed_order)]
    assert distances[0] == distances[1]


@pytest.mark.parametrize("change", [renamed, reshaped, retyped])
def test_other_inputs_of_the_same_width_are_refused(
    zoo: nk.Zoo, change: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
) -> None:
    other = task("other", change, seed=1)
    assert other.input_shape == zoo.record("reader").input_shape
    uses: list[Callable[[], Any]] = [
        lambda: zoo.solved("reader").inputs(other),
        lambda: zoo.transfer("reader", other, baselines=False, weights="head"),
        lambda: zoo.near(other, "logme"),
        lambda: nk.rank(other, ["zoo:reader"], sample=40, zoo=zoo),
    ]
    for use in uses:
        with pytest.raises(NearkinError, match=r"'other' has the inputs .* the network reads the inputs ids") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_plain_rows_are_no_named_inputs(zoo: nk.Zoo) -> None:
    rows = nk.Task.from_arrays("rows", torch.randn(40, 2 * LENGTH), torch.arange(40) % 2)
    with pytest.raises(MismatchError, match="one input without a name, the network reads the inputs ids"):
        zoo.transfer("reader", rows, baselines=False, weights="head")
    zoo.adopt("table", nn.Linear(2 * LENGTH, 2), task=rows)
    with pytest.raises(MismatchError, match="the network reads one input without a name"):
        zoo.transfer("table", task("named"), baselines=False, weights="head")


@pytest.mark.parametrize("weights", ["head", "norm", "lora?r=2", "all", "mix"])
def test_closed_form_transfer_of_any_subset_of_weights(zoo: nk.Zoo, weights: str) -> None:
    answer = zoo.transfer("reader", task("target", seed=1), shots=10, baselines=False, weights=weights)
    assert 0 <= answer.metric <= 1
    inputs, y = reviews(seed=1)
    values = nk.Task.from_arrays("values", inputs, y + 0.1 * torch.randn(len(y)))
    assert zoo.transfer("reader", values, baselines=False, weights=weights).metric <= 1


@pytest.mark.parametrize("network", ["mlp?hidden=4", "lenet", "recurrent"])
def test_networks_that_read_numbers_are_refused_in_one_line(zoo: nk.Zoo, network: str) -> None:
    with pytest.raises(NearkinError) as caught:
        zoo.add(task("target"), network, trials=1)
    assert "\n" not in str(caught.value)
    assert "target" not in zoo


def test_a_default_network_reads_no_named_inputs(zoo: nk.Zoo) -> None:
    with pytest.raises(MismatchError, match=r"has the inputs ids .*, a default network reads one tensor"):
        zoo.add(task("target"), trials=1)
    with pytest.raises(MismatchError, match="which Linear cannot read as one packed row; adopt a network"):
        nk.fit(nn.Linear(2 * LENGTH, 2), task("target"), nk.Recipe(steps=1))


def test_solve_without_a_network_for_the_inputs_says_what_to_do(tmp_path: Path) -> None:
    plan = Plan(budget=Budget(evaluations=1), join=False)
    words = "no network that can be used here reads them; adopt one"
    with nk.Zoo(tmp_path / "empty") as empty, pytest.raises(MismatchError, match=words):
        solve(task("target"), empty, plan=plan)


@pytest.mark.slow
def test_a_task_joins_a_zoo_whose_nearest_network_has_no_recipe(zoo: nk.Zoo) -> None:
    rows, y = torch.randn(80, 2), torch.arange(80) % 2
    zoo.adopt("table", nn.Linear(2, 2), task=nk.Task.from_arrays("rows", rows, y))
    target = nk.Task.from_arrays("target", rows + 1, y)
    solve(target, zoo, plan=Plan(only=("logistic",), budget=Budget(evaluations=1), epochs=1))
    assert zoo.record("target").network == "mlp"


@pytest.mark.slow
@pytest.mark.parametrize("only", [("encoder", "encoder-finetune"), ("finetune",), ("transfer",)])
def test_solve_and_predict(tmp_path: Path, only: tuple[str, ...]) -> None:
    """The network has the shape as preprocessing of its own, so that it is a contender with a new head too."""
    torch.manual_seed(0)
    target = nk.Task.from_arrays("target", *reviews(200, 1))
    with nk.Zoo(tmp_path / "zoo") as zoo:
        zoo.adopt("reader", Reader().eval(), task=nk.Task.from_arrays("own", *reviews(200)), preprocess={"shape": 10})
        solution = solve(target, zoo, plan=Plan(only=only, budget=Budget(evaluations=1), epochs=2))
        assert [result.name for result in solution.standings if result.validation is not None] == list(only)
        assert zoo.solved("target").network == zoo.record("reader").network
        assert zoo.fisher("target").trace() > 0
    new, _ = reviews(9, 2)
    predicted = solution.predict({"mask": new["mask"].numpy(), "ids": new["ids"]})
    packed = torch.cat([new["ids"], new["mask"]], 1)
    assert torch.equal(predicted.probabilities, solution.predict(packed).probabilities)
    for wrong, words in (
        ({"ids": new["ids"]}, "got the inputs ids, expected ids, mask"),
        ({**new, "ids": new["ids"][:, 1:]}, "the input ids has shape"),
        ({**new, "ids": new["ids"].float()}, "the input ids has real numbers"),
    ):
        with pytest.raises(MismatchError, match=words):
            solution.predict(wrong)
