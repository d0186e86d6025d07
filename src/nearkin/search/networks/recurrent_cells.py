r"""Recurrent cells as language models, as in ENAS and DARTS.

Node 0 mixes the input $x_t$ and the hidden state $h_{t-1}$; each further node $i$ follows an earlier one $p$:

$$s_0 = h_{t-1} + σ(c_0) (\tanh(g_0) - h_{t-1}), \quad [c_0, g_0] = W x_t + U h_{t-1}$$
$$s_i = s_p + σ(c_i) (a_i(g_i) - s_p), \quad [c_i, g_i] = W_i s_p$$

The new state is the mean of the output nodes of the genotype. Notation: B sequences, T positions, V words, H the size
of a state and of an embedding; embedding and head share one matrix.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.errors import OptionError
from nearkin.search.genotypes.genotype import Recurrent

EMBEDDING_RANGE = 0.1

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


def required_nodes(nodes: Sequence[tuple[int, str]], output: Sequence[int]) -> list[int]:
    """The nodes from 1 on that the output depends on.

    >>> required_nodes(((0, "tanh"), (1, "relu"), (0, "tanh")), (2,))
    [1, 2]
    """
    required = set(output)
    for number in range(len(nodes), 0, -1):
        if number in required:
            required.add(nodes[number - 1][0])
    return sorted(required - {0})


class VariationalDropout(nn.Module):
    """Dropout with one mask for all positions of a sequence (Gal and Ghahramani 2016): `[B, T, H]` to `[B, T, H]`."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero the same entries at every position, and divide the others by 1 - rate, in training mode only."""
        if not self.training or self.rate == 0:
            return x
        return x * nn.functional.dropout(torch.ones_like(x[:, :1]), self.rate)


class RecurrentNetwork(nn.Module):
    """Tokens `[B, T]` to the logits `[B, T, V]` of each next token.

    Args:
        nodes: predecessor and activation of the nodes from 1 on.
        output: nodes whose mean is the new state.
        vocabulary: V.
        hidden: H.
        dropout: rate of the variational dropout of embeddings and states.
        weight_drop: fraction of the weights U that are zero in a training step (Merity et al. 2018).
    """

    def __init__(
        self,
        nodes: Sequence[tuple[int, str]],
        output: Sequence[int],
        vocabulary: int,
        hidden: int,
        dropout: float = 0.0,
        weight_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.hidden, self.output = hidden, tuple(output)
        self.plan = [(number, *nodes[number - 1], str(number)) for number in required_nodes(nodes, output)]
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.dropout, self.weight_drop = VariationalDropout(dropout), weight_drop
        self.input = nn.Linear(hidden, 2 * hidden, bias=False)
        self.recur = nn.Linear(hidden, 2 * hidden, bias=False)
        self.nodes = nn.ModuleDict({str(number): nn.Linear(hidden, 2 * hidden, bias=False) for number, *_ in self.plan})
        for weight in self.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)
        nn.init.uniform_(self.embedding.weight, -EMBEDDING_RANGE, EMBEDDING_RANGE)
        self.head = nn.Linear(hidden, vocabulary)
        nn.init.zeros_(self.head.bias)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Int64 `[B, T]` to `[B, T, V]`, from a state of zeros."""
        logits: Tensor = self.head(self.dropout(self.unroll(tokens, self.plan, self.output)))
        return logits

    def unroll(self, tokens: Tensor, plan: Sequence[tuple[int, int, str, str]], output: Sequence[int]) -> Tensor:
        """States `[B, T, H]` of a cell.

        Args:
            tokens: int64 `[B, T]`.
            plan: number, predecessor, activation and name of the linear map of every required node, in order.
            output: nodes whose mean is the new state.
        """
        steps = [(number, before, FUNCTIONS[activation], self.nodes[name]) for number, before, activation, name in plan]
        mixed = self.input(self.dropout(self.embedding(tokens)))
        recur: Callable[[Tensor], Tensor] = self.recur
        if self.training and self.weight_drop > 0:  # one draw for all positions
            weight = nn.functional.dropout(self.recur.weight, self.weight_drop)
            recur = partial(nn.functional.linear, weight=weight)
        state, sequence = torch.zeros_like(mixed[:, 0, : self.hidden]), []
        for projected in mixed.unbind(1):
            gate, new = (projected + recur(state)).chunk(2, -1)
            states = {0: state + gate.sigmoid() * (new.tanh() - state)}
            for number, before, activation, linear in steps:
                gate, new = linear(states[before]).chunk(2, -1)
                states[number] = states[before] + gate.sigmoid() * (activation(new) - states[before])
            state = torch.stack([states[number] for number in output]).mean(0)
            sequence.append(state)
        return torch.stack(sequence, 1)


def recurrent_options(
    genotype: Recurrent, vocabulary: int, hidden: int, dropout: float, weight_drop: float = 0.0
) -> dict[str, Any]:
    """Options of `RecurrentNetwork`."""
    unknown = next((node.activation for node in genotype.nodes if node.activation not in FUNCTIONS), None)
    if unknown is not None:
        raise OptionError(f"there is no activation {unknown!r}; recurrent cells have {', '.join(FUNCTIONS)}")
    nodes = tuple((node.predecessor, node.activation) for node in genotype.nodes)
    rates = {"dropout": dropout, "weight_drop": weight_drop}
    return {"nodes": nodes, "output": genotype.output, "vocabulary": vocabulary, "hidden": hidden, **rates}
