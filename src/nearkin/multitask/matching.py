r"""Transfer from one encoder to another: both should agree on which sets of augmented examples are alike.

An augmentation set holds C augmentations of one example. The difference of two sets under an encoder is the unbiased
squared maximum mean discrepancy of their embeddings (Gretton et al. 2012),

$$d_{ij} = \frac{\sum_{n \ne n'} f(z_n^i, z_{n'}^i)}{C(C-1)} + \frac{\sum_{m \ne m'} f(z_m^j, z_{m'}^j)}{C(C-1)}
- \frac{2 \sum_{n, m} f(z_n^i, z_m^j)}{C^2}.$$

The teacher calls a pair alike if its $d_{ij}$ is below τ. The student pays for disagreement only:

$$\ell = \sum_{i < j} \max\left(0, -(d_{ij}^\mathrm{teacher} - \tau) (d_{ij}^\mathrm{student} - \tau)\right).$$

With a radial basis function d is at most 2, so the printed τ = 5 makes every pair alike for both encoders: the loss and
its gradient are zero. Here τ is a quantile of the teacher's differences, and the bandwidth is each encoder's own median
distance, so that differences of both encoders have one scale; both are constants for the gradient.

Notation: S sets of C augmentations, D features.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require, require_positive
from nearkin.core.types import Params

KernelName: TypeAlias = Literal["rbf", "linear", "multiscale"]
SAME = 1e-12  # squared distances, relative to the largest, below which points count as equal
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the bandwidth of `multiscale`


@dataclass(frozen=True)
class MatchingOptions:
    """How differences of augmentation sets are compared.

    Attributes:
        kernel: `rbf`, `linear`, or `multiscale`: the mean of radial basis functions of five bandwidths.
        bandwidth: of the radial basis function (default: the median distance of the embeddings, for each encoder).
        threshold: τ, as printed (default: a quantile of the teacher's differences).
        quantile: of the teacher's differences that is τ.
    """

    kernel: KernelName = "rbf"
    bandwidth: float | None = None
    threshold: float | None = None
    quantile: float = 0.5

    def __post_init__(self) -> None:
        names = get_args(KernelName)
        require(self.kernel in names, f"kernel must be one of {', '.join(names)}, got {self.kernel!r}")
        require(0 < self.quantile < 1, f"quantile must lie between 0 and 1, got {self.quantile}")
        if self.bandwidth is not None:
            require_positive("bandwidth", self.bandwidth)
        if self.threshold is not None:
            require(math.isfinite(self.threshold), f"threshold must be finite, got {self.threshold}")


@dataclass(frozen=True, eq=False)
class Matching:
    """Loss of a student against a teacher.

    Attributes:
        loss: sum of the hinge over all pairs of sets, a scalar with a gradient for the student.
        active: share of pairs on which the two disagree, and only these have a gradient.
        threshold: τ.
    """

    loss: Tensor
    active: float
    threshold: float

    @property
    def agreement(self) -> float:
        """Share of pairs on which both say the same."""
        return 1 - self.active


def set_differences(embeddings: Tensor, options: MatchingOptions | None = None) -> Tensor:
    r"""Unbiased squared maximum mean discrepancy of all pairs of sets `[S, S]`; zero on the diagonal.

    A value may be below zero by chance, so its root is never taken.

    Args:
        embeddings: of the augmentations of every set `[S, C, D]`, C of 2 or more.
        options: kernel and bandwidth; the bandwidth is a constant for the gradient.

    >>> sets = torch.tensor([[[0.0], [0.0]], [[1.0], [1.0]]])
    >>> set_differences(sets, MatchingOptions("linear")).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    options = options or MatchingOptions()
    require(
        embeddings.dim() == 3 and embeddings.shape[1] >= 2,
        f"embeddings have shape {tuple(embeddings.shape)}, expected (sets, augmentations, features) with two "
        f"augmentations or more",
        DataError,
    )
    sets, count, _ = embeddings.shape
    kernel = _kernel(embeddings.flatten(0, 1), options).view(sets, count, sets, count)
    own = kernel.diagonal(dim1=0, dim2=2)  # [C, C, S]
    within = (own.sum((0, 1)) - own.diagonal(dim1=0, dim2=1).sum(1)) / (count * (count - 1))
    differences = within[:, None] + within - 2 * kernel.mean((1, 3))
    return differences - torch.diag(differences.diagonal())


def match_encoders(teacher: Tensor, student: Tensor, options: MatchingOptions | None = None) -> Matching:
    """Loss of a student that should call the same sets alike as a teacher.

    Args:
        teacher: embeddings by the teacher `[S, C, D]`; they are constants for the gradient unless they require one,
            as in the exact hypergradient.
        student: embeddings of the same augmentations by the student `[S, C, D']`.
        options: kernel and threshold.
    """
    options = options or MatchingOptions()
    require(
        teacher.shape[:2] == student.shape[:2],
        f"the teacher embeds {tuple(teacher.shape[:2])} sets and augmentations, the student {tuple(student.shape[:2])}",
        MismatchError,
    )
    require(len(teacher) >= 3, f"got {len(teacher)} augmentation sets, expected three or more: two make one pair only",
            DataError)  # fmt: skip
    pairs = torch.triu_indices(len(teacher), len(teacher), offset=1, device=teacher.device)
    theirs, ours = (set_differences(item, options)[pairs[0], pairs[1]] for item in (teacher, student))
    limit = options.threshold
    if limit is None:
        limit = float(theirs.detach().quantile(options.quantile))
    disagreement = -(theirs - limit) * (ours - limit)
    active = float((disagreement.detach() > 0).double().mean())
    return Matching(disagreement.clamp_min(0).sum(), active, limit)


def weight_distance(teacher: Params, student: Params) -> Tensor:
    """Mean squared difference of the weights that both have, by name and shape.

    >>> teacher, student = ({"w": torch.full((2,), w), "head": torch.ones(size)} for w, size in ((0.0, 3), (1.0, 5)))
    >>> float(weight_distance(teacher, student))
    1.0
    """
    shared = [name for name, value in student.items() if name in teacher and teacher[name].shape == value.shape]
    require(bool(shared), "the two encoders have no weights of the same name and shape", MismatchError)
    total = sum(student[name].numel() for name in shared)
    return torch.stack([(student[name] - teacher[name]).square().sum() for name in shared]).sum() / total


def embedding_distance(teacher: Tensor, student: Tensor) -> Tensor:
    """Mean squared difference of the embeddings of the same inputs `[N, D]`."""
    require(
        teacher.shape == student.shape,
        f"embeddings have shapes {tuple(teacher.shape)} and {tuple(student.shape)}, expected equal ones",
        MismatchError,
    )
    return (student - teacher).square().mean()


def similarity_distance(teacher: Tensor, student: Tensor) -> Tensor:
    """Mean squared difference of the cosine similarities of all pairs of inputs, of embeddings `[N, D]` and `[N, D']`.

    >>> z = torch.eye(3)
    >>> float(similarity_distance(z, 2 * z)), float(similarity_distance(z, torch.ones(3, 1)))
    (0.0, 1.0)
    """
    require(len(teacher) == len(student), f"got {len(teacher)} and {len(student)} embeddings, expected equally many",
            MismatchError)  # fmt: skip
    theirs, ours = (F.normalize(item, dim=1) @ F.normalize(item, dim=1).T for item in (teacher, student))
    rows, columns = torch.triu_indices(len(theirs), len(theirs), offset=1, device=theirs.device)
    return (ours - theirs)[rows, columns].square().mean()


def _kernel(points: Tensor, options: MatchingOptions) -> Tensor:
    """Kernel matrix of points `[N, D]`."""
    if options.kernel == "linear":
        return points @ points.T
    centred = points - points.detach().mean(0)
    length = centred.square().sum(1)
    apart = (length[:, None] + length - 2 * centred @ centred.T).clamp_min(0)
    width = options.bandwidth if options.bandwidth is not None else _median_distance(apart.detach())
    scales = SCALES if options.kernel == "multiscale" else (1.0,)
    return torch.stack([torch.exp(apart / (-2 * (scale * width) ** 2)) for scale in scales]).mean(0)


def _median_distance(squares: Tensor) -> float:
    """Median of the distances above zero; 1 if all points are equal."""
    positive = squares[squares > SAME * squares.max()]
    return float(positive.median()) ** 0.5 if len(positive) else 1.0
