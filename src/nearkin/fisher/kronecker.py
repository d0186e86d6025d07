r"""Kronecker-factored Fisher information (KFAC) of linear layers and convolutions, exact blocks of other parameters.

A layer reads a at each of R positions (one for plain linear layers; tokens, or patches of an image) and gives W a. With
g the gradient there, its weight gradient is $\sum_r g_r a_r^\top$. KFAC assumes that a and g are independent, and that
positions are (Martens & Grosse 2015; Grosse & Martens 2016; the "expand" setting of Eschenhagen et al. 2023):

$$F_W \approx G \otimes A, \qquad A = \frac1N \sum_{nr} a_{nr} a_{nr}^\top, \qquad
G = \frac{1}{NR} \sum_{nr} \mathbb{E}_y\left[g_{nr} g_{nr}^\top\right]$$

in the order of `weight.flatten()`. A bias is one more entry of a, which is 1. If a layer is called several times, the
positions of all calls count. Other weights (norms, embeddings, groups, tied weights) get their exact block.

Notation: N samples, I entries of a, O outputs of a layer, p weights of a block.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.types import Params
from nearkin.fisher.autodiff import autodiff_gradients, chunk_size
from nearkin.fisher.cotangents import Cotangents, Data, SampleOptions, Samples, sample_blocks
from nearkin.fisher.full import require_finite
from nearkin.fisher.gradient_plan import GradientPlan, require_evaluation_mode, wanted_names
from nearkin.fisher.planned_tape import PlannedTape
from nearkin.fisher.tape import detached_weights, pull_back

BLOCK_LIMIT = 1024  # weights of an exact block; of a larger parameter without factors only the diagonal is measured
PATCHES = 2**24  # largest number of values in patches that are unfolded at once
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, eq=False)
class Factors:
    r"""$G \otimes A$ of a layer: `outputs` G `[O, O]` and `inputs` A `[I, I]`; the last entry of I is the bias, if any.

    The exact block of a single parameter is the case G = [1].

    >>> block = Factors(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([[3.0]]), "w", torch.Size([1, 1]), "b")
    >>> block.diagonal()
    {'w': tensor([[6.]]), 'b': tensor([3.])}
    >>> round(block.log_determinant(1.0) / math.log(7 * 4), 9)
    1.0
    """

    inputs: Tensor
    outputs: Tensor
    weight: str
    shape: torch.Size
    bias: str | None = None

    def log_determinant(self, scale: float) -> float:
        r"""$\sum_{ij} \log(1 + c\,a_i g_j)$ over the eigenvalues of both factors."""
        a, g = (torch.linalg.eigvalsh(factor.double()).clamp_min(0) for factor in (self.inputs, self.outputs))
        return float((scale * torch.outer(g, a)).log1p().sum())

    def diagonal(self) -> Params:
        """By name, in the parameters' shapes."""
        return self._split(torch.outer(self.outputs.diagonal(), self.inputs.diagonal()))

    def matmul(self, vector: Mapping[str, Tensor]) -> Params:
        """G V A, by name."""
        joint = vector[self.weight].reshape(len(self.outputs), -1)
        if self.bias is not None:
            joint = torch.cat([joint, vector[self.bias][:, None]], 1)
        return self._split(self.outputs @ joint @ self.inputs)

    def _split(self, joint: Tensor) -> Params:
        if self.bias is None:
            return {self.weight: joint.view(self.shape)}
        return {self.weight: joint[:, :-1].reshape(self.shape), self.bias: joint[:, -1]}


@dataclass(frozen=True, eq=False)
class Diagonal:
    """The diagonal of one parameter that is too large for an exact block, in its shape."""

    name: str
    values: Tensor

    def log_determinant(self, scale: float) -> float:
        """The sum of log(1 + c f)."""
        return float((scale * self.values.double()).log1p().sum())

    def diagonal(self) -> Params:
        """The diagonal, by the name of its weight."""
        return {self.name: self.values}

    def matmul(self, vector: Mapping[str, Tensor]) -> Params:
        """Product with a vector, entry by entry."""
        return {self.name: self.values * vector[self.name]}


