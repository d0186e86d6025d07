"""Ranking of trained networks by features: order, standard errors, cache, memory, and what is refused."""

import importlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nearkin as nk
from nearkin.core.errors import DataError, NearkinError, OptionError
from nearkin.distance.baselines.logme import logme
from nearkin.distance.baselines.neighbours import knn_accuracy
from nearkin.distance.feature_scores import GROUPS, jackknife_error, sample_groups
from nearkin.distance.ranking import Ranking
from nearkin.store.blob_cache import BlobCache
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Pixels, subset_index
from nearkin.zoo.model_file import saved
from nearkin.zoo.model_ranking import rank
from nearkin.zoo.preprocess import Preprocess, input_fields
from nearkin.zoo.ranking_samples import inputs_digest, ranking_sample


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
    batch = ranking_sample(task, 100).train.all()
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
        (["weights.safetensors"], {}, "unknown candidate"),
        ([3], {}, "a candidate is a int"),
        (["pixels"], {"measure": "frechet"}, "by features and labels only"),
        (["pixels"], {"measure": "nothing"}, "nothing"),
        (["pixels"], {"question": "style"}, "unknown question"),
        (["pixels"], {"sample": 2}, "sample must be a whole number, 10 or more, got 2"),
        (None, {}, "the candidates are a NoneType"),
        ({1: "pixels"}, {}, "the name of a candidate is 1"),
        (["pixels"], {"sample": 100.5}, "sample must be a whole number, 10 or more, got 100.5"),
        (["pixels"], {"sample": "x"}, "sample must be a whole number, 10 or more, got 'x'"),
        ([nn.Sequential(nn.Linear(3, 2))], {}, "no candidate can be ranked"),
    ],
)
def test_bad_input_gives_one_line(given: object, options: dict[str, object], words: str, cache: BlobCache) -> None:
    with pytest.raises(NearkinError, match=words) as caught:
        rank(separable(), given, cache=cache, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_finite_are_refused(cache: BlobCache) -> None:
    broken = nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 2))
    nn.init.constant_(broken[0].weight, torch.inf)
    ranking = rank(separable(), {"broken": broken, "good": Columns(0, 2)}, sample=100, cache=cache)
    assert "not finite" in ranking.refused["broken"]
    assert ranking.best.name == "good"


def test_a_class_that_is_nearly_missing_is_in_the_sample(cache: BlobCache) -> None:
    y = torch.tensor([0] * 195 + [1] * 5)
    x = torch.randn(200, 10, generator=torch.Generator().manual_seed(0))
    task = nk.Task.from_arrays("rare", x, y, x[:4], torch.tensor([0, 1, 0, 1]))
    assert torch.bincount(ranking_sample(task, 10).train.labels()).tolist() == [8, 2]
    assert len(rank(task, candidates(), sample=10, cache=cache)) == 3


@pytest.mark.parametrize(("sample", "present"), [(250, 100), (50, 25)])
def test_many_classes_are_ranked_by_those_in_the_sample(sample: int, present: int, cache: BlobCache) -> None:
    """With fewer than two samples for each class there are pairs of some classes, without which all scores are 0."""
    y = torch.arange(1000) % 100
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 10, generator=rng)
    x[:, :2] = 9 * torch.randn(100, 2, generator=rng)[y] + 0.1 * x[:, :2]
    task = nk.Task.from_arrays("many", x, y)
    small = ranking_sample(task, sample)
    counts = torch.bincount(small.train.labels())
    assert len(counts) == len(small.classes) == present
    assert int(counts.min()) >= 2
    assert torch.equal(small.train.all().x, ranking_sample(task, sample).train.all().x)
    names = [small.classes[label] for label in small.train.labels().tolist()]
    rows = [int((task.train.all().x == x).all(1).nonzero()[0, 0]) for x in small.train.all().x]
    assert names == [task.classes[label] for label in task.train.labels()[rows].tolist()]
    ranking = rank(task, candidates(), sample=sample, cache=cache)
    assert ranking.best.name == "good"
    assert ranking.samples == sample


