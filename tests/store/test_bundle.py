import io
import json
import os
import random
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laws import store as laws
from nearkin.core.errors import OptionError, ZooError
from nearkin.core.events import Progress, finish
from nearkin.core.files import FileWriteError
from nearkin.store.bundle import export_bundle, import_bundle
from nearkin.store.catalogue import Catalogue
from nearkin.store.integrity import examine
from nearkin.store.records import NewArtifact


def filled(path: Path) -> Catalogue:
    zoo = Catalogue(path)
    zoo.add(laws.new_task("b"), [*laws.weights("b"), NewArtifact("data", 0, b"shared", {"n": [1, 2]})])
    zoo.add(laws.new_task("a", facts={}), [NewArtifact("data", 0, b"shared")])
    zoo.add(laws.new_task("bare"))
    return zoo


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[Catalogue]:
    with filled(tmp_path / "zoo") as catalogue:
        yield catalogue


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Catalogue]:
    with Catalogue(tmp_path / "other") as catalogue:
        yield catalogue


@pytest.fixture
def file(zoo: Catalogue, tmp_path: Path) -> Path:
    export_bundle(zoo, tmp_path / "zoo.zip")
    return tmp_path / "zoo.zip"


def contents(zoo: Catalogue) -> list[Any]:
    return [
        (task.to_dict(), [(item.to_dict(), zoo.blob(item)) for item in zoo.artifacts(task.name)])
        for task in zoo.tasks()
    ]


def assert_refused(other: Catalogue, file: Path, words: str) -> None:
    """The bundle is refused in one line, and the zoo is as it was, down to its files."""
    before = contents(other), sorted(path.relative_to(other.path) for path in other.path.rglob("*.safetensors"))
    with pytest.raises(ZooError, match=words) as refused:
        import_bundle(other, file)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600
    after = contents(other), sorted(path.relative_to(other.path) for path in other.path.rglob("*.safetensors"))
    assert after == before
    assert examine(other).sound


