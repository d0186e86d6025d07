"""Rankings and matrices: order, spread, stability, and what is said of what could not be compared."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.core.errors import MismatchError
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.ranking import Ranking

CLEAR = {"far": [0.9, 0.8, 0.85], "near": [0.1, 0.2, 0.15], "mid": [0.5, 0.4, 0.6]}


def test_order_mean_and_deviation() -> None:
    found = Ranking.of("new", "frechet", CLEAR)
    assert [kin.name for kin in found] == ["near", "mid", "far"]
    assert found.nearest.distance == pytest.approx(0.15)
    assert found.nearest.std == pytest.approx(0.05)
    assert len(found) == 3
    assert [kin.name for kin in found.top(2)] == ["near", "mid"]


def test_a_clear_order_is_sure_and_a_toss_is_not() -> None:
    clear = Ranking.of("new", "frechet", CLEAR)
    assert [kin.sure for kin in clear] == [1.0, 1.0, 1.0]
    assert [kin.wins for kin in clear] == [1.0, 0.0, 0.0]
    toss = Ranking.of("new", "frechet", {"a": [0.1, 0.9, 0.1, 0.9], "b": [0.9, 0.1, 0.9, 0.11]})
    assert toss.nearest.wins == 0.5
    assert 0.3 < toss.nearest.sure < 0.8


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_shares_add_up_and_the_order_of_sources_does_not_matter(seed: int, size: int, trials: int) -> None:
    values = torch.rand(size, trials, generator=torch.Generator().manual_seed(seed)).tolist()
    named = {f"s{i}": row for i, row in enumerate(values)}
    found = Ranking.of("t", "m", named)
    turned = Ranking.of("t", "m", dict(reversed(named.items())))
    assert [kin.name for kin in found] == [kin.name for kin in turned]
    assert [kin.sure for kin in found] == [kin.sure for kin in turned]
    assert sum(kin.wins for kin in found) == pytest.approx(1)
    assert all(0 <= kin.sure <= 1 for kin in found)


def test_what_is_said_of_a_ranking_is_plain() -> None:
    found = Ranking.of(
        "new", "frechet", CLEAR, {"near": {"logme": -0.5}}, weak={"mid": 0.6}, refused={"odd": "why"}, seconds=1.5
    )
    facts = json.loads(json.dumps(found.to_dict()))
    assert facts["target"] == "new"
    assert facts["kin"][0]["name"] == "near"
    assert facts["kin"][0]["beside"] == {"logme": -0.5}
    assert facts["kin"][1]["weak"] == 0.6
    assert facts["refused"] == {"odd": "why"}
    frame = found.to_pandas()
    assert list(frame.index) == ["near", "mid", "far"]
    assert frame.loc["near", "logme"] == -0.5
    assert math.isnan(frame.loc["far", "logme"])


def test_the_table_names_rank_spread_and_weak_sources() -> None:
    lines = str(Ranking.of("new", "frechet", CLEAR, {"near": {"logme": -0.5}}, weak={"mid": 0.6})).splitlines()
    assert "near" in lines[1]
    assert "0.150" in lines[1]
    assert "0.050" in lines[1]
    assert "100%" in lines[1]
    assert "-0.500" in lines[1]
    assert "(weak)" in lines[2]


def test_a_ranking_of_nothing_or_of_nonsense_is_refused() -> None:
    with pytest.raises(MismatchError, match="no task to compare 'new' with"):
        Ranking.of("new", "frechet", {})
    with pytest.raises(MismatchError, match="from 'b' is not a number; its weights diverged"):
        Ranking.of("new", "frechet", {"a": [0.1], "b": [math.nan]})
    with pytest.raises(MismatchError, match="expected the same number"):
        Ranking.of("new", "frechet", {"a": [0.1], "b": [0.1, 0.2]})


def test_a_matrix_skips_what_could_not_be_compared() -> None:
    values = torch.tensor([[[0.0, 0.3, math.nan], [0.2, 0.0, math.nan], [math.nan, math.nan, 0.0]]] * 2)
    values[1, 0, 1] = math.nan
    found = DistanceMatrix(("a", "b", "c"), "frechet", values, {("a", "c"): "other inputs"})
    assert found.nearest() == {"a": "b", "b": "a"}
    assert found.mean[0, 1] == pytest.approx(0.3)
    assert found.std[0, 1] == 0.0
    assert math.isnan(found.std[0, 2])
    facts = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert facts["mean"][0][2] is None
    assert facts["refused"] == [{"source": "a", "target": "c", "reason": "other inputs"}]


def test_a_matrix_of_one_task_has_no_nearest_and_a_wrong_shape_is_refused() -> None:
    assert DistanceMatrix(("a",), "frechet", torch.zeros(1, 1, 1)).nearest() == {}
    with pytest.raises(MismatchError, match="for 2 tasks"):
        DistanceMatrix(("a", "b"), "frechet", torch.zeros(1, 3, 3))
