r"""The Fréchet distance between Fisher informations (paper 000, eqs. 3 and 4).

$$d(F, G) = \frac{1}{\sqrt2} \operatorname{tr}\big(F + G - 2 (F^{1/2} G F^{1/2})^{1/2}\big)^{1/2}$$

of matrices at unit trace; for diagonals $\frac{1}{\sqrt2} \|\sqrt F - \sqrt G\|$. It lies in [0, 1]: 0 for equal
informations, 1 for those that share no weight. $\sqrt F$ is a point on the unit sphere, where d is Euclidean.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.types import Params
from nearkin.fisher.values import FisherDiagonal

AGGREGATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "weight": lambda value: value.flatten(),
    "filter": lambda value: value.flatten(1).sum(1) if value.dim() > 1 else value.flatten(),
    "layer": lambda value: value.sum().reshape(1),
    "sorted": lambda value: value.flatten().sort().values,
}
"""What of a tensor's information is compared: every weight, sums over filters, sums over tensors, sorted weights."""


def frechet(f: FisherDiagonal, g: FisherDiagonal, aggregate: str = "weight") -> float:
    """The distance of two diagonal informations of one network, brought to unit trace.

    Args:
        f: of one set of weights, say the source's on the target's data.
        g: of another, say the target's own; the same parameters in the same shapes.
        aggregate: `weight` compares weight by weight, as printed; `filter` and `layer` compare sums over filters and
            over tensors, `sorted` the sorted values of every tensor: these do not mind if neurons trade places.

    >>> f, g = (FisherDiagonal({"w": torch.tensor(v)}, "observed", 1) for v in ([1.0, 0.0], [0.5, 0.5]))
    >>> round(frechet(f, g) ** 2, 6), frechet(f, f), frechet(f, g, "layer")
    (0.292893, 0.0, 0.0)
    """
    require_same_weights(f.values, g.values)
    return float((embedded(f, aggregate) - embedded(g, aggregate)).norm() / math.sqrt(2))


def distances(f: FisherDiagonal, g: FisherDiagonal) -> dict[str, float]:
    """The distance by every aggregate."""
    return {how: frechet(f, g, how) for how in AGGREGATES}


def embedded(f: FisherDiagonal, aggregate: str = "weight") -> Tensor:
    r"""$\sqrt F$ at unit trace as one vector in float64: a point on the unit sphere."""
    if aggregate not in AGGREGATES:
        raise OptionError(f"aggregate is one of {', '.join(AGGREGATES)}, got {aggregate!r}")
    total = f.trace()
    require(
        math.isfinite(total) and total > 0,
        f"the Fisher information has trace {total}; the weights diverged, or the network ignores them: train it anew",
        MismatchError,
    )
    parts = [AGGREGATES[aggregate](value.double()) for value in f.values.values()]
    return (torch.cat(parts) / total).clamp_min_(0).sqrt_()


def require_same_weights(f: Params, g: Params) -> None:
    """Refuse informations of two different networks."""
    for name in {**f, **g}:
        mine, other = (tuple(side[name].shape) if name in side else "none" for side in (f, g))
        require(
            mine == other,
            f"two networks that differ cannot be compared weight by weight: {name} has shape {mine} in one and {other} "
            f"in the other; measure both tasks with one network, or compare the backbones (reading='model')",
            MismatchError,
        )


def full_frechet(f: Tensor, g: Tensor) -> float:
    """The distance of two full informations `[P, P]`, for small networks; float64, by two eigendecompositions.

    >>> round(full_frechet(torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([0.5, 0.5]))) ** 2, 6)
    0.292893
    """
    require(
        f.shape == g.shape and f.dim() == 2 and f.shape[0] == f.shape[1],
        f"full informations have shapes {tuple(f.shape)} and {tuple(g.shape)}, expected two square ones alike",
        MismatchError,
    )
    if torch.equal(f, g):
        return 0.0  # which the square root of a rounding error would not be
    f, g = (value.double() / value.double().trace() for value in (f, g))
    root = _root(f)
    middle = torch.linalg.eigvalsh(root @ g @ root).clamp_min(0).sqrt().sum()
    return math.sqrt(min(1.0, max(0.0, float(1 - middle))))


def _root(f: Tensor) -> Tensor:
    """The square root of a positive semi-definite matrix."""
    values, vectors = torch.linalg.eigh((f + f.t()) / 2)
    root: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.t()
    return root
