"""Rows of adopted models: how a model is stored in a zoo with its task, or without one."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch

from nearkin.core.clock import now
from nearkin.core.events import Work
from nearkin.core.state import State
from nearkin.nets.adoption import AdoptedModel
from nearkin.nets.evaluate import Scores, evaluate
from nearkin.nets.history import History
from nearkin.nets.solved import Solved, fit_facts, fit_state
from nearkin.nets.training_loop import Fit
from nearkin.store.records import NewArtifact, NewTask, TaskRecord
from nearkin.tasks.network_inputs import NETWORK_INPUTS
from nearkin.tasks.task import Task
from nearkin.tasks.texts import Tokenizer
from nearkin.zoo.solved_tasks import TOKENIZER, SolvedTasks

LONGEST_TEXT = 500  # of licence and origin
UNMEASURED = Scores(0.0, 0.0, 0)


def _fit(adopted: AdoptedModel, scores: Scores, seconds: float) -> Fit:
    return Fit(adopted.params, adopted.buffers, History(torch.zeros(0)), scores, seconds, reached=True)


def stored_model(
    zoo: SolvedTasks,
    name: str,
    adopted: AdoptedModel,
    shape: tuple[int, ...],
    task: Task | None,
    facts: Mapping[str, Any],
) -> TaskRecord:
    """The row of a stored model, if it is this one with the same facts; else the name is refused.

    Args:
        zoo: the zoo.
        name: of the stored model.
        adopted: the model.
        shape: of its inputs.
        task: that it was trained on.
        facts: of its inputs, licence and so on, as they would be stored.
    """
    record = zoo.record(name)
    weights = hashlib.sha256(fit_state(_fit(adopted, UNMEASURED, 0.0)).to_bytes()).hexdigest()
    known = (
        record.network, record.input_shape, record.fingerprint, {key: record.facts.get(key) for key in facts},
        NETWORK_INPUTS in record.facts, [item.digest for item in zoo.catalogue.artifacts(name, kind="weights")],
    )  # fmt: skip
    same = (
        adopted.network, shape, "" if task is None else task.fingerprint(), without_tokenizer(facts),
        NETWORK_INPUTS in facts, [weights],
    )  # fmt: skip
    if known != same:
        zoo.catalogue.claimable(name)  # it is not free, which is the error
    return record


def store_with_task(
    zoo: SolvedTasks,
    task: Task,
    seen: Task,
    adopted: AdoptedModel,
    own: Mapping[str, Any],
    about: Mapping[str, Any],
    start: float,
) -> Work[TaskRecord]:
    """Measure the model on its task, and store both.

    Args:
        zoo: the zoo.
        task: under the name of the model.
        seen: the task with the inputs of the network.
        adopted: the model.
        own: facts of the inputs of the network; empty if they are those of the task.
        about: further facts for the row.
        start: time at which the work began.
    """
    facts = {**task.facts(), **own}
    fit = _fit(adopted, UNMEASURED, 0.0)
    model = Solved(task.name, adopted.network, facts, 0, (fit,)).model()
    scores = evaluate(model, seen.test, task.form)
    fit = replace(fit, scores=scores, seconds=now() - start)
    solved = Solved(task.name, adopted.network, facts, 0, (fit,))
    return (yield from store_solved(zoo, task, solved, about, seen))


def store_solved(
    zoo: SolvedTasks, task: Task, solved: Solved, about: Mapping[str, Any], seen: Task | None = None
) -> Work[TaskRecord]:
    """Store a task with the trained network of an adopted model.

    Args:
        zoo: the zoo.
        task: under the name of the model.
        solved: its network, with the facts of its inputs.
        about: further facts for the row.
        seen: the task with the inputs of the network (default: prepared here).
    """
    own = {key: value for key, value in solved.facts.items() if key == NETWORK_INPUTS}
    seen = solved.inputs(task) if seen is None else seen
    facts = {**without_tokenizer(own), **about}
    return (yield from zoo.store(task, solved, None, tokenizer_artifacts(own), seen=seen, facts=facts))


def without_tokenizer(known: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with a short description of the tokenizer, whose content is stored as a file."""
    facts = known.get(NETWORK_INPUTS)
    if facts is None or TOKENIZER not in facts:
        return dict(known)
    tokenizer = Tokenizer.from_facts(facts[TOKENIZER])
    short = {"digest": tokenizer.digest, **tokenizer.short_facts()}
    return {**known, NETWORK_INPUTS: {**facts, TOKENIZER: short}}


def tokenizer_artifacts(facts: Mapping[str, Any]) -> list[NewArtifact]:
    """The tokenizer among the facts of a network as a file; empty if there is none."""
    stored = facts.get(NETWORK_INPUTS, {}).get(TOKENIZER)
    return [] if stored is None else [NewArtifact(TOKENIZER, 0, State({}, dict(stored)).to_bytes(), {})]


def model_row(
    name: str,
    adopted: AdoptedModel,
    shape: tuple[int, ...],
    facts: Mapping[str, Any],
    seconds: float,
    scores: Scores = UNMEASURED,
    seed: int = 0,
) -> tuple[NewTask, list[NewArtifact]]:
    """Row and files of a model without a task: it has no trial, so that no comparison of tasks uses it.

    Args:
        name: of the model.
        adopted: the model.
        shape: of its inputs.
        facts: for the row; what they say of a task, such as the names of classes, replaces the defaults.
        seconds: that the work took.
        scores: that were measured elsewhere.
        seed: from which the network is built.
    """
    known = {
        "likelihood": "categorical",
        "classes": [str(i) for i in range(adopted.num_outputs)],
        "input_shape": list(shape),
        "source": "",
        "scaling": None,
        "target_scaling": None,
        **without_tokenizer(facts),
        "versions": {"nearkin": version("nearkin"), "torch": torch.__version__},
    }
    fit = _fit(adopted, scores, seconds)
    row = NewTask(
        name=name,
        network=adopted.network,
        likelihood=known["likelihood"],
        data="",
        num_classes=len(known["classes"]),
        input_shape=shape,
        metric=scores.metric,
        epsilon=1 - scores.metric,
        trials=0,
        parameters=adopted.num_parameters,
        seconds=seconds,
        seed=seed,
        fingerprint="",
        facts=known,
    )
    weights = NewArtifact("weights", 0, fit_state(fit).to_bytes(), fit_facts(fit))
    return row, [weights, *tokenizer_artifacts(facts)]
