r"""Training of encoder, predictor and decoder on measured genotypes.

The loss is $\lambda\,(f(E) - r)^2 - (1 - \lambda)\,\frac1D \sum_d \log p(\text{decision}_d \mid E)$, averaged over a
batch, where r is the rank of the score among all measured ones. In each step the edges of every node are in random
order: the order does not change a cell, so its embeddings get the same score.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from nearkin.core.errors import require
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.decisions import NODE, SOURCE, DecisionSequence, decision_sequence
from nearkin.search.methods.nao.architecture_model import ArchitectureModel
from nearkin.search.spaces.base import Space


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Encoder, predictor and decoder, their training, and the ascent.

    Attributes:
        model_size: size of the LSTMs of encoder and decoder.
        model_steps: number of training steps of encoder, predictor and decoder in a round.
        model_rate: learning rate of Adam on them.
        model_batch: number of genotypes in such a step.
        model_decay: weight decay of encoder, predictor and decoder.
        prediction_weight: λ, weight of the predictor's loss; that of the decoder is 1 - λ.
        symmetry: whether the edges of every node are put into random order in each training step.
        ascent_starts: number of best genotypes from which the ascent starts.
        ascent_steps: largest number of steps of the ascent.
        ascent_rate: length of a step; embeddings have length 1.
    """

    model_size: int = 48
    model_steps: int = 200
    model_rate: float = 5e-3
    model_batch: int = 32
    model_decay: float = 1e-4
    prediction_weight: float = 0.8
    symmetry: bool = True
    ascent_starts: int = 10
    ascent_steps: int = 10
    ascent_rate: float = 0.2

    def __post_init__(self) -> None:
        for name in ("model_size", "model_steps", "model_batch", "ascent_starts", "ascent_steps"):
            require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("model_rate", "ascent_rate"):
            require(getattr(self, name) > 0, f"{name} must be above 0, got {getattr(self, name)}")
        require(self.model_decay >= 0, f"model_decay must be 0 or more, got {self.model_decay}")
        require(0 < self.prediction_weight < 1, f"prediction_weight must lie in (0, 1), got {self.prediction_weight}")

    def model(self, space: Space) -> tuple[ArchitectureModel, torch.optim.Optimizer]:
        """New model for a space, with weights from torch's global generator, and its optimiser."""
        model = ArchitectureModel(decision_sequence(space), self.model_size)
        return model, torch.optim.AdamW(model.parameters(), self.model_rate, weight_decay=self.model_decay, fused=True)


class ModelLoss(NamedTuple):
    """Mean squared error of the predicted ranks, and mean negative log-probability of a decision."""

    prediction: float
    reconstruction: float


def train_model(
    model: ArchitectureModel,
    optimiser: torch.optim.Optimizer,
    genotypes: Sequence[Genotype],
    scores: Sequence[float],
    options: ModelOptions,
    rng: Generator,
) -> ModelLoss:
    """Train a model in place on measured genotypes; returns the losses of the last step."""
    decisions = decisions_of(model.sequence, genotypes)
    targets = ranks(torch.tensor(scores, dtype=torch.float64)).to(model.positions.dtype)
    weight = options.prediction_weight
    for _ in range(options.model_steps):
        rows = torch.randperm(len(decisions), generator=rng)[: options.model_batch]
        batch = reorder_edges(model.sequence, decisions[rows], rng) if options.symmetry else decisions[rows]
        embedding = model.encode(batch)
        prediction = (model.predict(embedding) - targets[rows]).square().mean()
        reconstruction = -model.log_probabilities(embedding, batch).mean()
        optimiser.zero_grad()
        loss: Tensor = weight * prediction + (1 - weight) * reconstruction
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
    return ModelLoss(float(prediction.detach()), float(reconstruction.detach()))


def decisions_of(sequence: DecisionSequence, genotypes: Sequence[Genotype]) -> Tensor:
    """Decisions `[M, D]` of genotypes."""
    return torch.tensor([sequence.decisions(genotype) for genotype in genotypes])


def ranks(scores: Tensor) -> Tensor:
    """Ranks of scores `[N]` from 0 (lowest) to 1 (highest); equal scores have their mean rank, a single score 0.5.

    >>> ranks(torch.tensor([0.2, 90.0, 0.1, 90.0]))
    tensor([0.3333, 0.8333, 0.0000, 0.8333])
    """
    if len(scores) == 1:
        return torch.full_like(scores, 0.5)
    below, equal = scores[:, None] > scores, scores[:, None] == scores
    return (below.sum(1) + 0.5 * (equal.sum(1) - 1)).to(scores.dtype) / (len(scores) - 1)


def reorder_edges(sequence: DecisionSequence, decisions: Tensor, rng: Generator) -> Tensor:
    """Decisions `[M, D]` of the same genotypes, with the edges of every node in random order.

    >>> from nearkin.search.spaces.darts import DartsSpace
    >>> sequence = decision_sequence(DartsSpace(("conv3", "max3"), num_nodes=1, reduction=False))
    >>> rows = reorder_edges(sequence, torch.tensor([[0, 1, 0, 1]]).expand(8, 4), Generator().manual_seed(1))
    >>> sorted(set(map(tuple, rows.tolist())))
    [(0, 1, 0, 1), (1, 0, 1, 0)]
    """
    result = decisions.clone()
    for start, count in _free_orders(sequence):
        order = torch.rand(len(decisions), count, generator=rng).argsort(1)
        for begin in (start, start + count):  # sources, then operations
            result[:, begin : begin + count] = decisions[:, begin : begin + count].gather(1, order)
    return result


def _free_orders(sequence: DecisionSequence) -> list[tuple[int, int]]:
    """For every node with several chosen sources, the number of its first decision, and the number of its sources."""
    groups, number, start, sources = [], 0, 0, 0
    for step in sequence.steps:
        if step.kind == NODE:
            if sources > 1:
                groups.append((start, sources))
            start, sources = number, 0
        sources += step.kind == SOURCE
        number += step.size > 0
    return groups
