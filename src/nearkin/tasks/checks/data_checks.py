"""Checks of a data set before training: size, balance, duplicates, leakage, wrong labels."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import require
from nearkin.core.events import Progress, Work, operation
from nearkin.core.rng import Streams
from nearkin.tasks.checks.duplicates import Duplicates, Scan, Sketch, block_rows, duplicates, scan_rows
from nearkin.tasks.checks.label_noise import LabelNoise, label_noise
from nearkin.tasks.checks.leakage import Leakage, class_leakage, value_leakage
from nearkin.tasks.metrics import share_interval
from nearkin.tasks.task import Task

STAGE = "checks of the data"
FEW_OF_CLASS = 10
FEW_TESTS = 100
SKEWED = 10.0  # most frequent class over rarest
SHIFT = 0.1  # Cohen's w above which a difference of class shares is reported; 0.3 is a medium difference
GRAVE_SHIFT = 0.3
SIGNIFICANT = 4.0  # standard deviations of a chi-square
FAR = 8.0  # robust standard deviations of an outlier
SHOWN = 10


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        kind: `size`, `table`, `inputs`, `balance`, `duplicates`, `leakage`, `noise` or `target`.
        grave: whether it puts the result in doubt.
        text: one sentence with the figures; if grave, with advice.
        facts: the figures as JSON values.
    """

    kind: str
    grave: bool
    text: str
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"kind": self.kind, "grave": self.grave, "text": self.text, "facts": dict(self.facts)}


@dataclass(frozen=True)
class Checks:
    """The findings of all checks, and the time they took."""

    findings: tuple[Finding, ...]
    seconds: float

    @property
    def grave(self) -> tuple[Finding, ...]:
        """The findings that put the result in doubt."""
        return tuple(finding for finding in self.findings if finding.grave)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"findings": [finding.to_dict() for finding in self.findings], "seconds": self.seconds}


SKIPPED = "Near duplicates, leakage and wrong labels were not checked, because the run was short."


