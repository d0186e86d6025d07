"""Measure: a formula for how near a source is to a target, with its requirements and its description.

A formula is a function of a `Pair` that yields events and returns a number, smaller for nearer. If it is a dataclass,
its plain fields are the options of the measure.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias

from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Operation, Work
from nearkin.core.options import Option, options_of, read_options
from nearkin.distance.pair import Pair, Source
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.tasks.task import Task

Formula: TypeAlias = Callable[[Pair], Work[float]]

CLASSES = ("categorical",)
LABELLED = ("categorical", "gaussian")
VALUES = ("categorical", "gaussian", "heteroscedastic")
EVERY = (*VALUES, "dense", "language")


class Need(StrEnum):
    """Something that must exist for a measure."""

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
        summary: meaning of its value, in one line.
        formula: yields events and returns the value of a pair; smaller is nearer. A formula with several forms has a
            method `form(source, target)`, which gives the form for a pair; one that stores values has a method
            `is_stored(pair)`.
        needs: what must exist.
        targets: supported likelihoods of targets.
        sources: supported likelihoods of sources.
        title: name in reports (default: the name).
        about: meaning of its values in reports (default: the summary).
        beside: names of cheap measures that are shown beside it.
        screens: whether a few sources can be selected first, by the tasks' own Fisher information and by values on a
            share of the samples.
        aliases: further names; the last is the first that the measure ever had.
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
        """Options that can be set by name."""
        return options_of([self.formula]) if is_dataclass(self.formula) else ()

    @property
    def stored_name(self) -> str:
        """Name in keys of stored results, which never changes."""
        return (self.name, *self.aliases)[-1]

    def with_options(self, options: Mapping[str, Any]) -> "Measure":
        """The measure with other options, as text or in their types; unknown ones are refused."""
        values = read_options(self.options, options, f"the measure {self.name}")
        return replace(self, formula=replace(self.formula, **values)) if values else self  # type: ignore[type-var]

    def knows(self, source: str, target: str) -> bool:
        """Whether it supports a source and a target of these likelihoods."""
        return source in self.sources and target in self.targets

    @property
    def has_forms(self) -> bool:
        """Whether the measure has several forms."""
        return hasattr(self.formula, "form")

    def form(self, source: Source, target: Task) -> str:
        """The form of the measure for a pair; empty for a measure with one form. Forms are not comparable."""
        return str(self.formula.form(source, target)) if hasattr(self.formula, "form") else ""

    def is_stored(self, pair: Pair) -> bool:
        """Whether the value of a pair is stored, so that it needs neither networks nor data."""
        return hasattr(self.formula, "is_stored") and bool(self.formula.is_stored(pair))

    def check(self, pair: Pair) -> None:
        """Refuse a pair without what the measure needs, or with inputs that the source's network cannot read."""
        source, target = pair.source, pair.target
        for side, likelihood, supported in (
            ("targets", target.task.likelihood, self.targets),
            ("sources", source.likelihood, self.sources),
        ):
            require(
                likelihood in supported,
                f"the measure {self.name} supports {' and '.join(supported)} {side}, got a {likelihood} one; use "
                f"another measure",
                MismatchError,
            )
        for need, name, exists in (
            (Need.SOURCE_DATA, source.name, source.load_task is not None),
            (Need.TARGET_NETWORK, target.name, target.has_networks),
        ):
            require(
                exists or need not in self.needs,
                f"the measure {self.name} needs {need}, which '{name}' does not have; add it to a zoo with its data",
                MismatchError,
            )
        if (
            Need.TARGET_NETWORK not in self.needs
        ):  # a measure that needs them calls `networks`, which can train missing ones
            source.require_trials(pair.trials)
        target.seen_as(source.inputs)

    def work(self, pair: Pair) -> Work[float]:
        """The value of a pair, with events; smaller is nearer."""
        self.check(pair)
        value = yield from self.formula(pair)
        require(
            math.isfinite(value),
            f"the measure {self.name} of '{pair.target.name}' is {value}; the source's weights diverged: add it again",
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
    """The formula of a score of the source's network on the target."""
    return at_once(lambda pair: score(pair.view))
