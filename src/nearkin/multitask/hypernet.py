r"""Hypernetwork: one small network computes the weights of the encoders of all tasks and rounds (Ha et al. 2016).

The weights of an encoder are one vector of D numbers, cut into $P = \lceil D / 100 \rceil$ pieces. A feedforward
network with hidden layers of 30 and 50 units turns task, round, piece and architecture into the 100 numbers of a piece.
Only its own parameters V are stored, not the K·M·D weights.

As printed, the inputs are the numbers k, r, d of task, round and piece. All pieces are then affine functions of 50
hidden units, and the matrix of pieces `[P, 100]` has rank at most 51. By default task, round and piece have learned
embeddings, and the embedding of a piece also enters the last layer, so that the rank may be higher. What the network
computes is scaled, tensor by tensor, to the usual standard deviation of initial weights.

Notation: K tasks, M rounds, P pieces, e numbers of an embedding.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require

EMBEDDING = 32
"""Size of an embedding. Of 16, 32 and 64 it had the lowest validation loss on digits, at learning rates 0.01 and
0.02."""

VECTOR_SCALE = 0.1
"""Standard deviation of weights with one axis, such as the scales of a batch norm, around their initial mean."""


def encoder_weights(network: nn.Module, head: str = "head") -> dict[str, Tensor]:
    """Weights of a network by name, without those of its head.

    >>> list(encoder_weights(nn.ModuleDict({"body": nn.Linear(2, 3, bias=False), "head": nn.Linear(3, 1)})))
    ['body.weight']
    """
    return {name: value for name, value in network.named_parameters() if not name.startswith(f"{head}.")}


class HyperNetwork(nn.Module):
    """Computes encoder weights from task, round and architecture.

    Args:
        template: initial weights of an encoder, for names, shapes and initial means.
        architecture: architecture weights, for names and shapes.
        num_tasks: number of tasks K.
        num_rounds: number of rounds M.
        piece: how many weights are computed together.
        hidden: number of units of the two hidden layers.
        embedding: size of the embeddings.
        printed: whether the inputs are the numbers of task, round and piece, as in the paper.

    >>> network = HyperNetwork({"w": torch.zeros(3, 40)}, {"a": torch.zeros(2)}, num_tasks=2, num_rounds=1)
    >>> weights = network(task=1, round=0, architecture={"a": torch.ones(2)})
    >>> weights["w"].shape, network.num_pieces
    (torch.Size([3, 40]), 2)
    """

    numbers: Tensor

    def __init__(
        self,
        template: Mapping[str, Tensor],
        architecture: Mapping[str, Tensor],
        num_tasks: int,
        num_rounds: int,
        *,
        piece: int = 100,
        hidden: Sequence[int] = (30, 50),
        embedding: int = EMBEDDING,
        printed: bool = False,
    ) -> None:
        super().__init__()
        counts = {"num_tasks": num_tasks, "num_rounds": num_rounds, "piece": piece, "embedding": embedding,
                  "the number of encoder weights": len(template)}  # fmt: skip
        for name, value in counts.items():
            require(value >= 1, f"{name} must be 1 or more, got {value}")
        require(len(hidden) == 2 and min(hidden) >= 1, f"hidden must be two numbers of units, got {tuple(hidden)}")
        self.num_tasks, self.num_rounds, self.piece, self.printed = num_tasks, num_rounds, piece, printed
        self.shapes = {name: value.shape for name, value in template.items()}
        self.architecture_shapes = {name: value.shape for name, value in architecture.items()}
        self.scales = {name: _initial_scale(value) for name, value in template.items()}
        self.means = {
            name: 0.0 if value.dim() > 1 else float(value.detach().mean()) for name, value in template.items()
        }
        self.num_weights = sum(shape.numel() for shape in self.shapes.values())
        self.num_pieces = -(-self.num_weights // piece)
        width = 1 if printed else embedding
        if printed:
            self.register_buffer("numbers", torch.arange(1.0, self.num_pieces + 1)[:, None], persistent=False)
        else:
            self.tasks, self.rounds, self.pieces = (
                nn.Parameter(torch.randn(count, embedding)) for count in (num_tasks, num_rounds, self.num_pieces)
            )
            self.direct = nn.Linear(embedding, piece, bias=False)
        size = sum(shape.numel() for shape in self.architecture_shapes.values())
        self.first = nn.Linear(3 * width + size, hidden[0])
        self.second = nn.Linear(hidden[0], hidden[1])
        self.last = nn.Linear(hidden[1], piece)
        self._calibrate(architecture)

    @torch.no_grad()
    def _calibrate(self, architecture: Mapping[str, Tensor]) -> None:
        """Divide the last layers by the standard deviation of their outputs, for the first task and round."""
        spread = self.matrix(0, 0, architecture).std().clamp_min(1e-12)
        for layer in [self.last] if self.printed else [self.last, self.direct]:
            for value in layer.parameters():
                value.div_(spread)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the hypernetwork, biases and embeddings included."""
        return sum(value.numel() for value in self.parameters())

    @property
    def num_stored(self) -> int:
        """Number of weights of the encoders of all tasks and rounds, which are not stored: K·M·D."""
        return self.num_tasks * self.num_rounds * self.num_weights

    def forward(self, task: int, round: int, architecture: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Encoder weights of a task 0, 1, … in a round 0, 1, …, by the names and shapes of the template."""
        numbers = self.matrix(task, round, architecture).flatten()[: self.num_weights]
        parts = numbers.split([shape.numel() for shape in self.shapes.values()])
        return {name: self.means[name] + self.scales[name] * part.view(shape)
                for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}  # fmt: skip

    def matrix(self, task: int, round: int, architecture: Mapping[str, Tensor]) -> Tensor:
        """All pieces `[P, piece]` before they are scaled.

        Only the embedding of the piece differs from row to row, so the rest of the inputs is multiplied once.
        """
        _check_index("task", task, self.num_tasks)
        _check_index("round", round, self.num_rounds)
        weight, rows = self.first.weight, self.numbers if self.printed else self.pieces
        shared = F.linear(self._shared_inputs(task, round, architecture), weight[:, rows.shape[1] :], self.first.bias)
        hidden = torch.relu(F.linear(rows, weight[:, : rows.shape[1]]) + shared)
        outputs: Tensor = self.last(torch.relu(self.second(hidden)))
        return outputs if self.printed else outputs + self.direct(rows)

    def _shared_inputs(self, task: int, round: int, architecture: Mapping[str, Tensor]) -> Tensor:
        """Task, round and architecture as one vector."""
        shapes = {name: value.shape for name, value in architecture.items()}
        require(
            shapes == self.architecture_shapes,
            f"got architecture weights {_described(shapes)}, expected {_described(self.architecture_shapes)}",
            MismatchError,
        )
        flat = [architecture[name].flatten() for name in self.architecture_shapes]
        if self.printed:
            return torch.cat([self.first.weight.new_tensor([task + 1, round + 1]), *flat])
        return torch.cat([self.tasks[task], self.rounds[round], *flat])


def _initial_scale(value: Tensor) -> float:
    """Standard deviation of torch's initial weights: 1/√(3 · fan-in)."""
    return (3 * value[0].numel()) ** -0.5 if value.dim() > 1 else VECTOR_SCALE


def _check_index(name: str, index: int, count: int) -> None:
    require(0 <= index < count, f"{name} {index} does not exist, expected 0 to {count - 1}")


def _described(shapes: Mapping[str, torch.Size]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items()) or "none"
