"""Random search with weight sharing (Li and Talwalkar 2019): one supernet, trained a random path at a time.

First the supernet learns: every batch goes along the path of a genotype that is drawn anew. Then genotypes are drawn
and measured with the weights they find there, on validation data, without any training of their own.
"""

import itertools
import math
from collections.abc import Iterator
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
from nearkin.search.methods.sampling import Sampling, Trials, space_signature, without_limits
from nearkin.search.objective import Objective, ObjectiveValue
from nearkin.search.searcher import ScoredGenotype, Searcher
from nearkin.search.spaces.base import Space
from nearkin.search.supernet.fused.supernet import Supernet
from nearkin.search.supernet.reference import Frame
from nearkin.search.supernet.supernet_layout import SupernetLayout
from nearkin.tasks.batches import epoch_batches, num_batches, ordered_batches
from nearkin.tasks.examples import Batch
from nearkin.tasks.task import Task

_JUDGED = 512


@dataclass(frozen=True, kw_only=True)
class PathTraining:
    """How the supernet learns.

    Attributes:
        batches: all of them, one path each.
        chunk: batches of a step.
        batch_size: samples of a batch.
        rate: first learning rate of SGD with momentum 0.9; it falls to 0 as a cosine.
        clip: largest norm of the gradient.
    """

    batches: int = 600
    chunk: int = 20
    batch_size: int = 64
    rate: float = 0.1
    clip: float = 5.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require(value > 0, f"{name} of a supernet's training must be above 0, got {value}")

    def rate_at(self, batch: int) -> float:
        """Learning rate of a batch by its number.

        >>> PathTraining(rate=1.0).rate_at(0), round(PathTraining(rate=1.0, batches=10).rate_at(5), 6)
        (1.0, 0.5)
        """
        return self.rate * 0.5 * (1 + math.cos(math.pi * batch / self.batches))


