"""Augmentations against kornia, against torch's own exact moves, and against the laws that their names promise."""

import math

import kornia
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.nn.functional import pad

from nearkin.core.errors import DataError, OptionError
from nearkin.tasks.augment import (
    AugmentationChain,
    ColourJitter,
    Crop,
    Cutout,
    Flip,
    Rotation,
    augmentation,
    blended,
    hue_shifted,
    luma,
    rotated,
)

ALL = [
    Crop(3),
    Flip(),
    Rotation(40),
    ColourJitter(0.4, 0.4, 0.4, 0.2),
    Cutout(5),
    AugmentationChain((Crop(2), Flip(0.3), Rotation(10), ColourJitter(0.2), Cutout(3))),
]

NONSENSE = ["crop=four", "crop=4.5", "crop=-1", "crop=4/4", "cutout", "cutout=0", "flip=2", "flip=nan", "rotation=200"]
NONSENSE += ["crop=4,,flip", ",", "²", "jitter", "jitter=-1", "jitter=inf", "jitter=1/1/1/0.6", "jitter=1/1/1/0.1/1"]


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def images(batch: int = 16, channels: int = 3, height: int = 12, width: int = 10, seed: int = 5) -> Tensor:
    return torch.rand(batch, channels, height, width, generator=generator(seed))


@pytest.mark.parametrize("step", ALL, ids=str)
class TestEveryAugmentation:
    @pytest.mark.parametrize("channels", [1, 3, 4])
    def test_keeps_shape_dtype_range_and_its_input(self, step, channels):
        x = images(channels=channels)
        kept = x.clone()
        y = step(x, generator())
        assert y.shape == x.shape
        assert y.dtype == x.dtype
        assert torch.equal(x, kept)
        assert y.min() >= 0
        assert y.max() <= 1 + 1e-6

    def test_generator_decides(self, step):
        x = images()
        assert torch.equal(step(x, generator(1)), step(x, generator(1)))
        assert not torch.equal(step(x, generator(1)), step(x, generator(2)))

    def test_samples_draw_their_own_parameters(self, step):
        x = images(batch=1).expand(64, -1, -1, -1)
        assert len(step(x, generator()).flatten(1).unique(dim=0)) > 1

    def test_global_generator_is_left_alone(self, step):
        before = torch.get_rng_state()
        step(images(), generator())
        assert torch.equal(torch.get_rng_state(), before)

    def test_text_comes_back(self, step):
        assert augmentation(str(step)) == step

    def test_tables_are_refused(self, step):
        with pytest.raises(DataError, match="float images"):
            step(torch.rand(4, 10), generator())
        with pytest.raises(DataError, match="float images"):
            step(torch.zeros(4, 1, 3, 3, dtype=torch.uint8), generator())


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    padding=st.integers(0, 5),
    channels=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_crops_are_windows_of_the_padded_image(height, width, padding, channels, seed):
    x = images(6, channels, height, width, seed)
    y = Crop(padding)(x, generator(seed))
    padded = pad(x, [padding] * 4)
    steps = range(2 * padding + 1)
    for sample in range(6):
        windows = [padded[sample, :, i : i + height, j : j + width] for i in steps for j in steps]
        assert any(torch.equal(y[sample], window) for window in windows)


def test_crops_reach_every_place_evenly():
    x = torch.zeros(9000, 1, 3, 3)
    x[:, :, 1, 1] = 1
    counts = Crop(1)(x, generator()).sum(0).flatten()
    assert counts.sum() == 9000  # a pixel in the middle is never pushed out by one
    assert (counts - 1000).abs().max() < 5 * math.sqrt(1000)


