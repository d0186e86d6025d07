"""Two data sets that had no part in any choice: letters of fonts, and pieces of photographs, from Debian's packages.

`letters`: 62 characters of the fonts of `FONTS`, one image for each font; half of the fonts are for the test. `photos`:
pieces of twelve photographs of the package mate-backgrounds, which are classes; columns of a photograph are for
training and for the test by turns, so that neighbouring pieces are rarely in both. Images have 14×14 grey values.
"""

import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import nearkin as nk
from nearkin.core.rng import Streams

SIDE, DRAWN = 14, 56  # pixels of an image, and of the drawing that is scaled to it
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
FONTS = (
    "fonts-aenigma", "fonts-dustin", "fonts-lato", "fonts-roboto-unhinted", "fonts-adf-accanthis",
    "fonts-adf-baskervald", "fonts-adf-berenis", "fonts-adf-gillius", "fonts-adf-ikarius", "fonts-adf-irianis",
    "fonts-adf-libris", "fonts-adf-mekanus", "fonts-adf-oldania", "fonts-adf-romande", "fonts-adf-solothurn",
    "fonts-adf-switzera", "fonts-adf-tribun", "fonts-adf-universalis", "fonts-adf-verana", "fonts-freefont-ttf",
    "fonts-open-sans", "fonts-comic-neue", "fonts-averia-sans-gwf", "fonts-averia-serif-gwf", "fonts-tuffy",
    "fonts-georgewilliams", "fonts-sjfonts", "fonts-breip", "fonts-dancingscript", "fonts-ubuntu-title",
)  # fmt: skip
PHOTOS = "mate-backgrounds"
SCALE = 8  # pixels of a photograph for one of a piece
BLOCK = 4 * SIDE  # width of the columns of a photograph

Images = np.ndarray[Any, np.dtype[np.uint8]]


def files_of(package: str) -> list[Path]:
    """Files of a Debian package."""
    listed = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=False)
    if listed.returncode:
        raise SystemExit(f"the package {package} is not installed; run: apt-get install {PHOTOS} {' '.join(FONTS)}")
    return sorted(path for path in map(Path, listed.stdout.splitlines()) if path.is_file())


def drawn(font: ImageFont.FreeTypeFont, character: str) -> Images | None:
    """A character in white on black, as large as the image with a margin of one pixel; None if there is nothing."""
    canvas = Image.new("L", (3 * DRAWN, 3 * DRAWN))
    ImageDraw.Draw(canvas).text((DRAWN, DRAWN), character, 255, font)
    box = canvas.getbbox()
    if box is None:
        return None
    glyph = canvas.crop(box)
    factor = (SIDE - 2) / max(glyph.size)
    size = max(1, round(glyph.width * factor)), max(1, round(glyph.height * factor))
    image = Image.new("L", (SIDE, SIDE))
    image.paste(glyph.resize(size, Image.Resampling.BOX), ((SIDE - size[0]) // 2, (SIDE - size[1]) // 2))
    return np.asarray(image)


def letters() -> nk.Task:
    """Characters of fonts."""
    images: dict[bool, list[Images]] = {True: [], False: []}
    labels: dict[bool, list[str]] = {True: [], False: []}
    files = [path for package in FONTS for path in files_of(package) if path.suffix.lower() in (".ttf", ".otf")]
    order = torch.randperm(len(files), generator=Streams(0).at("fonts")).tolist()
    for number, index in enumerate(order):
        try:
            font = ImageFont.truetype(files[index], DRAWN)
            glyphs = [drawn(font, character) for character in CHARACTERS]
        except OSError:
            continue
        known = [glyph for glyph in glyphs if glyph is not None]
        if len(known) < len(CHARACTERS) or len({glyph.tobytes() for glyph in known}) < len(CHARACTERS) // 2:
            continue  # signs, or a font that lacks characters
        images[number % 2 == 0].extend(known)
        labels[number % 2 == 0].extend(CHARACTERS)
    return made("letters", images, labels, tuple(CHARACTERS))


def photos() -> nk.Task:
    """Pieces of photographs."""
    images: dict[bool, list[Images]] = {True: [], False: []}
    labels: dict[bool, list[str]] = {True: [], False: []}
    files = [path for path in files_of(PHOTOS) if "nature" in path.parts and path.suffix == ".jpg"]
    for path in files:
        with Image.open(path) as photo:
            small = photo.convert("L").resize((photo.width // SCALE, photo.height // SCALE), Image.Resampling.BOX)
        pixels = np.asarray(small)
        corners = product(range(0, small.height - SIDE + 1, SIDE), range(0, small.width - SIDE + 1, SIDE))
        for row, column in corners:
            trained = column // BLOCK % 2 == 0
            images[trained].append(pixels[row : row + SIDE, column : column + SIDE])
            labels[trained].append(path.stem.lower())
    return made("photos", images, labels, tuple(path.stem.lower() for path in files))


def made(
    name: str, images: dict[bool, list[Images]], labels: dict[bool, list[str]], classes: tuple[str, ...]
) -> nk.Task:
    """A task from training (True) and test images."""
    (x, y), (x_test, y_test) = (
        (np.stack(images[part])[:, None].astype(np.float32) / 255, [classes.index(label) for label in labels[part]])
        for part in (True, False)
    )
    return nk.Task.from_arrays(name, x, np.array(y), x_test, np.array(y_test), classes=classes)


NEW_DATA = {"letters": letters, "photos": photos}
