"""Tables of the benchmark of the interleaved search, from its stored runs."""

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from interleave_runs import FRESH_SEEDS
from nearkin.multitask.significance import MethodDifference, RunSummary, compare_methods
from results import interval, span, table

Run = Mapping[str, Any]
Rows = dict[str, list[Run]]
"""Runs by row, in the order of their seeds; all rows have the same seeds."""

LEVEL = 0.05
FORMS = {"mean": "AP", "at_50": "AP50", "at_75": "AP75", "small": "small", "medium": "medium", "large": "large"}


def rows_of(runs: Mapping[str, Run], section: str) -> tuple[Rows, list[int]]:
    """Runs of a section with the seeds that every row has."""
    found: dict[str, dict[int, Run]] = {}
    for key, run in runs.items():
        owner, name, seed = key.split("/")
        if owner == section:
            found.setdefault(name, {})[int(seed)] = run
    seeds = sorted(set.intersection(*(set(row) for row in found.values()))) if found else []
    return {name: [row[seed] for seed in seeds] for name, row in found.items()}, seeds


def mean_error(run: Run) -> float:
    """Mean test error over the classification tasks, in percent."""
    return 100 * fmean(run["errors"].values())


def error_on(task: str) -> Callable[[Run], float]:
    """Test error on a task, in percent."""
    return lambda run: 100 * float(run["errors"][task])


def precision_of(name: str) -> Callable[[Run], float]:
    """A figure of average precision, in percent; 0 without a box."""
    return lambda run: 100 * float(run["precision"][name] or 0.0)


def seconds(run: Run) -> float:
    """CPU seconds of the search."""
    return float(run["search_seconds"])


def differences(
    rows: Rows, figure: Callable[[Run], float], reference: str
) -> tuple[Mapping[str, RunSummary], dict[str, MethodDifference]]:
    """Summary of every row, and the difference of every other row from the reference (paired by seed, Holm)."""
    compared = compare_methods({name: [figure(run) for run in row] for name, row in rows.items()}, reference)
    return compared.summaries, {row.method: row for row in compared.differences}


def compared(rows: Rows, figure: Callable[[Run], float], reference: str, name: str) -> str:
    """Mean, deviation and interval of every row, and its difference from the reference with the test."""
    summaries, found = differences(rows, figure, reference)
    lines = []
    for row, value in summaries.items():
        off = found.get(row)
        test = ["–", "–", "–"] if off is None else [
            f"{off.difference:+.2f} ({off.low:+.2f} to {off.high:+.2f})", f"{off.p:.3f}", f"{off.corrected:.3f}"
        ]  # fmt: skip
        lines.append([row, f"{value.mean:.2f}", f"{value.std:.2f}", f"{value.low:.2f} to {value.high:.2f}", *test])
    head = [name, "mean", "deviation", "95 % interval", f"difference from {reference}", "p", "p, Holm"]
    return table(head, lines)


def costs(rows: Rows) -> str:
    """Parameters of the retrained networks and CPU seconds."""
    lines = []
    for name, row in rows.items():
        parameters = [fmean(run["parameters"].values()) for run in row]
        lines.append([
            name, f"{fmean(parameters):,.0f}", span([seconds(run) for run in row], 1),
            span([run["retraining_seconds"] for run in row], 1),
        ])  # fmt: skip
    return table(["method", "parameters", "CPU s of the search", "CPU s of the retraining"], lines)


def precisions(rows: Rows) -> str:
    """All figures of average precision, in percent."""
    lines = []
    for name, row in rows.items():
        cells = []
        for key in FORMS:
            values = [100 * run["precision"][key] for run in row if run["precision"][key] is not None]
            cells.append(span(values, 1))
        lines.append([name, *cells])
    return table(["method", *FORMS.values()], lines)


