"""Read new inputs without numpy and without nearkin: rows of a table and image files.

An exported Python file contains the functions that it needs, copied by `nearkin.zoo.python_source`. They give the same
numbers as `nearkin.tasks.table_encoding` and `nearkin.tasks.readers.folder`, which also learn from data.
"""

import csv
import gzip
import io
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearkin.tasks.frames import cell_text
from nearkin.tasks.table_cells import EPOCH, TRUTH, cell_number, date_seconds, is_missing, terms, with_decimal_points

DELIMITERS = ",;\t|"
LARGEST = 3.4028234663852886e38  # of float32
YEAR = 31_556_952.0  # seconds
LONGEST_VALUE = 200  # characters of a category that are compared
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")


def table_rows(data: Any) -> list[Mapping[str, Any]]:
    """Rows as dicts: of a csv file (plain or .gz; comma, semicolon, tab or |), a text file, a DataFrame, or a list."""
    if hasattr(data, "to_dict"):
        rows: list[Mapping[str, Any]] = data.to_dict("records")
        return rows
    if not isinstance(data, str | Path):
        return list(data)
    name = str(data)
    with gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb") as file:
        text = file.read().decode("utf-8-sig").replace("\r\n", "\n")
    if name.endswith((".txt", ".txt.gz")):
        return [{"text": text}]
    delimiter = max(DELIMITERS, key=re.sub(r'"[^"]*"', "", text.lstrip("\n").split("\n", 1)[0]).count)
    lines = [line for line in csv.reader(io.StringIO(text), delimiter=delimiter) if line]
    if not lines:
        raise ValueError(f"{name} is empty, expected a header and rows")
    header = [cell.strip() for cell in lines[0]]
    for number, line in enumerate(lines[1:]):
        if len(line) != len(header):
            raise ValueError(f"{name}: row {number + 1} has {len(line)} cells, the header {len(header)}; fix that row")
    cells = [with_decimal_points(column) if delimiter == ";" else column for column in zip(*lines[1:], strict=True)]
    return [dict(zip(header, line, strict=True)) for line in zip(*cells, strict=True)]


def encode_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]]) -> Tensor:
    """Rows as numbers `[N, D]`, by the columns of the table encoding; a row without a column has a missing cell."""
    known = {name for row in rows for name in row}
    absent = [column["name"] for column in columns if column["name"] not in known]
    if absent:
        raise ValueError(f"the table has no column {', '.join(map(repr, absent))}; add it, with empty cells if unknown")
    encoded = [encode_column([cell_text(row.get(column["name"])) for row in rows], column) for column in columns]
    numbers = [[number for part in parts for number in part] for parts in zip(*encoded, strict=True)]
    return torch.tensor(numbers, dtype=torch.float32)


def encode_column(cells: Sequence[str], column: Mapping[str, Any]) -> list[list[float]]:
    """The numbers of each cell of one column; `kept` are the positions of those that varied in training."""
    kind, kept = column["kind"], column["kept"]
    if kind == "category":
        numbers = [encode_category(cell.strip()[:LONGEST_VALUE], column) for cell in cells]
    elif kind == "text":
        positions = {word: position for position, word in enumerate(column["words"])}
        numbers = [encode_text(cell, positions, column["weights"]) for cell in cells]
    else:
        values = [read_cell(cell, column) for cell in cells]
        if all(map(math.isnan, values)) and not all(map(is_missing, cells)):
            first = next(cell for cell in cells if not is_missing(cell))
            raise ValueError(f"column {column['name']!r}: got cells such as {first[:40]!r}, expected the kind {kind}")
        numbers = [encode_value(value, column) for value in values]
    return [[line[position] for position in kept] for line in numbers]


def read_cell(cell: str, column: Mapping[str, Any]) -> float:
    """A number, a truth value or the seconds of a date; NaN if it is missing or cannot be read."""
    if column["kind"] == "boolean":
        return TRUTH.get(cell.strip().lower(), math.nan)
    if column["kind"] == "date":
        return date_seconds(cell.strip(), column["form"])
    value = cell_number(cell)
    return value if abs(value) <= LARGEST else math.nan


def encode_value(value: float, column: Mapping[str, Any]) -> list[float]:
    """The value, or the parts of a date, with the fill for a missing one; 1 if it is missing, else 0; the season."""
    missing = math.isnan(value)
    known = column["fill"] if missing else value
    if column["kind"] != "date":
        return [known, float(missing)]
    time = EPOCH + timedelta(seconds=math.floor(known))
    gap = [float(missing)] if column["gaps"] else []
    season = [math.sin(2 * math.pi / YEAR * known), math.cos(2 * math.pi / YEAR * known)]
    return [time.year, time.month, time.weekday(), time.hour, known - column["first"], *gap, *season]


def encode_category(value: str, column: Mapping[str, Any]) -> list[float]:
    """One number for each known value, one for all others, and the logarithm of the frequency if it is used."""
    one_hot = [float(value == known) for known in column["values"]]
    other = [float(value not in column["values"])] if column["other"] else []
    frequency = [] if column["counts"] is None else [math.log1p(column["counts"].get(value, 0))]
    return one_hot + other + frequency


def encode_text(cell: str, positions: Mapping[str, int], weights: Sequence[float]) -> list[float]:
    """TF-IDF of the known words and pairs, scaled to length 1."""
    numbers = [0.0] * len(positions)
    for word, count in Counter(terms(cell)).items():
        if word in positions:
            numbers[positions[word]] = (1 + math.log(count)) * weights[positions[word]]
    length = max(math.sqrt(sum(number * number for number in numbers)), 1e-12)
    return [number / length for number in numbers]


def image_files(data: Any) -> list[Any]:
    """Image files: those of a folder in order of name, or the given ones; PIL images stay as they are."""
    paths = [Path(data)] if isinstance(data, str | Path) else list(data)
    if len(paths) == 1 and isinstance(paths[0], Path) and paths[0].is_dir():
        return sorted(path for path in paths[0].rglob("*") if path.suffix.lower() in IMAGE_ENDINGS)
    return paths


def readable_images(files: Sequence[Any]) -> list[Any]:
    """The image files that can be read; the others, at most a tenth, are named on stderr."""
    kept, skipped = [], []
    for file in files:
        try:
            image_pixels([file], (1, 1, 1))
            kept.append(file)
        except (OSError, ValueError, SyntaxError) as error:
            skipped.append(f"{file}: {error}")
    if 10 * len(skipped) > len(files):
        raise ValueError(f"{len(skipped)} of {len(files)} images cannot be read, at most a tenth may be: {skipped[0]}")
    for line in skipped:
        print(f"warning: skipped: {line}", file=sys.stderr)
    return kept


def image_pixels(images: Sequence[Any], shape: Sequence[int], invert: bool = False) -> Tensor:
    """Image files or PIL images as bytes `[N, C, H, W]` of one size (bilinear), grey (C = 1) or red, green, blue."""
    from PIL import Image

    channels, height, width = shape
    pixels = []
    for item in images:
        with Image.open(item, formats=IMAGE_FORMATS) if isinstance(item, str | Path) else nullcontext(item) as image:
            if image.mode.startswith("I"):  # 16 bits, which Pillow would clip
                image = image.convert("I").point(lambda value: value * (1 / 257) + 0.001)
            elif "transparency" in image.info:
                image = image.convert("RGBA")
            image = image.convert("L" if channels == 1 else "RGB")
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            numbers = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        pixels.append(numbers.view(height, width, channels).permute(2, 0, 1))
    stacked = torch.stack(pixels)
    return 255 - stacked if invert else stacked
