"""Prevalence of malaria by location: the share of people with the parasite, and its variance.

Maddox et al. (2019) regress the parasite rate of a map of Nigeria on longitude and latitude, train on the map of 2012
and transfer to 2016. That map (`malaria_df.hdf5`, from the Malaria Atlas Project) cannot be redistributed;
`malaria:FILE` reads it as csv. Two surveys replace it: `malaria?place=kenya` (8,204 people of 46 clusters in the
highlands; each cluster has a survey of its school and of its community, two tasks over the same area) and
`malaria?place=gambia` (2,035 children of 65 villages). With a few dozen points, these surveys are far coarser than a
modelled map of thousands.

The columns of a csv or `.csv.gz` file decide between three layouts:

| layout | columns | variance of the share |
| --- | --- | --- |
| people | coordinates, and `pos` or `RDT` of 0 and 1 | binomial, of the people examined at the location |
| points | coordinates, `examined` and `positive` (surveys of the Malaria Atlas Project) | binomial |
| map | coordinates, `mean`, and optionally `std_dev` | from `std_dev`, else zero |

The variance of every target is stored with the targets; `malaria_noise` returns it, also after `limit` or `split`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.opening import local_path
from nearkin.tasks.datastring import flag, names, one_of, whole
from nearkin.tasks.examples import Examples
from nearkin.tasks.readers import table
from nearkin.tasks.readers.language import plain_stem
from nearkin.tasks.rows import Chosen, Joined, Rows, Values
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("target", "by", "survey", "year", "inside", "covariates")
PLACES = {"kenya": "kenya_highlands_rdt.csv", "gambia": "gambia.csv"}

LONGITUDE, LATITUDE = ("longitude", "long", "lon", "x"), ("latitude", "lat", "y")
RESULT, YEAR = ("rdt", "pos"), ("year", "year_start")
LARGEST = 1e12  # of any cell: counts and coordinates are far smaller, and its square does not overflow
TARGETS, GROUPS = ("share", "logit"), ("cluster", "place", "")

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class MeasuredValues(Values):
    """Rows of a tensor with the variance `[N, K]` of each value.

    >>> rows = MeasuredValues(torch.tensor([[0.5]]), torch.tensor([[0.01]]))
    >>> rows.take(torch.tensor([0])), variance(rows)
    (tensor([[0.5000]]), tensor([[0.0100]]))
    """

    variance: Tensor


def variance(rows: Rows) -> Tensor:
    """Variances `[N, K]` of measured rows, also of chosen and joined ones."""
    if isinstance(rows, MeasuredValues):
        return rows.variance
    if isinstance(rows, Chosen):
        return variance(rows.rows)[rows.index]
    if isinstance(rows, Joined):
        return torch.cat([variance(rows.first), variance(rows.second)])
    raise DataError("these targets have no variance; read the task with malaria or malaria:FILE")


def malaria_noise(task: Task) -> tuple[Tensor, Tensor]:
    """Variances `[N]` of training and test targets, in the units of the scaled targets."""

    def scaled(examples: Examples) -> Tensor:
        std, noise = examples.target_scaling.std, variance(examples.targets)
        return (noise if std is None else noise / std.square()).squeeze(1)

    return scaled(task.train), scaled(task.test)


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from one file; a fifth of the points is the test set, inputs and targets are standardised.

    Args:
        location: the file.
        options: `target=share`, or `logit` for log((k + ½) / (n − k + ½)) of k positive among n; `by=cluster` (the
            default if people have a cluster) or `place`; `survey=school` and `year=2012` select the rows of one survey
            or year, `inside` those that `is_ng` marks as Nigeria; `covariates=a,b` are further input columns,
            averaged over each location.
    """
    path = local_path(location)
    columns = _selected_rows(path, _columns(path), options)
    kind = one_of(options.get("target") or "share", "target", TARGETS)
    covariates = names(options["covariates"], "covariates") if options.get("covariates") else []
    inputs = [
        _column_name(path, columns, spellings) for spellings in (LONGITUDE, LATITUDE, *((name,) for name in covariates))
    ]
    require(len(set(inputs)) == len(inputs), "covariates names a column twice, or a coordinate; name others")
    x = np.stack([_numbers(path, columns, name) for name in inputs], axis=1)
    result = _find(columns, RESULT)
    examined, positive = _find(columns, ("examined",)), _find(columns, ("positive",))
    if result is not None:
        infected = _numbers(path, columns, result)
        if not np.isin(infected, (0, 1)).all():
            raise DataError(f"{path}: {result} must be 0 or 1 for each person; fix it")
        group = _groups(path, columns, x, options.get("by", ""))
        tested, count = np.bincount(group).astype(np.float64), np.bincount(group, weights=infected)
        x = np.stack([np.bincount(group, weights=column) / tested for column in x.T], axis=1)
        y, noise = _share(tested, count, kind)
    elif examined is not None and positive is not None:
        tested, count = _numbers(path, columns, examined), _numbers(path, columns, positive)
        if not ((tested > 0) & (count >= 0) & (count <= tested)).all():
            raise DataError(f"{path}: positive must be between 0 and examined, and examined above 0; fix it")
        y, noise = _share(tested, count, kind)
    else:
        y, noise = _map_values(path, columns, kind)
    targets = MeasuredValues(*(torch.from_numpy(values[:, None]).to(torch.float32) for values in (y, noise)))
    train = Examples(Values(torch.from_numpy(x).to(torch.float32)), targets)
    return Task.of(plain_stem(path), train, None, likelihood="gaussian", classes=(f"prevalence ({kind})",))


