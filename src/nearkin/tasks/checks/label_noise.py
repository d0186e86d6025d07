r"""Wrong labels: an estimate of their share, and the most suspicious samples.

A simple model (ridge regression onto one-hot labels with columns of a Gaussian kernel as features) scores every sample
without that sample's own label, in closed form. Two estimates use these scores:

- *Confident learning* (Northcutt, Jiang and Chuang 2021): a sample counts as class j if its probability of j exceeds
  the mean probability of j over samples with label j; the counts of (label, counted class) are scaled to the class
  sizes. Classes that the model confuses count as noise: 9 % on clean Fashion-MNIST, over half on CIFAR-10.
- *Lapse rate*: the labels follow $(1-q)\,\mathrm{softmax}(\beta z)_y + q/C$, with $\beta$ and $q$ fitted by maximum
  likelihood. Uncertainty of the model lowers $\beta$; labels that contradict a confident model raise $q$. The share of
  wrong labels is $q (C-1)/C$, as a random label can be correct. This estimate is reported if the model predicts at
  least half of the labels that are no lapses; otherwise it would depend on the shape of the model's uncertainty.

Notation: N samples, D numbers of one descriptor, C classes, M kernel columns, z scores `[N, C]`.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.rng import Streams
from nearkin.tasks.checks.duplicates import block_rows
from nearkin.tasks.examples import is_constant
from nearkin.tasks.rows import Rows
from nearkin.tasks.task import Task

COLUMNS = 600  # of the kernel
WIDTHS = (0.15, 0.5)  # squared widths of the kernel, in medians of squared distances
RIDGES = (0.01, 0.1, 1.0, 10.0)
SHARPNESS = torch.logspace(0, 2, 17)
LAPSES = torch.cat([torch.arange(0, 0.3, 0.005), torch.arange(0.3, 1.0, 0.01)])
HALF_CHI_SQUARE = 1.92  # 95 % quantile for one parameter, halved
LEAST_SAMPLES = 50
LEAST_OF_CLASS = 5
MOST_CLASSES = 500
LEAST_SKILL, LEAST_CLEAN_SKILL = 0.1, 0.5  # on all labels, and on those that are no lapses
GRAVE_SHARE, SURE_SHARE = 0.05, 0.02
SUSPECTS = 20


@dataclass(frozen=True)
class Suspect:
    """A training row whose label is probably wrong; `likely` is the class of the simple model."""

    row: int
    given: str
    likely: str


@dataclass(frozen=True)
class LabelNoise:
    """The estimated share of wrong labels; None if it cannot be estimated.

    `low` and `high` are its 95 % profile-likelihood interval; `confident` is the estimate of confident learning;
    `skill` is the simple model's balanced accuracy, scaled to 0 at chance and 1 without error.
    """

    share: float | None
    low: float
    high: float
    confident: float | None
    skill: float | None
    looked_at: int
    suspects: tuple[Suspect, ...] = ()

    @property
    def grave(self) -> bool:
        """Whether more than 5 % of the labels are wrong, with a lower bound above 2 %."""
        return self.share is not None and self.share > GRAVE_SHARE and self.low > SURE_SHARE

    @property
    def text(self) -> str:
        """One sentence for people."""
        if self.share is None:
            confused = "a simple model cannot tell wrong labels from difficult samples"
            reason = "there are too few samples" if self.skill is None else confused
            return f"The share of wrong labels cannot be estimated: {reason}."
        text = (
            f"About {self.share:.1%} of the training labels look wrong (95% interval {self.low:.1%} to {self.high:.1%})"
        )
        if not self.grave:
            return f"{text}."
        rows = ", ".join(str(suspect.row) for suspect in self.suspects[:5])
        return f"{text}; check the most suspicious first, training rows {rows}."

    def facts(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "share": self.share,
            "low": self.low,
            "high": self.high,
            "confident_learning": self.confident,
            "quick_model_skill": self.skill,
            "looked_at": self.looked_at,
            "suspects": [asdict(suspect) for suspect in self.suspects],
        }


def label_noise(task: Task, *, seed: int = 0, samples: int = 5000) -> LabelNoise:
    """Estimate the share of wrong training labels from at most `samples` samples.

    >>> from nearkin.tasks.sources import task
    >>> label_noise(task("digits?classes=0,1,2"), samples=300).share
    0.0
    """
    rng = Streams(seed).at("checks", "noise")
    rows, y, kept = known_classes(task.train.labels(), samples, rng)
    if len(rows) < LEAST_SAMPLES or len(kept) < 2:
        return LabelNoise(None, 0.0, 1.0, None, None, len(rows))
    x = descriptors(task.train.inputs, rows)
    one_hot = F.one_hot(y, len(kept)).double()
    curve, best, level = torch.full((len(LAPSES),), -torch.inf), torch.zeros(0), -torch.inf
    for z in leave_one_out(x, one_hot, rng):
        for sharpness in SHARPNESS:
            clean = torch.softmax(sharpness * z.float(), 1)
            fit = lapse_curve(clean.gather(1, y[:, None])[:, 0], len(kept))
            curve = torch.maximum(curve, fit)
            if float(fit.max()) > level:
                best, level = clean, float(fit.max())
    wrong = LAPSES * (len(kept) - 1) / len(kept)
    inside = wrong[curve > curve.max() - HALF_CHI_SQUARE]
    q = float(LAPSES[curve.argmax()])
    confident = 1 - float(confident_joint((1 - q) * best + q / len(kept), y).trace())
    skill = max(0.0, balanced_skill(best.argmax(1), y, len(kept)))
    if skill < LEAST_SKILL or skill < LEAST_CLEAN_SKILL * (1 - q):
        return LabelNoise(None, 0.0, 1.0, round(confident, 4), round(skill, 4), len(rows))
    share, low, high = (round(float(value), 4) for value in (wrong[curve.argmax()], inside.min(), inside.max()))
    suspects = _suspects(best, y, rows, [task.classes[i] for i in kept.tolist()])
    return LabelNoise(share, low, high, round(confident, 4), round(skill, 4), len(rows), suspects)


def known_classes(
    labels: Tensor, samples: int, rng: Generator, most: int = MOST_CLASSES
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows drawn from `labels`, their renumbered classes, and the old numbers of these classes.

    Classes with fewer than five drawn samples are left out: these are too few for a model and its evaluation.
    """
    drawn = torch.randperm(len(labels), generator=rng)[:samples].sort().values
    counts = torch.bincount(labels[drawn])
    common = torch.argsort(counts, descending=True, stable=True)[:most]
    kept = common[counts[common] >= LEAST_OF_CLASS].sort().values
    number = torch.full((len(counts),), -1)
    number[kept] = torch.arange(len(kept))
    rows = drawn[number[labels[drawn]] >= 0]
    return rows, number[labels[rows]], kept


