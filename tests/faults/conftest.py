"""Tests of faults report what they did; the counts are printed as one table after the run."""

from collections.abc import Callable

import pytest


@pytest.fixture
def count_faults(record_property: Callable[[str, object], None]) -> Callable[[str, int, int], None]:
    """A function that adds a row to the table: the fault, how often, and how many runs ended in the same result."""

    def added(fault: str, faults: int, equal: int) -> None:
        record_property("fault", (fault, faults, equal))

    return added