Block: TypeAlias = Factors | Diagonal


@dataclass(frozen=True, eq=False)
class KroneckerFisher:
    """A block-diagonal Fisher matrix: factors of layers, exact blocks or diagonals of other parameters."""

    blocks: tuple[Block, ...]

    def log_determinant(self, scale: float) -> float:
        r"""$\log|I + cF|$ for c >= 0; with exact blocks it would be at least the value of the full matrix."""
        require(math.isfinite(scale) and scale >= 0, f"the scale must be >= 0 and finite, got {scale}")
        return math.fsum(block.log_determinant(scale) for block in self.blocks)

    def trace(self) -> float:
        """Sum of the diagonal."""
        return math.fsum(float(value.double().sum()) for value in self.diagonal().values())

    def diagonal(self) -> Params:
        """By name, in the parameters' shapes."""
        return {name: value for block in self.blocks for name, value in block.diagonal().items()}

    def matmul(self, vector: Mapping[str, Tensor]) -> Params:
        """F times a vector, whose values have the names and shapes of the weights."""
        missing = [name for name in self.diagonal() if name not in vector]
        require(
            not missing, f"the vector has no value for {', '.join(missing[:3])}; give one per weight", MismatchError
        )
        return {name: value for block in self.blocks for name, value in block.matmul(vector).items()}


def kronecker(
    model: nn.Module,
    data: Data,
    targets: Tensor | None = None,
    *,
    names: Collection[str] | None = None,
    block_limit: int = BLOCK_LIMIT,
    **options: Unpack[SampleOptions],
) -> KroneckerFisher:
    """The Kronecker-factored Fisher matrix of a network.

    The arguments are those of `full.fisher_matrix`. Of a parameter without factors the exact block is measured if it
    has at most `block_limit` weights, otherwise only the diagonal.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> fisher = kronecker(net, x, likelihood="gaussian", labels="expected")
    >>> fisher.diagonal(), fisher.trace()
    ({'weight': tensor([[5., 2.]])}, 7.0)
    """
    require_evaluation_mode(model)
    selected, samples = wanted_names(model, names), Samples(data, targets, **options)
    sums: FactorSums | None = None
    for number, (x, cotangents) in enumerate(samples.batches()):
        if sums is None:
            sums = FactorSums(model, x, selected, block_limit)
        sums.add(x, cotangents)
        factors = {own[0]: sums.inputs[layer].sum() + sums.outputs[layer].sum() for layer, own in sums.layers.items()}
        require_finite({**factors, **sums.rest}, number)
    assert sums is not None  # empty data is refused above
    return KroneckerFisher(sums.blocks(samples.draws))


