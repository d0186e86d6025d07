"""A zoo is created whole: by several processes at once, and after any of them was killed on the way."""

import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sql

import nearkin as nk
from calling import Call
from nearkin.cli.app import main
from nearkin.core.errors import ZooError
from nearkin.store.catalogue import Catalogue
from nearkin.store.integrity import examine

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
ADD = ("digits?limit=40", "--network", "mlp", "--trials", "1", "--epochs", "1")
FORK = multiprocessing.get_context("fork")  # with everything imported: signals and races hit the creation itself


def forked(work: Callable[..., None], *arguments: object) -> multiprocessing.context.ForkProcess:
    process = FORK.Process(target=work, args=arguments)
    process.start()
    return process


def made(zoo: Path) -> None:
    Catalogue(zoo).close()


def made_up_to(zoo: Path, statements: int) -> None:
    """Create a zoo, killed after so many statements and commits."""
    left = statements

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sql.event.listen(sql.Engine, "after_cursor_execute", count)
    sql.event.listen(sql.Engine, "commit", count)
    made(zoo)


def added(zoo: Path, name: str, barrier: object) -> None:
    sys.argv = ["nearkin", "--quiet", "--zoo", str(zoo), "add", name, *ADD]
    barrier.wait(60)  # type: ignore[attr-defined]
    main()


def assert_whole(zoo: Path, create: bool = False) -> None:
    with Catalogue(zoo, create=create) as catalogue:
        assert catalogue.tasks() == []
        assert examine(catalogue).sound


@pytest.mark.parametrize("header", [False, True], ids=["no bytes", "header only"])
@pytest.mark.parametrize("first", [("add", "toy", *ADD), ("list",)], ids=["add", "list"])
def test_an_empty_database_is_completed_by_any_command(
    call: Call, tmp_path: Path, header: bool, first: tuple[str, ...]
) -> None:
    database = tmp_path / "nearkin-zoo" / "zoo.db"
    database.parent.mkdir()
    database.touch()
    if header:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        assert database.stat().st_size > 0
    said = call(*first)
    assert said.code == 0, said.err
    with Catalogue(database.parent, create=False) as catalogue:
        assert examine(catalogue).sound


def test_another_program_s_database_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "zoo.db")) as connection:
        connection.execute("CREATE TABLE mine (a)")
    with pytest.raises(ZooError, match="is not a database of nearkin"):
        Catalogue(tmp_path)


def test_killed_after_any_statement_it_is_completed(tmp_path: Path) -> None:
    for statement in range(60):
        zoo = tmp_path / f"zoo-{statement}"
        process = forked(made_up_to, zoo, statement)
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL)
        assert_whole(zoo)
        if process.exitcode == 0:
            break
    assert process.exitcode == 0, "the last one was not killed"
    assert statement >= 10, "creation has more statements than that"


def test_killed_at_any_moment_it_is_completed(tmp_path: Path) -> None:
    begun = time.perf_counter()
    forked(made, tmp_path / "timed").join(60)
    length, moments, killed = time.perf_counter() - begun, random.Random(0), 0
    for turn in range(200):
        zoo = tmp_path / f"zoo-{turn}"
        process = forked(made, zoo)
        time.sleep(length * moments.random())
        process.kill()
        process.join(60)
        assert_whole(zoo, create=not (zoo / "zoo.db").exists())
        if process.exitcode == -signal.SIGKILL:
            killed += 1
        else:  # it was done before: the first one took longer than those after it
            length *= 0.8
        if killed == 12:
            break
    assert killed == 12


@pytest.mark.parametrize("turn", range(3))
def test_four_first_adds_at_once_all_succeed(tmp_path: Path, turn: int) -> None:
    nk.task(ADD[0])
    barrier = FORK.Barrier(4)
    processes = [forked(added, tmp_path / "zoo", f"task {me}", barrier) for me in range(4)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    with Catalogue(tmp_path / "zoo", create=False) as catalogue:
        assert {task.name for task in catalogue.tasks()} == {f"task {me}" for me in range(4)}
        assert examine(catalogue).sound
