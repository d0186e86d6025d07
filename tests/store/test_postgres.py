"""Shared zoos on a real PostgreSQL server: addresses, roles, errors in one line, lost connections."""

import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sql

from laws import store as laws
from nearkin.core.addresses import without_secrets
from nearkin.core.errors import MissingExtraError, NearkinError, ZooError
from nearkin.core.files import FileWriteError
from nearkin.store import database, schema
from nearkin.store.bundle import export_bundle, import_bundle
from nearkin.store.catalogue import Catalogue
from nearkin.store.database import ConnectionLost
from nearkin.store.integrity import clean, examine
from nearkin.store.job_table import open_job_table
from nearkin.store.places import open_database, upgrade_zoo
from nearkin.store.records import NewArtifact
from nearkin.store.schema import MIGRATIONS, ZOO, Migration, TableSet
from postgres_server import PASSWORD, PostgresServer

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "shared-zoo.md"
NOW = MIGRATIONS[-1].version


def refusal(action: Callable[[], object], error: type[NearkinError] = ZooError) -> str:
    """The one line with which something is refused; it shows no password."""
    with pytest.raises(error) as refused:
        action()
    line = str(refused.value)
    assert "\n" not in line
    assert PASSWORD not in line
    assert "s3cret" not in line
    return line


@pytest.fixture
def zoo(shared_address: str, tmp_path: Path) -> Iterator[Catalogue]:
    with Catalogue(shared_address, blobs=str(tmp_path / "blobs")) as catalogue:
        yield catalogue


def test_the_place_of_the_blobs_is_stored(shared_address: str, tmp_path: Path) -> None:
    assert "give the place of its files with --blobs URL" in refusal(lambda: Catalogue(shared_address))
    assert "nearkin --blobs URL add makes one" in refusal(lambda: Catalogue(shared_address, create=False))
    blobs = f"file://{tmp_path}/blobs"
    with Catalogue(shared_address, blobs=blobs) as zoo:
        zoo.add(laws.new_task(), laws.weights())
        assert zoo.address == without_secrets(shared_address)
        assert "has no folder" in refusal(lambda: zoo.path)
    for again in ("", blobs):
        with Catalogue(shared_address, blobs=again) as zoo:
            assert examine(zoo).sound
    other = refusal(lambda: Catalogue(shared_address, blobs=str(tmp_path / "elsewhere")))
    assert f"but the blobs of this zoo are at {blobs}; leave --blobs out" in other


def test_two_schemas_are_two_zoos(postgres_server: PostgresServer, tmp_path: Path) -> None:
    names = ("one", "two")
    for name in names:
        with Catalogue(postgres_server.address(name), blobs=str(tmp_path / name)) as zoo:
            zoo.add(laws.new_task(name))
    for name in names:
        with Catalogue(postgres_server.address(name)) as zoo:
            assert zoo.names() == [name]
    assert "expected small letters" in refusal(lambda: Catalogue(postgres_server.address("Big;drop")))


def test_a_server_that_cannot_be_reached(postgres_server: PostgresServer, tmp_path: Path) -> None:
    begun = time.monotonic()
    line = refusal(lambda: Catalogue(postgres_server.address("x", port=1)), ConnectionLost)
    assert time.monotonic() - begun < 15
    assert line.startswith("cannot reach the server of postgresql://postgres@127.0.0.1:1/zoos?schema=x: ")
    assert "Connection refused" in line


def test_a_server_that_refuses(postgres_server: PostgresServer) -> None:
    line = refusal(lambda: Catalogue(postgres_server.address(password="s3cret but wrong")))
    assert "password authentication failed" in line
    assert "check user, password and database" in line
    without = refusal(lambda: Catalogue(without_secrets(postgres_server.address())))
    assert "refused the connection" in without
    assert "no password supplied" in without
    assert 'database "nowhere" does not exist' in refusal(
        lambda: Catalogue(postgres_server.address(database="nowhere"))
    )
    odd = refusal(lambda: Catalogue("postgresql://u:s3cret@h:port/db"))
    assert odd.startswith("got the address postgresql://u@h:port/db, expected postgresql://USER:PASSWORD@HOST:PORT")
    assert "expected a folder or postgresql://" in refusal(lambda: Catalogue("mysql://u:s3cret@h/db"))