class FactorSums:
    """Running sums of second moments over batches; the memory does not grow with the number of batches."""

    def __init__(self, model: nn.Module, x: Tensor, names: tuple[str, ...], block_limit: int) -> None:
        self.model, self.weights, self.count = model, detached_weights(model), 0
        self.tape = PlannedTape(model, self.weights, x, names, self._receive)
        self.layers = _factored(model, self.tape.plan, names)
        joint = {layer: self.weights[own[0]].flatten(1) for layer, own in self.layers.items()}
        self.inputs = {layer: w.new_zeros([w.shape[1] + len(self.layers[layer]) - 1] * 2) for layer, w in joint.items()}
        self.outputs = {layer: w.new_zeros([len(w)] * 2) for layer, w in joint.items()}
        covered = {name for own in self.layers.values() for name in own}
        rest = {name: self.weights[name].flatten() for name in names if name not in covered}
        self.rest = {n: w.new_zeros([len(w)] * (2 if len(w) <= block_limit else 1)) for n, w in rest.items()}
        self.positions: Counter[str] = Counter()
        self._first_cotangent = True

    def add(self, x: Tensor, cotangents: Cotangents) -> None:
        """Add a batch: one forward pass, and one backward pass per cotangent."""
        outputs = self.tape(x)
        changed = [layer for layer in self.layers if layer not in self.tape.plan.layers]
        require(
            not changed,
            f"layer {', '.join(changed[:3])} has factors in earlier batches, and this batch uses it in another way; "
            f"leave its weights out with names=",
            MismatchError,
        )
        self._first_cotangent = True
        for c in cotangents(outputs.detach(), slice(None)):
            pull_back(outputs, c, retain_graph=True)
            self._first_cotangent = False  # the inputs of a layer are the same for every cotangent
            self._add_rest(x, c)
        self.count += len(x)

    def blocks(self, draws: int) -> tuple[Block, ...]:
        """The means of the sums."""
        blocks: list[Block] = []
        for layer, (weight, *bias) in self.layers.items():
            inputs, outputs = self.inputs[layer] / self.count, self.outputs[layer] / (self.positions[layer] * draws)
            blocks.append(Factors(inputs, outputs, weight, self.weights[weight].shape, *bias))
        for name, total in self.rest.items():
            mean, shape = total / (self.count * draws), self.weights[name].shape
            exact = mean.dim() == 2
            blocks.append(
                Factors(mean, mean.new_ones(1, 1), name, shape) if exact else Diagonal(name, mean.view(shape))
            )
        return tuple(blocks)

    def _receive(self, name: str, layer: nn.Module, x: Tensor, g: Tensor) -> None:
        if name not in self.layers:
            return
        g = (g if isinstance(layer, nn.Linear) else g.movedim(1, -1)).flatten(0, -2)
        self.outputs[name] += g.T @ g
        if self._first_cotangent:
            self.positions[name] += len(g)
            size = len(g) // len(x) * len(self.inputs[name])
            for block in sample_blocks(len(x), max(1, PATCHES // size)):
                a = patches(layer, x[block])
                a = torch.cat([a, a.new_ones(len(a), 1)], 1) if len(self.layers[name]) == 2 else a
                self.inputs[name] += a.T @ a

    def _add_rest(self, x: Tensor, c: Tensor) -> None:
        names, alone = tuple(self.rest), self.tape.plan.alone
        for block in sample_blocks(len(x), chunk_size(self.weights, names)) if names else ():
            gradients = autodiff_gradients(self.model, self.weights, names, x[block], c[block], alone)
            for name, rows in gradients.items():
                rows, total = rows.flatten(1), self.rest[name]
                total += rows.T @ rows if total.dim() == 2 else rows.square().sum(0)


def _factored(model: nn.Module, plan: GradientPlan, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Layers with factors, each with its weight and, if it is measured, its bias; no other layer may use them."""
    uses = Counter(name for own in plan.owners.values() for name in own.values())
    layers = {}
    for layer in plan.layers:
        module, own = model.get_submodule(layer), plan.owners[layer]
        parameters = [own[local] for local in ("weight", "bias") if local in own]
        parameters = [name for name in parameters if name in names and uses[name] == 1]
        if type(module) in LAYERS and getattr(module, "groups", 1) == 1 and own["weight"] in parameters:
            layers[layer] = tuple(parameters)
    return layers


def patches(layer: nn.Module, x: Tensor) -> Tensor:
    """Inputs of a layer at each position, `[N·R, I]`, in the order of `weight.flatten(1)`.

    >>> patches(nn.Conv1d(1, 1, 2, dilation=2), torch.arange(4.0).view(1, 1, 4))
    tensor([[0., 2.],
            [1., 3.]])
    """
    if not isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return x.reshape(-1, x.shape[-1])
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, list(layer._reversed_padding_repeated_twice), mode=mode)
    sides = range(2, x.dim())
    for side, kernel, stride, dilation in zip(sides, layer.kernel_size, layer.stride, layer.dilation, strict=True):
        x = x.unfold(side, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    return x.movedim(1, len(sides) + 1).flatten(0, len(sides)).flatten(1)
