"""Daily records of the US Historical Climatology Network: each station is a regression task over the year.

Maddox et al. (2019) regress *averaged* daily precipitation on the day: 365 points per station, the mean over all years,
about ten months for training and two for the test (300 and 65 days; whole months give 304 and 61). This reader does the
same unless `year=` selects a single year, most of whose days are dry. Inputs and targets are standardised, as there.

Two layouts are read, plain or `.gz`: the state files of the network (`state37_RI.txt`, or `us.txt`), one month per line
in fixed columns of 264 characters, and csv lines `year,month,day,hundredths of an inch` of one station, whose number is
in the file name. `ushcn-stations.txt` in the same folder has the names of the stations.

Days with a quality flag are left out. Days with the measurement flags T (a trace, written as 0) and P (missing,
presumed zero; not in the network's list of flags) are used: their values are the zeros in the file.
"""

import re
from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.numbers import quoted, whole_number
from nearkin.core.opening import local_path
from nearkin.core.rng import Streams
from nearkin.tasks.datastring import DataString, flag, names, one_of, whole
from nearkin.tasks.readers.language import plain_stem, text_content
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("station", "element", "year", "test", "seed", "inputs", "log")

UNITS = {"PRCP": (100, "inch"), "SNOW": (10, "inch"), "SNWD": (1, "inch"), "TMAX": (1, "°F"), "TMIN": (1, "°F")}
AMOUNTS = ("PRCP", "SNOW", "SNWD")  # never negative
INPUTS = ("day", "season")
MISSING = -9999
WIDTH, HEAD, CELL = 264, 16, 8  # characters of a line, before its first day, and of a day (value 5, flags 3)
TEST_MONTHS = (11, 12)
COMMON_YEAR = 2001  # has no 29 February
INVENTORY = "ushcn-stations.txt"


class Station(NamedTuple):
    """Name of a station, or its number without an inventory, and the files with its records."""

    name: str
    files: list[Path]


class DailyValue(NamedTuple):
    """A value in the unit of the file, with its day; the year of a mean over years is `COMMON_YEAR`."""

    year: int
    month: int
    day: int
    value: float


