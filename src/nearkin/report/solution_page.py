"""Report of a solved task as one HTML page: the result first, then what it rests on."""

from collections.abc import Sequence

from nearkin.core.text import brief, counted, decimals, duration, number, plain
from nearkin.report import reproduction, sections
from nearkin.report.glossary import glossary
from nearkin.report.html import render
from nearkin.report.model_comparison import score, score_on_test
from nearkin.report.sections import Section
from nearkin.report.zoo_benefit import zoo_section
from nearkin.solver.claims import ClaimCheck
from nearkin.solver.sentence import margin_text, runner_up
from nearkin.solver.solution import Solution
from nearkin.tasks.checks.data_checks import Finding

FILE = "solution.safetensors"
"""Default name of the file of a solution."""

_LONGEST_FACT = 240
_VERDICTS = {True: ("✔", "held", "good"), False: ("✘", "did not hold", "bad"), None: ("?", "not tested", "")}


def solution_page(solution: Solution, *, command: str = "", file: str = FILE) -> str:
    """The report of a solution as one HTML file that loads nothing from elsewhere.

    Args:
        solution: the solved task.
        command: the command that reproduces it (default: the one stored in the solution).
        file: name of the file of the solution, for the code example that reads it.
    """
    lead, _, rest = plain(solution.sentence).partition(". ")
    return render(
        "solution.html",
        name=plain(solution.name),
        lead=f"{lead}." if rest else lead,
        rest=rest,
        tiles=key_figures(solution),
        cautions=[plain(finding.text) for finding in solution.checks.grave],
        comparison=sections.comparison_section(solution),
        certainty=sections.certainty_section(solution),
        data=_data(solution),
        mistakes=sections.mistakes_section(solution),
        kin=sections.kin_section(solution),
        zoo=zoo_section(solution),
        claims=[_claim(claim) for claim in solution.promises],
        claims_text=claims_text(solution.promises),
        architecture=sections.architecture_section(solution),
        time=sections.time_section(solution),
        reproduce=_reproduce(solution, command, file),
        glossary=glossary("solution"),
    )


def key_figures(solution: Solution) -> list[tuple[str, str, str]]:
    """Name, value and explanation of the figures that readers ask for first."""
    quality, second = solution.quality, runner_up(solution.chosen, solution.standings)
    low, high = (score(solution, end) for end in quality.interval)
    tiles = [
        (
            f"test {quality.title}",
            score(solution, quality.metric),
            f"{low} to {high} with 95 % certainty, on {counted(quality.count)} test samples",
        )
    ]
    if second is not None:
        test, margin = score_on_test(solution, second), solution.margins.get(second.name)
        text = plain(second.title)
        if margin is not None:
            text += f"; difference on the validation set {margin_text(margin, quality.name, brief=True)}"
        tiles.append(("runner-up", "not tested" if test is None else score(solution, test), text))
    ran = sum(result.validation is not None for result in solution.standings)
    return [
        *tiles,
        (
            "size",
            brief(solution.parameters),
            f"{counted(solution.parameters)} parameters (learned numbers), {brief(solution.multiply_adds)} "
            f"multiply-adds for one input",
        ),
        (
            "time",
            duration(solution.answer_seconds),
            f"until the answer, {ran} contenders" if ran > 1 else "until the answer",
        ),
        _nearest(solution),
    ]


def _nearest(solution: Solution) -> tuple[str, str, str]:
    for measure, rows in solution.relations.rankings.items():
        if rows:
            value = number(float(rows[0]["distance"]), decimals([float(row["distance"]) for row in rows]))
            return "nearest related task", plain(str(rows[0]["name"])), f"{plain(measure)} distance {value}"
    return "nearest related task", "none", "no other task to compare with"


def claims_text(claims: Sequence[ClaimCheck]) -> str:
    """How many claims held.

    >>> claims_text([ClaimCheck("a", True, ""), ClaimCheck("b", None, "")])
    '1 held, 0 did not hold, and 1 could not be tested in this run. One run is an example, not a proof.'
    """
    if not claims:
        return "No claim was tested in this run."
    held, failed, untested = (sum(claim.held is verdict for claim in claims) for verdict in (True, False, None))
    rest = f", and {untested} could not be tested in this run" if untested else ""
    return f"{held} held, {failed} did not hold{rest}. One run is an example, not a proof."


def _claim(claim: ClaimCheck) -> Section:
    sign, verdict, role = _VERDICTS[claim.held]
    return {
        "sign": sign, "verdict": verdict, "role": role, "claim": plain(claim.claim), "evidence": plain(claim.evidence),
    }  # fmt: skip


def _data(solution: Solution) -> Section:
    return {
        "table": reproduction.data_table(solution),
        "findings": [_finding(finding) for finding in solution.checks.findings],
        "seconds": duration(solution.checks.seconds),
    }


def _finding(finding: Finding) -> Section:
    facts = []
    for key, value in finding.facts.items():
        text = reproduction.setting(value)
        shown = text if len(text) <= _LONGEST_FACT else f"{text[:_LONGEST_FACT]}…"
        facts.append((plain(str(key)).replace("_", " "), shown))
    return {"kind": plain(finding.kind), "grave": finding.grave, "text": plain(finding.text), "facts": facts}


def _reproduce(solution: Solution, command: str, file: str) -> Section:
    python, commands = reproduction.usage(solution, file)
    return {
        "command": reproduction.command_of(solution, command),
        "table": reproduction.run_table(solution),
        "exact": reproduction.exactness(solution),
        "python": python,
        "commands": commands,
    }
