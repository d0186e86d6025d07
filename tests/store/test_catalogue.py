import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from laws import store as laws
from nearkin.core.errors import ZooError
from nearkin.store import schema, sqlite
from nearkin.store.catalogue import Catalogue
from nearkin.store.integrity import examine
from nearkin.store.records import NewArtifact, PendingArtifact, TaskRecord
from nearkin.store.sqlite import network_file_system


class TestSqlite(laws.StoreLaws):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Catalogue]:
        with Catalogue(tmp_path / "zoo") as catalogue:
            yield catalogue

    @pytest.fixture
    def other(self, store: Catalogue) -> Iterator[Catalogue]:
        with Catalogue(store.path, create=False) as catalogue:
            yield catalogue


class TestPostgres(laws.StoreLaws):
    @pytest.fixture
    def store(self, shared_address: str, tmp_path: Path) -> Iterator[Catalogue]:
        with Catalogue(shared_address, blobs=str(tmp_path / "blobs")) as catalogue:
            yield catalogue

    @pytest.fixture
    def other(self, store: Catalogue, shared_address: str) -> Iterator[Catalogue]:
        with Catalogue(shared_address, create=False) as catalogue:
            yield catalogue


def in_another_process(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script that may use `new_task` and `weights`; what nearkin says of it is printed as one line."""
    head = f"""
        import importlib.util, os, sys
        spec = importlib.util.spec_from_file_location("laws_store", {laws.__file__!r})
        laws = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(laws)
        from nearkin.core.errors import NearkinError
        from nearkin.store.catalogue import Catalogue
        from nearkin.store.records import NewArtifact
        def attempt(action):
            try:
                print("done:", action())
            except NearkinError as refused:
                print(f"{{type(refused).__name__}}: {{refused}}")
    """
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(head) + textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_columns_and_fields_agree() -> None:
    columns = [column.name for column in schema.tasks.columns]
    assert [field.removesuffix("_text") for field in TaskRecord.__dataclass_fields__] == columns


def test_records_tell_plain_json(tmp_path: Path) -> None:
    with Catalogue(tmp_path / "zoo") as zoo:
        record = zoo.add(laws.new_task(), laws.weights())
        told = json.loads(json.dumps(record.to_dict()))
        assert told["name"] == "even"
        assert laws.NewTask(**{**told, "input_shape": tuple(told["input_shape"])}) == laws.new_task()
        assert json.loads(json.dumps(zoo.artifacts("even")[0].to_dict()))["size"] == 300


def test_a_zoo_is_made_where_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "deep" / "er", tmp_path / "with ?#% odd" / "zoö"):
        with Catalogue(path) as zoo:
            zoo.add(laws.new_task(), laws.weights())
        with Catalogue(str(path), create=False) as zoo:
            assert len(zoo.tasks()) == 1
        assert sorted(entry.name for entry in path.iterdir()) == ["blobs", "zoo.db"]


def test_a_relative_path_is_kept_when_the_process_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Catalogue("zoo") as zoo:
        monkeypatch.chdir("/")
        zoo.add(laws.new_task(), laws.weights())
        assert examine(zoo).sound
    assert (tmp_path / "zoo" / "blobs").is_dir()


@pytest.mark.parametrize("made", [False, True])
def test_no_zoo_is_made_unasked(tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "zoo").mkdir()
    with pytest.raises(ZooError, match=r"there is no zoo at .*zoo; nearkin add makes one, or name another with --zoo"):
        Catalogue(tmp_path / "zoo", create=False)
    assert (tmp_path / "zoo").exists() == made


def test_a_killed_creation_is_completed(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "zoo.db").touch()
    with Catalogue(tmp_path / "zoo", create=False) as zoo:
        assert zoo.tasks() == []
    with Catalogue(tmp_path / "zoo") as zoo:
        zoo.add(laws.new_task())
    with Catalogue(tmp_path / "zoo", create=False) as zoo:
        assert len(zoo.tasks()) == 1


@pytest.mark.parametrize("create", [False, True])
def test_what_is_no_zoo_is_left_alone(tmp_path: Path, create: bool) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ZooError, match="file is a file, expected a folder; name the folder of a zoo"):
        Catalogue(tmp_path / "file", create)
    with pytest.raises(ZooError, match=r"is not a zoo: it is not empty and has no zoo\.db"):
        Catalogue(tmp_path, create)
    for content in (b"hello", b"\x00" * 5000, b"SQLite format 3\x00" + b"x" * 5000):
        folder = tmp_path / str(len(content))
        folder.mkdir()
        (folder / "zoo.db").write_bytes(content)
        with pytest.raises(
            ZooError, match=r"(is not a database of nearkin; name another folder|is damaged)"
        ) as refused:
            Catalogue(folder, create)
        assert "\n" not in str(refused.value)
        assert (folder / "zoo.db").read_bytes() == content
    assert (tmp_path / "file").read_text() == "mine"


def test_a_zoo_below_a_file_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = in_another_process("attempt(lambda: Catalogue(sys.argv[1]))", tmp_path / "file" / "zoo")
    assert result.stdout.startswith("FileWriteError: cannot open a zoo at"), result
    assert len(result.stdout.splitlines()) == 1


def test_ten_thousand_tasks(tmp_path: Path) -> None:
    with Catalogue(tmp_path / "zoo") as zoo:
        placed = [PendingArtifact("weights", trial, zoo.blobs.put(b"w"), 1) for trial in range(2)]
        zoo.admit([(laws.new_task(f"task {i}"), placed) for i in range(10_000)], lambda _: b"w")
        records = zoo.tasks()
        assert len(records) == 10_000
        assert records[7777].facts["classes"] == ["odd", "even"]
        assert len(zoo.artifacts()) == 20_000


def test_the_catalogue_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; import nearkin.store.catalogue, nearkin.store.bundle, nearkin.store.integrity; "
        "print([name for name in ('torch', 'numpy', 'safetensors', 'scipy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("limit", [0, 4096, 40_000, 200_000, 400_000, 2_000_000])
def test_a_full_disk_leaves_the_zoo_as_it_was(tmp_path: Path, limit: int) -> None:
    """A limit on the size of files stops, as it grows, SQLite's shared memory, the second blob, SQLite's log."""
    with Catalogue(tmp_path / "zoo") as zoo:
        zoo.add(laws.new_task("old"), laws.weights("old"))
        before = zoo.tasks(), zoo.artifacts()
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
        files = [NewArtifact("small", 0, b"s" * 100), NewArtifact("large", 0, os.urandom(300_000))]
        def add():
            with Catalogue(sys.argv[1]) as zoo:
                return zoo.add(laws.new_task("new", facts={"long": "x" * 600_000}), files).name
        attempt(add)
    """
    result = in_another_process(script, tmp_path / "zoo", str(limit))
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    with Catalogue(tmp_path / "zoo", create=False) as zoo:
        health = examine(zoo)
        assert health.sound
        if limit == 2_000_000:
            assert result.stdout == "done: new\n"
            return
        assert result.stdout.startswith("FileWriteError: cannot write"), result.stdout
        assert ("zoo.db" in result.stdout) == (limit in (0, 4096, 400_000))
        assert "nothing was changed" in result.stdout
        assert (zoo.tasks(), zoo.artifacts()) == before
        assert health.leftovers == ()
        if limit >= 40_000:  # below, not even the lock for tidying up can be had
            assert health.orphans == ()


def test_no_room_for_a_new_zoo(tmp_path: Path) -> None:
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
        attempt(lambda: Catalogue(sys.argv[1]))
    """
    result = in_another_process(script, tmp_path / "zoo")
    assert result.stdout.startswith("FileWriteError: cannot write"), result
    assert len(result.stdout.splitlines()) == 1
    with Catalogue(tmp_path / "zoo") as zoo:
        assert zoo.tasks() == []


def test_a_read_only_zoo_is_read_and_not_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Root may write anywhere, so the other process gives root up first."""
    folder = tmp_path_factory.mktemp("shared")
    with Catalogue(folder / "zoo") as zoo:
        zoo.add(laws.new_task(), laws.weights())
    doors = {door: door.stat().st_mode for door in (folder, *folder.parents) if os.geteuid() == 0}
    shut = {door: mode for door, mode in doors.items() if mode & 0o055 != 0o055}
    closed = [folder / "zoo", *(folder / "zoo").rglob("*")]
    script = """
        import sqlalchemy.dialects.sqlite
        from nearkin.store.integrity import examine
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        zoo = Catalogue(sys.argv[1])
        attempt(lambda: [task.name for task in zoo.tasks()])
        attempt(lambda: [len(zoo.blob(item)) for item in zoo.artifacts("even")])
        attempt(lambda: examine(zoo).sound)
        attempt(lambda: zoo.add(laws.new_task("new"), laws.weights("new")))
        attempt(lambda: zoo.add(laws.new_task("new")))
        attempt(lambda: zoo.remove("even"))
    """
    try:
        for door, mode in shut.items():
            door.chmod(mode | 0o055)
        for path in closed:
            path.chmod(0o555 if path.is_dir() else 0o444)
        result = in_another_process(script, folder / "zoo")
    finally:
        for path in closed:
            path.chmod(0o755 if path.is_dir() else 0o644)
        for door, mode in shut.items():
            door.chmod(mode)
    lines = result.stdout.splitlines()
    assert lines[:3] == ["done: ['even']", "done: [300, 300]", "done: True"], result
    assert [line.split(":")[0] for line in lines[3:]] == ["FileWriteError"] * 3
    assert all("cannot write" in line and "nothing was changed" in line for line in lines[3:])
    with Catalogue(folder / "zoo") as zoo:
        assert [record.name for record in zoo.tasks()] == ["even"]
        assert examine(zoo).sound


def test_a_network_file_system_is_named(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "overlay / overlay rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/sda /home/fast ext4 rw 0 0\n"
        "//host/share /mnt/my\\040share cifs rw 0 0\nme@host: /mnt/ssh fuse.sshfs rw 0 0\n"
        "x /mnt/own fuse.portal rw 0 0\n"
    )
    kinds = {
        "/home/ann/zoo": "nfs4", "/home": "nfs4", "/home/fast/zoo": "", "/mnt/my share/zoo": "cifs", "/var/zoo": "",
        "/mnt/ssh/a/b": "fuse.sshfs", "/mnt/own/zoo": "",
    }  # fmt: skip
    assert {path: network_file_system(Path(path), mounts) for path in kinds} == kinds
    assert network_file_system(tmp_path, tmp_path / "no mounts") == ""


def test_a_zoo_on_a_network_file_system_is_a_caution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Catalogue(tmp_path / "zoo") as zoo:
        assert zoo.cautions() == []
        mounts = tmp_path / "mounts"
        mounts.write_text(f"server:/ {tmp_path} nfs4 rw 0 0\n")
        monkeypatch.setattr(sqlite, "MOUNTS", mounts)
        (line,) = zoo.cautions()
        assert "is on a network file system (nfs4)" in line
        assert "use a shared zoo (postgresql://…)" in line
        zoo.add(laws.new_task())


def test_a_zoo_that_vanishes_is_not_made_anew(tmp_path: Path) -> None:
    with Catalogue(tmp_path / "zoo") as zoo:
        (tmp_path / "zoo" / "zoo.db").unlink()
        with pytest.raises(ZooError, match=r"cannot open .*zoo\.db"):
            zoo.tasks()
        with pytest.raises(ZooError, match=r"cannot open .*zoo\.db"):
            zoo.add(laws.new_task(), [NewArtifact("weights", 0, b"")])
    assert not (tmp_path / "zoo" / "zoo.db").exists()
