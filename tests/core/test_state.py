"""States: tensors and facts through bytes, the same bytes for the same state."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.core.errors import DataError
from nearkin.core.state import State, prefixed

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=8), st.sampled_from(DTYPES), st.integers(0, 4)), max_size=5),
    st.dictionaries(st.text(max_size=5), st.integers() | st.none() | st.lists(st.floats(allow_nan=False)), max_size=4),
)
def test_bytes_and_back(entries: list[tuple[str, torch.dtype, int]], facts: dict[str, object]) -> None:
    tensors = {name: torch.ones(size, 2, dtype=dtype) for name, dtype, size in entries if name != "__metadata__"}
    state = State(tensors, facts)
    again = State.from_bytes(state.to_bytes())
    assert again.facts == facts
    assert again.tensors.keys() == tensors.keys()
    assert all(torch.equal(again.tensors[name], tensors[name]) for name in tensors)
    assert again.to_bytes() == state.to_bytes()


def test_order_of_entries_does_not_change_the_bytes() -> None:
    a, b = torch.rand(3), torch.rand(2)
    assert State({"a": a, "b": b}, {"x": 1, "y": 2}).to_bytes() == State({"b": b, "a": a}, {"y": 2, "x": 1}).to_bytes()


def test_tied_and_strided_tensors_are_kept_in_full() -> None:
    base = torch.rand(3, 3)
    again = State.from_bytes(State({"w": base, "tied": base, "turned": base.t()}).to_bytes())
    assert torch.equal(again.tensors["tied"], base)
    assert torch.equal(again.tensors["turned"], base.t())


def test_sections() -> None:
    state = State({**prefixed("model", {"w": torch.ones(1)}), "losses": torch.zeros(2)})
    assert list(state.section("model")) == ["w"]


@pytest.mark.parametrize("cut", [0, 5, 40, -1])
def test_a_cut_file_is_named(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "cut.safetensors"
    file.write_bytes(State({"w": torch.ones(50)}).to_bytes()[:cut])
    with pytest.raises(DataError, match=r"cut\.safetensors is not a whole safetensors file"):
        State.load(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*nowhere"):
        State.load(tmp_path / "nowhere")
