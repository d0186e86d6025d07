import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearkin.core.errors import ZooError
from nearkin.core.files import TEMPORARY_PREFIX, FileWriteError
from nearkin.store.blobs import CHUNK, Blobs


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
