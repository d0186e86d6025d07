"""Reports of solutions that a zoo keeps."""

import re
from functools import cache

from nearkin.core.state import State
from nearkin.report.page import render
from nearkin.report.solution_page import solution_page
from nearkin.solver.solution import KIND, Solution
from nearkin.store.read_only import ReadOnlyStore
from nearkin.store.records import TaskRecord

_POLICY = re.compile(r'Content-Security-Policy" content="([^"]*)"')


def report_html(zoo: ReadOnlyStore, task: TaskRecord) -> str | None:
    """The report of a task's kept solution as one HTML page; None where none is kept."""
    for item in zoo.artifacts(task):
        if item.kind == KIND:
            origin = f"the solution of {task.name}"
            return solution_page(Solution.from_state(State.from_bytes(zoo.blob(item), origin), origin))
    return None


@cache
def report_policy() -> str:
    """What a browser may do with a report: run the script of our own reports, and see nothing of this server.

    A report may come with a zoo from elsewhere; other scripts in it do not run, and it stands apart from our pages.

    >>> "sha256-" in report_policy(), "sandbox" in report_policy()
    (True, True)
    """
    found = _POLICY.search(render("base.html"))
    own = found[1] if found else "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return f"{own}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-modals"