def read_place(folder: Path, options: Mapping[str, str]) -> Task:
    """A task from the survey of Kenya or the Gambia in a folder."""
    place = options.get("place") or ""
    require(place in PLACES, f"malaria got place={place!r}; write ?place={' or ?place='.join(PLACES)}, or malaria:FILE")
    for path in (folder / PLACES[place], folder / f"{PLACES[place]}.gz"):
        if path.is_file():
            return read(str(path), options)
    raise DataError(f"{folder} has no {PLACES[place]}, plain or .gz; put it there, or read another with malaria:FILE")


def _share(tested: Array, positive: Array, kind: str) -> tuple[Array, Array]:
    """Share or empirical logit of k among n, and its variance with half a person added to both outcomes.

    >>> _share(np.array([9.0]), np.array([0.0]), "share")
    (array([0.]), array([0.00527778]))
    """
    yes, no = positive + 0.5, tested - positive + 0.5
    if kind == "logit":
        return np.log(yes / no), 1 / yes + 1 / no
    return positive / tested, yes * no / (tested + 1) ** 2 / tested


def _map_values(path: Path, columns: table.Columns, kind: str) -> tuple[Array, Array]:
    """Mean and variance of a modelled map; the variance of the logit follows from its derivative."""
    y = _numbers(path, columns, _column_name(path, columns, ("mean",)))
    deviation = _find(columns, ("std_dev",))
    noise = np.zeros_like(y) if deviation is None else np.square(_numbers(path, columns, deviation))
    if kind == "share":
        return y, noise
    inside = bool(((y > 0) & (y < 1)).all())
    require(inside, f"{path}: a logit needs means between 0 and 1, got {y.min():g} to {y.max():g}; use target=share")
    return np.log(y / (1 - y)), noise / np.square(y * (1 - y))


def _groups(path: Path, columns: table.Columns, x: Array, by: str) -> Array:
    require(by in GROUPS, f"by must be cluster or place, got {by!r}")
    cluster = _find(columns, ("cluster",))
    if by == "cluster" and cluster is None:
        raise OptionError(f"{path} has no column cluster; use by=place, or leave it out")
    if cluster is None or by == "place":
        return np.unique(x[:, :2], axis=0, return_inverse=True)[1].reshape(-1)
    return np.unique(np.array(columns[cluster]), return_inverse=True)[1].reshape(-1)


def _selected_rows(path: Path, columns: table.Columns, options: Mapping[str, str]) -> table.Columns:
    """The rows of the survey, the year and the country that the options name."""
    keep = np.ones(len(next(iter(columns.values()))), np.bool_)
    for option, spellings in (("survey", ("survey",)), ("year", YEAR)):
        if option not in options:
            continue
        cells = np.array([cell.strip() for cell in columns[_column_name(path, columns, spellings)]])
        wanted = str(whole(options["year"], "year")) if option == "year" else options["survey"]
        present = sorted(set(cells.tolist()))
        require(wanted in present, f"{path} has no {option}={wanted}; it has {', '.join(present[:20])}")
        keep &= cells == wanted
    if "inside" in options and flag(options["inside"], "inside"):
        marks = columns[_column_name(path, columns, ("is_ng",))]
        keep &= np.array([cell.strip().lower() in ("1", "1.0", "true") for cell in marks])
    index = np.flatnonzero(keep).tolist()
    if len(index) < 2:
        raise DataError(f"{path}: {len(index)} rows are left, expected 2 or more; select more of them")
    return {name: tuple(cells[row] for row in index) for name, cells in columns.items()}


def _columns(path: Path) -> table.Columns:
    """The cells of the file as text; hdf5, the format of the original map, is refused as its readers unpickle."""
    if path.suffix in (".hdf5", ".h5", ".hdf"):
        raise DataError(
            f"{path} is hdf5, which can run code when it is read; if you trust it, convert it once with "
            f"pandas.read_hdf('{path.name}', 'full').to_csv('{path.stem}.csv') and read the csv file"
        )
    if not path.exists():
        raise DataError(f"there is no file {path}; name the map or a survey as a csv table")
    return table.columns(path)


def _find(columns: table.Columns, spellings: Sequence[str]) -> str | None:
    """The column with one of these names, in upper or lower case."""
    lower = {name.lower(): name for name in columns}
    return next((lower[name.lower()] for name in spellings if name.lower() in lower), None)


def _column_name(path: Path, columns: table.Columns, spellings: Sequence[str]) -> str:
    name = _find(columns, spellings)
    if name is None:
        raise DataError(
            f"{path} has no column {' or '.join(spellings)}; its columns are {', '.join(columns)}; read other tables "
            f"with csv:FILE?target=COLUMN"
        )
    return name


def _numbers(path: Path, columns: table.Columns, name: str) -> Array:
    values = table.numbers(columns[name])
    if values is None:
        raise DataError(f"{path}: column {name} is text, expected numbers; leave it out")
    missing = int((~np.isfinite(values)).sum())
    if missing:
        raise DataError(f"{path}: {missing} of {len(values)} cells of {name} are missing; fill or remove those rows")
    largest = float(np.abs(values).max())
    if largest >= LARGEST:
        raise DataError(f"{path}: {name} has the value {largest:g}, which is not a measurement; correct it")
    return values
