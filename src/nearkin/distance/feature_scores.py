r"""Scores of features for a target, with standard errors, from the measures that read features and labels only.

The standard error is that of the jackknife over G groups of samples (Efron and Stein 1981, "The Jackknife Estimate of
Variance"): with the score $s_{(g)}$ without group g,

$$\widehat{\mathrm{se}} = \sqrt{\frac{G - 1}{G} \sum_g \left(s_{(g)} - \bar s\right)^2}$$

It measures the variation over samples of the target, not that of fine-tuning.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.events import Work
from nearkin.distance.baselines.feature_table import Features, FeatureTable
from nearkin.distance.measure import Measure, Need
from nearkin.distance.pair import Pair, Source, Target
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.tasks.examples import Batch
from nearkin.tasks.task import Task

GROUPS = 5
_READ = {Need.FEATURES, Need.LABELS}


@dataclass(frozen=True, eq=False)
class KnownFeatures(SourceOnTarget):
    """Features that were computed before, with their targets.

    Attributes:
        train: features in place of inputs, and targets.
        train_features: `[N, D]`.
        feature_table: the features, with what several scores compute from them.
    """

    train: Batch = field(kw_only=True)
    train_features: Tensor = field(kw_only=True)
    feature_table: FeatureTable = field(kw_only=True)

    @classmethod
    def of(cls, table: FeatureTable, y: Tensor, task: Task) -> "KnownFeatures":
        """Features of training samples of a task, with their targets."""
        batch = Batch(table.values, y)
        return cls(nn.Identity(), task, task.form, len(y), train=batch, train_features=batch.x, feature_table=table)


@dataclass(frozen=True, eq=False)
class FeaturePair(Pair):
    """A target with known features, for measures that read nothing else."""

    view: SourceOnTarget = field(kw_only=True)

    @property
    def task(self) -> Task:
        """The target."""
        return self.target.task


def require_feature_measure(measure: Measure) -> None:
    """Refuse a measure that needs more than features and labels."""
    others = [str(need) for need in measure.needs if need not in _READ]
    require(
        not others,
        f"the measure {measure.name} needs {' and '.join(others)}, but networks of any kind are compared by features "
        f"and labels only; use logme, knn or hscore",
        OptionError,
    )


def feature_score(measure: Measure, features: Features, y: Tensor, task: Task) -> Work[float]:
    """The value of a measure for features `[N, D]` of training samples; smaller is better."""
    require_feature_measure(measure)
    require(
        task.likelihood in measure.targets,
        f"the measure {measure.name} supports {' and '.join(measure.targets)} targets, got a {task.likelihood} one; "
        f"use another measure",
        MismatchError,
    )
    view = KnownFeatures.of(FeatureTable.of(features), y, task)
    pair = FeaturePair(_NO_SOURCE, Target(task), samples=len(y), view=view)
    value = yield from measure.formula(pair)
    require(
        math.isfinite(value),
        f"the measure {measure.name} is {value} for these features; they are constant or too large",
        MismatchError,
    )
    return value


def _refused() -> "object":
    raise MismatchError("these features have no source network")


_NO_SOURCE = Source(
    name="features", network="", input_shape=(), likelihood="categorical", num_outputs=1, seed=0, trials=1,
    load=_refused,  # type: ignore[arg-type]
)  # fmt: skip


@dataclass(frozen=True)
class FeatureScores:
    """Values of measures for one candidate: with all samples, and without each group; smaller is better."""

    values: Mapping[str, float]
    without_group: Mapping[str, tuple[float, ...]]


def feature_scores(measures: Sequence[Measure], features: Tensor, y: Tensor, task: Task) -> Work[FeatureScores]:
    """Values of several measures with all samples, and without each of `GROUPS` groups of them."""
    require(
        bool(features.isfinite().all()),
        "some features are not finite; check the weights and the preprocessing of the network",
        MismatchError,
    )
    groups = sample_groups(y if task.likelihood == "categorical" else None, len(features))
    table = FeatureTable.of(features)
    values, without = {}, {measure.name: list[float]() for measure in measures}
    for measure in measures:
        values[measure.name] = yield from feature_score(measure, table, y, task)
    for group in range(GROUPS):
        kept = torch.nonzero(groups != group).flatten()
        part = table.chosen(kept)
        for measure in measures:
            without[measure.name].append((yield from feature_score(measure, part, y[kept], task)))
    return FeatureScores(values, {name: tuple(scores) for name, scores in without.items()})


def sample_groups(labels: Tensor | None, count: int) -> Tensor:
    """The group `[N]` of every sample, from 0 to `GROUPS − 1`; every class is spread evenly over them.

    >>> sample_groups(torch.tensor([0, 1, 0, 1, 0]), 5).tolist()
    [0, 3, 1, 4, 2]
    """
    order = torch.arange(count) if labels is None else labels.flatten()[:count].argsort(stable=True)
    groups = torch.empty(count, dtype=torch.int64)
    groups[order] = torch.arange(count) % GROUPS
    return groups


def jackknife_error(without_group: Sequence[float]) -> float:
    """Standard error from the values without each group.

    >>> round(jackknife_error([1.0, 2.0, 3.0]), 4)
    1.1547
    """
    values = torch.tensor(without_group, dtype=torch.float64)
    count = len(values)
    return float(((count - 1) / count * (values - values.mean()).square().sum()).sqrt())
