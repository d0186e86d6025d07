r"""Source weights learned from tasks: gradient steps on the pooled evidence, through the solve.

$$\max_{θ,\, σ^2,\, s} \; \sum_t \log p(y_t \mid X_t, θ, σ^2, s)$$

The source is then no longer what one task left behind, but what makes many tasks probable at once, as the paper
proposes for later. A step takes a second derivative of the network for every point, so it is for small ones. Tasks of
different sizes would have the large ones decide everything; unless noise is known, each has a size of its own,
integrated out (`dense_log_evidence`).

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
from nearkin.core.types import Params
from nearkin.transfer.hierarchy.meta import pooled_evidence, source_params
from nearkin.transfer.hyper import PLAIN, Hyper, Learning
from nearkin.transfer.linearized import Linearized
from nearkin.transfer.marginal_likelihood import learn_pooled
from nearkin.transfer.prepared import Points

SHAPE = 1.0  # of the sizes: broad
RATIO = 30.0  # of function to noise at the start, at the least; where all is noise, weights have no slope to climb


@dataclass(frozen=True, kw_only=True)
class Climbing:
    """How source weights climb.

    Attributes:
        steps: of Adam.
        rate: of Adam, for the weights; it falls to zero along a cosine.
        hyper_rate: of Adam, for log noise and log scale.
        tasks: that a step looks at, drawn anew each time; all of them if 0.
        sizes: whether every task has a size of its own; not where noise is known.
        seed: of the draws.
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
        require(self.tasks >= 0, f"tasks is a number of tasks a step, or 0 for all, got {self.tasks}")


BRISK = Climbing()


@operation
def meta_learned(
    linearized: Linearized, tasks: Sequence[Points], climb: Climbing = BRISK, how: Learning = PLAIN
) -> Work[Linearized]:
    """The network at source weights under which tasks together are more probable.

    All weights climb, also those that are not free to move afterwards.

    Args:
        linearized: the network to start from; it stays as it is.
        tasks: inputs, targets, and known variances where there are any.
        climb: steps and rates.
        how: the mean, and the first noise and scale, are learned.

    >>> from nearkin.transfer.linearized import linearize
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> flat, x = linearize(net), torch.linspace(-2, 2, 9)[:, None]
    >>> tasks = [(x, torch.sin(2 * x[:, 0] + phase)) for phase in (0.0, 1.0, 2.0)]
    >>> better = meta_learned(flat, tasks, Climbing(steps=20))
    >>> better.names == flat.names, better.fingerprint == flat.fingerprint
    (True, False)
    """
    require(len(tasks) > 0, "there is no task to learn from; give one or more", DataError)
    start = yield from learn_pooled.work(linearized, tasks, replace(how, layers=False, extra=False))
    yield Note(f"source weights climb from noise {start.noise:.1e}, scale {start.scale:.1e}, mean {start.mean}")
    theta, free = source_params(linearized), _logs(linearized, tasks, start)
    shape = SHAPE if climb.sizes and "log_noise" in free else None
    optimizer = torch.optim.Adam(
        [
            {"params": list(theta.values()), "lr": climb.rate},
            {"params": list(free.values()), "lr": climb.hyper_rate},
        ]
    )
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, climb.steps)
    streams, looked = Streams(climb.seed), climb.tasks or len(tasks)
    for step in range(climb.steps):
        order = torch.randperm(len(tasks), generator=streams.at("tasks", step))[:looked].tolist()
        optimizer.zero_grad()
        some = [tasks[number] for number in order]
        mean = pooled_evidence(theta, linearized, some, start, shape=shape, **free) / len(order)
        (-mean).backward()
        optimizer.step()
        falling.step()
        yield Progress("steps", step + 1, climb.steps, {"log evidence": float(mean.detach())})
    return _at(linearized, theta)


def _logs(linearized: Linearized, tasks: Sequence[Points], start: Hyper) -> dict[str, Tensor]:
    """Log noise and log scale as leaves; noise of 0, where it is known, stays out."""
    level = sum(float(linearized.diagonal(points[0]).mean()) for points in tasks) / len(tasks) or 1.0
    values = {"log_scale": max(start.scale, 1e-6 / level)}
    if start.noise > 0:
        total, ratio = start.noise + start.scale * level, max(start.scale * level / start.noise, RATIO)
        values = {"log_noise": total / (1 + ratio), "log_scale": total * ratio / (1 + ratio) / level}
    return {name: torch.tensor(value).double().log().requires_grad_() for name, value in values.items()}


def _at(linearized: Linearized, params: Params) -> Linearized:
    """The same network, free weights and outputs, at other weights."""
    model = copy.deepcopy(linearized.model)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(params[name])
    return Linearized(model, linearized.names, linearized.outputs)
