r"""A family of tasks that share one linearized network: the hierarchy over tasks of Maddox et al. (2019, section 2.3).

$$θ'_t ∼ \mathcal N(0, s I), \qquad f_t = J_θ θ'_t + μ_t, \qquad y_t ∼ \mathcal N(f_t, σ^2 I)$$

Source weights θ, scale s, noise σ² and the kind of mean are shared. Each task has its own steps θ′ and constants. The
shared hyper-parameters are those under which the tasks so far are most probable together. A new task is then solved in
closed form, without training (the paper's Algorithm 1), and can be added to the family. If tasks differ in size or in
their fraction of noise (`variety`), `blended` weights hyper-parameters by the new task's own points.

For each task the family stores the spectrum and no kernel: 8 (1 + Q + T) bytes for each row, with Q constants and T
targets under each possible mean; 0.4 kB for ten points, 64 kB for two thousand. Scales of layers need the kernels,
which take 8 R² bytes for each layer.
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
from nearkin.transfer.hierarchy.cached_kernels import CachedKernels
from nearkin.transfer.hierarchy.variety import Variety, variety_of
from nearkin.transfer.hyper import PLAIN, Hyper, Learning
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.marginal_likelihood import learn_from_summaries
from nearkin.transfer.posterior import Posterior
from nearkin.transfer.prepared import Points, TaskSummary, summarize_task

MEMORY = 2**26  # bytes of stored spectra
LIGHT = 0.01  # components of a blend below this fraction of the largest weight are left out


@dataclass(frozen=True, eq=False)
class Family:
    """Tasks that share a linearized network and hyper-parameters; returned by `family`.

    Attributes:
        linearized: the network.
        how: options for learning the hyper-parameters.
        hyper: the shared hyper-parameters.
        summaries: of the stored tasks, the latest last.
        num_tasks: number of all tasks; larger than the number of summaries if `memory` is full.
        memory: bytes of stored tasks; beyond it the oldest are removed.
    """

    linearized: Linearized
    how: Learning
    hyper: Hyper
    summaries: tuple[TaskSummary, ...]
    num_tasks: int
    memory: int = MEMORY

    @property
    def num_bytes(self) -> int:
        """Size of the stored tasks."""
        return sum(task.num_bytes for task in self.summaries)

    def adapted(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Posterior:
        """The posterior of a task `[N, *input_shape]`, `[N]` or `[N, K]` under the shared hyper-parameters."""
        return gaussian(self.linearized, x, y, self.hyper, noise, seed=self.how.seed)

    def log_evidence(self, tasks: Sequence[Points]) -> float:
        """The summed log evidence of tasks under the shared hyper-parameters."""
        return sum(self.adapted(*points).log_evidence for points in tasks)

    @cached_property
    def variety(self) -> Variety:
        """How the stored tasks differ in size and in their fraction of noise."""
        if self.hyper.layers or self.how.extra:
            raise OptionError(
                "got a family with scales of layers or extra noise, blending needs one scale; make it without layers "
                "and extra"
            )
        return variety_of([task.spectrum(self.hyper.mean) for task in self.summaries], self.summaries[0].known)

    @operation
    def blended(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Work[Blend]:
        """The posterior of a task with several hyper-parameters, weighted by all tasks and by its own points.

        It needs several solves but only one kernel.
        """
        how, mean = replace(self.how, mean=self.hyper.mean), self.hyper.mean
        linearized = CachedKernels.of(self.linearized)
        task = yield from summarize_task(linearized, (x, y, noise), how, self.num_tasks)
        spectrum, variety = task.spectrum(mean), self.variety
        weights = variety.weights(spectrum)
        chosen = [index for index, weight in enumerate(weights) if weight > LIGHT * max(weights)]
        posteriors: list[Posterior] = []
        for index in chosen:
            hyper = variety.hyper(spectrum, index, mean)
            posteriors.append((yield from gaussian.work(linearized, x, y, hyper, noise, seed=self.how.seed)))
            yield Progress("blend", len(posteriors), len(chosen))
        chosen_weights = torch.tensor([weights[index] for index in chosen]).double()
        return Blend(tuple(posteriors), chosen_weights / chosen_weights.sum(), variety.freedom(spectrum))

    @operation
    def grown(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Work["Family"]:
        """The family with one more task; kernels of earlier tasks are not computed again."""
        task = yield from summarize_task(self.linearized, (x, y, noise), self.how, self.num_tasks)
        complete = len(self.summaries) == self.num_tasks
        summaries = yield from _within_memory([*self.summaries, task], self.memory, complete)
        hyper = yield from learn_from_summaries(summaries, self.how)
        return replace(self, hyper=hyper, summaries=tuple(summaries), num_tasks=self.num_tasks + 1)

    def stream(self, tasks: Iterable[Points]) -> Iterator["StreamStep"]:
        """Solve tasks one after the other, each with the hyper-parameters of the tasks before it, and then add it.

        A step is computed only when the caller asks for it.
        """
        before = self
        for points in tasks:
            posterior = before.adapted(*points)
            after = before.grown(*points)
            yield StreamStep(posterior, before, after)
            before = after


@dataclass(frozen=True, eq=False)
class StreamStep:
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
    """The family of tasks, with the hyper-parameters under which all tasks together are most probable.

    Args:
        linearized: the network.
        tasks: inputs and targets of each, and optionally known variances, for all tasks or for none.
        how: the mean, scales of layers, the floor of the noise, the limit of rows.
        memory: bytes of stored spectra; beyond it the oldest tasks are removed.

    >>> from nearkin.transfer.linearized import linearize
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> lines = [(x, slope * x[:, 0] + 0.1 * torch.cos(40 * x[:, 0])) for slope in (-3.0, 1.0, 2.0)]
    >>> tasks = family(linearize(torch.nn.Linear(1, 1)), lines)
    >>> posterior = tasks.adapted(x[::10], 5 * x[::10, 0])
    >>> round(float(posterior.mean(torch.tensor([[0.5]]))), 1), tasks.grown(*lines[0]).num_tasks, tasks.num_bytes < 2000
    (2.5, 4, True)
    """
    require(memory >= 1, f"memory is 1 byte or more, got {memory}")
    summaries: list[TaskSummary] = []
    for number, points in enumerate(tasks):
        summaries.append((yield from summarize_task(linearized, points, how, number)))
        summaries = yield from _within_memory(summaries, memory, len(summaries) == number + 1)
        yield Progress("kernels", number + 1, len(tasks))
    hyper = yield from learn_from_summaries(summaries, how)
    return Family(linearized, how, hyper, tuple(summaries), len(tasks), memory)


def _within_memory(tasks: list[TaskSummary], memory: int, complete: bool) -> Work[list[TaskSummary]]:
    """The latest tasks that fit, at least one; `complete` tells whether no task was removed before."""
    size, count = 0, 0
    for task in reversed(tasks):
        size += task.num_bytes
        if count and size > memory:
            break
        count += 1
    if count < len(tasks):
        text = f"{count:,} tasks fill the memory of {memory:,} bytes; of {len(tasks):,} tasks the oldest are removed"
        yield Caution(f"{text}; raise memory to keep more") if complete else Note(text)
    return tasks[-count:]
