"""Near kin in a zoo: all pairs, new targets, what is kept, what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nearkin as nk
from nearkin.core.errors import NearkinError, OptionError, ZooError, require
from nearkin.core.events import Caution, Event, Note, Progress, finish
from nearkin.core.state import State
from nearkin.distance.baselines.order import random_value
from nearkin.distance.fisher_based.between_tasks import FrechetDistance
from nearkin.distance.fisher_based.forms import DEFAULT, FALLBACK
from nearkin.distance.fisher_based.frechet import AGGREGATES
from nearkin.distance.fisher_based.readings import refitted
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.measure import at_once
from nearkin.distance.pair import Pair
from nearkin.distance.questions import QUESTIONS, Question, combined
from nearkin.distance.registry import _BY_NAME, MEASURES
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.store import schema
from nearkin.store.records import NewArtifact
from nearkin.zoo.comparison import Comparison
from nearkin.zoo.near import rank_sources
from nearkin.zoo.zoo import Zoo

QUICK = nk.Recipe(steps=60, batch_size=32)
TASKS = {
    "zero": "digits?detect=0&limit=300&even",
    "six": "digits?detect=6&limit=300&even",
    "all": "digits?limit=300",
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    made = Zoo(tmp_path_factory.mktemp("kin") / "zoo")
    for name, data in TASKS.items():
        made.add(nk.task(data, name=name), "mlp?hidden=24", trials=2, recipe=QUICK)
    return made


def heard(zoo: Zoo, *arguments: object, **options: object) -> tuple[nk.Ranking, list[Event]]:
    events: list[Event] = []
    return finish(zoo.near.work(*arguments, **options), events.append), events  # type: ignore[arg-type]


def test_all_pairs_are_zero_on_the_diagonal_and_in_the_unit_interval(zoo: Zoo) -> None:
    found = zoo.matrix(reading="padded", aggregate="weight")
    assert found.tasks == tuple(TASKS)
    assert found.trials.shape == (2, 3, 3)
    assert torch.equal(found.trials.diagonal(dim1=1, dim2=2), torch.zeros(2, 3, dtype=torch.float64))
    off = found.trials[:, ~torch.eye(3, dtype=torch.bool)]
    assert float(off.min()) > 0.01
    assert float(off.max()) <= 1
    assert found.nearest()["zero"] == "six"


def test_what_was_measured_is_not_measured_again(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    first = zoo.matrix()
    monkeypatch.setattr("nearkin.distance.fisher_based.between_tasks.information", None)  # nothing may be measured now
    assert torch.equal(zoo.matrix().trials, first.trials)
    layered = zoo.matrix(aggregate="layer")  # every aggregate comes from the same measurement
    assert not torch.equal(layered.trials, first.trials)
    ranking = zoo.near("zero", "frechet")
    assert ranking.passes == 0
    assert ranking.nearest.distance == pytest.approx(
        float(first.mean[:, 0].clone().index_fill_(0, torch.tensor(0), 9).min())
    )


def test_distances_of_other_forms_are_not_mixed_up(tmp_path: Path) -> None:
    """What is kept under an older key, or without the aggregate that is asked for, is measured again."""
    with Zoo(tmp_path / "zoo") as zoo:
        for name in ("zero", "six"):
            zoo.add(nk.task(TASKS[name], name=name), "mlp?hidden=8", trials=1, recipe=QUICK)
        wrong = {aggregate: 0.987 for aggregate in AGGREGATES if aggregate != DEFAULT.aggregate}
        for key in ("frechet model 1000", "frechet padded 1000", FrechetDistance().key("padded", 1000)):
            zoo.keep_pair(key, "zero", "six", 0, wrong)
        found = zoo.matrix()
        assert found.form == str(DEFAULT)
        assert float(found.mean[0, 1]) != 0.987
        assert float(zoo.matrix(reading="model").mean[0, 1]) != 0.987
        assert zoo.matrix(reading="model").form == str(FALLBACK)


def test_answers_say_which_form_was_used(zoo: Zoo) -> None:
    ranking = zoo.near("zero", "frechet")
    assert ranking.form == str(DEFAULT)
    told = ranking.to_dict()
    assert told["form"] == str(DEFAULT) == told["kin"][0]["form"]
    assert zoo.near("zero", "frechet", reading="model").form == str(FALLBACK)
    assert zoo.near("zero", "frechet", aggregate="layer").form == "padded/layer"
    assert zoo.near("zero", "logme").to_dict()["form"] is None
    matrix = zoo.matrix(["zero", "all"])
    assert matrix.to_dict()["form"] == str(DEFAULT)
    assert str(DEFAULT) in matrix.title
    assert zoo.matrix(["zero", "all"], "logme").form == ""


def test_the_default_is_asymmetric_on_shared_images(zoo: Zoo) -> None:
    found = zoo.matrix()
    assert float((found.mean - found.mean.T).abs().max()) > 0.01


def test_where_labels_cannot_be_padded_the_label_free_form_is_used_and_said(tmp_path: Path) -> None:
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    with Zoo(tmp_path / "zoo") as zoo:
        tasks = {"values": x.sum(1), "others": x[:, 0], "classes": (x[:, 0] > 0).long()}
        for name, y in tasks.items():
            zoo.add(nk.Task.from_arrays(name, x, y), "mlp?hidden=8", trials=1, recipe=QUICK)
        ranking, events = heard(zoo, "values", "frechet")
        assert {kin.name: kin.form for kin in ranking} == {"others": str(DEFAULT), "classes": str(FALLBACK)}
        assert ranking.form == ""
        assert ranking.to_dict()["form"] is None
        assert any(isinstance(event, Caution) and "different forms" in event.text for event in events)
        matrix = zoo.matrix()
        told = matrix.to_dict()
        assert told["form"] is None
        assert told["forms"][0] == [str(DEFAULT), str(DEFAULT), str(FALLBACK)]
        again = DistanceMatrix.from_dict(told, matrix.trials)
        assert (again.forms, again.reasons) == (matrix.forms, matrix.reasons)


def test_with_an_unknown_start_the_whole_architecture_has_the_label_free_form_and_other_stored_values(
    tmp_path: Path,
) -> None:
    with Zoo(tmp_path / "zoo") as zoo:
        for name in ("zero", "six", "all"):
            zoo.add(nk.task(TASKS[name], name=name), "mlp?hidden=8", trials=1, recipe=QUICK)
        zoo.add(nk.task(TASKS["all"], name="wide"), "mlp?hidden=9", trials=1, recipe=QUICK)
        before = {reading: {kin.name: kin.distance for kin in zoo.near("wide", "frechet", reading=reading)}
                  for reading in ("padded", "model")}  # fmt: skip
        facts = {name: value for name, value in zoo.record("six").facts.items() if name != "recipe"}
        with zoo.catalogue.database.writing() as connection:  # as of weights whose training is not known
            table = schema.tasks
            connection.execute(table.update().where(table.c.name == "six").values(facts=json.dumps(facts)))
        ranking, events = heard(zoo, "zero", "frechet")
        forms = {"six": str(FALLBACK), "all": str(FALLBACK), "wide": str(DEFAULT)}
        assert {kin.name: kin.form for kin in ranking} == forms
        assert any(isinstance(event, Caution) and "networks of 'six' are not known" in event.text for event in events)
        assert zoo.near("six", "frechet").form == ""  # the target is the one whose start is not known
        assert zoo.near("zero", "frechet", reading="padded").form == str(DEFAULT)  # asked for, it is measured
        for reading, distances in before.items():  # by another network of 'wide', so stored apart from the first ones
            now = {kin.name: kin.distance for kin in zoo.near("wide", "frechet", reading=reading)}
            assert all(now[name] != distances[name] for name in ("zero", "six", "all"))
            known = [zoo.record(name) for name in ("zero", "all")]
            how = Comparison.of("frechet", reading=reading)
            again = finish(rank_sources(zoo, "wide", how, known))
            assert {kin.name: kin.distance for kin in again} == {name: distances[name] for name in ("zero", "all")}


def test_task_embeddings_are_measured_once_a_task(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    """One head for the target, whatever the number of sources; those of sources are kept."""
    fitted: list[str] = []

    def counted(sight: SourceOnTarget, **options: Any) -> Any:
        fitted.append(sight.task.name)
        return refitted(sight, **options)

    monkeypatch.setattr("nearkin.distance.probe_embedding.refitted", counted)
    target = nk.task("digits?detect=3&limit=300", name="three")
    first = zoo.near(target, "task2vec", trials=1, samples=150)
    assert fitted.count("three") == 1
    assert sorted(fitted) == ["all", "six", "three", "zero"]
    fitted.clear()
    again = zoo.near(target, "task2vec-asymmetric", trials=1, samples=150)
    assert fitted == ["three"]
    assert {kin.name for kin in again} == {kin.name for kin in first}
    assert all(0 <= kin.distance <= 1 for kin in first)


@pytest.mark.parametrize("measure", ["cka", "mmd", "fid", "evidence", "task2vec-asymmetric"])
def test_further_measures_make_a_matrix(zoo: Zoo, measure: str) -> None:
    found = zoo.matrix(measure=measure, samples=100, trials=1)
    assert not found.reasons
    assert bool(found.mean.isfinite().all())
    if measure in ("mmd", "fid"):  # distances of data sets: a task's own samples are nearest to themselves
        assert float(found.mean.diagonal().max()) < {"mmd": 0.02, "fid": 1e-9}[measure]


def test_a_target_of_the_zoo_is_not_its_own_kin(zoo: Zoo) -> None:
    ranking = zoo.near("zero", "frechet")
    assert sorted(kin.name for kin in ranking) == ["all", "six"]


def test_a_new_target_is_solved_from_the_same_start_and_costs_one_pass_a_source(zoo: Zoo) -> None:
    target = nk.task("digits?detect=0&limit=300&even", name="zero again")
    ranking, events = heard(zoo, target, "frechet", trials=1, reading="padded", aggregate="weight")
    assert ranking.nearest.name == "zero"
    assert ranking.passes <= 2 * 3  # each source, and the target's own for each width
    assert any(isinstance(event, Note) and "training mlp" in event.text for event in events)
    again, events = heard(zoo, target, "frechet", trials=1, reading="padded", aggregate="weight")
    assert [kin.trials for kin in again] == [kin.trials for kin in ranking]
    assert any(isinstance(event, Note) and "was finished before" in event.text for event in events)
    assert set(ranking.nearest.beside) == {"logme"}


def test_screening_measures_only_the_nearest_few(zoo: Zoo) -> None:
    target = nk.task(TASKS["six"], name="six again")
    whole, few = (zoo.near(target, "frechet", trials=2, screen=screen) for screen in (None, 1))
    assert [kin.name for kin in few] == [whole.nearest.name] == ["six"]
    assert few.nearest.trials == whole.nearest.trials
    assert few.passes < whole.passes


def test_screening_reads_a_kept_point_instead_of_the_information(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    target = nk.task(TASKS["six"], name="six again")
    first = zoo.near(target, "frechet", trials=2, screen=2)
    assert {item.kind for item in zoo.catalogue.artifacts("zero")} >= {"fisher", "point"}
    monkeypatch.setattr(zoo, "fisher", None)
    assert [kin.trials for kin in zoo.near(target, "frechet", trials=2, screen=2)] == [kin.trials for kin in first]


def test_the_race_gives_a_short_look_to_many(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    """With points that mislead, the race still names the nearest, and costs less than two whole passes a trial."""
    target = nk.task(TASKS["six"], name="six again")
    place = {"all": 0, "zero": 1, "six": 2}  # the truly nearest lies farthest in the index
    monkeypatch.setattr(zoo, "point", lambda name, trials, embedding: torch.eye(embedding.dims)[place[name]])
    few = zoo.near(target, "frechet", trials=1, screen=1)
    assert few.nearest.name == "six"
    assert few.passes < 6  # the target's own for the index and two widths, three short looks, one whole pass


def test_neurons_can_be_matched_first(zoo: Zoo) -> None:
    plain, aligned = (zoo.matrix(["zero", "six"], aggregate="weight", align=align) for align in (False, True))
    assert torch.equal(aligned.trials.diagonal(dim1=1, dim2=2), torch.zeros(2, 2, dtype=torch.float64))
    assert not torch.equal(plain.trials, aligned.trials)


def test_trials_that_the_zoo_lacks_are_trained(zoo: Zoo) -> None:
    found = zoo.matrix(["zero", "six"], trials=3)
    assert torch.equal(found.trials[:2], zoo.matrix(["zero", "six"]).trials)
    assert len(found.trials) == 3


@pytest.mark.thinned(3)
@pytest.mark.parametrize("measure", list(MEASURES))
def test_every_measure_ranks_the_same_images_with_the_same_labels_first(zoo: Zoo, measure: str) -> None:
    """Those that look at the source's answers must; the others promise nothing of the kind, and must be finite."""
    ranking = zoo.near("six", measure, samples=200, trials=1)
    assert {kin.name for kin in ranking} == {"zero", "all"}
    if measure == "random":
        assert ranking.nearest.distance == pytest.approx(min(random_value(name, "six") for name in ("zero", "all")))
    if measure == "source":
        assert {kin.name: -kin.distance for kin in ranking} == {
            name: zoo.solved(name).trials[0].scores.metric for name in ("zero", "all")
        }
    if measure in ("short-finetune", "logme", "leep", "nce"):
        twin = zoo.near(nk.task(TASKS["zero"], name="twin"), measure, samples=200, trials=2)
        assert twin.nearest.name == "zero"


