r"""A family of tasks that share one linearized network: the hierarchy over tasks of Maddox et al. (2019, section 2.3).

$$θ'_t ∼ \mathcal N(0, s I), \qquad f_t = J_θ θ'_t + μ_t, \qquad y_t ∼ \mathcal N(f_t, σ^2 I)$$

Source weights θ, scale s, noise σ² and the kind of mean are shared; steps θ′ and constants are the task's own. Shared
numbers are those under which the tasks seen so far are most probable together. A new task is then solved in closed
form, with nothing trained (the paper's Algorithm 1), and may itself count from then on. Where tasks differ in size or
in how much of them is noise (`variety`), `blended` weighs hyper-parameters by the new task's own points.

Of a task seen the spectrum is kept and no kernel: 8 (1 + Q + T) bytes a row, with Q constants and T targets under each
mean that is in question; 0.4 kB for ten points, 64 kB for two thousand. Scales of layers need the kernels themselves,
8 R² bytes a layer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from nearkin.core.errors import OptionError, require
from nearkin.core.events import Caution, Note, Progress, Work, operation
from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hierarchy.blend import Blend
from nearkin.transfer.hierarchy.shared import Shared
from nearkin.transfer.hierarchy.variety import Variety, variety_of
from nearkin.transfer.hyper import PLAIN, Hyper, Learning
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.marginal_likelihood import learned
from nearkin.transfer.posterior import Posterior
from nearkin.transfer.prepared import Digest, Points, digested

MEMORY = 2**26  # bytes of spectra that are kept
LIGHT = 0.01  # parts of a blend with less than this share of the heaviest are left out


@dataclass(frozen=True, eq=False)
class Family:
    """Tasks that share a linearized network and hyper-parameters; made by `family`.

    Attributes:
        linearized: the network.
        how: the hyper-parameters are learned.
        hyper: the shared ones.
        digests: what is kept of the tasks seen, the latest last.
        num_tasks: how many were seen; more than are kept once `memory` is full.
        memory: bytes of what is kept; beyond, the oldest tasks are forgotten.
    """

    linearized: Linearized
    how: Learning
    hyper: Hyper
    digests: tuple[Digest, ...]
    num_tasks: int
    memory: int = MEMORY

    @property
    def num_bytes(self) -> int:
        """What the tasks seen take."""
        return sum(one.num_bytes for one in self.digests)

    def adapted(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Posterior:
        """The posterior of a task `[N, *input_shape]`, `[N]` or `[N, K]` under the shared hyper-parameters."""
        return gaussian(self.linearized, x, y, self.hyper, noise, seed=self.how.seed)

    def log_evidence(self, tasks: Sequence[Points]) -> float:
        """The summed log evidence of some tasks under the shared hyper-parameters."""
        return sum(self.adapted(*points).log_evidence for points in tasks)

    @cached_property
    def variety(self) -> Variety:
        """How the tasks seen differ in size and in their share of noise."""
        if self.hyper.layers or self.how.extra:
            raise OptionError("tasks that differ are weighed with one scale; make the family without layers and extra")
        return variety_of([one.spectrum(self.hyper.mean) for one in self.digests], self.digests[0].known)

    @operation
    def blended(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Work[Blend]:
        """The posterior of a task over hyper-parameters too: a blend of some, weighed by the tasks seen and its own.

        It costs some solves in place of one, but no kernel more.
        """
        how = replace(self.how, mean=self.hyper.mean)
        linearized = Shared.of(self.linearized)
        digest = yield from digested(linearized, (x, y, noise), how, self.num_tasks)
        spectrum, shared = digest.spectrum(self.hyper.mean), self.variety
        weights = shared.weights(spectrum)
        kept = [place for place, weight in enumerate(weights) if weight > LIGHT * max(weights)]
        parts: list[Posterior] = []
        for place in kept:
            hyper = shared.hyper(spectrum, place, self.hyper.mean)
            parts.append((yield from gaussian.work(linearized, x, y, hyper, noise, seed=self.how.seed)))
            yield Progress("blend", len(parts), len(kept))
        heavy = torch.tensor([weights[place] for place in kept]).double()
        return Blend(tuple(parts), heavy / heavy.sum(), shared.freedom(spectrum))

    @operation
    def grown(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Work["Family"]:
        """The family with one task more; no kernel of an earlier task is computed again."""
        fresh = yield from digested(self.linearized, (x, y, noise), self.how, self.num_tasks)
        digests = yield from _within_memory([*self.digests, fresh], self.memory, len(self.digests) == self.num_tasks)
        hyper = yield from learned(digests, self.how)
        return replace(self, hyper=hyper, digests=tuple(digests), num_tasks=self.num_tasks + 1)

    def stream(self, tasks: Iterable[Points]) -> Iterator["Step"]:
        """Task after task: each is solved with what the tasks before it taught, and counts only then.

        Nothing runs ahead of the caller, who may judge, save or stop at every step.
        """
        before = self
        for points in tasks:
            posterior = before.adapted(*points)
            after = before.grown(*points)
            yield Step(posterior, before, after)
            before = after


@dataclass(frozen=True, eq=False)
class Step:
    """One task of a stream.

    Attributes:
        posterior: of the task, under the hyper-parameters of `before`.
        before: the family of the tasks before it.
        after: that family with this task.
    """

    posterior: Posterior
    before: Family
    after: Family


@operation
def family(
    linearized: Linearized, tasks: Sequence[Points], how: Learning = PLAIN, memory: int = MEMORY
) -> Work[Family]:
    """The family of some tasks, its hyper-parameters those under which all of them together are most probable.

    Args:
        linearized: the network.
        tasks: inputs and targets of each, and known variances where there are any: of all or of none.
        how: which mean, scales of layers, the floor of the noise, the limit of rows.
        memory: bytes of spectra to keep; beyond, the oldest tasks are forgotten.

    >>> from nearkin.transfer.linearized import linearize
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> lines = [(x, slope * x[:, 0] + 0.1 * torch.cos(40 * x[:, 0])) for slope in (-3.0, 1.0, 2.0)]
    >>> some = family(linearize(torch.nn.Linear(1, 1)), lines)
    >>> said = some.adapted(x[::10], 5 * x[::10, 0])
    >>> round(float(said.mean(torch.tensor([[0.5]]))), 1), some.grown(*lines[0]).num_tasks, some.num_bytes < 2000
    (2.5, 4, True)
    """
    require(memory >= 1, f"memory is 1 byte or more, got {memory}")
    digests: list[Digest] = []
    for number, points in enumerate(tasks):
        digests.append((yield from digested(linearized, points, how, number)))
        digests = yield from _within_memory(digests, memory, len(digests) == number + 1)
        yield Progress("kernels", number + 1, len(tasks))
    hyper = yield from learned(digests, how)
    return Family(linearized, how, hyper, tuple(digests), len(tasks), memory)


def _within_memory(digests: list[Digest], memory: int, first: bool) -> Work[list[Digest]]:
    """The latest tasks that fit, one at the least; `first` is whether nothing was forgotten before."""
    taken, kept = 0, 0
    for one in reversed(digests):
        taken += one.num_bytes
        if kept and taken > memory:
            break
        kept += 1
    if kept < len(digests):
        said = f"{kept:,} tasks fill the {memory:,} bytes kept of them; of {len(digests):,} the oldest are forgotten"
        yield Caution(f"{said}; raise memory to keep more") if first else Note(said)
    return digests[-kept:]
