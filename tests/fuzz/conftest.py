"""Fuzz tests report how their inputs ended; the counts are printed as one table after the run."""

from collections.abc import Callable
from dataclasses import astuple

import pytest

from fuzz.mutation import FuzzCount


@pytest.fixture
def count_inputs(record_property: Callable[[str, object], None]) -> Callable[[FuzzCount], FuzzCount]:
    """A function that adds a format's counts to the table."""

    def added(count: FuzzCount) -> FuzzCount:
        record_property("fuzz", astuple(count))
        return count

    return added
