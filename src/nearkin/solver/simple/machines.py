r"""Simple models as torch modules, stored as a network string and tensors like every network.

Notation: N inputs of D numbers each, C outputs, V support vectors. Trees are in `tree_machines`.

| machine | outputs |
| --- | --- |
| linear | $W x + b$ |
| kernel | $b + \sum_v a_v \exp(-\|s \odot x + t - x_v\|^2)$ |

Outputs are logits `[N, C]` whose softmax are the class probabilities, or means in scaled units of the targets.
The tensors include the standardisation and the kernel width, so inputs are the same as for networks.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nearkin.nets.functional import multiply_adds as layer_products
from nearkin.nets.functional import num_parameters as num_weights
from nearkin.nets.size_limit import require_numbers
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.trusted_code import SIMPLE
from nearkin.transfer.machine import TangentMachine


class Machine(nn.Module, ABC):
    """Base class: network string, costs, and additional constant outputs."""

    @property
    @abstractmethod
    def network(self) -> str:
        """Network string that builds a machine of this shape."""

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """Number of fitted values."""

    @property
    @abstractmethod
    def multiply_adds(self) -> int:
        """Multiply-adds for one input; a comparison counts as one."""

    @abstractmethod
    def widened(self, constants: Tensor) -> "Machine":
        """The same machine with additional outputs that are constants."""


class LinearMachine(Machine):
    """`W x + b` of flattened inputs, with `weight` `[C, D]` and `bias` `[C]`.

    >>> LinearMachine(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0]))(torch.ones(1, 2))
    tensor([[6.]], grad_fn=<AddmmBackward0>)
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C]` of inputs `[N, ...]`."""
        return nn.functional.linear(x.flatten(1), self.weight, self.bias)

    @property
    def network(self) -> str:
        """Network string; the task alone decides the shape."""
        return f"{SIMPLE}:linear_machine"

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return self.weight.numel() + self.bias.numel()

    @property
    def multiply_adds(self) -> int:
        """One for each weight."""
        return self.weight.numel()

    def widened(self, constants: Tensor) -> Machine:
        """Add rows of zeros with the constants as biases."""
        weight, bias = self.weight.detach(), self.bias.detach()
        zeros = weight.new_zeros(len(constants), weight.shape[1])
        return LinearMachine(torch.cat([weight, zeros]), torch.cat([bias, constants.to(bias)]))


class KernelMachine(Machine):
    """An RBF kernel: `vectors` `[V, D]`, `coefficients` `[V, C]`, `bias` `[C]`; inputs enter as `scale * x + shift`.

    >>> one = torch.ones(1, 1)
    >>> KernelMachine(one, 2 * one, torch.zeros(1), torch.ones(1), torch.zeros(1))(one).item()
    2.0
    """

    def __init__(self, vectors: Tensor, coefficients: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.vectors, self.coefficients = nn.Parameter(vectors), nn.Parameter(coefficients)
        self.bias, self.scale, self.shift = nn.Parameter(bias), nn.Parameter(scale), nn.Parameter(shift)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C]` of inputs `[N, ...]`."""
        seen = x.flatten(1) * self.scale + self.shift
        return torch.exp(-squared_distances(seen, self.vectors)) @ self.coefficients + self.bias

    @property
    def network(self) -> str:
        """Network string with the number of support vectors."""
        return str(NetworkSpec(f"{SIMPLE}:kernel_machine", (("vectors", len(self.vectors)),)))

    @property
    def num_parameters(self) -> int:
        """Support vectors, their coefficients, biases and the scaling."""
        return num_weights(self)

    @property
    def multiply_adds(self) -> int:
        """Scaling, distances to all support vectors, and their weighted sum."""
        return len(self.scale) + self.vectors.numel() + self.coefficients.numel()

    def widened(self, constants: Tensor) -> Machine:
        """Add columns of zeros with the constants as biases."""
        old = [tensor.detach() for tensor in (self.vectors, self.coefficients, self.bias, self.scale, self.shift)]
        zeros = old[1].new_zeros(len(old[1]), len(constants))
        return KernelMachine(
            old[0], torch.cat([old[1], zeros], 1), torch.cat([old[2], constants.to(old[2])]), old[3], old[4]
        )

    def sharpened(self, factor: float) -> "KernelMachine":
        """Multiply all outputs by a factor, an inverse temperature."""
        vectors, coefficients, bias, scale, shift = (tensor.detach() for tensor in self.parameters())
        return KernelMachine(vectors, coefficients * factor, bias * factor, scale, shift)


def squared_distances(x: Tensor, v: Tensor) -> Tensor:
    """`[N, V]` of rows `[N, D]` and `[V, D]`, never below 0.

    >>> squared_distances(torch.zeros(1, 2), torch.ones(1, 2)).item()
    2.0
    """
    cross = x.square().sum(1, keepdim=True) + v.square().sum(1) - 2 * x @ v.T
    return cross.clamp_min(0)


def linear_machine(*, input_shape: Sequence[int], num_outputs: int) -> LinearMachine:
    """Linear machine without weights; they are loaded afterwards."""
    require_numbers(num_outputs * math.prod(input_shape), "a linear machine")
    return LinearMachine(torch.zeros(num_outputs, math.prod(input_shape)), torch.zeros(num_outputs))


def kernel_machine(*, vectors: int, input_shape: Sequence[int], num_outputs: int) -> KernelMachine:
    """Kernel machine without weights; they are loaded afterwards."""
    size = math.prod(input_shape)
    require_numbers(vectors * (size + num_outputs), f"a kernel machine of {vectors} vectors")
    tables = torch.zeros(vectors, size), torch.zeros(vectors, num_outputs), torch.zeros(num_outputs)
    return KernelMachine(*tables, torch.ones(size), torch.zeros(size))


def costs(module: nn.Module, input_shape: Sequence[int]) -> tuple[int, int]:
    """Parameters, and multiply-adds for one input, of a simple model, a network or an ensemble of these.

    >>> costs(linear_machine(input_shape=(2, 3), num_outputs=4), (2, 3)), costs(nn.Linear(6, 4), (6,))
    ((28, 24), (28, 24))
    """
    if isinstance(module, Machine | TangentMachine):
        return module.num_parameters, module.multiply_adds
    if isinstance(members := getattr(module, "members", None), nn.ModuleList):  # of an ensemble
        parameters, work = zip(*(costs(member, input_shape) for member in members), strict=True)
        return sum(parameters), sum(work)
    return num_weights(module), layer_products(module, input_shape)
