"""A private PostgreSQL server for the tests of one process, and a fresh schema for each test.

The server listens on a free port of this machine and on a socket in its own folder, and is deleted at the end. Where
its programs are not installed (Debian: `apt-get install postgresql`), the tests that need it are skipped.
"""

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

USER = "postgres"  # the server refuses to run as root
PASSWORD = "s3cret/word@?#"
_numbers = itertools.count()


def programs() -> Path | None:
    """Folder of `initdb` and `pg_ctl`, those of the newest installed version."""
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if on_path := shutil.which("initdb"):
        folders.append(Path(on_path).parent)
    return next((folder for folder in folders if (folder / "pg_ctl").exists()), None)


class PostgresServer:
    """A server in a new folder, with the database `zoos`; the sort order of its texts is that of English.

    Args:
        fsync: wait until commits are on the disk, as a server in use does; the tests do not need it.
    """

    def __init__(self, fsync: bool = False) -> None:
        self.fsync = "on" if fsync else "off"
        folder = programs()
        if folder is None:
            pytest.skip("no PostgreSQL server is installed; on Debian: apt-get install postgresql")
        if os.geteuid() == 0 and USER not in {entry.pw_name for entry in pwd.getpwall()}:
            pytest.skip(f"PostgreSQL refuses to run as root, and there is no user {USER}")
        self.programs = folder
        self.folder = Path(tempfile.mkdtemp(prefix="nearkin-postgres-"))
        password = self.folder / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (self.folder, password):
                shutil.chown(path, USER, USER)
        self.run(
            "initdb", "-D", str(self.folder / "data"), "-U", USER, "--pwfile", str(password), "--no-sync",
            "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en",
        )  # fmt: skip
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()
        self.execute("CREATE DATABASE zoos", database="postgres")

    def run(self, program: str, *words: str) -> None:
        """Run a program of PostgreSQL, without the rights of root."""
        drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.geteuid() == 0 else []
        log = self.folder / "commands.log"
        with log.open("a") as output:  # the server keeps the stream open, so that a pipe would never end
            done = subprocess.run(
                [*drop, str(self.programs / program), *words],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd="/", timeout=120,
            )  # fmt: skip
        assert done.returncode == 0, log.read_text()

    def control(self, action: str, *words: str) -> None:
        """Start, stop or restart the server, and wait until it is done."""
        settings = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync={self.fsync}"
        self.run(
            "pg_ctl", action, "-w", "-s", "-D", str(self.folder / "data"), "-l", str(self.folder / "server.log"),
            *(["-o", settings] if action == "start" else []), *words,
        )  # fmt: skip

    def start(self) -> None:
        self.control("start")

    def stop(self) -> None:
        self.control("stop", "-m", "immediate")

    def restart(self) -> None:
        """End all connections without warning, as a crash does, and start again."""
        self.control("restart", "-m", "immediate")

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def address(
        self, schema: str = "", user: str = USER, password: str = PASSWORD, database: str = "zoos", port: int = 0
    ) -> str:
        """Address of a zoo on this server."""
        end = f"?schema={schema}" if schema else ""
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{database}{end}"

    def execute(self, statement: str, values: Sequence[Any] = (), database: str = "zoos") -> list[tuple[Any, ...]]:
        """Run one statement as the owner of the server; returns its rows."""
        import psycopg

        with psycopg.connect(self.address(database=database), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def shared_address(postgres_server: PostgresServer) -> str:
    """Address of a shared zoo that does not exist yet."""
    return postgres_server.address(schema=f"zoo_{next(_numbers)}")
