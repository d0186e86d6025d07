"""Daily records of the US Historical Climatology Network: one station is one regression task over the year.

Maddox et al. (2019) regress *averaged* daily precipitation on the day: 365 points a station, the mean over all years,
about ten months to learn from and two to judge by (300 and 65 days; whole months give 304 and 61). So does this reader
unless `year=` asks for one year as it was, most of whose days are dry. Inputs and targets are standardised, as there.

Two layouts are read, plain or `.gz`: the state files of the network (`state37_RI.txt`, or `us.txt`), one month a line
in fixed columns of 264 characters, and csv lines `year,month,day,hundredths of an inch` of one station, whose number
is taken from the file's name. `ushcn-stations.txt` beside them gives the stations their names.

Days whose quality flag is set are left out. The measurement flags T (a trace, written as 0) and P (missing, presumed
zero; not in the network's own list of flags) are not: their values count as the zeros they are written as.
"""

import re
from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.numbers import quoted, whole_number
from nearkin.core.opening import local_path
from nearkin.core.rng import Streams
from nearkin.tasks.datastring import DataString, flag, names, whole
from nearkin.tasks.readers.text import content
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("station", "element", "year", "test", "seed", "inputs", "log")

UNITS = {"PRCP": (100, "inch"), "SNOW": (10, "inch"), "SNWD": (1, "inch"), "TMAX": (1, "°F"), "TMIN": (1, "°F")}
AMOUNTS = ("PRCP", "SNOW", "SNWD")  # never negative
INPUTS = ("day", "season")
MISSING = -9999
WIDTH, HEAD, CELL = 264, 16, 8  # characters of a line, before its first day, of a day: value 5 and three flags
TEST_MONTHS = (11, 12)
COMMON_YEAR = 2001  # has no 29 February
INVENTORY = "ushcn-stations.txt"

Held: TypeAlias = Mapping[str, tuple[str, list[Path]]]  # stations by number: name, and files


class Cell(NamedTuple):
    """A value in the file's own unit, with its day; a mean over years has `COMMON_YEAR`."""

    year: int
    month: int
    day: int
    value: float


