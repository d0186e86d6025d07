"""Training history: the loss of every step and the measurements on validation data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require


class Measurement(NamedTuple):
    """Metric and loss on the validation set after `step` steps."""

    step: int
    metric: float
    loss: float


@dataclass(frozen=True, eq=False)
class History:
    """Losses `[S]` of a run's steps, its measurements on the validation set, and the number of steps in an epoch."""

    losses: Tensor
    measured: tuple[Measurement, ...] = ()
    steps_per_epoch: int = 1

    def steps_to(self, loss: float, window: int | None = None) -> int | None:
        """The first step after which the mean loss of the last `window` steps is at most `loss`; None if never.

        The window (default: an epoch, at most ten steps) averages out single batches with a small loss.

        >>> History(torch.tensor([3.0, 2.0, 1.0, 1.0]), steps_per_epoch=2).steps_to(1.5)
        3
        >>> History(torch.tensor([3.0, 2.0])).steps_to(0.1) is None
        True
        """
        width = window if window is not None else min(10, self.steps_per_epoch)
        require(width >= 1, f"got a window of {width} steps, expected 1 or more; change the window")
        if len(self.losses) < width:
            return None
        total = torch.cat([torch.zeros(1, dtype=torch.float64), self.losses.double().cumsum(0)])
        reached = torch.nonzero((total[width:] - total[:-width]) / width <= loss)
        return int(reached[0, 0]) + width if len(reached) else None

    def to_tensors(self) -> dict[str, Tensor]:
        """The tensors that are stored in a safetensors file."""
        table = torch.tensor([list(row) for row in self.measured], dtype=torch.float64).reshape(-1, 3)
        return {"losses": self.losses, "measured": table, "steps_per_epoch": torch.tensor([self.steps_per_epoch])}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "History":
        """The inverse of `to_tensors`."""
        losses, measured, per_epoch = (tensors[name] for name in ("losses", "measured", "steps_per_epoch"))
        shapes = [tuple(value.shape[1:]) for value in (losses, measured, per_epoch) if value.dim() > 0]
        fits = shapes == [(), (3,), ()] and len(per_epoch) == 1 and int(per_epoch[0]) >= 1
        require(fits, f"a stored training history has tensors of shapes {shapes}, expected [(), (3,), ()] with one "
                      f"number of steps per epoch; train the network again", DataError)  # fmt: skip
        return cls(losses, measurements_from(measured.tolist()), int(per_epoch[0]))


def measurements_from(rows: Sequence[Sequence[float]]) -> tuple[Measurement, ...]:
    """Measurements from rows of step, metric and loss."""
    return tuple(Measurement(int(step), float(metric), float(loss)) for step, metric, loss in rows)
