"""Ranking of trained networks by features: order, standard errors, cache, memory, and what is refused."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.errors import MismatchError, NearkinError, OptionError
from nearkin.distance.baselines.logme import logme
from nearkin.distance.baselines.neighbours import knn_accuracy
from nearkin.distance.feature_scores import GROUPS, jackknife_error, sample_groups
from nearkin.store.blob_cache import BlobCache
from nearkin.zoo.model_ranking import rank


@pytest.fixture
def cache(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "features", by_content=False)


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[nk.Zoo]:
    with nk.Zoo(tmp_path / "zoo") as opened:
        yield opened


def separable(seed: int = 0) -> nk.Task:
    """A task whose classes are far apart in two of ten columns."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(200) % 4
    x = torch.randn(200, 10, generator=rng)
    x[:, 0] += 6 * (y % 2)
    x[:, 1] += 6 * (y // 2)
    return nk.Task.from_arrays("points", x, y)


class Columns(nn.Module):
    """Features are some of the input columns."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last = first, last
        self.head = nn.Linear(last - first, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, self.first : self.last])


def candidates() -> dict[str, nn.Module]:
    return {"good": Columns(0, 2), "half": Columns(1, 4), "none": Columns(4, 9)}


def test_good_features_come_first_whatever_the_order_of_candidates(cache: BlobCache) -> None:
    task, networks = separable(), candidates()
    ranking = rank(task, networks, sample=100, cache=cache)
    assert [one.name for one in ranking] == ["good", "half", "none"]
    again = rank(task, dict(reversed(networks.items())), sample=100, cache=cache)
    for one, other in zip(ranking, again, strict=True):
        assert (one.name, one.score, one.std, one.measures) == (other.name, other.score, other.std, other.measures)


def test_values_are_those_of_the_measures(cache: BlobCache) -> None:
    task = separable()
    batch = task.train.fixed_subset(100)
    for name, score in (("logme", logme(batch.x[:, :2], batch.y, 4)), ("knn", knn_accuracy(batch.x[:, :2], batch.y))):
        ranking = rank(task, {"good": Columns(0, 2)}, sample=100, measure=name, cache=cache)
        assert ranking.best.measures[name] == pytest.approx(score, rel=1e-5)
        assert ranking.best.score == ranking.best.measures[name]


def test_standard_error_of_a_mean_is_that_of_the_jackknife() -> None:
    values = torch.randn(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    groups = sample_groups(None, 50)
    means = [float(values[groups != group].mean()) for group in range(GROUPS)]
    blocks = torch.stack([values[groups == group].mean() for group in range(GROUPS)])
    assert jackknife_error(means) == pytest.approx(float(blocks.std()) / math.sqrt(GROUPS))


@pytest.mark.soak
def test_standard_errors_cover_the_spread_over_samples(cache: BlobCache) -> None:
    """Over 20 data sets, the mean standard error is within a factor of two of the true standard deviation."""
    ranks = [
        rank(separable(s), {"half": Columns(1, 4)}, sample=150, measure="knn", cache=cache).best for s in range(20)
    ]
    spread = float(torch.tensor([one.score for one in ranks]).std())
    error = sum(one.std for one in ranks) / len(ranks)
    assert spread / 2 < error < 2 * spread


def test_groups_hold_every_class() -> None:
    labels = torch.tensor([0] * 40 + [1] * 7)
    groups = sample_groups(labels, 47)
    counts = torch.stack([torch.bincount(labels[groups == group], minlength=2) for group in range(GROUPS)])
    assert int(counts.min()) >= 1
    assert int(counts.sum(1).max() - counts.sum(1).min()) <= 1


def test_features_are_computed_once(cache: BlobCache) -> None:
    task, network = separable(), Columns(0, 2)
    calls: list[int] = []
    network.register_forward_hook(lambda module, inputs, outputs: calls.append(len(inputs[0])))
    first = rank(task, {"a": network}, sample=100, cache=cache)
    assert not first.best.cached
    assert sum(calls) >= 100
    calls.clear()
    second = rank(task, {"a": network}, sample=100, cache=cache)
    assert second.best.cached
    assert sum(calls) <= 5
    assert second.best.measures == first.best.measures
    with torch.no_grad():
        network.head.weight.zero_()  # other weights, other content
    assert not rank(task, {"a": network}, sample=100, cache=cache).best.cached


def test_a_module_whose_code_changed_is_not_read_from_the_cache(cache: BlobCache) -> None:
    task, network = separable(), Columns(0, 2)
    rank(task, {"a": network}, sample=100, cache=cache)
    network.first, network.last = 4, 6
    changed = rank(task, {"a": network}, sample=100, measure="knn", cache=cache)
    assert not changed.best.cached
    assert changed.best.score < 0.6


def test_damaged_features_are_computed_again(cache: BlobCache, tmp_path: Path) -> None:
    task = separable()
    first = rank(task, candidates(), sample=100, cache=cache)
    for file in (tmp_path / "features").glob("*/*"):
        file.write_bytes(file.read_bytes()[:-7] + b"1234567")
    again = rank(task, candidates(), sample=100, cache=cache)
    assert [one.cached for one in again] == [False] * 3
    assert [one.measures for one in again] == [one.measures for one in first]


def test_the_module_of_the_caller_is_not_changed(cache: BlobCache) -> None:
    network = nn.Sequential(nn.Linear(10, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3)).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    rank(separable(), [network], sample=100, cache=cache)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.soak
def test_zoo_members_pixels_and_refusals(zoo: nk.Zoo, cache: BlobCache) -> None:
    zoo.add(nk.task("digits?classes=0,1,2,3,4&rest=drop&limit=300", name="low"), "lenet", trials=1)
    zoo.add(nk.task("digits?classes=5,6,7,8,9&rest=drop&limit=300", name="high"), "lenet", trials=1)
    zoo.add(separable(), "mlp?hidden=8", trials=1)
    target = nk.task("digits?limit=300", name="digits")
    ranking = rank(
        target, ["zoo:low", "high", "points", "pixels", nn.Sequential(nn.Flatten())], sample=200, zoo=zoo, cache=cache,
        fisher=True,
    )  # fmt: skip
    names = [one.name for one in ranking]
    assert sorted(names) == ["high", "low", "pixels"]
    assert set(ranking.refused) == {"points", "Sequential"}
    assert "no final linear layer" in ranking.refused["Sequential"]
    by_name = {one.name: one for one in ranking}
    assert by_name["pixels"].parameters == 0
    assert by_name["pixels"].num_features == 64
    assert by_name["low"].source_metric == zoo.record("low").metric
    assert by_name["low"].fisher is not None
    assert by_name["pixels"].fisher is None
    head, rows = ranking.table()
    assert {"parameters", "source accuracy", "random", "seconds", "MiB"} <= set(head)
    assert all(len(row) == len(head) for row in rows)
    assert str(ranking).splitlines()[0].split()[0] == "candidate"
    facts = ranking.to_dict()
    assert {"target", "candidates", "refused"} <= facts.keys()
    assert {"name", "score", "std", "seconds"} <= facts["candidates"][0].keys()


def test_values_as_targets(cache: BlobCache) -> None:
    x = torch.randn(120, 10, generator=torch.Generator().manual_seed(0))
    task = nk.Task.from_arrays("sum", x, x[:, :2].sum(1))
    ranking = rank(task, candidates(), sample=80, measure="logme", cache=cache)
    assert ranking.best.name == "good"


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ([], {}, "got no candidate"),
        (["nothing"], {}, "unknown candidate 'nothing'"),
        (["zoo:low"], {}, "but no zoo"),
        ([3], {}, "a candidate is a int"),
        (["pixels"], {"measure": "frechet"}, "by features and labels only"),
        (["pixels"], {"measure": "nothing"}, "nothing"),
        (["pixels"], {"question": "style"}, "unknown question"),
        (["pixels"], {"sample": 2}, "sample must be 10"),
        ([nn.Sequential(nn.Linear(3, 2))], {}, "no candidate can be ranked"),
    ],
)
def test_bad_input_gives_one_line(
    given: list[object], options: dict[str, object], words: str, cache: BlobCache
) -> None:
    with pytest.raises(NearkinError, match=words) as caught:
        rank(separable(), given, cache=cache, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_finite_are_refused(cache: BlobCache) -> None:
    broken = nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 2))
    nn.init.constant_(broken[0].weight, torch.inf)
    ranking = rank(separable(), {"broken": broken, "good": Columns(0, 2)}, sample=100, cache=cache)
    assert "not finite" in ranking.refused["broken"]
    assert ranking.best.name == "good"


def test_a_sample_without_a_class_is_refused(cache: BlobCache) -> None:
    y = torch.tensor([0] * 195 + [1] * 5)
    task = nk.Task.from_arrays("rare", torch.randn(200, 10), y, torch.randn(4, 10), torch.tensor([0, 1, 0, 1]))
    with pytest.raises((MismatchError, OptionError, NearkinError), match="use a larger sample"):
        rank(task, candidates(), sample=10, cache=cache)