@dataclass(frozen=True, eq=False)
class StationRecord:
    """Measurements of one element at one station.

    Attributes:
        station: number of the station, such as `044997`.
        name: name of the station; its number without an inventory.
        element: `PRCP`, `SNOW`, `SNWD`, `TMAX` or `TMIN`.
        cells: days with a value that passed the network's checks, in order of time.
        flagged: number of days that failed a quality check and are left out.
        missing: number of days without a value between the first and the last day.
    """

    station: str
    name: str
    element: str
    cells: tuple[DailyValue, ...]
    flagged: int
    missing: int

    @property
    def years(self) -> list[int]:
        """Years that have a value."""
        return sorted({cell.year for cell in self.cells})


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from the record of one station; targets are in inches or degrees Fahrenheit.

    Args:
        location: a file, or a folder of files.
        options: `station=NAME` or number, if the file has several; `element=prcp` (`snow`, `snwd`, `tmax`, `tmin`);
            `year=1990` for one year, `year=1950-1999` for a mean over years (default: all years); `test=11,12` the
            test months, or `seed=N` to draw two; `inputs=day`, or `season` for day, sine and cosine;
            `log` for log(1 + amount in the unit of the file: hundredths of an inch of rain).
    """
    path = local_path(location)
    elements = [element.lower() for element in UNITS]
    element = one_of((options.get("element") or "prcp").lower(), "element", elements).upper()
    known = _find_stations(path)
    number = _number(path, known, options.get("station", ""))
    return _task(_record(number, known[number], element), options)


def station_tasks(location: str, options: Mapping[str, str] | None = None) -> list[Task]:
    """One task for every station of a file or folder; the data string of each reads it again."""
    path, tasks = local_path(location), []
    for number in _find_stations(path):
        own = {**(options or {}), "station": number}
        source = DataString("ushcn", str(path), tuple(sorted(own.items())))
        tasks.append(replace(read(location, own), source=str(source)))
    return tasks


def stations(path: Path) -> dict[str, str]:
    """Numbers of the stations at a path, with their names."""
    return {number: station.name for number, station in _find_stations(path).items()}


def record(path: Path, station: str, element: str = "PRCP") -> StationRecord:
    """The record of the station with that number; an error in the format is refused with its line."""
    known = _find_stations(path)
    require(station in known, f"{path} has no station {station!r}; it has {_listed(known)}")
    return _record(station, known[station], element)


def _record(number: str, station: Station, element: str) -> StationRecord:
    cells: dict[tuple[int, int, int], DailyValue] = {}
    flagged = 0
    for file in station.files:
        for line, cell, quality in _csv_cells(file, element) if _is_csv(file) else _fixed_cells(file, number, element):
            day = cell[:3]
            if day in cells:
                raise DataError(f"{file}, line {line}: {date(*day)} occurs twice; keep one")
            if quality == " ":
                cells[day] = cell
            flagged += quality != " "
    if not cells:
        files = ", ".join(map(str, station.files))
        raise DataError(f"{files} has no value of {element} for {station.name}; choose another element or station")
    values = tuple(cells[day] for day in sorted(cells))
    span = (date(*values[-1][:3]) - date(*values[0][:3])).days + 1
    return StationRecord(number, station.name, element, values, flagged, max(0, span - len(values) - flagged))


def _task(measured: StationRecord, options: Mapping[str, str]) -> Task:
    cells, period = _select_years(measured, options.get("year", ""))
    test_months = _test_months(options)
    days = np.array([date(*cell[:3]).timetuple().tm_yday for cell in cells], np.float64)
    values = np.array([cell.value for cell in cells], np.float64)
    test = np.isin([cell.month for cell in cells], test_months)
    for split, count in (("training", (~test).sum()), ("test", test.sum())):
        if count < 2:
            raise DataError(
                f"{measured.name}, {period}: {count} days are left for the {split} set (test months "
                f"{', '.join(map(str, test_months))}), expected 2 or more; choose another year or other months"
            )
    x = days[:, None]
    if one_of(options.get("inputs") or "day", "inputs", INPUTS) == "season":
        angle = 2 * np.pi * days / max(365, int(days.max()))
        x = np.stack([days, np.sin(angle), np.cos(angle)], axis=1)
    y, column = _targets(values, measured.element, flag(options["log"], "log") if "log" in options else False)
    name = f"{measured.name}, {period}"
    return Task.from_arrays(name, x[~test], y[~test], x[test], y[test], likelihood="gaussian", classes=[column])


def _targets(values: np.ndarray[Any, Any], element: str, log: bool) -> tuple[np.ndarray[Any, Any], str]:
    """Values in the unit of the element, or their logarithm, and the name of the column."""
    per_unit, unit = UNITS[element]
    if not log:
        return values / per_unit, f"{element.lower()} [{unit}]"
    require(element in AMOUNTS, f"log is for amounts ({', '.join(AMOUNTS).lower()}), not for {element.lower()}")
    return np.log1p(values), f"log(1 + {element.lower()} / {1 / per_unit:g} {unit})"


def _select_years(measured: StationRecord, wanted: str) -> tuple[Sequence[DailyValue], str]:
    """The values of one year, or means over years by calendar day, without 29 February."""
    match = re.fullmatch(r"(\d{4})(?:-(\d{4}))?", wanted)
    years = measured.years
    known = f"{measured.name} has {_ranges(years)}"
    require(not wanted or match is not None, f"year must be like 1990 or 1950-1999, got {wanted!r}; {known}")
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (years[0], years[-1])
    cells = [cell for cell in measured.cells if first <= cell.year <= last]
    require(bool(cells), f"there is no value in year={wanted}; {known}")
    if match and not match[2]:
        return cells, wanted
    pools: dict[tuple[int, int], list[float]] = {}
    for cell in cells:
        pools.setdefault(cell[1:3], []).append(cell.value)
    pools.pop((2, 29), None)
    means = [DailyValue(COMMON_YEAR, *day, sum(pools[day]) / len(pools[day])) for day in sorted(pools)]
    return means, f"mean of {first}-{last}"


def _test_months(options: Mapping[str, str]) -> tuple[int, ...]:
    require(not ("test" in options and "seed" in options), "got test=… and seed=…, which both set the months; give one")
    if "seed" in options:
        drawn = Streams(whole(options["seed"], "seed")).numpy("months").choice(12, size=2, replace=False)
        return tuple(sorted(int(month) + 1 for month in drawn))
    if "test" not in options:
        return TEST_MONTHS
    months = sorted({whole(month, "test", least=1) for month in names(options["test"], "test")})
    require(months[-1] <= 12, f"test must be months from 1 to 12, as in test=11,12; got {options['test']!r}")
    require(len(months) < 12, "test names all twelve months; leave some for training")
    return tuple(months)


def _number(path: Path, stations: Mapping[str, Station], wanted: str) -> str:
    """The number of the wanted station: by number, by name, or by words of its name."""
    word = wanted.casefold()
    known = {number: station.name.casefold() for number, station in stations.items()}
    exact = [number for number, name in known.items() if word in (number.casefold(), name)]
    near = [number for number, name in known.items() if word and re.search(rf"\b{re.escape(word)}\b", name)]
    matches = exact or near if wanted else list(known)
    if len(matches) == 1:
        return matches[0]
    fault = f"{len(matches) or 'no'} stations match {wanted!r}" if wanted else f"there are {len(matches)} stations"
    raise OptionError(f"{fault}; choose one with ?station=…; {path} has {_listed(stations)}")


def _listed(stations: Mapping[str, Station]) -> str:
    shown = [number if name == number else f"{number} ({name})" for number, (name, _) in stations.items()]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} others" if len(shown) > 12 else "") or "none"


def _find_stations(path: Path) -> dict[str, Station]:
    stations: dict[str, Station] = {}
    for file in _files(path):
        for number, name in _stations_of(file).items():
            stations.setdefault(number, Station(name, [])).files.append(file)
    return dict(sorted(stations.items()))


def _files(path: Path) -> list[Path]:
    """The data files at a path; a plain file goes before its compressed copy."""
    if not path.exists():
        raise DataError(
            f"there is no file or folder {path}; name state files such as state37_RI.txt, or csv lines "
            f"year,month,day,value"
        )
    if not path.is_dir():
        return [path]
    patterns = [f"{name}{ending}" for ending in (".gz", "") for name in ("state*.txt", "us.txt", "*.csv")]
    files = {file.name.removesuffix(".gz"): file for pattern in patterns for file in sorted(path.glob(pattern))}
    if not files:
        raise DataError(f"{path} has no state*.txt, us.txt or *.csv file, plain or .gz; put one there")
    return [files[name] for name in sorted(files)]


def _is_csv(file: Path) -> bool:
    return file.name.removesuffix(".gz").endswith(".csv")


def _stations_of(file: Path) -> dict[str, str]:
    """Numbers of the stations of one file, with their names from the inventory in its folder."""
    inventory = file.parent / INVENTORY
    lines = text_content(inventory).splitlines() if inventory.is_file() else []
    known = {line[:6]: " ".join(line[36:66].split()) for line in lines if len(line) > 36}
    if _is_csv(file):
        digits = re.search(r"(?<!\d)\d{6}(?!\d)", plain_stem(file))
        numbers = [digits[0] if digits else plain_stem(file)]
    else:
        numbers = sorted({line[:6] for _, line in _fixed_lines(file)})
    return {number: known.get(number) or number for number in numbers}


def _csv_cells(file: Path, element: str) -> Iterator[tuple[int, DailyValue, str]]:
    """Line number, value and a blank flag of each day of a csv file, without empty, NA and −9999 values."""
    require(element == "PRCP", f"{file} has precipitation only; leave element={element.lower()} out")
    for number, line in enumerate(text_content(file).splitlines(), 1):
        texts = [text.strip() for text in line.split(",")]
        if not line.strip() or (number == 1 and texts[0].casefold() == "year"):
            continue
        if len(texts) != 4:
            raise DataError(
                f"{file}, line {number}: got {quoted(line.strip())}, expected year,month,day,value; correct it"
            )
        texts[3] = str(MISSING) if texts[3] in ("", "NA") else texts[3]
        cell = DailyValue(*(_whole(text, file, number) for text in texts))
        _check(cell, element, file, number)
        if cell.value != MISSING:
            yield number, cell, " "


def _fixed_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Numbers and lines of a state file, each line a month of one element."""
    for number, line in enumerate(text_content(file).splitlines(), 1):
        if not line.strip():
            continue
        if line[12:HEAD] not in UNITS or not HEAD < len(line) <= WIDTH or not (line.isascii() and line[:12].isdigit()):
            raise DataError(
                f"{file}, line {number}: got {len(line)} characters that begin with {line[:HEAD]!r}, expected {WIDTH}: "
                f"station, year, month, one of {', '.join(UNITS)}, and 31 days; fetch the file again"
            )
        yield number, line


