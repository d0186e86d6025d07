r"""Branched sharing (after BMTAS, Brüggemann et al. 2020, in small form): which cells tasks share is searched.

Every position of a cell has B branches, copies of the cell with weights of their own. Task k mixes their outputs by
$m_{kb} = \mathrm{softmax}_b((a_{kb} + g_{kb}) / T)$ with Gumbel noise $g$ and a temperature T that falls from the first
to the last pass. A penalty on the expected number of different branches at a position,
$\sum_b 1 - \prod_k (1 - p_{kb})$ with $p_k = \mathrm{softmax}(a_k)$, makes tasks share. In the end every task keeps its
largest logit. Two tasks share a cell if they have the same branches up to it, so the shared cells form a tree.

Simplified against BMTAS: the penalty counts cells instead of multiply-adds; outputs are mixed, not sampled, so a step
costs B times the cells of one supernet for every task; the tree is read off at the end instead of being a constraint of
the search; the logits learn on validation data like α, and the operations of the cells, which all branches have in
common, are searched too. The stem is shared by all tasks. The noise is the same for all steps of a pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.core.rng import Streams, derived_seed
from nearkin.multitask.joint.common_weights import shared_slots, stacked_cells, with_same_weights
from nearkin.multitask.joint.connection_search import (
    CONNECTIONS,
    ConnectedSupernet,
    ConnectionOptions,
    ConnectionSearch,
)
from nearkin.multitask.multitask_state import MultitaskState
from nearkin.search.genotypes.genotype import Cells, Genotype
from nearkin.search.methods.darts.supernet_learner import LearnerState
from nearkin.search.spaces.base import Space
from nearkin.search.supernet.reference import StackedCells
from nearkin.search.supernet.supernet_layout import Architecture
from nearkin.tasks.task import Task

MOST = 4  # branches of a position
NOISE = 1e-3  # standard deviation of the first logits


@dataclass(frozen=True, kw_only=True)
class BranchedOptions(ConnectionOptions):
    """Options of branched sharing.

    Attributes:
        num_branches: B, copies of the weights of every cell, 2 to 4.
        first_temperature: T of the first pass.
        last_temperature: T of the last pass.
    """

    num_branches: int = 2
    first_temperature: float = 5.0
    last_temperature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(2 <= self.num_branches <= MOST, f"num_branches must be 2 to {MOST}, got {self.num_branches}")
        require(
            0 < self.last_temperature <= self.first_temperature,
            f"temperatures must be above 0 and fall, got {self.first_temperature} and {self.last_temperature}",
        )

    def temperature(self, share: float) -> float:
        """T after a share of the passes; it falls by a constant factor.

        >>> BranchedOptions(first_temperature=4.0, last_temperature=1.0).temperature(0.5)
        2.0
        """
        return float(self.first_temperature * (self.last_temperature / self.first_temperature) ** share)


class BranchedSupernet(ConnectedSupernet):
    """Supernet of a task whose every cell is a mixture of branches.

    Args:
        sources: supernets with the branches; the first one also gives stem and final layers.
        head: head of the task.
        decided: one-hot branch of every position `[positions, B]`.
    """

    def __init__(self, sources: Sequence[StackedCells], head: nn.Module, decided: Tensor) -> None:
        super().__init__(sources[0].layout, sources[0].frame, decided)
        self.stem, self.final = (with_same_weights(part) for part in (sources[0].stem, sources[0].final))
        branches = [[with_same_weights(source.cells[n]) for source in sources] for n in range(self.frame.num_cells)]
        self.cells = cast(Sequence[nn.ModuleList], nn.ModuleList(nn.ModuleList(cells) for cells in branches))
        self.head = head

    def maps(self, x: Tensor, architecture: Architecture | Genotype) -> list[Tensor]:
        """The last feature map of every resolution, finest first."""
        states = [self.stem(x.contiguous(memory_format=torch.channels_last))] * self.layout.num_inputs
        values, outputs = self.values(architecture), list[Tensor]()
        weights = {} if isinstance(architecture, Genotype) else self.layout.weights(architecture)
        for mixture, branches in zip(values, self.cells, strict=True):
            if isinstance(architecture, Cells):
                output = branches[int(mixture.argmax())].single(states, architecture)
            else:
                terms = [share * cell(states, *weights[cast(str, cell.kind)])
                         for share, cell in zip(mixture, branches, strict=True)]  # fmt: skip
                output = torch.stack(terms).sum(0)
            outputs.append(output)
            states = [*states[1:], output]
        outputs[-1] = self.final(outputs[-1])
        return self.last_maps(outputs)


class Branched(ConnectionSearch):
    """Search of one architecture for several tasks, and of the cells whose weights they share.

    Args:
        tasks: tasks of images.
        space: space of cells.
        options: options of the search.
        device: device of the computation (default: CPU).
    """

    name = "branched"
    options: BranchedOptions

    def __init__(
        self,
        tasks: Sequence[Task],
        space: Space,
        options: BranchedOptions | None = None,
        *,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(tasks, space, options or BranchedOptions(), device=device)

    @property
    def same_start(self) -> bool:
        """All tasks have the same branches, and heads that start together."""
        return True

    def _new_slots(self, seed: int) -> list[LearnerState]:
        slots, number = super()._new_slots(seed), self.options.num_branches
        copies = [self.learners[0].init(derived_seed(seed, "branch", b)) for b in range(1, number)]
        sources = [stacked_cells(slot) for slot in (slots[0], *copies)]
        decided = torch.eye(number, device=self.learners[0].device)[[0] * self.gradient.frame.num_cells]
        supernets = [BranchedSupernet(sources, slot.supernet.head, decided.clone()) for slot in slots]
        return shared_slots(slots, supernets, self.gradient)

    def _logits(self, streams: Streams) -> Tensor:
        shape = (self.gradient.frame.num_cells, self.num_tasks, self.options.num_branches)
        return NOISE * torch.randn(shape, generator=streams.at("branches"))

    def _values(self, state: MultitaskState, task: int, logits: Tensor) -> Tensor:
        uniform = torch.rand(logits[:, task].shape, generator=state.streams.at("gumbel", state.done, task))
        noise = -(-uniform.clamp(min=1e-20).log()).log().to(logits)
        total = self.gradient.epochs * self.passes_per_epoch(state.streams)
        return ((logits[:, task] + noise) / self.options.temperature(state.done / total)).softmax(-1)

    def _decided(self, task: int, logits: Tensor) -> Tensor:
        return nn.functional.one_hot(logits[:, task].argmax(-1), logits.shape[-1])

    def penalty(self, state: MultitaskState, logits: Tensor) -> Tensor:
        """Mean over positions of the expected number of branches, over the number of tasks."""
        return self.options.connection_penalty * expected_branches(logits.softmax(-1)).mean() / self.num_tasks

    def connection_facts(self, state: MultitaskState) -> Mapping[str, float | str]:
        """The tasks that share each cell, and the number of cells of the tree."""
        tree = shared_cells(state.architecture[CONNECTIONS].detach().argmax(-1).tolist())
        rows = ["; ".join("+".join(self.tasks[task].name for task in group) for group in groups) for groups in tree]
        text = " | ".join(f"cell {number}: {row}" for number, row in enumerate(rows, 1))
        return {"branching": text, "cells of the tree": float(sum(map(len, tree)))}


def expected_branches(probabilities: Tensor) -> Tensor:
    """Expected number of different branches that tasks choose: `[positions, tasks, B]` to `[positions]`.

    >>> expected_branches(torch.tensor([[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [1.0, 0.0]]])).tolist()
    [1.5, 1.0]
    """
    return (1 - (1 - probabilities).prod(1)).sum(-1)


def shared_cells(branches: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """For every position the groups of tasks with the same branches up to it.

    Args:
        branches: for every position the branch of each task.

    >>> shared_cells([[0, 0, 0], [1, 0, 1], [1, 1, 0]])
    [[[0, 1, 2]], [[0, 2], [1]], [[0], [1], [2]]]
    """
    tree = []
    for depth in range(1, len(branches) + 1):
        groups: dict[tuple[int, ...], list[int]] = {}
        for task, path in enumerate(zip(*branches[:depth], strict=True)):
            groups.setdefault(path, []).append(task)
        tree.append(list(groups.values()))
    return tree
