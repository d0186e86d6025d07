"""Several processes at one zoo, and processes that are killed: real ones, started anew."""

import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from laws import store as laws
from nearkin.store.catalogue import Catalogue
from nearkin.store.integrity import examine

HEAD = f"""
    import importlib.util, os, random, signal, sys, time
    spec = importlib.util.spec_from_file_location("laws_store", {laws.__file__!r})
    laws = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(laws)
    from nearkin.core.errors import ZooError
    from nearkin.store.catalogue import Catalogue
    from nearkin.store.records import NewArtifact
    from nearkin.store.integrity import clean, examine
    path, me = sys.argv[1], sys.argv[2]
    print("ready", flush=True)
    sys.stdin.readline()
"""


def started(script: str, path: Path, me: object) -> subprocess.Popen[str]:
    code = textwrap.dedent(HEAD) + textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, str(path), str(me)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def at_once(*processes: subprocess.Popen[str]) -> list[list[str]]:
    """Let processes that are ready go together; the lines each of them said."""
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.communicate()
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        said = []
        for process in processes:
            said.append(process.communicate(timeout=300))
            assert process.returncode == 0, said[-1]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [out.splitlines() for out, _ in said]


ADDING = """
    with Catalogue(path) as zoo:
        for i in range(10):
            shared = NewArtifact("data", 0, b"shared by all")
            zoo.add(laws.new_task(f"{me} {i}"), [*laws.weights(f"{me} {i}"), shared])
"""


def test_many_add_at_once_to_a_zoo_that_is_not_there_yet(tmp_path: Path) -> None:
    at_once(*(started(ADDING, tmp_path / "zoo", me) for me in range(4)))
    with Catalogue(tmp_path / "zoo", create=False) as zoo:
        assert {task.name for task in zoo.tasks()} == {f"{me} {i}" for me in range(4) for i in range(10)}
        health = examine(zoo)
        assert health.sound
        assert (health.tasks, health.blobs) == (40, 81)
        assert health.orphans == health.leftovers == ()


def test_of_two_that_want_one_name_one_gets_it(tmp_path: Path) -> None:
    racing = """
        with Catalogue(path) as zoo:
            for i in range(15):
                try:
                    zoo.add(laws.new_task(f"task {i}"), laws.weights(me))
                    print(i, flush=True)
                except ZooError as refused:
                    assert "already has a task named" in str(refused), refused
    """
    said = at_once(*(started(racing, tmp_path / "zoo", me) for me in "ab"))
    won = Counter(line for lines in said for line in lines)
    assert won == Counter({str(i): 1 for i in range(15)})
    with Catalogue(tmp_path / "zoo", create=False) as zoo:
        for me, lines in zip("ab", said, strict=True):
            for i in lines:
                expected = [file.data for file in laws.weights(me)]
                assert [zoo.blob(item) for item in zoo.artifacts(f"task {i}")] == expected
        assert examine(zoo).sound


def test_readers_see_whole_tasks_only(tmp_path: Path) -> None:
    writing = """
        with Catalogue(path) as zoo:
            for i in range(30):
                zoo.add(laws.new_task(f"task {i}"), laws.weights(f"task {i}", trials=3))
    """
    reading = """
        with Catalogue(path) as zoo:
            while len(names := [task.name for task in zoo.tasks()]) < 30:
                for name in names[-3:]:
                    held = zoo.artifacts(name)
                    assert [zoo.blob(item) for item in held] == [w.data for w in laws.weights(name, trials=3)]
    """
    at_once(started(writing, tmp_path / "zoo", "w"), started(reading, tmp_path / "zoo", "r"))


def test_a_clean_up_takes_nothing_from_those_who_add(tmp_path: Path) -> None:
    adding = """
        with Catalogue(path) as zoo:
            for i in range(40):
                shared = NewArtifact("data", 0, str(i % 3).encode())
                zoo.add(laws.new_task(f"{me} {i}"), [shared, *laws.weights(str(i))])
                if i % 2:
                    zoo.remove(f"{me} {i}")
                for item in zoo.artifacts(f"{me} {i - i % 2}"):
                    zoo.blob(item)
            zoo.add(laws.new_task(f"{me} is done"))
    """
    cleaning = """
        with Catalogue(path) as zoo:
            gone = 0
            while {"a is done", "b is done"} - {task.name for task in zoo.tasks()}:
                gone += len(clean(zoo, 0).orphans)
            print(gone)
    """
    processes = [started(adding, tmp_path / "zoo", me) for me in "ab"]
    at_once(*processes, started(cleaning, tmp_path / "zoo", "c"))
    with Catalogue(tmp_path / "zoo", create=False) as zoo:
        assert len(zoo.tasks()) == 42
        assert examine(zoo).sound


@pytest.mark.soak
def test_twenty_kills_leave_a_sound_zoo(tmp_path: Path) -> None:
    """One process forks twenty that add, attach and remove without end, and kills each at a moment of its own."""
    killing = """
        def busy(turn, done):
            with Catalogue(path) as zoo:
                for i in range(10_000):
                    name = f"{turn} {i}"
                    zoo.add(laws.new_task(name), laws.weights(name))
                    zoo.attach(name, [NewArtifact("weights", 0, name.encode()), NewArtifact("fisher", 0, b"same")])
                    if i % 3 == 2:
                        zoo.remove(name)
                    os.write(done, b".")

        dice, dirty, tasks = random.Random(int(me)), 0, 0
        for turn in range(20):
            heard, done = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    busy(turn, done)
                finally:
                    os._exit(1)
            if turn > 4:  # the first ones die while the zoo is being made
                os.read(heard, 1)
            time.sleep(0.05 * dice.random())
            os.kill(child, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the child ended by itself"
            os.close(heard)
            os.close(done)
            with Catalogue(path) as zoo:
                health = examine(zoo)
                assert health.sound, health
                dirty += bool(health.orphans or health.leftovers)
                for task in zoo.tasks():
                    assert len(zoo.artifacts(task.name, "weights")) == 2
                assert health.tasks >= tasks
                tasks = health.tasks
        with Catalogue(path) as zoo:
            clean(zoo, 0)
            assert examine(zoo).orphans == ()
        print(tasks, dirty)
    """
    (said,) = at_once(started(killing, tmp_path / "zoo", 1))
    assert int(said[0].split()[0]) >= 15