def rewritten(file: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with zipfile.ZipFile(file) as bundle:
        members = {name: bundle.read(name) for name in bundle.namelist()}
    change(members)
    target = file.with_name("changed.zip")
    with zipfile.ZipFile(target, "w") as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    return target


def retold(file: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    def retell(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        change(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()

    return rewritten(file, retell)


def test_another_zoo_takes_in_all_of_it(zoo: Catalogue, other: Catalogue, file: Path, tmp_path: Path) -> None:
    other.add(laws.new_task("old"), laws.weights("b"))
    events: list[Progress] = []
    assert finish(import_bundle.work(other, file), events.append) == ["b", "a", "bare"]
    assert contents(other)[1:] == contents(zoo)
    assert (events[-1].done, events[-1].total) == (6, 6)
    assert examine(other).sound
    export_bundle(other, tmp_path / "again.zip", ["bare", "a", "b"])
    assert (tmp_path / "again.zip").read_bytes() == file.read_bytes()


def test_equal_zoos_give_equal_files(tmp_path: Path, file: Path) -> None:
    with filled(tmp_path / "twin") as twin:
        assert export_bundle(twin, tmp_path / "twin.zip") == ["b", "a", "bare"]
    assert (tmp_path / "twin.zip").read_bytes() == file.read_bytes()


def test_some_tasks_come_with_their_files_only(zoo: Catalogue, other: Catalogue, tmp_path: Path) -> None:
    assert export_bundle(zoo, tmp_path / "a.zip", ["a"]) == ["a"]
    assert import_bundle(other, tmp_path / "a.zip") == ["a"]
    assert len(list(other.blobs.digests())) == 1
    with pytest.raises(ZooError, match="no task named 'q'"):
        export_bundle(zoo, tmp_path / "q.zip", ["a", "q"])
    assert not (tmp_path / "q.zip").exists()


def test_an_empty_zoo_travels_too(other: Catalogue, zoo: Catalogue, tmp_path: Path) -> None:
    assert export_bundle(other, tmp_path / "none.zip") == []
    assert import_bundle(zoo, tmp_path / "none.zip") == []


def test_a_file_that_is_there_is_kept(zoo: Catalogue, file: Path) -> None:
    file.write_bytes(b"mine")
    with pytest.raises(ZooError, match=r"zoo\.zip exists already; choose another file, or add --overwrite"):
        export_bundle(zoo, file)
    assert file.read_bytes() == b"mine"
    export_bundle(zoo, file, overwrite=True)
    assert zipfile.is_zipfile(file)


def test_no_altered_blob_leaves_the_zoo(zoo: Catalogue, tmp_path: Path) -> None:
    zoo.blobs.path(zoo.artifacts("a")[0].digest).write_bytes(b"Shared")
    with pytest.raises(ZooError, match=r"was altered .* nearkin doctor"):
        export_bundle(zoo, tmp_path / "bad.zip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["zoo"]


def test_an_export_that_is_stopped_leaves_nothing(zoo: Catalogue, tmp_path: Path) -> None:
    work = export_bundle.work(zoo, tmp_path / "half.zip")
    next(work)
    next(work)
    work.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["zoo"]


def test_a_place_that_cannot_be_written_is_told(zoo: Catalogue, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(FileWriteError, match="cannot write"):
        export_bundle(zoo, tmp_path / "plain" / "zoo.zip")


def test_names_that_are_taken_are_listed(zoo: Catalogue, file: Path) -> None:
    assert_refused(
        zoo, file, "the zoo already has 'a', 'b', 'bare'; nearkin remove them first, or import into another zoo"
    )
    zoo.remove("b")
    zoo.remove("a")
    assert_refused(zoo, file, "the zoo already has 'bare';")


def test_many_taken_names_are_counted(zoo: Catalogue, tmp_path: Path) -> None:
    zoo.admit([(laws.new_task(f"t{i}"), []) for i in range(50)], lambda _: b"")
    export_bundle(zoo, tmp_path / "many.zip")
    assert_refused(zoo, tmp_path / "many.zip", "already has 'a', 'b', 'bare', 't0', 't1' and 48 more;")


def test_a_name_taken_meanwhile_undoes_all(other: Catalogue, file: Path) -> None:
    work = import_bundle.work(other, file)
    next(work)
    other.add(laws.new_task("bare"), laws.weights("new"))
    with pytest.raises(ZooError, match="already has a task named 'bare'"):
        finish(work)
    assert [record.name for record in other.tasks()] == ["bare"]
    assert examine(other).orphans == ()


def test_an_import_that_is_stopped_leaves_nothing(other: Catalogue, file: Path) -> None:
    work = import_bundle.work(other, file)
    for _ in range(5):
        next(work)
    assert len(list(other.blobs.digests())) > 0
    work.close()
    assert list(other.blobs.digests()) == []
    assert other.tasks() == []


def test_what_is_no_file_is_told(other: Catalogue, tmp_path: Path) -> None:
    assert_refused(other, tmp_path / "absent.zip", "cannot read .*absent.zip: No such file or directory; check")
    assert_refused(other, tmp_path, "cannot read .*: Is a directory")


def test_a_truncated_file_is_refused(other: Catalogue, file: Path) -> None:
    whole = file.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        file.write_bytes(whole[:length])
        assert_refused(other, file, "is not an intact export of a zoo: .*; fetch or export it again")


def test_a_harmed_file_is_refused_or_read_right(zoo: Catalogue, file: Path, tmp_path: Path) -> None:
    """A flipped bit in a date or a comment of the zip harms nothing; anywhere else it is found."""
    whole, truth = file.read_bytes(), contents(zoo)
    dice = random.Random(0)
    refused = 0
    for turn in range(150):
        harmed = bytearray(whole)
        harmed[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        file.write_bytes(harmed)
        with Catalogue(tmp_path / f"turn{turn}") as fresh:
            try:
                import_bundle(fresh, file)
                expected = truth
            except ZooError:
                refused, expected = refused + 1, []
            assert contents(fresh) == expected
            assert len(list(fresh.blobs.digests())) == len({item[0]["digest"] for _, held in expected for item in held})
        shutil.rmtree(tmp_path / f"turn{turn}")
    assert refused > 100


@pytest.mark.parametrize("name", ["../evil", "/evil", "blobs/../../evil", "blobs/" + "0" * 64, "note.txt"])
def test_members_that_nobody_promised_are_refused(other: Catalogue, file: Path, name: str) -> None:
    def plant(members: dict[str, bytes]) -> None:
        members[name] = b"evil"

    assert_refused(other, rewritten(file, plant), "its blobs are not those of its manifest")
    assert not (other.path.parent / "evil").exists()


def test_digests_that_are_paths_are_refused(other: Catalogue, file: Path) -> None:
    def plant(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest["tasks"][1]["artifacts"][0].update(digest="../../evil", size=4)
        members["manifest.json"] = json.dumps(manifest).encode()
        members["blobs/../../evil"] = b"evil"

    assert_refused(other, rewritten(file, plant), "a digest that is not 64 hexadecimal digits")


def test_blobs_that_are_not_what_they_say_are_refused(other: Catalogue, file: Path) -> None:
    def swap(members: dict[str, bytes]) -> None:
        name = min(members)
        members[name] = bytes(len(members[name]))

    def drop(members: dict[str, bytes]) -> None:
        del members[min(members)]

    assert_refused(other, rewritten(file, swap), "blob .*… was altered")
    assert_refused(other, rewritten(file, drop), "its blobs are not those of its manifest")


def test_a_newer_bundle_is_refused(other: Catalogue, file: Path) -> None:
    changed = retold(file, lambda told: told.update(version=2))
    assert_refused(other, changed, "is of version 2, this nearkin reads up to 1; install a newer nearkin")


MALFORMED: list[Callable[[dict[str, Any]], Any]] = [
    lambda told: told.update(format="other"),
    lambda told: told.pop("format"),
    lambda told: told.update(version="1"),
    lambda told: told.update(tasks=5),
    lambda told: told.update(tasks=[5]),
    lambda told: told["tasks"].append(told["tasks"][0]),
    lambda told: told["tasks"][0].pop("metric"),
    lambda told: told["tasks"][0].update(extra=1),
    lambda told: told["tasks"][0].update(metric="high"),
    lambda told: told["tasks"][0].update(metric=None),
    lambda told: told["tasks"][0].update(network=3),
    lambda told: told["tasks"][0].update(network="\ud800"),
    lambda told: told["tasks"][0].update(network="\x1b[2J"),
    lambda told: told["tasks"][0].update(name="../evil"),
    lambda told: told["tasks"][0].update(seed=2**80),
    lambda told: told["tasks"][0].update(input_shape=["wide"]),
    lambda told: told["tasks"][0].update(input_shape=[float("inf")]),
    lambda told: told["tasks"][0].update(facts=[1]),
    lambda told: told["tasks"][0].update(facts={"a": float("nan")}),
    lambda told: told["tasks"][0].update(artifacts={}),
    lambda told: told["tasks"][0]["artifacts"][0].update(trial=-1),
    lambda told: told["tasks"][0]["artifacts"][0].update(trial=2**70),
    lambda told: told["tasks"][0]["artifacts"][0].update(size=2**70),
    lambda told: told["tasks"][0]["artifacts"][0].update(size=-1),
    lambda told: told["tasks"][0]["artifacts"][0].update(kind="\n"),
    lambda told: told["tasks"][0]["artifacts"][0].update(facts={"a": float("inf")}),
    lambda told: told["tasks"][0]["artifacts"].append(told["tasks"][0]["artifacts"][0]),
]


@pytest.mark.parametrize("change", MALFORMED)
def test_a_malformed_manifest_is_refused(other: Catalogue, file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    assert_refused(other, retold(file, change), "is not an intact export of a zoo: ")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"[" * 100_000, b"\xff", b'"nearkin-zoo"', b"null"])
def test_a_manifest_that_is_none_is_refused(other: Catalogue, file: Path, text: bytes) -> None:
    def retell(members: dict[str, bytes]) -> None:
        members["manifest.json"] = text

    assert_refused(other, rewritten(file, retell), "is not an intact export of a zoo: ")


def test_compressed_or_doubled_members_are_refused(other: Catalogue, file: Path) -> None:
    with zipfile.ZipFile(file) as bundle:
        members = {name: bundle.read(name) for name in bundle.namelist()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    file.write_bytes(packed.getvalue())
    assert_refused(other, file, "it has compressed or repeated members")
    doubled = io.BytesIO()
    with zipfile.ZipFile(doubled, "w") as bundle:
        for name, data in [*members.items(), ("Manifest.json", b"{}")]:
            bundle.writestr(name, data)
    file.write_bytes(doubled.getvalue().replace(b"Manifest.json", b"manifest.json"))
    assert_refused(other, file, "it has compressed or repeated members")


def test_a_member_above_the_limit_is_refused(other: Catalogue, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_MAX_BYTES", "100")
    assert_refused(other, file, r"holds a member of [\d,]+ bytes, expected at most 100; if you trust the file")
    monkeypatch.setenv("NEARKIN_MAX_BYTES", "²")
    with pytest.raises(OptionError, match="NEARKIN_MAX_BYTES is '²', expected a number of bytes"):
        import_bundle(other, file)
    monkeypatch.setenv("NEARKIN_MAX_BYTES", str(10**6))
    import_bundle(other, file)


def test_a_bomb_is_refused_before_it_is_unpacked(other: Catalogue, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("manifest.json", bytes(300 * 2**20))
    tracemalloc.start()
    assert_refused(other, tmp_path / "bomb.zip", "it has compressed or repeated members")
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()


def test_a_pipe_is_not_waited_for(other: Catalogue, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    assert_refused(other, tmp_path / "pipe.zip", "is not a regular file")
