"""Streams: one seed in, independent generators out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.core.errors import OptionError
from nearkin.core.rng import Streams, derived_seed, seeded


def draw(generator: torch.Generator) -> list[float]:
    return torch.rand(4, generator=generator).tolist()


@given(st.integers(0, 2**63 - 1), st.text(max_size=20))
def test_same_path_same_numbers_other_seed_other_numbers(seed: int, name: str) -> None:
    assert draw(Streams(seed).at(name)) == draw(Streams(seed).at(name))
    assert draw(Streams(seed).at(name)) != draw(Streams(seed ^ 1).at(name))


def test_a_new_stream_does_not_shift_another() -> None:
    alone, among = Streams(3), Streams(3)
    draw(among["other"])
    assert draw(alone["mine"]) == draw(among["mine"])


def test_number_and_text_of_a_path_are_told_apart() -> None:
    assert derived_seed(0, "a", 1) != derived_seed(0, "a", "1")
    assert derived_seed(0, "ab") != derived_seed(0, "a", "b")


def test_state_goes_through_tensors_and_back() -> None:
    streams = Streams(5)
    draw(streams["x"])
    kept = streams.state()
    ahead = [draw(streams["x"]), draw(streams["fresh"])]
    again = Streams(5)
    again.restore(kept)
    assert [draw(again["x"]), draw(again["fresh"])] == ahead


def test_streams_are_uncorrelated() -> None:
    samples = torch.stack([torch.randn(20_000, generator=Streams(0).at("s", i)) for i in range(4)])
    off_diagonal = torch.corrcoef(samples) - torch.eye(4)
    assert off_diagonal.abs().max() < 0.03


def test_children_and_numpy_follow_the_seed() -> None:
    assert Streams(1).child("t", 0).seed != Streams(1).child("t", 1).seed
    assert Streams(1).numpy("a").random() == Streams(1).numpy("a").random()


def test_seeded_leaves_the_world_as_it_was() -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)

    def failing() -> None:
        with seeded(4):
            torch.rand(100)
            raise RuntimeError("out")

    with pytest.raises(RuntimeError, match="out"):
        failing()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("bad", [-1, 1.5, "0"])
def test_seeds_are_whole_numbers(bad: object) -> None:
    with pytest.raises(OptionError, match="seed"):
        Streams(bad)  # type: ignore[arg-type]
