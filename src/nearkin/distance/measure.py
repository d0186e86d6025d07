"""Measure: how near a source is to a target, as a value of a registry.

A measure is a formula with its facts: what it needs, which tasks it knows, how it is described. A formula is a function
of a `Pair` that yields events and returns a number, smaller for nearer. Where it is a dataclass, its plain fields are
the options of the measure.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Operation, Work
from nearkin.core.options import Option, options_of, read_options
from nearkin.distance.pair import Pair, Source
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.tasks.task import Task

Formula: TypeAlias = Callable[[Pair], Work[float]]


@runtime_checkable
class HasForms(Protocol):
    """A formula of several forms, one of which is chosen for each pair."""

    def form(self, source: Source, target: Task) -> object:
        """The form for a pair; its text is shown."""
        ...


CLASSES = ("categorical",)
LABELLED = ("categorical", "gaussian")
VALUES = ("categorical", "gaussian", "heteroscedastic")
EVERY = (*VALUES, "dense", "language")


class Need(StrEnum):
    """What must exist for a measure."""

    WEIGHTS = "source weights"
    FEATURES = "source features"
    OUTPUTS = "source outputs"
    METRIC = "source metric"
    SOURCE_DATA = "source data"
    START = "the source's network before training"
    LABELS = "target labels"
    TARGET_NETWORK = "a target network"


@dataclass(frozen=True)
class Measure:
    """A measure of how near a source is to a target.

    Attributes:
        name: in commands and tables.
        summary: what its value is, in one line.
        formula: yields events and returns the value of a pair; smaller is nearer.
        needs: what must exist.
        targets: likelihoods of targets that it knows.
        sources: likelihoods of sources that it knows.
        title: name for readers of a report; the name itself where empty.
        about: what its values mean, for readers of a report; the summary where empty.
        beside: names of cheap measures that are shown beside it.
        screens: whether a few sources can be selected first, by the tasks' own Fisher information and by values on a
            share of the samples.
        aliases: further names.
    """

    name: str
    summary: str
    formula: Formula
    needs: tuple[Need, ...]
    targets: tuple[str, ...] = EVERY
    sources: tuple[str, ...] = EVERY
    title: str = ""
    about: str = ""
    beside: tuple[str, ...] = ()
    screens: bool = False
    aliases: tuple[str, ...] = ()

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """What can be set."""
        return options_of([self.formula]) if is_dataclass(self.formula) else ()

    def with_options(self, given: Mapping[str, Any]) -> "Measure":
        """The measure with other options, as text or in their types; unknown ones are refused."""
        values = read_options(self.options, given, f"the measure {self.name}")
        return replace(self, formula=replace(self.formula, **values)) if values else self  # type: ignore[type-var]

    def knows(self, source: str, target: str) -> bool:
        """Whether it can compare tasks of these likelihoods."""
        return source in self.sources and target in self.targets

    @property
    def has_forms(self) -> bool:
        """Whether there are several forms of it."""
        return isinstance(self.formula, HasForms)

    def form(self, source: Source, target: Task) -> str:
        """Which form of the measure applies to a pair; empty for a measure of one form. Forms are not comparable."""
        return str(self.formula.form(source, target)) if isinstance(self.formula, HasForms) else ""

    def check(self, pair: Pair) -> None:
        """Refuse a pair that lacks what the measure needs, or whose target has inputs that the network cannot read."""
        source, target = pair.source, pair.target
        for side, likelihood, known in (
            ("targets", target.task.likelihood, self.targets),
            ("sources", source.likelihood, self.sources),
        ):
            require(
                likelihood in known,
                f"the measure {self.name} knows {side} that are {' or '.join(known)}, not {likelihood}",
                MismatchError,
            )
        for need, name, there in (
            (Need.SOURCE_DATA, source.name, source.load_task is not None),
            (Need.TARGET_NETWORK, target.name, target.has_networks),
        ):
            require(
                there or need not in self.needs,
                f"the measure {self.name} needs {need}, which {name} does not have; add it to a zoo with its data",
                MismatchError,
            )

        if Need.TARGET_NETWORK not in self.needs:  # such a measure asks for networks, which can train missing ones
            source.require_trials(pair.trials)
        target.seen_as(source.input_shape)

    def work(self, pair: Pair) -> Work[float]:
        """The value of a pair, with events; smaller is nearer."""
        self.check(pair)
        value = yield from self.formula(pair)
        require(
            math.isfinite(value),
            f"the measure {self.name} of {pair.target.name} is {value}; the source's weights diverged: add it anew",
            MismatchError,
        )
        return value

    def __call__(self, pair: Pair) -> float:
        """The value of a pair; smaller is nearer."""
        return Operation(self.work)(pair)


def at_once(score: Callable[[Pair], float]) -> Formula:
    """The formula of a score that is computed in one step, without events."""

    def formula(pair: Pair) -> Work[float]:
        yield from ()
        return score(pair)

    return formula


def of_view(score: Callable[[SourceOnTarget], float]) -> Formula:
    """The formula of a score of the target through the source's network."""
    return at_once(lambda pair: score(pair.view))
