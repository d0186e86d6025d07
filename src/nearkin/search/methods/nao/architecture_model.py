r"""Encoder, predictor and decoder of NAO (Luo et al. 2018).

The encoder is an LSTM over the decisions of a genotype. Its hidden states, scaled to length 1, are the embedding
$E = (e_1, …, e_D)$. The predictor estimates the score from the mean of the embedding:
$f(E) = \mathrm{MLP}(\bar e / \|\bar e\|)$. The decoder is an LSTM that starts from this mean and reads the embedding by
attention: with hidden state $s_d$ the context is $c_d = \sum_t a_t e_t$ with $a = \mathrm{softmax}_t(s_d^\top e_t)$,
and the next decision has the probabilities $\mathrm{softmax}(V \tanh(U [s_d, c_d]))$.

Notation: M genotypes, D decisions, H the size of the LSTMs, V tokens. A token is an option of one kind of decision.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.search.methods.enas.decisions import DecisionSequence

SHARPNESS = 4.0
"""Factor of the attention scores: the embeddings have length 1, and scores of such vectors are close to each other."""


class ArchitectureModel(nn.Module):
    """Embedding of genotypes, with a predictor of their scores and a decoder.

    Args:
        sequence: decisions of the genotypes.
        size: H.

    >>> from nearkin.search.methods.enas.decisions import decision_sequence
    >>> from nearkin.search.spaces.recurrent_space import RecurrentSpace
    >>> model = ArchitectureModel(decision_sequence(RecurrentSpace(3)), size=8)
    >>> embedding = model.encode(torch.zeros(5, 6, dtype=torch.int64))
    >>> embedding.shape, model.predict(embedding).shape, model.decode(embedding).shape
    (torch.Size([5, 6, 8]), torch.Size([5]), torch.Size([5, 6]))
    """

    first: Tensor
    allowed: Tensor

    def __init__(self, sequence: DecisionSequence, size: int = 48) -> None:
        super().__init__()
        self.sequence = sequence
        self.steps = [step for step in sequence.steps if step.size]
        kinds: dict[tuple[str, str], int] = {}
        for step in self.steps:
            kinds[step.kind, step.part] = max(step.size, kinds.get((step.kind, step.part), 0))
        ends = torch.tensor(list(kinds.values())).cumsum(0).tolist()
        starts = dict(zip(kinds, [0, *ends], strict=False))
        first = torch.tensor([starts[step.kind, step.part] for step in self.steps])
        last = first + torch.tensor([step.size for step in self.steps])
        tokens = torch.arange(ends[-1])
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("allowed", (tokens >= first[:, None]) & (tokens < last[:, None]), persistent=False)
        self.tokens = nn.Embedding(ends[-1] + 1, size)  # the last is the start of a sequence
        self.positions = nn.Parameter(0.1 * torch.randn(len(self.steps), size))
        self.encoder, self.decoder = (nn.LSTM(size, size, batch_first=True) for _ in range(2))
        self.predictor = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1))
        self.mix, self.head = nn.Linear(2 * size, size), nn.Linear(size, ends[-1])

    def encode(self, decisions: Tensor) -> Tensor:
        """Embedding `[M, D, H]` of decisions `[M, D]`, with rows of length 1."""
        states: Tensor = self.encoder(self.tokens(decisions + self.first) + self.positions)[0]
        return F.normalize(states, dim=-1)

    def predict(self, embedding: Tensor) -> Tensor:
        """Predicted scores `[M]` of an embedding `[M, D, H]`."""
        scores: Tensor = self.predictor(self._mean(embedding)).squeeze(-1)
        return scores

    def log_probabilities(self, embedding: Tensor, decisions: Tensor) -> Tensor:
        """Logarithms of the probabilities of given decisions `[M, D]`, each after the true ones before it `[M, D]`."""
        tokens = decisions + self.first
        begin = tokens.new_full((len(tokens), 1), self.tokens.num_embeddings - 1)
        inputs = self.tokens(torch.cat([begin, tokens[:, :-1]], 1)) + self.positions
        states, _ = self.decoder(inputs, self._start(embedding))
        logits = self._logits(states, embedding).masked_fill(~self.allowed, -torch.inf)
        if any(step.excluded for step in self.steps):
            logits = torch.stack([self._without_chosen(logits[:, d], d, tokens) for d in range(len(self.steps))], 1)
        return logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)

    @torch.no_grad()
    def decode(self, embedding: Tensor) -> Tensor:
        """Most probable decisions `[M, D]`, one after another; only options of the space are chosen."""
        count, state = len(embedding), self._start(embedding)
        tokens = self.first.new_empty(count, len(self.steps))
        token = self.first.new_full((count,), self.tokens.num_embeddings - 1)
        for number, position in enumerate(self.positions):
            states, state = self.decoder((self.tokens(token) + position)[:, None], state)
            logits = self._logits(states, embedding)[:, 0].masked_fill(~self.allowed[number], -torch.inf)
            token = self._without_chosen(logits, number, tokens).argmax(-1)
            tokens[:, number] = token
        return tokens - self.first

    def _mean(self, embedding: Tensor) -> Tensor:
        return F.normalize(embedding.mean(1), dim=-1)

    def _start(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        mean = self._mean(embedding)[None]
        return mean, mean

    def _logits(self, states: Tensor, embedding: Tensor) -> Tensor:
        """Scores of all tokens `[M, T, V]` for hidden states `[M, T, H]`."""
        weights = (SHARPNESS * states @ embedding.mT).softmax(-1)
        scores: Tensor = self.head(self.mix(torch.cat([states, weights @ embedding], -1)).tanh())
        return scores

    def _without_chosen(self, logits: Tensor, number: int, tokens: Tensor) -> Tensor:
        """Scores `[M, V]` of a decision, with minus infinity for the sources that were chosen already."""
        excluded = self.steps[number].excluded
        return logits.scatter(1, tokens[:, number - excluded : number], -torch.inf) if excluded else logits
