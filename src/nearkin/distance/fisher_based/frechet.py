r"""Fréchet distance between Fisher information matrices (paper 000, eqs. 3 and 4).

$$d(F, G) = \frac{1}{\sqrt2} \operatorname{tr}\big(F + G - 2 (F^{1/2} G F^{1/2})^{1/2}\big)^{1/2}$$

for matrices at unit trace; for diagonals $\frac{1}{\sqrt2} \|\sqrt F - \sqrt G\|$. It lies in [0, 1]: 0 for equal
matrices, 1 for those that share no weight. $\sqrt F$ is a point on the unit sphere, where d is Euclidean.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.types import Params
from nearkin.fisher.values import FisherDiagonal


def _mixed(layers: Sequence[Tensor]) -> Tensor:
    """Shares of tensors in the whole and of weights in their tensor, each with weight 1/2; see `AGGREGATES`."""
    totals = torch.stack([value.sum() for value in layers])
    within = [value.flatten() / (total if total > 0 else 1) for value, total in zip(layers, totals, strict=True)]
    return torch.cat([totals, *(share / len(layers) for share in within)]) / 2


AGGREGATES: Mapping[str, Callable[[Sequence[Tensor]], Tensor]] = {
    "weight": lambda layers: torch.cat([value.flatten() for value in layers]),
    "filter": lambda layers: torch.cat(
        [value.flatten(1).sum(1) if value.dim() > 1 else value.flatten() for value in layers]
    ),
    "layer": lambda layers: torch.stack([value.sum() for value in layers]),
    "sorted": lambda layers: torch.cat([value.flatten().sort().values for value in layers]),
    "mixed": _mixed,
}
r"""Aggregates of the information of L tensors at unit trace; each gives numbers >= 0 that sum to 1.

| aggregate | compares |
| --- | --- |
| `weight` | every weight, as printed in the paper |
| `filter` | sums over filters |
| `layer` | sums over tensors |
| `sorted` | the sorted values of every tensor |
| `mixed` | half `layer`, half weights within each tensor |

With $d_l$ the distance of the weights of tensor l alone, at unit trace,

$$d_{\text{mixed}}^2 = \frac12 \Big( d_{\text{layer}}^2 + \frac1L \sum_l d_l^2 \Big).$$

A tensor with trace 0 has a distance of $1/\sqrt2$ to one with a positive trace, and 0 to another with trace 0.
"""


def frechet(f: FisherDiagonal, g: FisherDiagonal, aggregate: str = "weight") -> float:
    """Distance of two Fisher diagonals of one architecture, scaled to unit trace.

    Args:
        f: of one network, for example the source's on the target's data.
        g: of another, for example the target's own; the same parameters in the same shapes.
        aggregate: `weight` compares weight by weight, as printed; `filter` and `layer` compare sums over filters and
            over tensors, `sorted` the sorted values of every tensor; `layer` and `sorted` do not depend on the order of
            neurons. `mixed` is half `layer`, half weight by weight within each tensor.

    >>> f, g = (FisherDiagonal({"w": torch.tensor(v)}, "observed", 1) for v in ([1.0, 0.0], [0.5, 0.5]))
    >>> round(frechet(f, g) ** 2, 6), frechet(f, f), frechet(f, g, "layer")
    (0.292893, 0.0, 0.0)
    """
    require_same_weights(f.values, g.values)
    return float((embedded(f, aggregate) - embedded(g, aggregate)).norm() / math.sqrt(2))


def distances(f: FisherDiagonal, g: FisherDiagonal) -> dict[str, float]:
    """The distance for every aggregate."""
    return {how: frechet(f, g, how) for how in AGGREGATES}


def embedded(f: FisherDiagonal, aggregate: str = "weight") -> Tensor:
    r"""$\sqrt F$ at unit trace as one vector in float64: a point on the unit sphere."""
    if aggregate not in AGGREGATES:
        raise OptionError(f"aggregate is one of {', '.join(AGGREGATES)}, got {aggregate!r}")
    total = f.trace()
    require(
        math.isfinite(total) and total > 0,
        f"the Fisher information has trace {total}; the weights diverged, or the network does not use them: train it "
        f"again",
        MismatchError,
    )
    shares = [(value.double() / total).clamp_min(0) for value in f.values.values()]
    return AGGREGATES[aggregate](shares).sqrt()


def require_same_weights(f: Params, g: Params) -> None:
    """Refuse Fisher information of two different networks."""
    for name in {**f, **g}:
        first, second = (tuple(side[name].shape) if name in side else "none" for side in (f, g))
        require(
            first == second,
            f"different networks cannot be compared weight by weight: {name} has shape {first} in one and {second} in "
            f"the other; measure both tasks with one network, or compare the backbones (reading='model')",
            MismatchError,
        )


def full_frechet(f: Tensor, g: Tensor) -> float:
    """Distance of two full matrices `[P, P]`, for small networks; float64, by two eigendecompositions.

    >>> round(full_frechet(torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([0.5, 0.5]))) ** 2, 6)
    0.292893
    """
    require(
        f.shape == g.shape and f.dim() == 2 and f.shape[0] == f.shape[1],
        f"the matrices have shapes {tuple(f.shape)} and {tuple(g.shape)}, expected two equal square shapes",
        MismatchError,
    )
    if torch.equal(f, g):
        return 0.0  # exactly, without the square root of a rounding error
    f, g = (value.double() / value.double().trace() for value in (f, g))
    values, vectors = torch.linalg.eigh((f + f.t()) / 2)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.t()  # F^(1/2)
    middle = torch.linalg.eigvalsh(root @ g @ root).clamp_min(0).sqrt().sum()
    return math.sqrt(min(1.0, max(0.0, float(1 - middle))))
