"""Several models in sequence: updates on the sampled path, state, schedules, copies of shared weights, telemetry."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.core.state import State, prefixed
from nearkin.search import PlasticityOptions, StrengthSchedule, measure_forgetting
from nearkin.search.plasticity.telemetry import reduction

STRUCTURES = ("diagonal", "kronecker", "full", "marginal")


class Paths(nn.Module):
    """Three operations on shared inputs, of which a model uses some, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)
        self.used: tuple[int, ...] = (0,)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.stack([self.operations[i](x).tanh() for i in self.used]).sum(0))
        return outputs


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(40, 4, generator=rng), torch.randint(3, (40,), generator=rng)


def moved(net: nn.Module, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in net.parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=rng))


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_a_path_changes_importance_and_anchor_of_its_own_weights_only(
    data: tuple[Tensor, Tensor], structure: str
) -> None:
    torch.manual_seed(0)
    net = Paths()
    plasticity = nk.WeightPlasticity(net, PlasticityOptions.for_sequences(structure=structure))
    net.used = (0, 1)
    plasticity.anchor(net, *data)
    importance = {name: value.clone() for name, value in plasticity.importance.items()}
    anchors = {name: value.clone() for name, value in plasticity.anchors.items()}
    moved(net, 1)
    net.used = (1,)
    plasticity.anchor(net, *data)
    close = torch.equal if structure == "diagonal" else lambda a, b: torch.allclose(a, b, atol=1e-7)
    for name in importance:
        outside = name.startswith(("operations.0", "operations.2"))
        assert close(plasticity.importance[name], importance[name]) == outside, name
        assert torch.equal(plasticity.anchors[name], anchors[name]) == outside, name
    assert float(plasticity.importance["operations.2.weight"].abs().max()) < 1e-7


@given(st.lists(st.tuples(*[st.floats(0, 5)] * 3), min_size=1, max_size=6), st.floats(0, 1))
def test_updates_have_their_closed_forms(models: list[tuple[float, ...]], decay: float) -> None:
    """Loops over single numbers; importance 0 means that a model does not use the weight."""
    results: dict[str, Tensor] = {}
    for update in ("path", "average", "sum"):
        plasticity = nk.WeightPlasticity({"w": torch.zeros(3, dtype=torch.float64)}, update=update, decay=decay)
        for model in models:
            plasticity.remember({"w": torch.tensor(model, dtype=torch.float64)})
        results[update] = plasticity.importance["w"]
    for i in range(3):
        path = average = total = 0.0
        for model in models:
            path = (1 - decay) * path + model[i] if model[i] > 0 else path
            average, total = (1 - decay) * average + decay * model[i], total + model[i]
        for update, expected in (("path", path), ("average", average), ("sum", total)):
            assert float(results[update][i]) == pytest.approx(expected, rel=1e-9, abs=1e-12), update


