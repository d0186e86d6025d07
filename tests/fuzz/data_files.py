"""Data files with mutated bytes or mutated fields, one maker per format.

A maker writes small files below a folder and returns the data string that reads them.
"""

import csv
import gzip
import io
import json
import math
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fuzz.mutation import INTERESTING, WORDS, mutated, mutated_text
from fuzz.structure import mutated_json

DESCRS = (
    "'|u1'", "'<f4'", "'<f8'", "'>f4'", "'<i8'", "'>i4'", "'<u2'", "'|b1'", "'<U3'", "'|S2'", "'<f2'", "'<U0'", "'|S0'",
    "'|V0'", "'|V8'", "'|O'", "'<f16'", "'<c8'", "'<c16'", "'<M8[s]'", "'<m8[ns]'", "'<M8'", "[('a', '<f4')]", "[]",
    "[('a', '|O')]", "'(2,)<f4'", "'<U1000000000'", "None", "5", "''", "'x'", "('<f4', (2,))", "{'names': []}",
    "nonsense", "'<i8', 'descr': '<U0'", "'<f99999999999999999999'", "(" * 200, "'\0'", "1e999",
)  # fmt: skip
SHAPES = (
    "(8, 4)", "(8,)", "(8, 2, 2)", "(8, 1, 2, 2)", "()", "(0,)", "(0, 4)", "(8, 0)", "(1,)", "(-8, 4)", "(-1,)",
    "(8, -4)", "(100000000000,)", "(9223372036854775807,)", "(9223372036854775808, 2)", "(18446744073709551616, 0)",
    "(True, 4)",
    "(8.0, 4)", "None", "[8, 4]", "(8, 4, 1, 1, 1)", "(8,) * 70", "(8, '4')", str((1,) * 40), str((1,) * 70),
    "(10000000000000,)", "(1000000000000, 0)", "(3, 11)",
    "8", "{}", "(1e400,)",
)  # fmt: skip
METHODS = (*[zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED] * 4, zipfile.ZIP_BZIP2)
NAMES = ("x_train", "y_train", "x_test", "y_test", "classes")
HOSTILE = (
    b"cos\nsystem\n(S'touch executed'\ntR.",
    b"c__builtin__\neval\n(S'1/0'\ntR.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
)
MODES = (
    "1",
    "L",
    "LA",
    "P",
    "PA",
    "RGB",
    "RGBA",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "I",
    "F",
    "I;16",
    "I;16B",
    "La",
    "RGBa",
    "RGBX",
)
KINDS = {"png": "PNG", "tiff": "TIFF", "gif": "GIF", "bmp": "BMP", "webp": "WEBP", "jpg": "JPEG", "ppm": "PPM"}

Maker = Callable[[Path, random.Random], str]


def _sometimes(rng: random.Random, choices: Sequence[str], usual: str, chance: float = 0.15) -> str:
    """One of the choices now and then, else the usual value."""
    return rng.choice(choices) if rng.random() < chance else usual


def _array_file(rng: random.Random, array: np.ndarray) -> bytes:
    """An npy file whose header may name another type, shape or order than its data has."""
    if rng.random() < 0.5:
        buffer, types = io.BytesIO(), ("f2", "f8", "i1", "u2", ">f4", "?", "g", "F", "S3", "U2")
        np.save(buffer, array.astype(_sometimes(rng, types if array.dtype.kind != "U" else ("S3",), array.dtype.str)))
        return buffer.getvalue()
    descr = _sometimes(rng, DESCRS, repr(array.dtype.str))
    shape = _sometimes(rng, SHAPES, repr(array.shape))
    order = _sometimes(rng, ("True", "None", "1", "'no'"), "False", 0.05)
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    if rng.random() < 0.1:
        header = mutated(header, rng)
    major = rng.choice((1, 1, 1, 1, 2, 3, 9))
    length = struct.pack("<H" if major == 1 else "<I", len(header) + 1)
    return (
        b"\x93NUMPY"
        + bytes((major, 0))
        + length
        + header
        + b"\n"
        + (mutated(array.tobytes(), rng) if rng.random() < 0.1 else array.tobytes())
    )


