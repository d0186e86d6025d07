"""Tables of the guides equal the registries, summaries of the figures pages equal the stored figures."""

import runpy
from pathlib import Path

import pytest

from nearkin.distance.registry import MEASURES
from nearkin.search.registry import METHODS

DOCS = Path(__file__).parents[2] / "docs"
TABLES = runpy.run_path(str(DOCS / "tables.py"))
SUMMARIES = runpy.run_path(str(DOCS / "summaries.py"))


@pytest.mark.parametrize("name", TABLES["PAGES"])
def test_the_table_of_a_guide_is_that_of_the_registry(name: str) -> None:
    page = TABLES["PAGES"][name].read_text()
    assert f"<!-- {name} -->" in page
    assert TABLES["with_table"](page, name) == page, "run python docs/tables.py"


@pytest.mark.parametrize(("name", "registry"), [("measures", MEASURES), ("methods", METHODS)])
def test_every_entry_has_a_row(name: str, registry: dict[str, object]) -> None:
    rows = TABLES[name]().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(registry)
    assert {row.count(" | ") for row in rows} == {3}


@pytest.mark.parametrize("name", SUMMARIES["SUMMARIES"])
def test_a_figures_page_begins_with_its_summary(name: str) -> None:
    page = (DOCS / "figures" / f"{name}.md").read_text()
    assert SUMMARIES["with_summary"](page, SUMMARIES["summary_of"](name)) == page, "run python docs/summaries.py"
    assert page.count("<!-- summary -->") == 1


def test_the_list_of_figures_is_complete() -> None:
    pages = {file.stem for file in (DOCS / "figures").glob("*.md")}
    assert pages == {*SUMMARIES["SUMMARIES"], "index", "warm-start"}  # which has its own summary
    assert (DOCS / "figures" / "index.md").read_text() == SUMMARIES["index"](), "run python docs/summaries.py"