def test_the_printed_average_remembers_little_more_than_one_model() -> None:
    """With η = 0.9 a model's importance is a hundredth after two others; with the decay of 0.1 it is 0.81."""
    for options, expected in (({"update": "average"}, 0.9 * 0.01), ({}, 0.81)):
        plasticity = nk.WeightPlasticity({"w": torch.zeros(1), "v": torch.zeros(1)}, **options)
        for own in (1.0, 1e-12, 1e-12):
            plasticity.remember({"w": torch.tensor([own])})
        assert float(plasticity.importance["w"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_state_is_restored_bit_for_bit(data: tuple[Tensor, Tensor], structure: str, tmp_path: Path) -> None:
    """Through `torch.save` and through a `State` file: the same steps give the same bits afterwards."""
    torch.manual_seed(0)
    net = Paths()
    net.used = (0, 1, 2)
    options = PlasticityOptions(structure=structure, flush_every=4, alpha=StrengthSchedule(warm_up=1))
    plasticity = nk.WeightPlasticity(net, options)
    plasticity.anchor(net, *data)
    assert plasticity.models == 0  # warm-up
    plasticity.end_epoch()
    for seed in range(1 if structure == "kronecker" else 3):
        plasticity.anchor(net, *data)
        moved(net, seed)
        plasticity.pull(0.1)
    saved, start = plasticity.state_dict(), {name: value.clone() for name, value in net.state_dict().items()}

    def later(plasticity: nk.WeightPlasticity) -> list[Tensor]:
        net.load_state_dict(start)
        penalty = plasticity.penalty().detach()
        if structure != "kronecker":
            plasticity.anchor(net, *data)
        moved(net, 9)
        plasticity.pull(0.05)
        plasticity.end_epoch()
        stored = plasticity.state_dict()
        return [
            penalty,
            *(value.clone() for value in net.state_dict().values()),
            *(stored[key] for key in sorted(stored)),
        ]

    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    State(prefixed("plasticity", saved), {"step": 1}).save(tmp_path / "state")
    expected = later(plasticity)
    for stored in (torch.load(file, weights_only=True), State.load(tmp_path / "state").section("plasticity")):
        other = nk.WeightPlasticity(net, options)
        other.load_state_dict(stored)
        assert all(torch.equal(value, saved[name]) for name, value in other.state_dict().items())
        assert all(torch.equal(a, b) for a, b in zip(later(other), expected, strict=True))


def test_a_state_of_other_parameters_is_refused(data: tuple[Tensor, Tensor]) -> None:
    net = Paths()
    plasticity = nk.WeightPlasticity(net)
    plasticity.anchor(net, *data)
    for other in (nn.Linear(4, 3), Paths().head, nn.ModuleDict({"head": nn.Linear(5, 3)})):
        with pytest.raises(MismatchError, match="the stored state does not fit the shared parameters"):
            nk.WeightPlasticity(other).load_state_dict(plasticity.state_dict())


def test_kronecker_factors_of_two_models_are_not_added(data: tuple[Tensor, Tensor]) -> None:
    net = Paths()
    plasticity = nk.WeightPlasticity(net, structure="kronecker")
    plasticity.anchor(net, *data)
    before = plasticity.state_dict()
    with pytest.raises(OptionError, match="Kronecker factors of two models have no sum"):
        plasticity.anchor(net, *data)
    assert all(torch.equal(value, before[name]) for name, value in plasticity.state_dict().items())
    plasticity.flush()
    plasticity.anchor(net, *data)


def test_a_second_model_with_copies_is_pulled_after_rebind(data: tuple[Tensor, Tensor]) -> None:
    a, b = Paths(), Paths()
    plasticity = nk.WeightPlasticity(a.head, alpha=1e12, importance="uniform")
    plasticity.anchor(a, *data)
    anchor = a.head.weight.detach().clone()
    plasticity.pull(0.1)
    plasticity.rebind(b.head)
    plasticity.pull(0.1)
    assert torch.allclose(b.head.weight, anchor)
    with pytest.raises(MismatchError, match="the second model has no parameter weight, bias, expected all 2 shared"):
        plasticity.rebind(b)
    wide = nn.Linear(5, 3)
    with pytest.raises(MismatchError, match=r"weight has shape \(3, 5\) in the second model, expected \(3, 4\)"):
        plasticity.rebind(wide)
    assert plasticity.shared["weight"] is b.head.weight


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        ([], "there are no shared parameters"),
        ({"w": torch.zeros(2, dtype=torch.long)}, "shared parameter 'w' is a torch.int64, expected floating-point"),
        ({"w": 3.0}, "shared parameter 'w' is a float"),
        ({"a|b": torch.zeros(1)}, "contains '|'; rename"),
        ([("a", torch.zeros(1)), ("a", torch.zeros(1))], "two shared parameters have the name 'a'"),
    ],
)
def test_bad_shared_parameters_are_refused_in_one_line(shared: Any, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        nk.WeightPlasticity(shared)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bad_importance_is_refused_and_nothing_is_lost() -> None:
    plasticity = nk.WeightPlasticity({"w": torch.zeros(2)})
    plasticity.remember({"w": torch.ones(2)})
    for importance, message in (
        ({"v": torch.ones(2)}, "there is no shared parameter v"),
        ({"w": torch.ones(3)}, "the importance of w has shape"),
        ({"w": torch.tensor([1.0, -1.0])}, "values >= 0"),
        ({"w": torch.tensor([1.0, float("inf")])}, "the importance of w is not finite"),
    ):
        with pytest.raises(MismatchError, match=message):
            plasticity.remember(importance)
    assert torch.equal(plasticity.importance["w"], torch.ones(2))
    assert plasticity.models == 1


def test_flush_warm_up_and_schedule(data: tuple[Tensor, Tensor]) -> None:
    net = Paths()
    schedule = StrengthSchedule(8.0, warm_up=1, decay="exponential", epochs=3, last=0.125)
    plasticity = nk.WeightPlasticity(net, alpha=schedule, flush_every=3)
    strengths, models = [], []
    for _ in range(6):
        plasticity.anchor(net, *data)
        strengths.append(plasticity.alpha)
        models.append(plasticity.models)
        plasticity.end_epoch()
    assert strengths == pytest.approx([0, 8, 4, 2, 1, 1])
    assert models == [0, 1, 2, 1, 2, 3]
    assert plasticity.importance == {}  # flushed after the sixth epoch


@given(
    st.sampled_from(("linear", "cosine", "exponential")), st.integers(1, 20), st.floats(0.01, 1), st.integers(0, 5)
)  # fmt: skip
def test_schedules_fall_from_alpha_to_the_last_share(decay: str, epochs: int, last: float, warm_up: int) -> None:
    schedule = StrengthSchedule(3.0, warm_up, decay, epochs, last)
    values = [schedule.at(epoch) for epoch in range(warm_up + epochs + 3)]
    assert values[:warm_up] == [0.0] * warm_up
    assert values[warm_up] == pytest.approx(3.0)
    assert values[-3:] == pytest.approx([3.0 * last] * 3)
    assert all(a >= b - 1e-12 for a, b in zip(values[warm_up:], values[warm_up + 1 :], strict=False))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": "cosine"}, "alpha falls (cosine) over 0 epochs"),
        ({"decay": "steep"}, "decay of alpha must be one of"),
        ({"warm_up": -1}, "warm_up is -1"),
        ({"last": 2.0}, "last is 2.0"),
    ],
)
def test_bad_schedules_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        StrengthSchedule(**options)
    assert message in str(refused.value)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12))
def test_forgetting_is_the_mean_the_best_five_and_the_maximum(pairs: list[tuple[float, float]]) -> None:
    found = measure_forgetting(*zip(*pairs, strict=True))
    changes = [last - first for first, last in pairs]
    best = [last - first for first, last in sorted(pairs, key=lambda pair: pair[0])[:5]]
    assert found.mean == pytest.approx(sum(changes) / len(changes))
    assert found.maximum == max(changes)
    assert found.architectures == len(pairs)
    if len({first for first, _ in pairs}) == len(pairs):
        assert found.best == pytest.approx(sum(best) / len(best))
    assert found.to_dict()["best"] == found.event(1).values["best"]


def test_bad_errors_are_refused() -> None:
    with pytest.raises(DataError, match="2 errors after training and 1 at the end"):
        measure_forgetting([0.1, 0.2], [0.1])
    with pytest.raises(DataError, match="NaN or infinite"):
        measure_forgetting([0.1], [float("nan")])
    assert reduction(0.5, -0.5) == 2.0
