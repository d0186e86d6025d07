"""Recurrent network with the weights of all cells of a space: one linear map for every pair of nodes, as in ENAS."""

from collections.abc import Collection
from typing import NamedTuple

from torch import Tensor, nn

from nearkin.search.genotypes.genotype import Recurrent
from nearkin.search.networks.recurrent_cells import RecurrentNetwork, required_nodes


class RecurrentPath(NamedTuple):
    """Nodes of a cell as `RecurrentNetwork.unroll` runs them (number, predecessor, activation, map), and its output."""

    plan: tuple[tuple[int, int, str, str], ...]
    output: tuple[int, ...]

    @classmethod
    def of(cls, genotype: Recurrent, dropped: Collection[int] = ()) -> "RecurrentPath":
        """Path of a genotype; a dropped node passes on the state of its predecessor.

        >>> RecurrentPath.of(Recurrent(((0, "tanh"), (1, "relu"))), dropped={1})
        RecurrentPath(plan=((2, 0, 'relu', '1-2'),), output=(0, 2))
        """
        read, plan = {0: 0}, []
        for number in required_nodes(genotype.nodes, genotype.output):
            before, activation = genotype.nodes[number - 1]
            if number in dropped:
                read[number] = read[before]
            else:
                read[number] = number
                plan.append((number, read[before], activation, f"{before}-{number}"))
        return cls(tuple(plan), tuple(read[number] for number in genotype.output))


class SharedRecurrentNetwork(RecurrentNetwork):
    """Tokens `[B, T]` and a cell to the logits `[B, T, V]`; the map from node j to node i is shared by all cells.

    Args:
        num_nodes: number of nodes of a cell after the first.
        vocabulary: V.
        hidden: H.
        output_dropout: dropout rate of the states in front of the head.

    >>> import torch
    >>> net = SharedRecurrentNetwork(2, vocabulary=5, hidden=4)
    >>> net(torch.zeros(3, 6, dtype=torch.int64), Recurrent(((0, "tanh"), (1, "relu")))).shape
    torch.Size([3, 6, 5])
    """

    def __init__(self, num_nodes: int, vocabulary: int, hidden: int, output_dropout: float = 0.0) -> None:
        super().__init__((), (), vocabulary, hidden)
        pairs = [(before, node) for node in range(1, num_nodes + 1) for before in range(node)]
        self.nodes = nn.ModuleDict({f"{j}-{i}": nn.Linear(hidden, 2 * hidden, bias=False) for j, i in pairs})
        for weight in self.nodes.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)
        self.output_dropout = nn.Dropout(output_dropout)

    def forward(self, tokens: Tensor, cell: Recurrent | RecurrentPath) -> Tensor:  # type: ignore[override]
        """Int64 `[B, T]` to `[B, T, V]`; only the maps of the cell are used."""
        path = RecurrentPath.of(cell) if isinstance(cell, Recurrent) else cell
        logits: Tensor = self.head(self.output_dropout(self.unroll(tokens, path.plan, path.output)))
        return logits
