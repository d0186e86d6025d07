"""Reports of the solutions that a zoo stores."""

from nearkin.core.state import State
from nearkin.report.html import report_policy
from nearkin.report.solution_page import solution_page
from nearkin.solver.solution import KIND, Solution
from nearkin.store.read_only import ReadOnlyStore
from nearkin.store.records import TaskRecord


def report_html(zoo: ReadOnlyStore, task: TaskRecord) -> str | None:
    """The report of a task's stored solution as one HTML page; None if there is no solution."""
    for item in zoo.artifacts(task):
        if item.kind == KIND:
            origin = f"the solution of {task.name!r}"
            return solution_page(Solution.from_state(State.from_bytes(zoo.blob(item), origin), origin))
    return None


def answer_policy() -> str:
    """Content policy of a report: the browser may run the script of nearkin's reports, without access to this server.

    A report may come with a zoo from elsewhere; other scripts in it do not run, and it cannot read the other pages.

    >>> "sha256-" in answer_policy(), "sandbox" in answer_policy()
    (True, True)
    """
    apart = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-modals"
    return f"{report_policy()}; {apart}"
