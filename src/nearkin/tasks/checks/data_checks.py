"""Checks of a data set before anything is learned from it: size, balance, duplicates, leakage, wrong labels."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import require
from nearkin.core.events import Progress, Work, operation
from nearkin.core.rng import Streams
from nearkin.tasks.checks.duplicates import Scan, Sketch, block_rows, duplicates, scanned
from nearkin.tasks.checks.label_noise import label_noise
from nearkin.tasks.checks.leakage import class_leakage, value_leakage
from nearkin.tasks.metrics import share_interval
from nearkin.tasks.rows import Rows
from nearkin.tasks.task import Task

STAGE = "checks of the data"
FEW_OF_CLASS = 10
FEW_TESTS = 100
SKEWED = 10.0  # commonest class over rarest
SHIFT = 0.1  # Cohen's w from which a difference of class shares is worth a word; 0.3 is a medium one
GRAVE_SHIFT = 0.3
SIGNIFICANT = 4.0  # standard deviations of a chi-square
FAR = 8.0  # robust deviations of an outlier
SHOWN = 10


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Attributes:
        kind: `size`, `inputs`, `balance`, `duplicates`, `leakage`, `noise` or `target`.
        grave: the user should know it before trusting the result.
        text: one plain sentence with the figures; where grave, with what to do.
        facts: plain JSON values behind it.
    """

    kind: str
    grave: bool
    text: str
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"kind": self.kind, "grave": self.grave, "text": self.text, "facts": dict(self.facts)}


@dataclass(frozen=True)
class Checks:
    """All that was found, and how long it took."""

    findings: tuple[Finding, ...]
    seconds: float

    @property
    def grave(self) -> tuple[Finding, ...]:
        """The findings that the user should know before trusting the result."""
        return tuple(finding for finding in self.findings if finding.grave)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"findings": [finding.to_dict() for finding in self.findings], "seconds": self.seconds}


@operation
def check_data(task: Task, *, seed: int = 0, samples: int = 5000) -> Work[Checks]:
    """Check a task's data; labels and columns are judged by at most `samples` of it, duplicates by all of it.

    >>> from nearkin.tasks.sources import task
    >>> checks = check_data(task("digits?classes=0,1,2"), samples=300)
    >>> [finding.kind for finding in checks.findings], len(checks.grave)
    (['size', 'balance', 'duplicates', 'leakage', 'noise'], 0)
    """
    require(samples >= 1, f"checks look at one sample or more, got {samples}; try 5000")
    start = time.monotonic()
    classes, values = task.likelihood == "categorical", task.likelihood in ("gaussian", "heteroscedastic")
    blocks = _num_blocks(task.train.inputs) + _num_blocks(task.test.inputs)
    total = 1 + blocks + 1 + 2 * classes + values
    findings = [size(task)]
    if task.train.scaling.constant:
        findings.append(constant_inputs(task))
    if classes:
        findings.append(balance(task))
    if values:
        findings.append(target(task))
    yield Progress(STAGE, 1, total)
    sketch = Sketch.of(task.train.inputs, Streams(seed).at("checks", "sketch")) if classes or values else None
    train: list[Scan] = []
    test: list[Scan] = []
    for done, (is_train, scan) in enumerate(_scans(task, sketch)):
        (train if is_train else test).append(scan)
        yield Progress(STAGE, 2 + done, total)
    twins = duplicates(task, Scan.joined(train), Scan.joined(test), sketch, seed=seed)
    findings.append(Finding("duplicates", twins.grave, twins.text, twins.facts()))
    yield Progress(STAGE, 2 + blocks, total)
    if classes:
        noise = label_noise(task, seed=seed, samples=samples)
        yield Progress(STAGE, 3 + blocks, total)
        leak = class_leakage(task, noise.skill, seed=seed, samples=samples)
        findings.append(Finding("leakage", leak.grave, leak.text, leak.facts()))
        findings.append(Finding("noise", noise.grave, noise.text, noise.facts()))
    if values:
        leak = value_leakage(task, seed=seed, samples=samples)
        findings.append(Finding("leakage", leak.grave, leak.text, leak.facts()))
    if classes or values:
        yield Progress(STAGE, total, total)
    return Checks(tuple(findings), round(time.monotonic() - start, 3))


