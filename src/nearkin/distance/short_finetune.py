r"""Mean loss over a short fine-tuning run: the measure `short-finetune`, which predicts the cost of fine-tuning best.

$$d(a \to b) = \frac1K \sum_{k=0}^{K-1} L_{B_k}(\theta_k), \quad \theta_0 = (\text{encoder of } a, 0), \quad
\theta_{k+1} = \mathrm{Adam}_\eta(\theta_k, \nabla L_{B_k})$$

This is the area under the loss of K training steps over all weights. Steps are few and large: ηK equals that of a run
of 60 steps at 1e-3. The head starts at zero, so that every source starts from the loss of a constant answer, and all
sources see the same batches. The run draws K B samples, 1,024 by default. With N >= K B training samples none is drawn
twice, and each loss is measured on new samples. With fewer, the run makes K B / N epochs (5.1 with 200 samples), and
losses after the first epoch are training losses: they also favour sources whose network fits these samples fast.
Nothing is held out in either case. `benchmarks/prediction.py` compares the values with real fine-tuning.

Notation: N samples, K steps, B samples in a step.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, OptionError, TrainingError, require
from nearkin.core.events import Progress, Work, operation
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.distance.baselines.inputs import canonical_order
from nearkin.distance.pair import Pair
from nearkin.nets.functional import check
from nearkin.nets.heads import HEAD_STARTS, SCALE_SAMPLES, HeadStart, with_start
from nearkin.tasks.likelihood import likelihood as likelihood_named

SEED_NAME = "kin"  # the measure's first name; it stays in the names of random streams, so that values do not change
DRAWN_HEADS = 8  # benchmarks/prediction.py: they predict fine-tuning from a drawn head better than one, at its cost


@dataclass(frozen=True, kw_only=True)
class FinetuneSchedule:
    """Number and size of the steps; the default was selected by `benchmarks/prediction.py` on held-out targets.

    Attributes:
        steps: K.
        batch_size: B; all samples if there are fewer.
        learning_rate: η of Adam; predicts fine-tuning of k steps at rate r best if η K is near r k.
    """

    steps: int = 16
    batch_size: int = 64
    learning_rate: float = 3.75e-3

    def epochs(self, num_samples: int) -> float:
        """How often each sample is drawn; up to 1 every batch consists of new samples.

        >>> FinetuneSchedule().epochs(200), FinetuneSchedule().epochs(1024)
        (5.12, 1.0)
        """
        return self.steps * min(self.batch_size, num_samples) / num_samples

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"steps must be 1 or more, got {self.steps}")
        require(self.batch_size >= 2, f"batch_size must be 2 or more, got {self.batch_size}")
        require(
            math.isfinite(self.learning_rate) and self.learning_rate > 0,
            f"learning_rate must be above 0, got {self.learning_rate}",
        )


SCHEDULE = FinetuneSchedule()


@dataclass(frozen=True, kw_only=True)
class ShortFinetune(FinetuneSchedule):
    """Mean loss over a short fine-tuning run of the source's network.

    Attributes:
        steps: of Adam.
        batch_size: samples in a step; all samples if there are fewer.
        learning_rate: of Adam.
        head: new last layer: `zero`, `drawn` or `scaled`, as in `nets.heads.with_start`.
    """

    head: HeadStart = "zero"

    def __call__(self, pair: Pair) -> Work[float]:
        """The loss of one pair."""
        view, task = pair.view, pair.task
        return short_finetune_loss.work(
            view.model,
            *view.train,
            num_outputs=task.num_outputs,
            likelihood=task.likelihood,
            head=self.head,
            schedule=self,
        )


@operation
def short_finetune_losses(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    num_outputs: int,
    likelihood: str = "categorical",
    head: HeadStart = "zero",
    num_heads: int = DRAWN_HEADS,
    schedule: FinetuneSchedule = SCHEDULE,
    seed: int = 0,
) -> Work[Tensor]:
    """Losses `[K]` of the steps of a short fine-tuning run; arguments are those of `short_finetune_loss`."""
    form = likelihood_named(likelihood)
    _check(x, y, num_outputs, likelihood, head)
    require(num_heads >= 1, f"num_heads must be 1 or more, got {num_heads}")
    heads = num_heads if head != "zero" and likelihood != "dense" else 1
    order, losses = canonical_order(x, y), []
    tuned = _started(model, x[order[:SCALE_SAMPLES]], num_outputs * heads, likelihood, head, seed)
    check(tuned, x.shape[1:], num_outputs * heads, likelihood)
    tuned.train()
    moving = [value for value in tuned.parameters() if value.requires_grad]
    optimiser = torch.optim.Adam(moving, schedule.learning_rate, fused=x.device.type in ("cpu", "cuda"))
    for step, index in enumerate(_batches(len(x), schedule, seed)):
        batch = order[index]
        with torch.enable_grad(), seeded(derived_seed(seed, f"{SEED_NAME} noise", step)):
            outputs, targets = tuned(x[batch]), y[batch]
            if heads > 1:  # outputs [B, ..., H·C] of heads side by side to [B·H, ..., C]
                outputs = outputs.unflatten(-1, (heads, num_outputs)).movedim(-2, 1).flatten(0, 1)
                targets = targets.repeat_interleave(heads, 0)
            loss = form.loss(outputs, targets)
        value = float(loss.detach())
        require(
            math.isfinite(value),
            f"the loss is {value} at step {step} of {schedule.steps}; the source's weights diverged, or the learning "
            f"rate {schedule.learning_rate:g} is too large for this network",
            TrainingError,
        )
        losses.append(value)
        if step + 1 < schedule.steps:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        yield Progress("short-finetune", step + 1, schedule.steps, {"loss": value})
    return torch.tensor(losses, dtype=torch.float64)


@operation
def short_finetune_loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    num_outputs: int,
    likelihood: str = "categorical",
    head: HeadStart = "zero",
    num_heads: int = DRAWN_HEADS,
    schedule: FinetuneSchedule = SCHEDULE,
    seed: int = 0,
) -> Work[float]:
    """Mean loss over a short fine-tuning run of a source's network on a target; source -> target, smaller is nearer.

    Values of one target under one seed can be compared, those of two targets cannot. The value minus that of the
    network at its initialisation gives the sign of transfer. The network is not changed; the order of samples does not
    matter.

    Args:
        model: the source's network; only its weights that require gradients are trained.
        x: the target's training samples `[N, *input_shape]`, two or more.
        y: their targets, as the likelihood takes them.
        num_outputs: width of the target's head.
        likelihood: of the target; a `dense` network keeps its last layer, all others get a new linear one.
        head: `zero`, or `drawn` or `scaled` to predict fine-tuning from such a head; see `nets.heads.with_start`.
        num_heads: number of drawn heads, trained side by side on one encoder to reduce the variance of the value.
        schedule: number and size of the steps.
        seed: of batches, of a drawn head and of dropout.

    >>> from nearkin.nets.registry import build
    >>> x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    >>> net = build("mlp?hidden=8", (4,), 3, seed=0)
    >>> easy, hard = (x[:, 0] > 0).long(), (x.prod(1) > 0).long()
    >>> short_finetune_loss(net, x, easy, num_outputs=2) < short_finetune_loss(net, x, hard, num_outputs=2)
    True
    """
    losses = yield from short_finetune_losses.work(
        model, x, y, num_outputs=num_outputs, likelihood=likelihood, head=head, num_heads=num_heads, schedule=schedule,
        seed=seed,
    )  # fmt: skip
    return float(sum(losses.tolist()) / schedule.steps)


def _check(x: Tensor, y: Tensor, num_outputs: int, likelihood: str, head: str) -> None:
    if head not in HEAD_STARTS:
        raise OptionError(f"head must be one of {', '.join(HEAD_STARTS)}, got {head!r}")
    require(len(x) >= 2, f"got {len(x)} samples, expected two or more; add samples", DataError)
    require(
        len(x) == len(y), f"got {len(x)} samples but {len(y)} targets; give one target for each sample", MismatchError
    )
    for name, value in (("inputs", x), ("targets", y)):
        require(
            not value.is_floating_point() or bool(value.isfinite().all()),
            f"some {name} are NaN or infinite; fix or remove these samples",
            DataError,
        )
    if likelihood in ("categorical", "language"):
        low, high = int(y.min()), int(y.max())
        require(
            low >= 0 and high < num_outputs,
            f"labels run from {low} to {high}, expected 0 to {num_outputs - 1}; fix the labels or set num_outputs",
            DataError,
        )


def _started(model: nn.Module, x: Tensor, num_outputs: int, likelihood: str, head: HeadStart, seed: int) -> nn.Module:
    """A copy of the network with the head that fine-tuning starts from."""
    if likelihood == "dense":
        return copy.deepcopy(model)
    return with_start(model, num_outputs, derived_seed(seed, f"{SEED_NAME} head", num_outputs), x, head)


def _batches(count: int, schedule: FinetuneSchedule, seed: int) -> Iterator[Tensor]:
    """Positions of B samples for each of K steps; each epoch has a new order and draws every sample once."""
    size, streams, epoch = min(schedule.batch_size, count), Streams(seed), 0
    left = torch.empty(0, dtype=torch.int64)
    for _ in range(schedule.steps):
        if len(left) < size:
            left = torch.cat([left, torch.randperm(count, generator=streams.at(f"{SEED_NAME} order", epoch))])
            epoch += 1
        yield left[:size]
        left = left[size:]
