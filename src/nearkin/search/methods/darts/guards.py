r"""Guards against the collapse of gradient-based search: too many skip connections, too long a search.

Searched too long, a supernet favours skip connections, whatever they are worth in a network of their own. Three signs
are watched: the number of skip connections chosen (P-DARTS), the entropy of the architecture weights, which has nothing
left to decide once it is low and stable, and the largest eigenvalue of $\nabla^2_\alpha L_v$, whose growth tells that
the minimum has become too sharp for the choice of single operations to survive (R-DARTS, Zela et al. 2020).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from nearkin.core.errors import require


@dataclass(frozen=True, kw_only=True)
class Guards:
    """What ends a search early, and what it may choose.

    Attributes:
        max_skips: skip connections in the normal cell at the most; None for no limit.
        entropy: stop once the entropy is below this share of the largest possible one and stable; 0 for never.
        change: by how much it may differ within the window to be stable.
        growth: stop once the largest eigenvalue has grown by this factor, and go back to the weights before; None for
            never, which saves its products with the Hessian.
        window: epochs over which eigenvalues are averaged and compared, and in which the entropy must be stable.
        products: with the Hessian for one eigenvalue.
    """

    max_skips: int | None = 2
    entropy: float = 0.2
    change: float = 0.01
    growth: float | None = None
    window: int = 5
    products: int = 8

    def __post_init__(self) -> None:
        require(self.max_skips is None or self.max_skips >= 0, f"max_skips must be 0 or more, got {self.max_skips}")
        require(0 <= self.entropy <= 1, f"the entropy to stop at is a share from 0 to 1, got {self.entropy}")
        require(self.change > 0, f"the change of a stable entropy must be above 0, got {self.change}")
        require(self.growth is None or self.growth > 1, f"growth is a factor above 1, got {self.growth}")
        for name in ("window", "products"):
            require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")

    def settled(self, entropies: Sequence[float]) -> str:
        """Why a search whose entropy went this way, epoch by epoch, should stop; empty while it should not.

        >>> Guards(window=2).settled([0.9, 0.15, 0.151])
        'the entropy is low and stable at 0.15'
        >>> Guards(window=2).settled([0.9, 0.5, 0.5])
        ''
        """
        last = entropies[-self.window :]
        if len(last) < self.window or max(last) >= self.entropy or max(last) - min(last) > self.change:
            return ""
        return f"the entropy is low and stable at {last[-1]:.2f}"

    def grown(self, eigenvalues: Sequence[float]) -> str:
        r"""The same of the largest eigenvalue: $\bar\lambda_t / \bar\lambda_{t-k}$, both means over k epochs.

        >>> Guards(growth=1.3, window=2).grown([1.0, 1.0, 1.5, 2.5])
        'the largest eigenvalue has grown to 2.0 times that of 2 epochs ago'
        """
        k = self.window
        if self.growth is None or len(eigenvalues) < 2 * k:
            return ""
        now, then = (sum(abs(value) for value in part) / k for part in (eigenvalues[-k:], eigenvalues[-2 * k : -k]))
        if now <= self.growth * then:
            return ""
        return f"the largest eigenvalue has grown to {now / max(then, 1e-300):.1f} times that of {k} epochs ago"


def entropy(architecture: Mapping[str, Tensor]) -> float:
    r"""Mean over edges of $-\sum_o p_o \log p_o / \log O$ with $p = \mathrm{softmax}(\alpha)$; from 0 to 1.

    >>> entropy({"alpha/normal": torch.zeros(3, 8)})
    1.0
    """
    rows = []
    for name, alpha in architecture.items():
        if name.startswith("alpha/"):
            p = alpha.detach().double().softmax(-1)
            rows.append(torch.special.entr(p).sum(-1) / math.log(max(2, alpha.shape[-1])))
    return round(float(torch.cat(rows).mean()), 12)


def dominant_eigenvalue(
    loss: Callable[[dict[str, Tensor]], Tensor], architecture: Mapping[str, Tensor], rng: Generator, products: int = 8
) -> float:
    r"""The eigenvalue of largest size of the Hessian of a loss in the architecture weights, by so many Lanczos steps.

    >>> curve = torch.tensor([1.0, -5.0, 2.0])
    >>> round(dominant_eigenvalue(lambda a: 0.5 * (curve * a["a"].square()).sum(), {"a": torch.ones(3)},
    ...                           torch.Generator().manual_seed(0)), 4)
    -5.0
    """
    free = {name: value.detach().requires_grad_() for name, value in architecture.items()}
    slopes = torch.autograd.grad(loss(free), list(free.values()), create_graph=True)
    sizes = [value.numel() for value in free.values()]

    def product(vector: Tensor) -> Tensor:
        parts = [part.view_as(slope).to(slope) for part, slope in zip(vector.split(sizes), slopes, strict=True)]
        found = torch.autograd.grad(slopes, list(free.values()), parts, retain_graph=True, materialize_grads=True)
        return torch.cat([value.flatten() for value in found]).double().cpu()

    return lanczos(product, sum(sizes), rng, products)


def lanczos(product: Callable[[Tensor], Tensor], size: int, rng: Generator, steps: int) -> float:
    """The eigenvalue of largest size of a symmetric matrix that is known by its products."""
    vector = torch.randn(size, generator=rng, dtype=torch.float64)
    basis, images = [vector / vector.norm()], []
    for _ in range(min(steps, size)):
        images.append(product(basis[-1]))
        rest = images[-1]
        for _ in range(2):  # once more, against rounding
            rest = rest - sum(direction * (direction @ rest) for direction in basis)
        length = rest.norm()
        if length <= 1e-10 * images[-1].norm() or length == 0:
            break
        basis.append(rest / length)
    inside = torch.stack(basis[: len(images)])
    small = inside @ torch.stack(images).T
    values = torch.linalg.eigvalsh((small + small.T) / 2)
    return float(values[values.abs().argmax()])
