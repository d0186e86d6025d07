import hashlib
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearkin.core.errors import OptionError, ZooError
from nearkin.core.files import TEMPORARY_PREFIX, FileWriteError
from nearkin.core.objects import FolderObjects, UnreachableError
from nearkin.core.url_objects import objects_at
from nearkin.store.blob_cache import BlobCache
from nearkin.store.blobs import CHUNK, Blobs
from nearkin.store.places import open_blobs
from s3_server import BUCKET, Faulty, s3_server

FLIPS = 150
CUTS = 100
NUMBERS = itertools.count()
CACHING = """
import hashlib, os, sys
from pathlib import Path
from nearkin.store.blob_cache import BlobCache
cache = BlobCache(Path(sys.argv[1]), 100_000)
for _ in range(200):
    data = os.urandom(1_000)
    digest = hashlib.sha256(data).hexdigest()
    cache.write(digest, data)
    assert cache.read(digest) in (data, None)
"""


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=3000))
def test_bytes_come_back_under_their_digest(blobs: Blobs, data: bytes) -> None:
    digest = blobs.put(data)
    assert digest == hashlib.sha256(data).hexdigest()
    assert blobs.path(digest) == blobs.folder / digest[:2] / f"{digest}.safetensors"
    assert blobs.path(digest).read_bytes() == blobs.get(digest) == b"".join(blobs.chunks(digest)) == data
    assert blobs.size(digest) == len(data)
    assert digest in set(blobs.digests())


def test_large_blobs_come_in_pieces(blobs: Blobs) -> None:
    data = os.urandom(2 * CHUNK + 5)
    assert [len(chunk) for chunk in blobs.chunks(blobs.put(data))] == [CHUNK, CHUNK, 5]


def test_an_equal_blob_is_not_written_again(blobs: Blobs) -> None:
    first = blobs.path(blobs.put(b"same")).stat()
    second = blobs.path(blobs.put(b"same")).stat()
    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)


@pytest.mark.parametrize("harm", [b"Same", b"sam", b"same+", b""])
def test_an_altered_blob_is_told_and_mended_by_a_new_copy(blobs: Blobs, harm: bytes) -> None:
    digest = blobs.put(b"same")
    blobs.path(digest).write_bytes(harm)
    with pytest.raises(ZooError, match=r"blob .*… of the zoo was altered .* nearkin doctor"):
        blobs.get(digest)
    assert not blobs.sound(digest)
    assert blobs.put(b"same") == digest
    assert blobs.get(digest) == b"same"


def test_a_missing_blob_is_told(blobs: Blobs) -> None:
    digest = blobs.put(b"here")
    assert blobs.has(digest)
    assert blobs.has(digest, 4)
    assert not blobs.has(digest, 5)
    blobs.remove(digest)
    blobs.remove(digest)
    assert not blobs.has(digest)
    assert not blobs.sound(digest)
    for ask in (blobs.get, blobs.size):
        with pytest.raises(ZooError, match=r"blob .*… is missing from the zoo; run nearkin doctor"):
            ask(digest)


def test_an_unreadable_blob_is_told(blobs: Blobs) -> None:
    digest = "ab" * 32
    blobs.path(digest).mkdir(parents=True)
    with pytest.raises(ZooError, match=r"cannot read blob abababababab… of the zoo: .*; run nearkin doctor"):
        blobs.get(digest)
    with pytest.raises(FileWriteError, match="cannot remove"):
        blobs.remove(digest)


@pytest.mark.parametrize("name", ["", "ab", "../../../etc/passwd", "AB" * 32, "ab" * 33, "ab" * 31 + "a\n"])
def test_only_digests_are_paths(blobs: Blobs, name: str) -> None:
    with pytest.raises(ZooError, match="64 hexadecimal digits"):
        blobs.path(name)
    assert not blobs.has(name)


def test_strangers_are_not_blobs(blobs: Blobs) -> None:
    assert list(blobs.digests()) == []
    assert list(blobs.leftovers()) == []
    digest = blobs.put(b"mine")
    folder = blobs.path(digest).parent
    (folder / "note.safetensors").touch()
    (folder / f"{'00' * 32}.safetensors").touch()
    (folder / f"{TEMPORARY_PREFIX}abc").touch()
    assert list(blobs.digests()) == [digest]
    assert list(blobs.leftovers()) == [folder / f"{TEMPORARY_PREFIX}abc"]


def test_an_interrupted_write_leaves_nothing(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileWriteError, match="No space left on device; nothing was changed"):
        blobs.put(b"too much")
    assert list(blobs.digests()) == []
    assert list(blobs.leftovers()) == []


@pytest.fixture(scope="module")
def server() -> Iterator[Faulty]:
    with s3_server() as application:
        yield application


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return f"file://{tmp_path}/blobs"
    if request.param == "memory":
        return f"memory://blobs/{next(NUMBERS)}"
    request.getfixturevalue("server")
    return f"s3://{BUCKET}/blobs/{next(NUMBERS)}"


def test_blobs_in_every_place(place: str) -> None:
    blobs = Blobs(objects_at(place))
    contents = [b"", b"weights", os.urandom(100_000)]
    digests = [blobs.put(data) for data in contents]
    assert [blobs.get(digest) for digest in digests] == contents
    assert [blobs.size(digest) for digest in digests] == [0, 7, 100_000]
    assert list(blobs.digests()) == sorted(digests)
    assert 0 <= blobs.age(digests[0]) < 60
    blobs.objects.write("note", b"")
    blobs.objects.write("ab/note", b"")
    blobs.objects.write(f"00/{digests[1]}.safetensors", b"")
    assert list(blobs.digests()) == sorted(digests)
    blobs.remove(digests[1])
    assert list(blobs.digests()) == sorted({digests[0], digests[2]})
    assert (blobs.has(digests[1]), blobs.sound(digests[1]), blobs.age(digests[1])) == (False, False, -1)
    with pytest.raises(ZooError, match="is missing from the zoo"):
        blobs.get(digests[1])


