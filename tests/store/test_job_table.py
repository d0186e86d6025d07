"""Queue of jobs in SQLite and in PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from laws.job_queue import JobQueueLaws
from nearkin.store.catalogue import Catalogue
from nearkin.store.job_table import JobTable, open_job_table


class TestJobTable(JobQueueLaws):
    @pytest.fixture
    def queue(self, tmp_path: Path) -> Iterator[JobTable]:
        Catalogue(tmp_path / "zoo").close()
        table = open_job_table(str(tmp_path / "zoo"))
        yield table
        table.close()


class TestSharedJobTable(JobQueueLaws):
    @pytest.fixture
    def queue(self, shared_address: str, tmp_path: Path) -> Iterator[JobTable]:
        Catalogue(shared_address, blobs=str(tmp_path)).close()
        table = open_job_table(shared_address)
        yield table
        table.close()
