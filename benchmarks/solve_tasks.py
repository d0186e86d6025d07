"""Data sets of the solve benchmark: training, test and fresh samples by seed, and the related tasks of its zoo.

Kin and targets never share a sample: of MNIST, Fashion-MNIST and CIFAR-10 kin have the even positions of the training
file, targets the odd ones; of the digits kin have every third position. Test and fresh samples of a draw are one random
sample, cut in two, so that an interval stated for the first must hold for the second.

The three surveys (`SURVEYS`) had no part in development: no model was fitted to them before the final run.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn import datasets

import nearkin as nk
from nearkin.tasks import derive
from nearkin.tasks.examples import Examples
from solve_tables import TARGET, generated_classes, generated_text, generated_values, rare_class

Array = np.ndarray[Any, Any]
DIGITS_KIN = 3  # every third digit belongs to kin
FRESH_ROWS, TEST_ROWS = 4000, 1000  # of generated tables
TARGET_CLASSES, CLASSES_OF_TARGETS = 20, 80  # of CIFAR-100
KIN_SAMPLES, KIN_TEST = 2000, 500


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs, uint8 images `[N, C, H, W]` or a DataFrame, and their targets `[N]`."""

    x: Any
    y: Array


@dataclass(frozen=True, eq=False)
class Draw:
    """One data set, drawn with one seed.

    Attributes:
        data: name of the data set.
        seed: that drew it.
        train: training samples.
        test: test samples, on which all methods are scored.
        fresh: further samples of the same distribution, which no method sees.
        values: whether the targets are real values.
    """

    data: str
    seed: int
    train: Split
    test: Split
    fresh: Split
    values: bool = False

    @property
    def images(self) -> bool:
        """Whether inputs are images."""
        return not isinstance(self.train.x, pd.DataFrame)

    @cached_property
    def task(self) -> nk.Task:
        """The task that `solve` gets."""
        name = f"{self.data} draw {self.seed}"
        if self.images:
            return nk.Task.from_arrays(name, self.train.x, self.train.y, self.test.x, self.test.y)
        train, test = (split.x.assign(**{TARGET: split.y}) for split in (self.train, self.test))
        return nk.Task.from_frame(name, train, TARGET, test, likelihood="gaussian" if self.values else "categorical")

    def score(self, predicted: Array, split: Split) -> float:
        """Accuracy, or R² of real values."""
        if not self.values:
            return float((predicted == split.y).mean())
        return 1 - float(np.square(predicted - split.y).sum() / np.square(split.y - split.y.mean()).sum())


def cut(x: Any, y: Array, sizes: tuple[int, ...], seed: int) -> list[Split]:
    """Disjoint random samples of the given sizes, and the rest."""
    order = np.random.default_rng(seed).permutation(len(y))
    parts = np.split(order, np.cumsum(sizes))
    return [Split(x.iloc[part].reset_index(drop=True) if hasattr(x, "iloc") else x[part], y[part]) for part in parts]


def pixels(examples: Examples) -> Split:
    """All images of examples as bytes."""
    x = examples.inputs.take(torch.arange(len(examples)))
    return Split((255 * x).round().to(torch.uint8).numpy(), examples.labels().numpy())


def all_digits() -> Split:
    """The digits of scikit-learn."""
    x, y = datasets.load_digits(return_X_y=True)
    return Split(np.rint(x.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8), y)


def digits(seed: int, data: str = "digits") -> Draw:
    """600 training samples of the digits; test and fresh halve the rest. As a table if the name says so."""
    whole = all_digits()
    rows = np.arange(len(whole.y)) % DIGITS_KIN != 0
    x, y = whole.x[rows], whole.y[rows]
    if data == "digits-table":
        return Draw(data, seed, *cut(pd.DataFrame(x.reshape(len(x), -1)).add_prefix("pixel "), y, (600, 299), seed))
    return Draw(data, seed, *cut(x, y, (600, 299), seed))


def idx_images(name: str, samples: int) -> Callable[[int], Draw]:
    """MNIST or Fashion-MNIST: 2,000 test samples, and 8,000 fresh ones, of the official test file."""

    def draw(seed: int) -> Draw:
        whole = nk.task(name)
        train, test = pixels(whole.train.chosen(torch.arange(1, len(whole.train), 2))), pixels(whole.test)
        return Draw(
            f"{name}-{samples}", seed, cut(train.x, train.y, (samples,), seed)[0], *cut(test.x, test.y, (2000,), seed)
        )

    return draw


def joined(first: Split, second: Split) -> Split:
    """Both splits as one."""
    return Split(np.concatenate([first.x, second.x]), np.concatenate([first.y, second.y]))


def cifar10(seed: int) -> Draw:
    """2,000 training and 2,000 test samples of the targets' half and the test file; the rest is fresh."""
    whole = nk.task("cifar10")
    pool = joined(pixels(whole.train.chosen(torch.arange(1, len(whole.train), 2))), pixels(whole.test))
    return Draw("cifar10-2000", seed, *cut(pool.x, pool.y, (2000, 2000), seed))


def cifar100(seed: int) -> Draw:
    """Twenty classes, drawn with the seed: 1,000 training and 1,000 test samples; the rest is fresh."""
    whole = nk.task("cifar100")
    chosen = np.random.default_rng(seed).permutation(CLASSES_OF_TARGETS)[:TARGET_CLASSES]
    pool = joined(pixels(whole.train), pixels(whole.test))
    rows = np.isin(pool.y, chosen)
    numbers = {int(label): number for number, label in enumerate(sorted(chosen))}
    y = np.array([numbers[int(label)] for label in pool.y[rows]])
    return Draw("cifar100-20-1000", seed, *cut(pool.x[rows], y, (1000, 1000), seed))


