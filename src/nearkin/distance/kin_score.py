r"""`kin`: a target's fine-tuning in fast motion, the measure that tells best which source to start from.

$$\mathrm{kin}(a \to b) = \frac1K \sum_{k=0}^{K-1} L_{B_k}(\theta_k), \quad \theta_0 = (\text{encoder of } a, 0), \quad
\theta_{k+1} = \mathrm{Adam}_\eta(\theta_k, \nabla L_{B_k})$$

The area under the loss of K real steps over all weights, few of them and large: ηK is the way that a run of 60 steps at
1e-3 goes. The head is zero, so that every source starts from the loss of an answer that ignores the input, and all
sources share their batches. The run draws K B samples, 1,024 at the default pace. With N >= K B training samples none
is drawn twice, and each loss is that of samples not yet seen. With fewer, the run makes K B / N epochs (5.1 with 200
samples), and losses after the first epoch are training losses: they also reward sources whose network fits these
samples fast. Nothing is held out in either case.

`benchmarks/prediction.py` measures what it is worth.

Notation: N samples, K steps, B samples a step.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, OptionError, TrainingError, require
from nearkin.core.events import Progress, Work, operation
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.nets.functional import check
from nearkin.nets.heads import head_name, with_head
from nearkin.tasks.likelihood import likelihood as likelihood_named

Start: TypeAlias = Literal["zero", "drawn"]
STARTS: tuple[Start, ...] = ("zero", "drawn")
DRAWN_HEADS = 8  # benchmarks/prediction.py: eight foretell fine-tuning from a drawn head better than one, at its cost


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast the motion is; the default is the choice of `benchmarks/prediction.py`, made on targets left out.

    Attributes:
        steps: K.
        batch_size: B, all samples where there are fewer.
        learning_rate: η of Adam; fine-tuning of k steps at rate r is foretold best where η K is near r k.
    """

    steps: int = 16
    batch_size: int = 64
    learning_rate: float = 3.75e-3

    def epochs(self, num_samples: int) -> float:
        """How often each of the samples is drawn; up to 1 every batch is of samples not seen before.

        >>> Pace().epochs(200), Pace().epochs(1024)
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


PACE = Pace()


@operation
def kin_score(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    num_outputs: int,
    likelihood: str = "categorical",
    head: Start = "zero",
    num_heads: int = DRAWN_HEADS,
    pace: Pace = PACE,
    seed: int = 0,
) -> Work[float]:
    """Mean loss over a short fine-tuning of a source's network on a target; source -> target, smaller is nearer.

    Values of one target under one seed may be compared, those of two targets not. Less the value of a network at its
    initialisation it tells the sign of transfer. The network is left as it is; the order of samples does not matter.

    Args:
        model: the source's network; in it only weights that require gradients move.
        x: the target's training samples `[N, *input_shape]`, two or more.
        y: their targets, as the likelihood takes them.
        num_outputs: width of the target's head.
        likelihood: of the target; a `dense` network keeps its last layer, all others get a fresh linear one.
        head: `zero`, or `drawn` as `nn.Linear` draws it, for those who will fine-tune from such a head.
        num_heads: of drawn ones, which learn side by side on the one encoder, so that the value is no matter of luck.
        pace: number and size of the steps.
        seed: of batches, of a drawn head and of dropout.

    >>> from nearkin.nets.registry import build
    >>> x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    >>> net = build("mlp?hidden=8", (4,), 3, seed=0)
    >>> easy, hard = (x[:, 0] > 0).long(), (x.prod(1) > 0).long()
    >>> kin_score(net, x, easy, num_outputs=2) < kin_score(net, x, hard, num_outputs=2)
    True
    """
    form = likelihood_named(likelihood)
    _check(x, y, num_outputs, likelihood, head)
    require(num_heads >= 1, f"num_heads must be 1 or more, got {num_heads}")
    heads = num_heads if head == "drawn" and likelihood != "dense" else 1
    tuned = _started(model, x, num_outputs * heads, likelihood, head, seed)
    check(tuned, x.shape[1:], num_outputs * heads, likelihood)
    tuned.train()
    moving = [value for value in tuned.parameters() if value.requires_grad]
    optimiser = torch.optim.Adam(moving, pace.learning_rate, fused=x.device.type in ("cpu", "cuda"))
    order, total = canonical_order(x, y), 0.0
    for step, index in enumerate(_batches(len(x), pace, seed)):
        batch = order[index]
        with torch.enable_grad(), seeded(derived_seed(seed, "kin noise", step)):
            outputs, targets = tuned(x[batch]), y[batch]
            if heads > 1:  # outputs [B, ..., H·C] of heads side by side to [B·H, ..., C]
                outputs = outputs.unflatten(-1, (heads, num_outputs)).movedim(-2, 1).flatten(0, 1)
                targets = targets.repeat_interleave(heads, 0)
            loss = form.loss(outputs, targets)
        value = float(loss.detach())
        require(
            math.isfinite(value),
            f"the loss is {value} at step {step} of {pace.steps}; the source's weights diverged, or the learning rate "
            f"{pace.learning_rate:g} is too large for this network",
            TrainingError,
        )
        total += value
        if step + 1 < pace.steps:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        yield Progress("kin", step + 1, pace.steps, {"loss": value})
    return total / pace.steps


def _check(x: Tensor, y: Tensor, num_outputs: int, likelihood: str, head: str) -> None:
    if head not in STARTS:
        raise OptionError(f"head must be one of {', '.join(STARTS)}, got {head!r}")
    require(len(x) >= 2, f"there are {len(x)} samples, wanted two or more; add some", DataError)
    require(len(x) == len(y), f"{len(x)} samples but {len(y)} targets; give each sample its own", MismatchError)
    for what, value in (("inputs", x), ("targets", y)):
        require(
            not value.is_floating_point() or bool(value.isfinite().all()),
            f"some {what} are NaN or infinite; mend the data or leave those samples out",
            DataError,
        )
    if likelihood in ("categorical", "language"):
        low, high = int(y.min()), int(y.max())
        require(
            low >= 0 and high < num_outputs,
            f"labels run from {low} to {high}, wanted 0 to {num_outputs - 1}; mend the labels or give num_outputs",
            DataError,
        )


def _started(model: nn.Module, x: Tensor, num_outputs: int, likelihood: str, head: Start, seed: int) -> nn.Module:
    """A copy of the network as fine-tuning finds it."""
    if likelihood == "dense":
        return copy.deepcopy(model)
    name = head_name(model, x[:1])
    made = with_head(model, num_outputs, derived_seed(seed, "kin head", num_outputs), name)
    if head == "zero":
        with torch.no_grad():
            for value in made.get_submodule(name).parameters():
                value.zero_()
    return made


def _batches(count: int, pace: Pace, seed: int) -> Iterator[Tensor]:
    """K times the positions of B samples, epoch after epoch in a new order, none twice before all were there."""
    size, streams, epoch = min(pace.batch_size, count), Streams(seed), 0
    left = torch.empty(0, dtype=torch.int64)
    for _ in range(pace.steps):
        if len(left) < size:
            left = torch.cat([left, torch.randperm(count, generator=streams.at("kin order", epoch))])
            epoch += 1
        yield left[:size]
        left = left[size:]


def canonical_order(x: Tensor, y: Tensor) -> Tensor:
    """Positions of samples in an order that depends on what they hold alone, not on how they came.

    >>> x, y = torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([0, 0, 1])
    >>> turn = torch.tensor([2, 0, 1])
    >>> torch.equal(x[canonical_order(x, y)], x[turn][canonical_order(x[turn], y[turn])])
    True
    """
    parts = [part.detach().cpu().reshape(len(part), -1).contiguous().view(torch.uint8) for part in (x, y)]
    table = torch.cat(parts, 1).numpy()
    return torch.from_numpy(table.view(f"V{table.shape[1]}").ravel().argsort(kind="stable"))
