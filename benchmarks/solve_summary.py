"""Statistics of the solve benchmark, from the result files of its runs."""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import norm, t

from nearkin.tasks.metrics import share_interval
from solve_tasks import IMAGES

Row = dict[str, Any]
PEER = "autogluon"
SIMPLE_MODELS = ("svm", "boosting", "boosting, stopped", "forest", "logistic", "mlp")
Z = float(norm.ppf(0.975))


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Mean difference of scores of the same samples, and the half width of its 95 % interval."""
    differences = np.asarray(first) - np.asarray(second)
    return float(differences.mean()), float(Z * differences.std() / len(differences) ** 0.5)


def mean_with_half(values: dict[str, list[float]]) -> dict[str, float]:
    """Mean over data sets of the mean over seeds, with its 95 % half width (Student, over data sets)."""
    means = [statistics.fmean(of_seeds) for of_seeds in values.values()]
    half = float("inf")
    if len(means) > 1:
        half = float(t.ppf(0.975, len(means) - 1)) * statistics.stdev(means) / len(means) ** 0.5
    return {"mean": statistics.fmean(means), "half": half, "runs": sum(map(len, values.values()))}


def compared(rows: list[Row]) -> list[Row]:
    """One entry for each data set and seed: solve beside its rivals on the same test samples."""
    entries = []
    for data, seed in dict.fromkeys((row["data"], row["seed"]) for row in rows):
        runs = {row["method"]: row for row in rows if (row["data"], row["seed"]) == (data, seed)}
        solve = runs.pop("solve", None)
        rivals = {name: row for name, row in runs.items() if not name.startswith("solve") and name != PEER}
        rivals = {name: row for name, row in rivals.items() if "scores" in row}
        if solve is None or not rivals:
            continue
        best = max(rivals, key=lambda name: rivals[name]["metric"])
        entry: Row = {name: value for name, value in solve.items() if name not in ("scores", "method", "seconds")}
        peer = runs.get(PEER, {})
        others = {**rivals, **({PEER: peer} if "scores" in peer else {})}
        entry |= {
            "images": data in IMAGES,
            "best": best,
            "failed": sorted(name for name, row in runs.items() if "error" in row),
            "rivals": {name: {key: row[key] for key in ("metric", "cpu", "wall")} for name, row in others.items()},
        }
        if "scores" in solve:
            differences = {name: paired(solve["scores"], row["scores"]) for name, row in others.items()}
            entry |= {"differences": differences, "difference": differences[best][0], "noise": differences[best][1]}
        entries.append(entry)
    return entries


def within_noise(entry: Row) -> bool:
    """Whether solve is above the best rival, or below it by no more than the noise; a failed run is not."""
    return "difference" in entry and entry["difference"] >= -entry["noise"]


def share(values: Sequence[bool]) -> Row:
    """How many of them are true, with the 95 % interval of the share."""
    if not values:
        return {"count": 0, "of": 0}
    low, high = share_interval(sum(values) / len(values), len(values))
    return {"count": sum(values), "of": len(values), "low": low, "high": high}


def covered(entry: Row, noise: bool) -> bool:
    """Whether the fresh metric lies in the stated interval; with noise, in one widened by that of the fresh samples."""
    (low, high), fresh = entry["interval"], entry["fresh"]
    extra = Z * entry["fresh_error"] if noise else 0.0
    below, above = (np.hypot(max(0.0, side), extra) for side in (entry["stated"] - low, high - entry["stated"]))
    return bool(entry["stated"] - below <= fresh <= entry["stated"] + above)


def chance_of_cover(entry: Row) -> float:
    """Probability that a perfect interval of this width holds the fresh metric, which has noise of its own."""
    half = (entry["interval"][1] - entry["interval"][0]) / 2
    if half == 0:
        return 0.0
    return float(2 * norm.cdf(half / np.hypot(half / Z, entry["fresh_error"])) - 1)


def coverage(entries: list[Row]) -> Row:
    """Share of stated intervals that hold the fresh metric."""
    solved = [entry for entry in entries if "interval" in entry]
    if not solved:
        return {"plain": share([])}
    return {
        "plain": share([covered(entry, noise=False) for entry in solved]),
        "expected": statistics.fmean(map(chance_of_cover, solved)),
        "with_noise": share([covered(entry, noise=True) for entry in solved]),
        "fresh_half": statistics.fmean(Z * entry["fresh_error"] for entry in solved),
        "stated_half": statistics.fmean((entry["interval"][1] - entry["interval"][0]) / 2 for entry in solved),
    }


def by_rival(entries: list[Row]) -> dict[str, Row]:
    """Mean difference of solve to every rival, and the rival's CPU time."""
    names = dict.fromkeys(name for entry in entries for name in entry.get("differences", ()))
    rivals = {}
    for name in names:
        values: dict[str, list[float]] = {}
        for entry in entries:
            if name in entry.get("differences", ()):
                values.setdefault(entry["data"], []).append(entry["differences"][name][0])
        cpu = [entry["rivals"][name]["cpu"] for entry in entries if name in entry["rivals"]]
        behind = [
            entry["differences"][name][0] < -entry["differences"][name][1]
            for entry in entries
            if name in entry.get("differences", ())
        ]
        rivals[name] = {
            **mean_with_half(values),
            "cpu": statistics.fmean(cpu),
            "most_cpu": max(cpu),
            "behind": sum(behind),
        }
    return rivals


