"""Contenders: which models are trained for a task, and how each is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from nearkin.core.clock import now
from nearkin.core.events import Work
from nearkin.core.rng import derived_seed
from nearkin.core.state import State, prefixed, restoring
from nearkin.nets.evaluate import evaluate
from nearkin.nets.functional import check
from nearkin.nets.heads import SCALE_SAMPLES, with_start
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.solved import FitFacts, Solved, fit_facts, fit_from, fit_state
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.training_loop import Fit, fit
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.named import network_string
from nearkin.search.networks.skeleton import Skeleton
from nearkin.solver.allocation import LEAST_STEPS
from nearkin.solver.closed import fit_closed_form
from nearkin.solver.encoder_head import with_fitted_head, with_head_weights
from nearkin.solver.result import Result
from nearkin.solver.simple.machines import costs
from nearkin.solver.simple.models import fit_simple
from nearkin.solver.sizing import SizedNetwork
from nearkin.solver.validation import ValidationOutputs, validation_outputs
from nearkin.tasks.batches import num_batches
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.task import Task
from nearkin.zoo.search import SearchDomain

HAND_MADE = {"vgg16": "VGG-16", "resnet18": "ResNet-18", "densenet121": "DenseNet-121"}
TITLES = {
    **HAND_MADE,
    "cnn": "CNN",
    "cnn-large": "large residual CNN",
    "lenet": "LeNet",
    "mlp": "multilayer perceptron",
}
WIDTHS = (0.0625, 0.125, 0.25, 0.5, 1.0)
USUAL_WIDTH = 0  # index of the width without a time limit
TABLE_NETWORKS = {"mlp": "mlp?hidden=128"}
CNNS = {"cnn": "cnn", "cnn-large": "cnn?residual=true&width=2"}
CHANNELS = (8, 16, 32, 48)
USUAL_CELLS = 1  # index among the networks of a cell without a time limit
MAP_SIDE = 8  # of feature maps in a search: about a second per cell
FINAL_SIDE = 16  # of feature maps in the final network
CURVE = 120  # points of a stored learning curve
VALIDATION = ("rows", "outputs", "targets")


@dataclass(frozen=True, eq=False, kw_only=True)
class Contender:
    """A model to be trained.

    Attributes:
        name: short name.
        title: name for readers.
        kind: one of `result.KINDS`.
        task: training data (`train`) and validation data (`test`), in its own input shape.
        domain: where its architecture is searched; None if it is known.
        method: of that search.
        networks: its network in growing size, one of which is chosen by time; empty for simple models and transfer.
        usual: index of the network without a time limit.
        recipe: recipe without a time limit (default: by the plan).
        source: trained network of a related task to start from, if any.
        start: its own network after the first training, to continue from, if any.
        seed: of weights and batch order.
        seconds: time limit of its training, or of each of its networks.
        budget: time limit of the run, which names its stored state in place of `seconds`; None: `seconds` does.
        cross_validated: whether it is scored by cross-validation on all training data (simple models).
        sized: its network and recipe, once chosen.
        fixed: settings of an earlier fit, for simple models and transfer.
        rows: positions of its validation samples in the training set (default: those of its split).
        extra: further facts for its result: genotype, search, settings.
        metric: by which a simple model chooses its settings (default: accuracy or R²).
        whole: its task with all training data and the test set (default: the target in its input shape).
        encoder: adopted network whose features are the inputs of its task, if any.
        encoder_seconds: seconds of that network for one sample, if time is limited.
        model_facts: facts of its model (default: those of its task).
        pretrained: whether its source is an adopted network: it starts with a head that is fitted to its features.
        favoured: why it gets most of the time, if a check of the data says so.
    """

    name: str
    title: str
    kind: str
    task: Task
    domain: SearchDomain | None = None
    method: str = ""
    networks: tuple[str, ...] = ()
    usual: int = 0
    recipe: Recipe | None = None
    source: Solved | None = None
    start: Solved | None = None
    seed: int = 0
    seconds: float | None = None
    budget: float | None = None
    cross_validated: bool = False
    sized: SizedNetwork | None = None
    fixed: Mapping[str, Any] | None = None
    rows: Tensor | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    metric: str = ""
    whole: Task | None = None
    encoder: Solved | None = None
    encoder_seconds: float = 0.0
    model_facts: Mapping[str, Any] | None = None
    pretrained: bool = False
    favoured: str = ""

    @property
    def reads_target(self) -> bool:
        """Whether its model reads the inputs of the target as they are, so that an ensemble can hold it."""
        return self.encoder is None and self.model_facts is None

    def whole_of(self, target: Task) -> Task:
        """The target with the inputs of this contender."""
        return fitted_to(target, self.task.input_shape) if self.whole is None else self.whole

    def facts(self) -> dict[str, Any]:
        """Everything that decides its training, as JSON values."""
        origin = None if self.source is None else [self.source.name, self.source.network, self.source.metric]
        return {
            "name": self.name,
            "data": self.task.fingerprint(),
            "pace": self.sized and self.sized.to_dict(),
            "source": origin,
            **({} if self.start is None else {"start": [self.start.network, self.start.metric]}),
            "seed": self.seed,
            "seconds": (self.budget or self.seconds) if self.sized is None and self.fixed is None else None,
            **({"cross_validated": True} if self.cross_validated else {}),
            "fixed": None if self.fixed is None else dict(self.fixed),
            **({"metric": self.metric} if self.metric else {}),
            **({"pretrained": True} if self.pretrained else {}),
        }


class TrainingFacts(TypedDict):
    """Facts of a stored training, beside its tensors."""

    network: str
    fit: FitFacts
    settings: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model.

    Attributes:
        contender: what was trained.
        solved: its weights.
        settings: what was chosen: steps, regularisation.
        validation: outputs for held-out samples.
        pass_seconds: time to predict one sample; 0 if not measured.
    """

    contender: Contender
    solved: Solved
    settings: Mapping[str, Any]
    validation: ValidationOutputs
    pass_seconds: float = 0.0


