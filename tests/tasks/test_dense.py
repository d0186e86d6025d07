"""Dense tasks: targets against scipy and closed forms, and purity: what is read depends on the position alone."""

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import Tensor

from nearkin.core.errors import DataError, OptionError
from nearkin.tasks.augment import luma
from nearkin.tasks.dense import DENSE_KINDS, corner_map, dense, edge_map
from nearkin.tasks.rows import Mapped, gathered
from nearkin.tasks.task import Task

COLOURS = ("red", "green", "blue")


def noise_task(channels: int = 3, height: int = 12, width: int = 10, count: int = 60) -> Task:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    return Task.from_arrays("noise", x, np.arange(count) % 2, x[::2], np.arange(count)[::2] % 2)


def digits() -> Task:
    data = load_digits()
    return Task.from_arrays("digits", (data.images / 16).astype(np.float32), data.target)


@pytest.mark.parametrize("kind", DENSE_KINDS)
class TestEveryKind:
    def test_shapes_and_names(self, kind):
        base = noise_task()
        task = dense(base, kind)
        one_map = kind in ("edges", "keypoints")
        assert task.likelihood == "dense"
        assert task.name == base.name
        assert task.classes == ((kind,) if one_map else COLOURS)
        assert task.input_shape == ((1, 12, 10) if kind == "colour" else (3, 12, 10))
        assert task.train.targets.shape == ((1, 12, 10) if one_map else (3, 12, 10))
        assert task.num_outputs == len(task.classes) == task.test.targets.shape[0]
        assert (len(task.train), len(task.test)) == (len(base.train), len(base.test))

    def test_scaled_by_the_training_part(self, kind):
        batch = dense(noise_task(), kind).train.all()
        for value in batch:
            channels = torch.zeros(value.shape[1])
            torch.testing.assert_close(value.mean((0, 2, 3)), channels, atol=1e-4, rtol=0)
            torch.testing.assert_close(value.std((0, 2, 3)), channels + 1, atol=1e-2, rtol=0)

    def test_reading_is_pure(self, kind):
        """The same bits on every read, in any order and in any company."""
        train = dense(noise_task(), kind).train
        whole = train.all()
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
        for got, expected in zip(train.take(order), whole, strict=True):
            assert torch.equal(got, expected[order])
        for size in (1, 7):
            for part in order.split(size):
                for got, expected in zip(train.take(part), whole, strict=True):
                    assert torch.equal(got, expected[part])

    def test_choosing_commutes_with_reading(self, kind):
        train = dense(noise_task(), kind).train
        some = torch.tensor([9, 3, 3, 20])
        for got, expected in zip(train.chosen(some).all(), train.take(some), strict=True):
            assert torch.equal(got, expected)

    def test_seed_decides_and_nothing_else(self, kind):
        base = noise_task()
        before = torch.get_rng_state()
        first, again, other = dense(base, kind), dense(base, kind), dense(base, kind, seed=1)
        assert torch.equal(torch.get_rng_state(), before)
        assert first.fingerprint() == again.fingerprint()
        assert (first.fingerprint() != other.fingerprint()) == (kind in ("denoise", "inpaint"))

    def test_source_images_are_left_alone(self, kind):
        base = noise_task()
        kept = gathered(base.train.inputs)
        dense(base, kind).train.all()
        assert torch.equal(gathered(base.train.inputs), kept)

    def test_digits(self, kind):
        if kind == "colour":
            with pytest.raises(DataError, match=r"^digits: dense=colour needs images of 3 channels, got 1"):
                dense(digits(), kind)
            return
        task = dense(digits(), kind)
        batch = task.train.all()
        assert torch.isfinite(batch.x).all()
        assert torch.isfinite(batch.y).all()
        assert task.classes == ((kind,) if kind in ("edges", "keypoints") else ("grey",))

    def test_constant_images_stay_finite(self, kind):
        flat = Task.from_arrays("flat", torch.full((10, 3, 6, 6), 0.4), torch.arange(10) % 2)
        batch = dense(flat, kind).train.all()
        assert torch.isfinite(batch.x).all()
        assert torch.isfinite(batch.y).all()

    def test_one_pixel(self, kind):
        dot = Task.from_arrays("dot", torch.rand(10, 3, 1, 1), torch.arange(10) % 2)
        assert torch.isfinite(dense(dot, kind).train.all().x).all()

    def test_travels(self, kind):
        task = dense(noise_task(), kind)
        assert pickle.loads(pickle.dumps(task)).fingerprint() == task.fingerprint()

    def test_tables_are_refused(self, kind):
        table = Task.from_arrays("wine", torch.rand(10, 4), torch.arange(10) % 2)
        with pytest.raises(DataError, match=r"^wine: this needs images"):
            dense(table, kind)


