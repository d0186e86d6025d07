"""Digests of samples: the same input has the same digest whatever its label, class subset, type or range."""

import numpy as np
import torch

import nearkin as nk
from nearkin.tasks.rows import Values
from nearkin.tasks.sample_digests import sample_digests


def digests(text: str, split: str = "train") -> set[int]:
    return set(sample_digests(getattr(nk.task(text), split).inputs).tolist())


def test_other_labels_and_class_subsets_of_one_source_share_their_samples() -> None:
    every = digests("digits")
    assert len(every) == len(nk.task("digits").train)  # no two digits coincide
    for modifier in ("detect=6", "parity", "limit=90", "corrupt=0.5", "rgb"):
        assert digests(f"digits?{modifier}") <= every
    low, some = digests("digits?classes=0,1,2&rest=drop"), digests("digits?classes=1,2,3&rest=drop")
    labels = nk.task("digits").train.labels()
    assert len(low & some) == int(((labels == 1) | (labels == 2)).sum())
    assert digests("digits?detect=6") == every


def test_disjoint_draws_share_nothing_and_another_split_does() -> None:
    assert not digests("digits") & digests("digits", "test")
    assert not digests("digits?part=1/2&detect=0") & digests("digits?part=2/2&parity")
    assert digests("digits?split=1") & digests("digits", "test")


def test_bytes_and_floats_of_any_range_have_the_same_digests() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 8, 8), dtype=np.uint8)
    images[:25] = images[:25] // 3 + 20  # images that do not use the whole range
    labels = np.arange(50) % 2
    forms = (images, images / 255, (images / 255).astype(np.float32), images.astype(np.float32), images / 127.5 - 1)
    first, *others = (sample_digests(nk.Task.from_arrays("t", x, labels).train.inputs) for x in forms)
    assert len(first.unique()) == len(first)
    for other in others:
        assert torch.equal(first, other)
    changed = images.copy()
    changed[:, 3, 3] ^= 1
    assert not torch.isin(first, sample_digests(nk.Task.from_arrays("t", changed, labels).train.inputs)).any()


def test_images_of_another_size_are_not_recognised() -> None:
    assert not digests("digits") & digests("digits?size=16")
    tall, wide = (Values(torch.arange(8.0).view(1, 1, *size)) for size in ((4, 2), (2, 4)))
    assert sample_digests(tall) != sample_digests(wide)


def test_rows_of_tables_are_hashed_by_their_values() -> None:
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0], [2.0, 4.0]])
    hashed = sample_digests(Values(x)).tolist()
    assert hashed[0] == hashed[2]
    assert len(set(hashed)) == 3
