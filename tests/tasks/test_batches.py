"""Batches: every sample once an epoch, the same order for the same seed, entered anywhere."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.core.rng import Streams
from nearkin.tasks.batches import epoch_batches, num_batches, ordered_batches
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Chosen, Joined, Mapped, Values, chosen, gathered


def counted(count: int) -> Examples:
    return Examples(Values(torch.arange(float(count))[:, None]), Values(torch.arange(count)))


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 5), st.data())
def test_an_epoch_is_a_permutation_that_can_be_entered_midway(
    count: int, size: int, epoch: int, data: st.DataObject
) -> None:
    examples, streams = counted(count), Streams(1)
    whole = [batch.y for batch in epoch_batches(examples, size, streams, epoch)]
    assert sorted(torch.cat(whole).tolist()) == list(range(count))
    sizes = {len(batch) for batch in whole}
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert len(whole) == num_batches(count, size)
    start = data.draw(st.integers(0, len(whole)))
    late = [batch.y for batch in epoch_batches(examples, size, streams, epoch, start=start)]
    assert all(torch.equal(a, b) for a, b in zip(late, whole[start:], strict=True))


def test_epochs_and_seeds_differ() -> None:
    orders = [torch.cat([b.y for b in epoch_batches(counted(50), 8, Streams(seed), epoch)]).tolist()
              for seed in (0, 1) for epoch in (0, 1)]  # fmt: skip
    assert len({tuple(order) for order in orders}) == 4


def test_augmentation_depends_on_the_step_alone() -> None:
    def jitter(x: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        return x + torch.randn(x.shape, generator=rng)

    whole = [b.x for b in epoch_batches(counted(20), 5, Streams(0), 2, augment=jitter)]
    late = [b.x for b in epoch_batches(counted(20), 5, Streams(0), 2, start=2, augment=jitter)]
    assert torch.equal(late[0], whole[2])
    assert not torch.equal(whole[0] - whole[0].round(), whole[1] - whole[1].round())


def test_ordered_batches_keep_the_order() -> None:
    assert torch.cat([b.y for b in ordered_batches(counted(23), 5)]).tolist() == list(range(23))


@given(st.lists(st.integers(0, 29), min_size=1, max_size=20))
def test_rows_over_rows_are_the_rows(positions: list[int]) -> None:
    base = torch.rand(30, 3)
    index = torch.tensor(positions)
    joined = Joined(Values(base[:11]), Values(base[11:]))
    assert torch.equal(joined.take(index), base[index])
    again = chosen(chosen(joined, torch.arange(29, -1, -1)), index)
    assert isinstance(again, Chosen)
    assert not isinstance(again.rows, Chosen), "choices fold"
    assert torch.equal(gathered(again), base[29 - index])
    doubled = Mapped(joined, lambda value, place: value * 2)
    assert torch.equal(doubled.take(index), 2 * base[index])
