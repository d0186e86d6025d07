"""Queue of jobs in SQLite."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from laws.job_queue import JobQueueLaws
from nearkin.store.catalogue import Catalogue
from nearkin.store.job_table import JobTable, open_job_table


class TestJobTable(JobQueueLaws):
    @pytest.fixture
    def queue(self, tmp_path: Path) -> Iterator[JobTable]:
        with Catalogue(tmp_path / "zoo") as catalogue:
            table = open_job_table(catalogue)
            yield table
            table.close()
