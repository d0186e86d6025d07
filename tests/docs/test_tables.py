"""Tables of the guides equal the registries."""

import runpy
from pathlib import Path

import pytest

from nearkin.distance.registry import MEASURES
from nearkin.search.registry import METHODS

TABLES = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "tables.py"))


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
