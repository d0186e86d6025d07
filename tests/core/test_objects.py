"""Objects in folders and under URLs; a killed or failed writer leaves no half of an object behind."""

import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from laws.objects import ObjectsLaws
from nearkin.core import url_objects
from nearkin.core.addresses import without_secrets
from nearkin.core.errors import MissingExtraError, NearkinError, OptionError
from nearkin.core.files import FileWriteError
from nearkin.core.objects import FolderObjects, Objects, UnreachableError
from nearkin.core.url_objects import UrlObjects, objects_at
from s3_server import BUCKET, Faulty, s3_server

KILLS = 8
NUMBERS = itertools.count()
WRITER = """
import sys
from pathlib import Path
from nearkin.core.objects import FolderObjects
objects = FolderObjects(Path(sys.argv[1]))
print("ready", flush=True)
for turn in range(10**9):
    objects.write("state", bytes([turn % 256]) * 4_000_000)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Faulty]:
    with s3_server() as application:
        yield application


class TestFolder(ObjectsLaws):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Callable[[], Objects]:
        return lambda: objects_at(f"file://{tmp_path}/not/there")


class TestMemory(ObjectsLaws):
    @pytest.fixture
    def place(self) -> Callable[[], Objects]:
        url = f"memory://objects/{next(NUMBERS)}"
        return lambda: objects_at(url)


class TestS3(ObjectsLaws):
    @pytest.fixture
    def place(self, server: Faulty) -> Callable[[], Objects]:
        url = f"s3://{BUCKET}/objects/{next(NUMBERS)}"
        return lambda: objects_at(url)


def test_a_folder_is_a_folder(tmp_path: Path) -> None:
    for place in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        assert objects_at(place) == FolderObjects(tmp_path)
    with pytest.raises(OptionError, match="expected file:///path"):
        objects_at("file://relative")


def test_a_killed_writer_leaves_a_whole_object(tmp_path: Path) -> None:
    objects, rng = FolderObjects(tmp_path), random.Random(0)
    for _ in range(KILLS):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.1))
            writer.send_signal(signal.SIGKILL)
        data = objects.read("state")
        assert data is None or data == data[:1] * 4_000_000
        assert objects.entries() in ([], ["state"]), "what is unfinished has no name"
        assert all(path.parent == tmp_path for path in objects.leftovers())


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def small_files(folder: Path) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limited", [small_disk, small_files])
def test_a_write_that_fails_leaves_the_old_object(tmp_path: Path, limited: Callable[[Path], Any]) -> None:
    with limited(tmp_path):
        objects = FolderObjects(tmp_path)
        objects.write("a", b"old" * 100_000)
        with pytest.raises(FileWriteError, match=r"cannot write .*; nothing was changed"):
            objects.write("a", b"new" * 1_000_000)
        assert objects.read("a") == b"old" * 100_000
        assert (objects.names(), objects.leftovers()) == (["a"], [])


def memory_with(fault: Callable[[bytes], bytes]) -> UrlObjects:
    """Objects in memory, whose puts go through a fault."""
    from fsspec.implementations.memory import MemoryFileSystem

    class FaultyMemory(MemoryFileSystem):  # type: ignore[misc]
        def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
            super().pipe_file(path, fault(value), **options)

    return UrlObjects("faulty://place", f"/faulty/{next(NUMBERS)}", FaultyMemory())


@pytest.mark.parametrize("harm", [lambda data: data[:-1], lambda data: data[:-1] + b"?", lambda data: b""])
def test_what_is_stored_is_compared_with_what_was_written(harm: Callable[[bytes], bytes]) -> None:
    with pytest.raises(FileWriteError, match="faulty://place/a: the storage returns other bytes"):
        memory_with(harm).write("a", b"content")


@pytest.mark.parametrize(("failures", "succeeds"), [(1, True), (3, True), (4, False)])
def test_errors_that_pass_are_waited_for(failures: int, succeeds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_objects, "WAITS", (0.0, 0.0, 0.0))
    left = [TimeoutError("slow")] * failures

    def fail(data: bytes) -> bytes:
        if left:
            raise left.pop()
        return data

    objects = memory_with(fail)
    if succeeds:
        objects.write("a", b"content")
        assert objects.read("a") == b"content"
    else:
        with pytest.raises(FileWriteError, match="cannot write faulty://place/a: slow; check"):
            objects.write("a", b"content")


def test_errors_that_stay_are_not_repeated() -> None:
    calls = []

    def refuse(data: bytes) -> bytes:
        calls.append(data)
        raise PermissionError("read-only")

    with pytest.raises(FileWriteError, match=r"access denied \(read-only\); check the credentials"):
        memory_with(refuse).write("a", b"content")
    assert len(calls) == 1


def test_pieces_of_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_objects, "PIECE", 10)
    objects = objects_at(f"memory://objects/{next(NUMBERS)}")
    objects.write("a", bytes(range(25)))
    assert [len(piece) for piece in objects.chunks("a")] == [10, 10, 5]


def test_an_unknown_protocol_and_a_missing_package_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="unknown protocol nowhere://, expected"):
        objects_at("nowhere://bucket")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingExtraError, match=r"opening gs://bucket needs gcsfs: pip install gcsfs"):
        objects_at("gs://bucket")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"opening memory://a needs fsspec: pip install 'nearkin\[remote\]'"):
        objects_at("memory://a")


def test_no_message_repeats_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_objects, "WAITS", ())
    url = "ftp://ann:pass-word@127.0.0.1:1/zoo?token=to-ken"
    with pytest.raises(UnreachableError) as refused:
        objects_at(url)
    for text in (str(refused.value), without_secrets(url)):
        assert "pass-word" not in text
        assert "to-ken" not in text
        assert "127.0.0.1" in text

    def repeat(data: bytes) -> bytes:
        raise OSError(f"login with pass-word failed at {url}")

    objects = UrlObjects(without_secrets(url), "/x", memory_with(repeat).files, ("pass-word", "to-ken"))
    with pytest.raises(FileWriteError) as failed:
        objects.write("a", b"")
    assert "pass-word" not in str(failed.value) + repr(objects)
    assert "to-ken" not in str(failed.value) + repr(objects)


class TestFaultsOfS3:
    """One line for each, from a real driver and a real server."""

    @pytest.mark.parametrize("failures", [1, pytest.param(3, marks=pytest.mark.soak)])  # it waits for seconds
    def test_server_errors_that_pass(self, server: Faulty, failures: int) -> None:
        objects = objects_at(f"s3://{BUCKET}/faults/{next(NUMBERS)}")
        objects.write("a", b"content")
        server.fail("503 Slow Down", "SlowDown", failures)
        assert objects.read("a") == b"content"
        server.fail("500 Internal Server Error", "InternalError", failures)
        objects.write("b", b"content")
        assert objects.read("b") == b"content"
        assert server.faults == []

    def test_a_missing_bucket(self, server: Faulty) -> None:
        objects = objects_at("s3://no-such-bucket/zoo")
        for ask in (lambda: objects.read("a"), lambda: objects.size("a"), objects.names):
            with pytest.raises(UnreachableError, match=r"s3://no-such-bucket/zoo: there is no bucket 'no-such-bucket'"):
                ask()
        with pytest.raises(FileWriteError, match=r"cannot write s3://no-such-bucket/zoo/a: .*create the bucket"):
            objects.write("a", b"")

    def test_no_permission(self, server: Faulty) -> None:
        objects = objects_at(f"s3://{BUCKET}/zoo")
        for error, ask in (
            (UnreachableError, lambda: objects.read("a")),
            (UnreachableError, objects.names),
            (FileWriteError, lambda: objects.write("a", b"")),
            (FileWriteError, lambda: objects.remove("a")),
        ):
            server.fail("403 Forbidden", "AccessDenied", 20)
            with pytest.raises(error, match=r"access denied \(.*\); check the credentials") as refused:
                ask()
            server.fail("", "", 0)
            assert "very-secret" not in str(refused.value)
            assert "\n" not in str(refused.value)

    @pytest.mark.soak  # the driver repeats for ten seconds
    def test_nobody_answers(self, server: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        objects = objects_at(f"s3://{BUCKET}/zoo")
        with pytest.raises(
            NearkinError, match=r"cannot read s3://zoo/zoo/a: .*127.0.0.1:9.*; check the URL"
        ) as refused:
            objects.read("a")
        assert "\n" not in str(refused.value)

    @pytest.mark.soak
    def test_long_lists_have_several_pages(self, server: Faulty) -> None:
        objects = objects_at(f"s3://{BUCKET}/many")
        names = sorted(f"{number}" for number in range(1_100))
        for name in names:
            objects.files.pipe_file(f"{BUCKET}/many/{name}", b"")  # type: ignore[attr-defined]
        assert objects.names() == names
        objects.clear()
        assert objects.names() == []


def test_folders_that_cannot_be_listed_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(NearkinError, match="cannot read"):
        FolderObjects(tmp_path / "loop").names()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NearkinError, match="is a pipe, not a regular file"):
        FolderObjects(tmp_path).read("pipe")
