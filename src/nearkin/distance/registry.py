"""Registry of all measures by name; smaller is nearer for all of them.

Scores whose papers say "larger is better" are negated. Measures use the target's training set only, never its test set.
To add one, write a formula and an entry here: commands, help, reports and documentation are derived from it.
"""

from collections.abc import Callable, Mapping

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.events import Work
from nearkin.core.types import Params
from nearkin.distance.baselines.dataset import fid, mmd
from nearkin.distance.baselines.frozen_features import cka, kernel_evidence
from nearkin.distance.baselines.gradient import gradient_norm
from nearkin.distance.baselines.hscore import hscore
from nearkin.distance.baselines.leep import leep, nce
from nearkin.distance.baselines.linear_head import cross_validated_loss, fitted_head
from nearkin.distance.baselines.logme import logme, logme_regression
from nearkin.distance.baselines.neighbours import knn_accuracy, knn_r2
from nearkin.distance.baselines.order import random_value
from nearkin.distance.baselines.task2vec import embedding_asymmetric, embedding_distance
from nearkin.distance.fisher_based.between_tasks import FrechetDistance
from nearkin.distance.forecasting.reach import PredictedSteps
from nearkin.distance.information.static_distance import ComplexityDistance
from nearkin.distance.measure import CLASSES, LABELLED, VALUES, Formula, Measure, Need, at_once, of_view
from nearkin.distance.pair import Pair
from nearkin.distance.short_finetune import ShortFinetune
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.fisher.tangent import tangent_kernel
from nearkin.nets.heads import HEAD_START, with_head

KERNEL_SAMPLES = 150  # of a tangent kernel, as in benchmarks/prediction.py

DEFAULT = "short-finetune"
"""Measure by which `solve` ranks sources, and default of a comparison that names none.

`near` asks a question instead (`distance.questions`), whose default combines other measures.
"""

STRUCTURE = "frechet"
"""Default for search spaces and maps: compares what networks have learned, not how well they transfer."""


def _logme(pair: Pair) -> float:
    features, y = pair.view.train_features, pair.view.train.y
    return -logme_regression(features, y) if pair.num_classes is None else -logme(features, y, pair.num_classes)


def _knn(view: SourceOnTarget) -> float:
    score = knn_accuracy if view.task.likelihood == "categorical" else knn_r2
    return -score(view.feature_table, view.train.y)


def _evidence(view: SourceOnTarget) -> float:
    """Uses one output of a drawn head, since outputs differ by their rows of the head only."""
    model = with_head(view.model, 1, 0, view.head).eval()
    x, y = (values[:KERNEL_SAMPLES] for values in view.train)
    return -kernel_evidence(tangent_kernel(model, x, outputs=0), y)


def _head(pair: Pair) -> float:
    view = pair.view
    return cross_validated_loss(view.train_features, view.train.y, pair.task.form, num_classes=pair.num_classes)