@operation
def check_data(task: Task, *, seed: int = 0, samples: int = 5000, quick: bool = False) -> Work[Checks]:
    """Check a task's data: labels and columns on at most `samples` training samples, duplicates on all samples.

    `quick` leaves out what takes seconds: near duplicates, leakage and label noise.

    >>> from nearkin.tasks.sources import task
    >>> checks = check_data(task("digits?classes=0,1,2"), samples=300)
    >>> [finding.kind for finding in checks.findings], len(checks.grave)
    (['size', 'balance', 'duplicates', 'leakage', 'noise'], 0)
    """
    require(samples >= 1, f"checks need one sample or more, got {samples}; try 5000")
    start = time.monotonic()
    classes, values = task.likelihood == "categorical", task.likelihood in ("gaussian", "heteroscedastic")
    blocks = sum(-(-len(rows) // block_rows(rows)) for rows in (task.train.inputs, task.test.inputs))
    total = 1 + blocks + 1 + 2 * classes + values
    findings = [size(task), *(Finding("table", False, f"{line[0].upper()}{line[1:]}.", {}) for line in task.notes)]
    if task.train.scaling.constant:
        findings.append(constant_inputs(task))
    if classes:
        findings.append(balance(task))
    if values:
        findings.append(target(task))
    yield Progress(STAGE, 1, total)
    thorough = (classes or values) and not quick
    sketch = Sketch.of(task.train.inputs, Streams(seed).at("checks", "sketch")) if thorough else None
    scans: dict[str, list[Scan]] = {"train": [], "test": []}
    for split, rows, split_sketch in (("train", task.train.inputs, sketch), ("test", task.test.inputs, None)):
        for scan in scan_rows(rows, split_sketch):
            scans[split].append(scan)
            yield Progress(STAGE, 1 + len(scans["train"]) + len(scans["test"]), total)
    train, test = (Scan.joined(parts) for parts in scans.values())
    findings.append(_finding("duplicates", duplicates(task, train, test, sketch, seed=seed)))
    yield Progress(STAGE, 2 + blocks, total)
    if quick:
        findings.append(Finding("scope", False, SKIPPED, {}))
    if classes and thorough:
        noise = label_noise(task, seed=seed, samples=samples)
        yield Progress(STAGE, 3 + blocks, total)
        findings.append(_finding("leakage", class_leakage(task, noise.skill, seed=seed, samples=samples)))
        findings.append(_finding("noise", noise))
    if values and thorough:
        findings.append(_finding("leakage", value_leakage(task, seed=seed, samples=samples)))
    if classes or values:
        yield Progress(STAGE, total, total)
    return Checks(tuple(findings), round(time.monotonic() - start, 3))


def _finding(kind: str, result: Duplicates | Leakage | LabelNoise) -> Finding:
    return Finding(kind, result.grave, result.text, result.facts())


def constant_inputs(task: Task) -> Finding:
    """Constant inputs, which are not used; grave if they are half of all inputs or more."""
    constant = task.train.scaling.constant
    grave = 2 * len(constant) >= task.input_shape[0]
    advice = " Check the data: most inputs have no information." if grave else ""
    return Finding("inputs", grave, task.constant_inputs() + advice, {"constant": list(constant)})


def size(task: Task) -> Finding:
    """Number of samples and classes.

    >>> x = torch.arange(30.0)[:, None]
    >>> size(Task.from_arrays("tiny", x, torch.arange(30) % 2)).text
    '24 training and 6 test samples of 2 classes, 12 to 12 of each; with so few test samples an accuracy of 0.9 has an \
interval from 0.50 to 0.99: collect more.'
    """
    train, test = len(task.train), len(task.test)
    low, high = share_interval(0.9, test)
    facts: dict[str, Any] = {"train": train, "test": test, "interval_of_0.9": [round(low, 4), round(high, 4)]}
    text, advice = f"{train} training and {test} test samples", []
    if task.likelihood == "categorical":
        counts = torch.bincount(task.train.labels(), minlength=len(task.classes))
        least, most = int(counts.min()), int(counts.max())
        facts |= {"classes": len(task.classes), "least_of_class": least, "most_of_class": most}
        text += f" of {len(task.classes)} classes, {least} to {most} of each"
        few = torch.nonzero(counts < FEW_OF_CLASS).flatten().tolist()
        facts |= {"small_classes": [task.classes[i] for i in few[:SHOWN]], "num_small_classes": len(few)}
        if len(task.classes) > train / 10:
            advice.append(
                "there are fewer than ten samples per class on average: merge classes or collect more samples"
            )
        elif few:
            verb = "has" if len(few) == 1 else "have"
            advice.append(f"{_some_classes(task, few)} {verb} fewer than {FEW_OF_CLASS}: collect more of them")
    if test < FEW_TESTS and task.form.metric == "accuracy":
        interval = f"an accuracy of 0.9 has an interval from {low:.2f} to {high:.2f}"
        advice.append(f"with so few test samples {interval}: collect more")
    elif test < FEW_TESTS:
        advice.append("so few test samples make the metric uncertain: collect more")
    return Finding("size", bool(advice), "; ".join([text, *advice]) + ".", facts)


def _some_classes(task: Task, numbers: list[int]) -> str:
    return ", ".join(task.classes[i] for i in numbers[:3]) + (" and others" if len(numbers) > 3 else "")


def balance(task: Task) -> Finding:
    """Balance of the classes, and the difference of class shares between training and test set."""
    counts, tests = (torch.bincount(e.labels(), minlength=len(task.classes)) for e in (task.train, task.test))
    rare, common = int(counts.argmin()), int(counts.argmax())
    ratio = float(counts[common] / counts[rare])
    shares = counts.double() / counts.sum()
    even = float(-(shares * shares.log()).sum()) / math.log(len(counts))
    absent = torch.nonzero(tests == 0).flatten().tolist()
    effect, excess = class_shift(counts, tests)
    text = f"Every class has {int(counts[common])} training samples"
    if counts[common] > counts[rare]:
        text = f"{task.classes[common]} is the most frequent class with {int(counts[common])} training samples"
        text += f", {task.classes[rare]} the rarest with {int(counts[rare])}"
    advice = []
    if ratio > SKEWED:
        advice.append(f"the ratio is {ratio:.0f} to one: use balanced accuracy or weight the classes")
    if absent:
        advice.append(f"the test set has no {_some_classes(task, absent)}: add test samples of each class")
    shifted = effect > SHIFT and excess > SIGNIFICANT
    if shifted:
        shift = f"class shares differ between training and test set (Cohen's w {effect:.2f})"
        advice.append(f"{shift}: split again unless this is intended")
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
    return Finding("balance", grave or (shifted and effect > GRAVE_SHIFT), "; ".join([text, *advice]) + ".", facts)


def class_shift(train: Tensor, test: Tensor) -> tuple[float, float]:
    r"""Cohen's w between two class counts `[C]`, and the excess of χ² over its mean in standard deviations.

    $w^2 = \sum_c (p_c - q_c)^2 / m_c$ for the shares p, q and their pooled share m, minus its mean for equal shares;
    there $\chi^2 = w^2 N_p N_q / (N_p + N_q)$ has mean $C-1$ and variance $2(C-1)$.

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
    """Constant target columns, and outliers: targets more than eight robust deviations from the median."""
    values = task.train.labels().view(len(task.train), -1).double()
    constant = [task.classes[i] for i in torch.nonzero(values.amin(0) == values.amax(0)).flatten().tolist()]
    middle = values.median(0).values
    spread = 1.4826 * (values - middle).abs().median(0).values
    # if half of all values are equal, the robust deviation is 0 and the standard deviation replaces it
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
        text = f"Target {names} is constant in the training set: there is nothing to learn; leave it out."
        return Finding("target", True, text, facts)
    text = f"{len(rows)} of {len(values)} training targets are more than {FAR:.0f} robust deviations from the median"
    if len(rows):
        shown = ", ".join(map(str, rows[:5].tolist()))
        text += f" (rows {shown}); check them, a few can dominate a squared error"
    return Finding("target", len(rows) > 0, text + ".", facts)
