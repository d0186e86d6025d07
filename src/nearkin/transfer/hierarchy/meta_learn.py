r"""Source weights learned from tasks: gradient steps on the pooled evidence, through the solve.

$$\max_{θ,\, σ^2,\, s} \; \sum_t \log p(y_t \mid X_t, θ, σ^2, s)$$

The source weights then do not come from one task; they make many tasks probable at once, which the paper proposes as
future work. A step needs a second derivative of the network for every point, so it is for small networks. Tasks with
large targets would dominate the sum. Unless noise is known, each task has its own size, which is integrated out
(`dense_log_evidence`).

Notation: as in `meta`.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.core.events import Note, Progress, Work, operation
from nearkin.core.rng import Streams
from nearkin.transfer.hierarchy.meta import pooled_evidence, source_params
from nearkin.transfer.hyper import PLAIN, Hyper, Learning
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.marginal_likelihood import learn_pooled
from nearkin.transfer.prepared import Points

SHAPE = 1.0  # of the prior of the sizes, which is broad
RATIO = 30.0  # smallest initial ratio of function to noise; with noise alone, the weights have no gradient


@dataclass(frozen=True, kw_only=True)
class MetaLearning:
    """Options for learning source weights.

    Attributes:
        steps: number of steps of Adam (default: 400).
        rate: learning rate of the weights, which decays to zero along a cosine.
        hyper_rate: learning rate of log noise and log scale.
        tasks: number of random tasks in each step; 0 for all.
        sizes: whether every task has its own size; ignored if noise is known.
        seed: of the random tasks.
    """

    steps: int = 400
    rate: float = 3e-3
    hyper_rate: float = 3e-2
    tasks: int = 20
    sizes: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"steps is 1 or more, got {self.steps}")
        for name in ("rate", "hyper_rate"):
            require(getattr(self, name) > 0, f"{name} is above 0, got {getattr(self, name)}")
        require(self.tasks >= 0, f"tasks is the number of tasks in each step, or 0 for all, got {self.tasks}")


META_LEARNING = MetaLearning()


@operation
def meta_learned(
    linearized: Linearized, tasks: Sequence[Points], options: MetaLearning = META_LEARNING, how: Learning = PLAIN
) -> Work[Linearized]:
    """The network at source weights under which all tasks together are more probable.

    All weights are learned, also those that are not free to move afterwards.

    Args:
        linearized: the network to start from, which is not changed.
        tasks: inputs, targets, and optionally known variances.
        options: steps and learning rates.
        how: options for learning the mean, the initial noise and the initial scale.

    >>> from nearkin.transfer.linearized import linearize
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> flat, x = linearize(net), torch.linspace(-2, 2, 9)[:, None]
    >>> tasks = [(x, torch.sin(2 * x[:, 0] + phase)) for phase in (0.0, 1.0, 2.0)]
    >>> better = meta_learned(flat, tasks, MetaLearning(steps=20))
    >>> better.names == flat.names, better.fingerprint == flat.fingerprint
    (True, False)
    """
    require(len(tasks) > 0, "there is no task to learn from; give one or more", DataError)
    start = yield from learn_pooled.work(linearized, tasks, replace(how, layers=False, extra=False))
    yield Note(f"source weights are learned from noise {start.noise:.1e}, scale {start.scale:.1e}, mean {start.mean}")
    theta, free = source_params(linearized), _log_hyper(linearized, tasks, start)
    shape = SHAPE if options.sizes and "log_noise" in free else None
    optimizer = torch.optim.Adam(
        [
            {"params": list(theta.values()), "lr": options.rate},
            {"params": list(free.values()), "lr": options.hyper_rate},
        ]
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    streams, count = Streams(options.seed), options.tasks or len(tasks)
    for step in range(options.steps):
        order = torch.randperm(len(tasks), generator=streams.at("tasks", step))[:count].tolist()
        optimizer.zero_grad()
        chosen = [tasks[number] for number in order]
        mean = pooled_evidence(theta, linearized, chosen, start, shape=shape, **free) / len(order)
        (-mean).backward()
        optimizer.step()
        schedule.step()
        yield Progress("steps", step + 1, options.steps, {"log evidence": float(mean.detach())})
    model = copy.deepcopy(linearized.model)
    model.load_state_dict(theta, strict=False)
    return Linearized(model, linearized.names, linearized.outputs)


def _log_hyper(linearized: Linearized, tasks: Sequence[Points], start: Hyper) -> dict[str, Tensor]:
    """Log noise and log scale as leaf tensors; only log scale if noise is known."""
    level = sum(float(linearized.diagonal(points[0]).mean()) for points in tasks) / len(tasks) or 1.0
    values = {"log_scale": max(start.scale, 1e-6 / level)}
    if start.noise > 0:
        total, ratio = start.noise + start.scale * level, max(start.scale * level / start.noise, RATIO)
        values = {"log_noise": total / (1 + ratio), "log_scale": total * ratio / (1 + ratio) / level}
    return {name: torch.tensor(value).double().log().requires_grad_() for name, value in values.items()}