class TestFlip:
    def test_twice_is_once_where_certain(self):
        x = images()
        turn = Flip(1.0)
        assert torch.equal(turn(x, generator()), x.flip(-1))
        assert torch.equal(turn(turn(x, generator()), generator()), x)
        assert torch.equal(Flip(0.0)(x, generator()), x)

    def test_twice_with_one_draw_is_identity(self):
        x = images()
        assert torch.equal(Flip()(Flip()(x, generator(3)), generator(3)), x)

    @pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
    def test_share_of_flips(self, probability):
        x = torch.tensor([0.0, 1.0]).expand(10_000, 1, 1, 2)
        share = Flip(probability)(x, generator())[:, 0, 0, 0].mean().item()
        assert abs(share - probability) < 5 * math.sqrt(probability * (1 - probability) / 10_000)


class TestRotation:
    def test_by_nothing_is_identity(self):
        x = images()
        torch.testing.assert_close(rotated(x, torch.zeros(16)), x, atol=1e-5, rtol=0)
        torch.testing.assert_close(Rotation(0)(x, generator()), x, atol=1e-5, rtol=0)

    @pytest.mark.parametrize("quarters", [1, 2, 3, -1])
    def test_by_quarters_is_rot90(self, quarters):
        x = images(height=9, width=9)
        turned = rotated(x, torch.full((16,), 90.0 * quarters))
        torch.testing.assert_close(turned, torch.rot90(x, quarters, (2, 3)), atol=1e-4, rtol=0)

    def test_half_turn_of_oblong_images(self):
        x = images(height=7, width=12)
        torch.testing.assert_close(rotated(x, torch.full((16,), 180.0)), x.flip(2, 3), atol=1e-4, rtol=0)

    @pytest.mark.parametrize(("height", "width"), [(12, 12), (9, 16), (15, 6)])
    def test_agrees_with_kornia(self, height, width):
        """Same convention: counter-clockwise about the middle, bilinear, zeros outside, pixels square."""
        x = images(height=height, width=width)
        degrees = torch.linspace(-170, 170, 16)
        torch.testing.assert_close(rotated(x, degrees), kornia.geometry.rotate(x, degrees), atol=1e-4, rtol=0)

    def test_draws_lie_in_range_and_agree_with_kornia(self):
        x = images()
        degrees = (2 * torch.rand(1, 16, generator=generator(4))[0] - 1) * 25
        oracle = torch.cat([kornia.geometry.rotate(x[i : i + 1], degrees[i : i + 1]) for i in range(16)])
        torch.testing.assert_close(Rotation(25)(x, generator(4)), oracle, atol=1e-4, rtol=0)


class TestColourJitter:
    """Kornia's accumulative brightness, mean-subtracting contrast and grey-subtracting saturation are torchvision's.

    Its `adjust_saturation` scales S of HSV instead and is no oracle here; its `adjust_hue` takes radians.
    """

    factor = torch.linspace(0.0, 2.0, 16)

    def test_brightness(self):
        x = images()
        oracle = kornia.enhance.adjust_brightness_accumulative(x, self.factor)
        torch.testing.assert_close(blended(x, torch.zeros(()), self.factor), oracle)

    @pytest.mark.parametrize("channels", [1, 3])
    def test_contrast(self, channels):
        x = images(channels=channels)
        oracle = kornia.enhance.adjust_contrast_with_mean_subtraction(x, self.factor)
        torch.testing.assert_close(blended(x, luma(x).mean((1, 2, 3), keepdim=True), self.factor), oracle)

    def test_saturation(self):
        x = images()
        oracle = kornia.enhance.adjust_saturation_with_gray_subtraction(x, self.factor)
        torch.testing.assert_close(blended(x, luma(x), self.factor), oracle)

    def test_hue(self):
        x = images()
        turns = torch.linspace(-0.5, 0.5, 16)
        oracle = kornia.enhance.adjust_hue(x, turns * 2 * math.pi)
        torch.testing.assert_close(hue_shifted(x, turns), oracle, atol=2e-5, rtol=0)

    def test_hue_of_grey_black_and_white_stays(self):
        x = torch.tensor([0.0, 0.3, 1.0]).view(3, 1, 1, 1).expand(3, 3, 4, 4)
        assert torch.equal(hue_shifted(x, torch.tensor([0.1, 0.4, -0.2])), x)

    def test_hue_moved_forth_and_back(self):
        x = images()
        turns = torch.linspace(-0.5, 0.5, 16)
        torch.testing.assert_close(hue_shifted(hue_shifted(x, turns), -turns), x, atol=1e-5, rtol=0)

    def test_whole_jitter_is_the_four_in_order(self):
        x = images()
        u = torch.rand(4, 16, generator=generator(9))
        oracle = kornia.enhance.adjust_brightness_accumulative(x, 0.6 + 0.8 * u[0])
        oracle = kornia.enhance.adjust_contrast_with_mean_subtraction(oracle, 0.7 + 0.6 * u[1])
        oracle = kornia.enhance.adjust_saturation_with_gray_subtraction(oracle, 2.5 * u[2])  # 1 − 1.5 is held at 0
        oracle = kornia.enhance.adjust_hue(oracle, (2 * u[3] - 1) * 0.1 * 2 * math.pi)
        got = ColourJitter(0.4, 0.3, 1.5, 0.1)(x, generator(9))
        torch.testing.assert_close(got, oracle, atol=2e-5, rtol=0)

    def test_grey_images_keep_saturation_and_hue(self):
        x = images(channels=1)
        assert torch.equal(ColourJitter(saturation=0.9, hue=0.5)(x, generator()), x)

    def test_other_ranges_are_refused_and_not_clamped(self):
        with pytest.raises(DataError, match="got 0 to 16"):
            ColourJitter(0.4)(torch.tensor([0.0, 16.0]).view(1, 1, 1, 2), generator())


