"""Text about a contest: the sentence, the claims, the agreement of measures."""

from dataclasses import replace

import pytest

from nearkin.distance.ranking import Ranking
from nearkin.solver.claims import check_claims
from nearkin.solver.quality import Quality
from nearkin.solver.relations import Relations, agreements
from nearkin.solver.result import Result, ordered
from nearkin.solver.sentence import sentence


def searched(name: str, validation: float, history: list[tuple[int, float]]) -> Result:
    best = max(score for _, score in history)
    search = {"best": {"score": best}, "history": [list(row) for row in history], "evaluations": history[-1][0]}
    return Result(
        name=name, title=f"search {name}", kind="searched", validation=validation, parameters=1000, search=search
    )


def made(name: str, validation: float, parameters: int = 5000, kind: str = "made") -> Result:
    return Result(name=name, title=name.upper(), kind=kind, validation=validation, parameters=parameters)


KIN = searched("kin-search", 0.95, [(1, 0.90), (2, 0.93), (8, 0.94)])
FULL = searched("full-search", 0.94, [(1, 0.80), (4, 0.93), (8, 0.93)])
DRAWN = searched("random-search", 0.90, [(8, 0.9)])
GOOD = Quality(0.951, "accuracy", (0.94, 0.96), 1000, 0.1, 0.1)


def held(standings: list[Result], relations: Relations | None = None) -> dict[str, bool | None]:
    return {one.claim: one.held for one in check_claims(standings, relations or Relations())}


def claim(words: str, found: dict[str, bool | None]) -> bool | None:
    [value] = [value for text, value in found.items() if words in text]
    return value


def test_half_of_the_evaluations_is_counted_to_the_first_time_the_score_was_reached() -> None:
    assert claim("half of the evaluations", held([KIN, FULL])) is True  # 2 against 4
    slower = searched("kin-search", 0.95, [(1, 0.90), (3, 0.93)])
    assert claim("half of the evaluations", held([slower, FULL])) is False
    never = searched("kin-search", 0.95, [(1, 0.90), (8, 0.92)])
    assert claim("half of the evaluations", held([never, FULL])) is False
    assert claim("half of the evaluations", held([FULL])) is None


def test_claims_compare_validation_metrics() -> None:
    found = held([KIN, FULL, DRAWN, made("resnet18", 0.949, 9000), made("lenet", 0.90)])
    assert claim("as good as one in the full space", found) is True
    assert claim("better than random search", found) is True
    assert claim("hand-made", found) is True
    worse = held([replace(KIN, validation=0.90), FULL, replace(DRAWN, validation=0.91), made("resnet18", 0.97)])
    assert claim("as good as one in the full space", worse) is False
    assert claim("better than random search", worse) is False
    assert claim("hand-made", worse) is False


def test_claims_about_absent_contenders_are_undecided() -> None:
    assert set(held([made("svm", 0.9, kind="simple")]).values()) == {None}
    refused = Result(name="full-search", title="full", kind="searched", refused="no time")
    assert claim("as good as one in the full space", held([KIN, refused])) is None


def test_fine_tuning_is_compared_with_the_same_network_from_scratch() -> None:
    tuned = Result(name="finetune", title="t", kind="tuned", validation=0.95, network="lenet?width=2")
    assert claim("Fine-tuning", held([tuned, made("lenet", 0.93)])) is True
    assert claim("Fine-tuning", held([tuned, made("lenet", 0.96)])) is False
    assert claim("Fine-tuning", held([tuned, made("mlp", 0.90)])) is None


def test_closed_form_is_compared_with_fine_tuning() -> None:
    tuned = Result(name="finetune", title="t", kind="tuned", validation=0.95)
    closed = Result(name="transfer", title="c", kind="transfer", validation=0.95)
    assert claim("Closed-form transfer", held([tuned, closed])) is True
    assert claim("Closed-form transfer", held([tuned, replace(closed, validation=0.9)])) is False
    assert claim("Closed-form transfer", held([tuned])) is None


def test_measures_agree_when_they_name_the_same_kin() -> None:
    rows = {name: [{"name": first}] for name, first in (("frechet", "a"), ("short-finetune", "a"))}
    assert claim("same nearest task", held([], Relations(rankings=rows))) is True
    rows["short-finetune"] = [{"name": "b"}]
    assert claim("same nearest task", held([], Relations(rankings=rows))) is False


def test_agreement_is_spearmans_over_what_both_know() -> None:
    one = Ranking.of("t", "a", {name: [float(i)] for i, name in enumerate("vwxyz")})
    other = Ranking.of("t", "b", {name: [float(i)] for i, name in enumerate("wvyx")})
    assert agreements([one, other])["a, b"] == pytest.approx(1 - 6 * 4 / (4 * 15))
    few = Ranking.of("t", "c", {"v": [0.0], "w": [1.0]})
    assert agreements([one, few]) == {}


def test_the_sentence_gives_test_result_interval_size_time_and_runner_up() -> None:
    simple = made("svm", 0.93, kind="simple")
    said = sentence("new", KIN, [KIN, simple], GOOD, {"svm": (0.02, 0.005, 0.035)}, 61.0)
    assert said == (
        "new: 95.1 % of 1,000 test samples right (95 % interval: 94.0 % to 96.0 %) by the network found by search "
        "kin-search. It has 1,000 parameters and was found in 1 min 1 s. The runner-up, SVM, is behind on the "
        "validation set by 2.0 points (95 % interval: 0.5 to 3.5), which is beyond chance."
    )
    tested = sentence("new", KIN, [KIN, replace(simple, test=0.9)], GOOD, {}, 61.0, {"svm": 0.92})
    assert tested.endswith("The runner-up, SVM, has 92.0 % on the test set.")
    assert "may be chance" in sentence("new", KIN, [KIN, simple], GOOD, {"svm": (0.02, -0.01, 0.05)}, 61.0)
    ahead = sentence("new", KIN, [KIN, simple], GOOD, {"svm": (-0.01, -0.03, 0.01)}, 61.0)
    assert (
        "is ahead on the validation set by 1.0 points (95 % interval: −1.0 to 3.0), which may be chance, and was"
        in ahead
    )
    both = {"svm": (0.02, -0.01, 0.05), "full-search": (0.01, -0.01, 0.03)}
    three = sentence("new", KIN, [KIN, FULL, simple], GOOD, both, 61.0)
    assert "The runner-up, the network found by search full-search, is behind" in three
    assert three.endswith(
        "The best simple model, SVM, is behind by 2.0 points (95 % interval: −1.0 to 5.0), which may be chance."
    )


def test_a_simple_model_that_wins_is_recommended() -> None:
    simple = made("svm", 0.99, kind="simple")
    assert "recommended" in sentence("new", simple, [KIN, simple], GOOD, {}, 300.0)
    assert "found in 5 min." in sentence("new", simple, [KIN, simple], GOOD, {}, 300.0)
    assert "recommended" not in sentence("new", simple, [simple], GOOD, {}, 1.0)  # there was no other to beat


def test_the_order_is_by_validation_and_leaves_out_who_did_not_run() -> None:
    gone = Result(name="gone", title="", kind="made", refused="no time")
    assert [one.name for one in ordered([gone, DRAWN, KIN, FULL])] == ["kin-search", "full-search", "random-search"]


def test_rankings_stored_under_earlier_names_of_measures_are_recognised() -> None:
    old = Relations(rankings={"frechet": [], "kin": []}, agreement={"frechet, kin": 0.5})
    assert list(old.rankings) == ["frechet", "short-finetune"]
    assert old.agreement == {"frechet, short-finetune": 0.5}
