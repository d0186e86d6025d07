"""Measures of how near a source is to a target, by the names that people use; smaller is nearer for all of them.

Scores whose papers say "larger is better" are negated. Each looks at the target's training part through the source's
network (`Sight`), whose features are computed once for all of them. None reads the target's test part.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.types import Params
from nearkin.distance.baselines.closed_form import cka, kernel_evidence
from nearkin.distance.baselines.dataset import fid, mmd
from nearkin.distance.baselines.gradient import gradient_norm
from nearkin.distance.baselines.hscore import hscore
from nearkin.distance.baselines.leep import leep, nce
from nearkin.distance.baselines.linear_head import cross_validated_loss, fitted_head
from nearkin.distance.baselines.logme import logme, logme_regression
from nearkin.distance.baselines.neighbours import knn_accuracy, knn_r2
from nearkin.distance.baselines.order import random_value
from nearkin.distance.baselines.task2vec import embedding_asymmetric, embedding_distance
from nearkin.distance.kin_score import PACE, Pace, Start, kin_score
from nearkin.distance.source_on_target import Sight
from nearkin.fisher.tangent import tangent_kernel
from nearkin.nets.heads import with_head

KERNEL_SAMPLES = 150  # of a tangent kernel, as in benchmarks/prediction.py


@dataclass(frozen=True)
class Measure:
    """A way to tell how near a source is.

    Attributes:
        name: in commands and tables.
        says: what its value is, in a few words.
        value: of one sight; smaller is nearer.
        forms: likelihoods of the target that it knows.
        source: likelihoods of the source that it knows.
        needs: what of a sight it needs beside network and target: `source_task`, `embeddings`, or nothing.
    """

    name: str
    says: str
    value: Callable[[Sight], float]
    forms: tuple[str, ...] = ("categorical",)
    source: tuple[str, ...] = ("categorical", "gaussian", "heteroscedastic")
    needs: Literal["", "source_task", "embeddings"] = ""

    def __call__(self, sight: Sight) -> float:
        """The value, checked."""
        self.require_known(sight.task.likelihood)
        require(
            sight.own.name in self.source,
            f"the measure {self.name} knows sources that are {' or '.join(self.source)}, not {sight.own.name}",
            MismatchError,
        )
        found = self.value(sight)
        require(
            math.isfinite(found),
            f"the measure {self.name} of {sight.task.name} is {found}; the source's weights diverged: add it anew",
            MismatchError,
        )
        return found

    def require_known(self, form: str) -> None:
        """Refuse targets of a likelihood that the measure does not know."""
        require(
            form in self.forms,
            f"the measure {self.name} knows targets that are {' or '.join(self.forms)}, not {form}; use frechet",
            MismatchError,
        )


def _logme(sight: Sight) -> float:
    features, y = sight.train_features, sight.train.y
    if sight.task.likelihood == "categorical":
        return -logme(features, y, len(sight.task.classes))
    return -logme_regression(features, y)


def _leep(sight: Sight) -> float:
    return -leep(sight.train_outputs.softmax(-1), sight.train.y, len(sight.task.classes))


def _nce(sight: Sight) -> float:
    return -nce(sight.train_outputs.argmax(-1), sight.train.y)


def _hscore(sight: Sight) -> float:
    return -hscore(sight.train_features, sight.train.y, shrinkage=True)


def _knn(sight: Sight) -> float:
    score = knn_accuracy if sight.task.likelihood == "categorical" else knn_r2
    return -score(sight.train_features, sight.train.y)


def _cka(sight: Sight) -> float:
    return 1 - cka(sight.train_features, sight.train.y)


def _evidence(sight: Sight) -> float:
    """Of one output of a drawn head: outputs differ by their rows of the head alone."""
    model = with_head(sight.model, 1, 0, sight.head).eval()
    x, y = (part[:KERNEL_SAMPLES] for part in sight.train)
    return -kernel_evidence(tangent_kernel(model, x, outputs=0), y)


def _mmd(sight: Sight) -> float:
    return mmd(sight.source_features, sight.train_features)


def _fid(sight: Sight) -> float:
    return fid(sight.source_features, sight.train_features)


def _num_classes(sight: Sight) -> int | None:
    return len(sight.task.classes) if sight.task.likelihood == "categorical" else None


def _head(sight: Sight) -> float:
    y, classes = sight.train.y, _num_classes(sight)
    return cross_validated_loss(sight.train_features, y, sight.task.form, num_classes=classes)


def _gradient_norm(sight: Sight) -> float:
    x, y = sight.train
    fitted = fitted_head(sight.train_features, y, sight.task.form, num_classes=_num_classes(sight))
    return gradient_norm(sight.model, x, y, sight.task.form, fitted)


def _task2vec(sight: Sight) -> float:
    return embedding_distance(*_embeddings(sight))


def _task2vec_asymmetric(sight: Sight) -> float:
    return embedding_asymmetric(*_embeddings(sight))


def _embeddings(sight: Sight) -> tuple[Params, Params]:
    if sight.embeddings is None:
        raise MismatchError("task2vec compares embeddings of both tasks in one probe network, which are not given")
    return sight.embeddings


def _source_metric(sight: Sight) -> float:
    if sight.metric is None:
        raise MismatchError("the measure source wants the source's metric on its own task, which is not known")
    return -sight.metric


def _random(sight: Sight) -> float:
    return random_value(sight.source, sight.task.name)


def _tuned(sight: Sight, head: Start, pace: Pace) -> float:
    task = sight.task
    return kin_score(
        sight.model, *sight.train, num_outputs=task.num_outputs, likelihood=task.likelihood, head=head, pace=pace
    )


def _kin(sight: Sight) -> float:
    return _tuned(sight, "zero", PACE)


def _drawn_kin(sight: Sight) -> float:
    return _tuned(sight, "drawn", PACE)


def _finetune(sight: Sight) -> float:
    return _tuned(sight, "drawn", SLOW)


SLOW = Pace(steps=200, batch_size=32, learning_rate=1e-3)
REAL = ("categorical", "gaussian", "heteroscedastic")
ALL = (*REAL, "dense", "language")
MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("kin", "mean loss over a fine-tuning in fast motion, head of zeros", _kin, ALL, ALL),
        Measure("kin-drawn", "the same, mean over drawn heads", _drawn_kin, ALL, ALL),
        Measure(
            "logme", "− log evidence of a linear model on the features, a sample", _logme, ("categorical", "gaussian")
        ),
        Measure("leep", "− log expected empirical prediction", _leep, source=("categorical",)),
        Measure("nce", "conditional entropy of labels given the source's answers", _nce, source=("categorical",)),
        Measure("hscore", "− H-score of the features", _hscore),
        Measure(
            "knn", "− leave-one-out accuracy (R²) of five neighbours in the features", _knn, ("categorical", "gaussian")
        ),
        Measure("head", "cross-validated loss of a linear head on the features", _head, REAL),
        Measure("gradnorm", "gradient of the backbone once a head is fitted", _gradient_norm, REAL),
        Measure("task2vec", "cosine distance of Fisher embeddings in one probe", _task2vec, REAL, needs="embeddings"),
        Measure(
            "task2vec-asymmetric", "the same less 0.15 times the source's distance from the trivial task",
            _task2vec_asymmetric, REAL, needs="embeddings",
        ),
        Measure(
            "evidence", "− log evidence of the tangent kernel, a sample and a column", _evidence,
            ("categorical", "gaussian"),
        ),
        Measure("cka", "1 − alignment of the features with the targets", _cka, ("categorical", "gaussian")),
        Measure("mmd", "squared MMD of the source's features on both data sets", _mmd, REAL, needs="source_task"),
        Measure("fid", "Fréchet distance of Gaussians of these features", _fid, REAL, needs="source_task"),
        Measure("source", "− the source's metric on its own task", _source_metric, ALL, ALL),
        Measure("random", "nothing: the floor that others must clear", _random, ALL, ALL),
        Measure("finetune", "mean loss over 200 steps of fine-tuning", _finetune, ALL, ALL),
    )
}  # fmt: skip
"""By name. `frechet` needs the target's own network too and is measured by whoever has both (`nearkin.zoo`)."""


def measure_named(name: str) -> Measure:
    """The measure of that name.

    >>> measure_named("logme").says
    '− log evidence of a linear model on the features, a sample'
    """
    if name not in MEASURES:
        raise OptionError(f"unknown measure {name!r}; choose one of {', '.join(('frechet', *MEASURES))}")
    return MEASURES[name]
