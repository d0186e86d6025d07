"""Page of the solve benchmark: every run, and what the runs show together."""

from typing import Any

from results import table

GROUPS = ("all", "images", "tables")


def points(value: float) -> str:
    """A difference in hundredths."""
    return f"{100 * value:+.2f}"


def counted(part: dict[str, Any]) -> str:
    """A share as count and interval."""
    if not part["of"]:
        return "–"
    return f"{part['count']} of {part['of']} ({part['low']:.0%} to {part['high']:.0%})"


def run_table(runs: list[dict[str, Any]]) -> str:
    """A line for each data set and seed."""
    lines = []
    for run in runs:
        if "difference" not in run:
            lines.append([run["data"], str(run["seed"]), "failed", *["–"] * 8])
            continue
        low, high = run["interval"]
        lines.append(
            [
                run["data"], str(run["seed"]), run["chosen"], f"{run['metric']:.4f}", f"{low:.3f} to {high:.3f}",
                f"{run['fresh']:.4f} ± {1.96 * run['fresh_error']:.4f}", run["best"],
                f"{run['rivals'][run['best']]['metric']:.4f}", points(run["difference"]), f"{100 * run['noise']:.2f}",
                f"{run['cpu']:.0f} / {run['wall']:.0f}",
            ]
        )  # fmt: skip
    head = [
        "data",
        "seed",
        "chosen",
        "test",
        "stated interval",
        "fresh",
        "best rival",
        "its test",
        "difference",
        "noise",
    ]
    return table([*head, "CPU / wall s"], lines)


def metric_table(runs: list[dict[str, Any]], images: bool) -> str:
    """Test metrics of every method."""
    part = [run for run in runs if run["images"] == images]
    names = list(dict.fromkeys(name for run in part for name in run["rivals"]))
    lines = [
        [run["data"], str(run["seed"]), f"{run['metric']:.4f}" if "metric" in run else "failed"]
        + [f"{run['rivals'][name]['metric']:.4f}" if name in run["rivals"] else "–" for name in names]
        for run in part
    ]
    return table(["data", "seed", "solve", *names], lines)


def rival_table(rivals: dict[str, Any]) -> str:
    """Mean difference to each rival."""
    lines = []
    for name in rivals["all"]:
        cells = [
            f"{points(part[name]['mean'])} ± {100 * part[name]['half']:.2f}" if name in part else "–"
            for part in (rivals[group] for group in GROUPS)
        ]
        whole = rivals["all"][name]
        lines.append(
            [name, *cells, f"{whole['behind']} of {whole['runs']}", f"{whole['cpu']:.1f} / {whole['most_cpu']:.1f}"]
        )
    return table(["rival", *GROUPS, "solve behind by more than the noise", "CPU s, mean / most"], lines)


def coverage_table(coverage: dict[str, Any]) -> str:
    """How often the stated interval held."""
    lines = [
        [
            name, counted(part["plain"]), f"{part['expected']:.0%}", counted(part["with_noise"]),
            f"{100 * part['stated_half']:.2f}", f"{100 * part['fresh_half']:.2f}",
        ]
        for name, part in coverage.items()
        if part["plain"]["of"]
    ]  # fmt: skip
    head = ["data", "fresh metric inside", "expected of a correct interval", "inside, with the noise of fresh samples"]
    return table([*head, "stated half width", "half width of fresh"], lines)


def load_section(figures: dict[str, Any]) -> list[str]:
    """Runs with a wall-clock budget, without and with load."""
    pairs = figures["load"]
    if not pairs:
        return ["No run under load has been made.", ""]
    lines = [
        [
            pair["data"], str(pair["seed"]), f"{pair['free']:.4f}", f"{pair['loaded']:.4f}",
            points(pair["loaded"] - pair["free"]), f"{100 * pair['half']:.2f}", " / ".join(pair["chosen"]),
            " / ".join(f"{value:.2f}" for value in pair["overrun"]),
        ]
        if "free" in pair
        else [pair["data"], str(pair["seed"]), "failed", *["–"] * 5]
        for pair in pairs
    ]  # fmt: skip
    return [
        f"`solve` with {figures['seconds']:g} s of wall time, on an idle machine and beside {pairs[0]['load']} busy "
        f"processes for each core. The two test metrics differ by less than the half width of the interval stated on "
        f"the idle machine in {counted(figures['summary']['load'])}.",
        "",
        table(["data", "seed", "idle", "loaded", "difference", "half width", "chosen", "overrun"], lines),
        "",
    ]


