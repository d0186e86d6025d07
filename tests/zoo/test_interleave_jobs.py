"""Independent searches and final trainings by jobs end in the same bits as one after the other."""

from pathlib import Path

import pytest
import torch

import nearkin as nk
from counting_runner import CountingRunner
from multitask_examples import without_times
from nearkin.core.budget import Budget
from nearkin.core.events import Caution, Event, finish
from nearkin.multitask.evaluation import EvaluationOptions
from nearkin.zoo.interleaving import InterleavedSearch, Interleaving
from nearkin.zoo.zoo import Zoo

DATA = {"low": "digits?classes=0,1,2&rest=drop&limit=40", "high": "digits?classes=5,6&rest=drop&limit=40"}


def how(method: str) -> Interleaving:
    options = {"epochs": 1, "warmup": 0, "channels": 4, "num_cells": 2, "batch_size": 20, "entropy": 0.0}
    return Interleaving(
        method=method, space="general?nodes=3&operations=zero+identity+conv3", options=options,
        budget=Budget(steps=2), evaluation=EvaluationOptions(channels=4, num_cells=2, epochs=1),
    )  # fmt: skip


def bits(result: InterleavedSearch) -> list[torch.Tensor]:
    return [value for done in result.evaluated.tasks.values() for value in done.network.state_dict().values()]


@pytest.mark.parametrize(
    ("method", "jobs"),
    [("independent", {"search_alone": 2, "train_for_task": 2}), ("hard", {"train_for_task": 2})],
)
def test_every_task_has_its_jobs(tmp_path: Path, method: str, jobs: dict[str, int]) -> None:
    tasks = [nk.task(data, name=name) for name, data in DATA.items()]
    alone = Zoo(tmp_path / "alone").interleave(tasks, how=how(method))
    runner, heard = CountingRunner(tmp_path / "zoo"), list[Event]()
    zoo = Zoo(tmp_path / "zoo", runner=runner)
    result = finish(zoo.interleave.work(tasks, how=how(method)), heard.append)
    assert without_times(result.to_dict()) == without_times(alone.to_dict())
    assert all(map(torch.equal, bits(result), bits(alone)))
    assert runner.counts() == jobs
    assert not any(isinstance(event, Caution) for event in heard)
    assert not [file for file in (tmp_path / "zoo" / "work").rglob("*") if file.is_file()]
