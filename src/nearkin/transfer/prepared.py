"""A task made ready for its evidence: its kernel or features once, its targets under any mean, and what is kept of it.

Notation: as in `targets`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

import torch
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Note, Work
from nearkin.core.rng import Streams
from nearkin.transfer.hyper import Learning, Mean
from nearkin.transfer.kernel import NUMBERS
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.spectrum import Spectrum, of_features, of_kernel
from nearkin.transfer.targets import Layout, checked_noise, checked_targets, layout_of, noise_rows

LAYERS_LIMIT = 800  # rows where single layers have scales

Points: TypeAlias = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None]
"""Inputs `[N, …]`, targets `[N]` or `[N, K]`, and known variances `[N]` or `[N, K]` where there are any."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A task ready to be learned from.

    Attributes:
        layout: how targets lie in rows.
        y: targets `[N, K]`.
        network: the network's outputs as means of the targets; None where they do not fit.
        known: variances `[F, R]`; None where none are known.
        gram: K `[R, R]`; None where features are fewer.
        features: Φ `[R, D]`; None where rows are fewer.
        kernels: by group of weights, where their scales are climbed to; their sum is K.
    """

    layout: Layout
    y: Tensor
    network: Tensor | None
    known: Tensor | None
    gram: Tensor | None
    features: Tensor | None
    kernels: Mapping[str, Tensor] = field(default_factory=dict)

    def rows(self, mean: Mean) -> tuple[Tensor, Tensor]:
        """Constants H `[R, Q]` and targets `[F, R, T]` under a mean."""
        off = self.y.mean(0) if mean == "constant" else torch.zeros(1).double()  # the fit of constants starts near them
        if mean == "network":
            assert self.network is not None
            off = self.network
        return self.layout.basis(len(self.y), mean), self.layout.rows(self.y - off)

    def kinds(self, mean: str) -> tuple[Mean, ...]:
        """The means that targets may have: the one asked for, or of `auto` those that fit."""
        fits = self.network is not None
        require(
            mean != "network" or fits,
            "mean='network' needs as many targets as outputs; use mean='constant'",
            MismatchError,
        )
        if mean != "auto":
            return (cast(Mean, mean),)
        return ("constant", "network") if fits else ("constant",)

    def spectrum(self, kinds: Sequence[Mean]) -> Spectrum:
        """Its spectrum, with the targets under each of these means side by side, and with constants if one has them."""
        basis = self.rows("constant" if "constant" in kinds else "zero")[0]
        targets = torch.cat([self.rows(kind)[1] for kind in kinds], 2)
        if self.gram is not None:
            return of_kernel(self.gram, basis, targets, self.known)
        assert self.features is not None
        return of_features(self.features, basis, targets, self.known)


@dataclass(frozen=True, eq=False)
class Digest:
    """What the evidence needs of a task, without its inputs and its kernel: some numbers a row.

    Attributes:
        all: the spectrum with the targets under every mean side by side.
        kinds: these means.
        level: the targets' mean square.
        num_numbers: how many targets there are.
        known: whether their noise is known.
        climb: the kernels themselves, where scales of layers or extra noise are climbed to.
    """

    all: Spectrum
    kinds: tuple[Mean, ...]
    level: float
    num_numbers: int
    known: bool
    climb: Prepared | None = None

    @property
    def num_bytes(self) -> int:
        """What keeping it takes: 8 (1 + Q + T) N for N rows, Q constants and T targets under each mean."""
        dense = () if self.climb is None else self.climb.kernels.values()
        return self.all.num_bytes + sum(one.numel() * one.element_size() for one in dense)

    def spectrum(self, kind: Mean) -> Spectrum:
        """Its spectrum under a mean."""
        size, place = self.all.num_columns // len(self.kinds), self.kinds.index(kind)
        return self.all.under(kind == "constant", slice(place * size, (place + 1) * size))


def digested(linearized: Linearized, points: Points, how: Learning, number: int) -> Work[Digest]:
    """What the evidence needs of task `number` of some tasks."""
    ready = yield from prepared(linearized, points, how, Streams(how.seed).child("task", number))
    kinds, climb = ready.kinds(how.mean), None
    if how.climbs:
        climb = replace(ready, gram=None)
    level = float(ready.y.square().mean())
    return Digest(ready.spectrum(kinds), kinds, level, ready.y.numel(), ready.known is not None, climb)


def prepared(linearized: Linearized, points: Points, how: Learning, streams: Streams) -> Work[Prepared]:
    """A task ready to be learned from; `streams` are those of the draw, where there are many points."""
    limit = min(how.limit, LAYERS_LIMIT) if how.climbs else how.limit
    x = linearized.inputs(points[0])
    y = checked_targets(points[1], len(x))
    known = checked_noise(points[2] if len(points) == 3 else None, len(x), y.shape[1])
    layout = layout_of(linearized, x, y, known)
    each = layout.num_outputs if layout.joint else 1
    size = linearized.num_weights * (layout.num_outputs if linearized.outputs == "sum" else 1)
    few = size < len(x) * each and size <= limit and not how.climbs
    fitting = max(limit, NUMBERS // size) if few else limit
    if len(x) * each > fitting:
        kept = torch.randperm(len(x), generator=streams.at("points"))[: max(1, fitting // each)]
        yield Note(f"hyper-parameters are learned on {len(kept):,} of {len(x):,} points")
        x, y, known = x[kept], y[kept], known[kept]
    network = layout.network(linearized.mean(x)) if layout.has_network_mean() else None
    kernels = linearized.layer_kernels(x) if how.layers else {}
    gram = None if few else sum(kernels.values()) if kernels else (yield from linearized.kernel.work(x))
    variances = noise_rows(layout, known) if len(points) == 3 and points[2] is not None else None
    require(
        variances is None or bool((variances > 0).all()),
        "known noise of 0 leaves nothing to weigh points by; give variances above 0",
        DataError,
    )
    features = linearized.features(x) if few else None
    if how.climbs and not kernels:
        kernels = {"": cast(Tensor, gram)}
    return Prepared(layout, y, network, variances, cast(Tensor | None, gram), features, kernels)