def descriptors(inputs: Rows, rows: Tensor, side: int = 16) -> Tensor:
    """Features `[N, D]` of inputs at `rows`: images pooled to at most `side`², standardised columns of tables."""

    def pooled(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, (min(side, x.shape[2]), min(side, x.shape[3]))) if x.dim() == 4 else x

    x = torch.cat([pooled(block).flatten(1) for block in finite_blocks(inputs, rows)])
    largest = x.abs().amax(0)
    x = x - x.mean(0)
    if len(inputs.shape) == 3:
        return x
    deviation = x.double().square().mean(0).sqrt()  # float32 would lose the squares of small values
    constant = is_constant(deviation, largest, x.dtype)
    return torch.where(constant, torch.zeros_like(x), (x / deviation.masked_fill(constant, 1.0)).to(x.dtype))


def finite_blocks(inputs: Rows, rows: Tensor) -> Iterator[Tensor]:
    """Inputs at `rows` in blocks of float32, with 0 for NaN and infinity."""
    for block in rows.split(block_rows(inputs)):
        yield torch.nan_to_num(inputs.take(block).float(), posinf=0.0, neginf=0.0)


def leave_one_out(x: Tensor, targets: Tensor, rng: Generator) -> Iterator[Tensor]:
    r"""Leave-one-out scores `[N, C]` of ridge regressions of `targets` on `x`.

    With hat matrix $H$ the score is $(\hat y_i - H_{ii} y_i) / (1 - H_{ii})$; there is one regression for each width of
    the kernel and each ridge.
    """
    count = len(x)
    middle = x[torch.randperm(count, generator=rng)[:COLUMNS]]
    distance = torch.cdist(x, middle).square()
    scale = distance.median().clamp_min(1e-12)
    inner = torch.cdist(middle, middle).square()
    mean = targets.mean(0)
    for width in WIDTHS:
        values, vectors = torch.linalg.eigh(torch.exp(-inner / (2 * width * scale)).double())
        large = values > 1e-6 * values.max()
        features = torch.exp(-distance / (2 * width * scale)).double() @ (vectors[:, large] / values[large].sqrt())
        features = features - features.mean(0)
        power, axes = torch.linalg.eigh(features.T @ features)
        along = features @ axes
        moment, squares = along.T @ (targets - mean), along.square()
        for ridge in RIDGES:
            weight = 1 / (power.clamp_min(0) + ridge)
            hat = (squares @ weight + 1 / count).clamp_max(1 - 1e-6)[:, None]
            yield (mean + along @ (moment * weight[:, None]) - targets * hat) / (1 - hat)


