"""Later runs of the solve benchmark: pairs of runs without and with load, and short runs, with seeds of their own."""

from collections.abc import Iterable
from typing import Any

from results import table
from solve_page import counted, points, short_table
from solve_summary import SIMPLE_MODELS, Row, loads, mean_with_half, share, short_runs, within_noise
from solve_tasks import IMAGES

KEPT = 1.1  # of the budget


def later(folders: Iterable[list[Row]], short_seconds: float, earlier: Row) -> Row:
    """Figures of the later runs, from the rows of each length of run, added to earlier figures."""
    rows = [row for folder in folders for row in folder]
    pairs = [pair for folder in _by_seconds(rows).values() for pair in loads(folder)]
    short = [row for row in rows if row.get("seconds") == short_seconds]
    shorter = [pair for pair in short_runs(short, short) if _complete(pair, short)]
    alone = [
        {name: row[name] for name in ("data", "seed", "metric", "answered")}
        for row in short
        if row["method"] == "solve" and "scores" in row and not _complete(row, short)
    ]
    pairs = _added(earlier["load"], pairs, ("data", "seed", "clock", "load", "simulated", "seconds"))
    shorter, alone = (
        _added(earlier[name], found, ("data", "seed")) for name, found in (("short", shorter), ("short_alone", alone))
    )
    groups = {name: [pair for pair in pairs if _name(pair) == name] for name in dict.fromkeys(map(_name, pairs))}
    return {
        "seeds": sorted({row["seed"] for row in (*pairs, *shorter, *alone)}),
        "short_seconds": short_seconds,
        "load": pairs,
        "short": shorter,
        "short_alone": alone,
        "summary": {
            "load": {
                name: {
                    "same": share([pair["same"] for pair in group]),
                    "stated": share([pair.get("stated", False) for pair in group]),
                    "in_time": share([max(pair["answered"]) <= KEPT for pair in group if "answered" in pair]),
                }
                for name, group in groups.items()
            },
            "short": share([within_noise(pair) for pair in shorter]),
            "short_in_time": share([pair["answered"] <= KEPT for pair in shorter]),
        },
    }


def _added(earlier: list[Row], found: list[Row], key: tuple[str, ...]) -> list[Row]:
    """Earlier rows and new ones; a new row replaces one with the same key."""
    by_key = {tuple(row.get(name) for name in key): row for row in (*earlier, *found)}
    return list(by_key.values())


def _complete(run: Row, rows: list[Row]) -> bool:
    """Whether all simple models of a run's data set and seed were fitted, two for images and all for tables."""
    names = {row["method"] for row in rows if (row["data"], row["seed"]) == (run["data"], run["seed"])}
    return {"svm", "forest"} <= names if run["data"] in IMAGES else set(SIMPLE_MODELS) <= names


def _by_seconds(rows: list[Row]) -> dict[float, list[Row]]:
    by_seconds: dict[float, list[Row]] = {}
    for row in rows:
        by_seconds.setdefault(row.get("seconds", 0.0), []).append(row)
    return by_seconds


def _name(pair: Row) -> str:
    """Kind of a pair."""
    noun = "simulated processes" if pair["simulated"] else "busy process" if pair["load"] == 1 else "busy processes"
    return f"{pair.get('seconds', 0):g} s of {pair['clock']} time, {pair['load']} {noun} for each core"


def peer_runs(rows: Iterable[Row], runs: Iterable[Row]) -> Row:
    """AutoGluon beside the stored metric of solve, on the same test samples."""
    solve = {(run["data"], run["seed"]): run["metric"] for run in runs}
    pairs = [
        {name: row[name] for name in ("data", "seed", "metric", "cpu", "wall", "version")}
        | {"solve": solve[row["data"], row["seed"]]}
        for row in rows
        if "metric" in row
    ]
    differences: dict[str, list[float]] = {}
    for pair in pairs:
        differences.setdefault(pair["data"], []).append(pair["solve"] - pair["metric"])
    return {"runs": pairs, "difference": mean_with_half(differences)}