def training_state(
    network: str, fit: Fit, settings: Mapping[str, Any], validation: ValidationOutputs | None = None
) -> State:
    """State of a finished training."""
    facts = {"network": network, "fit": fit_facts(fit), "settings": dict(settings)}
    kept = {} if validation is None else {name: getattr(validation, name) for name in VALIDATION}
    return State({**fit_state(fit).tensors, **prefixed("validation", kept)}, facts)


def trained_network(state: State, contender: Contender) -> tuple[Solved, dict[str, Any]]:
    """Trained network and settings of a stored training."""
    facts = state.read(TrainingFacts)
    fit = fit_from(state, facts["fit"])
    task, about = contender.task, contender.model_facts
    seen = task.facts() if about is None else about
    return Solved(task.name, facts["network"], seen, contender.seed, (fit,)), facts["settings"]


def trained_from(state: State, contender: Contender, rows: Tensor) -> Trained:
    """The trained model of a stored training; its validation samples are at these rows of the training set."""
    task = contender.task
    solved, settings = trained_network(state, contender)
    kept = state.section("validation")
    if kept:
        with restoring(state.origin):
            validation = ValidationOutputs(kept["rows"], kept["outputs"], kept["targets"], task.form)
        return Trained(contender, solved, settings, validation, contender.encoder_seconds)
    model, begun = solved.model(), now()
    validation = validation_outputs(model, task.test, rows, task.form)
    return Trained(contender, solved, settings, validation, contender.encoder_seconds + (now() - begun) / len(rows))


def train_contender(contender: Contender, start: State | None, device: torch.device) -> Work[State]:
    """Train a contender."""
    task = contender.task
    if contender.sized is None and contender.source is not None:
        closed = yield from fit_closed_form(
            contender.source, task, seconds=contender.seconds, seed=contender.seed, fixed=contender.fixed
        )
        return training_state(*closed)
    if contender.sized is None:
        frozen = contender.kind == "frozen"
        simple = yield from fit_simple.work(
            "logistic" if frozen else contender.name, task, seconds=contender.seconds, seed=contender.seed,
            fixed=contender.fixed, metric=contender.metric, cross_validate=contender.cross_validated, features=frozen,
        )  # fmt: skip
        return training_state(simple.network, simple.fit, simple.settings, simple.validation)
    model, recipe = _initial_model(contender, contender.sized.network, start is not None), contender.sized.recipe
    result = yield from fit.work(
        model, task, recipe, seed=derived_seed(contender.seed, "solve"), device=device, resume=start,
        stage=contender.title,
    )  # fmt: skip
    settings = {"steps": len(result.history.losses), "batch_size": recipe.batch_size, "rate": recipe.learning_rate}
    return training_state(contender.sized.network, result, settings)


