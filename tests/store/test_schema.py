import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sql
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from laws import store as laws
from nearkin.core.errors import ZooError
from nearkin.core.files import FileWriteError
from nearkin.store import database, schema
from nearkin.store.catalogue import Catalogue
from nearkin.store.integrity import examine
from nearkin.store.places import upgrade_zoo
from nearkin.store.schema import MIGRATIONS, ZOO, Migration, TableSet
from nearkin.store.sqlite import open_folder


def add_mood(connection: sql.Connection) -> None:
    connection.execute(sql.text("ALTER TABLE tasks ADD COLUMN mood VARCHAR NOT NULL DEFAULT 'calm'"))


def fail_halfway(connection: sql.Connection) -> None:
    connection.execute(sql.text("DELETE FROM tasks"))
    raise RuntimeError("no such luck")


NOW = MIGRATIONS[-1].version
WITH_MOOD = (*MIGRATIONS, Migration(NOW + 1, add_mood))


def upgraded(path: Path, migrations: Sequence[Migration]) -> tuple[int, int]:
    return upgrade_zoo(path, TableSet(ZOO.key, migrations))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Catalogue(tmp_path / "zoo") as zoo:
        zoo.add(laws.new_task(), laws.weights())
    return tmp_path / "zoo"


def asked(database: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def version_of(database: Path) -> int:
    return int(asked(database, "SELECT value FROM meta WHERE key = 'nearkin-zoo'")[0][0])


def test_a_fresh_zoo_has_the_tables_that_queries_speak_of(path: Path) -> None:
    with Catalogue(path) as zoo, zoo.database.reading() as connection:
        found = sql.inspect(connection)
        assert set(found.get_table_names()) == set(schema.metadata.tables)
        for name, table in schema.metadata.tables.items():
            assert [column["name"] for column in found.get_columns(name)] == [column.name for column in table.columns]
    assert version_of(path / "zoo.db") == MIGRATIONS[-1].version


def test_a_zoo_of_version_1_is_migrated_and_keeps_pairs(tmp_path: Path) -> None:
    with Catalogue(tmp_path / "old", migrations=MIGRATIONS[:1]) as zoo:
        zoo.add(laws.new_task("even"))
        zoo.add(laws.new_task("odd"))
    with pytest.raises(ZooError, match=f"this zoo has version 1, expected {NOW}; run nearkin zoo upgrade"):
        Catalogue(tmp_path / "old")
    assert upgrade_zoo(tmp_path / "old") == (1, NOW)
    assert upgrade_zoo(tmp_path / "old") == (NOW, NOW)
    with Catalogue(tmp_path / "old") as zoo:
        zoo.keep_pair("frechet", "even", "odd", 0, {"weight": 0.5})
        zoo.keep_pair("frechet", "even", "odd", 0, {"weight": 0.25})
        assert zoo.pairs("frechet", "odd") == {("even", 0): {"weight": 0.25}}
        assert zoo.pairs("frechet", "even") == {} == zoo.pairs("other", "odd")
        zoo.remove("even")
        assert zoo.pairs("frechet", "odd") == {}


def test_migrations_are_in_order() -> None:
    assert [step.version for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_the_tables_can_stand_in_postgresql() -> None:
    for table in schema.metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=postgresql.dialect()))


def test_connections_are_set_for_safety(path: Path) -> None:
    with Catalogue(path) as zoo, zoo.database.reading() as connection:
        told = {key: connection.exec_driver_sql(f"PRAGMA {key}").scalar() for key in ("journal_mode", "synchronous")}
        assert told == {"journal_mode": "wal", "synchronous": 2}
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 60_000


def test_a_second_set_of_tables_has_its_own_version_and_speed(path: Path) -> None:
    notes = sql.Table("notes", sql.MetaData(), sql.Column("id", sql.Integer, primary_key=True))

    def make(connection: sql.Connection) -> None:
        schema.meta.create(connection, checkfirst=True)
        notes.create(connection)

    tables = TableSet("nearkin-notes", (Migration(1, make),))
    for _ in range(2):
        opened = open_folder(path, tables=tables, file="notes.db", durable=False)
        with opened.reading() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 0
            assert connection.execute(sql.select(notes)).all() == []
        opened.close()
    with Catalogue(path, create=False) as zoo:
        assert len(zoo.tasks()) == 1


def test_a_closed_zoo_is_one_file_beside_its_blobs(path: Path) -> None:
    assert sorted(entry.name for entry in path.iterdir()) == ["blobs", "zoo.db"]


def test_an_older_zoo_is_migrated_and_kept_as_it_was(path: Path) -> None:
    with pytest.raises(ZooError, match="run nearkin zoo upgrade"):
        Catalogue(path, migrations=WITH_MOOD)
    assert version_of(path / "zoo.db") == NOW
    assert upgraded(path, WITH_MOOD) == (NOW, NOW + 1)
    with Catalogue(path, create=False, migrations=WITH_MOOD) as zoo:
        assert examine(zoo).problems == ()
    assert version_of(path / "zoo.db") == NOW + 1
    assert asked(path / "zoo.db", "SELECT name, mood FROM tasks") == [("even", "calm")]
    assert version_of(path / f"zoo.db.v{NOW}") == NOW
    assert asked(path / f"zoo.db.v{NOW}", "SELECT name FROM tasks") == [("even",)]
    assert asked(path / f"zoo.db.v{NOW}", "PRAGMA integrity_check") == [("ok",)]