def loads(rows: list[Row]) -> list[Row]:
    """Pairs of runs with the same number of seconds: a loaded one, and one with a limit of CPU time without load.

    The second stands for an idle machine, where CPU time and wall time are the same; other work does not change it.
    """
    runs = {(row["data"], row["seed"], row["method"]): row for row in rows if row["method"].startswith("solve")}
    pairs = []
    for (data, seed, method), loaded in runs.items():
        free = runs.get((data, seed, "solve"))
        if free is None or free is loaded:
            continue
        clock = method.split(", ")[1]
        load = int(method.rsplit(" ", 1)[1])
        pair: Row = {"data": data, "seed": seed, "load": load, "clock": clock, "same": False}
        pair["simulated"] = "simulated" in method
        if "metric" in free and "metric" in loaded:
            low, high = free["interval"]
            pair |= {
                "free": free["metric"],
                "loaded": loaded["metric"],
                "half": (high - low) / 2,
                "same": bool(abs(free["metric"] - loaded["metric"]) < (high - low) / 2),
                "chosen": [free["chosen"], loaded["chosen"]],
                "cpu": [free["cpu"], loaded["cpu"]],
                "overrun": [free["overrun"], loaded["overrun"]],
            }
            if "slowdown" in free:
                expected = (loaded["load"] or {}).get("interval") or loaded["interval"]
                pair |= {
                    "seconds": loaded["seconds"],
                    "expected": expected,
                    "stated": bool(expected[0] <= free["metric"] <= expected[1]),
                    "answered": [free["answered"], loaded["answered"]],
                    "slowdown": [free["slowdown"], loaded["slowdown"]],
                }
        pairs.append(pair)
    return pairs


def short_runs(rows: list[Row], short: list[Row]) -> list[Row]:
    """Shorter runs of solve beside the simple model that is best on the test samples of all in the long runs."""
    pairs = []
    for solve in short:
        known = [row for row in rows if (row["data"], row["seed"]) == (solve["data"], solve["seed"])]
        simple = [row for row in known if row["method"] in SIMPLE_MODELS and "scores" in row]
        if solve["method"] != "solve" or "scores" not in solve or not simple:
            continue
        best = max(simple, key=lambda row: row["metric"])
        difference, noise = paired(solve["scores"], best["scores"])
        facts = {name: solve[name] for name in ("data", "seed", "chosen", "metric", "answered", "overrun")}
        others = {"simple": best["method"], "simple_metric": best["metric"], "difference": difference, "noise": noise}
        pairs.append({**facts, **others})
    return pairs


def summary(rows: list[Row], short: list[Row]) -> Row:
    """Figures of the benchmark: a list of runs, what they show together, the test under load, and shorter runs."""
    entries = compared(rows)
    groups = {
        "all": entries,
        "images": [entry for entry in entries if entry["images"]],
        "tables": [entry for entry in entries if not entry["images"]],
    }
    overruns = [entry["overrun"] for entry in entries if "overrun" in entry]
    answered = [entry["answered"] for entry in entries if "answered" in entry]
    pairs, shorter = loads(rows), short_runs(rows, short)
    best: dict[str, list[float]] = {}
    for entry in entries:
        if "difference" in entry:
            best.setdefault(entry["data"], []).append(entry["difference"])
    return {
        "summary": {
            "within_noise": {name: share([within_noise(entry) for entry in part]) for name, part in groups.items()},
            "best_rival": mean_with_half(best) if best else None,
            "rivals": {name: by_rival(part) for name, part in groups.items()},
            "coverage": {name: coverage(part) for name, part in groups.items()},
            "answered": {"mean": statistics.fmean(answered), "worst": max(answered)},
            "overrun": {"mean": statistics.fmean(overruns), "worst": max(overruns)},
            "short": share([within_noise(pair) for pair in shorter]),
            "report_seconds": statistics.fmean(e["report"]["cpu"] for e in entries if "report" in e),
            "clocks": sorted({entry["clock"] for entry in entries if "clock" in entry}),
            "chosen": dict(Counter(entry.get("chosen", "failed") for entry in entries).most_common()),
            "load": share([pair["same"] for pair in pairs]),
        },
        "runs": entries,
        "load": pairs,
        "short": shorter,
    }
