r"""Quadratic penalties on blocks of shared weights, and their proximal steps.

A block holds a symmetric matrix $F \succeq 0$. With the anchor $\hat\theta$ and $v = \theta - \hat\theta$ the penalty
is $\frac{\alpha}{2} v^\top F v$, and its proximal step with learning rate η is

$$\arg\min_u \frac{1}{2\eta} \|u - \theta\|^2 + \frac{\alpha}{2} (u - \hat\theta)^\top F (u - \hat\theta)
  = \hat\theta + (I + \eta \alpha F)^{-1} (\theta - \hat\theta) .$$

Notation: O rows and I columns of a joint matrix of weights, p weights of a block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from nearkin.core.errors import OptionError
from nearkin.core.types import Params

LIMIT = 1e37  # of the product of scale and importance, so that it does not overflow in float32


@dataclass(frozen=True, eq=False)
class DiagonalBlock:
    """Importance of one parameter, weight by weight, in its shape.

    >>> block = DiagonalBlock("w", torch.tensor([1.0, 0.0]))
    >>> w = {"w": torch.tensor([2.0, 2.0])}
    >>> block.contract(w, {"w": torch.zeros(2)}, 1.0)
    >>> w["w"]
    tensor([1., 2.])
    """

    name: str
    values: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """The one parameter."""
        return (self.name,)

    @torch.no_grad()
    def contract(self, weights: Mapping[str, Tensor], anchors: Mapping[str, Tensor], scale: float) -> None:
        r"""$\theta \leftarrow (\theta + s F \hat\theta) / (1 + s F)$ in place; weights with F = 0 keep their bits."""
        weight, pull = weights[self.name], self.values * scale
        moved = weight.to(pull.dtype).lerp(anchors[self.name].to(pull.dtype), pull / (pull + 1))
        weight.copy_(moved)

    def energy(self, weights: Mapping[str, Tensor], anchors: Mapping[str, Tensor]) -> Tensor:
        r"""$v^\top F v$, differentiable in the weights."""
        v = (weights[self.name] - anchors[self.name]).to(self.values.dtype)
        return (self.values * v * v).sum()

    def diagonal(self) -> Params:
        """Importance by name."""
        return {self.name: self.values}

    def largest(self) -> float:
        """Largest eigenvalue of F."""
        return float(self.values.max()) if self.values.numel() else 0.0

    def scaled(self, factor: float) -> "DiagonalBlock":
        """The block times a number."""
        return DiagonalBlock(self.name, self.values * factor)

    def added(self, new: "PenaltyBlock", keep: Mapping[str, Tensor], gain: float) -> "DiagonalBlock":
        """`keep` times this block plus `gain` times a new one."""
        return DiagonalBlock(self.name, torch.addcmul(gain * new.diagonal()[self.name], keep[self.name], self.values))

    def tensors(self) -> Params:
        """What must be stored."""
        return {"values": self.values}

    def on(self, device: torch.device) -> "DiagonalBlock":
        """The block on a device."""
        return self if self.values.device == device else DiagonalBlock(self.name, self.values.to(device))


@dataclass(frozen=True, eq=False)
class DenseBlock:
    r"""A matrix by its eigenvectors: $F = (L \otimes R)\,\mathrm{diag}(\lambda)\,(L \otimes R)^\top$.

    The parameters are joined to one matrix `[O, I]`, each as O rows. With O = 1 this is any matrix of all their
    weights; otherwise it is a Kronecker product of `[O, O]` and `[I, I]`.

    Attributes:
        names: parameters, in the order in which they are joined.
        shapes: shapes of the parameters.
        eigenvalues: λ `[O, I]`.
        left: L `[O, O]`.
        right: R `[I, I]`.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    eigenvalues: Tensor
    left: Tensor
    right: Tensor

    @classmethod
    def of(
        cls, names: Sequence[str], shapes: Sequence[torch.Size], inputs: Tensor, outputs: Tensor | None = None
    ) -> "DenseBlock":
        r"""Of the matrix $G \otimes A$ with A `inputs` and G `outputs` (default: 1); rounding below 0 is cut off."""
        a, right = torch.linalg.eigh((inputs + inputs.T) / 2)
        outputs = inputs.new_ones(1, 1) if outputs is None else outputs
        g, left = torch.linalg.eigh((outputs + outputs.T) / 2)
        eigenvalues = torch.outer(g.clamp_min(0), a.clamp_min(0))
        # a stored block is contiguous, and products of other layouts round differently
        return cls(tuple(names), tuple(shapes), eigenvalues, left.contiguous(), right.contiguous())

    @torch.no_grad()
    def contract(self, weights: Mapping[str, Tensor], anchors: Mapping[str, Tensor], scale: float) -> None:
        r"""$\theta \leftarrow \hat\theta + (I + s F)^{-1} (\theta - \hat\theta)$ in place."""
        v = self._rotated(weights, anchors)
        pull = self.eigenvalues * scale
        moved = self.left @ (v * (pull / (pull + 1))) @ self.right.T
        for name, step in self._split(moved).items():
            weights[name].sub_(step.to(weights[name].dtype))

    def energy(self, weights: Mapping[str, Tensor], anchors: Mapping[str, Tensor]) -> Tensor:
        r"""$v^\top F v$, differentiable in the weights."""
        v = self._rotated(weights, anchors)
        return (self.eigenvalues * v * v).sum()

    def matrix(self) -> Tensor:
        """F `[p, p]`, if O = 1."""
        return (self.right * self.eigenvalues[0]) @ self.right.T

    def diagonal(self) -> Params:
        """Diagonal of F by name."""
        return self._split(self.left.square() @ self.eigenvalues @ self.right.square().T)

    def largest(self) -> float:
        """Largest eigenvalue of F."""
        return float(self.eigenvalues.max())

    def scaled(self, factor: float) -> "DenseBlock":
        """The block times a number."""
        return DenseBlock(self.names, self.shapes, self.eigenvalues * factor, self.left, self.right)

    def added(self, new: "PenaltyBlock", keep: Mapping[str, Tensor], gain: float) -> "DenseBlock":
        r"""$\sqrt{k} F \sqrt{k}$ plus `gain` times a new block, where k is `keep`."""
        if len(self.left) > 1 or not isinstance(new, DenseBlock):
            raise OptionError(
                "Kronecker factors of two models have no sum with factors; call flush() before the next model, or use "
                "structure='diagonal' or 'full'"
            )
        root = torch.cat([keep[name].flatten() for name in self.names]).sqrt()
        total = root[:, None] * self.matrix() * root + gain * new.matrix()
        return DenseBlock.of(self.names, self.shapes, total)

    def tensors(self) -> Params:
        """What must be stored."""
        return {"eigenvalues": self.eigenvalues, "left": self.left, "right": self.right}

    def on(self, device: torch.device) -> "DenseBlock":
        """The block on a device."""
        if self.right.device == device:
            return self
        return DenseBlock(self.names, self.shapes, **{name: value.to(device) for name, value in self.tensors().items()})

    def _rotated(self, weights: Mapping[str, Tensor], anchors: Mapping[str, Tensor]) -> Tensor:
        v = [(weights[name] - anchors[name]).to(self.right.dtype).reshape(len(self.left), -1) for name in self.names]
        return self.left.T @ torch.cat(v, 1) @ self.right

    def _split(self, joint: Tensor) -> Params:
        sizes = [shape.numel() // len(self.left) for shape in self.shapes]
        parts = zip(self.names, self.shapes, joint.split(sizes, 1), strict=True)
        return {name: values.reshape(shape) for name, shape, values in parts}


PenaltyBlock: TypeAlias = DiagonalBlock | DenseBlock


def block_from(names: Sequence[str], tensors: Params, shared: Mapping[str, Tensor]) -> PenaltyBlock:
    """The block of which `tensors()` were stored."""
    if "values" in tensors:
        return DiagonalBlock(names[0], tensors["values"])
    return DenseBlock(tuple(names), tuple(shared[name].shape for name in names), **tensors)
