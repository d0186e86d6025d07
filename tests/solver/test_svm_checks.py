"""Checks of images by a support vector machine."""

import torch

from nearkin.solver.svm_checks import FOLDS, check_rows, held_out_hits, lead_over_pixels


def labelled(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images of noise, the signed root of the product of two pixels, and classes by its sign."""
    images = torch.randn(count, 1, 10, 10, generator=torch.Generator().manual_seed(seed))
    product = images[:, 0, 4, 4:5] * images[:, 0, 4, 5:6]
    return images, product.sign() * product.abs().sqrt(), (product[:, 0] > 0).long()


def test_features_that_tell_the_class_beat_pixels() -> None:
    for seed in range(5):
        images, feature, y = labelled(200, seed)
        ours, theirs, clearly = lead_over_pixels(feature, images, y, seed)
        assert ours > 0.9 > theirs
        assert clearly


def test_pixels_do_not_beat_themselves_and_noise_does_not_beat_pixels() -> None:
    for seed in range(5):
        images, _, y = labelled(200, seed)
        assert lead_over_pixels(images.flatten(1), images, y, seed)[2] is False
        noise = torch.randn(200, 20, generator=torch.Generator().manual_seed(seed))
        assert lead_over_pixels(noise, images, y, seed)[2] is False


def test_every_sample_is_held_out_once() -> None:
    _, feature, y = labelled(53, 0)
    hits = held_out_hits((feature, feature + 100), y, seed=1)
    assert hits.shape == (2, 53)
    assert hits[0].mean() > 0.9
    assert check_rows(2000, 3).shape == (1000,)
    assert check_rows(FOLDS - 1, 3).tolist() == [0, 1, 2, 3]
