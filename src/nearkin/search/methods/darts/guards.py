r"""Guards against the collapse of gradient-based search: too many skip connections, too many epochs.

After too many epochs a supernet prefers skip connections, even if they are poor in a separate network. Three quantities
are monitored: the number of chosen skip connections (P-DARTS); the entropy of the architecture weights, which is low
and stable once the choice is made; and the largest eigenvalue of $\nabla^2_\alpha L_v$, whose growth shows that the
minimum has become too sharp to choose single operations without a loss of accuracy (R-DARTS, Zela et al. 2020).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from nearkin.core.errors import require
from nearkin.search.supernet.choice_layout import ChoiceLayout


@dataclass(frozen=True, kw_only=True)
class Guards:
    """Conditions that end a search early, and a limit on skip connections.

    Attributes:
        max_skips: largest number of skip connections in the normal cell, or of skipped blocks in each stage of a
            chain; None for no limit.
        entropy: stop when the entropy, as a fraction of its maximum, is below this value and stable; 0 for never.
        change: largest change of the entropy within the window that counts as stable.
        growth: stop when the largest eigenvalue has grown by this factor, and return to the earlier architecture
            weights; None for never, which saves the products with the Hessian.
        window: epochs over which eigenvalues are averaged and compared, and in which the entropy must be stable.
        products: number of products with the Hessian for one eigenvalue.
    """

    max_skips: int | None = 2
    entropy: float = 0.2
    change: float = 0.01
    growth: float | None = None
    window: int = 5
    products: int = 8

    def __post_init__(self) -> None:
        require(self.max_skips is None or self.max_skips >= 0, f"max_skips must be 0 or more, got {self.max_skips}")
        require(0 <= self.entropy <= 1, f"entropy must be a fraction from 0 to 1, got {self.entropy}")
        require(self.change > 0, f"change must be above 0, got {self.change}")
        require(self.growth is None or self.growth > 1, f"growth must be a factor above 1, got {self.growth}")
        for name in ("window", "products"):
            require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")

    def settled(self, entropies: Sequence[float]) -> str:
        """Why a search with these entropies after each epoch should stop; empty if it should continue.

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
        r"""The same for the largest eigenvalue: $\bar\lambda_t / \bar\lambda_{t-k}$, both means over k epochs.

        >>> Guards(growth=1.3, window=2).grown([1.0, 1.0, 1.5, 2.5])
        'the largest eigenvalue has grown to 2.0 times that of 2 epochs ago'
        """
        k = self.window
        if self.growth is None or len(eigenvalues) < 2 * k:
            return ""
        now, then = (sum(map(abs, window)) / k for window in (eigenvalues[-k:], eigenvalues[-2 * k : -k]))
        if now <= self.growth * then:
            return ""
        return f"the largest eigenvalue has grown to {now / max(then, 1e-300):.1f} times that of {k} epochs ago"


def entropy(architecture: Mapping[str, Tensor], layout: ChoiceLayout | None = None) -> float:
    r"""Mean over rows of $-\sum_o p_o \log p_o / \log O$ with $p = \mathrm{softmax}(\alpha)$; from 0 to 1.

    Args:
        architecture: α of all kinds.
        layout: which of its O operations each row may have (default: all).

    >>> entropy({"alpha/normal": torch.zeros(3, 8)})
    1.0
    """
    doubles = {name: value.detach().double().cpu() for name, value in architecture.items()}
    if layout is None:
        tables = {name: value.softmax(-1) for name, value in doubles.items() if name.startswith("alpha/")}
        counts = {name: [table.shape[-1]] * len(table) for name, table in tables.items()}
    else:
        tables = {kind: alpha for kind, (alpha, _) in layout.weights(doubles).items()}
        counts = {kind: layout.num_choices(kind) for kind in tables}
    rows = [
        torch.special.entr(table).sum(-1) / torch.tensor(counts[name], dtype=torch.float64).clamp_min(2).log()
        for name, table in tables.items()
    ]
    return round(float(torch.cat(rows).mean()), 12)


def dominant_eigenvalue(
    loss: Callable[[dict[str, Tensor]], Tensor], architecture: Mapping[str, Tensor], rng: Generator, products: int = 8
) -> float:
    r"""Eigenvalue of largest magnitude of the Hessian with respect to the architecture weights, by Lanczos steps.

    >>> curve = torch.tensor([1.0, -5.0, 2.0])
    >>> round(dominant_eigenvalue(lambda a: 0.5 * (curve * a["a"].square()).sum(), {"a": torch.ones(3)},
    ...                           torch.Generator().manual_seed(0)), 4)
    -5.0
    """
    free = {name: value.detach().requires_grad_() for name, value in architecture.items()}
    slopes = torch.autograd.grad(loss(free), list(free.values()), create_graph=True)
    sizes = [value.numel() for value in free.values()]

    def product(vector: Tensor) -> Tensor:
        pieces = [piece.view_as(slope).to(slope) for piece, slope in zip(vector.split(sizes), slopes, strict=True)]
        products = torch.autograd.grad(slopes, list(free.values()), pieces, retain_graph=True, materialize_grads=True)
        return torch.cat([value.flatten() for value in products]).double().cpu()

    return lanczos(product, sum(sizes), rng, products)


def lanczos(product: Callable[[Tensor], Tensor], size: int, rng: Generator, steps: int) -> float:
    """Eigenvalue of largest magnitude of a symmetric matrix, from its products with vectors."""
    vector = torch.randn(size, generator=rng, dtype=torch.float64)
    basis, images = [vector / vector.norm()], []
    for _ in range(min(steps, size)):
        images.append(product(basis[-1]))
        rest = images[-1]
        for _ in range(2):  # twice, against rounding errors
            rest = rest - sum(direction * (direction @ rest) for direction in basis)
        length = rest.norm()
        if length <= 1e-10 * images[-1].norm() or length == 0:
            break
        basis.append(rest / length)
    inside = torch.stack(basis[: len(images)])
    small = inside @ torch.stack(images).T
    values = torch.linalg.eigvalsh((small + small.T) / 2)
    return float(values[values.abs().argmax()])
