"""Queue of jobs in SQLite and in PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from laws.job_queue import JobQueueLaws, claimed, record
from nearkin.store.catalogue import Catalogue
from nearkin.store.job_table import JobTable, open_job_table
from postgres_server import PostgresServer


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

    def test_a_lost_connection_is_made_again(self, queue: JobTable, postgres_server: PostgresServer) -> None:
        postgres_server.restart()
        queue.put(record(key) for key in ("a", "b"))
        assert [job.key for job in queue.jobs()] == ["a", "b"]
        postgres_server.restart()  # commits of the last moment may be lost
        assert claimed(queue) in ("a", None)
