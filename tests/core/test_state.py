"""States: tensors and facts through bytes, the same bytes for the same state."""

import json
import os
import random
from pathlib import Path
from typing import TypedDict

import pytest
import safetensors
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
    with pytest.raises(DataError, match=r"cut\.safetensors is not an intact safetensors file"):
        State.load(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*nowhere; check the path"):
        State.load(tmp_path / "nowhere")


def sealed(tmp_path: Path) -> tuple[Path, bytes]:
    file = tmp_path / "a.safetensors"
    State({"w": torch.randn(40), "steps": torch.arange(3)}, {"step": 3, "ε": [0.5, None]}).save(file)
    return file, file.read_bytes()


def test_every_flipped_bit_of_a_saved_file_is_noticed(tmp_path: Path) -> None:
    _, data = sealed(tmp_path)
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(DataError):
            State.from_bytes(bytes(flipped))


def test_a_saved_file_says_its_checksum_and_is_a_plain_safetensors_file(tmp_path: Path) -> None:
    file, data = sealed(tmp_path)
    with safetensors.safe_open(file, "pt") as plain:
        assert set(plain.metadata()) == {"nearkin", "sha256"}
        assert set(plain.keys()) == {"w", "steps"}
    assert State.load(file).facts == {"step": 3, "ε": [0.5, None]}
    State.load(file).save(file)
    assert file.read_bytes() == data, "the same state gives the same file"


def test_files_without_a_checksum_are_read(tmp_path: Path) -> None:
    """As they were written before there was one, and as blobs are."""
    file = tmp_path / "old.safetensors"
    file.write_bytes(State({"w": torch.ones(2)}, {"a": 1}).to_bytes())
    assert State.load(file).facts == {"a": 1}
    assert b"sha256" not in file.read_bytes()


def built(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "data",
    [
        built([]),
        built({"__metadata__": []}),
        built({"__metadata__": {"nearkin": "[1]"}}),
        built({"__metadata__": {"nearkin": "{"}}),
        built({"__metadata__": {"nearkin": {}}}),
        built({"__metadata__": {"nearkin": '{"a": 1, "a": 2}'}}),
        built({"__metadata__": {"nearkin": "{}", "more": "x"}}),
        built({"__metadata__": {"nearkin": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"}}),
        built({"__metadata__": {"nearkin": '{"a": ' + "[" * 300 + "]" * 300 + "}"}}),
        built({"__metadata__": {"sha256": "0" * 64, "nearkin": "{}"}}),
        built(b"[" * 100_000),
        built({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 8]}}, bytes(8)),
        built({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**40]}}, bytes(8)),
        built({"w": {"dtype": "no such", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        (2**63).to_bytes(8, "little") + b"{}",
        (2**64 - 1).to_bytes(8, "little"),
    ],
    ids=range(16),
)
def test_hostile_bytes_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(DataError, match=r"^the file is not an intact safetensors file \(.*\); write") as refused:
        State.from_bytes(data, "the file")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_facts_are_read_by_their_types(tmp_path: Path) -> None:
    class Facts(TypedDict):
        seed: int
        history: list[tuple[int, float]]
        name: str | None

    good = {"seed": 1, "history": [[1, 0.5]], "name": None, "more": {}}
    assert State({}, good).read(Facts) == {**good, "history": [(1, 0.5)]}
    for facts, words in (
        ({**good, "seed": "x"}, "a.json: seed is 'x', expected a whole number"),
        ({**good, "seed": True}, "a.json: seed is True, expected a whole number"),
        ({**good, "history": [[1]]}, r"a.json: history.0 is \[1\], expected a list of 2 values"),
        ({**good, "history": [[1, "x"]]}, "a.json: history.0.1 is 'x', expected a number"),
        ({**good, "name": 3}, "a.json: name is 3, expected text or null"),
        ({"seed": 1, "name": ""}, "a.json: history is missing, expected a list"),
    ):
        with pytest.raises(DataError, match=words):
            State({}, facts, "a.json").read(Facts)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), tmp_path / "a\0b"):
        with pytest.raises(DataError, match=r"not a regular file; name a file|cannot read"):
            State.load(path)


def test_shared_tensors_are_those_of_the_copy(tmp_path: Path) -> None:
    state = State(
        {"half": torch.randn(3, 5).half(), "none": torch.zeros(0, 4), "bytes": torch.arange(7, dtype=torch.uint8),
         "numbers": torch.arange(6).reshape(2, 3)},
        {"step": 1},
    )  # fmt: skip
    data = state.to_file()
    copy, shared = State.from_bytes(data), State.from_bytes(data, share=True)
    assert shared.facts == copy.facts
    assert shared.tensors.keys() == copy.tensors.keys()
    for name, tensor in copy.tensors.items():
        assert tensor.dtype == shared.tensors[name].dtype
        assert torch.equal(tensor, shared.tensors[name])


def test_damaged_headers_are_refused_also_if_tensors_are_shared() -> None:
    """Without a checksum, so that the header is read."""
    rng = random.Random(0)
    tensors = {"points": torch.ones(4, 3).half(), "digests": torch.zeros(4, 2, dtype=torch.uint8)}
    whole = State(tensors).to_bytes()
    refused = 0
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[8 + rng.randrange(int.from_bytes(data[:8], "little"))] = rng.choice(b'0123456789-"[]{},:F')
        try:
            for tensor in State.from_bytes(bytes(data), share=True).tensors.values():
                float(tensor.double().sum())
        except DataError:
            refused += 1
    assert refused > 250
