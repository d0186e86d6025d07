"""Tokens of texts: how short texts are filled, and that a network is tried with long ones."""

import pickle
from typing import Any

import pytest
import torch

from nearkin.core.errors import DataError, MismatchError, OptionError
from nearkin.tasks.input_fields import IDS, MASK, TOKEN_FIELDS
from nearkin.tasks.texts import Tokenizer

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra text")

WORDS = {"a": 0, "b": 1, "c": 2, "[UNK]": 3, "<p>": 4}


def content(words: dict[str, int] | None = None, **padding: Any) -> str:
    encoder = tokenizers.Tokenizer(tokenizers.models.WordLevel(words or WORDS, unk_token="[UNK]"))
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if padding:
        encoder.enable_padding(**padding)
    return str(encoder.to_str())


def test_padding_is_that_of_the_tokenizer() -> None:
    own = content(direction="left", pad_id=4, pad_token="<p>", pad_type_id=1, pad_to_multiple_of=8)
    read = Tokenizer(own, 4, TOKEN_FIELDS, pad_id=2)
    assert read(["b c"]).view(3, 4).tolist() == [[4, 4, 1, 2], [0, 0, 1, 1], [1, 1, 0, 0]]
    assert read.padding | {"pad_to_multiple_of": None} == {
        "length": 4, "pad_to_multiple_of": None, "pad_id": 4, "pad_token": "<p>", "pad_type_id": 1,
        "direction": "left",
    }  # fmt: skip


def test_texts_are_cut_where_the_tokenizer_says() -> None:
    encoder = tokenizers.Tokenizer.from_str(content())
    encoder.enable_truncation(9, direction="left")
    assert Tokenizer(encoder.to_str(), 2, (IDS,))(["a b c"]).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("words", "pad_id", "expected"),
    [(WORDS, 4, 4), (WORDS, None, 0), (WORDS | {"<pad>": 5}, None, 5), (WORDS | {"[PAD]": 5}, 4, 4), (WORDS, 99, 99)],
)
def test_padding_of_the_model_where_the_tokenizer_has_none(
    words: dict[str, int], pad_id: int | None, expected: int
) -> None:
    read = Tokenizer(content(words), 4, (IDS, MASK), pad_id)
    again = [Tokenizer.from_facts(read.facts()), pickle.loads(pickle.dumps(read))]
    for tokenizer in (read, *again):
        assert tokenizer(["b c"]).view(2, 4).tolist() == [[1, 2, expected, expected], [1, 1, 0, 0]]
    assert again == [read, read]


@pytest.mark.parametrize("number", [-1, 2**40, "4", True, 1.0])
def test_numbers_that_are_no_token_are_refused(number: Any) -> None:
    with pytest.raises(OptionError, match="number of the padding token is"):
        Tokenizer(content(), 4, pad_id=number)


@pytest.mark.parametrize("direction", ["left", "right"])
def test_a_network_is_tried_with_texts_of_all_tokens(direction: str) -> None:
    read = Tokenizer(content(direction=direction, pad_id=1, pad_token="b"), 8, TOKEN_FIELDS)
    ids, mask, types = read.probe(3).view(3, 3, 8).unbind(1)
    assert mask.sum(1).tolist() == [8, 4, 2]
    assert torch.equal(ids != 1, mask.bool()), "no other token is that of padding"
    assert mask[2, -1 if direction == "left" else 0] == 1
    assert not types.any()


def test_words_beyond_those_of_a_network_are_refused() -> None:
    read = Tokenizer(content(WORDS | {"far": 40}), 4)
    read.require_words(41)
    read.require_words(None)
    with pytest.raises(MismatchError, match="up to 40, the network has 40 words"):
        read.require_words(40)
    assert read.probe(2)[0, 0] == 40
    with pytest.raises(DataError, match="cannot be read"):
        Tokenizer("{}", 4).require_words(None)