def npz(folder: Path, rng: random.Random) -> str:
    """An npz archive: odd array headers, missing and repeated members, lies in the zip directory, mutated bytes."""
    arrays = {
        "x_train": np.arange(32, dtype=np.float32).reshape(8, 4),
        "y_train": np.array(rng.choice(([0, 1] * 4, ["a", "b"] * 4, [0.5, 1.5] * 4))),
        "x_test": np.ones((2, 4), np.float32),
        "y_test": np.array([0, 1]),
        "classes": np.array(["no", "yes"]),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice(METHODS)) as archive:
        for name in NAMES[: rng.choice((2, 2, 4, 5))]:
            archive.writestr(f"{name}.npy", _array_file(rng, arrays[name]))
        if rng.random() < 0.05:
            archive.writestr(rng.choice(("x_train", "x.npy", "classes/", "../y_train.npy", "a\0x")), b"\x93NUMPY")
    data = bytearray(buffer.getvalue())
    if rng.random() < 0.2:
        start = data.find(b"PK\x01\x02")
        field = start + rng.choice((8, 10, 16, 20, 24, 28, 30, 42))
        struct.pack_into("<I", data, min(field, len(data) - 4), rng.choice(INTERESTING) % 2**32)
    path = folder / "data.npz"
    path.write_bytes(mutated(bytes(data), rng) if rng.random() < 0.3 else data)
    options = ("?labels=coarse", "?likelihood=categorical", "?likelihood=gaussian", "?likelihood=dense")
    return f"npz:{path}{_sometimes(rng, options, '', 0.5)}"


def class_names(folder: Path, rng: random.Random) -> str:
    """A valid npz beside a mutated `classes.json`."""
    path = folder / "named.npz"
    if not path.exists():
        np.savez(path, x_train=np.eye(8, 3), y_train=[0, 1] * 4, coarse_train=[1, 0] * 4)
    table = {
        rng.choice(("classes", "fine", "coarse", "superclasses")): rng.choice((["a", "b"], ["a"], [1, None], "ab", {}))
    }
    text = json.dumps(rng.choice((["no", "yes"], table, {"classes": [["a"], ["a"]]})))
    text = rng.choice((text, mutated_text(text, rng), "[" * rng.choice((10, 100_000)), "1" * 5000, "[NaN, 1e999]"))
    data = text.encode("utf-8", "surrogatepass")
    (folder / "classes.json").write_bytes(mutated(data, rng) if rng.random() < 0.3 else data)
    return f"npz:{path}{rng.choice(('', '?labels=coarse'))}"


def _idx_file(rng: random.Random, shape: Sequence[int]) -> bytes:
    """An idx file; type code, number of axes and sizes may be wrong."""
    sizes = [rng.choice(INTERESTING) % 2**32 if rng.random() < 0.02 else size for size in shape]
    if rng.random() < 0.03:
        sizes = [1] * rng.choice((0, 32, 33, 64, 65, 255))
    count = rng.choice((0, 1, 64, 65, 255)) if rng.random() < 0.02 else len(sizes)
    code = rng.choice((0x08, 0x09, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F)) if rng.random() < 0.05 else 0x08
    size = min(math.prod(sizes), math.prod(shape))
    payload = bytes(range(size)) * (1 if rng.random() < 0.95 else 4)
    return bytes((0, 0, code, count)) + struct.pack(f">{len(sizes)}I", *sizes) + payload