def _fixed_cells(file: Path, station: str, element: str) -> Iterator[tuple[int, DailyValue, str]]:
    """Line number, value and quality flag of each day of a station, without missing days."""
    for number, line in _fixed_lines(file):
        if line[:6] != station or line[12:HEAD] != element:
            continue
        year, month, padded = int(line[6:10]), int(line[10:12]), line.ljust(WIDTH)
        for day, start in enumerate(range(HEAD, WIDTH, CELL), 1):
            cell = DailyValue(year, month, day, _whole(padded[start : start + 5], file, number))
            if cell.value != MISSING:
                _check(cell, element, file, number)
                yield number, cell, padded[start + 6]


def _check(cell: DailyValue, element: str, file: Path, number: int) -> None:
    """Refuse days that do not exist, amounts below zero and values of more than five digits."""
    year, month, day, value = cell
    if abs(value) >= 10**5:
        raise DataError(f"{file}, line {number}: {element} of {value} is not a measurement; correct it")
    if not (1 <= year <= 9999 and 1 <= month <= 12 and (1 <= day <= 28 or 28 < day <= monthrange(year, month)[1])):
        raise DataError(f"{file}, line {number}: there is no day {day} in month {month} of year {year}; correct it")
    if element in AMOUNTS and value < 0 and value != MISSING:
        raise DataError(f"{file}, line {number}: {element} of {value} on {date(*cell[:3])} is below zero; correct it")


def _whole(text: str, file: Path, number: int) -> int:
    value = whole_number(text.strip())
    if value is None:
        raise DataError(f"{file}, line {number}: got {quoted(text)}, expected a whole number; correct it")
    return value


def _ranges(years: Sequence[int]) -> str:
    """Years as ranges.

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
