"""Means of the measured cells with 95 % intervals, and paired differences between ways."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MEASURES = ("rmse", "nll", "coverage")
DRAWS = 2000
MINE = "network, blended"


def summary(rows: Mapping[str, Any]) -> dict[str, Any]:
    """All sections that were measured."""
    results: dict[str, Any] = {"sinusoids": {}, "malaria": {}, "seconds": seconds(rows)}
    for kind in sorted({name.split("|")[1] for name in rows if name.startswith("sinusoids|")}):
        results["sinusoids"][kind] = sinusoids(rows, kind)
    if any(name.startswith("rain|") for name in rows):
        results["rain"] = rain(rows)
    for pair in dict.fromkeys(name.split("|")[1] for name in rows if name.startswith("malaria|")):
        results["malaria"][pair] = malaria(rows, pair)
    return results


def seconds(rows: Mapping[str, Any]) -> dict[str, float]:
    """Process time of each section."""
    parts: dict[str, float] = {}
    for name, row in rows.items():
        section = name.split("|")[0]
        parts[section] = round(parts.get(section, 0.0) + row["seconds"], 1)
    return parts


def sinusoids(rows: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """By way: each measure over source networks and their tasks; differences are paired by task."""
    cells = {section: _numbered(rows, section, kind) for section in ("sinusoids", "meta")}
    ways = {
        way: np.array([row["rows"][way] for row in some]) for some in cells.values() if some for way in some[0]["rows"]
    }
    facts = [row["facts"] for row in cells["sinusoids"]]
    return {"sources": len(cells["sinusoids"]), "tasks": len(ways[MINE][0]), "facts": facts, **_compared(ways, MINE)}


def rain(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Over pairs of source and target station, each the mean over seeds."""
    cells: dict[str, dict[str, list[list[float]]]] = {}
    for name, row in rows.items():
        if name.startswith("rain|"):
            source = name.split("|")[1]
            for key, score in row["rows"].items():
                target, way = key.split("|")
                cells.setdefault(way, {}).setdefault(f"{source} to {target}", []).append(score)
    ways = {way: np.array([[np.mean(some, axis=0)] for some in pairs.values()]) for way, pairs in cells.items()}
    return {"pairs": len(ways[MINE]), "targets": _by_target(cells), **_compared(ways, MINE)}


def _by_target(cells: Mapping[str, Mapping[str, list[list[float]]]]) -> dict[str, dict[str, list[float]]]:
    """Mean scores of each way at each target station."""
    results: dict[str, dict[str, list[list[float]]]] = {}
    for way, pairs in cells.items():
        for pair, some in pairs.items():
            results.setdefault(pair.split(" to ")[1], {}).setdefault(way, []).extend(some)
    return {
        target: {way: np.mean(some, axis=0).round(4).tolist() for way, some in ways.items()}
        for target, ways in results.items()
    }


def malaria(rows: Mapping[str, Any], pair: str) -> dict[str, Any]:
    """Root mean square errors over splits, by the number of places given."""
    cells = _numbered(rows, "malaria", pair)
    errors = {way: np.array([row["rows"][way] for row in cells]) for way in cells[0]["rows"]}
    means = {way: [_interval(some[:, [index], None]) for index in range(some.shape[1])] for way, some in errors.items()}
    less = {
        way: [_interval((errors["network"] - some)[:, [index], None]) for index in range(some.shape[1])]
        for way, some in errors.items()
        if way != "network"
    }
    return {"splits": len(cells), "ways": means, "network less": less}


def _compared(ways: Mapping[str, Array], mine: str) -> dict[str, Any]:
    """Means of scores `[S, T, 3]`, and of one method minus each other method."""
    return {
        "ways": {
            way: {
                **{name: _interval(some[..., [index]]) for index, name in enumerate(MEASURES)},
                "median nll": round(float(np.median(some[..., 1])), 4),
                "coverage by source": [round(float(numbered), 4) for numbered in some[..., 2].mean(1)],
            }
            for way, some in ways.items()
        },
        "less": {
            first: {
                way: {
                    name: _interval(_paired(ways[first], some)[..., [index]]) for index, name in enumerate(MEASURES[:2])
                }
                for way, some in ways.items()
                if way != first
            }
            for first in (mine, "network meta-learned, blended")
            if first in ways
        },
    }


def _paired(first: Array, other: Array) -> Array:
    """Differences over the source networks that both have."""
    both = min(len(first), len(other))
    return first[:both] - other[:both]


def _numbered(rows: Mapping[str, Any], section: str, kind: str) -> list[Any]:
    results = [(int(name.split("|")[2]), row) for name, row in rows.items() if name.startswith(f"{section}|{kind}|")]
    return [row for _, row in sorted(results, key=lambda numbered: numbered[0])]


def _interval(values: Array) -> dict[str, float]:
    """Mean of `[S, T, 1]` and a 95 % interval by a bootstrap over the first axis and, within it, the second."""
    rng = np.random.default_rng(0)
    flat = values[..., 0]
    size, inner = flat.shape
    drawn = []
    for _ in range(DRAWS):
        some = flat[rng.integers(size, size=size)]
        drawn.append(np.take_along_axis(some, rng.integers(inner, size=(size, inner)), 1).mean())
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {"mean": round(float(flat.mean()), 4), "low": round(float(low), 4), "high": round(float(high), 4)}