def group(rows: Rows, labels: Mapping[str, str], reference: str = "default") -> str:
    """Rows of one ablation: mean error over tasks and by task, difference from the default, active share, seconds."""
    _, found = differences(rows, mean_error, reference)
    tasks = list(rows[reference][0]["errors"])
    lines = []
    for name, label in labels.items():
        row, off = rows[name], found.get(name)
        active = [run["smallest_active"] for run in row if run.get("smallest_active") is not None]
        lines.append([
            label, span([mean_error(run) for run in row], 2),
            *(f"{fmean(error_on(task)(run) for run in row):.1f}" for task in tasks),
            "–" if off is None else f"{off.difference:+.2f} ({off.low:+.2f} to {off.high:+.2f})",
            "–" if off is None else f"{off.corrected:.2f}",
            f"{min(active):.2f}" if active else "–", f"{fmean(map(seconds, row)):.0f}",
        ])  # fmt: skip
    head = ["", "mean error", *tasks, "difference from the default", "p, Holm", "smallest active", "CPU s"]
    return table(head, lines)


def verdict(rows: Rows, figure: Callable[[Run], float], reference: str, larger: bool = False) -> str:
    """Which rows are better or worse than the reference after Holm's correction, in words."""
    _, found = differences(rows, figure, reference)
    sure = [row for row in found.values() if row.corrected < LEVEL]
    better = [row.method for row in sure if (row.difference > 0) == larger]
    worse = [row.method for row in sure if (row.difference > 0) != larger]
    rest = len(found) - len(sure)
    parts = [f"better than {reference}: {', '.join(better)}"] if better else []
    parts += [f"worse than {reference}: {', '.join(worse)}"] if worse else []
    parts += [f"no difference is shown for {'any' if rest == len(found) else rest} of {len(found)}"] if rest else []
    return "; ".join(parts)


def rank_of(rows: Rows, figure: Callable[[Run], float], name: str, larger: bool = False) -> str:
    """Place of a row by its mean."""
    means = sorted(((fmean(map(figure, row)), key) for key, row in rows.items()), reverse=larger)
    return f"{1 + [key for _, key in means].index(name)} of {len(means)}"


def agreement_rows(runs: Mapping[str, Run]) -> tuple[Rows, list[int]]:
    """Runs of the agreement with the seeds on which nothing was decided."""
    fresh = {f"/{seed}" for seed in FRESH_SEEDS}
    return rows_of({key: run for key, run in runs.items() if key[key.rindex("/") :] in fresh}, "agreement")


def agreement_figures(runs: Mapping[str, Run], kind: str = "mmd") -> dict[str, Any]:
    """Gain of the agreement by transfer over seeds, and how often the active share is small."""
    rows, seeds = agreement_rows(runs)
    gains = [b["agreement"] - a["agreement"] for a, b in zip(rows["none"], rows[kind], strict=True)]
    transfers = sum(run["transfers"] for run in rows[kind])
    below = sum(run["share_below_tenth"] * run["transfers"] for run in rows[kind]) / transfers
    smallest = min(run["smallest_active"] for run in rows[kind])
    mean, half = interval(gains)
    return {"mean": mean, "half": half, "smallest": min(gains), "seeds": len(seeds), "transfers": transfers,
            "below": below, "smallest_active": smallest}  # fmt: skip


def agreements(runs: Mapping[str, Run]) -> str:
    """Agreement by seed."""
    rows, seeds = agreement_rows(runs)
    lines = []
    for number, seed in enumerate(seeds):
        alone = rows["none"][number]
        for kind in (name for name in rows if name != "none"):
            usual = rows[kind][number]
            gain = usual["agreement"] - alone["agreement"]
            lines.append([
                str(seed), kind, f"{alone['agreement']:.3f}", f"{usual['agreement']:.3f}", f"{gain:+.3f}",
                f"{usual['smallest_active']:.3f}", f"{usual['share_below_tenth']:.1%} of {usual['transfers']}",
            ])  # fmt: skip
    head = ["seed", "transfer", "agreement without", "agreement with", "gain", "smallest active share",
            "transfers at 10 % or below"]  # fmt: skip
    return table(head, lines)
