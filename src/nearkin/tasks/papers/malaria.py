"""Prevalence of malaria by place: the share of people found with the parasite, and how sure one can be of it.

Maddox et al. (2019) regress the parasite rate of a map of Nigeria on longitude and latitude, train on the map of 2012
and transfer to 2016. That map (`malaria_df.hdf5`, from the Malaria Atlas Project) cannot be passed on; `malaria:FILE`
reads it as csv. Two surveys stand in for it: `malaria?place=kenya` (8,204 people of 46 clusters in the highlands, each
cluster surveyed at its school and in its community, so that the two are a transfer over the same land) and
`malaria?place=gambia` (2,035 children of 65 villages). Being surveys of a few dozen points, they are far rougher than a
modelled map of thousands.

Three layouts are told apart by their columns, in csv or `.csv.gz`:

| layout | columns | variance of the share |
| --- | --- | --- |
| people | a place, and `pos` or `RDT` of 0 and 1 | binomial, of those examined at the place |
| points | a place, `examined` and `positive` (surveys as the Malaria Atlas Project gives them) | binomial |
| map | a place, `mean`, and where there is one `std_dev` | as given, else zero |

Task has no weights; the variance of every target lies beside the targets, and `malaria_noise` finds it again after
`limit` or `split`.
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
from nearkin.tasks.datastring import flag, names, whole
from nearkin.tasks.examples import Examples
from nearkin.tasks.readers import table
from nearkin.tasks.rows import Chosen, Joined, Rows, Values
from nearkin.tasks.task import Task

OPTIONS: tuple[str, ...] = ("target", "by", "survey", "year", "inside", "covariates")
PLACES = {"kenya": "kenya_highlands_rdt.csv", "gambia": "gambia.csv"}

LONGITUDE, LATITUDE = ("longitude", "long", "lon", "x"), ("latitude", "lat", "y")
RESULT, YEAR = ("rdt", "pos"), ("year", "year_start")
LARGEST = 1e12  # of any cell: counts and coordinates are far smaller, and its square has no overflow
TARGETS, GROUPS = ("share", "logit"), ("cluster", "place")

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Measured(Values):
    """Rows of a tensor, each cell with the variance of its measurement `[N, K]`.

    >>> rows = Measured(torch.tensor([[0.5]]), torch.tensor([[0.01]]))
    >>> rows.take(torch.tensor([0])), variance(rows)
    (tensor([[0.5000]]), tensor([[0.0100]]))
    """

    variance: Tensor


def variance(rows: Rows) -> Tensor:
    """Variances `[N, K]` of measured rows, whatever was chosen or joined since."""
    if isinstance(rows, Measured):
        return rows.variance
    if isinstance(rows, Chosen):
        return variance(rows.rows)[rows.index]
    if isinstance(rows, Joined):
        return torch.cat([variance(rows.first), variance(rows.second)])
    raise DataError("these targets carry no variance; read the task with malaria or malaria:FILE")


def malaria_noise(task: Task) -> tuple[Tensor, Tensor]:
    """Variances `[N]` of training and test targets, in the units that networks see (after the target's scaling)."""

    def scaled(part: Examples) -> Tensor:
        std = part.target_scaling.std
        found = variance(part.targets)
        return (found if std is None else found / std.square()).squeeze(1)

    return scaled(task.train), scaled(task.test)


def read(location: str, options: Mapping[str, str]) -> Task:
    """A task from one file; a fifth of the points is set aside, inputs and targets are standardised.

    Args:
        location: the file.
        options: `target=share`, or `logit` for log((k + ½) / (n − k + ½)) of k positive among n; `by=cluster` (the
            default where people have a cluster) or `place`; `survey=school` and `year=2012` keep the rows of one
            survey or year; `inside` those that `is_ng` marks as Nigeria; `covariates=a,b` are columns to average over
            the place and to put beside its coordinates.
    """
    path = local_path(location)
    columns = _kept(path, _columns(path), options)
    kind = options.get("target") or "share"
    require(kind in TARGETS, f"target must be {' or '.join(TARGETS)}, got {kind!r}")
    wanted = names(options["covariates"], "covariates") if options.get("covariates") else []
    inputs = [_need(path, columns, LONGITUDE), _need(path, columns, LATITUDE)]
    inputs += [_need(path, columns, (name,)) for name in wanted]
    require(len(set(inputs)) == len(inputs), "covariates names a column twice, or a coordinate; name others")
    x = np.stack([_numbers(path, columns, name) for name in inputs], axis=1)
    result = _find(columns, RESULT)
    examined, positive = _find(columns, ("examined",)), _find(columns, ("positive",))
    if result is not None:
        sick = _numbers(path, columns, result)
        require(
            bool(np.isin(sick, (0, 1)).all()), f"{path}: {result} must be 0 or 1 for each person; mend it", DataError
        )
        x, tested, found = _grouped(x, sick, _groups(path, columns, x, options.get("by", "")))
        y, noise = _share(tested, found, kind)
    elif examined is not None and positive is not None:
        tested, found = _numbers(path, columns, examined), _numbers(path, columns, positive)
        sound = bool(((tested > 0) & (found >= 0) & (found <= tested)).all())
        require(sound, f"{path}: positive must lie between 0 and examined, and examined above 0; mend it", DataError)
        y, noise = _share(tested, found, kind)
    else:
        y, noise = _mapped(path, columns, kind)
    targets = Measured(_column(y), _column(noise))
    train = Examples(Values(torch.from_numpy(x).to(torch.float32)), targets)
    return Task.of(_plain(path), train, None, likelihood="gaussian", classes=(f"prevalence ({kind})",))


def read_place(folder: Path, options: Mapping[str, str]) -> Task:
    """A task from one of the surveys that stand in for the map, in a folder of them."""
    place = options.get("place") or ""
    require(place in PLACES, f"malaria wants ?place={' or ?place='.join(PLACES)}, or malaria:FILE; got {place!r}")
    for path in (folder / PLACES[place], folder / f"{PLACES[place]}.gz"):
        if path.is_file():
            return read(str(path), options)
    raise DataError(f"{folder} has no {PLACES[place]}, plain or .gz; put it there, or read another with malaria:FILE")


def _share(tested: Array, found: Array, kind: str) -> tuple[Array, Array]:
    """Share or empirical logit of k among n, and its variance with half a person added to either side.

    >>> _share(np.array([9.0]), np.array([0.0]), "share")
    (array([0.]), array([0.00527778]))
    """
    sick, well = found + 0.5, tested - found + 0.5
    if kind == "logit":
        return np.log(sick / well), 1 / sick + 1 / well
    return found / tested, sick * well / (tested + 1) ** 2 / tested


def _mapped(path: Path, columns: table.Columns, kind: str) -> tuple[Array, Array]:
    """Mean and variance of a modelled map; the logit's variance is carried over by its slope."""
    y = _numbers(path, columns, _need(path, columns, ("mean",)))
    given = _find(columns, ("std_dev",))
    noise = np.zeros_like(y) if given is None else np.square(_numbers(path, columns, given))
    if kind == "share":
        return y, noise
    inner = bool(((y > 0) & (y < 1)).all())
    require(inner, f"{path}: a logit wants means between 0 and 1, got {y.min():g} to {y.max():g}; use target=share")
    return np.log(y / (1 - y)), noise / np.square(y * (1 - y))


def _groups(path: Path, columns: table.Columns, x: Array, by: str) -> Array:
    """The number `[N]` of each person's group."""
    require(by in ("", *GROUPS), f"by must be {' or '.join(GROUPS)}, got {by!r}")
    cluster = _find(columns, ("cluster",))
    if by == "cluster" and cluster is None:
        raise OptionError(f"{path} has no column cluster; use by=place, or leave it out")
    if cluster is None or by == "place":
        return np.unique(x[:, :2], axis=0, return_inverse=True)[1].reshape(-1)
    return np.unique(np.array(columns[cluster]), return_inverse=True)[1].reshape(-1)


def _grouped(x: Array, sick: Array, group: Array) -> tuple[Array, Array, Array]:
    """Mean inputs `[G, D]`, people examined `[G]` and found positive `[G]` of each group."""
    tested = np.bincount(group).astype(np.float64)
    means = np.stack([np.bincount(group, weights=column) / tested for column in x.T], axis=1)
    return means, tested, np.bincount(group, weights=sick)


def _kept(path: Path, columns: table.Columns, options: Mapping[str, str]) -> table.Columns:
    """The rows of the survey, the year and the country that are asked for."""
    keep = np.ones(len(next(iter(columns.values()))), np.bool_)
    for option, spellings in (("survey", ("survey",)), ("year", YEAR)):
        if option not in options:
            continue
        cells = np.array([cell.strip() for cell in columns[_need(path, columns, spellings)]])
        wanted = str(whole(options["year"], "year")) if option == "year" else options["survey"]
        there = sorted(set(cells.tolist()))
        require(wanted in there, f"{path} has no {option}={wanted}; it has {', '.join(there[:20])}")
        keep &= cells == wanted
    if "inside" in options and flag(options["inside"], "inside"):
        marks = columns[_need(path, columns, ("is_ng",))]
        keep &= np.array([cell.strip().lower() in ("1", "1.0", "true") for cell in marks])
    require(int(keep.sum()) >= 2, f"{path}: {int(keep.sum())} rows are left; keep more of them", DataError)
    index = np.flatnonzero(keep).tolist()
    return {name: tuple(cells[row] for row in index) for name, cells in columns.items()}


def _columns(path: Path) -> table.Columns:
    """The cells of the file as text.

    The original map is an hdf5 file. Readers of hdf5 unpickle what the file holds, which can run code, so someone who
    trusts the file converts it once.
    """
    require(
        path.suffix not in (".hdf5", ".h5", ".hdf"),
        f"{path} is hdf5, which can run code when it is read; if you trust it, convert it once with "
        f"pandas.read_hdf('{path.name}', 'full').to_csv('{path.stem}.csv') and read the csv file",
        DataError,
    )
    require(path.exists(), f"there is no file {path}; malaria wants the map or a survey as a csv table", DataError)
    return table.columns(path)


def _find(columns: table.Columns, spellings: Sequence[str]) -> str | None:
    """The column of one of these names, in any case of letters."""
    lower = {name.lower(): name for name in columns}
    return next((lower[name.lower()] for name in spellings if name.lower() in lower), None)


def _need(path: Path, columns: table.Columns, spellings: Sequence[str]) -> str:
    name = _find(columns, spellings)
    if name is None:
        raise DataError(
            f"{path} has no column {' or '.join(spellings)}; its columns are {', '.join(columns)}; tables of another "
            f"make are read with csv:FILE?target=COLUMN"
        )
    return name


def _numbers(path: Path, columns: table.Columns, name: str) -> Array:
    values = table.numbers(columns[name])
    if values is None:
        raise DataError(f"{path}: column {name} holds text, numbers are wanted; leave it out")
    bad = ~np.isfinite(values)
    if bad.any():
        raise DataError(
            f"{path}: {int(bad.sum())} cells of {name} are missing, of {len(bad)}; fill or remove those rows"
        )
    largest = float(np.abs(values).max())
    require(largest < LARGEST, f"{path}: {name} holds {largest:g}, which is no measurement; correct it", DataError)
    return values


def _column(values: Array) -> Tensor:
    return torch.from_numpy(values[:, None]).to(torch.float32)


def _plain(path: Path) -> str:
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]
