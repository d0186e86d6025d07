"""Kinds of transfer against their formulas, and what they leave constant."""

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn

from multitask_examples import ONE, TWO
from nearkin.core.errors import OptionError
from nearkin.multitask.augmentation_sets import SetSource
from nearkin.multitask.encoder_transfer import KINDS, Encoder, EncoderTransfer, transfer_loss
from nearkin.multitask.matching import MatchingOptions, match_encoders

SETS, COUNT = 6, 3
OPTIONS = EncoderTransfer(num_sets=SETS, num_augmentations=COUNT)


def encoder(seed: int) -> tuple[nn.Linear, Encoder]:
    """A linear encoder of 6x6 images to five features."""
    layer = nn.Linear(36, 5, dtype=torch.float64)
    with torch.no_grad():
        for value in layer.parameters():
            value.copy_(torch.randn(value.shape, generator=Generator().manual_seed(seed), dtype=torch.float64))
    return layer, Encoder(lambda x: layer(x.flatten(1)), dict(layer.named_parameters()))


(TEACHING, TEACHER), (LEARNING, STUDENT) = encoder(1), encoder(2)
IMAGES = torch.rand(SETS, COUNT, 1, 6, 6, generator=Generator().manual_seed(3), dtype=torch.float64)


def embedded(layer: nn.Module, count: int = COUNT) -> Tensor:
    features: Tensor = layer(IMAGES[:, :count].flatten(2)).detach()
    return features


def value(kind: str) -> Tensor:
    sets = IMAGES if kind == "mmd" else IMAGES[:, :1]
    return transfer_loss(TEACHER, STUDENT, [sets], replace(OPTIONS, transfer=kind)).loss  # type: ignore[arg-type]


def test_weights_are_compared_by_their_mean_square() -> None:
    squares = [(a - b).square().flatten() for a, b in zip(TEACHING.parameters(), LEARNING.parameters(), strict=True)]
    torch.testing.assert_close(value("l2-weights"), torch.cat(squares).mean())


def test_embeddings_are_compared_by_their_mean_square() -> None:
    expected = (embedded(TEACHING, 1) - embedded(LEARNING, 1)).square().mean()
    torch.testing.assert_close(value("l2-embedding"), expected)


def test_similarities_are_cosines_of_pairs() -> None:
    theirs, ours = (torch.cosine_similarity(z[:, None, 0], z[None, :, 0], dim=-1)
                    for z in (embedded(TEACHING, 1), embedded(LEARNING, 1)))  # fmt: skip
    pairs = [(float(ours[i, j]) - float(theirs[i, j])) ** 2 for i in range(SETS) for j in range(i)]
    assert float(value("similarity").detach()) == pytest.approx(sum(pairs) / len(pairs), rel=1e-9)


def test_mmd_is_the_matching_of_the_embeddings() -> None:
    matching = MatchingOptions(kernel="linear", quantile=0.3)
    found = transfer_loss(TEACHER, STUDENT, [IMAGES], replace(OPTIONS, matching=matching))
    expected = match_encoders(embedded(TEACHING), embedded(LEARNING), matching)
    torch.testing.assert_close(found.loss, expected.loss)
    assert (found.active, found.threshold) == (expected.active, expected.threshold)
    assert 0 < found.active < 1
    split = transfer_loss(TEACHER, STUDENT, [IMAGES[:2], IMAGES[2:]], replace(OPTIONS, matching=matching))
    torch.testing.assert_close(split.loss, found.loss), "images of different sizes are embedded apart"


@pytest.mark.parametrize("limit", [1, SETS, 2 * SETS, 100])
def test_embedding_in_batches_gives_the_same_loss_and_gradient(limit: int) -> None:
    found = {}
    for number, recompute in ((limit, True), (limit, False), (1000, False)):
        options = replace(OPTIONS, images_at_once=number)
        loss = transfer_loss(TEACHER.constant(), STUDENT, [IMAGES], options, recompute=recompute).loss
        found[number, recompute] = (loss.detach(), *torch.autograd.grad(loss, list(LEARNING.parameters())))
    torch.testing.assert_close(found[limit, True], found[1000, False])
    torch.testing.assert_close(found[limit, False], found[1000, False])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_only_the_student_learns(kind: str) -> None:
    options = replace(OPTIONS, transfer=kind)  # type: ignore[arg-type]
    sets = IMAGES if kind == "mmd" else IMAGES[:, :1]
    loss = transfer_loss(TEACHER.constant(), STUDENT, [sets], options).loss
    gradients = torch.autograd.grad(loss, [LEARNING.weight, TEACHING.weight], allow_unused=True)
    assert gradients[0] is not None
    assert bool(gradients[0].any())
    assert gradients[1] is None
    same = transfer_loss(TEACHER, TEACHER, [sets], options)
    assert float(same.loss.detach()) == pytest.approx(0, abs=1e-12), "a student that equals its teacher has no loss"


def test_what_is_drawn_depends_on_the_kind() -> None:
    sources = [SetSource.of(task, task.train, "flip") for task in (ONE, TWO)]
    shapes = {}
    for kind in KINDS:
        drawn = replace(OPTIONS, transfer=kind).draw(sources, Generator().manual_seed(0))  # type: ignore[arg-type]
        shapes[kind] = [tuple(sets.shape[:2]) for sets in drawn]
    assert shapes["mmd"] == [(SETS, COUNT)]
    assert shapes["l2-embedding"] == shapes["similarity"] == [(SETS, 1)]
    assert shapes["l2-weights"] == []


def test_what_switches_the_transfer_off() -> None:
    assert OPTIONS.active
    assert not any(replace(OPTIONS, **change).active
                   for change in ({"transfer": "none"}, {"strength": 0.0}, {"num_augmentations": 0}))  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(("change", "line"), [
    ({"transfer": "firm"}, "transfer must be one of mmd, l2-weights, l2-embedding, similarity, none, got 'firm'"),
    ({"strength": -1.0}, "strength of the transfer must be 0 or more, got -1.0"),
    ({"every": 0}, "every must be 1 or more, got 0"),
    ({"num_sets": 7}, "num_sets must be an even number of 4 or more"),
    ({"num_augmentations": 1}, "num_augmentations must be 0 for no transfer, or 2 or more, got 1"),
])  # fmt: skip
def test_bad_options_are_refused(change: dict[str, object], line: str) -> None:
    with pytest.raises(OptionError, match=line):
        EncoderTransfer(**change)  # type: ignore[arg-type]
