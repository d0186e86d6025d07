r"""A recurrent language model whose cells are written with elementary tensor operations.

The recurrent modules of torch have no forward-mode derivative, and `vmap` runs them sample by sample or fails. Per-
sample gradients and tangent products need both, so the recursion here is a Python loop (about a fifth slower to train).

Notation: B sequences, T positions, V words, E numbers in an embedding, H numbers in a state.

| cell | recursion, with $a = W x_t + b$ and $u = U h_{t-1}$ |
| --- | --- |
| rnn | $h_t = \tanh(a + u)$ |
| gru | $h_t = (1 - z) n + z h_{t-1}$, $r, z = σ(a + u)$, $n = \tanh(a + r u)$ |
| lstm | $c_t = σ(f) c_{t-1} + σ(i) \tanh(g)$, $h_t = σ(o) \tanh(c_t)$, $i, f, g, o = a + u$ |
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nearkin.core.errors import require

State = tuple[Tensor, Tensor]
MAX_LAYERS = 1000
EMBEDDING_RANGE = 0.1  # usual for word-level models: torch's N(0, 1) makes the logits of a tied head too large


def rnn_step(a: Tensor, u: Tensor, state: State) -> State:
    """Next state from `a` and `u` `[B, H]`; the cell memory is not used."""
    return (a + u).tanh(), state[1]


def gru_step(a: Tensor, u: Tensor, state: State) -> State:
    """Next state from `a` and `u` `[B, 3H]`; the cell memory is not used."""
    (a_r, a_z, a_n), (u_r, u_z, u_n) = a.chunk(3, -1), u.chunk(3, -1)
    new, keep = (a_n + (a_r + u_r).sigmoid() * u_n).tanh(), (a_z + u_z).sigmoid()
    return new + keep * (state[0] - new), state[1]


def lstm_step(a: Tensor, u: Tensor, state: State) -> State:
    """Next state and cell memory from `a` and `u` `[B, 4H]`."""
    write, keep, new, show = (a + u).chunk(4, -1)
    memory = keep.sigmoid() * state[1] + write.sigmoid() * new.tanh()
    return show.sigmoid() * memory.tanh(), memory


CELLS: dict[str, tuple[int, Callable[[Tensor, Tensor, State], State]]] = {
    "lstm": (4, lstm_step),
    "gru": (3, gru_step),
    "rnn": (1, rnn_step),
}


class Recurrence(nn.Module):
    """One recurrent layer that starts from a state of zeros: `[B, T, E]` to `[B, T, H]`."""

    def __init__(self, size: int, hidden: int, cell: str) -> None:
        super().__init__()
        gates, self.step = CELLS[cell]
        self.hidden = hidden
        self.input = nn.Linear(size, gates * hidden)
        self.recur = nn.Linear(hidden, gates * hidden, bias=False)
        bound = hidden**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, T, E]` to `[B, T, H]`."""
        zeros = x.new_zeros(x.shape[0], self.hidden)
        state, states = (zeros, zeros), []
        for a in self.input(x).unbind(1):
            state = self.step(a, self.recur(state[0]), state)
            states.append(state[0])
        return torch.stack(states, 1)


class RecurrentLanguageModel(nn.Module):
    """Tokens `[B, T]` to the logits `[B, T, V]` of each next token.

    Args:
        vocabulary: V.
        embedding: E.
        hidden: H.
        layers: number of stacked recurrent layers.
        dropout: fraction of embeddings and states that is set to zero in training.
        tied: whether embedding and head share one matrix (Press and Wolf 2017); needs E = H.
        cell: `lstm`, `gru` or `rnn`.

    >>> model = RecurrentLanguageModel(50, embedding=8, hidden=8, tied=True)
    >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 50])
    """

    def __init__(
        self,
        vocabulary: int,
        embedding: int = 200,
        hidden: int = 200,
        layers: int = 1,
        dropout: float = 0.0,
        tied: bool = False,
        cell: str = "lstm",
    ) -> None:
        super().__init__()
        require(cell in CELLS, f"unknown cell {cell!r}; choose one of {', '.join(CELLS)}")
        require(1 <= layers <= MAX_LAYERS, f"a recurrent network has 1 to {MAX_LAYERS} layers, got {layers}")
        require(min(embedding, hidden) >= 1, f"sizes are >= 1, got embedding {embedding} and hidden {hidden}")
        require(0 <= dropout < 1, f"dropout is a fraction in [0, 1), got {dropout}")
        require(
            not tied or embedding == hidden,
            f"a tied head needs embedding = hidden, got {embedding} and {hidden}; set both to one size",
        )
        self.embedding = nn.Embedding(vocabulary, embedding)
        nn.init.uniform_(self.embedding.weight, -EMBEDDING_RANGE, EMBEDDING_RANGE)
        self.dropout = nn.Dropout(dropout)
        sizes = [embedding] + [hidden] * layers
        self.layers = nn.ModuleList(Recurrence(before, hidden, cell) for before in sizes[:-1])
        self.head = nn.Linear(hidden, vocabulary)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Int64 `[B, T]` to `[B, T, V]`."""
        x = self.dropout(self.embedding(tokens))
        for layer in self.layers:
            x = self.dropout(layer(x))
        logits: Tensor = self.head(x)
        return logits