def idx(folder: Path, rng: random.Random) -> str:
    """A folder of idx pairs, plain or gzip."""
    for part in ("train", "t10k"):
        for kind, shape in (("images-idx3-ubyte", (8, 3, 3)), ("labels-idx1-ubyte", (8,))):
            data = _idx_file(rng, shape)
            if kind.startswith("labels") and rng.random() < 0.8:
                data = bytes((0, 0, 8, 1, 0, 0, 0, 8)) + bytes((0, 1) * 4)
            packed = rng.random() < 0.3
            data = gzip.compress(data, 1) if packed else data
            data = mutated(data, rng) if rng.random() < 0.1 else data
            for ending in ("", ".gz"):
                (folder / f"{part}-{kind}{ending}").unlink(missing_ok=True)
            if rng.random() < 0.98:
                (folder / f"{part}-{kind}{'.gz' if packed else ''}").write_bytes(data)
    return f"idx:{folder}"


def _batch(rng: random.Random, labels: Sequence[str], count: int = 2) -> bytes:
    """A pickled batch of CIFAR images, under any protocol, sometimes with values of other types."""
    table: dict[object, object] = {key: [0, 1, 0, 1][:count] for key in labels}
    table["data"] = np.zeros((count, 3072), np.uint8)
    if rng.random() < 0.2:
        key = rng.choice((*labels, "data"))
        odd = (
            None,
            [0.5] * count,
            [2**70] * count,
            [-1] * count,
            ["a"] * count,
            b"",
            {},
            np.zeros((count, 5)),
            [[0]] * count,
        )
        table[key] = rng.choice(odd)
    if rng.random() < 0.1:
        table[rng.choice(((1, 2), 5, None, 2.5, b"\xff"))] = [()] * 3
    if rng.random() < 0.5:
        table = {key.encode() if isinstance(key, str) else key: value for key, value in table.items()}
    return pickle.dumps(table, protocol=rng.choice((0, 2, 2, 2, 3, 4, 5)))


def cifar_python(folder: Path, rng: random.Random) -> str:
    """CIFAR-100's python files: mutated pickles and pickles that ask for code to run."""
    for name in ("train", "test"):
        data = _batch(rng, ("fine_labels", "coarse_labels"))
        if rng.random() < 0.2:
            data = mutated(data, rng)
        elif rng.random() < 0.2:  # an edit near the start reaches the opcodes, not the pixels
            data = mutated(data[:120], rng) + data[120:]
        elif rng.random() < 0.1:
            data = rng.choice(HOSTILE)
        (folder / name).write_bytes(data)
    names = rng.choice((["a", "b"], ["a", "b"], ["a", "b"], ["a"], [1, None], "ab"))
    data = pickle.dumps({"fine_label_names": names, "coarse_label_names": names}, protocol=rng.choice((0, 2, 4)))
    (folder / "meta").write_bytes(mutated(data, rng) if rng.random() < 0.2 else data)
    return f"cifar:{folder}{rng.choice(('', '?labels=coarse', '?labels=fine'))}"


def cifar_binary(folder: Path, rng: random.Random) -> str:
    """CIFAR-100's binary files."""
    for name in ("train.bin", "test.bin"):
        data = b"".join(bytes((label, label)) + bytes(3072) for label in (0, 1, 0, 1))
        for position in range(2):
            if rng.random() < 0.1:
                data = data[: 3074 * position] + bytes((rng.randrange(256),)) + data[3074 * position + 1 :]
        (folder / name).write_bytes(mutated(data, rng) if rng.random() < 0.3 else data)
    text = rng.choice((b"a\nb\n", b"a\nb\n", b"a\nb\n", b"a\n", b"a\nb\xff\n", b""))
    for name in ("coarse_label_names.txt", "fine_label_names.txt"):
        (folder / name).write_bytes(mutated(text, rng) if rng.random() < 0.2 else text)
    return f"cifar:{folder}{rng.choice(('', '?labels=coarse'))}"


