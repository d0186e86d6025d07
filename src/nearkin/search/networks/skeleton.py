"""Macro-architecture of a genotype: width, depth, reductions, and aids in training."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from nearkin.core.errors import OptionError, require
from nearkin.search.spaces.mobile import MOBILE_STAGES
from nearkin.tasks.task import Task

BETWEEN = ("residual", "pool")
LARGE_SIDE = 32  # largest side of the feature maps of cells
MAX_DEPTH = 1000  # largest number of cells of a network, or of blocks of a chain
MAX_WIDTH = 2**16  # largest number of channels, and largest factor on them


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """Macro-architecture of a genotype, checked on construction.

    Attributes:
        channels: channels of the operations in the first stage of cells, of the first stage of a chain, or size of a
            recurrent state.
        num_cells: number of stacked cells.
        reductions: cells at which height and width are halved (default: those at one and two thirds of the depth, as in
            DARTS, but never the first).
        growth: factor on the channels at each reduction.
        between: how height and width are halved if the genotype has no reduction cell: `residual`, a block of two
            convolutions (NAS-Bench-201), or `pool`.
        stem_factor: ratio of the channels of the stem to `channels`; 3 in DARTS.
        stem_stride: factor by which the stem reduces large images: 1, 2, 4, …, one strided convolution for each 2.
        stages: number of blocks in each stage of a chain.
        auxiliary: whether a second head at two thirds of the depth is used in training.
        auxiliary_weight: weight of the loss of this head.
        drop_path: fraction of edges dropped in training, for each sample; it increases from 0 to this value in a run.
        dropout: dropout rate in front of the head, or of embeddings and states in a recurrent network, where it is one
            mask for all positions.
        weight_drop: fraction of the recurrent weights that are zero in a training step (recurrent networks only).
        dense: whether the outputs are images of the size of the input (cells only); then there are no reductions by
            default.

    >>> Skeleton(num_cells=8).reductions, Skeleton(num_cells=2).reductions
    ((2, 5), (1,))
    """

    channels: int = 16
    num_cells: int = 8
    reductions: tuple[int, ...] | None = None
    growth: int = 2
    between: str = "residual"
    stem_factor: int = 1
    stem_stride: int = 1
    stages: tuple[int, ...] = MOBILE_STAGES
    auxiliary: bool = False
    auxiliary_weight: float = 0.4
    drop_path: float = 0.0
    dropout: float = 0.0
    weight_drop: float = 0.0
    dense: bool = False

    def __post_init__(self) -> None:
        _require_whole("channels", self.channels, 2, MAX_WIDTH)
        for name, most in (("num_cells", MAX_DEPTH), ("growth", MAX_WIDTH), ("stem_factor", MAX_WIDTH)):
            _require_whole(name, getattr(self, name), 1, most)
        _require_whole("stem_stride", self.stem_stride, 1, MAX_WIDTH)
        for name in ("reductions", "stages"):
            sizes = getattr(self, name)
            require(
                (sizes is None and name == "reductions")
                or (isinstance(sizes, list | tuple) and all(type(size) is int for size in sizes)),
                f"{name} must be a list of whole numbers, got {sizes!r:.200}",
            )
        for name in ("drop_path", "dropout", "weight_drop", "auxiliary_weight"):
            value = getattr(self, name)
            require(isinstance(value, int | float), f"{name} must be a number, got {value!r:.200}")
        thirds = {self.num_cells // 3, 2 * self.num_cells // 3} - {0}
        default = set() if self.dense else thirds
        reductions = default if self.reductions is None else set(self.reductions)
        bad = [number for number in reductions if not 0 <= number < self.num_cells]
        require(not bad, f"reductions must be cells from 0 to {self.num_cells - 1}, got {bad}")
        require(self.between in BETWEEN, f"between must be {' or '.join(BETWEEN)}, got {self.between!r}")
        stride = self.stem_stride
        require(stride >= 1 and stride & (stride - 1) == 0, f"stem_stride must be 1, 2, 4, …, got {stride}")
        require(min(self.stages, default=0) >= 1, f"every stage has at least one block, got {tuple(self.stages)}")
        require(sum(self.stages) <= MAX_DEPTH, f"a chain has {MAX_DEPTH} blocks at most, got {sum(self.stages)}")
        for name in ("drop_path", "dropout", "weight_drop"):
            require(0 <= getattr(self, name) < 1, f"{name} must be a fraction in [0, 1), got {getattr(self, name)}")
        require(self.auxiliary_weight >= 0, f"auxiliary_weight must be 0 or more, got {self.auxiliary_weight}")
        require(not (self.dense and self.auxiliary), "an auxiliary head cannot predict images; set auxiliary to false")
        object.__setattr__(self, "reductions", tuple(sorted(reductions)))
        object.__setattr__(self, "stages", tuple(self.stages))

    @classmethod
    def suited(cls, input_shape: Sequence[int], **changes: Any) -> "Skeleton":
        """Skeleton whose stem reduces large images to at most 32 pixels a side, with changes.

        >>> Skeleton.suited((3, 224, 224)).stem_stride, Skeleton.suited((3, 32, 32)).stem_stride
        (8, 1)
        """
        side = max(input_shape[1:], default=1)
        changes.setdefault("stem_stride", 2 ** max(0, math.ceil(math.log2(side / LARGE_SIDE))))
        return cls.from_dict(changes)

    @classmethod
    def of_task(cls, task: Task, **changes: Any) -> "Skeleton":
        """Skeleton for the inputs and outputs of a task, with changes."""
        return cls.suited(task.input_shape, dense=task.likelihood == "dense", **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, read by `from_dict`."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Skeleton":
        """The inverse of `to_dict`; missing values have their defaults, unknown names are refused."""
        known = [field.name for field in fields(cls)]
        require(isinstance(facts, Mapping), f"a skeleton is read from names and values, got {facts!r:.200}")
        unknown = next((name for name in facts if name not in known), None)
        if unknown is not None:
            near = difflib.get_close_matches(unknown, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
            raise OptionError(f"a skeleton has no option {unknown!r}; {hint}")
        return cls(**facts)


def _require_whole(name: str, value: object, least: int, most: int) -> None:
    """Raise if a value, which may come from a file, is not a whole number between two limits."""
    fits = type(value) is int and least <= value <= most
    require(fits, f"{name} must be a whole number from {least} to {most:,}, got {value!r:.200}")