@dataclass(frozen=True, eq=False)
class Record:
    """What a station measured of one element.

    Attributes:
        station: its number, `044997`.
        name: what people call it; the number where no inventory is at hand.
        element: `PRCP`, `SNOW`, `SNWD`, `TMAX` or `TMIN`.
        cells: days with a value that passed the network's checks, in the order of time.
        flagged: days whose value failed a check of quality; they are left out.
        missing: days without a value, between the first day and the last.
    """

    station: str
    name: str
    element: str
    cells: tuple[Cell, ...]
    flagged: int
    missing: int

    @property
    def years(self) -> list[int]:
        """Years with a value."""
        return sorted({cell.year for cell in self.cells})


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from the record of one station; targets in inches or degrees Fahrenheit.

    Args:
        location: a file, or a folder of them.
        options: `station=NAME` or number, where the file has several; `element=prcp` (`snow`, `snwd`, `tmax`, `tmin`);
            `year=1990` for one year, `year=1950-1999` for the mean over some, all without it; `test=11,12` the months
            to judge by, or `seed=N` to draw two; `inputs=day`, or `season` for day, sine and cosine;
            `log` for log(1 + amount in the file's unit: hundredths of an inch of rain).
    """
    return _task(_station(local_path(location), options), options)


def station_tasks(location: str, options: Mapping[str, str] | None = None) -> list[Task]:
    """One task for every station of a file or folder; each reads again by its data string."""
    given = {name: value for name, value in (options or {}).items() if name != "station"}
    tasks = []
    for number in stations(local_path(location)):
        chosen = {**given, "station": number}
        source = DataString("ushcn", str(local_path(location)), tuple(sorted(chosen.items())))
        tasks.append(replace(read(location, chosen), source=str(source)))
    return tasks


def stations(path: Path) -> dict[str, str]:
    """Numbers of the stations at a path, with their names."""
    return {number: name for number, (name, _) in _held(path).items()}


def record(path: Path, station: str, element: str = "PRCP") -> Record:
    """The record of one station, by its number; a file that breaks the format is refused with its line."""
    held = _held(path)
    require(station in held, f"{path} has no station {station!r}; it has {_listed(held)}")
    return _record(station, *held[station], element)


def _record(station: str, name: str, files: Sequence[Path], element: str) -> Record:
    cells: dict[tuple[int, int, int], Cell] = {}
    flagged = 0
    for file in files:
        found = _csv_cells(file, element) if _is_csv(file) else _fixed_cells(file, station, element)
        for number, cell, quality in found:
            day = cell[:3]
            if day in cells:
                raise DataError(f"{file}, line {number}: {date(*day)} stands there twice; keep one")
            if quality == " ":
                cells[day] = cell
            flagged += quality != " "
    where = ", ".join(map(str, files))
    require(bool(cells), f"{where} has no value of {element} for {name}; choose another element or station", DataError)
    kept = tuple(cells[day] for day in sorted(cells))
    span = (date(*kept[-1][:3]) - date(*kept[0][:3])).days + 1
    return Record(station, name, element, kept, flagged, max(0, span - len(kept) - flagged))


def _task(found: Record, options: Mapping[str, str]) -> Task:
    cells, when = _chosen_years(found, options.get("year", ""))
    judged = _test_months(options)
    days = np.array([date(*cell[:3]).timetuple().tm_yday for cell in cells], np.float64)
    values = np.array([cell.value for cell in cells], np.float64)
    aside = np.isin([cell.month for cell in cells], judged)
    for part, count in (("training", (~aside).sum()), ("test", aside.sum())):
        months = ", ".join(map(str, judged))
        require(
            count >= 2,
            f"{found.name}, {when}: {count} days are left for the {part} part (test months {months}); choose another "
            f"year or other months",
            DataError,
        )
    x = _inputs(days, options.get("inputs") or "day", max(365, int(days.max())))
    y, column = _targets(values, found.element, flag(options["log"], "log") if "log" in options else False)
    return Task.from_arrays(
        f"{found.name}, {when}", x[~aside], y[~aside], x[aside], y[aside], likelihood="gaussian", classes=[column]
    )


def _inputs(days: np.ndarray[Any, Any], kind: str, length: int) -> np.ndarray[Any, Any]:
    """Days of the year as `[N, 1]`, or with sine and cosine of their angle as `[N, 3]`."""
    require(kind in INPUTS, f"inputs must be {' or '.join(INPUTS)}, got {kind!r}")
    angle = 2 * np.pi * days / length
    return days[:, None] if kind == "day" else np.stack([days, np.sin(angle), np.cos(angle)], axis=1)


def _targets(values: np.ndarray[Any, Any], element: str, log: bool) -> tuple[np.ndarray[Any, Any], str]:
    """Values in the unit of the element, or their logarithm, and the name of the column."""
    parts, unit = UNITS[element]
    if not log:
        return values / parts, f"{element.lower()} [{unit}]"
    require(element in AMOUNTS, f"log goes with amounts ({', '.join(AMOUNTS).lower()}), not {element.lower()}")
    step = f"{1 / parts:g} {unit}"
    return np.log1p(values), f"log(1 + {element.lower()} / {step})"


def _chosen_years(found: Record, wanted: str) -> tuple[Sequence[Cell], str]:
    """The cells of one year, or means over some by calendar day, without 29 February."""
    match = re.fullmatch(r"(\d{4})(?:-(\d{4}))?", wanted)
    held = f"{found.name} has {_ranges(found.years)}"
    require(
        not wanted or match is not None, f"year wants one, as 1990, or a span, as 1950-1999; got {wanted!r}; {held}"
    )
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (found.years[0], found.years[-1])
    cells = [cell for cell in found.cells if first <= cell.year <= last]
    require(bool(cells), f"there is no value in year={wanted}; {held}")
    if match and not match[2]:
        return cells, wanted
    pools: dict[tuple[int, int], list[float]] = {}
    for cell in cells:
        pools.setdefault(cell[1:3], []).append(cell.value)
    pools.pop((2, 29), None)
    means = [Cell(COMMON_YEAR, *day, sum(pools[day]) / len(pools[day])) for day in sorted(pools)]
    return means, f"mean of {first}-{last}"


def _test_months(options: Mapping[str, str]) -> tuple[int, ...]:
    """Months 1 to 12 that are judged by."""
    require(not ("test" in options and "seed" in options), "give test=… or seed=…, not both: each chooses the months")
    if "seed" in options:
        drawn = Streams(whole(options["seed"], "seed")).numpy("months").choice(12, size=2, replace=False)
        return tuple(sorted(int(month) + 1 for month in drawn))
    if "test" not in options:
        return TEST_MONTHS
    months = sorted({whole(month, "test", least=1) for month in names(options["test"], "test")})
    require(months[-1] <= 12, f"test wants months from 1 to 12, as in test=11,12; got {options['test']!r}")
    require(len(months) < 12, "test takes all twelve months; leave some to learn from")
    return tuple(months)


def _station(path: Path, options: Mapping[str, str]) -> Record:
    """The record that `station` and `element` ask for."""
    element = (options.get("element") or "prcp").upper()
    require(element in UNITS, f"element must be one of {', '.join(UNITS).lower()}, got {options.get('element')!r}")
    held = _held(path)
    number = _number(path, held, options.get("station", ""))
    return _record(number, *held[number], element)


def _number(path: Path, held: Held, wanted: str) -> str:
    """The number of the station that is wanted: by number, by name, or by words of its name."""
    word = wanted.casefold()
    known = {number: name.casefold() for number, (name, _) in held.items()}
    exact = [number for number, name in known.items() if word in (number.casefold(), name)]
    near = [number for number, name in known.items() if word and re.search(rf"\b{re.escape(word)}\b", name)]
    found = exact or near if wanted else list(known)
    if len(found) == 1:
        return found[0]
    fault = f"{len(found) or 'no'} stations answer to {wanted!r}" if wanted else f"{len(found)} stations are there"
    raise OptionError(f"{fault}; choose one with ?station=…; {path} has {_listed(held)}")


def _listed(held: Held) -> str:
    """A dozen stations with their names."""
    shown = [f"{number} ({name})" if name != number else number for number, (name, _) in held.items()]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} others" if len(shown) > 12 else "") or "none"


def _held(path: Path) -> Held:
    """Stations at a path by number, with what the inventory calls them and the files they are in."""
    found: dict[str, tuple[str, list[Path]]] = {}
    for file in _files(path):
        for number, name in _stations_of(file).items():
            found.setdefault(number, (name, []))[1].append(file)
    return dict(sorted(found.items()))


def _files(path: Path) -> list[Path]:
    """The data files at a path; a plain file goes before its compressed copy."""
    require(
        path.exists(),
        f"there is no file or folder {path}; ushcn wants state files such as state37_RI.txt, or csv lines "
        f"year,month,day,value",
        DataError,
    )
    if not path.is_dir():
        return [path]
    patterns = ("state*.txt", "us.txt", "*.csv")
    files = {file.name: file for pattern in patterns for file in sorted(path.glob(pattern))}
    packed = {file.name.removesuffix(".gz"): file for end in patterns for file in sorted(path.glob(f"{end}.gz"))}
    found = {**packed, **files}
    require(bool(found), f"{path} has no state*.txt, us.txt or *.csv file, plain or .gz; put one there", DataError)
    return [found[name] for name in sorted(found)]


def _is_csv(file: Path) -> bool:
    return file.name.removesuffix(".gz").endswith(".csv")


def _stations_of(file: Path) -> dict[str, str]:
    """Stations of one file, and what the inventory beside it calls them."""
    inventory = file.parent / INVENTORY
    lines = content(inventory).splitlines() if inventory.is_file() else []
    known = {line[:6]: " ".join(line[36:66].split()) for line in lines if len(line) > 36}
    if _is_csv(file):
        stem = file.name.removesuffix(".gz").removesuffix(".csv")
        digits = re.search(r"(?<!\d)\d{6}(?!\d)", stem)
        found = [digits[0] if digits else stem]
    else:
        found = sorted({line[:6] for _, line in _fixed_lines(file)})
    return {number: known.get(number) or number for number in found}


def _csv_cells(file: Path, element: str) -> Iterator[tuple[int, Cell, str]]:
    """Line number, value and a blank flag of each day of a csv file; empty, NA and −9999 values are skipped."""
    require(element == "PRCP", f"{file} holds precipitation alone; leave element={element.lower()} out")
    for number, line in enumerate(content(file).splitlines(), 1):
        parts = [part.strip() for part in line.split(",")]
        if not line.strip() or (number == 1 and parts[0].casefold() == "year"):
            continue
        if len(parts) != 4:
            raise DataError(
                f"{file}, line {number}: year,month,day,value are wanted, got {quoted(line.strip())}; correct it"
            )
        parts[3] = str(MISSING) if parts[3] in ("", "NA") else parts[3]
        cell = Cell(*(_whole(part, file, number) for part in parts))
        _check(cell, element, file, number)
        if cell.value != MISSING:
            yield number, cell, " "


def _fixed_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Lines of a state file with their numbers, each a month of one element."""
    for number, line in enumerate(content(file).splitlines(), 1):
        if not line.strip():
            continue
        if line[12:HEAD] not in UNITS or not HEAD < len(line) <= WIDTH or not (line.isascii() and line[:12].isdigit()):
            raise DataError(
                f"{file}, line {number}: {len(line)} characters that begin with {line[:HEAD]!r}; a month is {WIDTH} "
                f"characters: station, year, month, one of {', '.join(UNITS)}, and 31 days"
            )
        yield number, line


def _fixed_cells(file: Path, station: str, element: str) -> Iterator[tuple[int, Cell, str]]:
    """Line number, value and quality flag of each day of a station; missing days are skipped."""
    for number, line in _fixed_lines(file):
        if line[:6] != station or line[12:HEAD] != element:
            continue
        year, month, padded = int(line[6:10]), int(line[10:12]), line.ljust(WIDTH)
        for day, start in enumerate(range(HEAD, WIDTH, CELL), 1):
            cell = Cell(year, month, day, _whole(padded[start : start + 5], file, number))
            if cell.value != MISSING:
                _check(cell, element, file, number)
                yield number, cell, padded[start + 6]


def _check(cell: Cell, element: str, file: Path, number: int) -> None:
    """Refuse days that the calendar lacks, amounts below zero and values of more than five digits."""
    year, month, day, value = cell
    require(abs(value) < 10**5, f"{file}, line {number}: {element} of {value} is no measurement; correct it", DataError)
    if not (1 <= year <= 9999 and 1 <= month <= 12 and (1 <= day <= 28 or 28 < day <= monthrange(year, month)[1])):
        raise DataError(f"{file}, line {number}: there is no day {day} in month {month} of year {year}; mend it")
    if element in AMOUNTS and value < 0 and value != MISSING:
        raise DataError(f"{file}, line {number}: {element} of {value} on {date(*cell[:3])} is below zero; mend it")


def _whole(text: str, file: Path, number: int) -> int:
    value = whole_number(text.strip())
    if value is None:
        raise DataError(f"{file}, line {number}: a whole number is wanted, got {quoted(text)}; correct it")
    return value


def _ranges(years: Sequence[int]) -> str:
    """Years in short.

    >>> _ranges([1948, 1949, 1950, 1963])
    '1948-1950, 1963'
    """
    runs: list[list[int]] = []
    for year in years:
        if runs and year == runs[-1][-1] + 1:
            runs[-1].append(year)
        else:
            runs.append([year])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