def _encoded_images() -> list[tuple[str, bytes]]:
    """Small images of every mode in every format that takes it."""
    images = []
    for mode in MODES:
        for ending, kind in KINDS.items():
            buffer = io.BytesIO()
            try:
                Image.new(mode, (4, 4)).save(buffer, kind)
            except (OSError, ValueError, KeyError):
                continue
            images.append((ending, buffer.getvalue()))
    buffer = io.BytesIO()
    Image.new("P", (4, 4)).save(buffer, "PNG", transparency=0)
    return [*images, ("png", buffer.getvalue())]


IMAGES = _encoded_images()


def _huge_png(rng: random.Random) -> bytes:
    """A PNG whose header claims an absurd size."""
    data = bytearray(dict(IMAGES)["png"])
    struct.pack_into(">II", data, 16, rng.choice((4, 20_000, 2**31 - 1)), rng.choice((4, 20_000, 2**31 - 1)))
    return bytes(data)


def images(folder: Path, rng: random.Random) -> str:
    """Class folders with images of all modes, mutated ones, pipes, links that loop and folders named like images."""
    for name, number in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
        (folder / name).mkdir(exist_ok=True)
        for old in (folder / name).glob(f"{number}.*"):
            old.rmdir() if old.is_dir() and not old.is_symlink() else old.unlink()
        ending, data = rng.choice(IMAGES) if rng.random() < 0.5 else ("png", dict(IMAGES)["png"])
        path = folder / name / f"{number}.{ending}"
        match rng.randrange(60):
            case 0:
                os.mkfifo(path)
            case 1:
                path.symlink_to(path)
            case 2:
                path.symlink_to("/dev/zero")
            case 3:
                path.mkdir()
            case 4:
                path.write_bytes(_huge_png(rng))
            case choice if choice < 16:
                path.write_bytes(mutated(data, rng))
            case _:
                path.write_bytes(data)
    return f"folder:{folder}{rng.choice(('', '', '?size=6', '?grey', '?size=0', '?size=2x9'))}"


def table(folder: Path, rng: random.Random) -> str:
    """A csv file with odd cells, odd rows, other delimiters, mutated text and gzip."""
    rows = [["size", "colour", "price"], *([str(i), "red" if i % 3 else "blue", str(i % 2)] for i in range(8))]
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        row = rng.choice(rows)
        match rng.randrange(4):
            case 0:
                row.append(rng.choice(WORDS))
            case 1:
                row.pop()
            case _ if row:
                row[rng.randrange(len(row))] = rng.choice((*WORDS, "1e400", "-inf", "1_0", "9" * 5000, "0.5", "None"))
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=rng.choice(",,,,,,;\t|")).writerows(rows)
    text = buffer.getvalue()
    text = mutated_text(text, rng) if rng.random() < 0.3 else text
    data = text.encode("utf-8", "surrogatepass")
    data = mutated(data, rng) if rng.random() < 0.2 else data
    packed = rng.random() < 0.2
    data = gzip.compress(data, 1) if packed else data
    path = folder / f"data.csv{'.gz' if packed else ''}"
    path.write_bytes(mutated(data, rng) if packed and rng.random() < 0.5 else data)
    options = (
        "target=price",
        "target=colour",
        "target=size,price",
        "target=price&drop=colour",
        "target=price&likelihood=categorical",
    )
    return (
        f"csv:{path}?{rng.choice(options)}{rng.choice(('', '', '', f'&test={path}', '&test=/dev/zero', '&drop=size'))}"
    )


ODD_CELLS = (
    *WORDS, "1e400", "-inf", "1e38", "-3.5e38", "9" * 400, "None", "n/a", "?", " ", "true", "No", "0001-01-01",
    "9999-12-31",    "9999-12-31T23:59:59+14:00", "2024-02-30", "31/12/2024", "12/31/2024", "2024-W01", "20240101",
    "3 May 2024 25:00",    "\u202e", "字", "a" * 500, "the cat sat on the mat", "550e8400-e29b-41d4-a716-446655440000",
)  # fmt: skip


