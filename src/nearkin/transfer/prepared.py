"""A task made ready for its evidence: its kernel or features once, its targets under any mean.

Notation: as in `targets`.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Note, Work
from nearkin.core.rng import Streams
from nearkin.transfer.hyper import Mean
from nearkin.transfer.kernel import NUMBERS
from nearkin.transfer.linearize import Linearized
from nearkin.transfer.spectrum import Spectrum, of_features, of_kernel
from nearkin.transfer.targets import Layout, checked_noise, checked_targets, layout_of, noise_rows

Points: TypeAlias = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None]
"""Inputs `[N, …]`, targets `[N]` or `[N, K]`, and known variances `[N]` or `[N, K]` where there are any."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A task ready to be learned from.

    Attributes:
        layout: how targets lie in rows.
        x: inputs.
        y: targets `[N, K]`.
        network: the network's outputs as means of the targets; None where they do not fit.
        known: variances `[F, R]`; None where none are known.
        gram: K `[R, R]`; None where features are fewer.
        features: Φ `[R, D]`; None where rows are fewer.
    """

    layout: Layout
    x: Tensor
    y: Tensor
    network: Tensor | None
    known: Tensor | None
    gram: Tensor | None
    features: Tensor | None

    @property
    def level(self) -> float:
        """The targets' mean square."""
        return float(self.y.square().mean())

    def rows(self, mean: Mean) -> tuple[Tensor, Tensor]:
        """Constants H `[R, Q]` and targets `[F, R, T]` under a mean."""
        off = self.y.mean(0) if mean == "constant" else torch.zeros(1).double()  # the fit of constants starts near them
        if mean == "network":
            assert self.network is not None
            off = self.network
        return self.layout.basis(len(self.y), mean), self.layout.rows(self.y - off)

    def spectrum(self, mean: Mean) -> Spectrum:
        """Its spectrum under a mean."""
        if self.gram is not None:
            return of_kernel(self.gram, *self.rows(mean), self.known)
        assert self.features is not None
        return of_features(self.features, *self.rows(mean), self.known)


def prepared(linearized: Linearized, points: Points, limit: int, dense: bool, streams: Streams) -> Work[Prepared]:
    """A task ready to be learned from.

    Args:
        linearized: the network.
        points: of the task.
        limit: rows of a kernel at the most; of more points some are drawn.
        dense: whether the kernel is needed even where features are fewer.
        streams: of the draw.
    """
    x = linearized.inputs(points[0])
    y = checked_targets(points[1], len(x))
    known = checked_noise(points[2] if len(points) == 3 else None, len(x), y.shape[1])
    layout = layout_of(linearized, x, y, known)
    each = layout.num_outputs if layout.joint else 1
    size = linearized.num_weights * (layout.num_outputs if linearized.outputs == "sum" else 1)
    few = size < len(x) * each and size <= limit and not dense
    fitting = max(limit, NUMBERS // size) if few else limit
    if len(x) * each > fitting:
        kept = torch.randperm(len(x), generator=streams.at("points"))[: max(1, fitting // each)]
        yield Note(f"hyper-parameters are learned on {len(kept):,} of {len(x):,} points")
        x, y, known = x[kept], y[kept], known[kept]
    network = layout.network(linearized.mean(x)) if layout.has_network_mean() else None
    gram = None if few else (yield from linearized.kernel_work(x))
    variances = noise_rows(layout, known) if len(points) == 3 and points[2] is not None else None
    require(
        variances is None or bool((variances > 0).all()),
        "known noise of 0 leaves nothing to weigh points by; give variances above 0",
        DataError,
    )
    features = linearized.features(x) if few else None
    return Prepared(layout, x, y, network, variances, gram, features)