def known_table(name: str, values: bool = False) -> Callable[[int], Draw]:
    """A table of scikit-learn: half of it for training, a quarter each for test and fresh."""

    def draw(seed: int) -> Draw:
        bunch = getattr(datasets, f"load_{name}")(as_frame=True)
        count, y = len(bunch.target), bunch.target.to_numpy()
        parts = cut(bunch.data, y.astype(float) if values else y, (count // 2, count // 4), seed)
        return Draw(name.replace("_", "-"), seed, *parts, values=values)

    return draw


def survey(
    name: str, file: str, target: str, sizes: tuple[int, int], drop: tuple[str, ...] = (), values: bool = False
) -> Callable[[int], Draw]:
    """A survey of malaria as it was published: `sizes` rows for training and for test; the rest is fresh.

    Texts are categories with many values, and some cells are empty.
    """

    def draw(seed: int) -> Draw:
        frame = pd.read_csv(malaria_folder() / file).dropna(subset=[target])
        y = frame[target].to_numpy()
        parts = cut(frame.drop(columns=[target, *drop]), y.astype(float) if values else y.astype(int), sizes, seed)
        return Draw(name, seed, *parts, values=values)

    return draw


def malaria_folder() -> Path:
    """The folder of the surveys, in `$NEARKIN_DATA`."""
    return Path(os.environ["NEARKIN_DATA"]).expanduser() / "malaria_prevalence"


def generated_table(
    name: str, rows: Callable[[int, int], pd.DataFrame], samples: int, values: bool = False
) -> Callable[[int], Draw]:
    """A table drawn from a generator, whose rule is drawn with the seed too."""

    def draw(seed: int) -> Draw:
        frame = rows(samples + TEST_ROWS + FRESH_ROWS, seed)
        parts = cut(frame.drop(columns=TARGET), frame[TARGET].to_numpy(), (samples, TEST_ROWS), seed)
        return Draw(name, seed, *parts, values=values)

    return draw


RATE = "PfPR_rmean"  # share of infected children by country and year, with an interval that is left out
SURVEYS: dict[str, Callable[[int], Draw]] = {
    "gambia": survey("gambia", "gambia.csv.gz", "pos", (1000, 500)),
    "kenya": survey("kenya", "kenya_highlands_rdt.csv.gz", "RDT", (1500, 2000)),
    "parasite-rate": survey(
        "parasite-rate", "map_pfpr_by_country_2000-2019.csv.gz", RATE, (800, 1000),
        ("PfPR_LCI", "PfPR_median", "PfPR_UCI"), values=True,
    ),
}  # fmt: skip
DATA: dict[str, Callable[[int], Draw]] = {
    "digits": digits,
    "mnist-500": idx_images("mnist", 500),
    "mnist-2000": idx_images("mnist", 2000),
    "fashion-500": idx_images("fashion", 500),
    "fashion-2000": idx_images("fashion", 2000),
    "cifar10-2000": cifar10,
    "cifar100-20-1000": cifar100,
    "breast-cancer": known_table("breast_cancer"),
    "wine": known_table("wine"),
    "diabetes": known_table("diabetes", values=True),
    "digits-table": lambda seed: digits(seed, "digits-table"),
    "generated-classes": generated_table("generated-classes", generated_classes, 800),
    "generated-values": generated_table("generated-values", generated_values, 800, values=True),
    "generated-rare": generated_table("generated-rare", rare_class, 1500),
    "generated-text": generated_table("generated-text", generated_text, 400),
    **SURVEYS,
}
IMAGES = tuple(DATA)[:7]
LOADED = ("digits", "mnist-500", "fashion-500", "cifar10-2000", "breast-cancer", "generated-classes")
"""Data sets of the test under load."""


def kin_tasks() -> list[nk.Task]:
    """Six related tasks, of samples that no draw holds."""
    mnist, fashion, cifar = (_kin_part(name) for name in ("mnist", "fashion", "cifar10"))
    known = all_digits()
    low = np.arange(len(known.y)) % DIGITS_KIN == 0
    low_digits = nk.Task.from_arrays("digits", known.x[low], known.y[low])
    five = ("0", "1", "2", "3", "4")
    tasks = {
        "low digits": derive.only(low_digits, five),
        "even": derive.parity(mnist),
        "five": derive.only(mnist, five),
        "clothes": derive.only(fashion, five),
        "shoes": derive.balanced(derive.detect(fashion, ("5", "7", "9"))),
        "animals": derive.only(cifar, ("2", "3", "4", "5", "6", "7")),
    }
    return [_limited(task, name) for name, task in tasks.items()]


def _kin_part(name: str) -> nk.Task:
    """The even positions of a training file; the official test file stays unread."""
    whole = nk.task(name)
    part = pixels(whole.train.chosen(torch.arange(0, len(whole.train), 2)))
    return replace(nk.Task.from_arrays(name, part.x, part.y), classes=whole.classes)


def _limited(task: nk.Task, name: str) -> nk.Task:
    small = derive.limited(task, KIN_SAMPLES)
    rows = torch.randperm(len(task.test), generator=torch.Generator().manual_seed(0))[:KIN_TEST]
    return replace(small, name=name, test=task.test.chosen(rows), source="").rescaled()
