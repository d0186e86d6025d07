"""The report of a solved task: one HTML page that says the answer first and shows what it rests on."""

from collections.abc import Sequence

from nearkin.core.text import brief, counted, decimals, duration, number, plain
from nearkin.report import reproduction, sections
from nearkin.report.html import render
from nearkin.report.sections import Section
from nearkin.solver.claims import ClaimCheck
from nearkin.solver.solution import Solution
from nearkin.tasks.checks.data_checks import Finding

FILE = "solution.safetensors"
"""What people call the file of a solution where nothing else is said."""

_LONGEST_FACT = 240
_HELD = {True: ("✔", "held", "good"), False: ("✘", "did not hold", "bad"), None: ("?", "cannot tell", "")}


def solution_page(solution: Solution, *, command: str = "", file: str = FILE) -> str:
    """The report of a solution as one HTML file that fetches nothing.

    Args:
        solution: what was found.
        command: what to type to get it again; that of the solution where nothing is said.
        file: what the file of the solution is called, for the piece of code that reads it.
    """
    return render(
        "solution.html",
        name=plain(solution.name),
        sentence=plain(solution.sentence),
        tiles=key_figures(solution),
        cautions=[plain(one.text) for one in solution.checks.grave],
        contest=sections.contest_section(solution),
        kin=sections.kin_section(solution),
        cell=sections.cell_section(solution),
        learned=sections.learning_section(solution),
        quality=sections.quality_section(solution),
        data=_data(solution),
        promises=[_promise(one) for one in solution.promises],
        kept=promises_words(solution.promises),
        spent=sections.spent_section(solution),
        again=_again(solution, command, file),
    )


def key_figures(solution: Solution) -> list[tuple[str, str, str]]:
    """Name, value and a word beside it, of the figures that people ask for first."""
    quality, (low, high) = solution.quality, solution.interval
    value, span = number(quality.metric), f"{number(low)} to {number(high)}"
    if quality.name == "accuracy":
        value, span = f"{100 * quality.metric:.1f} %", f"{100 * low:.1f} to {100 * high:.1f} %"
    ran = sum(one.validation is not None for one in solution.standings)
    return [
        (quality.title, value, f"{span} with 95 % certainty, on {counted(quality.count)} test samples"),
        ("parameters", brief(solution.parameters), f"{counted(solution.parameters)} learned numbers"),
        ("multiply-adds", brief(solution.multiply_adds), "for one input"),
        ("time", duration(solution.seconds), f"all stages, {ran} contestants" if ran > 1 else "all stages"),
        _nearest(solution),
    ]


def _nearest(solution: Solution) -> tuple[str, str, str]:
    for measure, rows in solution.relations.rankings.items():
        if rows:
            value = number(float(rows[0]["distance"]), decimals([float(row["distance"]) for row in rows]))
            return "nearest kin", plain(str(rows[0]["name"])), f"{plain(measure)} distance {value}"
    return "nearest kin", "none", "nothing to compare with"


def promises_words(promises: Sequence[ClaimCheck]) -> str:
    """How many held.

    >>> promises_words([ClaimCheck("a", True, ""), ClaimCheck("b", None, "")])
    '1 held, 0 did not hold, and 1 cannot be told from this run. One run is an example, not a proof.'
    """
    if not promises:
        return "No promise was put to the test in this run."
    held, broken, untold = (sum(one.held is side for one in promises) for side in (True, False, None))
    rest = f", and {untold} cannot be told from this run" if untold else ""
    return f"{held} held, {broken} did not hold{rest}. One run is an example, not a proof."


def _promise(one: ClaimCheck) -> Section:
    sign, words, role = _HELD[one.held]
    return {"sign": sign, "words": words, "role": role, "claim": plain(one.claim), "evidence": plain(one.evidence)}


def _data(solution: Solution) -> Section:
    return {
        "table": reproduction.data_table(solution),
        "findings": [_finding(one) for one in solution.checks.findings],
        "seconds": duration(solution.checks.seconds),
    }


def _finding(one: Finding) -> Section:
    facts = [(plain(str(key)).replace("_", " "), _cut(reproduction.setting(value))) for key, value in one.facts.items()]
    return {"kind": plain(one.kind), "grave": one.grave, "text": plain(one.text), "facts": facts}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_FACT else f"{text[:_LONGEST_FACT]}…"


def _again(solution: Solution, command: str, file: str) -> Section:
    python, commands = reproduction.usage(solution, file)
    return {
        "command": reproduction.command_of(solution, command),
        "table": reproduction.run_table(solution),
        "exact": reproduction.exactness(solution),
        "python": python,
        "commands": commands,
    }
