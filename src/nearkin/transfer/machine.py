r"""The means of a closed-form transfer as a torch module, stored like any other network.

$$K(x, X)\, A + f(x)\, O + b$$

with the tangent kernel K of the source's network f, the training points X and their coefficients A. O adds the source's
outputs if they are the mean. For classes the outputs are logits, divided by the temperature.

Notation: N points, M inputs, C outputs of the source, T targets.
"""

import copy
import math
from collections.abc import Sequence
from urllib.parse import quote, unquote

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.fisher.passes import gradients_enabled
from nearkin.nets.functional import multiply_adds, num_parameters
from nearkin.nets.registry import build
from nearkin.nets.size_limit import require_numbers
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.trusted_code import TANGENT_MACHINE
from nearkin.transfer.function_space import FunctionSpace
from nearkin.transfer.kernel import blocks
from nearkin.transfer.linearized import LeadingOutputs, linearize
from nearkin.transfer.posterior import Posterior

PATH = TANGENT_MACHINE
"""Start of the network strings of tangent machines."""

MAX_OUTPUTS = 2**20
"""Largest number of outputs of the source's network."""


class TangentMachine(nn.Module):
    """The module of the formula above; it has no gradients.

    Args:
        base: the source's network f.
        network: its network string.
        points: X `[N, *input_shape]`, floats or int64 tokens.
        coefficients: A `[N, T]`.
        own: O `[C, T]`; `[K, T]` for a heteroscedastic source of K means.
        bias: b `[T]`.
        double: whether the kernel is computed in float64, which values with little noise need.
        means: K of a heteroscedastic source with K means and K log variances; None for other sources.

    >>> line = TangentMachine(nn.Linear(1, 1), "any", *map(torch.tensor, ([[2.0]], [[1.0]], [[0.0]], [0.5])))
    >>> line(torch.tensor([[3.0]])).tolist()  # 2 · 3 + 1, and the bias
    [[7.5]]
    """

    points: Tensor
    coefficients: Tensor
    own: Tensor
    bias: Tensor

    def __init__(
        self,
        base: nn.Module,
        network: str,
        points: Tensor,
        coefficients: Tensor,
        own: Tensor,
        bias: Tensor,
        double: bool = False,
        means: int | None = None,
    ) -> None:
        super().__init__()
        self.base, self.source, self.double_kernel, self.means = base, network, double, means
        self.register_buffer("points", points)
        for name, value in (("coefficients", coefficients), ("own", own), ("bias", bias)):
            self.register_buffer(name, value.double())

    def forward(self, x: Tensor) -> Tensor:
        """`[M, T]` of inputs `[M, *input_shape]`."""
        with gradients_enabled():
            flat = linearize(self.base, dtype=torch.float64 if self.double_kernel else None, means=self.means)
            x = x.detach().clone()
            terms = [flat.kernel(block, self.points) @ self.coefficients for block in blocks(x, len(self.points))]
            outputs = torch.cat(terms) + self.bias
            outputs = outputs + flat.mean(x) @ self.own if bool(self.own.any()) else outputs
        return outputs.to(x.dtype if x.is_floating_point() else torch.float32).detach()

    @property
    def network(self) -> str:
        """The network string that builds a tangent machine of this shape."""
        options = (
            ("double", self.double_kernel),
            *((("means", self.means),) if self.means is not None else ()),
            ("network", quote(self.source, safe="")),
            ("outputs", len(self.own) if self.means is None else 2 * self.means),
            ("points", len(self.points)),
            *(() if self.points.is_floating_point() else (("tokens", True),)),
        )
        return str(NetworkSpec(PATH, options))

    @property
    def num_parameters(self) -> int:
        """Number of stored values: the network's weights, the points, their coefficients, O and the bias."""
        return num_parameters(self.base) + sum(buffer.numel() for buffer in self.buffers(recurse=False))

    @property
    def multiply_adds(self) -> int:
        """For one input: its Jacobian by one forward pass and one backward pass for each output, and N inner products.

        The kernel of a layer often costs less.
        """
        outputs, weights = len(self.own), num_parameters(self.base)
        passes = (1 + 2 * outputs) * multiply_adds(self.base, tuple(self.points.shape[1:]))
        return passes + len(self.points) * (outputs * weights + self.coefficients.shape[1])