def _initial_model(contender: Contender, network: str, resumed: bool = False) -> nn.Module:
    """The network before training: initialised at random, or that of a related task with a new head.

    If the training is resumed, its weights will be loaded, and no head is fitted.
    """
    task = contender.task
    if contender.start is not None:
        return contender.start.model()
    if contender.source is None:
        model = build(network, task.input_shape, task.num_outputs, contender.seed)
        check(model, task.input_shape, task.num_outputs, task.likelihood)
        return model
    if contender.pretrained and not resumed:
        return with_fitted_head(contender.source.model(), task, contender.seed)
    x = task.train.first(SCALE_SAMPLES).x
    return with_start(contender.source.model(), task.num_outputs, derived_seed(contender.seed, "head"), x)


def samples_learned(settings: Mapping[str, Any], task: Task) -> int:
    """Number of training samples that a model used: its subset, or what an unfinished first epoch covered."""
    if "samples" in settings:
        return int(settings["samples"])
    count = len(task.train)
    return min(count, round(int(settings["steps"]) * count / num_batches(count, int(settings["batch_size"]))))


def result_of(
    contender: Contender, solved: Solved, settings: Mapping[str, Any], whole: Task | None, seconds: float
) -> Result:
    """Result of a trained contender; `whole` is its task with the true test set, None to leave that out."""
    model, fit, encoder = solved.model(), solved.trials[0], contender.encoder
    parameters, work = costs(model, contender.task.input_shape) if encoder is None else costs(
        with_head_weights(encoder, fit.params["weight"], fit.params["bias"]), encoder.inputs.shape
    )  # fmt: skip
    return Result(
        name=contender.name,
        title=contender.title,
        kind=contender.kind,
        validation=fit.scores.metric,
        loss=fit.scores.loss,
        test=None if whole is None else evaluate(model, whole.test, whole.form).metric,
        parameters=parameters,
        multiply_adds=work,
        seconds=seconds,
        samples=(samples := samples_learned(settings, contender.task)),
        starved=samples < len(contender.task.train)
        or (contender.sized is not None and not contender.pretrained and int(settings["steps"]) < LEAST_STEPS),
        network=solved.network,
        genotype=contender.extra.get("genotype", ""),
        search=contender.extra.get("search"),
        curve=thinned(fit.history.losses.tolist()),
        settings={**settings, **contender.extra.get("settings", {})},
    )


def thinned(losses: Sequence[float], points: int = CURVE) -> tuple[tuple[float, float], ...]:
    """Reduce a curve to at most `points` points: means over equal intervals, each at its middle.

    >>> thinned([4.0, 2.0, 1.0, 1.0], points=2)
    ((1.0, 3.0), (3.0, 1.0))
    """
    size = max(1, -(-len(losses) // points))
    chunks = [losses[start : start + size] for start in range(0, len(losses), size)]
    return tuple(
        (number * size + len(chunk) / 2, round(sum(chunk) / len(chunk), 6)) for number, chunk in enumerate(chunks)
    )


def search_skeleton(task: Task, channels: int = CHANNELS[0]) -> Skeleton:
    """Macro-architecture of the search: small feature maps, two cells with a pool between."""
    stride = _stride(task, MAP_SIDE)
    return Skeleton(channels=channels, num_cells=2, between="pool", stem_stride=stride)


def searched_networks(genotype: Genotype, task: Task) -> list[str]:
    """Networks of a cell, smallest first: as in the search, then deeper and in growing width."""
    stride = _stride(task, FINAL_SIDE)
    larger = [Skeleton(channels=width, num_cells=3, stem_stride=stride) for width in CHANNELS]
    return [network_string(genotype, skeleton) for skeleton in (search_skeleton(task), *larger)]


def _stride(task: Task, side: int) -> int:
    """Stride of the stem, so that the sides of images become at most `side`."""
    stride = 1
    while max(task.input_shape[1:]) / stride > side:
        stride *= 2
    return stride


def hand_made_networks(name: str, width: float | None = None) -> list[str]:
    """A hand-made network in growing width, or in one given width.

    >>> hand_made_networks("vgg16", 0.25)
    ['vgg16?width=0.25']
    """
    return [f"{name}?width={factor:g}" for factor in (WIDTHS if width is None else (width,))]


def made_title(network: str) -> str:
    """Name of a network of `TITLES` for readers; hand-made networks with their width.

    >>> made_title("vgg16?width=0.0625"), made_title("resnet18?width=1"), made_title("lenet")
    ('VGG-16, 1/16 width', 'ResNet-18, full width', 'LeNet')
    """
    spec = NetworkSpec.parse(network)
    title = TITLES.get(spec.name, spec.name)
    if spec.name not in HAND_MADE:
        return title
    width = Fraction(str(dict(spec.options).get("width", 1))).limit_denominator(1000)
    return f"{title}, {'full' if width == 1 else width} width"
