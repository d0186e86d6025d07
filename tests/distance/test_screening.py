"""Screening: sketches against dense oracles, search against brute force, races against measuring all."""

import math
import sys
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from nearkin.core.errors import MismatchError, MissingExtraError, OptionError
from nearkin.core.events import Progress, finish
from nearkin.core.state import State
from nearkin.distance.fisher_based.frechet import frechet
from nearkin.distance.screening import RUNGS, Embedding, Index, Probe, Rung, num_passes, raced, screened
from nearkin.fisher.values import FisherDiagonal
from nearkin.tasks.task import Task


def seeded(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def fisher(values: Mapping[str, Tensor]) -> FisherDiagonal:
    return FisherDiagonal(dict(values), "observed", 1)


def heavy(size: int, seed: int) -> FisherDiagonal:
    """A Fisher diagonal as networks have them: many weights that matter little, few that matter much."""
    return fisher({"w": torch.randn(size, generator=seeded(seed)).mul(2).exp()})


def dense(embedding: Embedding, size: int) -> Tensor:
    """The sketch as a matrix `[D, P]`: what it makes of every weight alone."""
    return torch.stack([embedding.point([fisher({"w": row})]) for row in torch.eye(size)], 1)


def unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=-1)


def points(count: int, dims: int, seed: int = 0) -> Tensor:
    return unit(torch.randn(count, dims, generator=seeded(seed)))


def index_of(rows: Tensor) -> Index:
    return Index(Embedding(dims=rows.shape[1], spread=1)).add({str(i): row for i, row in enumerate(rows)})


# The sketch