def constant_inputs(task: Task) -> Finding:
    """Which inputs are constant and so not used; grave where they are half of all or more."""
    places = task.train.scaling.constant
    grave = 2 * len(places) >= task.input_shape[0]
    cure = " Check the data: most of it says nothing." if grave else ""
    return Finding("inputs", grave, task.constant_inputs() + cure, {"constant": list(places)})


def size(task: Task) -> Finding:
    """How many samples there are, of how many classes.

    >>> x = torch.arange(30.0)[:, None]
    >>> size(Task.from_arrays("tiny", x, torch.arange(30) % 2)).text
    '24 training and 6 test samples of 2 classes, 12 to 12 of each; so few tests leave an accuracy of 0.9 uncertain \
between 0.50 and 0.99: gather more.'
    """
    train, test = len(task.train), len(task.test)
    low, high = share_interval(0.9, test)
    facts: dict[str, Any] = {"train": train, "test": test, "interval_of_0.9": [round(low, 4), round(high, 4)]}
    said, cures = f"{train} training and {test} test samples", []
    if task.likelihood == "categorical":
        counts = torch.bincount(task.train.labels(), minlength=len(task.classes))
        least, most = int(counts.min()), int(counts.max())
        facts |= {"classes": len(task.classes), "least_of_class": least, "most_of_class": most}
        said += f" of {len(task.classes)} classes, {least} to {most} of each"
        few = torch.nonzero(counts < FEW_OF_CLASS).flatten().tolist()
        facts |= {"small_classes": [task.classes[i] for i in few[:SHOWN]], "num_small_classes": len(few)}
        if len(task.classes) > train / 10:
            cures.append("there are more classes than a tenth of the samples: merge classes or gather more")
        elif few:
            some = ", ".join(task.classes[i] for i in few[:3]) + (" and others" if len(few) > 3 else "")
            cures.append(f"{some} {'has' if len(few) == 1 else 'have'} fewer than {FEW_OF_CLASS}: gather more of them")
    if test < FEW_TESTS:
        if task.form.metric == "accuracy":
            cures.append(
                f"so few tests leave an accuracy of 0.9 uncertain between {low:.2f} and {high:.2f}: gather more"
            )
        else:
            cures.append("so few tests judge a model poorly: gather more")
    return Finding("size", bool(cures), "; ".join([said, *cures]) + ".", facts)


def balance(task: Task) -> Finding:
    """How evenly samples are spread over the classes, and whether both parts agree in it."""
    counts, tests = (torch.bincount(e.labels(), minlength=len(task.classes)) for e in (task.train, task.test))
    rare, common = int(counts.argmin()), int(counts.argmax())
    ratio = float(counts[common] / counts[rare])
    shares = counts.double() / counts.sum()
    even = float(-(shares * shares.log()).sum()) / math.log(len(counts))
    absent = torch.nonzero(tests == 0).flatten().tolist()
    effect, excess = class_shift(counts, tests)
    said = f"Every class has {int(counts[common])} training samples"
    if counts[common] > counts[rare]:
        said = f"{task.classes[common]} is the commonest class with {int(counts[common])} training samples"
        said += f", {task.classes[rare]} the rarest with {int(counts[rare])}"
    cures = []
    if ratio > SKEWED:
        cures.append(f"that is {ratio:.0f} to one: judge by balanced accuracy or weigh the classes")
    if absent:
        some = ", ".join(task.classes[i] for i in absent[:3]) + (" and others" if len(absent) > 3 else "")
        cures.append(
            f"the test part has no {some}: what is learned of {'it' if len(absent) == 1 else 'them'} is not judged"
        )
    shifted = effect > SHIFT and excess > SIGNIFICANT
    if shifted:
        cures.append(f"class shares differ between the parts (Cohen's w {effect:.2f}): split anew unless this is meant")
    facts = {
        "commonest": task.classes[common],
        "rarest": task.classes[rare],
        "most": int(counts[common]),
        "least": int(counts[rare]),
        "ratio": round(ratio, 4),
        "entropy_ratio": round(min(1.0, even), 6),
        "absent_in_test": [task.classes[i] for i in absent[:SHOWN]],
        "num_absent_in_test": len(absent),
        "shift_effect": round(effect, 6),
        "shift_deviations": round(excess, 4),
    }
    grave = ratio > SKEWED or (bool(absent) and len(task.test) >= 5 * len(task.classes))
    return Finding("balance", grave or (shifted and effect > GRAVE_SHIFT), "; ".join([said, *cures]) + ".", facts)