def short_section(figures: dict[str, Any]) -> list[str]:
    """Runs of solve with half of the time, beside the best simple model."""
    pairs = figures["short"]
    if not pairs:
        return []
    return [
        "## Short runs",
        "",
        f"`solve` with {figures['short_seconds']:g} s of CPU time, beside the simple model that is best on the test "
        f"samples, fitted to all samples in {figures['seconds']:g} s. Within noise of it, or above: "
        f"{counted(figures['summary']['short'])}. Last column: time of the answer and its report, and with the entry "
        "in the zoo, relative to the budget.",
        "",
        short_table(pairs),
        "",
    ]


def short_table(pairs: list[dict[str, Any]]) -> str:
    """A line for each short run."""
    lines = [
        [
            pair["data"], str(pair["seed"]), pair["chosen"], f"{pair['metric']:.4f}", pair["simple"],
            f"{pair['simple_metric']:.4f}", points(pair["difference"]), f"{100 * pair['noise']:.2f}",
            f"{pair['answered']:.2f} / {pair['overrun']:.2f}",
        ]
        for pair in pairs
    ]  # fmt: skip
    head = ["data", "seed", "chosen", "test", "best simple model", "its test", "difference", "noise"]
    return table([*head, "time"], lines)


def page(figures: dict[str, Any], later: list[str]) -> str:
    """The page with the section of later runs, without its summary, which `docs/summaries.py` adds."""
    runs, found = figures["runs"], figures["summary"]
    overrun, answered = found["overrun"], found["answered"]
    failed = [f"{name} on {run['data']} {run['seed']}" for run in runs for name in run["failed"]]
    peer = "autogluon" in found["rivals"]["all"]
    lines = [
        "# Solve compared with the models that a user would write",
        "",
        "Made by `python benchmarks/solve.py`; one thread, one process for each run. Nothing was chosen on the draws "
        f"with seeds {', '.join(map(str, figures['seeds']))}; development used seeds 0 to 2 and from 100 on. "
        "`gambia`, `kenya` and `parasite-rate` had no part in development with any seed. The generated tables did: "
        "the season of dates and pairs of words in `solve` were chosen on other draws; the rivals have neither.",
        "",
        f"Every method has {figures['seconds']:g} s of CPU time, all training samples and the same test samples. "
        "`solve` gets a budget, a seed and no other option, beside a zoo of six related tasks that share no sample "
        "with any draw. The best rival is the one that is best on the test samples: better than a user could choose. "
        "Differences are in hundredths of accuracy, or of R² for `diabetes`, `generated-values` and `parasite-rate`. "
        "Noise is the 95 % half width of the paired difference on the test samples. Fresh samples have the "
        "distribution of the test samples and are seen by no method; ± is their own 95 % half width. "
        f"The budget of `solve` was {' and '.join(found['clocks'])} time.",
        "",
        run_table(runs),
        "",
        f"Within noise of the best rival, or above it: {counted(found['within_noise']['all'])}; images "
        f"{counted(found['within_noise']['images'])}, tables {counted(found['within_noise']['tables'])}. Time of "
        f"the answer and its report, relative to the budget: {answered['mean']:.2f} on average, "
        f"{answered['worst']:.2f} at most; with the entry in the zoo, which follows the answer, {overrun['mean']:.2f} "
        f"and {overrun['worst']:.2f}. The report alone takes {found['report_seconds']:.1f} s of CPU time. Chosen: "
        + ", ".join(f"{name} {count}" for name, count in found["chosen"].items())
        + ". "
        + (f"Failed: {', '.join(failed)}." if failed else "No rival failed."),
        "",
        "## Each rival",
        "",
        "Mean difference of `solve` to each rival with its 95 % half width (Student, over data sets)"
        + (
            "; AutoGluon is a peer with its own search and is not among the rivals of the first table. It ran with one "
            "seed on nine tables, with a limit of wall time and without its neural networks, which need their own "
            "torch. Two tables and two seeds were given up during the run, for lack of time."
            if peer
            else "."
        ),
        "",
        rival_table(found["rivals"]),
        "",
        "## Does the stated interval hold?",
        "",
        "The stated 95 % interval should hold the metric on infinitely many samples. The fresh samples are finite, so "
        "a correct interval holds their metric less often than 95 %: the third column says how often. In the fourth "
        "the interval is widened by the noise of the fresh samples, and 95 % is expected.",
        "",
        coverage_table(found["coverage"]),
        "",
        "## Under load",
        "",
        *load_section(figures),
        *short_section(figures),
        *later,
        "## Test metrics of all methods",
        "",
        *([metric_table(runs, True), ""] if any(run["images"] for run in runs) else []),
        *([metric_table(runs, False), ""] if not all(run["images"] for run in runs) else []),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"
