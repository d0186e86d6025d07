"""Random search with weight sharing (Li and Talwalkar 2019): one supernet, trained along random paths.

First the supernet is trained: each batch uses the path of a new random genotype. Then random genotypes are measured on
validation data with the weights of the supernet, without any training of their own.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from nearkin.core.errors import OptionError, TrainingError, require
from nearkin.core.events import Progress, Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.core.state import State, copied, prefixed
from nearkin.search.genotypes.canonical import Edge
from nearkin.search.genotypes.cell import IDENTITIES, Cell
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.methods.fuse.candidates import SearchSplit, split_for_search
from nearkin.search.methods.random_search import RandomDraws
from nearkin.search.methods.sampling import Sampling, Trials, space_signature
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import without_limits
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.reference import Frame
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.tasks.batches import epoch_batches, num_batches, ordered_batches
from nearkin.tasks.examples import Batch
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.task import Task

SHARED_LOSS = "shared loss"
"""Fact of a genotype that was measured with shared weights: its mean loss."""

_VALIDATION_BATCH = 512


@dataclass(frozen=True, kw_only=True)
class PathTraining:
    """Training of the supernet.

    Attributes:
        batches: total number of batches, one path each.
        chunk: number of batches in a step of the search.
        batch_size: number of samples in a batch.
        rate: initial learning rate of SGD with momentum 0.9; a cosine lowers it to 0.
        clip: largest norm of the gradient.
    """

    batches: int = 600
    chunk: int = 20
    batch_size: int = 64
    rate: float = 0.1
    clip: float = 5.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require(value > 0, f"{name} of the supernet's training must be above 0, got {value}")

    def rate_at(self, batch: int) -> float:
        """Learning rate of the batch with a number.

        >>> PathTraining(rate=1.0).rate_at(0), round(PathTraining(rate=1.0, batches=10).rate_at(5), 6)
        (1.0, 0.5)
        """
        return self.rate * 0.5 * (1 + math.cos(math.pi * batch / self.batches))


@dataclass
class SharedRandomState:
    """State of the search: the supernet, its optimiser, the number of training batches, and the trials."""

    seed: int
    net: Supernet
    optimiser: torch.optim.SGD
    trials: Trials
    trained: int = 0
    loss: float = 0.0


@dataclass(frozen=True, eq=False)
class SharedRandom(Searcher[SharedRandomState]):
    """Random search among the paths of one trained supernet.

    Attributes:
        space: space of cells.
        task: task with images; its test set is not used.
        frame: macro-architecture of the supernet.
        training: training of the supernet.
        validation: fraction of the training set that is used as validation set.
    """

    name = "random-shared"

    space: Space
    task: Task
    frame: Frame = field(default_factory=Frame)
    training: PathTraining = field(default_factory=PathTraining)
    validation: float = 0.3

    def __post_init__(self) -> None:
        require(0 < self.validation < 1, f"validation must be a fraction between 0 and 1, got {self.validation}")
        whole = without_limits(self.space)
        for number in (0, whole.size() - 1):  # raises if cells of different sizes cannot share weights
            path(whole.at(number), self.layout)

    def settings(self) -> dict[str, Any]:
        """Everything that determines the search."""
        return {
            "space": space_signature(self.space),
            "task": [self.task.name, self.task.fingerprint()],
            "frame": asdict(self.frame),
            "training": asdict(self.training),
            "validation": self.validation,
        }

    def init(self, seed: int) -> SharedRandomState:
        """State with a new supernet."""
        with seeded(derived_seed(seed, "supernet")):
            net = Supernet(self.layout, self.task.input_shape, self.task.num_outputs, self.frame)
        optimiser = torch.optim.SGD(net.parameters(), self.training.rate, momentum=0.9)
        return SharedRandomState(seed, net, optimiser, Trials(Streams(derived_seed(seed, "trials"))))

    def step(self, state: SharedRandomState) -> Work[SharedRandomState]:
        """Train on a chunk of batches; after all batches, measure one genotype."""
        if state.trained >= self.training.batches:
            state.trials = yield from self._sampling(state).step(state.trials)
            return state
        streams = Streams(state.seed).child("training")
        count = min(self.training.chunk, self.training.batches - state.trained)
        for x, y in itertools.islice(self._batches(state.trained, streams), count):
            genotype = self.space.sample(streams.at("path", state.trained))
            for group in state.optimiser.param_groups:
                group["lr"] = self.training.rate_at(state.trained)
            state.optimiser.zero_grad()
            loss = self.task.form.loss(state.net(x, path(genotype, self.layout)), y)
            loss.backward()
            nn.utils.clip_grad_norm_(state.net.parameters(), self.training.clip)
            state.optimiser.step()
            state.trained += 1
            yield Progress("supernet", state.trained, self.training.batches)
        state.loss = float(loss.detach())
        require(
            state.loss == state.loss, "the training of the supernet diverged; lower its learning rate", TrainingError
        )
        return state

    def best(self, state: SharedRandomState) -> ScoredGenotype | None:
        """Genotype of the highest validation metric with shared weights; None while the supernet is trained."""
        return self._sampling(state).best(state.trials)

    def top(self, state: SharedRandomState, count: int) -> list[ScoredGenotype]:
        """Genotypes of the highest validation metrics."""
        return self._sampling(state).top(state.trials, count)

    def ended(self, state: SharedRandomState) -> str:
        """Reason if no new genotype was drawn."""
        return state.trials.ended

    def evaluations(self, state: SharedRandomState) -> int:
        """Number of measured architectures."""
        return len(state.trials.records)

    def figures(self, state: SharedRandomState) -> dict[str, float]:
        """Number of training batches, and the loss of the last one."""
        return {"batches": float(state.trained), "loss": state.loss}

    def capture(self, state: SharedRandomState) -> State:
        """Weights, momenta and trials."""
        inner = self._sampling(state).capture(state.trials)
        momenta = {
            name: state.optimiser.state[value]["momentum_buffer"]
            for name, value in state.net.named_parameters()
            if value in state.optimiser.state
        }
        tensors = {
            **prefixed("net", copied(state.net.state_dict())),
            **prefixed("momenta", copied(momenta)),
            **prefixed("trials", inner.tensors),
        }
        facts = {"seed": state.seed, "trained": state.trained, "loss": state.loss, "trials": dict(inner.facts)}
        return State(tensors, facts)

    def restore(self, saved: State) -> SharedRandomState:
        """The inverse of `capture`."""
        state = self.init(saved.facts["seed"])
        state.net.load_state_dict(saved.section("net"))
        momenta = saved.section("momenta")
        for name, value in state.net.named_parameters():
            if name in momenta:
                state.optimiser.state[value]["momentum_buffer"] = torch.empty_like(value).copy_(momenta[name])
        state.trained, state.loss = saved.facts["trained"], saved.facts["loss"]
        state.trials = self._sampling(state).restore(State(saved.section("trials"), saved.facts["trials"]))
        return state

    @cached_property
    def layout(self) -> SupernetLayout:
        """Layout of the supernet."""
        return SupernetLayout.of(self.space)

    @cached_property
    def split(self) -> SearchSplit:
        """Training and validation set of the search."""
        return split_for_search(self.task, self.validation)

    def _batches(self, start: int, streams: Streams) -> Iterator[Batch]:
        """Endless sequence of batches from number `start` on."""
        train, size = self.split.train, self.training.batch_size
        epoch, first = divmod(start, num_batches(len(train), size))
        yield from epoch_batches(train, size, streams, epoch, start=first)
        for later in itertools.count(epoch + 1):
            yield from epoch_batches(train, size, streams, later)

    def _sampling(self, state: SharedRandomState) -> Sampling:
        return Sampling(self.space, PathObjective(state.net, self.split), RandomDraws())


@dataclass(frozen=True, eq=False)
class PathObjective(Objective):
    """Validation metric of a path with the weights of a supernet, which stay unchanged.

    Batch norms use the statistics of the batch, because the running ones mix all paths.
    """

    net: Supernet
    split: SearchSplit

    def evaluate(self, genotype: Genotype) -> ObjectiveValue:
        """Metric and loss of the path of a genotype."""
        batches = ordered_batches(self.split.validation, _VALIDATION_BATCH)
        return evaluate_path(self.net, path(genotype, self.net.layout), batches, self.split.form)

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """The result of `evaluate`, without events."""
        yield from ()
        return self.evaluate(genotype)

    def settings(self) -> dict[str, Any]:
        """No settings; those of the search determine the supernet."""
        return {}


@torch.no_grad()
def evaluate_path(net: nn.Module, chosen: Genotype, batches: Iterable[Batch], form: Likelihood) -> ObjectiveValue:
    """Metric and mean loss of a path on batches; weights and buffers of the network with shared weights stay unchanged.

    Args:
        net: network with shared weights, called with inputs and a path.
        chosen: the path.
        batches: inputs and targets.
        form: likelihood of the task.
    """
    total, count, tally = 0.0, 0, torch.zeros(())
    for x, y in batches:
        buffers = {name: value.clone() for name, value in net.named_buffers()}
        outputs: Tensor = torch.func.functional_call(net, buffers, (x, chosen))
        total += float(form.loss(outputs, y)) * len(y)
        count += len(y)
        tally = tally + form.tally(outputs, y)
    return ObjectiveValue(form.score(tally), {SHARED_LOSS: total / count})


def path(genotype: Genotype, layout: SupernetLayout) -> Cells:
    """The genotype as a path of a supernet: identities copy the output of a smaller cell to the last node.

    >>> from nearkin.search.spaces.general import GeneralSpace
    >>> small = Genotype.parse("normal(0): 1 = conv3(0); out = 1")
    >>> print(path(small, SupernetLayout.of(GeneralSpace((2, 3), ("identity", "conv3")))))
    normal(0): 1 = conv3(0); 2 = identity(1); out = 2
    """
    cells = cast(Cells, genotype)
    cell = cells.normal
    if cell.num_nodes >= layout.num_nodes:
        return cells
    names = [name for name in layout.operations["normal"] if name in IDENTITIES]
    if not names:
        raise OptionError(
            "the space has cells of different sizes but no identity to extend the smaller ones; add identity to its "
            "operations, or use one size"
        )
    while cell.num_nodes < layout.num_nodes:
        edge = Edge(cell.num_nodes - 1, cell.num_nodes, names[0])
        cell = Cell(cell.num_inputs, cell.num_nodes + 1, (*cell.edges, edge), (cell.num_nodes,))
    return Cells(cell)
