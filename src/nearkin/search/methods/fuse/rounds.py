r"""One round of FUSE: train candidates together and select the best.

Fusion relaxes the choice among K candidates: $\bar c(x) = \sum_k \mathrm{softmax}(\alpha)_k\, c_k(x)$. Steps of the
candidates' weights on the training loss of $\bar c$ alternate with steps of $\alpha$ on its validation loss until
$\alpha$ has converged. The largest $\alpha_k$ wins (algorithm 1 of the paper prints argmin, and the paper's code uses
test data for the loss of $\alpha$). The control trains each candidate on its own loss and selects the lowest validation
loss; it is as good and cheaper, and is reported beside fusion.

Notation: K candidates, N samples; outputs are `[N, *]`, such as logits `[N, C]`.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearkin.core.errors import TrainingError, require
from nearkin.core.events import Progress, Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.search.methods.fuse.candidates import Candidates, SearchSplit
from nearkin.tasks.batches import epoch_batches, ordered_batches
from nearkin.tasks.examples import Batch, Examples

_VALIDATION_BATCH = 512


@dataclass(frozen=True)
class RoundResult:
    """Result of a round.

    Attributes:
        scores: score of each candidate, larger is better; its unit depends on the selection.
        losses: validation loss of each candidate alone.
        metrics: validation metric of each candidate alone.
        facts: figures of the round, such as the number of alternations.
    """

    scores: tuple[float, ...]
    losses: tuple[float, ...]
    metrics: tuple[float, ...]
    facts: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def winner(self) -> int:
        """Index of the highest score, the first of equals."""
        return max(range(len(self.scores)), key=self.scores.__getitem__)


class CandidateSelection(ABC):
    """Rule that trains candidates and selects the best; a dataclass whose fields are positive settings."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for name, value in self.settings().items():
            require(value > 0, f"{name} of a round must be above 0, got {value}")

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON values that determine a round."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @abstractmethod
    def judge(self, model: Candidates, split: SearchSplit, streams: Streams, stage: str) -> Work[RoundResult]:
        """Train and score the candidates; the streams determine the order of the samples."""


@dataclass(frozen=True, kw_only=True)
class Fusion(CandidateSelection):
    """Mix the outputs; update weights and α in alternation until α has converged.

    Attributes:
        alternations: largest number of alternations in a round.
        cycle: number of alternations in the one-cycle learning rate schedule of the weights; afterwards the weights
            hardly change and α converges.
        weight_steps: steps of the weights on training data in each alternation.
        alpha_steps: steps of α on validation data in each alternation.
        weight_rate: peak learning rate of the weights (Adam).
        alpha_rate: learning rate of α (Adam).
        batch_size: number of samples in a step.
        window: number of alternations over which softmax(α) must be stable.
        tolerance: largest change of softmax(α) within the window that counts as stable.
        certain: a value of softmax(α) above this ends the round.
    """

    name = "fuse"

    alternations: int = 40
    cycle: int = 12
    weight_steps: int = 3
    alpha_steps: int = 2
    weight_rate: float = 0.02
    alpha_rate: float = 0.3
    batch_size: int = 64
    window: int = 4
    tolerance: float = 0.02
    certain: float = 0.99

    def judge(self, model: Candidates, split: SearchSplit, streams: Streams, stage: str) -> Work[RoundResult]:
        """Scores are softmax(α) and sum to 1; the facts are the number of alternations and why the round ended."""
        alpha = torch.zeros(len(model.networks), requires_grad=True)
        alpha_optimiser = torch.optim.Adam([alpha], self.alpha_rate)
        weights = _Descent(model, self.weight_rate, min(self.cycle, self.alternations) * self.weight_steps)
        shares: list[Tensor] = []
        train = _endless(split.train, self.batch_size, streams.child("learn"))
        validation = _endless(split.validation, self.batch_size, streams.child("judge"))
        model.train()
        for turn in range(self.alternations):
            with seeded(derived_seed(streams.seed, "dropout", turn)):
                for x, y in itertools.islice(train, self.weight_steps):
                    weights.step(split.form.loss(mixture(model(x), alpha.detach()), y))
                for x, y in itertools.islice(validation, self.alpha_steps):
                    with torch.no_grad():
                        outputs = model(x)
                    alpha_optimiser.zero_grad()
                    split.form.loss(mixture(outputs, alpha), y).backward()
                    alpha_optimiser.step()
            shares.append(alpha.detach().softmax(0))
            figures = {"leading": float(shares[-1].max()), "entropy": entropy(shares[-1])}
            yield Progress(stage, turn + 1, self.alternations, figures)
            if reason := self.converged(shares):
                break
        facts: dict[str, float | str] = {"alternations": len(shares), "ended": reason or "limit of alternations"}
        return replace(_round_result(model, split, tuple(shares[-1].tolist())), facts=facts)

    def converged(self, shares: Sequence[Tensor]) -> str:
        """Why a round ends with these values of softmax(α) after each alternation; empty if it continues.

        >>> rows = [torch.tensor([0.5, 0.5]), torch.tensor([0.6, 0.4]), torch.tensor([0.61, 0.39])]
        >>> Fusion(window=1).converged(rows), Fusion(window=2).converged(rows)
        ('settled', '')
        >>> Fusion().converged([torch.tensor([0.995, 0.005])])
        'certain'
        """
        if float(shares[-1].max()) > self.certain:
            return "certain"
        last = shares[-self.window - 1 :]
        if len(last) <= self.window:
            return ""
        rows = torch.stack(list(last))
        return "settled" if float((rows.amax(0) - rows.amin(0)).max()) < self.tolerance else ""


