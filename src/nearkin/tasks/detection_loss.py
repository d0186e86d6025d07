r"""Likelihood `detection`: boxes of objects in images, with the loss of RetinaNet (Lin et al. 2017).

An anchor is assigned to the box with the largest overlap if that is at least 0.5, and is background below 0.4; between
both it is ignored. The anchor with the largest overlap of a box is always assigned. The loss of an image is
$$\frac{1}{\max(1, M)}\Big(\sum_{a, c} \mathrm{FL}(p_{ac}) + \sum_{a} \mathrm{smooth}_{L1}(t_a - t_a^*)\Big),
  \qquad \mathrm{FL}(p) = -\alpha_t (1 - p_t)^\gamma \log p_t,$$
with M assigned anchors; the first sum is over anchors that are not ignored, the second over assigned ones.

Notation: N images, A anchors, B boxes, C classes. Outputs and targets are those of `nearkin.tasks.detections` and
`nearkin.tasks.boxes`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nearkin.core.errors import OptionError
from nearkin.tasks.boxes import PADDING, overlap
from nearkin.tasks.detections import NUM_BINS, BoxOutputs, binned_precision, box_offsets, count_hits, decode
from nearkin.tasks.metrics import AP50

ASSIGNED, BACKGROUND_BELOW = 0.5, 0.4  # overlaps
BACKGROUND, IGNORED = -1, -2
SMOOTH = 1 / 9  # offset at which the smooth L1 loss becomes linear


def assign_anchors(anchors: Tensor, targets: Tensor) -> Tensor:
    """Number of the box of every anchor `[N, A]`, −1 for background and −2 for ignored ones.

    Args:
        anchors: corners `[N, A, 4]`.
        targets: boxes `[N, B, 5]`.

    >>> anchors = torch.tensor([[[0.0, 0.0, 4.0, 4.0], [2.0, 0.0, 6.0, 4.0], [8.0, 8.0, 9.0, 9.0]]])
    >>> assign_anchors(anchors, torch.tensor([[[0.0, 0.0, 0.0, 4.0, 4.0], [-1.0, 0.0, 0.0, 0.0, 0.0]]]))
    tensor([[ 0, -1, -1]])
    """
    real = (targets[..., 0] != PADDING)[:, None]
    overlaps = overlap(anchors, targets[..., 1:]).masked_fill(~real, -1.0)
    best = overlaps.amax(1, keepdim=True)
    closest = F.one_hot(overlaps.argmax(1), anchors.shape[1]).transpose(1, 2).bool() & real & (best > 0)
    largest, number = (overlaps + 2 * closest).max(2)
    ignored = torch.where(largest < BACKGROUND_BELOW, BACKGROUND, IGNORED)
    return torch.where(largest >= ASSIGNED, number, ignored)


def focal_loss(logits: Tensor, wanted: Tensor, alpha: float, gamma: float) -> Tensor:
    """Focal loss of logits `[…]` for wanted values 0 or 1, not summed.

    >>> round(focal_loss(torch.zeros(()), torch.ones(()), 0.25, 2.0).item(), 6)  # 0.25 · 0.5² · log 2
    0.043322
    """
    p = logits.sigmoid()
    missing = torch.where(wanted > 0, 1 - p, p)  # 1 − p_t
    share = torch.where(wanted > 0, alpha, 1 - alpha)
    return share * missing**gamma * F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")


@dataclass(frozen=True)
class Detection:
    """Boxes of objects. It is a loss and a metric, not a distribution: it has no Fisher information.

    Attributes:
        name: as in the zoo.
        metric: average precision at an overlap of 0.5, from counts in bins of the score.
        alpha: weight of objects in the focal loss; background has 1 − alpha.
        gamma: exponent of the focal loss.
    """

    name: str = "detection"
    metric: str = AP50
    alpha: float = 0.25
    gamma: float = 2.0

    def num_outputs(self, num_classes: int) -> int:
        """A logit per class, four offsets and the four corners of the anchor."""
        return num_classes + 8

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None) -> Tensor:
        """Mean over images of focal loss and smooth L1 loss; `smoothing` is ignored."""
        logits, offsets, anchors = BoxOutputs.of(outputs)
        assigned = assign_anchors(anchors, targets)
        matched = assigned >= 0
        chosen = targets.gather(1, assigned.clamp_min(0)[..., None].expand(-1, -1, targets.shape[2])).to(outputs)
        wanted = F.one_hot(chosen[..., 0].clamp_min(0).long(), logits.shape[-1]).to(logits) * matched[..., None]
        focal = focal_loss(logits, wanted, self.alpha, self.gamma).sum(-1).masked_fill(assigned == IGNORED, 0)
        boxes = torch.where(matched[..., None], chosen[..., 1:], anchors)  # no logarithm of padding
        distance = F.smooth_l1_loss(offsets, box_offsets(anchors, boxes), reduction="none", beta=SMOOTH).sum(-1)
        losses = (focal + distance * matched).sum(1) / matched.sum(1).clamp_min(1)
        return (losses if weights is None else weights * losses).mean()

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Hits, misses and boxes of every class by score, flat; see `count_hits`."""
        num_classes = outputs.shape[-1] - 8
        return count_hits(decode(outputs), targets, num_classes).flatten()

    def score(self, tally: Tensor) -> float:
        """Average precision at an overlap of 0.5; scores are compared in steps of 0.01."""
        return binned_precision(tally.view(-1, 2 * NUM_BINS + 1))

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Not defined for boxes."""
        _refuse("a log-likelihood")

    def slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Not defined for boxes."""
        _refuse("gradients of a log-likelihood")

    def sample(self, outputs: Tensor, rng: Generator) -> Tensor:
        """Not defined for boxes."""
        _refuse("targets to sample")

    def information(self, outputs: Tensor, vector: Tensor) -> Tensor:
        """Not defined for boxes."""
        _refuse("Fisher information")

    def factors(self, outputs: Tensor) -> Iterator[Tensor]:
        """Not defined for boxes."""
        _refuse("Fisher information")


def _refuse(what: str) -> NoReturn:
    raise OptionError(f"got a detection task, which has a loss but not {what}; use a task with classes or values")
