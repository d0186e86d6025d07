"""What the zoo brought in a run: sentences, and the time that went to related tasks."""

from nearkin.core.text import number, percent, plain
from nearkin.report.html import HtmlTable
from nearkin.report.sections import Section
from nearkin.solver.solution import Solution
from nearkin.solver.zoo_value import RANKING, value_sentences


def zoo_section(solution: Solution) -> Section:
    """Sentences about the difference that related tasks made, and a table of their time."""
    return {"text": [plain(text) for text in value_sentences(solution)], "table": time_table(solution)}


def time_table(solution: Solution) -> HtmlTable | None:
    """Seconds of the ranking and of every contender that used a related task; None without any."""
    seconds = solution.zoo_value.seconds
    titles = {RANKING: "ranking of the tasks in the zoo", **{one.name: one.title for one in solution.standings}}
    whole = solution.seconds or 1.0
    rows = [
        (plain(titles.get(name, name)), number(spent, 2), percent(spent / whole)) for name, spent in seconds.items()
    ]
    heads = ("Part", "Seconds", "Share of the run")
    return HtmlTable("Time that went to related tasks", heads, rows, frozenset({1, 2})) if rows else None