def mixed_table(folder: Path, rng: random.Random) -> str:
    """A csv file with columns of every kind, odd cells, duplicate rows, few rows, and any column as the target."""
    count = rng.choice((1, 2, 3, 8, 30, 60))
    kinds: dict[str, Callable[[int], str]] = {
        "id": lambda i: str(i),
        "size": lambda i: str(i * 7 % 11 / 2),
        "when": lambda i: f"2024-{i % 12 + 1:02d}-{i % 28 + 1:02d}",
        "member": lambda i: ("yes", "no")[i % 2],
        "city": lambda i: ("Oslo", "Rome", "")[i % 3],
        "note": lambda i: " ".join(("good", "bad", "dog", "cat", "the")[(i * k) % 5] for k in range(1, 6)) + f" {i}",
        "name": lambda i: f"n{i * 31 % 97}",
        "y": lambda i: str(i % 2),
    }
    names = [name for name in kinds if rng.random() < 0.8] or ["size"]
    rows = [[kinds[name](i // rng.choice((1, 1, 2))) for name in names] for i in range(count)]
    for _ in range(rng.choice((0, 1, 3, 20))):
        rng.choice(rows)[rng.randrange(len(names))] = rng.choice(ODD_CELLS)
    if rng.random() < 0.2:
        column, cell = rng.randrange(len(names)), rng.choice(ODD_CELLS)
        for row in rows:
            row[column] = cell
    buffer = io.StringIO()
    csv.writer(buffer).writerows([names, *rows])
    content = mutated_text(buffer.getvalue(), rng) if rng.random() < 0.1 else buffer.getvalue()
    path = folder / "mixed.csv"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    options = ("", "", "", f"&test={path}", "&keep=id", "&drop=y", "&likelihood=gaussian", "&limit=5", "&split=1")
    return f"csv:{path}?target={rng.choice(names)}{rng.choice(options)}"


def text(folder: Path, rng: random.Random) -> str:
    """Text files, plain or gzip."""
    for part in ("train", "test"):
        words = mutated_text("the cat sat on the mat\n" * 8, rng) if rng.random() < 0.5 else "a b c\n" * 20
        data = words.encode("utf-8", "surrogatepass")
        data = mutated(data, rng) if rng.random() < 0.3 else data
        packed = rng.random() < 0.2
        data = gzip.compress(data, 1) if packed else data
        for ending in ("txt", "txt.gz"):
            (folder / f"{part}.{ending}").unlink(missing_ok=True)
        (folder / f"{part}.txt{'.gz' if packed else ''}").write_bytes(
            mutated(data, rng) if packed and rng.random() < 0.5 else data
        )
    place = rng.choice((folder, folder, folder, folder / "train.txt", "/dev/zero", "/dev/stdin\0"))
    options = ("", "?level=char", "?length=3", "?length=2", "?vocabulary=2", "?length=²", "?length=1" + "0" * 30)
    return f"text:{place}{rng.choice(options)}"


def _write_text(path: Path, text: str, rng: random.Random) -> Path:
    """Text with now and then an edit, mutated bytes, or gzip; returns the path written."""
    text = mutated_text(text, rng) if rng.random() < 0.3 else text
    data = text.encode("utf-8", "surrogatepass")
    data = mutated(data, rng) if rng.random() < 0.1 else data
    if rng.random() < 0.2:
        path, data = path.with_name(f"{path.name}.gz"), gzip.compress(data, 1)
        data = mutated(data, rng) if rng.random() < 0.5 else data
    path.write_bytes(data)
    return path


def climate(folder: Path, rng: random.Random) -> str:
    """A station's daily record as csv or in fixed columns, with odd days, values and station lists."""
    odd = ("", "NA", "-9999", "99999", "-1", "1e3", "²", "9" * 5000, "31")
    if rng.random() < 0.5:
        rows = [["1990", str(month), str(day), str(month * day)] for month in range(1, 13) for day in (1, 2, 3)]
        for _ in range(rng.choice((0, 0, 1, 2))):
            rng.choice(rows)[rng.randrange(4)] = rng.choice(odd)
        text = "\n".join(",".join(row) for row in rows)
        path = _write_text(folder / "011111.csv", text, rng)
    else:
        days = "".join(f"{day:5d}  0" for day in range(28)) + "-9999   " * 3
        months = [f"0111111990{month:02d}PRCP{days}" for month in range(1, 13)]
        if rng.random() < 0.5:
            row = rng.randrange(12)
            months[row] = months[row].replace(rng.choice(("1990", "PRCP", "011111", "  0")), rng.choice(odd))
        path = _write_text(folder / "state01_AL.txt", "\n".join(months), rng)
    stations = "011111  31.0581  -87.0547   25.9 AL SANDY CREEK                    ------\n"
    data = stations.encode()
    (folder / "ushcn-stations.txt").write_bytes(mutated(data, rng) if rng.random() < 0.2 else data)
    options = (
        "",
        "",
        "",
        "?year=1990",
        "?year=0000",
        "?test=1,2",
        "?seed=3",
        "?element=tmax",
        "?station=sandy",
        "?log",
    )
    return f"ushcn:{path}{rng.choice(options)}"


def prevalence(folder: Path, rng: random.Random) -> str:
    """Surveys of people, of points and a modelled map, with odd cells."""
    layouts = {
        "people": ("x,y,pos,cluster", "{0},{0}.5,{1},c{2}"),
        "points": ("longitude,latitude,year_start,examined,positive", "{0},{0},2012,2{0},{1}"),
        "map": ("lon,lat,mean,std_dev,is_ng", "{0},{0},0.{0},0.{1},{1}"),
    }
    head, row = layouts[rng.choice(tuple(layouts))]
    rows = [row.format(number, number % 2, number // 2) for number in range(1, 9)]
    for _ in range(rng.choice((0, 0, 1, 2))):
        cells = (chosen := rows.pop()).split(",")
        cells[rng.randrange(len(cells))] = rng.choice((*WORDS, "1e400", "-inf", "nan", "", "-1", "9" * 5000))
        rows.append(",".join(cells) if rng.random() < 0.9 else chosen + ",")
    path = _write_text(folder / "survey.csv", "\n".join((head, *rows)), rng)
    options = ("", "", "", "?target=logit", "?by=place", "?by=cluster", "?year=2012", "?inside", "?covariates=mean")
    return f"malaria:{path}{rng.choice(options)}"


def boxes(folder: Path, rng: random.Random) -> str:
    """A COCO folder whose JSON has mutated entries or bytes."""
    png = dict(IMAGES)["png"]
    for number in range(3):
        (folder / f"{number}.png").write_bytes(mutated(png, rng) if rng.random() < 0.05 else png)
    table = {
        "images": [{"id": i, "file_name": f"{i}.png", "height": 4, "width": 4} for i in range(3)],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": [0, i, 2.5, 1]} for i in range(3)],
    }
    for name in ("train.json", "val.json"):
        text = json.dumps(mutated_json(table, rng) if rng.random() < 0.5 else table)
        data = (mutated_text(text, rng) if rng.random() < 0.2 else text).encode("utf-8", "surrogatepass")
        (folder / name).write_bytes(mutated(data, rng) if rng.random() < 0.1 else data)
    return f"coco:{folder}{rng.choice(('', '', '?size=6', '?classes=a', '?faulty=drop', '?size=0'))}"


MAKERS: dict[str, Maker] = {
    "npz": npz,
    "classes.json": class_names,
    "idx": idx,
    "cifar, python": cifar_python,
    "cifar, binary": cifar_binary,
    "folder of images": images,
    "csv": table,
    "csv, mixed columns": mixed_table,
    "text": text,
    "ushcn": climate,
    "malaria": prevalence,
    "coco": boxes,
}