def lapse_curve(own: Tensor, classes: int) -> Tensor:
    r"""Log likelihood $\sum_i \log((1-q) s_i + q/C)$ for every lapse rate q of the grid; `own` are the $s_i$ `[N]`.

    >>> certain = torch.cat([torch.ones(90), torch.zeros(10)])  # 10 % of labels contradict the model: q(C−1)/C = 0.1
    >>> round(float(LAPSES[lapse_curve(certain, 2).argmax()]), 3)
    0.2
    """
    return ((1 - LAPSES) * own[:, None] + LAPSES / classes).clamp_min(1e-30).log().double().sum(0).float()


def confident_joint(p: Tensor, y: Tensor) -> Tensor:
    """Joint shares `[C, C]` of label and counted class, from probabilities `[N, C]` and labels `[N]`; their sum is 1.

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.9, 0.1]])
    >>> confident_joint(p, torch.tensor([0, 0, 1, 1])).tolist()
    [[0.5, 0.0], [0.25, 0.25]]
    """
    classes = p.shape[1]
    sizes = torch.bincount(y, minlength=classes)
    own = torch.zeros(classes).index_add_(0, y, p.gather(1, y[:, None])[:, 0].float())
    confident = p >= (own / sizes.clamp_min(1)) * (1 - 1e-6)
    counted = torch.where(confident, p, torch.full_like(p, -1.0)).argmax(1)
    used = confident.any(1)
    pairs = torch.bincount(y[used] * classes + counted[used], minlength=classes**2).view(classes, classes).float()
    pairs += torch.diag((pairs.sum(1) == 0).float())  # a class without a confident sample keeps its labels
    return pairs / pairs.sum(1, keepdim=True) * sizes[:, None] / len(y)


def balanced_skill(predicted: Tensor, y: Tensor, classes: int) -> float:
    """Mean recall of the classes, scaled to 0 at chance (1/C) and 1 without error.

    >>> balanced_skill(torch.tensor([0, 0, 0]), torch.tensor([0, 0, 1]), 2)
    0.0
    """
    sizes = torch.bincount(y, minlength=classes)
    recall = torch.bincount(y[predicted == y], minlength=classes) / sizes.clamp_min(1).double()
    present = recall[sizes > 0]
    return float((present.mean() - 1 / len(present)) / (1 - 1 / max(2, len(present))))


def _suspects(clean: Tensor, y: Tensor, rows: Tensor, names: list[str]) -> tuple[Suspect, ...]:
    top, likely = clean.max(1)
    margin = top - clean.gather(1, y[:, None])[:, 0]
    order = torch.argsort(margin, descending=True, stable=True)[:SUSPECTS]
    return tuple(
        Suspect(int(rows[i]), names[int(y[i])], names[int(likely[i])]) for i in order.tolist() if margin[i] > 0
    )