class TestCutout:
    @pytest.mark.parametrize("size", [1, 4, 5, 30])
    def test_holes_are_squares_clipped_at_the_border(self, size):
        holes = Cutout(size)(torch.ones(500, 2, 9, 11), generator()) == 0
        assert torch.equal(holes[:, 0], holes[:, 1])
        for hole in holes[:, 0]:
            rows, columns = torch.nonzero(hole.any(1)).flatten(), torch.nonzero(hole.any(0)).flatten()
            assert hole.sum() == len(rows) * len(columns)
            for places, side in ((rows, 9), (columns, 11)):
                assert places[-1] - places[0] + 1 == len(places) <= size
                assert len(places) == size or places[0] == 0 or places[-1] == side - 1

    def test_the_rest_is_untouched(self):
        x = images() + 0.01
        y = Cutout(4)(x, generator())
        assert torch.equal(y[y != 0], x[y != 0])


class TestText:
    def test_full_form_comes_back_letter_by_letter(self):
        text = "crop=4,flip,rotation=15,jitter=0.4,cutout=8"
        found = augmentation(text)
        assert str(found) == text
        assert found == AugmentationChain((Crop(4), Flip(), Rotation(15), ColourJitter(0.4, 0.4, 0.4), Cutout(8)))

    @pytest.mark.parametrize("text", ["", "none", "  "])
    def test_nothing(self, text):
        assert augmentation(text) is None

    def test_defaults_and_spaces(self):
        assert augmentation("crop, flip , rotation") == AugmentationChain((Crop(), Flip(), Rotation()))
        assert augmentation("jitter=0.1/0.2/0.3/0.05") == ColourJitter(0.1, 0.2, 0.3, 0.05)

    def test_unknown_name_lists_the_known(self):
        with pytest.raises(OptionError, match="'mixup=1'; choose from crop, flip, rotation, jitter, cutout or none"):
            augmentation("crop=4,mixup=1")

    @pytest.mark.parametrize("text", NONSENSE)
    def test_nonsense_is_one_line(self, text):
        with pytest.raises(OptionError) as caught:
            augmentation(text)
        assert "\n" not in str(caught.value)
        assert ";" in str(caught.value)

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.floats(0, 0.5).map(lambda value: float(f"{value:.12g}")), min_size=4, max_size=4))
    def test_numbers_come_back(self, values):
        step = ColourJitter(*values)
        assert augmentation(str(step)) == step