def tangent_machine(
    *,
    network: str,
    outputs: int,
    points: int,
    double: bool = False,
    means: int | None = None,
    tokens: bool = False,
    input_shape: Sequence[int],
    num_outputs: int,
) -> TangentMachine:
    """A tangent machine of zeros, into which stored tensors are loaded."""
    source, shape = unquote(network), tuple(input_shape)
    require(
        not source.strip().startswith(PATH),
        f"got a tangent machine as source, expected another network: {source[:200]}",
    )
    require(1 <= outputs <= MAX_OUTPUTS, f"a network has 1 to {MAX_OUTPUTS:,} outputs, got {outputs}")
    require(points >= 1, f"a tangent machine has one point or more, got {points}")
    require_numbers(points * (math.prod(shape) + num_outputs) + outputs * num_outputs, "this machine")
    base = build(source, shape, outputs, seed=0)
    tables = torch.zeros(points, num_outputs), torch.zeros(means or outputs, num_outputs), torch.zeros(num_outputs)
    rows = torch.zeros(points, *shape, dtype=torch.int64 if tokens else torch.float32)
    return TangentMachine(base, source, rows, *tables, double=double, means=means)


def as_machine(posterior: Posterior, network: str, temperature: float = 1.0) -> TangentMachine:
    """The means of a posterior in function space, divided by a temperature.

    Args:
        posterior: of all weights, one scale for all layers, `outputs="sum"`.
        network: the string of the source's network.
        temperature: of the class scores.
    """
    solver, linearized, hyper = posterior.solver, posterior.linearized, posterior.hyper
    require(
        isinstance(solver, FunctionSpace) and linearized.outputs == "sum" and not hyper.layers,
        "a tangent machine needs a posterior in function space with outputs='sum' and one scale; solve it again so",
        MismatchError,
    )
    assert isinstance(solver, FunctionSpace)
    names = [name for name, _ in linearized.model.named_parameters()]
    require(
        list(linearized.names) == names,
        f"a tangent machine needs all {len(names)} weights free, got {len(linearized.names)}; use weights='all'",
        MismatchError,
    )
    base, means = copy.deepcopy(linearized.model), linearized.means
    if isinstance(base, LeadingOutputs):
        base = base.network
    double = next(base.parameters()).dtype == torch.float64
    layout, size = posterior.layout, posterior.layout.num_outputs
    constant = layout.back(layout.basis(1, hyper.mean) @ solver.constants)[0]
    own = torch.eye(size) if hyper.mean == "network" else torch.zeros(size, layout.num_targets)
    return TangentMachine(
        base.float(),
        network,
        points=solver.x.float() if solver.x.is_floating_point() else solver.x,
        coefficients=hyper.scale * layout.back(solver.weights) / temperature,
        own=own / temperature,
        bias=(posterior.shift + constant) / temperature,
        double=double,
        means=means,
    )


def with_constant_outputs(machine: TangentMachine, constants: Tensor) -> TangentMachine:
    """The same machine with further outputs, which are constant.

    >>> line = TangentMachine(nn.Linear(1, 1), "any", *map(torch.tensor, ([[2.0]], [[1.0]], [[0.0]], [0.5])))
    >>> with_constant_outputs(line, torch.tensor([4.0]))(torch.tensor([[3.0]])).tolist()
    [[7.5, 4.0]]
    """
    more = len(constants)
    coefficients, own = (
        torch.cat([table, table.new_zeros(len(table), more)], 1) for table in (machine.coefficients, machine.own)
    )
    bias = torch.cat([machine.bias, constants.to(machine.bias)])
    return TangentMachine(
        machine.base, machine.source, machine.points, coefficients, own, bias, machine.double_kernel, machine.means
    )