def test_classes_of_single_samples_have_no_scores(cache: BlobCache) -> None:
    y = torch.tensor([0] * 18 + [1, 2])
    task = nk.Task.from_arrays("single", torch.randn(20, 10), y, torch.randn(2, 10), torch.tensor([0, 1]))
    with pytest.raises(DataError, match="'single' has 1 classes of two training samples or more, expected two or more"):
        rank(task, candidates(), cache=cache)


def test_features_are_stored_by_the_inputs_of_the_sample(cache: BlobCache) -> None:
    """One sample that the fingerprint of the task does not read is changed; then only test samples are."""
    x = torch.randn(400, 10, generator=torch.Generator().manual_seed(0))
    y = torch.arange(400) % 2

    def named(values: Tensor, test: Tensor) -> nk.Task:
        return nk.Task.from_arrays("points", values, y, test, torch.tensor([0, 1]), standardise=False)

    unseen = [i for i in range(2, 400) if i not in subset_index(400, 256).tolist()]
    changed = x.clone()
    changed[unseen[0]] += 50
    task, other = named(x, x[:2]), named(changed, x[:2])
    assert task.fingerprint() == other.fingerprint()
    network = {"net": Columns(0, 2)}
    first = rank(task, network, sample=400, cache=cache)
    second = rank(other, network, sample=400, cache=cache)
    assert not second.best.cached
    assert second.best.measures != first.best.measures
    third = rank(named(x, x[7:9]), network, sample=400, cache=cache)
    assert third.best.cached
    assert third.best.measures == first.best.measures