def test_a_kept_copy_can_be_put_back(path: Path) -> None:
    upgraded(path, WITH_MOOD)
    (path / f"zoo.db.v{NOW}").replace(path / "zoo.db")
    with Catalogue(path) as zoo:
        assert zoo.task("even").facts == laws.new_task().facts
        assert examine(zoo).sound


def test_a_copy_is_kept_of_what_is_only_in_the_log_too(path: Path) -> None:
    with Catalogue(path) as zoo, zoo.database.reading() as reader:
        reader.execute(sql.select(schema.meta)).all()  # while this reads, the log cannot be folded into the file
        zoo.add(laws.new_task("late"))
        upgraded(path, WITH_MOOD)
    assert asked(path / f"zoo.db.v{NOW}", "SELECT name FROM tasks ORDER BY id") == [("even",), ("late",)]


def test_several_steps_are_one(path: Path) -> None:
    with pytest.raises(
        ZooError,
        match=rf"could not migrate .*zoo\.db from version {NOW} to {NOW + 2}: no such luck; nothing was changed",
    ):
        upgraded(path, (*WITH_MOOD, Migration(NOW + 2, fail_halfway)))
    assert version_of(path / "zoo.db") == NOW
    with Catalogue(path) as zoo:
        assert [record.name for record in zoo.tasks()] == ["even"]
        assert "mood" not in zoo.tasks()[0].__dict__


def test_steps_run_once_when_many_upgrade_at_once(path: Path) -> None:
    ran = []

    def add_mood_once(connection: sql.Connection) -> None:
        ran.append(1)
        add_mood(connection)

    steps = (*MIGRATIONS, Migration(NOW + 1, add_mood_once))
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda _: upgraded(path, steps), range(8)))
    assert ran == [1]
    assert {after for _, after in versions} == {NOW + 1}


def test_a_new_zoo_takes_every_step(tmp_path: Path) -> None:
    Catalogue(tmp_path / "new", migrations=WITH_MOOD).close()
    assert version_of(tmp_path / "new" / "zoo.db") == NOW + 1
    assert sorted(entry.name for entry in (tmp_path / "new").iterdir()) == ["zoo.db"]


@pytest.mark.parametrize("create", [False, True])
def test_a_newer_zoo_is_refused(path: Path, create: bool) -> None:
    with closing(sqlite3.connect(path / "zoo.db")) as connection:
        connection.execute("UPDATE meta SET value = '7'")
        connection.commit()
    with pytest.raises(ZooError, match=f"this zoo has version 7, expected at most {NOW}; install a newer nearkin"):
        Catalogue(path, create)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE bills (amount)", "CREATE TABLE meta (key, value)", "DELETE FROM meta"]
)
def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path, statement: str) -> None:
    (tmp_path / "zoo").mkdir()
    if statement.startswith("DELETE"):
        Catalogue(tmp_path / "zoo").close()
    with closing(sqlite3.connect(tmp_path / "zoo" / "zoo.db")) as connection:
        connection.execute(statement)
        connection.commit()
    before = (tmp_path / "zoo" / "zoo.db").read_bytes()
    with pytest.raises(ZooError, match="is not a database of nearkin; name another folder with --zoo"):
        Catalogue(tmp_path / "zoo")
    assert (tmp_path / "zoo" / "zoo.db").read_bytes() == before


def test_a_lock_held_too_long_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    with Catalogue(path) as zoo, Catalogue(path) as other, zoo.database.writing():
        assert len(other.tasks()) == 1
        with pytest.raises(ZooError, match=r"another process has been writing to .*; wait for it, then run it again"):
            other.remove("even")


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (sqlite3.SQLITE_FULL, FileWriteError, "the disk is full; nothing was changed"),
        (sqlite3.SQLITE_IOERR | (3 << 8), FileWriteError, "disk said no; nothing was changed"),
        (sqlite3.SQLITE_READONLY, FileWriteError, "it is read-only; nothing was changed"),
        (sqlite3.SQLITE_CORRUPT, ZooError, "is damaged; run nearkin doctor"),
        (sqlite3.SQLITE_ERROR, ZooError, "disk said no; run nearkin doctor"),
    ],
)
def test_what_the_database_says_is_told_in_one_line(path: Path, code: int, error: type[Exception], words: str) -> None:
    said = sqlite3.OperationalError("disk said\nno")
    said.sqlite_errorcode = code

    def write(zoo: Catalogue) -> None:
        with zoo.database.writing() as connection:
            connection.execute(sql.delete(schema.tasks))
            raise sql.exc.OperationalError("COMMIT", {}, said)

    with Catalogue(path) as zoo:
        with pytest.raises(error, match=words) as told:
            write(zoo)
        assert "\n" not in str(told.value)
        assert len(zoo.tasks()) == 1