def test_options_of_a_measure_change_its_value_and_events_of_training_are_passed_on(zoo: Zoo) -> None:
    short, events = heard(zoo, "six", "kin", samples=100, trials=1, steps="3")
    assert short.measure == "short-finetune"
    assert short.nearest.distance != zoo.near("six", samples=100, trials=1).nearest.distance
    steps = [event for event in events if isinstance(event, Progress) and event.stage == "short-finetune"]
    assert [event.done for event in steps] == [1, 2, 3] * 2


def test_measures_do_not_mind_the_order_of_samples(zoo: Zoo) -> None:
    x, y = nk.task(TASKS["zero"]).train.all()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    straight, mixed = (
        nk.Task.from_arrays("t", x[i], y[i], x, y, standardise=False) for i in (torch.arange(len(x)), order)
    )
    for measure in ("logme", "leep", "nce", "hscore", "head"):
        one, two = (zoo.near(task, measure, trials=1) for task in (straight, mixed))
        assert [kin.name for kin in one] == [kin.name for kin in two], measure
        assert one.nearest.distance == pytest.approx(two.nearest.distance, abs=1e-4), measure


def test_images_of_another_size_and_colour_are_compared_and_tables_refused(zoo: Zoo) -> None:
    torch.manual_seed(0)
    colours = nk.Task.from_arrays("colours", torch.rand(80, 3, 12, 12), torch.arange(80) % 2)
    assert len(zoo.near(colours, "logme", trials=1)) == 3
    table = nk.Task.from_arrays("table", torch.randn(80, 5), torch.arange(80) % 2)
    with pytest.raises(ZooError, match=r"no task of the zoo can be compared with 'table'; 'zero': .*only images"):
        zoo.near(table, "logme")


