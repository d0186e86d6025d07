"""Tables of measured architectures: any searcher runs on them in no time, and its regret is known exactly."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nearkin._moved import renamed
from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.events import Work
from nearkin.core.opening import read_file
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.nasbench201 import nasbench201, nasbench201_cell, transnas101, transnas101_cell

ARCH = "arch_str"
"""The column of the architectures' texts."""

_KINDS: dict[str, tuple[Callable[[], Space], Callable[[str], Genotype]]] = {
    "|": (nasbench201, nasbench201_cell),
    "6": (transnas101, transnas101_cell),
}
_NUMBERS = ("arch_index", "unique_index")


class ListedSpace(Space):
    """Genotypes of a space that are all at hand, numbered as listed; keys and neighbours are found once.

    With `single` every genotype counts as an architecture of its own.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> whole = GeneralSpace((2,), ("zero", "conv3", "conv5"))
    >>> some = ListedSpace(whole, [whole.at(2), whole.at(0)])
    >>> some.size(), [str(cell) for cell in some.neighbours(some.at(0))]
    (2, ['normal(0): 1 = zero(0); out = 1'])
    """

    def __init__(self, space: Space, genotypes: Sequence[Genotype], *, single: bool = False) -> None:
        self.space, self.single = space, single
        self._genotypes = tuple(genotypes)
        self._places = {genotype: place for place, genotype in enumerate(self._genotypes)}
        self._keys: dict[int, str] = {}
        self._neighbours: dict[int, tuple[Genotype, ...]] = {}
        require(len(self._genotypes) > 0, f"a list of genotypes of {space.name} has at least one, got none", DataError)
        require(
            len(self._places) == len(self._genotypes),
            f"{len(self._genotypes) - len(self._places)} genotypes of {space.name} are listed twice; list each once",
            DataError,
        )

    @property
    def name(self) -> str:
        """That of the space."""
        return self.space.name

    def size(self) -> int:
        """How many are listed."""
        return len(self._genotypes)

    def at(self, index: int) -> Genotype:
        """In the order of the list."""
        if not 0 <= index < len(self._genotypes):
            raise OptionError(f"there is no genotype {index}; they are numbered from 0 to {len(self._genotypes) - 1}")
        return self._genotypes[index]

    def place(self, genotype: Genotype) -> int:
        """The number of a genotype."""
        if genotype not in self._places:
            self.require_member(genotype)
        return self._places[genotype]

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is not listed."""
        return "" if genotype in self._places else self.space.objection(genotype) or "it is not in the list"

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """Those of the space that are listed."""
        place = self.place(genotype)
        if place not in self._neighbours:
            found = (self._places.get(other) for other in self.space.neighbours(genotype))
            self._neighbours[place] = tuple(self._genotypes[other] for other in found if other is not None)
        return self._neighbours[place]

    def unique_key(self, genotype: Genotype) -> str:
        """That of the space; its text where every genotype counts."""
        place = self.place(genotype)
        if place not in self._keys:
            self._keys[place] = str(genotype) if self.single else self.space.unique_key(genotype)
        return self._keys[place]


@dataclass(frozen=True, eq=False)
class ArchitectureTable:
    """Genotypes and what was measured of each.

    A class of genotypes with one `unique_key` has one value in each column, that of its first member in the list:
    tables hold a training run for every member, and runs differ.

    Attributes:
        name: what the table is called.
        space: the genotypes.
        columns: by name a value for each of them, larger is better.
    """

    name: str
    space: ListedSpace
    columns: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        for name, values in self.columns.items():
            require(
                len(values) == self.space.size(),
                f"{self.name}: column {name} has {len(values)} values for {self.space.size()} genotypes",
                DataError,
            )

    def column(self, name: str) -> Sequence[float]:
        """The values of a column by the genotypes' numbers."""
        if name not in self.columns:
            raise OptionError(f"{self.name} has no column {name!r}; choose one of {', '.join(self.columns)}")
        return self.columns[name]

    @cached_property
    def first(self) -> tuple[int, ...]:
        """For every genotype the number of the first of its class."""
        seen: dict[str, int] = {}
        keys = (self.space.unique_key(self.space.at(index)) for index in range(self.space.size()))
        return tuple(seen.setdefault(key, index) for index, key in enumerate(keys))

    def value(self, genotype: Genotype, column: str) -> float:
        """What the genotype's class measured."""
        return self.column(column)[self.first[self.space.place(genotype)]]

    def best(self, column: str) -> float:
        """The highest value of any class."""
        values = self.column(column)
        return max(values[index] for index in set(self.first))

    def regret(self, genotype: Genotype, column: str) -> float:
        """How much the best class has more than this genotype's; 0 at the best."""
        return self.best(column) - self.value(genotype, column)

    def top(self, column: str, count: int) -> list[Genotype]:
        """The best genotypes, one of each class, best first: what a kin hands on."""
        values = self.column(column)
        order = sorted(set(self.first), key=lambda index: (-values[index], index))
        return [self.space.at(index) for index in order[:count]]


@dataclass(frozen=True, eq=False)
class TabularObjective(Objective):
    """A look into one column of a table."""

    table: ArchitectureTable
    column: str

    def __post_init__(self) -> None:
        self.table.column(self.column)

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """The value in the table."""
        yield from ()
        return ObjectiveValue(self.table.value(genotype, self.column))

    def settings(self) -> dict[str, Any]:
        """Names of the table and the column."""
        return {"table": self.table.name, "column": self.column}


def read_table(path: Path, *, single: bool = False) -> ArchitectureTable:
    """The table of a file `name.csv` or `name.csv.gz` of NAS-Bench-201 or TransNAS-Bench-101 (micro).

    The header names `arch_str` and columns of numbers. In NAS-Bench-201's, `params_m` and `flops_m` are among them.
    With `single` every cell counts, and not every class of cells.
    """
    rows = _rows(path)
    name = path.name.split(".")[0]
    require(len(rows) > 0 and ARCH in rows[0], f"{path} has no rows with a column {ARCH}; give another file", DataError)
    kind = rows[0][ARCH][:1]
    require(kind in _KINDS, f"{path}: {rows[0][ARCH]!r} is of no known table (NAS-Bench-201, TransNAS-Bench-101)",
            DataError)  # fmt: skip
    space, cell = _KINDS[kind]
    listed = ListedSpace(space(), [cell(row[ARCH]) for row in rows], single=single)
    names = [column for column in rows[0] if column not in (ARCH, *_NUMBERS)]
    try:
        columns = {column: tuple(float(row[column]) for row in rows) for column in names}
    except (TypeError, ValueError) as broken:
        raise DataError(f"{path} has a cell that is not a number ({broken}); mend or fetch it again") from broken
    return ArchitectureTable(name, listed, columns)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        text = read_file(path).decode()
    except UnicodeDecodeError as broken:
        raise DataError(f"cannot read the table {path}: {broken}; check the path or fetch it again") from broken
    return list(csv.DictReader(text.splitlines()))


def __getattr__(name: str) -> Any:
    return renamed(__name__, name)
