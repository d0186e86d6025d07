"""Kernels, targets and spectra of tasks, from which the evidence of hyper-parameters is computed.

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
from nearkin.transfer.spectrum import Spectrum, feature_spectrum, kernel_spectrum
from nearkin.transfer.targets import RowLayout, checked_noise, checked_targets, row_layout

LAYERS_LIMIT = 800  # largest number of rows if layers have their own scales

Points: TypeAlias = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None]
"""Inputs `[N, …]`, targets `[N]` or `[N, K]`, and optionally known variances `[N]` or `[N, K]`."""


@dataclass(frozen=True, eq=False)
class PreparedTask:
    """The kernel and the targets of a task.

    Attributes:
        layout: how targets are arranged in rows.
        y: targets `[N, K]`.
        network: the network's outputs as means of the targets; None if their numbers differ.
        known: known variances `[F, R]`; None if there are none.
        gram: K `[R, R]`; None if the features are used instead.
        features: Φ `[R, D]`; None if the kernel is used.
        kernels: kernels by group of weights, if each group has its own scale; their sum is K.
    """

    layout: RowLayout
    y: Tensor
    network: Tensor | None
    known: Tensor | None
    gram: Tensor | None
    features: Tensor | None
    kernels: Mapping[str, Tensor] = field(default_factory=dict)

    def rows(self, mean: Mean) -> tuple[Tensor, Tensor]:
        """Constants H `[R, Q]` and targets `[F, R, T]` under a mean."""
        off = self.y.mean(0) if mean == "constant" else torch.zeros(1).double()  # close to the fitted constants
        if mean == "network":
            assert self.network is not None
            off = self.network
        return self.layout.basis(len(self.y), mean), self.layout.rows(self.y - off)

    def kinds(self, mean: str) -> tuple[Mean, ...]:
        """The possible means of the targets: the given one, or all that fit for `auto`."""
        fits = self.network is not None
        require(
            mean != "network" or fits,
            "mean='network' needs as many targets as outputs, their numbers differ; use mean='constant'",
            MismatchError,
        )
        if mean != "auto":
            return (cast(Mean, mean),)
        return ("constant", "network") if fits else ("constant",)

    def spectrum(self, kinds: Sequence[Mean]) -> Spectrum:
        """The spectrum, with one set of target columns for each mean, and with constants if a mean has them."""
        basis = self.rows("constant" if "constant" in kinds else "zero")[0]
        targets = torch.cat([self.rows(kind)[1] for kind in kinds], 2)
        if self.gram is not None:
            return kernel_spectrum(self.gram, basis, targets, self.known)
        assert self.features is not None
        return feature_spectrum(self.features, basis, targets, self.known)


@dataclass(frozen=True, eq=False)
class TaskSummary:
    """The part of a task that its evidence depends on: a few numbers for each row, without inputs and kernel.

    Attributes:
        all_means: the spectrum with one set of target columns for each mean.
        kinds: these means.
        level: the targets' mean square.
        num_numbers: number of targets.
        known: whether their noise is known.
        prepared: the kernels, if scales of layers or extra noise are learned.
    """

    all_means: Spectrum
    kinds: tuple[Mean, ...]
    level: float
    num_numbers: int
    known: bool
    prepared: PreparedTask | None = None

    @property
    def num_bytes(self) -> int:
        """Its size in memory: 8 (1 + Q + T) N for N rows, Q constants and T targets under each mean."""
        kernels = () if self.prepared is None else self.prepared.kernels.values()
        return self.all_means.num_bytes + sum(kernel.nbytes for kernel in kernels)

    def spectrum(self, kind: Mean) -> Spectrum:
        """The spectrum under one mean."""
        size, index = self.all_means.num_columns // len(self.kinds), self.kinds.index(kind)
        return self.all_means.under(kind == "constant", slice(index * size, (index + 1) * size))


def summarize_task(linearized: Linearized, points: Points, how: Learning, number: int) -> Work[TaskSummary]:
    """The summary of task `number` of several tasks."""
    task = yield from prepare_task(linearized, points, how, Streams(how.seed).child("task", number))
    kinds = task.kinds(how.mean)
    level, known = float(task.y.square().mean()), task.known is not None
    dense = replace(task, gram=None) if how.uses_kernels else None
    return TaskSummary(task.spectrum(kinds), kinds, level, task.y.numel(), known, dense)


def prepare_task(linearized: Linearized, points: Points, how: Learning, streams: Streams) -> Work[PreparedTask]:
    """The kernel and the targets of a task; of too many points some are drawn from `streams`."""
    limit = min(how.limit, LAYERS_LIMIT) if how.uses_kernels else how.limit
    x = linearized.inputs(points[0])
    y = checked_targets(points[1], len(x))
    noise = points[2] if len(points) == 3 else None
    known = checked_noise(noise, len(x), y.shape[1])
    layout = row_layout(linearized, x, y, known)
    each = layout.num_outputs if layout.joint else 1
    size = linearized.num_weights * (layout.num_outputs if linearized.outputs == "sum" else 1)
    use_features = size < len(x) * each and size <= limit and not how.uses_kernels
    max_rows = max(limit, NUMBERS // size) if use_features else limit
    if len(x) * each > max_rows:
        chosen = torch.randperm(len(x), generator=streams.at("points"))[: max(1, max_rows // each)]
        yield Note(f"hyper-parameters are learned on {len(chosen):,} of {len(x):,} points")
        x, y, known = x[chosen], y[chosen], known[chosen]
    network = layout.network(linearized.mean(x)) if layout.has_network_mean() else None
    kernels = linearized.layer_kernels(x) if how.layers else {}
    gram = None if use_features else sum(kernels.values()) if kernels else (yield from linearized.kernel.work(x))
    variances = None if noise is None else layout.noise_rows(known)
    require(
        variances is None or bool((variances > 0).all()),
        "got a known noise of 0, expected variances above 0; raise it",
        DataError,
    )
    features = linearized.features(x) if use_features else None
    if how.uses_kernels and not kernels:
        kernels = {"": cast(Tensor, gram)}
    return PreparedTask(layout, y, network, variances, cast(Tensor | None, gram), features, kernels)