def _gradient_norm(pair: Pair) -> float:
    view, form = pair.view, pair.task.form
    head = fitted_head(view.train_features, view.train.y, form, num_classes=pair.num_classes)
    return gradient_norm(view.model, *view.train, form, head)


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
            "short-finetune", "mean loss of a short fine-tuning, few and large steps, all sources on the same batches",
            ShortFinetune(), TUNED, title="a short fine-tuning", aliases=("kin",),
            about="Mean loss over a short fine-tuning run of the kin’s network on the target",
        ),
        Measure(
            "short-finetune-drawn", "short-finetune from eight heads that `nn.Linear` draws, to predict fine-tuning "
            "from such a head",
            ShortFinetune(head="drawn"), TUNED, aliases=("kin-drawn",),
        ),
        Measure(
            "frechet", "Fréchet distance between the Fisher information of both networks, in [0, 1]",
            FrechetDistance(), (Need.WEIGHTS, Need.TARGET_NETWORK, Need.LABELS), title="Fréchet distance",
            about="Distance between the Fisher information of the source’s network and of the target’s own, both on "
            "the target’s training data and at unit trace: 0 if both are equal, 1 if they share no weight",
            beside=("logme",), screens=True,
        ),
        Measure(
            "logme", "− log evidence per sample of a linear model on the features (You et al. 2021)",
            at_once(_logme), PROBED, LABELLED, VALUES, title="LogME",
            about="Minus the log evidence per sample of a linear model on the kin’s features",
        ),
        Measure(
            "leep", "− log expected empirical prediction (Nguyen et al. 2020)",
            of_view(lambda view: -leep(view.train_outputs.softmax(-1), view.train.y, len(view.task.classes))),
            ANSWERED, CLASSES, CLASSES,
        ),
        Measure(
            "nce", "entropy of the labels given the source's predictions (Tran et al. 2019)",
            of_view(lambda view: -nce(view.train_outputs.argmax(-1), view.train.y)), ANSWERED, CLASSES, CLASSES,
        ),
        Measure(
            "hscore", "− H-score (Bao et al. 2019), covariance shrunk",
            of_view(lambda view: -hscore(view.feature_table, view.train.y, shrinkage=True)), PROBED, CLASSES, VALUES,
        ),
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
            "gradnorm", "norm of the backbone's gradient under a fitted head",
            at_once(_gradient_norm), (Need.WEIGHTS, *PROBED), VALUES, VALUES,
        ),
        Measure(
            "task2vec", "cosine distance of Fisher embeddings in one network (Achille et al. 2019)",
            _of_embeddings(embedding_distance), EMBEDDED, VALUES, VALUES,
        ),
        Measure(
            "task2vec-asymmetric", "task2vec minus 0.15 times the source's distance from the trivial task",
            _of_embeddings(embedding_asymmetric), EMBEDDED, VALUES, VALUES,
        ),
        Measure(
            "evidence", "− log evidence of a Gaussian process with the tangent kernel, 150 samples",
            of_view(_evidence), TUNED, LABELLED, VALUES,
        ),
        Measure(
            "hscore-adjusted", "− H-score, covariance shrunk, adjusted for chance, for features of any width",
            of_view(lambda view: -hscore(view.feature_table, view.train.y, shrinkage=True, adjusted=True)),
            PROBED, CLASSES, VALUES,
        ),
        Measure(
            "cka-adjusted", "1 − alignment of features and labels, adjusted for chance, for features of any width",
            of_view(lambda view: 1 - cka(view.feature_table, view.train.y, adjusted=True)), PROBED, LABELLED, VALUES,
        ),
        Measure(
            "cka", "1 − centred alignment of features and labels (Kornblith et al. 2019)",
            of_view(lambda view: 1 - cka(view.feature_table, view.train.y)), PROBED, LABELLED, VALUES,
        ),
        Measure(
            "mmd", "squared maximum mean discrepancy of the features of both data sets (Gretton et al. 2012)",
            at_once(lambda pair: mmd(pair.source_features, pair.view.train_features)), BOTH_DATA, VALUES, VALUES,
        ),
        Measure(
            "fid", "Fréchet distance of Gaussians of the features of both data sets (Heusel et al. 2017)",
            at_once(lambda pair: fid(pair.source_features, pair.view.train_features)), BOTH_DATA, VALUES, VALUES,
        ),
        Measure(
            "reach", "predicted steps of fine-tuning until the loss is a fifth of that of a constant answer",
            PredictedSteps(), TUNED, CLASSES, VALUES, title="predicted steps",
            about="Steps of fine-tuning until the loss is a fifth of that of a constant answer, predicted from a short "
            "run and from recorded runs",
        ),
        Measure(
            "complexity", "nats that the target adds to the source's complexity, C(source ∪ target) − C(source)",
            ComplexityDistance(), (Need.WEIGHTS, Need.SOURCE_DATA, Need.LABELS), VALUES, VALUES,
            title="static distance",
            about="Complexity that the target adds to the source, in nats: loss and information in the weights of one "
            "network for both tasks, minus those of the source alone (Achille et al. 2019)",
        ),
        Measure("source", "− the source's metric on its own task", at_once(lambda pair: -pair.metric), (Need.METRIC,)),
        Measure(
            "random", "a random number that depends on the names of both tasks: the chance level of all measures",
            at_once(lambda pair: random_value(pair.source.name, pair.task.name)), (),
        ),
        Measure(
            "finetune", "mean loss over 200 steps of fine-tuning, from eight heads as `solve` starts from one",
            ShortFinetune(steps=200, batch_size=32, learning_rate=1e-3, head=HEAD_START), TUNED,
        ),
    )
}  # fmt: skip
"""All measures by name."""

_BY_NAME = {name: measure for measure in MEASURES.values() for name in (measure.name, *measure.aliases)}


def measure_named(name: str) -> Measure:
    """The measure of a name or an alias.

    >>> measure_named("kin").name
    'short-finetune'
    """
    if name not in _BY_NAME:
        raise OptionError(f"unknown measure {name!r}; choose one of {', '.join(MEASURES)}")
    return _BY_NAME[name]


def current_name(name: str) -> str:
    """The present name of a measure that is stored under a name or an alias; unknown names are returned unchanged.

    >>> current_name("kin"), current_name("frechet"), current_name("own measure")
    ('short-finetune', 'frechet', 'own measure')
    """
    return _BY_NAME[name].name if name in _BY_NAME else name


def require_target(measure: Measure, likelihood: str) -> None:
    """Refuse a target that a measure does not support, and name the measures that do."""
    others = [other.name for other in MEASURES.values() if likelihood in other.targets]
    require(
        likelihood in measure.targets,
        f"the measure {measure.name} supports {' and '.join(measure.targets)} targets, got a {likelihood} one; use "
        f"{', '.join(others)}",
        MismatchError,
    )


def title_of(name: str) -> str:
    """A measure's title with its name; the name alone if it has no title or is not registered.

    >>> title_of("frechet"), title_of("leep")
    ('Fréchet distance (frechet)', 'leep')
    """
    measure = _BY_NAME.get(name)
    return f"{measure.title} ({measure.name})" if measure is not None and measure.title else current_name(name)


def about(name: str) -> str:
    """Meaning of a measure's values, as a sentence; empty for a name that is not registered.

    >>> about("source")
    "− the source's metric on its own task."
    """
    measure = _BY_NAME.get(name)
    return f"{measure.about or measure.summary}." if measure is not None else ""
