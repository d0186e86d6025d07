"""The Zoo: tasks solved, kept, read back; one start for all tasks of a trial."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nearkin as nk
from nearkin.core.errors import DataError, NearkinError, OptionError
from nearkin.core.events import Caution, Event, Note, finish
from nearkin.core.state import State
from nearkin.nets.heads import head_name, split
from nearkin.tasks import packed
from nearkin.zoo.trials import TrialCache
from nearkin.zoo.zoo import Zoo

QUICK = nk.Recipe(epochs=2)


def small(name: str = "t", seed: int = 0) -> nk.Task:
    x = np.random.default_rng(seed).normal(size=(60, 4))
    return nk.Task.from_arrays(name, x, x[:, 0] > 0)


@pytest.fixture
def zoo(tmp_path: Path):
    with Zoo(tmp_path / "zoo") as made:
        yield made


def test_what_is_added_comes_back(zoo: Zoo) -> None:
    task = nk.task("digits?detect=0&limit=120", name="zero")
    record = zoo.add(task, "lenet?width=0.5", trials=2, recipe=QUICK, seed=3)
    assert (zoo.names(), len(zoo), "zero" in zoo, list(zoo)) == (["zero"], 1, True, ["zero"])
    solved = zoo.solved("zero")
    assert solved.network == "lenet?width=0.5"
    assert solved.metric == pytest.approx(record.metric)
    assert record.epsilon == pytest.approx(1 - min(trial.scores.metric for trial in solved.trials))
    for trial in range(2):
        assert solved.scores_on(task, trial) == solved.trials[trial].scores
    assert solved.trials[0].history.losses.shape == (4,)
    assert zoo.task("zero").fingerprint() == task.fingerprint()


def test_tasks_of_zoos_whose_limits_drew_evenly_are_still_read(zoo: Zoo) -> None:
    drawn = nk.task("digits?detect=0&limit=60&even", name="old")
    zoo.add(replace(drawn, source="digits?detect=0&limit=60"), "mlp?hidden=4", trials=1, recipe=QUICK)
    assert zoo.task("old").fingerprint() == drawn.fingerprint() != nk.task("digits?detect=0&limit=60").fingerprint()


def test_the_fisher_information_is_kept(zoo: Zoo) -> None:
    task = nk.task("digits?detect=0&limit=120", name="zero")
    zoo.add(task, "lenet?width=0.5", trials=2, recipe=QUICK)
    x, y = task.test.all()
    for trial in range(2):
        model = zoo.solved("zero").model(trial)
        measured, found = nk.fisher.diagonal(model, x, y), zoo.fisher("zero", trial)
        assert found.num_samples == len(task.test)
        assert list(found.values) == [name for name, _ in model.named_parameters()]
        assert float((found.flat() - measured.flat()).norm()) <= 1e-5 * float(measured.flat().norm())
    with pytest.raises(NearkinError, match="no Fisher information of trial 5"):
        zoo.fisher("zero", 5)


def test_trials_of_two_tasks_start_from_the_same_backbone(zoo: Zoo) -> None:
    """A step of size zero shows where each began."""
    still = nk.Recipe(steps=1, learning_rate=1e-30)
    for name, data in (("two", "digits?detect=0&limit=60"), ("ten", "digits?limit=60")):
        zoo.add(nk.task(data, name=name), "lenet", trials=2, recipe=still)
    two, ten = zoo.solved("two"), zoo.solved("ten")
    for trial in range(2):
        head = head_name(two.model(trial), torch.zeros(1, 1, 8, 8))
        first, second = (split(s.trials[trial].params, head)[0] for s in (two, ten))
        assert all(torch.allclose(first[name], second[name]) for name in first)
    assert not torch.allclose(two.trials[0].params["head.weight"], two.trials[1].params["head.weight"])


def test_arrays_are_kept_with_the_task(zoo: Zoo) -> None:
    task = small()
    zoo.add(task, trials=1, recipe=QUICK)
    assert zoo.task("t").fingerprint() == task.fingerprint()
    kinds = [(item.kind, item.facts.get("whole")) for item in zoo.catalogue.artifacts("t")]
    assert kinds == [("data", True), ("digests", None), ("fisher", None), ("run", None), ("weights", None)]


def test_large_arrays_leave_a_probe_and_say_so(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed.packed, "__defaults__", (100,))
    monkeypatch.setattr(packed, "PROBE_SAMPLES", 5)
    heard: list[Event] = []
    finish(zoo.add.work(small(), trials=1, recipe=QUICK), heard.append)
    assert any(isinstance(event, Caution) and "too large" in event.text for event in heard)
    assert len(zoo.task("t").train) == 5


def test_data_that_changed_since_is_not_mistaken_for_what_it_was(zoo: Zoo, tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(file, x_train=x, y_train=(x[:, 0] > 0).astype(int))
    zoo.add(nk.task(f"npz:{file}", name="d"), trials=1, recipe=QUICK)
    np.savez(file, x_train=x + 1, y_train=(x[:, 1] > 0).astype(int))
    with pytest.raises(DataError, match="have changed since the task was added"):
        zoo.task("d")


def test_a_broken_checkpoint_is_done_anew(zoo: Zoo, tmp_path: Path) -> None:
    task, stopped = small(), []

    def stop(event: Event) -> None:
        stopped.append(event)
        if len(stopped) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(zoo.add.work(task, trials=1, recipe=QUICK), stop)
    (kept,) = (tmp_path / "zoo" / "work").glob("*/training-0.safetensors")
    assert State.load(kept).facts["done"] > 0
    kept.write_bytes(kept.read_bytes()[:100])
    heard: list[Event] = []
    finish(zoo.add.work(task, trials=1, recipe=QUICK), heard.append)
    assert any(isinstance(event, Caution) and "done again" in event.text for event in heard)


def test_more_trials_of_unfinished_work_use_those_that_are_done(zoo: Zoo) -> None:
    task, seen = small(), []

    def stop_in_the_second(event: Event) -> None:
        if "trial 2" in getattr(event, "stage", ""):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(zoo.add.work(task, trials=2, recipe=QUICK), stop_in_the_second)
    finish(zoo.add.work(task, trials=3, recipe=QUICK), seen.append)
    assert any(isinstance(event, Note) and "trial 1 of 3 was finished before" in event.text for event in seen)
    assert len(zoo.solved("t").trials) == 3


def test_networks_of_ones_own(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Sequential):\n"
        "    def __init__(self, width=8):\n"
        "        super().__init__(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 99))\n"
    )
    record = zoo.add(small("a"), "own.py:Own?width=5", trials=1, recipe=QUICK)
    assert record.network == f"{tmp_path}/own.py:Own?width=5"
    monkeypatch.chdir("/")
    assert zoo.solved("a").model()(torch.zeros(1, 4)).shape == (1, 2)
    assert zoo.add(small("b"), "mlp", trials=1, recipe=QUICK).network == "mlp"
    with pytest.raises(OptionError, match="cannot be imported again"):
        zoo.add(small("c"), lambda: nn.Linear(4, 2), trials=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"trials": 0}, "trials must be 1"), ({"network": "resnet"}, "resnet18"), ({"device": "tpu9"}, "unknown device")],
)
def test_bad_options_leave_the_zoo_empty(zoo: Zoo, options: dict, words: str) -> None:
    with pytest.raises(NearkinError, match=words):
        zoo.add(small(), **{"recipe": QUICK, **options})
    assert len(zoo) == 0


def test_a_solved_task_refuses_data_of_another_kind(zoo: Zoo) -> None:
    zoo.add(small(), trials=1, recipe=QUICK)
    with pytest.raises(NearkinError, match=r"input shape \(4,\)"):
        zoo.solved("t").scores_on(nk.task("digits?detect=0"))
    with pytest.raises(NearkinError, match="trials 0 to 0, got 3"):
        zoo.solved("t").model(3)


@pytest.mark.parametrize("moment", ["before the work was removed", "in between", "after it"])
def test_a_call_that_was_killed_after_it_had_stored_the_task_ends_when_it_is_repeated(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Killed(BaseException):
        pass

    def killed(self: TrialCache) -> None:
        if moment == "in between":
            self.checkpoints.remove("trial-0.safetensors")
        if moment == "after it":
            self.checkpoints.clear()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TrialCache, "clear", killed)
        with pytest.raises(Killed):
            zoo.add(small(), "mlp?hidden=4", trials=2, recipe=QUICK)
    heard: list[Event] = []
    again = finish(zoo.add.work(small(), "mlp?hidden=4", trials=2, recipe=QUICK), heard.append)
    assert again == zoo.record("t")
    assert heard == [Note("'t' is in the zoo, from the same call: nothing was changed")]
    assert not zoo.work.names()


@pytest.mark.parametrize(
    "other",
    [{"trials": 1}, {"seed": 1}, {"network": "mlp?hidden=5"}, {"recipe": nk.Recipe(epochs=3)}, {"restart": True},
     {"task": small(seed=1)}],
)  # fmt: skip
def test_another_call_with_a_name_in_use_is_refused(zoo: Zoo, other: dict[str, Any]) -> None:
    first = {"task": small(), "network": "mlp?hidden=4", "trials": 2, "recipe": QUICK, "seed": 0}
    record = zoo.add(**first)
    with pytest.raises(NearkinError, match="already has a task named 't'"):
        zoo.add(**{**first, **other})
    assert zoo.record("t") == record
