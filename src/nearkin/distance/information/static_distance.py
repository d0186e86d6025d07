r"""Static distance between tasks: the complexity that a target adds to a source.

$$d_\beta(a \to b) = C_\beta(a \cup b) - C_\beta(a)$$

The union is learned by one network, warm-started from the network of a. By default it has two heads on one encoder:
the loss is the sum of both tasks' losses, the curvature the sum of both curvatures. With merged labels it has one head,
and classes of the same name are one class. Both complexities use the same prior variance λ² and are measured after fits
of equal effort. The asymmetry $d(a \to b) - d(b \to a)$ is $C(b) - C(a)$ if both unions reach the same minimum.
(Achille, Mbeng & Soatto 2019)

Notation: N samples of a task, K outputs, P weights.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, require, require_positive
from nearkin.core.events import Progress, Work, operation
from nearkin.core.types import Params
from nearkin.distance.information.curvature import (
    CurvatureOptions,
    NetworkSamples,
    as_double,
    in_double,
    joint_curvature,
)
from nearkin.distance.information.task_complexity import (
    DECAY,
    Complexity,
    from_curvature,
    squared_distance,
    summed_loss,
)
from nearkin.distance.pair import Pair
from nearkin.distance.quasi_newton import minimise
from nearkin.nets.functional import load
from nearkin.nets.heads import head_name, padded_head, with_head
from nearkin.tasks.likelihood import likelihood as likelihood_named

UNIONS = ("heads", "labels")
KEY = "complexity 1"  # of stored values; the number changes with the values


@dataclass(frozen=True, eq=False)
class TaskSamples:
    """Samples of a task and the outputs of the network that predict its targets.

    Attributes:
        x: inputs `[N, *input_shape]`.
        y: targets.
        likelihood: `categorical`, `gaussian` or `heteroscedastic`.
        outputs: first output and the one after the last (default: all).
    """

    x: Tensor
    y: Tensor
    likelihood: str = "categorical"
    outputs: tuple[int, int] | None = None

    def network(self, model: nn.Module) -> nn.Module:
        """The network with this task's outputs only."""
        return Columns(model, *(self.outputs or (0, None)))


