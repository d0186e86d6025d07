"""Write the tables of measures and search methods into the guides, from the registries.

    python docs/tables.py

Tables stand between `<!-- NAME -->` and `<!-- end -->`.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from nearkin.distance.questions import DEFAULT_QUESTION, QUESTIONS
from nearkin.distance.registry import MEASURES
from nearkin.multitask.methods import MULTITASK_METHODS
from nearkin.search.registry import METHODS

GUIDES = Path(__file__).parent / "guides"
PAGES = {
    "questions": GUIDES / "near-kin.md",
    "measures": GUIDES / "near-kin.md",
    "methods": GUIDES / "search.md",
    "spaces": GUIDES / "search.md",
    "multitask": GUIDES / "interleave.md",
}


def measures() -> str:
    """All measures."""
    rows = (
        (
            f"`{name}`",
            measure.summary,
            ", ".join(measure.needs) or "nothing",
            ", ".join(measure.targets),
        )
        for name, measure in MEASURES.items()
    )
    return _table(("measure", "value", "needs", "targets"), rows)


def questions() -> str:
    """All questions of `near --for`."""
    rows = (
        (
            f"`{name}`" + (" (default)" if name == DEFAULT_QUESTION else ""),
            question.summary,
            ", ".join(f"`{measure}`" for measure in question.measures),
            ", ".join(f"`{measure}`" for measure in question.features),
        )
        for name, question in QUESTIONS.items()
    )
    return _table(("`--for`", "first is the source with", "measures", "measures of features only"), rows)


def methods() -> str:
    """All search methods."""
    rows = (
        (f"`{name}`", method.summary, method.ends or "budget", str(method.num_cells))
        for name, method in METHODS.items()
    )
    return _table(("`--method`", "what it does", "ends", "cells"), rows)


def spaces() -> str:
    """What each method searches for each kind of task."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, method in METHODS.items():
        for kind, domain in method.spaces.items():
            genotypes = ", ".join(genotype.__name__.lower() for genotype in domain.genotypes)
            groups.setdefault((kind, f"`{domain.full}`", genotypes), []).append(f"`{name}`")
    rows = ((*group, ", ".join(names)) for group, names in groups.items())
    return _table(("task", "`--space full`", "genotypes", "methods"), rows)


def multitask() -> str:
    """All methods that search architectures for several tasks."""
    rows = (
        (f"`{name}`", method.summary, "one for all" if method.shared else "one for each task")
        for name, method in MULTITASK_METHODS.items()
    )
    return _table(("`--method`", "what it does", "architecture"), rows)


def with_table(page: str, name: str) -> str:
    """A page with the table of that name as the registries give it."""
    table = {
        "questions": questions,
        "measures": measures,
        "methods": methods,
        "spaces": spaces,
        "multitask": multitask,
    }[name]()
    return re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda match: match[1] + table + match[2], page, flags=re.S)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for name, page in PAGES.items():
        page.write_text(with_table(page.read_text(), name))
