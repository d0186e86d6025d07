"""Tables of measured architectures: searchers run on them without training, and their regret is known exactly."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.events import Work
from nearkin.core.opening import read_file
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.nasbench201 import nasbench201, nasbench201_cell, transnas101, transnas101_cell

ARCH = "arch_str"
"""Column with the architecture strings."""

_KINDS: dict[str, tuple[Callable[[], Space], Callable[[str], Genotype]]] = {
    "|": (nasbench201, nasbench201_cell),
    "6": (transnas101, transnas101_cell),
}
_NUMBERS = ("arch_index", "unique_index")


class ListedSpace(Space):
    """A list of genotypes of a space, numbered in the order of the list; keys and neighbours are computed once.

    With `single`, every genotype counts as a different architecture.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> whole = GeneralSpace((2,), ("zero", "conv3", "conv5"))
    >>> some = ListedSpace(whole, [whole.at(2), whole.at(0)])
    >>> some.size(), [str(cell) for cell in some.neighbours(some.at(0))]
    (2, ['normal(0): 1 = zero(0); out = 1'])
    """

    def __init__(self, space: Space, genotypes: Sequence[Genotype], *, single: bool = False) -> None:
        self.space, self.single = space, single
        self._genotypes = tuple(genotypes)
        self._indices = {genotype: index for index, genotype in enumerate(self._genotypes)}
        self._keys: dict[int, str] = {}
        self._neighbours: dict[int, tuple[Genotype, ...]] = {}
        require(
            len(self._genotypes) > 0, f"the list of genotypes of {space.name} is empty; give at least one", DataError
        )
        require(
            len(self._indices) == len(self._genotypes),
            f"{len(self._genotypes) - len(self._indices)} genotypes of {space.name} are listed twice; list each once",
            DataError,
        )

    @property
    def name(self) -> str:
        """Name of the space."""
        return self.space.name

    def size(self) -> int:
        """Number of listed genotypes."""
        return len(self._genotypes)

    def at(self, index: int) -> Genotype:
        """Genotype with a number, in the order of the list."""
        if not 0 <= index < len(self._genotypes):
            raise OptionError(f"there is no genotype {index}; they are numbered from 0 to {len(self._genotypes) - 1}")
        return self._genotypes[index]

    def index(self, genotype: Genotype) -> int:
        """Number of a genotype."""
        if genotype not in self._indices:
            self.require_member(genotype)
        return self._indices[genotype]

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is not in the list."""
        return "" if genotype in self._indices else self.space.objection(genotype) or "it is not in the list"

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """Neighbours in the space that are in the list."""
        index = self.index(genotype)
        if index not in self._neighbours:
            others = (self._indices.get(other) for other in self.space.neighbours(genotype))
            self._neighbours[index] = tuple(self._genotypes[other] for other in others if other is not None)
        return self._neighbours[index]

    def unique_key(self, genotype: Genotype) -> str:
        """Key in the space; with `single`, the text of the genotype."""
        index = self.index(genotype)
        if index not in self._keys:
            self._keys[index] = str(genotype) if self.single else self.space.unique_key(genotype)
        return self._keys[index]


@dataclass(frozen=True, eq=False)
class ArchitectureTable:
    """Genotypes and their measured values.

    Genotypes with the same `unique_key` have one value in each column, that of the first of them in the list: tables
    contain a training run of every genotype, and runs differ.

    Attributes:
        name: name of the table.
        space: the genotypes.
        columns: by name, a value for each genotype; larger is better.
    """

    name: str
    space: ListedSpace
    columns: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        for name, values in self.columns.items():
            require(
                len(values) == self.space.size(),
                f"{self.name}: column {name} has {len(values)} values, expected one for each of {self.space.size()} "
                f"genotypes; correct the column",
                DataError,
            )

    def column(self, name: str) -> Sequence[float]:
        """Values of a column in the order of the genotypes."""
        if name not in self.columns:
            raise OptionError(f"{self.name} has no column {name!r}; choose one of {', '.join(self.columns)}")
        return self.columns[name]

    @cached_property
    def first(self) -> tuple[int, ...]:
        """For every genotype, the number of the first one with the same key."""
        seen: dict[str, int] = {}
        keys = (self.space.unique_key(self.space.at(index)) for index in range(self.space.size()))
        return tuple(seen.setdefault(key, index) for index, key in enumerate(keys))

    def value(self, genotype: Genotype, column: str) -> float:
        """Value of a genotype in a column."""
        return self.column(column)[self.first[self.space.index(genotype)]]

    def best(self, column: str) -> float:
        """Highest value of a column."""
        values = self.column(column)
        return max(values[index] for index in set(self.first))

    def regret(self, genotype: Genotype, column: str) -> float:
        """Difference between the best value and that of a genotype; 0 for the best."""
        return self.best(column) - self.value(genotype, column)

    def top(self, column: str, count: int) -> list[Genotype]:
        """The best genotypes, one for each key, best first."""
        values = self.column(column)
        order = sorted(set(self.first), key=lambda index: (-values[index], index))
        return [self.space.at(index) for index in order[:count]]


@dataclass(frozen=True, eq=False)
class TabularObjective(Objective):
    """Objective that reads one column of a table."""

    table: ArchitectureTable
    column: str

    def __post_init__(self) -> None:
        self.table.column(self.column)

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """Value of a genotype in the table."""
        yield from ()
        return ObjectiveValue(self.table.value(genotype, self.column))

    def settings(self) -> dict[str, Any]:
        """Names of table and column."""
        return {"table": self.table.name, "column": self.column}


def read_table(path: Path, *, single: bool = False) -> ArchitectureTable:
    """Read a table from `name.csv` or `name.csv.gz` of NAS-Bench-201 or TransNAS-Bench-101 (micro).

    The header has `arch_str` and columns of numbers; those of NAS-Bench-201 include `params_m` and `flops_m`. With
    `single`, every cell counts as a different architecture.
    """
    rows = _rows(path)
    name = path.name.split(".")[0]
    require(len(rows) > 0 and ARCH in rows[0], f"{path} has no rows with a column {ARCH}; use another file", DataError)
    kind = rows[0][ARCH][:1]
    require(kind in _KINDS, f"{path}: {rows[0][ARCH]!r} is of no known table; use NAS-Bench-201 or TransNAS-Bench-101",
            DataError)  # fmt: skip
    space, cell = _KINDS[kind]
    listed = ListedSpace(space(), [cell(row[ARCH]) for row in rows], single=single)
    names = [column for column in rows[0] if column not in (ARCH, *_NUMBERS)]
    try:
        columns = {column: tuple(float(row[column]) for row in rows) for column in names}
    except (TypeError, ValueError) as broken:
        raise DataError(
            f"{path} has a value that is not a number ({broken}); correct the file or download it again"
        ) from broken
    return ArchitectureTable(name, listed, columns)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        text = read_file(path).decode()
    except UnicodeDecodeError as broken:
        raise DataError(f"cannot read the table {path}: {broken}; check the path or download it again") from broken
    return list(csv.DictReader(text.splitlines()))
