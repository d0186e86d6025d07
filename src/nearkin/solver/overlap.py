"""Samples that the target shares with the training sets of related tasks, and whose weights may then be used.

The network of a related task has seen the task's training samples. If validation samples of the target are among them,
contenders that start from this network have an unfair advantage in the selection; if test samples are, the reported
result is too good. Samples that the target's own training data hold too are not counted: every contender saw them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Note, Work, finish
from nearkin.core.state import State
from nearkin.core.text import enumeration
from nearkin.distance.registry import DEFAULT
from nearkin.run.stages import StageCache
from nearkin.solver.plan import Plan
from nearkin.solver.relations import Relations
from nearkin.tasks.checks.data_checks import Checks, Finding
from nearkin.tasks.sample_digests import sample_digests
from nearkin.tasks.task import Task
from nearkin.zoo.zoo import Zoo

STAGE = "samples shared with kin"
LEAST_LEFT = 0.5  # share of the validation samples on which contenders are scored at least
LIMITS = "images of another size and changed images are not recognised"
SHOWN = 3


@dataclass(frozen=True)
class SharedSamples:
    """Samples of the target in the training set of one related task.

    Attributes:
        kin: name of the related task.
        validation: positions of the shared samples in the validation set.
        test: number of shared test samples.
        unknown: why the samples could not be compared, in one line; empty if they were.
    """

    kin: str
    validation: tuple[int, ...] = ()
    test: int = 0
    unknown: str = ""

    @property
    def any(self) -> bool:
        """Whether a sample is shared."""
        return bool(self.validation) or self.test > 0

    def usable(self, count: int) -> bool:
        """Whether the weights may be used with `count` validation samples, without the shared ones."""
        return self.test == 0 and len(self.validation) <= (1 - LEAST_LEFT) * count


@dataclass(frozen=True)
class WeightSource:
    """The related task whose weights are used, after the comparison of samples.

    Attributes:
        relations: with the chosen task as `tuned`, None if none may be used.
        left_out: positions of validation samples on which contenders with these weights are not scored.
        findings: for the checks of the data.
    """

    relations: Relations
    left_out: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()


def choose_weight_source(
    zoo: Zoo, task: Task, learn: Task, plan: Plan, relations: Relations, checks: Checks, stages: StageCache
) -> Work[WeightSource]:
    """The nearest related task without shared samples; else the nearest of which few enough can be left out.

    Args:
        zoo: with the related tasks.
        task: the target.
        learn: the target with its training data split into `train` and validation data `test`.
        plan: options of the run.
        relations: the rankings; `tuned` is the nearest task.
        checks: findings about the target's data.
        stages: cache of finished stages.
    """
    if relations.tuned is None:
        return WeightSource(relations)
    if any(finding.facts.get("coincidence") for finding in checks.findings if finding.kind == "duplicates"):
        yield Note("samples shared with kin are not counted: rows with so few distinct values coincide by chance")
        return WeightSource(relations)
    rows = next(rows for name in (DEFAULT, *plan.measures) if (rows := relations.rankings.get(name)))
    names = [str(row["name"]) for row in rows]
    inputs = {"data": learn.fingerprint(), "zoo": [[name, zoo.record(name).fingerprint] for name in names]}
    done = yield from stages.stage(STAGE, inputs, lambda _: _compared(zoo, task, learn, names), "overlap")
    compared = done.read(_Compared).compared
    count = len(learn.test)
    chosen = _preferred(compared, count)
    for kin in compared:
        if kin.unknown:
            yield Caution(f"whether '{kin.kin}' learned from validation or test samples is unknown: {kin.unknown}")
    findings = _findings(compared, chosen, count, len(task.test))
    for finding in findings:
        if finding.grave:
            yield Caution(finding.text)
        elif any(kin.any for kin in compared):
            yield Note(finding.text)
    if chosen is None:
        return WeightSource(replace(relations, tuned=None), findings=findings)
    return WeightSource(replace(relations, tuned=chosen.kin), chosen.validation, findings)


@dataclass(frozen=True)
class _Compared:
    """Shared samples by related task, nearest first, up to the first task without any."""

    compared: tuple[SharedSamples, ...]


def _compared(zoo: Zoo, task: Task, learn: Task, names: Sequence[str]) -> Work[State]:
    yield from ()
    validation, test = sample_digests(learn.test.inputs), sample_digests(task.test.inputs)
    own: Tensor | None = None
    compared: list[SharedSamples] = []
    for name in names:
        try:
            seen = zoo.train_digests(name)
        except NearkinError as error:
            compared.append(SharedSamples(name, unknown=str(error)))
            continue
        if own is None and (torch.isin(validation, seen).any() or torch.isin(test, seen).any()):
            own = sample_digests(learn.train.inputs)
        if own is not None:
            in_validation = torch.isin(validation, seen) & ~torch.isin(validation, own)
            in_test = torch.isin(test, seen) & ~torch.isin(test, torch.cat([own, validation]))
            rows = torch.nonzero(in_validation).flatten().tolist()
            compared.append(SharedSamples(name, tuple(rows), int(in_test.sum())))
        else:
            compared.append(SharedSamples(name))
        if not compared[-1].any:
            break
    facts = [{**vars(kin), "validation": list(kin.validation)} for kin in compared]
    return State({}, {"compared": facts})


def shares_samples(zoo: Zoo, task: Task, learn: Task, name: str) -> bool:
    """Whether the network of one task learned from validation or test samples of the target, as far as is known."""
    stored = finish(_compared(zoo, task, learn, [name])).read(_Compared)
    return stored.compared[0].any


def _preferred(compared: Sequence[SharedSamples], count: int) -> SharedSamples | None:
    """The nearest task that shares no sample; else one that shares few; else one that could not be compared."""
    known = [kin for kin in compared if not kin.unknown]
    groups = (
        [kin for kin in known if not kin.any],
        [kin for kin in known if kin.usable(count)],
        [kin for kin in compared if kin.unknown],
    )
    return next((group[0] for group in groups if group), None)


def _findings(
    compared: Sequence[SharedSamples], chosen: SharedSamples | None, count: int, num_test: int
) -> tuple[Finding, ...]:
    """A serious finding if test samples are shared, and one sentence about the task whose weights are used."""
    tested = [kin for kin in compared if kin.test]
    facts: dict[str, Any] = {
        "compared": [kin.kin for kin in compared],
        "shared_validation": {kin.kin: len(kin.validation) for kin in compared if kin.validation},
        "unknown": {kin.kin: kin.unknown for kin in compared if kin.unknown},
    }
    findings = []
    if tested:
        most = max(tested, key=lambda kin: kin.test)
        rest = [f"{kin.test} in that of '{kin.kin}'" for kin in tested if kin is not most]
        others = rest if len(rest) <= SHOWN else [*rest[:SHOWN], f"some in {len(rest) - SHOWN} others"]
        text = f"{most.test} of the {num_test} test samples were in the training set of '{most.kin}'"
        text += f", {enumeration(others)}" if others else ""
        whose = "its network is" if len(tested) == 1 else "their networks are"
        text += f"; {whose} not used. Use other test samples to judge these tasks' networks."
        findings.append(Finding("overlap", True, text, {"shared_test": {kin.kin: kin.test for kin in tested}}))
    passed = [f"'{kin.kin}' ({len(kin.validation)})" for kin in compared if kin.validation and kin is not chosen]
    because = ""
    if passed:
        shown = passed if len(passed) <= SHOWN else [*passed[:SHOWN], f"{len(passed) - SHOWN} others"]
        because = f"; the weights of {enumeration(shown)} are not used, which learned from validation samples"
    if chosen is None:
        text = "No related task lends its weights: too many validation or test samples were in its training set"
    elif chosen.unknown:
        text = f"Whether '{chosen.kin}', whose weights are used, learned from validation or test samples is unknown"
    elif chosen.validation:
        shared = len(chosen.validation)
        text = f"{shared} of the {count} validation samples were in the training set of '{chosen.kin}'; contenders that"
        text += f" use its weights are scored on the other {count - shared}"
    else:
        text = f"No validation or test sample was in the training set of '{chosen.kin}', whose weights are used"
    findings.append(Finding("overlap", False, f"{text}{because} ({LIMITS}).", facts))
    return tuple(findings)
