"""Loss by which an encoder learns from the encoder of another task.

| kind | the student should |
| --- | --- |
| `mmd` | call the same augmentation sets alike as the teacher (`nearkin.multitask.matching`) |
| `l2-weights` | have the teacher's weights |
| `l2-embedding` | give the teacher's embeddings |
| `similarity` | give pairs of examples the teacher's similarities |
| `none` | learn alone |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from nearkin.core.errors import require
from nearkin.core.types import Params
from nearkin.multitask.augmentation_sets import SetSource, draw_sets
from nearkin.multitask.matching import (
    Matching,
    MatchingOptions,
    embedding_distance,
    match_encoders,
    similarity_distance,
    weight_distance,
)

TransferKind: TypeAlias = Literal["mmd", "l2-weights", "l2-embedding", "similarity", "none"]
KINDS = get_args(TransferKind)


@dataclass(frozen=True, kw_only=True)
class EncoderTransfer:
    """Options of the transfer between encoders.

    Attributes:
        transfer: mmd, l2-weights, l2-embedding, similarity or none.
        strength: factor λ of the transfer loss beside the training loss, as a mean over passes.
        every: n, the number of passes from one transfer to the next; its loss then has the factor n λ. 1 is the print,
            for several times the time.
        num_sets: number of augmentation sets, half of them from each task.
        num_augmentations: C, size of a set; 0 for no transfer.
        images_at_once: largest number of images that are embedded together; a smaller one needs less memory and more
            time.
        augment: augmentation (default: crop, flip, rotation and jitter that suit the images).
        matching: kernel and threshold of `mmd`.
    """

    transfer: TransferKind = "mmd"
    strength: float = 1.0
    every: int = 8
    num_sets: int = 20
    num_augmentations: int = 20
    images_at_once: int = 400
    augment: str = ""
    matching: MatchingOptions = field(default_factory=MatchingOptions)

    def __post_init__(self) -> None:
        require(self.transfer in KINDS, f"transfer must be one of {', '.join(KINDS)}, got {self.transfer!r}")
        require(self.strength >= 0, f"strength of the transfer must be 0 or more, got {self.strength}")
        require(self.every >= 1, f"every must be 1 or more, got {self.every}")
        require(
            self.num_sets >= 4 and self.num_sets % 2 == 0,
            f"num_sets must be an even number of 4 or more, half for each task, got {self.num_sets}",
        )
        require(
            self.num_augmentations == 0 or self.num_augmentations >= 2,
            f"num_augmentations must be 0 for no transfer, or 2 or more, got {self.num_augmentations}",
        )

        require(self.images_at_once >= 1, f"images_at_once must be 1 or more, got {self.images_at_once}")

    @property
    def factor(self) -> float:
        """Factor of the transfer loss in a pass with transfer."""
        return self.every * self.strength

    @property
    def active(self) -> bool:
        """Whether anything is transferred."""
        return self.transfer != "none" and self.strength > 0 and self.num_augmentations > 0

    def draw(self, sources: Sequence[SetSource], rng: Generator) -> list[Tensor]:
        """The images that teacher and student embed; none for `l2-weights`."""
        if self.transfer == "l2-weights":
            return []
        return draw_sets(sources, self.num_sets, self.num_augmentations if self.transfer == "mmd" else 1, rng)


class Encoder(NamedTuple):
    """An encoder: a function from images to embeddings `[N, D]`, and its weights by name."""

    embed: Callable[[Tensor], Tensor]
    weights: Params

    def constant(self) -> "Encoder":
        """The same encoder without gradients."""
        return Encoder(torch.no_grad()(self.embed), {name: value.detach() for name, value in self.weights.items()})


def transfer_loss(
    teacher: Encoder, student: Encoder, sets: Sequence[Tensor], options: EncoderTransfer, *, recompute: bool = True
) -> Matching:
    """Loss of a student against a teacher, with a gradient for what requires one.

    If the images are embedded in several batches, each has some augmentations of all sets, so that norms over a batch
    see all sets, and the graphs of the batches are not kept.

    Args:
        teacher: the encoder to learn from.
        student: the encoder that learns.
        sets: augmentation sets `[S, C, c, H, W]` from `EncoderTransfer.draw`.
        options: kind of transfer.
        recompute: whether a gradient computes each batch a second time; otherwise the graphs of all are kept, as second
            derivatives need.
    """
    if options.transfer == "l2-weights":
        return _matching(weight_distance(teacher.weights, student.weights))
    theirs, ours = (
        torch.cat([_embedded(encoder, part, options.images_at_once, recompute) for part in sets])
        for encoder in (teacher, student)
    )
    if options.transfer == "mmd":
        return match_encoders(theirs, ours, options.matching)
    distance = embedding_distance if options.transfer == "l2-embedding" else similarity_distance
    return _matching(distance(theirs[:, 0], ours[:, 0]))


def _embedded(encoder: Encoder, sets: Tensor, limit: int, recompute: bool) -> Tensor:
    """Embeddings `[S, C, D]` of sets `[S, C, c, H, W]`."""
    batches = sets.split(max(1, limit // len(sets)), dim=1)
    parts = []
    for batch in batches:
        images = batch.flatten(0, 1)
        if recompute and len(batches) > 1 and torch.is_grad_enabled():
            found = checkpoint(encoder.embed, images, use_reentrant=False, preserve_rng_state=False)
        else:
            found = encoder.embed(images)
        parts.append(found.unflatten(0, batch.shape[:2]))
    return torch.cat(parts, 1)


def _matching(loss: Tensor) -> Matching:
    """A loss without pairs that agree or disagree."""
    return Matching(loss, 1.0, 0.0)