def test_images_in_memory_are_hashed_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(256, (60, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 2
    tasks = [ranking_sample(nk.Task.from_arrays("images", x, labels, standardise=False), 30) for x in (images, images)]
    changed = images.clone()
    changed[:, 0, 0, 0] ^= 1
    tasks.append(ranking_sample(nk.Task.from_arrays("images", changed, labels, standardise=False), 30))

    def refuse(self: Pixels, index: Tensor) -> Tensor:
        raise AssertionError("images were converted")

    monkeypatch.setattr(Pixels, "take", refuse)
    first, second, third = map(inputs_digest, tasks)
    assert first == second != third


def test_the_scaling_of_the_task_is_part_of_the_key(cache: BlobCache) -> None:
    task, network = separable(), {"net": Columns(0, 2)}
    plain = replace(task, train=replace(task.train, scaling=type(task.train.scaling)()))
    assert inputs_digest(task) == inputs_digest(plain)
    first = rank(task, network, sample=100, cache=cache, measure="logme")
    second = rank(plain, network, sample=100, cache=cache, measure="logme")
    assert not second.best.cached
    assert second.best.measures != first.best.measures


def test_samples_are_converted_once(cache: BlobCache, monkeypatch: pytest.MonkeyPatch) -> None:
    task, converted, take = separable(), list[int](), Examples.take

    def counted(self: Examples, index: Tensor, *options: Any) -> Any:
        converted.append(len(index))
        return take(self, index, *options)

    monkeypatch.setattr(Examples, "take", counted)
    rank(task, {"a": Columns(0, 2)}, sample=100, cache=cache)
    assert converted == [100]
    converted.clear()
    rank(task, {"a": Columns(0, 2).requires_grad_(False)}, sample=100, cache=cache)  # other weights
    assert converted == [100]
    converted.clear()
    network = Columns(0, 2)
    for expected in ([100], [2]):
        rank(task, {"a": network}, sample=100, cache=cache)
        assert converted == expected
        converted.clear()


class Failing(Columns):
    """A network with an error of its own in the forward pass of several samples."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:
            raise AssertionError("one sample\nat a time")
        return super().forward(x)


class TestRefusals:
    """A candidate that cannot be used does not end the ranking; an unknown name does, before anything is read."""

    def test_an_error_of_a_module_is_one_line(self, cache: BlobCache) -> None:
        ranking = rank(separable(), {"failing": Failing(0, 2), "good": Columns(0, 2)}, sample=50, cache=cache)
        assert [one.name for one in ranking] == ["good"]
        assert ranking.refused == {
            "failing": "Failing fails on 50 inputs of shape (10,) (AssertionError: one sample at a time); use a "
            "network that reads them"
        }

    @pytest.mark.parametrize(
        "network", [nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)), nn.Sequential(nn.Linear(10, 2, device="meta"))]
    )
    def test_weights_without_values_are_left_out(self, network: nn.Module, cache: BlobCache) -> None:
        ranking = rank(separable(), {"empty": network, "good": Columns(0, 2)}, sample=50, cache=cache)
        assert "its weights 0.bias have no values yet" in ranking.refused["empty"]
        assert [one.name for one in ranking] == ["good"]

    def test_a_damaged_file_and_a_lost_blob_are_left_out(self, zoo: nk.Zoo, cache: BlobCache, tmp_path: Path) -> None:
        task = separable()
        zoo.adopt("kept", nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 4)), task=task)
        record = zoo.adopt("lost", nn.Sequential(nn.Linear(10, 6), nn.Linear(6, 4)), task=task)
        weights = zoo.catalogue.artifacts(record.name, kind="weights")[0]
        next(zoo.path.rglob(f"{weights.digest}.*")).unlink()
        damaged = tmp_path / "damaged.safetensors"
        damaged.write_bytes(b"no tensors")
        given = [str(damaged), "zoo:lost", "torch.nn:Nothing", "zoo:kept", Columns(0, 2)]
        ranking = rank(task, given, sample=50, zoo=zoo, cache=cache)
        assert {one.name for one in ranking} == {"kept", "Columns"}
        assert set(ranking.refused) == {"damaged", "lost", "Nothing"}
        assert not any("\n" in reason for reason in ranking.refused.values())

    @pytest.mark.parametrize("name", ["zoo:keptt", "keptt"])
    def test_an_unknown_name_is_told_at_once(self, name: str, zoo: nk.Zoo, cache: BlobCache) -> None:
        zoo.adopt("kept", nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 4)), task=separable())
        network, calls = Columns(0, 2), list[int]()
        network.register_forward_hook(lambda module, inputs, outputs: calls.append(1))
        with pytest.raises(OptionError, match=f"unknown candidate '{name}'.*the zoo has kept"):
            rank(separable(), [network, name], sample=50, zoo=zoo, cache=cache)
        assert not calls


def layers(seed: int) -> nn.Module:
    """Networks of one architecture for images of digits."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 5))


def test_networks_of_a_zoo_pixels_fisher_and_refusals_without_training(
    zoo: nk.Zoo, cache: BlobCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Fisher column is by the names in the zoo, which are not those in the table."""
    for seed, name in enumerate(("low", "high")):
        digits = "0,1,2,3,4" if name == "low" else "5,6,7,8,9"
        zoo.adopt(name, layers(seed), task=nk.task(f"digits?classes={digits}&rest=drop&limit=100", name=name))
    zoo.adopt("points", nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 4)), task=separable())
    compared: list[str] = []

    def rank_sources(zoo: nk.Zoo, task: nk.Task, how: object, records: Sequence[Any]) -> Iterator[Any]:
        yield from ()
        compared.extend(record.name for record in records)
        return Ranking.of("digits", "frechet", {name: [{"low": 0.25, "high": 0.75}[name]] for name in compared})

    monkeypatch.setattr("nearkin.zoo.near.rank_sources", rank_sources)
    target = nk.task("digits?limit=200", name="digits")
    given = {
        "high": "zoo:low", "low": "high", "again": "zoo:low", "points": "points", "pixels": "pixels",
        "headless": nn.Sequential(nn.Flatten()),
    }  # fmt: skip
    ranking = rank(target, given, sample=100, zoo=zoo, cache=cache, fisher=True)
    assert sorted(compared) == ["high", "low"]
    assert {one.name: one.fisher for one in ranking} == {"high": 0.25, "again": 0.25, "low": 0.75, "pixels": None}
    assert set(ranking.refused) == {"points", "headless"}
    assert "no final linear layer" in ranking.refused["headless"]
    by_name = {one.name: one for one in ranking}
    assert by_name["pixels"].parameters == 0
    assert by_name["pixels"].num_features == 64
    assert by_name["high"].source_metric == zoo.record("low").metric
    head, rows = ranking.table()
    assert {"fisher", "parameters", "source accuracy", "random", "seconds", "MiB"} <= set(head)
    assert all(len(row) == len(head) for row in rows)
    assert str(ranking).splitlines()[0].split()[0] == "candidate"
    assert ranking.to_dict()["candidates"][0].keys() >= {"name", "score", "std", "seconds", "fisher"}


def test_equal_names_are_numbered(zoo: nk.Zoo, cache: BlobCache) -> None:
    zoo.adopt("Columns", nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 4)), task=separable())
    given: list[Any] = [Columns(0, 2), "zoo:Columns", Columns(1, 4)]
    rankings = [rank(separable(), order, sample=50, zoo=zoo, cache=cache) for order in (given, given[::-1])]
    first, second = ({one.name: (one.num_features, one.measures) for one in ranking} for ranking in rankings)
    assert first == second, "whatever the order"
    assert first.keys() == {"Columns", "Columns (2)", "Columns (3)"}
    assert first["Columns"][0] == 5, "the name of a zoo's network is kept"


def test_one_candidate_is_a_list_of_one(cache: BlobCache) -> None:
    task, network = separable(), Columns(0, 2)
    assert [one.name for one in rank(task, network, sample=50, cache=cache)] == ["Columns"]
    assert [one.name for one in rank(task, "pixels", sample=50, cache=cache)] == ["pixels"]


def test_texts_have_no_raw_features(cache: BlobCache) -> None:
    task = nk.Task.from_texts("mood", ["good", "bad"] * 10, ["+", "-"] * 10)
    with pytest.raises(NearkinError, match="raw inputs of 'mood' are texts, which have no features; leave pixels out"):
        rank(task, "pixels", sample=10, cache=cache)


def test_features_of_code_that_changed_are_not_read(
    zoo: nk.Zoo, cache: BlobCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("nearkin.nets.trusted_code._process", set())
    code = tmp_path / "mine.py"
    source = (
        "from torch import nn\n\n\nclass Mine(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.head = nn.Linear(2, 4)\n\n    def forward(self, x):\n        return self.head(x[:, :2])\n"
    )
    code.write_text(source)
    weight = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    zoo.adopt("mine", f"{code}:Mine", weights={"head.weight": weight, "head.bias": torch.zeros(4)}, task=separable())
    monkeypatch.setattr("nearkin.nets.trusted_code._process", set())
    first = rank(separable(), ["mine", "pixels"], sample=50, zoo=zoo, cache=cache)
    assert {one.name for one in first} == {"mine", "pixels"}
    code.write_text(source.replace("x[:, :2]", "x[:, 4:6]"))
    changed = rank(separable(), ["mine", "pixels"], sample=50, zoo=zoo, cache=cache)
    assert "has changed since you used it" in changed.refused["mine"]
    nk.trust(str(code))
    again = {one.name: one for one in rank(separable(), ["mine", "pixels"], sample=50, zoo=zoo, cache=cache)}
    assert not again["mine"].cached
    assert again["mine"].measures != {one.name: one for one in first}["mine"].measures


class TestFisherColumn:
    """Which candidates are compared, and what is said of it."""

    def said(self, zoo: nk.Zoo | None, given: Any, cache: BlobCache, data: str) -> tuple[Any, list[str]]:
        texts: list[str] = []
        with nk.listening(lambda event: texts.append(getattr(event, "text", ""))):
            ranking = rank(nk.task(data), given, sample=50, zoo=zoo, cache=cache, fisher=True)
        return ranking, list(filter(None, texts))

    def test_an_added_network_of_any_seed_and_its_adopted_copy(self, zoo: nk.Zoo, cache: BlobCache) -> None:
        task = nk.task("digits?limit=100", name="added")
        zoo.add(task, "mlp?hidden=4", trials=1, recipe=nk.Recipe(steps=3), seed=3)
        zoo.adopt("adopted", "mlp?hidden=4", weights=zoo.solved("added").model(), task=task)
        ranking, texts = self.said(zoo, ["added", "adopted", "pixels"], cache, "digits?parity&limit=100")
        distances = {one.name: one.fisher for one in ranking}
        assert distances["added"] == distances["adopted"] is not None
        assert distances["pixels"] is None
        assert "Fisher distances in the form model/sorted" in texts
        zoo.remove("adopted")
        ranking, texts = self.said(zoo, ["added", "pixels"], cache, "digits?parity&limit=100")
        assert any("no Fisher distances: they need two candidates" in text for text in texts)

    def test_without_a_zoo_it_is_said(self, cache: BlobCache) -> None:
        _, texts = self.said(None, "pixels", cache, "digits?limit=100")
        assert any("no Fisher distances: they need two candidates" in text for text in texts)


COUNTED = """
import weakref
from torch import nn

alive, most = weakref.WeakSet(), []

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        alive.add(self)
        self.body, self.head = nn.Linear(10, width), nn.Linear(width, 4)

    def forward(self, x):
        most.append(len(alive))
        return self.head(self.body(x).relu())
"""


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with a network that counts how many of its kind are alive."""
    (tmp_path / "counted_networks.py").write_text(COUNTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # where trusted code is remembered
    yield importlib.import_module("counted_networks")
    del sys.modules["counted_networks"]


def test_one_network_is_in_memory_at_a_time_in_any_order(
    counted: ModuleType, zoo: nk.Zoo, cache: BlobCache, tmp_path: Path
) -> None:
    """Network strings, files and a zoo, besides a module of the caller; each order has the same values."""
    task = separable()
    given: dict[str, Any] = {"module": Columns(0, 2), "pixels": "pixels"}
    for width in (3, 4):
        code = f"counted_networks:Net?width={width}"
        zoo.adopt(f"stored {width}", code, weights=counted.Net(width), task=task)
        saved(zoo.solved(f"stored {width}"), tmp_path / f"file {width}.safetensors")
        given |= {
            f"string {width}": code,
            f"zoo {width}": f"zoo:stored {width}",
            f"file {width}": str(tmp_path / f"file {width}.safetensors"),
        }
    counted.most.clear()
    first = rank(task, given, sample=50, zoo=zoo, cache=cache)
    assert len(first) == len(given)
    assert set(counted.most) == {1}
    assert not counted.alive
    turned = rank(task, dict(reversed(given.items())), sample=50, zoo=zoo, cache=BlobCache(tmp_path / "other"))
    assert set(counted.most) == {1}
    for one, other in zip(first, turned, strict=True):
        facts = {**one.to_dict(), "seconds": 0, "mebibytes": 0}
        assert facts == {**other.to_dict(), "seconds": 0, "mebibytes": 0}


class Masked(nn.Module):
    """A network of tokens whose features are sums over the tokens of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 6), nn.Linear(6, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head((self.embedding(input_ids) * attention_mask[..., None]).sum(1))


def test_inputs_of_a_tokenizer_have_names() -> None:
    task = nk.Task.from_texts("mood", ["good", "bad"] * 10, ["+", "-"] * 10)
    inputs = Preprocess(tokenizer="{}", length=5, types=True).inputs(task)
    assert inputs is not None
    fields = [(field.name, field.shape) for field in input_fields(inputs, task)]
    assert fields == [("input_ids", (5,)), ("attention_mask", (5,)), ("token_type_ids", (5,))]


def test_a_module_of_tokens_is_called_by_names(text_folder: Path, cache: BlobCache) -> None:
    task = nk.Task.from_texts("mood", ["good a", "bad b b", "good", "bad"] * 10, ["+", "-"] * 20)
    network = Masked()
    preprocess = {"tokenizer": str(text_folder / "tokenizer.json"), "length": 4}
    ranking = rank(task, [network], sample=20, measure="logme", preprocess=preprocess, cache=cache)
    inputs = Preprocess.of(preprocess).inputs(task)
    assert inputs is not None
    x, y = inputs(ranking_sample(task, 20)).train.all()
    ids, mask = x.split(4, 1)
    features = (network.embedding(ids) * mask[..., None]).sum(1)
    assert 0 < int(mask.sum()) < mask.numel()
    assert ranking.best.measures["logme"] == pytest.approx(logme(features, y, 2), rel=1e-5)
