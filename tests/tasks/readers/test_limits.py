"""Files that claim or unpack to more than they should, and paths that are not regular files."""

import gzip
import os
import socket
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearkin as nk
from nearkin.core.errors import DataError, OptionError
from nearkin.core.opening import max_bytes, open_regular, read_file
from nearkin.tasks.readers.pickled import pickled_table

SECONDS = 60  # a reader that blocks or loops is ended after that
PEAK = 160 * 2**20  # bytes of memory beyond those of the imports
BOMB = 320 * 2**20  # bytes that a small file unpacks to


def refusals(*texts: str, **environment: str) -> list[str]:
    """Read data strings in a process of its own, limited in time and memory; what each was refused with."""
    code = f"""
import resource, torch, nearkin as nk
from nearkin.core.errors import DataError
nk.task("digits?limit=10&size=8&rgb")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {PEAK}, used + {PEAK}))
for text in {texts!r}:
    try:
        nk.task(text)
    except DataError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def write_npz(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(descr: str, shape: str, data: bytes = b"", order: str = "False") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


X = npy("'<f4'", "(4, 2)", bytes(32))
Y = npy("'<i8'", "(4,)", np.array([0, 1, 0, 1]).tobytes())


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (npy("'<U0'", "(4,)"), "type .*<U0"),
        (npy("'|V0'", "(4,)"), "type .*V0"),
        (npy("'|O'", "(4,)"), "Python objects"),
        (npy("'<f16'", "(4,)", bytes(64)), "type .*<f16"),
        (npy("'<c8'", "(4,)", bytes(32)), "type .*<c8"),
        (npy("'<M8[s]'", "(4,)", bytes(32)), "type .*M8"),
        (npy("[('a', '<f4')]", "(4,)", bytes(16)), "type"),
        (npy("'<i8'", "(4,)", bytes(8)), "states 32 bytes .* has 8"),
        (npy("'<i8'", "(10000000000000000000,)"), "whole numbers of 0 or more"),
        (npy("'<i8'", "(-4,)"), "whole numbers of 0 or more"),
        (npy("'<i8'", "()", bytes(8)), r"class labels must be one column \[N\], got shape \[\]"),
        (npy("'<i8'", str((1,) * 65), bytes(8)), "65 axes"),
        (npy("'<i8'", "(" * 100), "header .* cannot be read"),
        (npy("'<i8'", "(4,)", bytes(32))[:20], "header .* cannot be read"),
        (b"", "not an array"),
    ],
)
def test_odd_arrays_are_refused_in_one_line(tmp_path, y, says):
    path = write_npz(tmp_path / "odd.npz", x_train=X, y_train=y)
    with pytest.raises(DataError, match=says) as error:
        nk.task(f"npz:{path}")
    assert "\n" not in str(error.value)


def test_twice_the_same_array_and_encrypted_arrays_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "two.npz", "w") as archive:
        archive.writestr("x_train.npy", X)
        archive.writestr("x_train", X)
    with pytest.raises(DataError, match="contains 'x_train' twice"):
        nk.task(f"npz:{tmp_path}/two.npz")
    path = write_npz(tmp_path / "locked.npz", x_train=X, y_train=Y)
    data = bytearray(path.read_bytes())
    data[data.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="is encrypted"):
        nk.task(f"npz:{path}")


def idx_head(*shape: int) -> bytes:
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)


def test_bombs_pipes_and_false_claims_are_refused_in_little_time_and_memory(tmp_path):
    zeros = gzip.compress(bytes(BOMB), 1)
    for name, shape in (("more", (8, 3, 3)), ("claims", (100_000, 300, 300))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_head(*shape)) + zeros)
        (tmp_path / name / "train-labels-idx1-ubyte").write_bytes(idx_head(8) + bytes((0, 1) * 4))
    for name in ("bomb.txt.gz", "bomb.csv.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"a,b\n") + zeros)
    x = npy("'|u1'", f"({BOMB // 2**20}, 1024, 1024)", bytes(BOMB))
    zipped = write_npz(tmp_path / "bomb.npz", x_train=x, y_train=Y)
    lying = zipped.with_name("lying.npz")  # its directory says that the array is small
    lying.write_bytes(zipped.read_bytes().replace(struct.pack("<I", len(x)), struct.pack("<I", 200)))
    empty = write_npz(tmp_path / "empty.npz", x_train=X, y_train=npy("'<U0'", "(100000000000,)"))
    write_images(tmp_path / "images")
    os.mkfifo(tmp_path / "images" / "a" / "z.png")
    assert len(zeros) < BOMB / 100
    assert zipped.stat().st_size < BOMB / 100
    assert empty.stat().st_size < 500
    expected = {
        f"idx:{tmp_path}/more": "states 72 bytes for an array [8, 3, 3], the file has more",
        f"idx:{tmp_path}/claims": "takes 8.38 GiB, the limit is 95.4 MiB",
        f"text:{tmp_path}/bomb.txt.gz": "make it smaller, or raise the limit with nearkin --max-bytes",
        f"csv:{tmp_path}/bomb.csv.gz?target=a": "bomb.csv.gz, unpacked, takes",
        f"npz:{zipped}": "bomb.npz takes 320 MiB, the limit is 95.4 MiB",
        f"npz:{lying}": "is not a complete npz file",
        f"npz:{empty}": "'y_train.npy' contains type \"'<U0'\"",
        f"folder:{tmp_path}/images": "z.png is a pipe, not a regular file",
        "digits?size=20000": "digits?size=20000 as images of 1 x 20000 x 20000 (channels, height, width) takes 671 GiB",
        "sinusoids?points=999999999999": "points of a curve takes 58.2 TiB",
    }
    said = refusals(*expected, NEARKIN_MAX_BYTES="100MB")
    assert len(said) == len(expected)
    for line, words in zip(said, expected.values(), strict=True):
        assert words in line


def test_the_limit_can_be_set(monkeypatch):
    assert max_bytes() == 4 * 2**30
    monkeypatch.setenv("NEARKIN_MAX_BYTES", "1MB")
    assert max_bytes() == 10**6
    with pytest.raises(DataError, match=r"takes .* the limit is 977 KiB; make it smaller"):
        nk.task("digits?size=100")
    monkeypatch.setenv("NEARKIN_MAX_BYTES", "plenty")
    with pytest.raises(OptionError, match=r"NEARKIN_MAX_BYTES is 'plenty', expected a number of bytes such as 4GiB"):
        nk.task("digits?size=9")


def write_images(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (4, 4), 50 * number).save(folder / name / f"{number}.png")


def test_links_that_loop_and_absurd_sizes_of_images_are_refused(tmp_path):
    write_images(tmp_path)
    (tmp_path / "a" / "loop.png").symlink_to(tmp_path / "a" / "loop.png")
    with pytest.raises(DataError, match=r"cannot read .*loop.png"):
        nk.task(f"folder:{tmp_path}")
    (tmp_path / "a" / "loop.png").unlink()
    data = bytearray((tmp_path / "a" / "0.png").read_bytes())
    struct.pack_into(">II", data, 16, 12_000, 12_000)
    (tmp_path / "a" / "0.png").write_bytes(data)
    with pytest.raises(DataError, match=r"0\.png"):
        nk.task(f"folder:{tmp_path}?size=4")


def test_programs_in_images_are_not_started(tmp_path):
    """Pillow would hand an EPS file to Ghostscript, whatever its name ends in."""
    write_images(tmp_path)
    Image.new("RGB", (4, 4)).save(tmp_path / "a" / "0.eps")
    (tmp_path / "a" / "0.eps").rename(tmp_path / "a" / "0.png")
    with pytest.raises(DataError, match=r"0\.png is not a readable image"):
        nk.task(f"folder:{tmp_path}")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_image_modes_are_read_or_refused(tmp_path, mode):
    write_images(tmp_path)
    for path in tmp_path.glob("*/*.png"):
        Image.new(mode, (4, 4)).save(path, "TIFF")
    if mode == "F":
        with pytest.raises(DataError, match="contains floats"):
            nk.task(f"folder:{tmp_path}")
    else:
        assert nk.task(f"folder:{tmp_path}").input_shape[1:] == (4, 4)


def test_only_regular_files_are_opened(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(DataError, match=r"cannot read|is a socket"):
            open_regular(tmp_path / "socket")
    with pytest.raises(DataError, match="is a folder, not a regular file"):
        read_file(tmp_path)
    for text in ("text:/dev/zero", "csv:/dev/zero?target=a", "npz:/dev/zero"):
        with pytest.raises(DataError, match="is a device, not a regular file"):
            nk.task(text)


@pytest.mark.parametrize("source", ["npz", "csv", "text", "idx", "folder", "cifar", "ushcn", "malaria", "hf"])
@pytest.mark.parametrize("location", ["a%00b", "\0", "x" * 5000, "~nobody-of-that-name/x"])
def test_paths_that_cannot_be_are_refused(source, location):
    with pytest.raises((DataError, OptionError)):
        nk.task(f"{source}:{location}?target=a" if source == "csv" else f"{source}:{location}")


@pytest.mark.parametrize("value", ["²", "٣", "1_0", "9" * 5000, "1e3", "nan", "0x10", " "])
@pytest.mark.parametrize("modifier", ["limit", "size", "split"])
def test_numbers_are_ascii_and_whole(modifier, value):
    with pytest.raises(OptionError, match=f"{modifier} must be a .*, got") as error:
        nk.task(f"digits?{modifier}={value}")
    assert len(str(error.value)) < 200


def test_a_pickle_cannot_claim_memory_or_time(tmp_path):
    path = tmp_path / "batch"
    claims = {
        b"\x80\x02]r\xff\xff\xff\xff.": "no table",  # an index of the memo that unpickling would allocate
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fab.": "not a complete",  # a length of 2⁶³ − 1 bytes
        b"\x80\x02}(" + b")q\x00" + b"h\x00h\x00\x86q\x00" * 100 + b"K\x01u.": "a key of its table is a tuple",
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.": "would run os.system",
        b"\x80\x02}(X\x01\x00\x00\x00aK\x01\x85R.": "not a complete",
    }
    for data, says in claims.items():
        path.write_bytes(data)
        with pytest.raises(DataError, match=says):
            pickled_table(path)
