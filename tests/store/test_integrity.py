import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from laws import store as laws
from nearkin.core.errors import ZooError
from nearkin.core.events import Progress, finish
from nearkin.core.files import TEMPORARY_PREFIX
from nearkin.store.catalogue import Catalogue
from nearkin.store.integrity import DamagedBlob, Health, clean, examine
from nearkin.store.records import NewArtifact


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[Catalogue]:
    with Catalogue(tmp_path / "zoo") as catalogue:
        shared = NewArtifact("data", 0, b"shared")
        catalogue.add(laws.new_task("a"), [*laws.weights("a"), shared, NewArtifact("copy", 0, b"shared")])
        catalogue.add(laws.new_task("b"), [*laws.weights("b"), shared])
        yield catalogue


def made_old(path: Path, seconds: float) -> Path:
    moment = time.time() - seconds
    os.utime(path, (moment, moment))
    return path


def test_a_sound_zoo(zoo: Catalogue) -> None:
    events: list[Progress] = []
    health = finish(examine.work(zoo), events.append)
    assert health == Health(tasks=2, blobs=5)
    assert health.sound
    assert [(event.done, event.total) for event in events] == [(i, 5) for i in range(6)]
    assert json.loads(json.dumps(health.to_dict()))["sound"] is True


def test_an_empty_zoo_is_sound(tmp_path: Path) -> None:
    with Catalogue(tmp_path / "zoo") as zoo:
        assert examine(zoo) == Health(tasks=0, blobs=0)


@pytest.mark.parametrize("position", [0, 57, 299])
def test_one_altered_bit_is_found(zoo: Catalogue, position: int) -> None:
    item = zoo.artifacts("a", "weights")[0]
    harmed = bytearray(zoo.blob(item))
    harmed[position] ^= 4
    zoo.blobs.path(item.digest).write_bytes(harmed)
    health = examine(zoo)
    assert health.altered == (DamagedBlob(item.digest, ("a",)),)
    assert not health.sound
    assert json.loads(json.dumps(health.to_dict()))["altered"] == [{"digest": item.digest, "tasks": ["a"]}]


def test_a_missing_blob_is_found_with_all_its_tasks(zoo: Catalogue) -> None:
    item = zoo.artifacts("b", "data")[0]
    zoo.blobs.remove(item.digest)
    health = examine(zoo)
    assert health.missing == (DamagedBlob(item.digest, ("a", "b")),)
    assert not health.sound


def test_what_nobody_needs_is_named_and_harmless(zoo: Catalogue) -> None:
    orphan = zoo.blobs.put(b"nobody's")
    (zoo.blobs.folder / orphan[:2] / f"{TEMPORARY_PREFIX}x").touch()
    (zoo.path / f"{TEMPORARY_PREFIX}y").touch()
    (zoo.path / "work" / "fit-even").mkdir(parents=True)
    health = examine(zoo)
    assert health.orphans == (orphan,)
    assert health.leftovers == (f"{TEMPORARY_PREFIX}y", f"blobs/{orphan[:2]}/{TEMPORARY_PREFIX}x")
    assert health.unfinished == ("fit-even",)
    assert health.sound


def test_rows_that_name_nothing_are_found(zoo: Catalogue) -> None:
    with closing(sqlite3.connect(zoo.database.path)) as connection:
        connection.execute("DELETE FROM blobs WHERE digest = ?", [zoo.artifacts("a")[0].digest])
        connection.commit()
    health = examine(zoo)
    assert any("names a missing row of blobs" in problem for problem in health.problems)
    assert not health.sound
    with pytest.raises(ZooError, match="nothing was removed, the zoo is damaged"):
        clean(zoo, 0)


def test_a_damaged_database_is_found_and_nothing_cleaned(zoo: Catalogue) -> None:
    for i in range(60):
        zoo.add(laws.new_task(f"task {i}", facts={"long": "x" * 3000}))
    whole = bytearray(zoo.database.path.read_bytes())
    assert len(whole) > 100_000
    whole[40_000:90_000] = os.urandom(50_000)
    zoo.database.path.write_bytes(whole)
    health = examine(zoo)
    assert health.problems
    assert not health.sound
    orphan = zoo.blobs.put(b"nobody's, it seems")
    with pytest.raises(ZooError, match="nothing was removed, the zoo is damaged") as refused:
        clean(zoo, 0)
    assert "\n" not in str(refused.value)
    assert zoo.blobs.has(orphan)


def test_changes_during_the_check_are_no_damage(zoo: Catalogue) -> None:
    work = examine.work(zoo)
    next(work)
    zoo.remove("b")
    zoo.add(laws.new_task("c"), laws.weights("c"))
    health = finish(work)
    assert health.sound
    assert health.orphans == ()
    assert health.tasks == 2


def test_only_what_is_old_is_cleaned(zoo: Catalogue) -> None:
    old, young = zoo.blobs.put(b"old"), zoo.blobs.put(b"young")
    made_old(zoo.blobs.path(old), 4000)
    shelf = zoo.blobs.folder / old[:2]
    (shelf / f"{TEMPORARY_PREFIX}old").write_bytes(b"12345")
    made_old(shelf / f"{TEMPORARY_PREFIX}old", 4000)
    (shelf / f"{TEMPORARY_PREFIX}young").touch()
    for digest in {item.digest for item in zoo.artifacts()}:
        made_old(zoo.blobs.path(digest), 10_000)
    done = clean(zoo)
    assert done.orphans == (old,)
    assert done.leftovers == (f"blobs/{old[:2]}/{TEMPORARY_PREFIX}old",)
    assert done.freed == 3 + 5
    health = examine(zoo)
    assert health.sound
    assert health.orphans == (young,)
    assert clean(zoo, 0).orphans == (young,)
    assert examine(zoo).leftovers == (f"blobs/{old[:2]}/{TEMPORARY_PREFIX}young",)


def test_an_orphan_that_another_process_removes_is_no_error(zoo: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    orphan, size = zoo.blobs.put(b"nobody's"), zoo.blobs.size

    def removed_before(digest: str) -> int:
        zoo.blobs.remove(digest)
        return size(digest)

    monkeypatch.setattr(zoo.blobs, "size", removed_before)
    assert clean(zoo, 0).freed == 0
    assert orphan not in set(zoo.blobs.digests())
    assert examine(zoo).sound


def test_many_orphans_are_cleaned_in_batches(zoo: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.store.integrity.BATCH", 3)
    monkeypatch.setattr("nearkin.store.catalogue.BATCH", 2)
    orphans = sorted(zoo.blobs.put(bytes([i])) for i in range(10))
    assert sorted(clean(zoo, 0).orphans) == orphans
    assert examine(zoo) == Health(tasks=2, blobs=5)


def test_an_orphan_that_will_not_go_stays(zoo: Catalogue) -> None:
    stuck = "ab" * 32
    zoo.blobs.path(stuck).mkdir(parents=True)
    assert clean(zoo, 0).orphans == ()
    assert examine(zoo).orphans == (stuck,)
