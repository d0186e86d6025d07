"""Tasks whose inputs are texts, and tokens of these texts for a network.

A text is stored as its UTF-8 bytes in one row, filled with zeros: such tasks are split, limited and stored like all
others. Networks that read texts bring a tokenizer, which is data (`tokenizer.json`), never code.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, optional, require
from nearkin.tasks.examples import Scaling
from nearkin.tasks.input_fields import IDS, MASK, TOKEN_FIELDS, TYPES
from nearkin.tasks.packed_texts import KIND, TEXT, unpack_texts
from nearkin.tasks.packed_texts import pack_texts as pack_texts
from nearkin.tasks.rows import Rows, Values
from nearkin.tasks.task import Task

MOST_TOKENS = 8192
MOST_IDS = 2**31
PADS = ("[PAD]", "<pad>")
"""Usual names of the token that fills short texts."""


def is_text(task: Task) -> bool:
    """Whether the inputs of a task are texts."""
    return task.preprocessing.get(KIND) == TEXT


def require_no_text(task: Task, what: str) -> None:
    """Refuse a task of texts for a network or model that reads numbers."""
    require(
        not is_text(task),
        f"'{task.name}' has texts as inputs, {what} reads numbers; use a network that reads texts (nearkin adopt), or "
        f"read the texts as a table of words (without raw)",
        MismatchError,
    )


def text_task(
    name: str,
    texts: Sequence[str],
    labels: Any,
    texts_test: Sequence[str] | None = None,
    labels_test: Any = None,
    *,
    likelihood: str | None = None,
    classes: Sequence[str] | None = None,
) -> Task:
    """`Task.from_texts` as a function.

    >>> task = text_task("mood", ["good", "bad", "fine", "awful"] * 5, ["+", "-", "+", "-"] * 5)
    >>> task.classes, unpack_texts(task.train.first(2).x)
    (('+', '-'), ['good', 'bad'])
    """
    return Task.from_texts(name, texts, labels, texts_test, labels_test, likelihood=likelihood, classes=classes)


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer as data.

    Attributes:
        content: of the file `tokenizer.json`.
        length: number of tokens of a text; longer texts are cut, shorter ones are filled.
        fields: names of the network's inputs, of `TOKEN_FIELDS`.
        pad_id: number of the token that fills short texts, if the content does not say how they are filled (default:
            that of `[PAD]` or `<pad>`, else 0).
    """

    content: str = field(repr=False)
    length: int
    fields: tuple[str, ...] = (IDS, MASK)
    pad_id: int | None = None

    def __post_init__(self) -> None:
        require(1 <= self.length <= MOST_TOKENS, f"a text has 1 to {MOST_TOKENS} tokens, got {self.length}")
        odd = [name for name in self.fields if name not in TOKEN_FIELDS]
        require(not odd, f"a tokenizer has no output {', '.join(odd)}; it has {', '.join(TOKEN_FIELDS)}")
        require(
            self.pad_id is None or (type(self.pad_id) is int and 0 <= self.pad_id < MOST_IDS),
            f"the number of the padding token is {self.pad_id!r}, expected a whole number of 0 or more",
        )

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer of stored facts."""
        return cls(facts["content"], int(facts["length"]), tuple(facts["fields"]), facts.get("pad_id"))

    def facts(self) -> dict[str, Any]:
        """The tokenizer as JSON values."""
        return {"content": self.content, **self.short_facts()}

    def short_facts(self) -> dict[str, Any]:
        """The facts without the content."""
        pad = {} if self.pad_id is None else {"pad_id": self.pad_id}
        return {"length": self.length, "fields": list(self.fields), **pad}

    @cached_property
    def digest(self) -> str:
        """Hash of the content."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:16]

    @cached_property
    def _encoder(self) -> Any:
        library = optional("tokenizers", "text", "reading texts")
        try:
            encoder = library.Tokenizer.from_str(self.content)
            padding = encoder.padding or self._padding(encoder)
            known = {key: padding[key] for key in ("direction", "pad_id", "pad_type_id", "pad_token") if key in padding}
            encoder.enable_padding(length=self.length, **known)
            encoder.enable_truncation(self.length, direction=(encoder.truncation or {}).get("direction", "right"))
        except Exception as broken:  # the library raises no narrower class
            reason = " ".join(str(broken).split())[:160]
            raise DataError(f"the tokenizer cannot be read ({reason}); expected a file tokenizer.json") from None
        return encoder

    def _padding(self, encoder: Any) -> dict[str, Any]:
        """How short texts are filled if the content does not say."""
        known = [encoder.token_to_id(token) for token in PADS]
        number = self.pad_id if self.pad_id is not None else next((id for id in known if id is not None), 0)
        return {"pad_id": number, "pad_token": encoder.id_to_token(number) or PADS[0]}

    @property
    def padding(self) -> dict[str, Any]:
        """How short texts are filled: `direction`, `pad_id`, `pad_type_id` and `pad_token`."""
        return dict(self._encoder.padding)

    def id_of(self, token: str) -> int | None:
        """Number of a token; None if there is no such token."""
        number: int | None = self._encoder.token_to_id(token)
        return number

    def require_words(self, count: int | None) -> None:
        """Refuse a content that cannot be read, or that has words beyond those of a network.

        Args:
            count: number of words of the network; None if it is not known.
        """
        largest = self._largest
        require(
            type(count) is not int or largest < count,
            f"the tokenizer numbers its words up to {largest}, the network has {count} words; use the tokenizer that "
            f"the network was trained with",
            MismatchError,
        )

    @property
    def _largest(self) -> int:
        """The largest number of a word."""
        return max(self._encoder.get_vocab().values(), default=0)

    def probe(self, count: int) -> Tensor:
        """Packed tokens of random texts, to try a network: the first has all tokens, each other one half as many.

        The first token of the first text is the one with the largest number, if that is not the padding token.
        """
        rng = torch.Generator().manual_seed(0)
        padding, largest = self.padding, self._largest
        known = torch.tensor([i for i in (*range(min(largest, 15)), largest) if i != padding["pad_id"]] or [0])
        ids = known[torch.randint(0, len(known), (count, self.length), generator=rng)]
        ids[:1, 0] = known[-1]
        kept = torch.arange(self.length) < torch.tensor([max(1, self.length >> row) for row in range(count)])[:, None]
        mask = kept.flip(1) if padding["direction"] == "left" else kept
        columns = {
            IDS: ids.where(mask, padding["pad_id"]),
            MASK: mask.long(),
            TYPES: torch.zeros_like(ids).where(mask, padding["pad_type_id"]),
        }
        return torch.cat([columns[name] for name in self.fields], 1)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Tokens of texts, packed `[N, K L]`: the fields one after the other."""
        encoded = self._encoder.encode_batch(list(texts))
        parts = {IDS: "ids", MASK: "attention_mask", TYPES: "type_ids"}
        columns = [torch.tensor([getattr(item, parts[name]) for item in encoded]) for name in self.fields]
        return torch.cat([column.view(len(encoded), self.length) for column in columns], 1)

    def __getstate__(self) -> dict[str, Any]:
        return {"content": self.content, "length": self.length, "fields": self.fields, "pad_id": self.pad_id}


def tokenised(task: Task, tokenizer: Tokenizer) -> Task:
    """The task with tokens as inputs."""
    require(
        is_text(task),
        f"'{task.name}' has inputs of shape {task.input_shape}, the network reads texts; use a task of texts",
        MismatchError,
    )

    def rows(texts: Rows) -> Rows:
        packed = [tokenizer(unpack_texts(texts.take(index))) for index in torch.arange(len(texts)).split(1024)]
        return Values(torch.cat(packed))

    train, test = (replace(part, inputs=rows(part.inputs), scaling=Scaling()) for part in (task.train, task.test))
    return replace(task, train=train, test=test, input_shape=train.inputs.shape, preprocessing={})
