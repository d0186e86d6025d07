"""Measures by name; smaller is nearer for all of them.

Scores whose papers say "larger is better" are negated. Measures see the target's training set only, never its test set.
To add one, write a formula and an entry: commands, help, reports and the documentation take everything else from here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.events import Work
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
from nearkin.distance.fisher_based.between_tasks import FrechetDistance
from nearkin.distance.kin_score import Pace, Start, kin_score
from nearkin.distance.measure import CLASSES, LABELLED, VALUES, Formula, Measure, Need, at_once, of_view
from nearkin.distance.pair import Pair
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.fisher.tangent import tangent_kernel
from nearkin.nets.heads import with_head

KERNEL_SAMPLES = 150  # of a tangent kernel, as in benchmarks/prediction.py

DEFAULT = "kin"
"""Of `near`: predicts the cost of fine-tuning best (`benchmarks/prediction.py`)."""

STRUCTURE = "frechet"
"""Of search spaces and maps: compares what networks have learned, not how well they transfer."""


@dataclass(frozen=True, kw_only=True)
class ShortFinetune(Pace):
    """Mean loss over a short fine-tuning run of the source's network.

    Attributes:
        steps: of Adam.
        batch_size: samples a step; all samples where there are fewer.
        learning_rate: of Adam.
        head: new last layer: `zero` or `drawn`.
    """

    head: Start = "zero"

    def __call__(self, pair: Pair) -> Work[float]:
        """The loss of one pair."""
        view, task = pair.view, pair.task
        return (
            yield from kin_score.work(
                view.model,
                *view.train,
                num_outputs=task.num_outputs,
                likelihood=task.likelihood,
                head=self.head,
                pace=self,
            )
        )


def _logme(pair: Pair) -> float:
    features, y = pair.view.train_features, pair.view.train.y
    return -logme_regression(features, y) if pair.num_classes is None else -logme(features, y, pair.num_classes)


def _leep(view: SourceOnTarget) -> float:
    return -leep(view.train_outputs.softmax(-1), view.train.y, len(view.task.classes))


def _nce(view: SourceOnTarget) -> float:
    return -nce(view.train_outputs.argmax(-1), view.train.y)


def _hscore(view: SourceOnTarget) -> float:
    return -hscore(view.train_features, view.train.y, shrinkage=True)


def _knn(view: SourceOnTarget) -> float:
    score = knn_accuracy if view.task.likelihood == "categorical" else knn_r2
    return -score(view.train_features, view.train.y)


def _cka(view: SourceOnTarget) -> float:
    return 1 - cka(view.train_features, view.train.y)


def _evidence(view: SourceOnTarget) -> float:
    """Of one output of a drawn head: outputs differ by their rows of the head alone."""
    model = with_head(view.model, 1, 0, view.head).eval()
    x, y = (values[:KERNEL_SAMPLES] for values in view.train)
    return -kernel_evidence(tangent_kernel(model, x, outputs=0), y)


def _head(pair: Pair) -> float:
    view = pair.view
    return cross_validated_loss(view.train_features, view.train.y, pair.task.form, num_classes=pair.num_classes)


def _gradient_norm(pair: Pair) -> float:
    view, form = pair.view, pair.task.form
    fitted = fitted_head(view.train_features, view.train.y, form, num_classes=pair.num_classes)
    return gradient_norm(view.model, *view.train, form, fitted)


def _of_embeddings(distance: Callable[[Params, Params], float]) -> Formula:
    def formula(pair: Pair) -> Work[float]:
        return distance(*(yield from pair.embeddings()))

    return formula


TUNED = (Need.WEIGHTS, Need.LABELS)
PROBED = (Need.FEATURES, Need.LABELS)
ANSWERED = (Need.OUTPUTS, Need.LABELS)
EMBEDDED = (Need.START, Need.SOURCE_DATA, Need.LABELS)
BOTH_DATA = (Need.FEATURES, Need.SOURCE_DATA)

MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            "kin", "mean loss of a short fine-tuning, few and large steps, all sources on the same batches",
            ShortFinetune(), TUNED, title="a short fine-tuning", aliases=("short-finetune",),
            about="Mean loss over a short fine-tuning of the kin’s network on the target",
        ),
        Measure(
            "kin-drawn", "as kin, from eight heads drawn as `nn.Linear` draws them: for fine-tuning from such a head",
            ShortFinetune(head="drawn"), TUNED,
        ),
        Measure(
            "frechet", "Fréchet distance between the Fisher information of both networks, in [0, 1]",
            FrechetDistance(), (Need.WEIGHTS, Need.TARGET_NETWORK, Need.LABELS), title="Fréchet distance",
            about="Distance between the Fisher information of the source’s network and of the target’s own, both on "
            "the target’s training data and at unit trace: 0 where both rest on the same weights in the same measure, "
            "1 where they share none",
            beside=("logme",), screens=True,
        ),
        Measure(
            "logme", "− log evidence of a linear model on the features, a sample (You et al. 2021)",
            at_once(_logme), PROBED, LABELLED, VALUES, title="LogME",
            about="Minus the log evidence of a linear model on the kin’s features, a sample",
        ),
        Measure(
            "leep", "− log expected empirical prediction (Nguyen et al. 2020)",
            of_view(_leep), ANSWERED, CLASSES, CLASSES,
        ),
        Measure(
            "nce", "entropy of the labels given the source's answers (Tran et al. 2019)",
            of_view(_nce), ANSWERED, CLASSES, CLASSES,
        ),
        Measure("hscore", "− H-score (Bao et al. 2019), covariance shrunk", of_view(_hscore), PROBED, CLASSES, VALUES),
        Measure(
            "knn", "− leave-one-out accuracy (R²) of five neighbours in the features",
            of_view(_knn), PROBED, LABELLED, VALUES,
        ),
        Measure(
            "head", "cross-validated loss of a linear head on the features, five folds",
            at_once(_head), PROBED, VALUES, VALUES, title="a linear head",
            about="Loss of a linear head on the kin’s features",
        ),
        Measure(
            "gradnorm", "norm of the backbone's gradient once a head is fitted",
            at_once(_gradient_norm), (Need.WEIGHTS, *PROBED), VALUES, VALUES,
        ),
        Measure(
            "task2vec", "cosine distance of Fisher embeddings in one network (Achille et al. 2019)",
            _of_embeddings(embedding_distance), EMBEDDED, VALUES, VALUES,
        ),
        Measure(
            "task2vec-asymmetric", "task2vec less 0.15 times the source's distance from the trivial task",
            _of_embeddings(embedding_asymmetric), EMBEDDED, VALUES, VALUES,
        ),
        Measure(
            "evidence", "− log evidence of a Gaussian process with the tangent kernel, 150 samples",
            of_view(_evidence), TUNED, LABELLED, VALUES,
        ),
        Measure(
            "cka", "1 − centred alignment of features and labels (Kornblith et al. 2019)",
            of_view(_cka), PROBED, LABELLED, VALUES,
        ),
        Measure(
            "mmd", "squared maximum mean discrepancy of the features of both data sets (Gretton et al. 2012)",
            at_once(lambda pair: mmd(pair.source_features, pair.view.train_features)), BOTH_DATA, VALUES, VALUES,
        ),
        Measure(
            "fid", "Fréchet distance of Gaussians of the features of both data sets (Heusel et al. 2017)",
            at_once(lambda pair: fid(pair.source_features, pair.view.train_features)), BOTH_DATA, VALUES, VALUES,
        ),
        Measure("source", "− the source's metric on its own task", at_once(lambda pair: -pair.metric), (Need.METRIC,)),
        Measure(
            "random", "a number drawn by the names of both tasks: what every other measure must beat",
            at_once(lambda pair: random_value(pair.source.name, pair.task.name)), (),
        ),
        Measure(
            "finetune", "mean loss over 200 steps of fine-tuning",
            ShortFinetune(steps=200, batch_size=32, learning_rate=1e-3, head="drawn"), TUNED,
        ),
    )
}  # fmt: skip
"""By name."""

_NAMED = {name: measure for measure in MEASURES.values() for name in (measure.name, *measure.aliases)}


def measure_named(name: str) -> Measure:
    """The measure of a name or an alias.

    >>> measure_named("short-finetune").name
    'kin'
    """
    if name not in _NAMED:
        raise OptionError(f"unknown measure {name!r}; choose one of {', '.join(MEASURES)}")
    return _NAMED[name]


def require_target(measure: Measure, likelihood: str) -> None:
    """Refuse a target that a measure does not know, and name the measures that do."""
    others = [other.name for other in MEASURES.values() if likelihood in other.targets]
    require(
        likelihood in measure.targets,
        f"the measure {measure.name} knows targets that are {' or '.join(measure.targets)}, not {likelihood}; use "
        f"{', '.join(others)}",
        MismatchError,
    )


def title_of(name: str) -> str:
    """A measure's title with its name; the name alone where it has no title or is not registered.

    >>> title_of("frechet"), title_of("leep")
    ('Fréchet distance (frechet)', 'leep')
    """
    measure = _NAMED.get(name)
    return f"{measure.title} ({name})" if measure is not None and measure.title else name


def about(name: str) -> str:
    """What a measure's values mean, as a sentence; empty for a name that is not registered.

    >>> about("source")
    "− the source's metric on its own task."
    """
    measure = _NAMED.get(name)
    return f"{measure.about or measure.summary}." if measure is not None else ""