def test_without_the_driver(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    line = refusal(lambda: Catalogue(postgres_server.address()), MissingExtraError)
    assert line == "a zoo at postgresql://… needs psycopg: pip install 'nearkin[postgres]'"


def test_versions_are_checked_and_migrated(
    shared_address: str, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    moods = sql.Table("moods", sql.MetaData(), sql.Column("id", sql.Integer, primary_key=True))
    steps = (*MIGRATIONS, Migration(NOW + 1, moods.create))
    with Catalogue(shared_address, migrations=MIGRATIONS[:1], blobs=str(tmp_path)) as zoo:
        zoo.add(laws.new_task())
        name = zoo.database.schema
    assert (
        refusal(lambda: Catalogue(shared_address))
        == f"this zoo has version 1, expected {NOW}; run nearkin zoo upgrade once"
    )

    def fail(connection: sql.Connection) -> None:
        connection.execute(sql.delete(schema.tasks))
        raise RuntimeError("no such luck")

    failing = TableSet(ZOO.key, (*steps, Migration(NOW + 2, fail)))
    assert "no such luck; nothing was changed" in refusal(lambda: upgrade_zoo(shared_address, failing))
    assert upgrade_zoo(shared_address) == (1, NOW)
    assert upgrade_zoo(shared_address, TableSet(ZOO.key, steps)) == (NOW, NOW + 1)
    newer = f"this zoo has version {NOW + 1}, expected at most {NOW}; install a newer nearkin"
    assert refusal(lambda: Catalogue(shared_address)) == refusal(lambda: upgrade_zoo(shared_address)) == newer
    with Catalogue(shared_address, migrations=steps) as zoo:
        assert zoo.names() == ["even"]
    assert "there is no zoo" in refusal(lambda: upgrade_zoo(shared_address.replace(name, "empty")))


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE {}.bills (amount int)", "CREATE TABLE {}.meta (key text, value text)"]
)
def test_a_schema_of_somebody_else_is_left_alone(
    shared_address: str, tmp_path: Path, postgres_server: PostgresServer, statement: str
) -> None:
    name = shared_address.rpartition("=")[2]
    postgres_server.execute(f"CREATE SCHEMA {name}")
    postgres_server.execute(statement.format(name))
    line = refusal(lambda: Catalogue(shared_address, blobs=str(tmp_path)))
    assert f"the schema {name} of " in line
    assert "holds tables that are not nearkin's; choose another with ?schema=NAME" in line


def test_a_database_of_another_encoding_is_refused(postgres_server: PostgresServer, tmp_path: Path) -> None:
    postgres_server.execute(
        "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0"
    )
    line = refusal(lambda: Catalogue(postgres_server.address(database="ascii"), blobs=str(tmp_path)))
    assert "has the encoding SQL_ASCII, expected UTF8" in line


def test_the_statements_of_the_guide_make_owner_writer_and_reader(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    create, grant = (
        [" ".join(statement.split()) for statement in block.split(";") if statement.strip()]
        for block in re.findall(r"```sql\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    )
    for statement in create:
        postgres_server.execute(statement)

    def address(role: str, password: str) -> str:
        return postgres_server.address(user=role, password=password, database="zoo")

    with Catalogue(address("zoo_owner", "choose a password"), blobs=str(tmp_path / "blobs")) as zoo:
        zoo.add(laws.new_task(), laws.weights())
        assert zoo.writable
    for statement in grant:
        if statement.startswith("CREATE ROLE"):
            postgres_server.execute(statement)
    stranger = refusal(lambda: Catalogue(address("zoo_reader", "another password")))
    assert "cannot read postgresql://zoo_reader@" in stranger
    assert "permission denied for schema nearkin; ask its owner" in stranger
    with open_database(address("zoo_owner", "choose a password")).writing() as connection:
        for statement in grant:
            if not statement.startswith("CREATE ROLE"):
                connection.exec_driver_sql(statement)
    queue = open_job_table(address("zoo_writer", "a third password"))  # its tables were created with the zoo
    queue.put([])
    queue.close()
    with Catalogue(address("zoo_writer", "a third password")) as zoo:
        zoo.add(laws.new_task("odd"), laws.weights("odd"))
        zoo.attach("odd", [NewArtifact("fisher", 0, b"f")])
        zoo.keep_pair("m", "even", "odd", 0, {"value": 1.0})
        assert zoo.writable
        zoo.remove("even")
    with Catalogue(address("zoo_reader", "another password")) as zoo:
        assert not zoo.writable
        assert zoo.names() == ["odd"]
        assert examine(zoo).sound
        assert [zoo.blob(item) for item in zoo.artifacts("odd", "weights")] == [w.data for w in laws.weights("odd")]
        before = sorted(zoo.blobs.digests())
        changes: list[Callable[[], object]] = [
            lambda: zoo.add(laws.new_task("new"), laws.weights("new")),
            lambda: zoo.attach("odd", laws.weights("new")),
            lambda: zoo.remove("odd"),
            lambda: zoo.keep_pair("m", "odd", "odd", 0, {}),
        ]
        for change in changes:
            line = refusal(change, FileWriteError)
            assert line.startswith("cannot write postgresql://zoo_reader@127.0.0.1")
            assert "nothing was changed: ask its owner for permission to write" in line
        assert sorted(zoo.blobs.digests()) == before
    line = refusal(
        lambda: Catalogue(f"{address('zoo_writer', 'a third password')}?schema=mine", blobs=str(tmp_path)),
        FileWriteError,
    )
    assert "permission denied for database zoo" in line


def test_a_read_only_server_is_not_written(shared_address: str, zoo: Catalogue) -> None:
    zoo.add(laws.new_task())
    with Catalogue(f"{shared_address}&options=-cdefault_transaction_read_only%3Don") as fixed:
        assert not fixed.writable
        assert fixed.names() == ["even"]
        assert "it is read-only; nothing was changed" in refusal(lambda: fixed.remove("even"), FileWriteError)


def test_a_zoo_is_copied_between_a_folder_and_a_server(zoo: Catalogue, tmp_path: Path) -> None:
    kinds = ("b", "A", "a_b", "aB", "a-b")  # which languages sort in another order than bytes
    with Catalogue(tmp_path / "folder") as folder:
        for name in ("ümlaut", "b", "A"):
            folder.add(laws.new_task(name), [NewArtifact(kind, 0, f"{name} {kind}".encode()) for kind in kinds])
        export_bundle(folder, tmp_path / "one.zoo")
    import_bundle(zoo, tmp_path / "one.zoo")
    assert examine(zoo).sound
    export_bundle(zoo, tmp_path / "two.zoo")
    assert (tmp_path / "one.zoo").read_bytes() == (tmp_path / "two.zoo").read_bytes()
    with Catalogue(tmp_path / "again") as again:
        import_bundle(again, tmp_path / "two.zoo")
        assert [task.to_dict() for task in again.tasks()] == [task.to_dict() for task in zoo.tasks()]


def test_damage_is_found_and_orphans_are_removed(zoo: Catalogue, postgres_server: PostgresServer) -> None:
    zoo.add(laws.new_task(), laws.weights())
    orphan = zoo.blobs.put(b"nobody's")
    assert examine(zoo).orphans == (orphan,)
    assert clean(zoo, 0).orphans == (orphan,)
    zoo.blobs.remove(zoo.artifacts("even")[0].digest)
    assert [damage.tasks for damage in examine(zoo).missing] == [("even",)]
    name = zoo.database.schema
    postgres_server.execute(f"ALTER TABLE {name}.artifacts DROP CONSTRAINT artifacts_task_id_fkey")
    postgres_server.execute(f"DELETE FROM {name}.tasks")
    assert examine(zoo).problems == ("2 rows of artifacts name a missing row of tasks",)
    postgres_server.execute(f"DROP TABLE {name}.pairs")
    assert "the table pairs is missing" in examine(zoo).problems


def test_a_lock_held_too_long_is_told(shared_address: str, zoo: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    zoo.add(laws.new_task())
    with Catalogue(shared_address) as other, zoo.database.writing():
        assert other.count() == 1
        assert "another process has been writing to " in refusal(lambda: other.remove("even"))


def test_a_reader_sees_one_state(shared_address: str, zoo: Catalogue) -> None:
    with Catalogue(shared_address) as other, zoo.database.reading() as connection:
        count = sql.select(sql.func.count()).select_from(schema.tasks)
        assert connection.scalar(count) == 0
        other.add(laws.new_task())
        assert connection.scalar(count) == 0
        assert zoo.count() == 1


def test_a_change_whose_commit_was_not_confirmed_is_made_once(zoo: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    real, lost = zoo.database.writing, []

    @contextmanager
    def unconfirmed() -> Iterator[sql.Connection]:
        with real() as connection:
            yield connection
        if not lost:
            lost.append(1)
            raise ConnectionLost("after the commit")

    monkeypatch.setattr(zoo.database, "writing", unconfirmed)
    record = zoo.add(laws.new_task(), laws.weights())
    assert zoo.tasks() == [record]
    lost.clear()
    assert len(zoo.attach("even", [NewArtifact("weights", 1, b"new")])) == 2
    lost.clear()
    zoo.remove("even")
    assert zoo.names() == []
    health = examine(zoo)
    assert health.sound
    assert len(health.orphans) <= 1  # the weights that were replaced in the unconfirmed commit
    monkeypatch.setattr(zoo.database, "writing", real)
    zoo.add(laws.new_task(), laws.weights())
    assert "already has a task named 'even'" in refusal(lambda: zoo.add(laws.new_task(), laws.weights()))


def test_a_name_that_was_taken_during_the_loss_is_refused(
    shared_address: str, zoo: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = zoo.database.writing, []

    @contextmanager
    def broken() -> Iterator[sql.Connection]:
        if not lost:
            lost.append(1)
            with Catalogue(shared_address) as other:
                other.add(laws.new_task(), laws.weights("theirs"))
            raise ConnectionLost("before the commit")
        with real() as connection:
            yield connection

    monkeypatch.setattr(zoo.database, "writing", broken)
    assert "already has a task named 'even'" in refusal(lambda: zoo.add(laws.new_task(), laws.weights("mine")))


def test_a_restarted_server_loses_nothing(
    zoo: Catalogue, shared_address: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    script = f"""
        import importlib.util, sys
        from pathlib import Path
        spec = importlib.util.spec_from_file_location("laws_store", {laws.__file__!r})
        laws = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(laws)
        from nearkin.store.catalogue import Catalogue
        address, me, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
        with Catalogue(address, create=False) as zoo, open(folder / me, "w") as confirmed:
            number = 0
            while not (folder / "stop").exists():
                name = f"{{me}} {{number}}"
                zoo.add(laws.new_task(name), laws.weights(name))
                print(name, file=confirmed, flush=True)
                number += 1
                assert zoo.task(name).name == name
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(script), shared_address, me, str(tmp_path)],
            stderr=subprocess.PIPE, text=True,
        )
        for me in "ab"
    ]  # fmt: skip
    files = [tmp_path / me for me in "ab"]
    try:
        while not all(file.exists() and file.stat().st_size for file in files):
            assert [process.poll() for process in processes] == [None, None], "both add without end"
            time.sleep(0.02)
        for _ in range(3):
            postgres_server.restart()
            before = zoo.count()
            while zoo.count() < before + 4:
                time.sleep(0.02)
        (tmp_path / "stop").touch()
        said = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0], said
    confirmed = {name for file in files for name in file.read_text().splitlines()}
    assert set(zoo.names()) == confirmed
    for name in confirmed:
        assert [zoo.blob(item) for item in zoo.artifacts(name)] == [file.data for file in laws.weights(name)]
    assert examine(zoo).sound


def test_a_zoo_is_opened_while_the_server_restarts(
    zoo: Catalogue, shared_address: str, postgres_server: PostgresServer
) -> None:
    zoo.add(laws.new_task())
    postgres_server.stop()
    later = threading.Timer(0.5, postgres_server.start)
    later.start()
    try:
        with Catalogue(shared_address) as opened:
            assert opened.names() == ["even"]
    finally:
        later.join()


def test_a_server_that_stays_away_is_told(
    zoo: Catalogue, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "RECONNECT_SECONDS", 0.5)
    postgres_server.stop()
    try:
        assert "cannot reach the server of" in refusal(zoo.tasks, ConnectionLost)
        assert "cannot reach the server of" in refusal(lambda: zoo.add(laws.new_task()), ConnectionLost)
    finally:
        postgres_server.start()
    zoo.add(laws.new_task())
    assert zoo.names() == ["even"]


def test_a_forked_process_uses_its_own_connections(
    zoo: Catalogue, monkeypatch: pytest.MonkeyPatch, shared_address: str
) -> None:
    script = """
        import os, sys
        from nearkin.store.catalogue import Catalogue
        with Catalogue(sys.argv[1]) as zoo:
            zoo.count()
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    os._exit(0 if all(zoo.count() == 0 for _ in range(20)) else 1)
                assert all(zoo.count() == 0 for _ in range(20))
                assert os.waitpid(child, 0)[1] == 0
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), shared_address], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_worker_keeps_no_connection(
    shared_address: str, zoo: Catalogue, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARKIN_WORKER", "1")
    with Catalogue(f"{shared_address}&application_name=worker") as worker:
        worker.add(laws.new_task())
        sessions = postgres_server.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'worker'")
        assert sessions == [(0,)]
