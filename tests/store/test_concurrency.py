"""Several processes at one zoo, and processes that are killed: real ones, started anew."""

import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from laws import store as laws
from nearkin.store.catalogue import Catalogue
from nearkin.store.integrity import examine
from nearkin.store.schema import MIGRATIONS

HEAD = f"""
    import importlib.util, os, random, signal, sys, time
    spec = importlib.util.spec_from_file_location("laws_store", {laws.__file__!r})
    laws = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(laws)
    from nearkin.core.errors import ZooError
    from nearkin.store.catalogue import Catalogue
    from nearkin.store.records import NewArtifact
    from nearkin.store.integrity import clean, examine
    path, blobs, me = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
"""


@dataclass(frozen=True)
class Place:
    """Where a zoo is or will be: a folder, or an address and the folder of its blobs."""

    path: str
    blobs: str = ""

    def opened(self) -> Catalogue:
        return Catalogue(self.path, create=False)


@pytest.fixture(params=["folder", "shared"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return Place(str(tmp_path / "zoo"))
    return Place(request.getfixturevalue("shared_address"), str(tmp_path / "blobs"))


def started(script: str, place: Place, me: object) -> subprocess.Popen[str]:
    code = textwrap.dedent(HEAD) + textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, place.path, place.blobs, str(me)],
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
    with Catalogue(path, blobs=blobs) as zoo:
        for i in range(10):
            shared = NewArtifact("data", 0, b"shared by all")
            zoo.add(laws.new_task(f"{me} {i}"), [*laws.weights(f"{me} {i}"), shared])
"""


@pytest.mark.thinned(2)
def test_many_add_at_once_to_a_zoo_that_is_not_there_yet(place: Place) -> None:
    at_once(*(started(ADDING, place, me) for me in range(4)))
    with place.opened() as zoo:
        assert {task.name for task in zoo.tasks()} == {f"{me} {i}" for me in range(4) for i in range(10)}
        health = examine(zoo)
        assert health.sound
        assert (health.tasks, health.blobs) == (40, 81)
        assert health.orphans == health.leftovers == ()


@pytest.mark.thinned(2)
def test_of_two_that_want_one_name_one_gets_it(place: Place) -> None:
    racing = """
        with Catalogue(path, blobs=blobs) as zoo:
            for i in range(15):
                try:
                    zoo.add(laws.new_task(f"task {i}"), laws.weights(me))
                    print(i, flush=True)
                except ZooError as refused:
                    assert "already has a task named" in str(refused), refused
    """
    said = at_once(*(started(racing, place, me) for me in "ab"))
    won = Counter(line for lines in said for line in lines)
    assert won == Counter({str(i): 1 for i in range(15)})
    with place.opened() as zoo:
        for me, lines in zip("ab", said, strict=True):
            for i in lines:
                expected = [file.data for file in laws.weights(me)]
                assert [zoo.blob(item) for item in zoo.artifacts(f"task {i}")] == expected
        assert examine(zoo).sound


@pytest.mark.thinned(2)
def test_readers_see_whole_tasks_only(place: Place) -> None:
    writing = """
        with Catalogue(path, blobs=blobs) as zoo:
            for i in range(30):
                zoo.add(laws.new_task(f"task {i}"), laws.weights(f"task {i}", trials=3))
    """
    reading = """
        with Catalogue(path, blobs=blobs) as zoo:
            while len(names := [task.name for task in zoo.tasks()]) < 30:
                for name in names[-3:]:
                    held = zoo.artifacts(name)
                    assert [zoo.blob(item) for item in held] == [w.data for w in laws.weights(name, trials=3)]
    """
    at_once(started(writing, place, "w"), started(reading, place, "r"))


@pytest.mark.thinned(2)
def test_a_clean_up_takes_nothing_from_those_who_add(place: Place) -> None:
    adding = """
        with Catalogue(path, blobs=blobs) as zoo:
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
        with Catalogue(path, blobs=blobs) as zoo:
            gone = 0
            while {"a is done", "b is done"} - {task.name for task in zoo.tasks()}:
                gone += len(clean(zoo, 0).orphans)
            print(gone)
    """
    processes = [started(adding, place, me) for me in "ab"]
    at_once(*processes, started(cleaning, place, "c"))
    with place.opened() as zoo:
        assert len(zoo.tasks()) == 42
        assert examine(zoo).sound


@pytest.mark.thinned(2)
def test_of_many_that_upgrade_at_once_one_does_it(place: Place) -> None:
    Catalogue(place.path, migrations=MIGRATIONS[:1], blobs=place.blobs).close()
    upgrading = """
        from nearkin.store.places import upgrade_zoo
        print(*upgrade_zoo(path))
    """
    versions = Counter(tuple(lines) for lines in at_once(*(started(upgrading, place, me) for me in range(3))))
    newest = MIGRATIONS[-1].version
    assert versions == Counter({(f"1 {newest}",): 1, (f"{newest} {newest}",): 2})
    with place.opened() as zoo:
        assert zoo.tasks() == []


@pytest.mark.soak
def test_twenty_kills_leave_a_sound_zoo(place: Place) -> None:
    """One process forks twenty that add, attach and remove without end, and kills each at a moment of its own."""
    killing = """
        def busy(turn, done):
            with Catalogue(path, blobs=blobs) as zoo:
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
            with Catalogue(path, blobs=blobs) as zoo:
                health = examine(zoo)
                assert health.sound, health
                dirty += bool(health.orphans or health.leftovers)
                for task in zoo.tasks():
                    assert len(zoo.artifacts(task.name, "weights")) == 2
                assert health.tasks >= tasks
                tasks = health.tasks
        with Catalogue(path, blobs=blobs) as zoo:
            clean(zoo, 0)
            assert examine(zoo).orphans == ()
        print(tasks, dirty)
    """
    (said,) = at_once(started(killing, place, 1))
    assert int(said[0].split()[0]) >= 15
