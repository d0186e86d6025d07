"""Objectives: functions that score a genotype, for searchers that measure one genotype at a time."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nearkin.core.events import Work
from nearkin.search.genotypes.genotype import Genotype


@dataclass(frozen=True)
class ObjectiveValue:
    """Score of one genotype.

    Attributes:
        score: larger is better.
        facts: further figures as plain values: a loss, parameters, seconds.
    """

    score: float
    facts: Mapping[str, float | str] = field(default_factory=dict)


class Objective(ABC):
    """A function that scores genotypes, by a lookup in a table or by training from scratch."""

    @abstractmethod
    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """Score one genotype and yield events if it takes long. The same genotype gets the same score."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Plain JSON values that determine the score; a checkpoint with other settings is refused."""
