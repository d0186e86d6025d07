r"""Controller of ENAS: an LSTM that makes the decisions of a genotype one after another.

An operation is chosen by $\mathrm{softmax}$ of a linear map of the hidden state $h$. The source of an edge is chosen by
attention: node $i$ has the score $v^\top \tanh(W_1 h_i + W_2 h)$, where $h_i$ is the hidden state that the controller
remembers of the node. Every score $z$ becomes $c \tanh(z / T)$ with a constant $c$ and a temperature $T$, so that no
option gets a probability near 0 early. The next input of the LSTM is the embedding of the operation, or $h_i$.

Notation: M samples, D decisions, H the size of the LSTM.
"""

from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from nearkin.search.methods.enas.decisions import CELL, OPERATION, SOURCE, DecisionSequence, DecisionStep

RANGE = 0.1
"""Initial weights are uniform in [-RANGE, RANGE], as in ENAS."""


class Rollout(NamedTuple):
    """Sampled decisions with their probabilities.

    Attributes:
        decisions: numbers of the chosen options, int64 `[M, D]`.
        log_probability: logarithm of the probability of each sample `[M]`.
        entropy: sum of the entropies of the D distributions that were sampled from `[M]`.
    """

    decisions: Tensor
    log_probability: Tensor
    entropy: Tensor


class Controller(nn.Module):
    """LSTM with attention over earlier nodes.

    Args:
        sequence: decisions of the genotypes.
        size: H.
        temperature: T; larger is closer to uniform.
        tanh_constant: c, the largest magnitude of a score; None for no limit.

    >>> from nearkin.search.methods.enas.decisions import decision_sequence
    >>> from nearkin.search.spaces.recurrent_space import RecurrentSpace
    >>> controller = Controller(decision_sequence(RecurrentSpace(3)), size=8)
    >>> sample = controller.sample(5, torch.Generator().manual_seed(0))
    >>> sample.decisions.shape, bool((sample.log_probability < 0).all())
    (torch.Size([5, 6]), True)
    """

    def __init__(
        self, sequence: DecisionSequence, size: int = 64, temperature: float = 5.0, tanh_constant: float | None = 2.5
    ) -> None:
        super().__init__()
        self.sequence, self.temperature, self.tanh_constant = sequence, temperature, tanh_constant
        self.lstm = nn.LSTMCell(size, size)
        self.start = nn.Parameter(torch.empty(size))
        operations = sequence.operations.items()
        self.embeddings = nn.ModuleDict({part: nn.Embedding(len(names), size) for part, names in operations})
        self.heads = nn.ModuleDict({part: nn.Linear(size, len(names), bias=False) for part, names in operations})
        self.key, self.query = (nn.Linear(size, size, bias=False) for _ in range(2))
        self.energy = nn.Linear(size, 1, bias=False)
        for weight in self.parameters():
            nn.init.uniform_(weight, -RANGE, RANGE)

    def sample(self, count: int, rng: Generator) -> Rollout:
        """Draw `count` sequences of decisions."""
        return self._run(count, rng=rng)

    def replay(self, decisions: Tensor) -> Rollout:
        """Probabilities of given decisions `[M, D]`."""
        return self._run(len(decisions), decisions=decisions)

    def _run(self, count: int, rng: Generator | None = None, decisions: Tensor | None = None) -> Rollout:
        begin = self.start.expand(count, -1)
        inputs, state = begin, (torch.zeros_like(begin), torch.zeros_like(begin))
        nodes: list[Tensor] = []
        keys: list[Tensor] = []
        chosen: list[Tensor] = []
        log_probability, entropy = begin.new_zeros(count), begin.new_zeros(count)
        for step in self.sequence.steps:
            if step.kind == CELL:
                nodes, keys, inputs = [], [], begin
                continue
            state = self.lstm(inputs, state)
            if not step.size:
                nodes.append(state[0])
                keys.append(self.key(state[0]))
                inputs = begin
                continue
            scores = self._scores(step, state[0], keys, chosen)
            logs = scores.log_softmax(-1)
            if decisions is None:
                choice = torch.multinomial(logs.detach().exp(), 1, generator=rng).squeeze(1)
            else:
                choice = decisions[:, len(chosen)]
            log_probability = log_probability + logs.gather(1, choice[:, None]).squeeze(1)
            entropy = entropy - (logs.exp() * logs.clamp_min(torch.finfo(logs.dtype).min)).sum(-1)
            inputs = self._embedded(step, choice, nodes)
            chosen.append(choice)
        return Rollout(torch.stack(chosen, 1), log_probability, entropy)

    def _scores(self, step: DecisionStep, hidden: Tensor, keys: list[Tensor], chosen: list[Tensor]) -> Tensor:
        """Scores of all options `[M, size]`; minus infinity for sources that may not be chosen again."""
        if step.kind == OPERATION:
            scores: Tensor = self.heads[step.part](hidden)
        else:
            scores = self.energy((torch.stack(keys, 1) + self.query(hidden)[:, None]).tanh()).squeeze(-1)
        scores = scores / self.temperature
        if self.tanh_constant is not None:
            scores = self.tanh_constant * scores.tanh()
        if step.excluded:
            scores = scores.scatter(1, torch.stack(chosen[-step.excluded :], 1), -torch.inf)
        return scores

    def _embedded(self, step: DecisionStep, choice: Tensor, nodes: list[Tensor]) -> Tensor:
        """Next input of the LSTM `[M, H]`."""
        if step.kind == SOURCE:
            return torch.stack(nodes, 1)[torch.arange(len(choice)), choice]
        embedded: Tensor = self.embeddings[step.part](choice)
        return embedded