@pytest.mark.parametrize("spread", [1, 2, 8])
def test_each_weight_goes_with_a_sign_to_one_place_in_each_group(spread: int) -> None:
    matrix = dense(Embedding(dims=32, spread=spread), 50)
    groups = matrix.reshape(spread, 32 // spread, 50)
    assert bool(((groups != 0).sum(1) == 1).all())
    assert torch.allclose(matrix[matrix != 0].abs(), torch.tensor(spread**-0.5))
    assert {-1, 1} == set(matrix[matrix != 0].sign().tolist())


def test_the_point_is_the_sketched_root_at_length_one() -> None:
    embedding, one = Embedding(dims=64), heavy(300, 0)
    wanted = dense(embedding, 300).double() @ one.values["w"].double().sqrt()
    assert torch.allclose(embedding.point([one]).double(), unit(wanted), atol=1e-6)


def test_squared_distances_are_right_in_the_mean_and_deviate_as_johnson_lindenstrauss_allow() -> None:
    gap, bound = torch.randn(40, generator=seeded(0)), math.sqrt(2 / 16)
    ratios = torch.stack([(dense(Embedding(dims=16, seed=seed), 40) @ gap).square().sum() for seed in range(40)])
    ratios = ratios / gap.square().sum()
    assert abs(float(ratios.mean()) - 1) < 4 * bound / math.sqrt(len(ratios))
    assert float(ratios.std()) < 1.5 * bound


def test_distances_of_a_large_network_are_kept_to_a_few_per_cent() -> None:
    fishers = [heavy(300_000, seed) for seed in range(3)]
    found = [Embedding().point([one]) for one in fishers]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        away = float((found[a] - found[b]).norm() / math.sqrt(2))
        assert away == pytest.approx(frechet(fishers[a], fishers[b]), rel=0.06)


def test_heads_of_different_widths_meet_as_if_padded() -> None:
    body, narrow = torch.rand(5, 4, generator=seeded(0)), torch.rand(2, 5, generator=seeded(1))
    wide = torch.cat([narrow, torch.zeros(1000, 5)])
    ends = (fisher({"body": body, "head": narrow}), fisher({"head": wide, "body": body}))
    first, second = (Embedding().point([one]) for one in ends)
    assert torch.allclose(first, second, atol=1e-7)


@given(st.floats(1e-6, 1e6), st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_scale_does_not_matter(scale: float, seed: int) -> None:
    one = heavy(50, seed)
    more = fisher({"w": one.values["w"] * scale})
    assert torch.allclose(Embedding(dims=128).point([one]), Embedding(dims=128).point([more]), atol=1e-6)


def test_squared_distance_is_the_mean_over_trials_that_are_compared_one_by_one() -> None:
    a, b = ([heavy(500, seed) for seed in seeds] for seeds in ((0, 1), (2, 3)))
    p, q = Embedding().point(a), Embedding().point(b)
    mean = (frechet(a[0], b[0]) ** 2 + frechet(a[1], b[1]) ** 2) / 2
    assert float((p - q).square().sum() / 2) == pytest.approx(mean, rel=0.15)
    assert float((p - Embedding().point(a[::-1])).square().sum() / 2) == pytest.approx(frechet(*a) ** 2, rel=0.15)


def test_names_and_seeds_place_weights() -> None:
    value = torch.rand(30, generator=seeded(0))
    base = Embedding().point([fisher({"w": value})])
    assert torch.equal(base, Embedding().point([fisher({"w": value})]))
    for other in (Embedding(seed=1).point([fisher({"w": value})]), Embedding().point([fisher({"v": value})])):
        assert abs(float(base @ other)) < 0.5


def test_bad_embeddings_and_informations() -> None:
    with pytest.raises(OptionError, match="1 to 2048 dimensions, got 4096"):
        Embedding(dims=4096)
    with pytest.raises(OptionError, match="10 dimensions cannot be divided into 4 equal groups"):
        Embedding(dims=10)
    with pytest.raises(OptionError, match="got none"):
        Embedding().point([])
    with pytest.raises(MismatchError, match="zero everywhere"):
        Embedding().point([fisher({"w": torch.zeros(3)})])
    for bad in (math.nan, math.inf):
        with pytest.raises(MismatchError):
            Embedding().point([fisher({"w": torch.tensor([1.0, bad])})])


# The index


@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 5), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_a_query_gives_what_sorting_all_distances_gives(count: int, top: int, left_out: int, seed: int) -> None:
    rows = points(count + 1, 8, seed)
    target, rows = rows[0], rows[1:]
    gone = {str(i) for i in range(left_out)}
    away = (rows.double() - target.double()).norm(dim=1) / math.sqrt(2)
    wanted = [(str(i), float(away[i])) for i in away.argsort().tolist() if str(i) not in gone][:top]
    found = index_of(rows).query(target, top, leave_out=gone)
    assert [name for name, _ in found] == [name for name, _ in wanted]
    assert [value for _, value in found] == pytest.approx([value for _, value in wanted], abs=1e-9)


def test_tasks_that_single_precision_cannot_tell_apart_are_still_in_order() -> None:
    target = points(1, 64)[0]
    steps = torch.arange(7) * 2e-5
    rows = unit(target + steps[:, None] * points(1, 64, 1))
    found = index_of(rows.flip(0)).query(target, 7)
    assert [name for name, _ in found] == ["6", "5", "4", "3", "2", "1", "0"]
    assert found[0][1] < 1e-7


def test_a_task_is_at_distance_zero_from_itself() -> None:
    rows = points(20, 16)
    assert index_of(rows).query(rows[7], 1) == [("7", 0.0)]


def test_adding_leaves_the_index_as_it_was_and_moves_known_names() -> None:
    rows = points(5, 8)
    first = Index(Embedding(dims=8)).add({"a": rows[0], "b": rows[1]})
    second = first.add({"c": rows[2], "a": rows[3]})
    assert (first.names, second.names) == (("a", "b"), ("b", "c", "a"))
    assert second.query(rows[3], 1) == [("a", 0.0)]
    assert first.query(rows[0], 1) == [("a", 0.0)]
    assert first.add({}) is first
    at_once, one_by_one = index_of(rows), Index(Embedding(dims=8, spread=1))
    for i, row in enumerate(rows):
        one_by_one = one_by_one.add({str(i): row})
    assert at_once.names == one_by_one.names
    assert torch.equal(at_once.points, one_by_one.points)


def test_an_empty_index_finds_nothing() -> None:
    assert Index(Embedding(dims=8)).query(points(1, 8)[0]) == []
    assert screened(Index(Embedding(dims=8)), points(1, 8)[0], lambda name: 0.0) == []


def test_an_index_survives_its_bytes() -> None:
    index = Index(Embedding(network="lenet", dims=8, seed=3)).add(dict(zip("äbc", points(3, 8), strict=True)))
    again = Index.from_state(State.from_bytes(index.to_state().to_bytes()))
    assert (again.embedding, again.names) == (index.embedding, index.names)
    assert torch.equal(again.points, index.points)
    nothing = Index.from_state(State.from_bytes(Index(Embedding(dims=8)).to_state().to_bytes()))
    assert len(nothing) == 0
    assert nothing.embedding.dims == 8


def test_points_of_another_kind_are_refused() -> None:
    index = index_of(points(3, 8))
    with pytest.raises(MismatchError, match=r"x has a point of shape \(16,\) and length 1, expected \(8,\)"):
        index.add({"x": points(1, 16)[0]})
    with pytest.raises(MismatchError, match=r"the query has a point of shape \(8,\) and length 2"):
        index.query(2 * points(1, 8)[0])
    with pytest.raises(MismatchError, match="length nan"):
        index.query(torch.full((8,), math.nan))
    with pytest.raises(MismatchError, match=r"expected \(2, 8\)"):
        Index(Embedding(dims=8), ("a", "b"), points(3, 8))
    with pytest.raises(MismatchError, match="have the same name"):
        Index(Embedding(dims=8), ("a", "a"), points(2, 8))
    with pytest.raises(OptionError, match="top must be 1 or more, got 0"):
        index.query(points(1, 8)[0], 0)


def test_a_large_search_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    index = index_of(points(30, 8))
    with pytest.raises(MissingExtraError, match=r"search among 30 tasks needs faiss: pip install 'nearkin\[index\]'"):
        index.query(index.points[0], exact=False)
    assert index.query(index.points[0], 1) == [("0", 0.0)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_large_search_finds_what_the_exact_one_finds_among_kin() -> None:
    pytest.importorskip("faiss", reason="the extra index is not installed")
    centres = points(100, 16, 1).repeat_interleave(40, 0)
    index = index_of(unit(centres + 0.1 * points(4000, 16, 2)))
    asked = index.points[::100]
    near = [index.query(point, 5, exact=False) for point in asked]
    exact = [index.query(point, 5) for point in asked]
    assert sum(a == b for a, b in zip(near, exact, strict=True)) >= 0.9 * len(asked)


# Races


def test_screening_measures_the_best_m_and_no_others() -> None:
    rows = points(40, 8)
    index, asked = index_of(rows), []

    def measure(name: str) -> float:
        asked.append(name)
        return -float(name)

    found = screened(index, rows[0], measure, 6, leave_out=["0"])
    assert asked == [name for name, _ in index.query(rows[0], 6, leave_out=["0"])]
    assert found == sorted(((name, -float(name)) for name in asked), key=lambda pair: pair[1])


@given(st.integers(2, 60), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_a_race_of_all_that_is_measured_well_finds_the_nearest(count: int, seed: int) -> None:
    rows = points(count, 8, seed)
    truth = torch.rand(count, generator=seeded(seed)).tolist()
    rungs = (Rung(0.1, count), Rung(0.5, min(count, 3)), Rung(1.0, 2))
    found = raced(index_of(rows), rows[0], lambda name, share: truth[int(name)] + 1 - share, rungs)
    assert found == sorted(((str(i), truth[i]) for i in range(count)), key=lambda pair: pair[1])[:2]


def test_a_race_costs_what_it_says_and_tells_how_far_it_is() -> None:
    rows, spent, seen = points(200, 8), [], []

    def measure(name: str, share: float) -> float:
        spent.append(share)
        return float(name)

    found = finish(raced.work(index_of(rows), rows[0], measure), seen.append)
    assert len(found) == RUNGS[-1].contenders
    assert sum(spent) == pytest.approx(num_passes(RUNGS, 200))
    assert num_passes(RUNGS, 200) <= 0.05 * 200
    assert seen[-1] == Progress("screening", len(spent), len(spent))


def test_what_cannot_be_measured_comes_last() -> None:
    values = {"0": math.nan, "1": 0.5, "2": 0.1}
    found = screened(index_of(points(3, 8)), points(1, 8, 9)[0], values.__getitem__, 3)
    assert [name for name, _ in found] == ["2", "1", "0"]


def test_races_that_go_backwards_are_refused() -> None:
    index, point = index_of(points(3, 8)), points(1, 8)[0]
    for rungs in ((Rung(1.0, 5), Rung(0.5, 2)), (Rung(0.1, 2), Rung(1.0, 5))):
        with pytest.raises(OptionError, match="fewer contenders on more samples"):
            raced(index, point, lambda name, share: 0.0, rungs)
    with pytest.raises(OptionError, match="one rung or more"):
        raced(index, point, lambda name, share: 0.0, ())
    with pytest.raises(OptionError, match="above 0 and at most 1, got 0"):
        Rung(0.0, 1)
    with pytest.raises(OptionError, match="contenders must be 1 or more, got 0"):
        Rung(1.0, 0)


# Probes

IMAGES = torch.rand(60, 1, 6, 6, generator=seeded(5))


def bright(part: Tensor, name: str = "toy") -> Task:
    """Whether a part of the images is brighter than usual."""
    light = part.flatten(1).mean(1)
    return Task.from_arrays(name, IMAGES, (light > light.median()).long())


PROBE = Probe(network="mlp?hidden=16", samples=12)


def probed(task: Task, probe: Probe = PROBE) -> Tensor:
    return Embedding(network=probe.network).point([probe.fisher(task)])


def test_tasks_on_the_same_images_differ_by_their_labels() -> None:
    upper, lower = (bright(part) for part in (IMAGES[:, :, :3], IMAGES[:, :, 3:]))
    assert torch.equal(probed(upper), probed(bright(IMAGES[:, :, :3], "another name")))
    for steps in (0, 5):
        probe = Probe(network="mlp?hidden=16", steps=steps)
        assert float((probed(upper, probe) - probed(lower, probe)).norm()) > 0.1


def test_images_of_another_size_are_brought_to_the_probe() -> None:
    large = Task.from_arrays("large", torch.rand(40, 3, 9, 9, generator=seeded(1)), torch.arange(40) % 4)
    probe = Probe(network="mlp?hidden=16", input_shape=(1, 6, 6))
    index = Index(Embedding(network=probe.network)).add({"small": probed(bright(IMAGES), probe)})
    assert 0 < index.query(probed(large, probe), 1)[0][1] < 1


def test_tasks_with_values_are_probed_too() -> None:
    task = Task.from_arrays("values", IMAGES, IMAGES.flatten(1)[:, :2].clone())
    assert float(probed(task).norm()) == pytest.approx(1, abs=1e-5)


def test_probes_out_of_range() -> None:
    with pytest.raises(OptionError, match="steps must be 0 or more, got -1"):
        Probe(network="mlp", steps=-1)
    with pytest.raises(OptionError, match="samples must be 1 or more, got 0"):
        Probe(network="mlp", samples=0)
