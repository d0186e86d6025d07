r"""Feature fusion between columns (after MTL-NAS, Gao et al. 2020, in small form): which fusions exist is searched.

Every task has a column, an encoder of its own. After cell n column k adds features of the other columns at this level,

$$f_{nk} \leftarrow f_{nk} + \sum_{j \ne k} \sigma(a_{nkj})\, C_{nkj} f_{nj},$$

with 1×1 convolutions C, which start at 0, and gates $\sigma(a)$ that learn on validation data. A penalty on the entropy
of the gates, which grows linearly with the passes, draws them to 0 or 1. In the end gates above one half are kept.

In MTL-NAS the tasks have the same images. Here they have different ones, so all columns run on the batch of every
task: a step of K tasks costs $K^2$ encoders instead of K. Simplified further: edges join equal levels only, a fusion
has no norm of its own, gates are not sampled, and the operations of the cells, which all columns have in common, are
searched too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from nearkin.core.rng import Streams
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
from nearkin.search.supernet.reference import StackedCells, cell_positions
from nearkin.search.supernet.supernet_layout import Architecture
from nearkin.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class FusedColumnsOptions(ConnectionOptions):
    """Options of feature fusion between columns; the penalty is on the mean entropy of the gates."""


class EncoderColumn(nn.Module):
    """Stem, cells and final layers of a supernet, without its head."""

    def __init__(self, source: StackedCells) -> None:
        super().__init__()
        self.stem, self.final = source.stem, source.final
        self.cells = cast(nn.ModuleList, source.cells)


class ColumnsSupernet(ConnectedSupernet):
    """Supernet of one task: the columns of all tasks with their fusions, and the head of this one.

    Args:
        columns: the columns, in the order of the tasks.
        fusions: 1×1 convolutions by names `level_target_source`.
        slot: supernet of the task, which gives layout and head.
        task: number of the task.
        decided: gates `[levels, K, K]`.
    """

    def __init__(
        self, columns: nn.ModuleList, fusions: nn.ModuleDict, slot: StackedCells, task: int, decided: Tensor
    ) -> None:
        super().__init__(slot.layout, slot.frame, decided)
        self.columns, self.fusions, self.task = with_same_weights(columns), fusions, task
        self.head = slot.head

    def maps(self, x: Tensor, architecture: Architecture | Genotype) -> list[Tensor]:
        """The last feature map of every resolution of the task's own column, finest first."""
        columns = cast(Sequence[EncoderColumn], self.columns)
        x = x.contiguous(memory_format=torch.channels_last)
        states = [[column.stem(x)] * self.layout.num_inputs for column in columns]
        weights = {} if isinstance(architecture, Genotype) else self.layout.weights(architecture)
        gates, outputs, levels = self.values(architecture), list[Tensor](), self.frame.num_cells
        for level in range(levels):
            features = []
            for column, inputs in zip(columns, states, strict=True):
                cell = column.cells[level]
                if isinstance(architecture, Cells):
                    features.append(cell.single(inputs, architecture))  # type: ignore[operator]
                else:
                    features.append(cell(inputs, *weights[cast(str, cell.kind)]))
            targets = range(len(columns)) if level < levels - 1 else [self.task]
            fused = {target: self._fused(level, target, features, gates[level, target]) for target in targets}
            outputs.append(fused[self.task])
            states = [[*past[1:], fused.get(number, feature)]
                      for number, (past, feature) in enumerate(zip(states, features, strict=True))]  # fmt: skip
        outputs[-1] = columns[self.task].final(outputs[-1])
        return self.last_maps(outputs)

    def _fused(self, level: int, target: int, features: Sequence[Tensor], gates: Tensor) -> Tensor:
        total = features[target]
        for source, feature in enumerate(features):
            if source != target:
                total = total + gates[source] * self.fusions[edge_name(level, target, source)](feature)
        return total


def edge_name(level: int, target: int, source: int) -> str:
    """Name of a fusion."""
    return f"{level}_{target}_{source}"


class FusedColumns(ConnectionSearch):
    """Search of one architecture for several tasks, and of the fusions between their encoders.

    Args:
        tasks: tasks of images.
        space: space of cells.
        options: options of the search.
        device: device of the computation (default: CPU).
    """

    name = "fused-columns"
    options: FusedColumnsOptions

    def __init__(
        self,
        tasks: Sequence[Task],
        space: Space,
        options: FusedColumnsOptions | None = None,
        *,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(tasks, space, options or FusedColumnsOptions(), device=device)

    @property
    def _edges(self) -> list[tuple[int, int, int]]:
        """Level, target and source of every fusion."""
        tasks = range(self.num_tasks)
        levels = range(self.gradient.frame.num_cells)
        return [(level, k, j) for level in levels for k in tasks for j in tasks if k != j]

    def _new_slots(self, seed: int) -> list[LearnerState]:
        slots, device = super()._new_slots(seed), self.learners[0].device
        columns = nn.ModuleList(EncoderColumn(stacked_cells(slot)) for slot in slots)
        layout = stacked_cells(slots[0]).layout
        positions, _, _ = cell_positions(layout, self.gradient.frame)
        fusions = nn.ModuleDict()
        for level, target, source in self._edges:
            width = positions[level].channels * len(layout.output)
            fusion = nn.utils.skip_init(nn.Conv2d, width, width, 1, bias=False)
            nn.init.zeros_(fusion.weight)
            fusions[edge_name(level, target, source)] = fusion.to(device)
        decided = torch.zeros(self._shape, device=device)
        supernets = [
            ColumnsSupernet(columns, fusions, stacked_cells(slot), task, decided.clone())
            for task, slot in enumerate(slots)
        ]
        return shared_slots(slots, supernets, self.gradient)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.gradient.frame.num_cells, self.num_tasks, self.num_tasks

    def _logits(self, streams: Streams) -> Tensor:
        return torch.zeros(self._shape)

    def _values(self, state: MultitaskState, task: int, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def _decided(self, task: int, logits: Tensor) -> Tensor:
        return (logits > 0).to(logits)

    def penalty(self, state: MultitaskState, logits: Tensor) -> Tensor:
        """Mean entropy of the gates in nats, with a factor that grows with the passes."""
        share = state.done / (self.gradient.epochs * self.passes_per_epoch(state.streams))
        if not self._edges:
            return 0 * logits.sum()
        gates = torch.stack([logits[edge] for edge in self._edges]).sigmoid()
        return self.options.connection_penalty * share * mean_entropy(gates)

    def connection_facts(self, state: MultitaskState) -> Mapping[str, float | str]:
        """The fusions that are kept."""
        logits, names = state.architecture[CONNECTIONS].detach(), [task.name for task in self.tasks]
        kept = [f"cell {level + 1}: {names[j]} to {names[k]}" for level, k, j in self._edges if logits[level, k, j] > 0]
        return {"fusions": " | ".join(kept) or "none", "number of fusions": float(len(kept))}


def mean_entropy(gates: Tensor) -> Tensor:
    """Mean entropy in nats of gates that are open with these probabilities.

    >>> round(float(mean_entropy(torch.tensor([0.5, 1.0]))), 4)
    0.3466
    """
    entropy: Tensor = torch.special.entr(gates) + torch.special.entr(1 - gates)
    return entropy.mean()
