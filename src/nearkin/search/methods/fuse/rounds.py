r"""One round of FUSE: candidates that are trained together, and which of them is best.

Fusion relaxes the choice among K candidates: $\bar c(x) = \sum_k \mathrm{softmax}(\alpha)_k\, c_k(x)$, weights of the
candidates descend the training loss of $\bar c$ and $\alpha$ its validation loss, by turns, until $\alpha$ has
converged; the largest $\alpha_k$ wins (the paper's algorithm 1 prints argmin, and its code takes $\alpha$'s loss from
test data). The control trains the candidates side by side, each on a loss of its own, and takes the one of least
validation loss; it is as good and cheaper, and stands beside the fusion wherever that is shown.

Notation: K candidates, N samples; outputs are `[N, *]`, such as logits `[N, C]`.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import TrainingError, require
from nearkin.core.events import Progress, Work
from nearkin.core.rng import Streams, derived_seed, seeded
from nearkin.search.methods.fuse.candidates import Candidates, SearchSplit
from nearkin.tasks.batches import epoch_batches, ordered_batches
from nearkin.tasks.examples import Batch, Examples

_JUDGED = 512


@dataclass(frozen=True)
class RoundResult:
    """What a round came to.

    Attributes:
        scores: of each candidate, larger is better, in the contest's own units.
        losses: each candidate's own validation loss at the end.
        metrics: each candidate's own validation metric at the end.
        facts: plain figures of the round, such as how many alternations it took.
    """

    scores: tuple[float, ...]
    losses: tuple[float, ...]
    metrics: tuple[float, ...]
    facts: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def winner(self) -> int:
        """The number of the highest score, the first of equals."""
        return max(range(len(self.scores)), key=self.scores.__getitem__)


class CandidateSelection(ABC):
    """A way to tell which of several candidates is best."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the way is called."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Plain JSON values that decide how a round goes."""

    @abstractmethod
    def judge(self, model: Candidates, parts: SearchSplit, streams: Streams, stage: str) -> Work[RoundResult]:
        """Train the candidates and judge them; the streams decide the order of the samples."""


@dataclass(frozen=True, kw_only=True)
class Fusion(CandidateSelection):
    """Mixed outputs; weights and α are updated by turns until α has converged.

    Attributes:
        alternations: turns of a round at the most.
        cycle: turns over which the weights' one-cycle learning rate goes; after them the weights hardly move, and α
            converges on what they are.
        weight_steps: steps of the weights on training data in each turn.
        alpha_steps: steps of α on validation data in each turn.
        weight_rate: peak of the weights' learning rate (Adam).
        alpha_rate: learning rate of α (Adam).
        batch_size: samples of a step.
        window: turns in which softmax(α) must have settled.
        tolerance: largest change of any share within the window that counts as settled.
        certain: a share of softmax(α) above this ends the round at once.
    """

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

    def __post_init__(self) -> None:
        _require_positive(asdict(self))

    @property
    def name(self) -> str:
        """`fuse`."""
        return "fuse"

    def settings(self) -> dict[str, float]:
        """All of them."""
        return asdict(self)

    def judge(self, model: Candidates, parts: SearchSplit, streams: Streams, stage: str) -> Work[RoundResult]:
        """Scores are softmax(α), which add up to 1; the facts say how many alternations it took, and why it ended."""
        alpha = torch.zeros(len(model.networks), requires_grad=True)
        by_alpha = torch.optim.Adam([alpha], self.alpha_rate)
        weights = _Descent(model, self.weight_rate, min(self.cycle, self.alternations) * self.weight_steps)
        shares: list[Tensor] = []
        learn = _endless(parts.learn, self.batch_size, streams.child("learn"))
        judge = _endless(parts.judge, self.batch_size, streams.child("judge"))
        model.train()
        for turn in range(self.alternations):
            with seeded(derived_seed(streams.seed, "dropout", turn)):
                for x, y in itertools.islice(learn, self.weight_steps):
                    weights.step(parts.form.loss(mixture(model(x), alpha.detach()), y))
                for x, y in itertools.islice(judge, self.alpha_steps):
                    with torch.no_grad():
                        outputs = model(x)
                    by_alpha.zero_grad()
                    parts.form.loss(mixture(outputs, alpha), y).backward()
                    by_alpha.step()
            shares.append(alpha.detach().softmax(0))
            figures = {"leading": float(shares[-1].max()), "entropy": entropy(shares[-1])}
            yield Progress(stage, turn + 1, self.alternations, figures)
            if reason := self.converged(shares):
                break
        facts: dict[str, float | str] = {"alternations": len(shares), "ended": reason or "limit of alternations"}
        return replace(_verdict(model, parts, tuple(shares[-1].tolist())), facts=facts)

    def converged(self, shares: Sequence[Tensor]) -> str:
        """Why a round ends whose softmax(α) went this way, turn by turn; empty while it goes on.

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
    """The control: candidates trained on their own losses, judged by their validation losses.

    Attributes:
        steps: on training data; 36 are those of 12 turns of a fusion.
        rate: peak of the one-cycle learning rate (Adam).
        batch_size: of a step.
    """

    steps: int = 36
    rate: float = 0.02
    batch_size: int = 64

    def __post_init__(self) -> None:
        _require_positive(asdict(self))

    @property
    def name(self) -> str:
        """`side-by-side`."""
        return "side-by-side"

    def settings(self) -> dict[str, float]:
        """All of them."""
        return asdict(self)

    def judge(self, model: Candidates, parts: SearchSplit, streams: Streams, stage: str) -> Work[RoundResult]:
        """Scores are validation losses, negative."""
        weights = _Descent(model, self.rate, self.steps)
        learn = _endless(parts.learn, self.batch_size, streams.child("learn"))
        model.train()
        for step, (x, y) in enumerate(itertools.islice(learn, self.steps), 1):
            with seeded(derived_seed(streams.seed, "dropout", step)):
                weights.step(torch.stack([parts.form.loss(outputs, y) for outputs in model(x)]).sum())
            yield Progress(stage, step, self.steps)
        return _verdict(model, parts, None)