def test_no_altered_or_half_written_blob_is_returned(place: str) -> None:
    blobs, rng, data = Blobs(objects_at(place)), random.Random(0), random.Random(1).randbytes(2_000)
    digest = blobs.put(data)
    share = 10 if place.startswith("s3") else 1  # requests take longer
    faults = [data[: rng.randrange(len(data))] for _ in range(CUTS // share)]
    for _ in range(FLIPS // share):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        faults.append(bytes(flipped))
    detected = 0
    for fault in faults:
        blobs.objects.write(f"{digest[:2]}/{digest}.safetensors", fault)
        with pytest.raises(ZooError, match="was altered"):
            blobs.get(digest)
        detected += not blobs.sound(digest)
    assert detected == len(faults) == (CUTS + FLIPS) // share
    assert blobs.put(data) == digest
    assert blobs.get(digest) == data, "a new copy replaces it"


def test_blobs_under_a_url_are_no_files() -> None:
    with pytest.raises(ZooError, match="are in memory://blobs, expected a folder"):
        Blobs(objects_at("memory://blobs")).path("ab" * 32)


def test_storage_that_does_not_answer_is_not_a_damaged_blob(server: Faulty) -> None:
    blobs = Blobs(objects_at("s3://no-such-bucket/blobs"))
    for ask in (blobs.has, blobs.sound, blobs.get, blobs.size):
        with pytest.raises(UnreachableError, match="there is no bucket"):
            ask("ab" * 32)


@pytest.fixture
def cache(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "cache", 10_000)


def test_a_copy_is_read_instead_of_the_storage(tmp_path: Path, cache: BlobCache) -> None:
    blobs = Blobs(FolderObjects(tmp_path / "far"), cache)
    digest = blobs.put(b"weights")
    blobs.path(digest).unlink()
    assert blobs.get(digest) == b"weights"
    assert not blobs.has(digest)
    assert not blobs.sound(digest), "only the storage counts"
    blobs.put(b"weights")
    cache.remove(digest)
    assert blobs.get(digest) == cache.read(digest) == b"weights"
    blobs.remove(digest)
    assert cache.read(digest) is None


def test_an_altered_copy_is_dropped(tmp_path: Path, cache: BlobCache) -> None:
    blobs, rng = Blobs(FolderObjects(tmp_path / "far"), cache), random.Random(0)
    data = rng.randbytes(500)
    digest = blobs.put(data)
    for turn in range(40):
        harmed = bytearray(data)
        harmed[rng.randrange(500)] ^= 1 << rng.randrange(8)
        [copy] = cache.folder.glob("*/*")
        copy.write_bytes(harmed if turn % 2 else data[: rng.randrange(500)])
        assert blobs.get(digest) == data
        assert copy.read_bytes() == data


def test_copies_that_were_not_used_for_longest_go_first(cache: BlobCache) -> None:
    digests = []
    for number in range(9):
        data = bytes([number]) * 1_000
        digests.append(hashlib.sha256(data).hexdigest())
        cache.write(digests[-1], data)
        moment = time.time() - 100 + number
        os.utime(cache.folder / digests[-1][:2] / digests[-1], (moment, moment))
    assert cache.read(digests[0]) is not None
    big = os.urandom(3_000)
    cache.write(hashlib.sha256(big).hexdigest(), big)
    kept = [cache.read(digest) is not None for digest in digests]
    assert kept == [True, False, False, False, *[True] * 5]
    cache.write("ab" * 32, os.urandom(10_001))
    assert not (cache.folder / "ab" / ("ab" * 32)).exists(), "larger than the limit"


def test_several_processes_share_one_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CACHING, str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    files = list((tmp_path / "cache").glob("*/*"))
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.name for path in files)
    assert 50_000 < sum(path.stat().st_size for path in files) <= 2 * 100_000


def test_a_cache_that_cannot_be_used_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for cache in (BlobCache(tmp_path / "file"), BlobCache(tmp_path / "none", 0), BlobCache(Path("/proc/none"))):
        blobs = Blobs(FolderObjects(tmp_path / "far"), cache)
        digest = blobs.put(b"weights")
        assert blobs.get(digest) == b"weights"
        blobs.remove(digest)
    assert not (tmp_path / "none").exists()


def test_the_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for variable in ("NEARKIN_CACHE", "NEARKIN_CACHE_BYTES"):
        monkeypatch.delenv(variable, raising=False)
    assert (BlobCache.of_user().folder, BlobCache.of_user().limit) == (tmp_path / "nearkin" / "blobs", 10 * 2**30)
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path / "mine"))
    for text, limit in (("2MiB", 2**21), ("0", 0)):
        monkeypatch.setenv("NEARKIN_CACHE_BYTES", text)
        assert (BlobCache.of_user().folder, BlobCache.of_user().limit) == (tmp_path / "mine" / "blobs", limit)
    monkeypatch.setenv("NEARKIN_CACHE_BYTES", "much")
    with pytest.raises(OptionError, match=r"\$NEARKIN_CACHE_BYTES is 'much', expected a number of bytes"):
        BlobCache.of_user()
    assert open_blobs(objects_at(tmp_path)).cache is None
    assert open_blobs(objects_at("memory://blobs")).cache is None


def test_a_far_url_has_the_cache_of_the_user(server: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path))
    blobs = open_blobs(objects_at(f"s3://{BUCKET}/blobs/{next(NUMBERS)}"))
    digest = blobs.put(b"weights")
    before = server.answered
    assert blobs.get(digest) == b"weights"
    assert server.answered == before, "no request"