def test_unknown_kind_lists_the_known():
    with pytest.raises(OptionError, match="'depth'; choose one of autoencode, edges, keypoints, denoise, colour, inp"):
        dense(noise_task(), "depth")


def test_autoencode_keeps_no_copy():
    task = dense(noise_task(), "autoencode")
    assert task.train.targets is task.train.inputs
    assert torch.equal(task.train.all().x, task.train.all().y)


@pytest.mark.parametrize("channels", [1, 3])
def test_edges_are_sobels(channels):
    task = noise_task(channels)
    images = gathered(task.train.inputs)
    target = gathered(dense(task, "edges").train.targets)
    for image, edges in zip(luma(images)[:, 0].double().numpy(), target[:, 0].numpy(), strict=True):
        slopes = [ndimage.sobel(image, axis=axis, mode="nearest") for axis in (0, 1)]
        np.testing.assert_allclose(edges, np.hypot(*slopes) / math.sqrt(20), atol=1e-5)


def test_edges_fill_the_unit_range():
    """The gradient is convex in the image, so its largest value is that of one of the 512 black and white ones."""
    every = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 9).view(-1, 1, 3, 3)
    assert edge_map(every)[:, 0, 1, 1].max() == pytest.approx(1, abs=1e-6)


def white_square(brightness: float = 1.0) -> Tensor:
    image = torch.zeros(1, 1, 32, 32)
    image[:, :, 7:25, 7:25] = brightness
    return image


class TestKeypoints:
    def test_corners_and_not_edges(self):
        heat = corner_map(white_square())[0, 0]
        peaks = ndimage.maximum_filter(heat.numpy(), size=5) == heat.numpy()
        found = np.argwhere(peaks & (heat.numpy() > 0.5))
        corners = np.array([[7, 7], [7, 24], [24, 7], [24, 24]])
        assert len(found) == 4
        assert np.abs(found - corners).max() <= 1
        for edge in (heat[5:9], heat[23:27], heat.T[5:9], heat.T[23:27]):
            assert edge[:, 14:18].max() < 1e-3
        assert heat.max() == pytest.approx(1, abs=0.02)

    def test_turns_with_the_image(self):
        image = torch.rand(3, 1, 11, 11, generator=torch.Generator().manual_seed(0))
        turned = corner_map(torch.rot90(image, 1, (2, 3)))
        torch.testing.assert_close(turned, torch.rot90(corner_map(image), 1, (2, 3)), atol=1e-5, rtol=1e-4)

    def test_contrast_hardly_matters(self):
        torch.testing.assert_close(corner_map(white_square(0.5)), corner_map(white_square()), atol=0.03, rtol=0)

    def test_flat_and_faint_images_are_not_blown_up(self):
        assert torch.equal(corner_map(torch.full((1, 3, 6, 6), 0.37)), torch.zeros(1, 1, 6, 6))
        assert corner_map(white_square(1e-3)).max() < 0.01

    def test_a_straight_edge_to_the_border_has_none(self):
        half = torch.zeros(1, 1, 12, 12)
        half[..., 6:] = 1
        assert corner_map(half).max() < 1e-3


