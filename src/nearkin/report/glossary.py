"""Glossary of the terms that a page uses."""

from functools import cache

from nearkin.report.html import REPORT, template_text


@cache
def glossary(page: str) -> list[tuple[str, str, str]]:
    """Id, term and definition of every term of a page, such as `solution`, `map`, `transfer` or `connection`.

    >>> [(anchor, term) for anchor, term, _ in glossary("map")][:2]
    [('term-distance', 'Distance'), ('term-fisher-information', 'Fisher information')]
    """
    rows = [line.split(" | ") for line in template_text(REPORT, "glossary.txt").splitlines()]
    return [
        (f"term-{'-'.join(term.lower().replace('%', '').split())}", term, definition)
        for term, pages, definition in rows
        if page in pages.split()
    ]