def mixture(outputs: Tensor, alpha: Tensor) -> Tensor:
    r"""$\sum_k \mathrm{softmax}(\alpha)_k c_k$ of outputs `[K, N, *]` and α `[K]`.

    >>> mixture(torch.tensor([[[1.0]], [[3.0]]]), torch.zeros(2))
    tensor([[2.]])
    """
    mixed: Tensor = torch.tensordot(alpha.softmax(0), outputs, 1)
    return mixed


def entropy(shares: Tensor) -> float:
    """In nats; log K where all are alike, 0 where one has all.

    >>> round(entropy(torch.ones(4) / 4) / math.log(4), 6)
    1.0
    """
    return float(torch.special.entr(shares).sum())


class _Descent:
    """Adam under a one-cycle learning rate of so many steps, whose last value stays.

    Weights are laid channels last, which is faster here by a sixth.
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
    """Epoch after epoch."""
    return itertools.chain.from_iterable(epoch_batches(examples, size, streams, epoch) for epoch in itertools.count())


@torch.no_grad()
def _verdict(model: Candidates, parts: SearchSplit, scores: tuple[float, ...] | None) -> RoundResult:
    """Losses and metrics of all candidates on the validation part; scores are the losses where none are given."""
    model.eval()
    total, tallies = torch.zeros(len(model.networks), dtype=torch.float64), []
    for x, y in ordered_batches(parts.judge, _JUDGED):
        outputs = model(x)
        total += torch.stack([parts.form.loss(one, y).double() for one in outputs]) * len(y)
        tallies.append(torch.stack([parts.form.tally(one, y) for one in outputs]))
    losses = (total / len(parts.judge)).tolist()
    found = scores if scores is not None else tuple(-loss if math.isfinite(loss) else -math.inf for loss in losses)
    require(
        not any(map(math.isnan, found)) and max(found) > -math.inf,
        "the candidates' training diverged; lower the learning rate of their weights",
        TrainingError,
    )
    return RoundResult(found, tuple(losses), tuple(map(parts.form.score, torch.stack(tallies).sum(0))))


def _require_positive(settings: Mapping[str, float]) -> None:
    for name, value in settings.items():
        require(value > 0, f"{name} of a round must be above 0, got {value}")