@dataclass
class SharedRandomState:
    """The state: the supernet, its optimiser, batches seen, and what was measured."""

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
        space: of cells.
        task: of images; its test part is not touched.
        frame: the supernet around the cells.
        training: of the supernet.
        validation: share of the training part that is set aside to judge by.
    """

    space: Space
    task: Task
    frame: Frame = field(default_factory=Frame)
    training: PathTraining = field(default_factory=PathTraining)
    validation: float = 0.3

    def __post_init__(self) -> None:
        require(0 < self.validation < 1, f"validation is a share between 0 and 1, got {self.validation}")
        whole = without_limits(self.space)
        for end in (0, whole.size() - 1):
            path(whole.at(end), self.layout)

    @property
    def name(self) -> str:
        """`random-shared`."""
        return "random-shared"

    def settings(self) -> dict[str, Any]:
        """All that decides the course."""
        return {
            "space": space_signature(self.space),
            "task": [self.task.name, self.task.fingerprint()],
            "frame": asdict(self.frame),
            "training": asdict(self.training),
            "validation": self.validation,
        }

    def init(self, seed: int) -> SharedRandomState:
        """A supernet that has seen nothing."""
        with seeded(derived_seed(seed, "supernet")):
            net = Supernet(self.layout, self.task.input_shape, self.task.num_outputs, self.frame)
        optimiser = torch.optim.SGD(net.parameters(), self.training.rate, momentum=0.9)
        return SharedRandomState(seed, net, optimiser, Trials(Streams(derived_seed(seed, "trials"))))

    def step(self, state: SharedRandomState) -> Work[SharedRandomState]:
        """A chunk of batches; when all are done, one measurement."""
        if state.trained >= self.training.batches:
            state.trials = yield from self._sampling(state).step(state.trials)
            return state
        streams = Streams(state.seed).child("training")
        rest = min(self.training.chunk, self.training.batches - state.trained)
        for x, y in itertools.islice(self._batches(state.trained, streams), rest):
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
        require(state.loss == state.loss, "the supernet's training diverged; lower its learning rate", TrainingError)
        return state

    def best(self, state: SharedRandomState) -> ScoredGenotype | None:
        """The highest validation metric under shared weights; None while the supernet learns."""
        return self._sampling(state).best(state.trials)

    def top(self, state: SharedRandomState, count: int) -> list[ScoredGenotype]:
        """The highest few."""
        return self._sampling(state).top(state.trials, count)

    def ended(self, state: SharedRandomState) -> str:
        """Where nothing new was found."""
        return state.trials.ended

    def evaluations(self, state: SharedRandomState) -> int:
        """Architectures that were measured."""
        return len(state.trials.records)

    def figures(self, state: SharedRandomState) -> dict[str, float]:
        """Batches that the supernet has seen, and its loss on the last path."""
        return {"batches": float(state.trained), "loss": state.loss}

    def capture(self, state: SharedRandomState) -> State:
        """Weights, momenta, trials."""
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
                kept = torch.empty_like(value).copy_(momenta[name])
                state.optimiser.state[value]["momentum_buffer"] = kept
        state.trained, state.loss = saved.facts["trained"], saved.facts["loss"]
        state.trials = self._sampling(state).restore(State(saved.section("trials"), saved.facts["trials"]))
        return state

    @cached_property
    def layout(self) -> SupernetLayout:
        """That of the space."""
        return SupernetLayout.of(self.space)

    @cached_property
    def parts(self) -> SearchSplit:
        """The training part in two, always the same: to learn from and to judge by."""
        return split_for_search(self.task, self.validation)

    def _batches(self, start: int, streams: Streams) -> Iterator[Batch]:
        """The endless row of batches, from number `start` on."""
        learn, size = self.parts.learn, self.training.batch_size
        epoch, first = divmod(start, num_batches(len(learn), size))
        yield from epoch_batches(learn, size, streams, epoch, start=first)
        for later in itertools.count(epoch + 1):
            yield from epoch_batches(learn, size, streams, later)

    def _sampling(self, state: SharedRandomState) -> Sampling:
        return Sampling(self.space, PathObjective(state.net, self.parts), RandomDraws())


@dataclass(frozen=True, eq=False)
class PathObjective(Objective):
    """The validation metric of a path with the weights that a supernet has; these stay as they are.

    Batch norms take the statistics of the batch: running ones are a blend of all paths.
    """

    net: Supernet
    parts: SearchSplit

    @torch.no_grad()
    def measured(self, genotype: Genotype) -> ObjectiveValue:
        """Metric, and the loss beside it."""
        chosen, form = path(genotype, self.net.layout), self.parts.form
        weights = dict(self.net.named_parameters())
        total, tally = 0.0, torch.zeros(())
        for x, y in ordered_batches(self.parts.judge, _JUDGED):
            buffers = {name: value.clone() for name, value in self.net.named_buffers()}
            outputs: Tensor = torch.func.functional_call(self.net, {**weights, **buffers}, (x, chosen))
            total += float(form.loss(outputs, y)) * len(y)
            tally = tally + form.tally(outputs, y)
        return ObjectiveValue(form.score(tally), {"shared loss": total / len(self.parts.judge)})

    def measure(self, genotype: Genotype) -> Work[ObjectiveValue]:
        """As `measured`."""
        yield from ()
        return self.measured(genotype)

    def settings(self) -> dict[str, Any]:
        """Nothing of its own: the search that trains the supernet has them."""
        return {}


def path(genotype: Genotype, layout: SupernetLayout) -> Cells:
    """The genotype as a path of a supernet: a smaller cell's output is handed on by identities to the last node.

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
            "cells of different sizes share weights where the space has an identity; add it, or fix a size"
        )
    while cell.num_nodes < layout.num_nodes:
        edge = Edge(cell.num_nodes - 1, cell.num_nodes, names[0])
        cell = Cell(cell.num_inputs, cell.num_nodes + 1, (*cell.edges, edge), (cell.num_nodes,))
    return Cells(cell)