class TestDenoise:
    def residual(self, task: Task, part: str = "train", seed: int = 0) -> Tensor:
        examples = getattr(dense(task, "denoise", seed), part)
        return gathered(examples.inputs) - gathered(examples.targets)

    def test_noise_is_gaussian_of_a_quarter(self):
        residual = self.residual(noise_task(count=400)).flatten()
        assert residual.mean().abs() < 0.005
        assert residual.std() == pytest.approx(0.25, rel=0.01)
        assert (residual.abs() < 0.25).double().mean() == pytest.approx(0.6827, abs=0.01)

    def test_every_sample_has_its_own(self):
        residual = self.residual(noise_task(count=200)).flatten(1)
        correlation = torch.corrcoef(residual) - torch.eye(200)
        assert correlation.abs().max() < 6 / math.sqrt(residual.shape[1])

    def test_parts_and_seeds_differ(self):
        task = noise_task(count=200)
        train = self.residual(task)[:100]
        for other in (self.residual(task, "test"), self.residual(task, seed=1)[:100]):
            assert torch.corrcoef(torch.stack([train.flatten(), other.flatten()]))[0, 1].abs() < 0.02

    def test_other_ranges_have_noise_in_proportion(self):
        images = torch.rand(200, 1, 8, 8) * 16
        task = Task.from_arrays("sixteen", images, torch.arange(200) % 2)
        assert self.residual(task).std() == pytest.approx(4, rel=0.05)


class TestInpaint:
    def hidden(self, task: Task) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and the mask of hidden pixels of the training part."""
        train = dense(task, "inpaint").train
        assert isinstance(train.inputs, Mapped)
        x, y = gathered(train.inputs), gathered(train.targets)
        mask = train.inputs.function.mask(torch.arange(len(train)), *x.shape[2:])
        return x, y, mask

    @pytest.mark.parametrize(("height", "width", "side"), [(12, 10, 5), (8, 8, 4), (9, 15, 4), (2, 2, 1)])
    def test_exactly_a_square_is_hidden(self, height, width, side):
        x, y, mask = self.hidden(noise_task(height=height, width=width))
        assert torch.equal(x[~mask.expand_as(x)], y[~mask.expand_as(x)])
        for sample in mask[:, 0]:
            rows, columns = torch.nonzero(sample).unbind(1)
            assert sample.sum() == side * side
            assert rows.max() - rows.min() + 1 == columns.max() - columns.min() + 1 == side

    def test_nothing_of_the_square_shines_through(self):
        task = noise_task()
        x, y, mask = self.hidden(task)
        blacked = torch.where(mask, 0, y)
        other = Task.from_arrays("blacked", blacked, torch.arange(60) % 2, blacked, torch.arange(60) % 2)
        torch.testing.assert_close(self.hidden(other)[0], x)

    def test_the_square_is_the_mean_of_the_rest(self):
        x, y, mask = self.hidden(noise_task())
        for sample, image, hole in zip(x, y, mask[:, 0], strict=True):
            torch.testing.assert_close(sample[:, hole][:, 0], image[:, ~hole].mean(1))
            assert len(sample[:, hole].unique(dim=1)[0]) == 1

    def test_places_vary_over_the_image(self):
        mask = self.hidden(noise_task(count=400))[2]
        share = mask.double().mean((0, 1))
        assert share.min() > 0
        assert share.max() < 1
        assert len(mask.flatten(1).unique(dim=0)) == (12 - 5 + 1) * (10 - 5 + 1)


def test_colour_gives_back_what_luma_took():
    base = noise_task()
    train = dense(base, "colour").train
    assert torch.equal(gathered(train.targets), gathered(base.train.inputs))
    torch.testing.assert_close(luma(gathered(train.targets)), gathered(train.inputs))