def class_shift(train: Tensor, test: Tensor) -> tuple[float, float]:
    r"""Cohen's w between the class counts `[C]` of two parts, and how many deviations χ² lies above its mean.

    $w^2 = \sum_c (p_c - q_c)^2 / m_c$ of the shares p, q and their pooled share m, less its mean under equal shares;
    $\chi^2 = w^2 N_p N_q / (N_p + N_q)$ has mean $C-1$ and variance $2(C-1)$ there.

    >>> class_shift(torch.tensor([50, 50]), torch.tensor([25, 25]))[0]
    0.0
    >>> 0.9 < class_shift(torch.tensor([7500, 2500]), torch.tensor([250, 750]))[0] < 1.1
    True
    """
    first, second = train.sum().double(), test.sum().double()
    pooled = (train + test) / (first + second)
    square = ((train / first - test / second).square() / pooled.clamp_min(1e-12)).sum()
    scale, free = float(first * second / (first + second)), max(1, len(train) - 1)
    chi = float(square) * scale
    return math.sqrt(max(0.0, chi - free) / scale), (chi - free) / math.sqrt(2 * free)


def target(task: Task) -> Finding:
    """Constant target columns, and values far from all others: more than eight robust deviations from the median."""
    values = task.train.labels().view(len(task.train), -1).double()
    constant = [task.classes[i] for i in torch.nonzero(values.amin(0) == values.amax(0)).flatten().tolist()]
    middle = values.median(0).values
    spread = 1.4826 * (values - middle).abs().median(0).values
    # where half of all values are one, the usual deviation is that of the rest
    spread = torch.where(spread > 0, spread, values.std(0, correction=0))
    far = ((values - middle).abs() > FAR * spread.clamp_min(1e-300)) & (spread > 0)
    rows = torch.nonzero(far.any(1)).flatten()
    facts = {
        "constant": constant[:SHOWN],
        "num_outliers": len(rows),
        "outliers": rows[:SHOWN].tolist(),
        "median": middle[:SHOWN].tolist(),
        "robust_deviation": spread[:SHOWN].tolist(),
    }
    if constant:
        names = ", ".join(constant[:3])
        text = f"Target {names} is constant over the training part: there is nothing to learn; leave it out."
        return Finding("target", True, text, facts)
    text = f"{len(rows)} of {len(values)} training targets lie more than {FAR:.0f} robust deviations from the median"
    if len(rows):
        text += (
            f" (rows {', '.join(str(row) for row in rows[:5].tolist())}); check them, a few can rule a squared error"
        )
    return Finding("target", len(rows) > 0, text + ".", facts)


def _scans(task: Task, sketch: Sketch | None) -> Iterator[tuple[bool, Scan]]:
    for scan in scanned(task.train.inputs, sketch):
        yield True, scan
    for scan in scanned(task.test.inputs):
        yield False, scan


def _num_blocks(rows: Rows) -> int:
    return -(-len(rows) // block_rows(rows))