def peer_section(figures: dict[str, Any]) -> list[str]:
    """Section of the page on AutoGluon with its neural networks."""
    if "peer" not in figures:
        return []
    pairs, mean = figures["peer"]["runs"], figures["peer"]["difference"]
    ahead = sum(pair["solve"] >= pair["metric"] for pair in pairs)
    slow = sum(pair["cpu"] < 0.8 * pair["wall"] for pair in pairs)
    versions = ", ".join(sorted({pair["version"] for pair in pairs}))
    head = ["data", "seed", "solve", "AutoGluon", "difference", "CPU s", "wall s"]
    lines = [
        [pair["data"], str(pair["seed"]), f"{pair['solve']:.4f}", f"{pair['metric']:.4f}",
         points(pair["solve"] - pair["metric"]), f"{pair['cpu']:.0f}", f"{pair['wall']:.0f}"]
        for pair in pairs
    ]  # fmt: skip
    return [
        "## AutoGluon with torch",
        "",
        f"AutoGluon {versions} in its own environment with torch, LightGBM, CatBoost, XGBoost and fastai installed, "
        f"default settings, one core and a limit of 30 s of wall time, beside the metrics of `solve` above (30 s of "
        f"CPU time). Mean difference over data sets {points(mean['mean'])} ± {100 * mean['half']:.2f} points; `solve` "
        f"is at least as good in {ahead} of {len(pairs)} runs. In {slow} runs other work took more than a fifth of the "
        f"wall time, so AutoGluon had less CPU time there; the metrics of `solve` are from earlier code.",
        "",
        table(head, lines),
        "",
    ]


def later_section(figures: dict[str, Any]) -> list[str]:
    """Section of the page."""
    if "later" not in figures:
        return []
    runs = figures["later"]
    found = runs["summary"]
    lines = [*peer_section(figures), "## Later runs", ""]
    lines += [
        f"Seeds {', '.join(map(str, runs['seeds']))}, with the code that measures the load of the machine; no rule or "
        "number of `solve` was chosen on them. The exponents of the prediction were fitted to the seeds 200 and 201. "
        "With the seeds 22 to 24 the process and its busy processes were pinned to one core, and other work was kept "
        "on the other one, except for short commands; the source code was being changed during these runs, in parts "
        "that they hardly use (recording of runs, forecasts), so two runs of a pair may differ by a commit. With the "
        "seeds 20 and 21 other work used the machine all the time: runs beside busy processes had slowdowns of 6 to 8 "
        "instead of 3, "
        "so after four of them (all below) the load was simulated: the wall clock runs three times as fast as the CPU "
        "time of the process. Simulated load has no interruptions of uneven length. "
        "The first run of two minutes on CIFAR-10 took 1.52 of the budget and ended with logistic regression (0.31): a "
        "measure of related tasks had trained networks for all of the time. Such measures are now left out; both "
        "runs of this pair were repeated, the other pairs were not. "
        "The pairs with a limit of CPU time and 0 busy processes are two runs under different amounts of other work.",
        "",
        "Idle is a run with the same limit of CPU time and no busy processes. Half width is that of the interval which "
        "the idle run states. The next column is what the loaded run states for an idle machine. Time is that of the "
        "answer and its report, relative to the budget. Slowdown is wall time divided by CPU time. Pairs are idle / "
        "loaded.",
        "",
    ]
    for name, group in found["load"].items():
        pairs = [pair for pair in runs["load"] if _name(pair) == name]
        lines += [
            f"### {name}",
            "",
            f"The two test metrics differ by less than the half width in {counted(group['same'])}. The idle metric "
            f"lies in the stated interval in {counted(group['stated'])}. Both answers took at most {KEPT:g} of the "
            f"budget in {counted(group['in_time'])}.",
            "",
            _load_table(pairs),
            "",
        ]
    if runs["short"]:
        lines += [
            "### Short runs",
            "",
            f"`solve` with {runs['short_seconds']:g} s of CPU time, beside the simple model that is best on the test "
            f"samples, fitted to all samples with the same time limit (on images only the SVM and the forest; boosting "
            f"was the best one there in 1 of 21 earlier runs). Within noise of it, or above: "
            f"{counted(found['short'])}. Answer and report within {KEPT:g} of the budget: "
            f"{counted(found['short_in_time'])}.",
            "",
            short_table(runs["short"]),
            "",
            "Runs whose simple models were not all fitted, with test metric and time: "
            + "; ".join(
                f"{run['data']} {run['seed']}: {run['metric']:.4f}, {run['answered']:.2f}"
                for run in runs["short_alone"]
            )
            + ".",
            "",
        ]
    return lines


def _load_table(pairs: list[Row]) -> str:
    """A line for each pair."""
    lines = [
        [
            pair["data"], str(pair["seed"]), f"{pair['free']:.4f}", f"{pair['loaded']:.4f}",
            points(pair["loaded"] - pair["free"]), f"{100 * pair['half']:.2f}",
            f"{pair['expected'][0]:.3f} to {pair['expected'][1]:.3f}", " / ".join(pair["chosen"]),
            *(" / ".join(f"{value:.2f}" for value in pair[name]) for name in ("answered", "slowdown")),
        ]
        if "free" in pair
        else [pair["data"], str(pair["seed"]), "failed", *["–"] * 7]
        for pair in pairs
    ]  # fmt: skip
    head = ["data", "seed", "idle", "loaded", "difference", "half width", "stated for an idle machine", "chosen"]
    return table([*head, "time", "slowdown"], lines)
