"""Changes of images: the same whether bytes, floats or lazy rows, against PIL and closed forms."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.core.errors import DataError, OptionError
from nearkin.tasks.augment import LUMA
from nearkin.tasks.dense import dense
from nearkin.tasks.examples import Examples
from nearkin.tasks.pixels import coloured, grey, inverted, resized, value_range
from nearkin.tasks.rows import Joined, Mapped, Pixels, Values, chosen, gathered
from nearkin.tasks.task import Task


def as_it_is(images, index):
    return images


def byte_task(channels: int = 3, height: int = 10, width: int = 8) -> Task:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, channels, height, width), dtype=np.uint8)
    task = Task.from_arrays("bytes", x[:30], np.arange(30) % 3, x[30:], np.arange(10) % 3, classes=["a", "b", "c"])
    return replace(task, source="npz:somewhere")


def float_task(low: float = 0.0, high: float = 1.0) -> Task:
    x = torch.rand(40, 3, 10, 8, generator=torch.Generator().manual_seed(0)) * (high - low) + low
    return Task.from_arrays("floats", x[:30], torch.arange(30) % 3, x[30:], torch.arange(10) % 3)


def lazy(task: Task) -> Task:
    """The same task with rows that are made when asked."""
    train, test = (replace(part, inputs=Mapped(part.inputs, as_it_is)) for part in (task.train, task.test))
    return replace(task, train=train, test=test)


CHANGES = [lambda task: resized(task, (5, 12)), grey, inverted]


@pytest.mark.parametrize("change", CHANGES, ids=["resized", "grey", "inverted"])
class TestEveryChange:
    def test_bytes_stay_bytes_floats_stay_floats_and_lazy_stays_lazy(self, change):
        assert isinstance(change(byte_task()).train.inputs, Pixels)
        assert isinstance(change(float_task()).test.inputs, Values)
        assert isinstance(change(lazy(byte_task())).train.inputs, Mapped)

    def test_bytes_floats_and_lazy_agree(self, change):
        """Bytes are rounded once, floats and lazy rows are not."""
        made, late = change(byte_task()), change(lazy(byte_task()))
        for early, later in ((made.train, late.train), (made.test, late.test)):
            difference = (gathered(early.inputs) - gathered(later.inputs)).abs().max()
            assert difference <= 0.5 / 255 + 1e-6
        floats = float_task()
        assert torch.equal(gathered(change(floats).train.inputs), gathered(change(lazy(floats)).train.inputs))

    def test_choices_and_joins_of_bytes_stay_bytes(self, change):
        task = byte_task()
        some = task.train.chosen(torch.tensor([5, 0, 7, 1, 2, 4]))
        small = change(replace(task, train=some))
        assert isinstance(small.train.inputs, Pixels)
        whole = change(task).train.inputs
        assert torch.equal(gathered(small.train.inputs), gathered(chosen(whole, torch.tensor([5, 0, 7, 1, 2, 4]))))
        joined = Examples(Joined(some.inputs, task.train.inputs), Joined(some.targets, task.train.targets))
        assert len(change(replace(task, train=joined)).train.inputs.tensor) == 36

    def test_what_is_kept(self, change):
        task = byte_task()
        made = change(task)
        assert (made.name, made.source, made.classes) == ("bytes", "npz:somewhere", ("a", "b", "c"))
        assert torch.equal(made.train.labels(), task.train.labels())

    def test_scaled_anew(self, change):
        x = change(float_task()).train.all().x
        torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(x.shape[1]), atol=1e-4, rtol=0)
        torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(x.shape[1]), atol=1e-2, rtol=0)

    def test_source_is_not_changed_and_result_travels(self, change):
        task = lazy(byte_task())
        before = gathered(task.train.inputs)
        made = change(task)
        assert torch.equal(gathered(task.train.inputs), before)
        again = pickle.loads(pickle.dumps(made))
        assert again.fingerprint() == made.fingerprint()

    def test_tables_are_refused(self, change):
        table = Task.from_arrays("wine", torch.rand(10, 4), torch.arange(10) % 2)
        with pytest.raises(DataError, match=r"^wine: this needs images .* shape \(4,\)"):
            change(table)


class TestResized:
    @pytest.mark.parametrize("size", [(5, 4), (7, 3), (20, 16), (4, 16), (1, 1)])
    def test_agrees_with_pillow(self, size):
        task = byte_task(channels=1)
        made = resized(task, size).train.inputs.tensor[:, 0].numpy()
        for before, after in zip(task.train.inputs.tensor[:, 0].numpy(), made, strict=True):
            oracle = Image.fromarray(before).resize((size[1], size[0]), Image.Resampling.BILINEAR)
            assert np.abs(np.asarray(oracle, dtype=int) - after.astype(int)).max() <= 1

    def test_same_size_is_identity(self):
        task = byte_task()
        assert torch.equal(resized(task, (10, 8)).train.inputs.tensor, task.train.inputs.tensor)

    def test_constant_images_stay_constant(self):
        flat = Task.from_arrays("flat", torch.full((10, 1, 9, 9), 0.3), torch.arange(10) % 2)
        torch.testing.assert_close(gathered(resized(flat, (4, 5)).train.inputs), torch.full((8, 1, 4, 5), 0.3))

    def test_dense_targets_follow(self):
        for kind, channels in (("autoencode", 3), ("edges", 1), ("inpaint", 3)):
            made = resized(dense(byte_task(), kind), (5, 4))
            assert made.input_shape == (3, 5, 4)
            assert made.train.targets.shape == made.test.targets.shape == (channels, 5, 4)
        shared = resized(dense(byte_task(), "autoencode"), (5, 4))
        assert shared.train.targets is shared.train.inputs

    @pytest.mark.parametrize("size", [(0, 4), (4, -1)])
    def test_no_pixels_are_refused(self, size):
        with pytest.raises(OptionError, match="at least one pixel"):
            resized(byte_task(), size)


class TestGrey:
    def test_is_the_luma(self):
        task = float_task()
        oracle = torch.einsum("c,nchw->nhw", torch.tensor(LUMA), gathered(task.train.inputs))
        torch.testing.assert_close(gathered(grey(task).train.inputs)[:, 0], oracle)

    def test_agrees_with_pillow(self):
        task = byte_task()
        made = grey(task).test.inputs.tensor[:, 0].numpy()
        for before, after in zip(task.test.inputs.tensor.permute(0, 2, 3, 1).numpy(), made, strict=True):
            oracle = np.asarray(Image.fromarray(before).convert("L"), dtype=int)
            assert np.abs(oracle - after.astype(int)).max() <= 1

    def test_grey_stays(self):
        task = byte_task(channels=1)
        assert grey(task) is task

    def test_alpha_is_left_out(self):
        task = byte_task(channels=4)
        opaque = Task.from_arrays("rgb", task.train.inputs.tensor[:, :3], task.train.labels(), *part(task.test, 3))
        assert torch.equal(grey(task).train.inputs.tensor, grey(opaque).train.inputs.tensor)


def part(examples: Examples, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    return examples.inputs.tensor[:, :channels], examples.labels()


class TestInverted:
    def test_bytes_exactly(self):
        task = byte_task()
        made = inverted(task)
        assert torch.equal(made.train.inputs.tensor, 255 - task.train.inputs.tensor)
        assert torch.equal(made.test.inputs.tensor, 255 - task.test.inputs.tensor)

    def test_twice_is_identity(self):
        task = byte_task()
        assert torch.equal(inverted(inverted(task)).train.inputs.tensor, task.train.inputs.tensor)

    def test_unit_floats(self):
        task = float_task(0.2, 0.7)
        torch.testing.assert_close(gathered(inverted(task).test.inputs), 1 - gathered(task.test.inputs))

    @pytest.mark.parametrize("wrap", [lambda task: task, lazy])
    def test_other_ranges_turn_about_the_training_part(self, wrap):
        task = wrap(float_task(-3, 16))
        train, test = gathered(task.train.inputs), gathered(task.test.inputs)
        total = train.min() + train.max()
        torch.testing.assert_close(gathered(inverted(task).train.inputs), total - train)
        torch.testing.assert_close(gathered(inverted(task).test.inputs), total - test)


def test_range_of_bytes_is_known_without_looking():
    assert value_range(Pixels(torch.full((2, 1, 2, 2), 7, dtype=torch.uint8))) == (0.0, 1.0)


def test_grey_images_in_colour_have_three_equal_channels_and_stay_bytes():
    images = torch.randint(0, 256, (12, 1, 4, 4), dtype=torch.uint8)
    made = coloured(Task.from_arrays("noise", images, torch.arange(12) % 2))
    assert made.input_shape == (3, 4, 4)
    assert isinstance(made.train.inputs, Pixels)
    x = made.train.first(5).x
    assert torch.equal(x[:, 0], x[:, 2])
    assert coloured(made) is made
