"""What a black-box searcher asks: how good is this genotype?"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nearkin.core.events import Work
from nearkin.search.genotypes.genotype import Genotype


@dataclass(frozen=True)
class ObjectiveValue:
    """The worth of one genotype.

    Attributes:
        score: larger is better.
        facts: plain figures beside it: a loss, parameters, seconds.
    """

    score: float
    facts: Mapping[str, float | str] = field(default_factory=dict)


class Objective(ABC):
    """A measure of genotypes: a look into a table, or a training from scratch."""

    @abstractmethod
    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """Measure one genotype; what takes long yields events. The same genotype gives the same score."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Plain JSON values that decide what is measured; a checkpoint made with others is refused."""