def test_regression_and_image_tasks_find_kin(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(120, 4)
    with Zoo(tmp_path / "zoo") as zoo:
        for name, scale in (("sum", 1.0), ("twice", 2.0)):
            zoo.add(nk.Task.from_arrays(name, x, scale * x.sum(1) + x[:, 0]), "mlp?hidden=8", trials=1, recipe=QUICK)
        zoo.add(nk.task("digits?dense=edges&limit=80", name="edges"), "autoencoder?width=0.1", trials=1, recipe=QUICK)
        zoo.add(
            nk.task("digits?dense=autoencode&limit=80", name="same"), "autoencoder?width=0.1", trials=1, recipe=QUICK
        )
        target = nk.Task.from_arrays("new", x, x[:, 1] - x[:, 2])
        for measure in ("frechet", "logme", "head", "knn"):
            ranking = zoo.near(target, measure)
            assert {kin.name for kin in ranking} == {"sum", "twice"}
            assert set(ranking.refused) == {"edges", "same"}
        images = zoo.near("edges", "frechet")
        assert [kin.name for kin in images] == ["same"]
        assert [kin.name for kin in zoo.near("edges")] == ["same"]  # short-finetune supports images too
        with pytest.raises(
            NearkinError,
            match="supports categorical targets, got a dense one; use short-finetune, short-finetune-drawn, frechet",
        ):
            zoo.near("edges", "leep")


def test_weak_sources_are_named(zoo: Zoo) -> None:
    ranking, events = heard(zoo, "six", "logme", epsilon=0.0)
    assert ranking.weak
    assert any(isinstance(event, Caution) and "below 1 − ε = 1.00" in event.text for event in events)
    assert not heard(zoo, "six", "logme", epsilon=1.0)[0].weak


def test_weights_that_diverged_are_refused_with_a_reason(tmp_path: Path) -> None:
    with Zoo(tmp_path / "zoo") as zoo:
        for name in ("zero", "six", "all"):
            zoo.add(nk.task(TASKS[name], name=name), "mlp?hidden=8", trials=1, recipe=QUICK)
        weights = next(item for item in zoo.catalogue.artifacts("six") if item.kind == "weights")
        state = State.from_bytes(zoo.catalogue.blob(weights), "six")
        broken = {
            name: torch.full_like(v, torch.nan) if v.is_floating_point() else v for name, v in state.tensors.items()
        }
        zoo.catalogue.attach("six", [NewArtifact("weights", 0, State(broken, state.facts).to_bytes(), weights.facts)])
        for measure in ("frechet", "logme", "leep"):
            ranking = zoo.near("zero", measure)
            assert [kin.name for kin in ranking] == ["all"], measure
            assert "six" in ranking.refused


def test_bad_questions_get_one_line(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown measure 'frechett'"):
        zoo.near("zero", "frechett")
    with pytest.raises(ZooError, match="no task named 'zeroo'; did you mean 'zero'"):
        zoo.near("zeroo", "logme")
    with pytest.raises(NearkinError, match="reading is one of auto, padded, model, refit"):
        zoo.near("zero", "frechet", reading="none")
    with pytest.raises(OptionError, match="the measure logme has no option reading; it has none"):
        zoo.near("zero", "logme", reading="model")
    with pytest.raises(OptionError, match="the measure short-finetune cannot screen tasks, got screen=1; leave it out"):
        zoo.near("zero", "kin", screen=1)
    with pytest.raises(NearkinError, match="is named twice"):
        zoo.matrix(["zero", "zero"])
    with pytest.raises(ZooError, match="expected two or more for a matrix"):
        zoo.matrix(["zero"])
    with Zoo(tmp_path / "lonely") as lonely:
        lonely.add(nk.task(TASKS["zero"], name="zero"), "mlp?hidden=8", trials=1, recipe=QUICK)
        with pytest.raises(ZooError, match="no other task to compare 'zero' with"):
            lonely.near("zero", "logme")


def test_a_pair_is_forgotten_with_either_task(tmp_path: Path) -> None:
    with Zoo(tmp_path / "zoo") as zoo:
        for name in ("zero", "six"):
            zoo.add(nk.task(TASKS[name], name=name), "mlp?hidden=8", trials=1, recipe=QUICK)
        before = zoo.matrix()
        zoo.remove("six")
        zoo.add(nk.task(TASKS["six"], name="six"), "mlp?hidden=8", trials=1, recipe=nk.Recipe(steps=5), seed=0)
        assert not torch.equal(zoo.matrix().trials, before.trials)


def test_a_question_combines_its_measures_by_ranks_in_every_trial(zoo: Zoo) -> None:
    ranking = zoo.near("zero", samples=100)
    question = QUESTIONS["final"]
    single = {name: {kin.name: kin for kin in zoo.near("zero", name, samples=100)} for name in question.measures}
    assert ranking.measure == "final"
    names = ["six", "all"]
    for trial in range(2):
        scores = {name: [kin[source].trials[trial] for source in names] for name, kin in single.items()}
        expected = dict(zip(names, combined(scores, question.measures), strict=True))
        assert {kin.name: kin.trials[trial] for kin in ranking} == expected
    for kin in ranking:
        assert kin.beside == {name: by_source[kin.name].distance for name, by_source in single.items()}
    assert zoo.near("zero", question="speed", samples=100).rows() == zoo.near("zero", "kin", samples=100).rows()


def test_a_source_that_one_measure_refuses_is_left_out_and_networks_are_named_once(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "logme"
    question = Question("both", "", {"source": 1.0, name: 1.0}, {})
    monkeypatch.setattr("nearkin.zoo.zoo.question_named", lambda _: question)

    def refuse(pair: Pair) -> float:
        require(pair.source.name != "six", "no value")
        return 0.0

    monkeypatch.setitem(_BY_NAME, name, replace(MEASURES[name], formula=at_once(refuse)))
    ranking, events = heard(zoo, "zero", question="both", epsilon=0.0)
    assert [kin.name for kin in ranking] == ["all"]
    assert ranking.refused == {"six": "no value"}
    assert sum(isinstance(event, Caution) and "metric below" in event.text for event in events) == 1
    with pytest.raises(NearkinError, match="got options of one measure for the question"):
        zoo.near("zero", question="both", steps=2)
    with pytest.raises(NearkinError, match="got the measure logme and the question both"):
        zoo.near("zero", "logme", question="both")
