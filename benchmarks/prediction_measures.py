"""Measures of the prediction benchmark: every one of a source and a target, with the process time it takes.

Smaller is nearer, so scores that are better when larger are negated. A measure uses only the target's training samples;
the exceptions are the Fréchet distances, which need the target's own trained network, and distances between data sets,
which need samples of the source. What a measure shares with others (features, a fitted head) is computed once and
counted in the time of each.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.core.rng import Streams, derived_seed
from nearkin.distance import baselines
from nearkin.distance.fisher_based.frechet import frechet
from nearkin.distance.short_finetune import FinetuneSchedule, short_finetune_loss
from nearkin.fisher.diagonals import diagonal
from nearkin.fisher.tangent import tangent_kernel
from nearkin.fisher.values import FisherDiagonal
from nearkin.nets.heads import features, split, with_head
from nearkin.tasks.likelihood import Categorical
from prediction_score import SCRATCH, Column
from prediction_tasks import Parts
from prediction_truth import BATCH, RUN, Stack, order_of

T = TypeVar("T")
FORM = Categorical()
SOURCE_FEATURES = 300  # samples of the source, for distances between data sets
KERNEL_SAMPLES = 150
RIDGE = (0.01,)  # of heads that only serve another measure
PACES = {
    f"fast {steps}x{size}": FinetuneSchedule(steps=steps, batch_size=size, learning_rate=0.06 / steps)
    for steps, size in ((12, 64), (16, 64), (20, 32), (20, 64))
}


@dataclass(eq=False)
class Pair:
    """A source and a target, with the values that several measures share.

    Attributes:
        module: the source's network in evaluation mode, its head padded with zeros to ten outputs.
        source: its data; None for the start itself.
        part: data of the target.
        own: Fisher informations of the target's own trained network on the target, by their labels.
        tasks: Fisher informations of the start with a fitted head, by task; source and target of this pair.
        accuracy: of the source on its own task.
        column: where the target stands.
        row: which source.
    """

    module: nn.Module
    source: Parts | None
    part: Parts
    own: dict[str, FisherDiagonal]
    tasks: tuple[FisherDiagonal, FisherDiagonal] | None
    accuracy: float
    column: Column
    row: int
    seconds: dict[str, float] = field(default_factory=dict)
    held: dict[str, object] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """A value computed at its first use; its time counts for every measure that uses it."""
        if name not in self.held:
            start = time.process_time()
            self.held[name] = compute()
            self.seconds[name] = time.process_time() - start
        self.used.add(name)
        return self.held[name]  # type: ignore[return-value]

    def timed(self, measure: Callable[["Pair"], float]) -> tuple[float, float]:
        """Value and seconds of a measure, including the seconds of the values that it uses."""
        self.used, before = set(), set(self.held)
        start = time.process_time()
        value = measure(self)
        spent = time.process_time() - start
        return value, spent + sum(self.seconds[name] for name in self.used & before)

    @property
    def x(self) -> Tensor:
        """The target's samples."""
        return self.part.target[0]

    @property
    def y(self) -> Tensor:
        """Labels of the target's samples."""
        return self.part.target[1]

    @property
    def features(self) -> Tensor:
        """Features of the target in the source's network, `[N, D]`."""
        return self.once("features", lambda: self._features(self.x))

    def _features(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return features(self.module, x, "head")

    @property
    def source_features(self) -> Tensor:
        """Features of the source's own samples; a zoo would store them, so their time does not count."""
        x = self.source.source[0] if self.source is not None else self.x
        return self._features(x[:SOURCE_FEATURES])

    @property
    def probabilities(self) -> Tensor:
        """Outputs of the source's network, from the same forward pass as the features."""
        outputs = self.source.num_outputs if self.source is not None else self.module.head.out_features
        return self.module.head(self.features).detach()[:, :outputs].softmax(1)

    @property
    def head(self) -> baselines.Head:
        """A head fitted to the target."""
        return self.once(
            "head",
            lambda: baselines.fitted_head(self.features, self.y, FORM, num_classes=self.part.num_outputs, ridges=RIDGE),
        )

    def with_fitted_head(self) -> nn.Module:
        """The network with the fitted head."""
        module = with_head(self.module, self.part.num_outputs, 0, "head")
        with torch.no_grad():
            module.head.weight.copy_(self.head.weight)
            module.head.bias.copy_(self.head.bias)
        return module

    def with_drawn_head(self) -> nn.Module:
        """The network with a head as `nn.Linear` draws it, the same for all sources."""
        seed = derived_seed(self.column.seed, "probe head", self.column.target)
        return with_head(self.module, self.part.num_outputs, seed, "head")

    def halves(self) -> tuple[Tensor, Tensor]:
        """Positions of samples for fitting and for validation."""
        order = torch.randperm(len(self.x), generator=Streams(0).at("halves"))
        return order[::2], order[1::2]


Measure: TypeAlias = Callable[[Pair], float]


def knn(pair: Pair) -> float:
    learn, judge = pair.halves()
    f, y = pair.features, pair.y
    return -baselines.knn_accuracy(f[learn], y[learn], f[judge], y[judge])


def head_loss(pair: Pair) -> float:
    learn, judge = pair.halves()
    f, y = pair.features, pair.y
    return baselines.head_loss(
        f[learn], y[learn], f[judge], y[judge], FORM, num_classes=pair.part.num_outputs, ridges=RIDGE
    )


def tangent_evidence(module: nn.Module, pair: Pair) -> float:
    """Evidence with the kernel of one output: outputs differ only in their rows of the head."""
    x, y = pair.x[:KERNEL_SAMPLES], pair.y[:KERNEL_SAMPLES]
    return -baselines.kernel_evidence(tangent_kernel(module, x, outputs=0), y)


def encoder_only(fisher: FisherDiagonal) -> FisherDiagonal:
    return FisherDiagonal(split(fisher.values, "head")[0], fisher.labels, fisher.num_samples)


def padded_frechet(pair: Pair) -> float:
    return frechet(diagonal(pair.module, pair.x, pair.y), pair.own["observed"])


def model_frechet(pair: Pair) -> float:
    return frechet(encoder_only(diagonal(pair.module, pair.x, labels="expected")), pair.own["expected"], "layer")


def task2vec(pair: Pair) -> float:
    return baselines.task2vec_distance(*pair.tasks, head="head") if pair.tasks is not None else float("nan")


def real_steps(count: int) -> Measure:
    """Mean training loss over the first steps of the fine-tuning run that is predicted, in another order."""

    def measure(pair: Pair) -> float:
        module = copy.deepcopy(with_head(pair.module, pair.part.num_outputs, 0, "head")).train()
        with torch.no_grad():
            for value in module.head.parameters():
                value.zero_()
        optimiser, total = RUN.made(dict(module.named_parameters())), 0.0
        rng = Streams(pair.column.seed).at("probe order", pair.column.target)
        for index in order_of(len(pair.x), count, BATCH, rng):
            loss = F.cross_entropy(module(pair.x[index]), pair.y[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item()
        return total / count

    return measure


def kin(pace: FinetuneSchedule, head: str = "zero") -> Measure:
    def measure(pair: Pair) -> float:
        seed, outputs = derived_seed(pair.column.seed, "kin", pair.column.target), pair.part.num_outputs
        return short_finetune_loss(
            pair.module, pair.x, pair.y, num_outputs=outputs, head=head, schedule=pace, seed=seed
        )

    return measure


def drawn_number(pair: Pair) -> float:
    rng = Streams(0).at("random", str(pair.column), pair.row)
    return float(torch.rand((), generator=rng))


MEASURES: dict[str, Measure] = {
    "logme": lambda pair: -baselines.logme(pair.features, pair.y, pair.part.num_outputs),
    "leep": lambda pair: -baselines.leep(pair.probabilities, pair.y, pair.part.num_outputs),
    "nce": lambda pair: -baselines.nce(pair.probabilities.argmax(1), pair.y),
    "h-score": lambda pair: -baselines.hscore(pair.features, pair.y),
    "h-score, shrunk": lambda pair: -baselines.hscore(pair.features, pair.y, shrinkage=True),
    "neighbours": knn,
    "cka with labels": lambda pair: -baselines.cka(pair.features, pair.y),
    "ridge, leave one out": lambda pair: baselines.ridge_loo(pair.features, pair.y),
    "gradient flow": lambda pair: baselines.gradient_flow(pair.features, pair.y),
    "gradient flow, T = 1": lambda pair: baselines.gradient_flow(pair.features, pair.y, 1.0),
    "feature norm": lambda pair: -float(pair.features.norm(dim=1).mean()),
    "head, held-out loss": head_loss,
    "head, training loss": lambda pair: pair.head.loss,
    "gradient norm": lambda pair: baselines.gradient_norm(pair.module, pair.x, pair.y, FORM, pair.head),
    "fisher trace, drawn head": lambda pair: -diagonal(pair.with_drawn_head(), pair.x, pair.y).trace(),
    "tangent evidence, drawn head": lambda pair: tangent_evidence(pair.with_drawn_head(), pair),
    "tangent evidence, fitted head": lambda pair: tangent_evidence(pair.with_fitted_head(), pair),
    "mmd of data": lambda pair: baselines.mmd(pair.features, pair.source_features),
    "fid of data": lambda pair: baselines.fid(pair.features, pair.source_features),
    "task2vec": task2vec,
    "frechet, padded": padded_frechet,
    "frechet, model by layer": model_frechet,
    "source accuracy": lambda pair: -pair.accuracy,
    "random": drawn_number,
    "5 real steps": real_steps(5),
    "20 real steps": real_steps(20),
    **{name: kin(pace) for name, pace in PACES.items()},
    "kin, drawn heads": kin(PACES["fast 16x64"], "drawn"),
}


def informed(stack: Stack, data: list[Parts]) -> tuple[list[dict[str, FisherDiagonal]], list[FisherDiagonal]]:
    """For every task: Fisher information of its own network, and of the initial network with a fitted head."""
    own, tasks = [], []
    start = stack.row(SCRATCH)
    for row, task_data in enumerate(data):
        module, (x, y) = stack.row(row), task_data.target
        expected = encoder_only(diagonal(module, x, labels="expected"))
        own.append({"observed": diagonal(module, x, y), "expected": expected})
        pair = Pair(start, None, task_data, {}, None, 0.0, Column("", 0, row), SCRATCH)
        tasks.append(diagonal(pair.with_fitted_head(), x, labels="expected"))
    return own, tasks


def measured(cache: Path, column: Column, pairs: Callable[[], list[Pair]]) -> dict[str, dict[str, Tensor]]:
    """Values and seconds `[S]` of every measure for one column; those not in the cache are measured and stored."""
    file = cache / "measures" / f"{column.network}-{column.seed}-{column.target}.pt"
    results: dict[str, dict[str, Tensor]] = torch.load(file) if file.exists() else {}
    missing = [name for name in MEASURES if name not in results]
    if missing:
        rows = pairs()
        for name in missing:
            taken = [pair.timed(MEASURES[name]) for pair in rows]
            value, seconds = torch.tensor(taken, dtype=torch.float64).T
            results[name] = {"value": value, "seconds": seconds}
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".part")
        torch.save(results, temporary)
        temporary.rename(file)
    return results