class Columns(nn.Module):
    """Some outputs of a network: from `start` up to `stop`.

    >>> Columns(nn.Identity(), 1, 3)(torch.tensor([[5.0, 6.0, 7.0, 8.0]]))
    tensor([[6., 7.]])
    """

    def __init__(self, model: nn.Module, start: int, stop: int | None) -> None:
        super().__init__()
        self.model, self.start, self.stop = model, start, stop
        self.train(model.training)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `[N, stop − start]`."""
        outputs: Tensor = self.model(x)[:, self.start : self.stop]
        return outputs


@dataclass(frozen=True)
class StaticDistance:
    """Complexities of the union and of the source.

    Attributes:
        union: C(a ∪ b).
        source: C(a).
    """

    union: Complexity
    source: Complexity

    @property
    def distance(self) -> float:
        """d(a → b) = C(a ∪ b) − C(a), in nats."""
        return self.union.complexity - self.source.complexity


def fit_tasks(
    model: nn.Module,
    tasks: Sequence[TaskSamples],
    beta: float,
    variance: float,
    steps: int,
    prior_mean: Params | None = None,
) -> nn.Module:
    r"""A copy of a network whose weights minimise $\sum_t L_t + \frac{\beta}{2\lambda^2}\|w - w_0\|^2$, by L-BFGS.

    Args:
        model: the network that the fit starts from; it stays in evaluation mode, so running statistics are fixed.
        tasks: samples of each task.
        beta: price of information.
        variance: λ².
        steps: largest number of iterations; 0 returns the copy.
        prior_mean: w₀ by name (default: 0).
    """
    fitted = copy.deepcopy(model).eval()
    if steps == 0:
        return fitted
    weights = {name: weight for name, weight in fitted.named_parameters() if weight.requires_grad}
    centre = {name: 0.0 if prior_mean is None else prior_mean[name] for name in weights}
    total, decay = sum(len(task.x) for task in tasks), beta / variance / 2
    fits = [(likelihood_named(task.likelihood), task.network(fitted), task) for task in tasks]

    def mean_loss() -> Tensor:
        losses = [likelihood.nll(network(task.x), task.y).sum() for likelihood, network, task in fits]
        squares = [(weight - centre[name]).square().sum() for name, weight in weights.items()]
        return (torch.stack(losses).sum() + decay * torch.stack(squares).sum()) / total

    with torch.no_grad():
        loss = float(mean_loss())
    require(math.isfinite(loss), f"the loss is {loss} before the fit; check inputs, targets and weights", DataError)
    with torch.enable_grad():
        minimise(mean_loss, list(weights.values()), steps)
    return fitted


def joint_complexity(
    model: nn.Module,
    tasks: Sequence[TaskSamples],
    beta: float = 1.0,
    *,
    variance: float = 1.0,
    curvature: str | CurvatureOptions = "auto",
) -> Complexity:
    r"""$C_\beta$ of several tasks that one network solves at its weights; the losses and curvatures are added.

    Args:
        model: the network, at a minimum of the summed loss with weight decay.
        tasks: samples of each task.
        beta: price of information.
        variance: λ² of the prior.
        curvature: kind of the curvature, or options.

    >>> from nearkin.distance.information.task_complexity import WeightPrior, complexity
    >>> net, x = nn.Linear(2, 3), torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(8) % 3
    >>> alone = complexity(net, x, y, prior=WeightPrior(variance=1.0)).complexity
    >>> halves = [TaskSamples(x[:4], y[:4]), TaskSamples(x[4:], y[4:])]
    >>> abs(joint_complexity(net, halves).complexity / alone - 1) < 1e-9
    True
    """
    require_positive("beta", beta)
    require_positive("variance", variance)
    double = in_double(model)
    loss = math.fsum(
        summed_loss(task.network(double), as_double(task.x), as_double(task.y), task.likelihood) for task in tasks
    )
    fixed = copy.deepcopy(model).eval()
    samples = [NetworkSamples(task.network(fixed), task.x, task.likelihood) for task in tasks]
    options = CurvatureOptions(curvature) if isinstance(curvature, str) else curvature
    found = joint_curvature(samples, options)
    count = sum(len(task.x) for task in tasks)
    return from_curvature(loss, squared_distance(double, None), found, beta, variance, count)


@dataclass(frozen=True, kw_only=True)
class StaticOptions:
    """How the static distance is measured.

    Attributes:
        beta: price of one nat of information.
        steps: largest number of L-BFGS iterations of each fit.
        union: `heads` for two heads on one encoder, `labels` for one head in which classes of the same name are one.
        curvature: `auto` (by the number of weights), `full`, `block`, `kronecker`, `lanczos` or `diagonal`.
        limit: largest number of samples of each task.
        decay: weight decay of the mean loss of `limit` samples; the variance of the prior is 1 / (limit · decay).
    """

    beta: float = 1.0
    steps: int = 120
    union: str = "heads"
    curvature: str = "kronecker"
    limit: int = 300
    decay: float = DECAY

    def __post_init__(self) -> None:
        require_positive("beta", self.beta)
        require_positive("decay", self.decay)
        require(self.steps >= 0, f"steps must be 0 or more, got {self.steps}")
        require(self.limit >= 2, f"limit must be 2 or more, got {self.limit}")
        require(self.union in UNIONS, f"union is one of {', '.join(UNIONS)}, got {self.union!r}")
        CurvatureOptions(self.curvature)  # checks the name

    @property
    def variance(self) -> float:
        """λ², the same for every task."""
        return 1 / (self.limit * self.decay)


def fitted_complexity(model: nn.Module, tasks: Sequence[TaskSamples], options: StaticOptions) -> Complexity:
    """Complexity of tasks after a fit that starts from the weights of a network."""
    fitted = fit_tasks(model, tasks, options.beta, options.variance, options.steps)
    return joint_complexity(fitted, tasks, options.beta, variance=options.variance, curvature=options.curvature)


def widened(model: nn.Module, x: Tensor, num_outputs: int) -> nn.Module:
    """A copy of a network whose head has more outputs; the new ones start at zero."""
    head = head_name(model, x[:1])
    wide = with_head(model, num_outputs, 0, head).eval()
    load(wide, padded_head(dict(model.named_parameters()), head, num_outputs), dict(model.named_buffers()))
    return wide


def two_heads(
    model: nn.Module, source: TaskSamples, target: TaskSamples, num_outputs: int
) -> tuple[nn.Module, list[TaskSamples]]:
    """The network with a second head for the target, and both tasks with their own outputs.

    Args:
        model: the source's network.
        source: its samples, predicted by all outputs of the network.
        target: samples in the input shape of the network.
        num_outputs: K of the target's head.
    """
    with torch.no_grad():
        own = model(source.x[:1]).shape[1]
    wide = widened(model, source.x, own + num_outputs)
    return wide, [replace(source, outputs=(0, own)), replace(target, outputs=(own, own + num_outputs))]


def merged_labels(
    model: nn.Module, source: TaskSamples, target: TaskSamples, classes: tuple[Sequence[str], Sequence[str]]
) -> tuple[nn.Module, list[TaskSamples]]:
    """The network with one head for the classes of both tasks, and both tasks with these classes.

    Args:
        model: the source's network.
        source: its samples.
        target: samples in the input shape of the network.
        classes: names of the classes of source and target; equal names are one class.
    """
    both = (source.likelihood, target.likelihood)
    require(
        both == ("categorical", "categorical"),
        f"merged labels need two tasks with classes, got a {both[0]} source and a {both[1]} target; use union=heads",
        MismatchError,
    )
    names = list(dict.fromkeys([*classes[0], *classes[1]]))
    numbers = torch.tensor([names.index(name) for name in classes[1]])
    wide = widened(model, source.x, len(names)) if len(names) > len(classes[0]) else copy.deepcopy(model)
    return wide, [source, replace(target, y=numbers[target.y])]


@operation
def measure_static_distance(
    model: nn.Module,
    source: TaskSamples,
    target: TaskSamples,
    *,
    num_outputs: int,
    options: StaticOptions | None = None,
    classes: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Work[StaticDistance]:
    r"""$d_\beta(a \to b) = C_\beta(a \cup b) - C_\beta(a)$ from the network of a; smaller is nearer.

    Args:
        model: the source's trained network; it is not changed.
        source: samples of the source.
        target: samples of the target, in the input shape of the network.
        num_outputs: K of the target.
        options: effort and form of the union.
        classes: names of the classes of source and target, for merged labels.
    """
    options = options or StaticOptions()
    own = fitted_complexity(model, [source], options)
    yield Progress("complexity", 1, 2, {"source": own.complexity})
    union = fitted_complexity(*_union(model, source, target, num_outputs, options.union, classes), options)
    yield Progress("complexity", 2, 2, {"union": union.complexity})
    return StaticDistance(union, own)


def _union(
    model: nn.Module,
    source: TaskSamples,
    target: TaskSamples,
    num_outputs: int,
    union: str,
    classes: tuple[Sequence[str], Sequence[str]],
) -> tuple[nn.Module, list[TaskSamples]]:
    if union == "labels":
        return merged_labels(model, source, target, classes)
    return two_heads(model, source, target, num_outputs)


@dataclass(frozen=True, kw_only=True)
class ComplexityDistance(StaticOptions):
    """The measure `complexity`: static distance from a source to a target, in nats; options as in `StaticOptions`."""

    def key(self, samples: int) -> str:
        """Key of stored values, with all that they depend on."""
        return " ".join([KEY, *map(str, asdict(self).values()), str(samples)])

    def is_stored(self, pair: Pair) -> bool:
        """Whether the distance of one pair is stored."""
        return "distance" in pair.recall(self.key(min(self.limit, pair.num_samples)))

    def __call__(self, pair: Pair) -> Work[float]:
        """The distance of one pair; stored values are not measured again."""
        count, source, task = min(self.limit, pair.num_samples), pair.source, pair.task
        key = self.key(count)
        values = pair.recall(key)
        if "distance" not in values:
            model = pair.view.model
            examples = source.inputs(source.task).train.fixed_subset(count)
            of_source = TaskSamples(*examples, source.likelihood)
            of_target = TaskSamples(*task.train.fixed_subset(count), task.likelihood)
            own = yield from source.measured(
                f"{key} {pair.trial}", lambda: fitted_complexity(model, [of_source], self).complexity
            )
            classes = source.task.classes, task.classes
            union = fitted_complexity(*_union(model, of_source, of_target, task.num_outputs, self.union, classes), self)
            yield Progress("complexity of the union", 1, 1, {"nats": union.complexity})
            values = {"distance": union.complexity - own, "union": union.complexity, "source": own}
            pair.remember(key, values)
        return float(values["distance"])