@dataclass(frozen=True, kw_only=True)
class SideBySide(CandidateSelection):
    """The control: train each candidate on its own loss and select by validation loss.

    Attributes:
        steps: number of training steps; 36 are those of 12 alternations of a fusion.
        rate: peak of the one-cycle learning rate (Adam).
        batch_size: number of samples in a step.
    """

    name = "side-by-side"

    steps: int = 36
    rate: float = 0.02
    batch_size: int = 64

    def judge(self, model: Candidates, split: SearchSplit, streams: Streams, stage: str) -> Work[RoundResult]:
        """Scores are negative validation losses."""
        weights = _Descent(model, self.rate, self.steps)
        train = _endless(split.train, self.batch_size, streams.child("learn"))
        model.train()
        for step, (x, y) in enumerate(itertools.islice(train, self.steps), 1):
            with seeded(derived_seed(streams.seed, "dropout", step)):
                weights.step(torch.stack([split.form.loss(outputs, y) for outputs in model(x)]).sum())
            yield Progress(stage, step, self.steps)
        return _round_result(model, split, None)


def mixture(outputs: Tensor, alpha: Tensor) -> Tensor:
    r"""$\sum_k \mathrm{softmax}(\alpha)_k c_k$ of outputs `[K, N, *]` and α `[K]`.

    >>> mixture(torch.tensor([[[1.0]], [[3.0]]]), torch.zeros(2))
    tensor([[2.]])
    """
    mixed: Tensor = torch.tensordot(alpha.softmax(0), outputs, 1)
    return mixed


def entropy(shares: Tensor) -> float:
    """Entropy in nats: log K if all shares are equal, 0 if one share is 1.

    >>> round(entropy(torch.ones(4) / 4) / math.log(4), 6)
    1.0
    """
    return float(torch.special.entr(shares).sum())


class _Descent:
    """Adam with a one-cycle learning rate, which stays at its last value after these steps.

    Weights are stored channels last, which is faster here by a sixth.
    """

    def __init__(self, model: nn.Module, rate: float, steps: int) -> None:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimiser = torch.optim.Adam(model.parameters(), rate, fused=True)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimiser, rate, total_steps=steps + 1)
        self.left = steps

    def step(self, loss: Tensor) -> None:
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        if self.left:
            self.schedule.step()
            self.left -= 1


def _endless(examples: Examples, size: int, streams: Streams) -> Iterator[Batch]:
    return itertools.chain.from_iterable(epoch_batches(examples, size, streams, epoch) for epoch in itertools.count())


@torch.no_grad()
def _round_result(model: Candidates, split: SearchSplit, scores: tuple[float, ...] | None) -> RoundResult:
    """Losses and metrics of all candidates on the validation set; without scores, the negative losses are used."""
    model.eval()
    total, tallies = torch.zeros(len(model.networks), dtype=torch.float64), []
    for x, y in ordered_batches(split.validation, _VALIDATION_BATCH):
        outputs = model(x)
        total += torch.stack([split.form.loss(logits, y).double() for logits in outputs]) * len(y)
        tallies.append(torch.stack([split.form.tally(logits, y) for logits in outputs]))
    losses = (total / len(split.validation)).tolist()
    if scores is None:
        scores = tuple(-loss if math.isfinite(loss) else -math.inf for loss in losses)
    require(
        not any(map(math.isnan, scores)) and max(scores) > -math.inf,
        "the training of the candidates diverged; lower the learning rate of their weights",
        TrainingError,
    )
    return RoundResult(scores, tuple(losses), tuple(map(split.form.score, torch.stack(tallies).sum(0))))
