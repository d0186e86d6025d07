"""Passes over many inputs: outputs are those of the whole batch, whatever is left out or reordered on the way."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nearkin.nets.adopted import AdoptedNetwork
from nearkin.nets.adopted_spec import AdoptedSpec, adopted_spec
from nearkin.nets.adoption import NEW, adopt_module
from nearkin.nets.forward_passes import fast_inputs, in_passes, pass_size
from nearkin.nets.functional import load
from nearkin.nets.module_source import described
from nearkin.nets.registry import build
from nearkin.tasks.input_fields import IDS, MASK, InputField
from nearkin.tasks.named_inputs import pack_inputs
from nearkin.tasks.token_rows import STEP, cut, text_lengths

LENGTH, WORDS = 40, 9
FIELDS = (InputField(MASK, (LENGTH,)), InputField(IDS, (LENGTH,)))


class Encoder(nn.Module):
    """Self-attention over the positions that the mask keeps, with positions; or over all of them."""

    def __init__(self, masked: bool = True, length: int = LENGTH) -> None:
        super().__init__()
        self.masked, self.length = masked, length
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(length, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        ignored = attention_mask == 0 if self.masked else None
        mixed: Tensor = self.attention(x, x, x, key_padding_mask=ignored)[0]
        return mixed


class WholeLength(nn.Module):
    """An encoder that reads texts of one length only."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 2), nn.Linear(2 * LENGTH, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        scores: Tensor = self.head((self.words(input_ids) * attention_mask[..., None]).flatten(1))
        return scores


def texts(lengths: list[int], left: bool = False, seed: int = 0) -> Tensor:
    """Packed texts of these lengths, filled on the right or on the left."""
    mask = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, WORDS, (len(lengths), LENGTH), generator=torch.Generator().manual_seed(seed))
    inputs = {MASK: mask.long(), IDS: ids * mask}
    return pack_inputs({name: value.flip(1) for name, value in inputs.items()} if left else inputs, FIELDS)


def adopted(module: nn.Module, probe: Tensor, head: str | None = NEW, **options: object) -> AdoptedNetwork:
    """The module, adopted and built again, with a head that is not zero."""
    spec = AdoptedSpec(**{**vars(described(module)), "fields": FIELDS, **options})
    stored = adopt_module(module.eval(), probe, spec, head=head, num_outputs=3)
    network = build(stored.network, tuple(probe.shape[1:]), 3, seed=0)
    load(network, stored.params, stored.buffers)
    assert isinstance(network, AdoptedNetwork)
    torch.manual_seed(0)
    for value in network.head.parameters():
        nn.init.normal_(value)
    return network.eval()


@pytest.fixture(scope="module")
def encoder() -> AdoptedNetwork:
    torch.manual_seed(0)
    return adopted(Encoder(), texts([40, 20, 3]), pool="mean")


@given(st.lists(st.integers(1, LENGTH), min_size=1, max_size=70), st.integers(0, 99))
def test_outputs_do_not_depend_on_padding_and_order(encoder: AdoptedNetwork, lengths: list[int], seed: int) -> None:
    x, widths = texts(lengths, seed=seed), []

    def compute(batch: Tensor) -> Tensor:
        widths.append(batch.shape[1] // 2)
        return encoder(batch)

    with torch.no_grad():
        assert encoder.spec.cuts_padding
        assert torch.allclose(in_passes(encoder, x, compute), encoder(x), atol=1e-5)
    assert max(widths) == min(LENGTH, -(-max(lengths) // STEP) * STEP)
    assert min(widths) >= min(lengths)


def test_short_texts_are_read_in_fewer_tokens(encoder: AdoptedNetwork) -> None:
    assert fast_inputs(encoder, texts([3, 7])).shape == (2, 2 * 8)
    assert fast_inputs(encoder, texts([3, 9])).shape == (2, 2 * 16)
    assert text_lengths(texts([3, 9]), FIELDS).tolist() == [3, 9]


def test_a_text_without_a_token_is_read_with_all_padding(encoder: AdoptedNetwork) -> None:
    x = texts([0, 3])
    assert torch.equal(cut(x, FIELDS), x)
    assert torch.equal(fast_inputs(encoder, x), x)


@pytest.mark.parametrize("left", [False, True])
def test_networks_that_read_their_padding_keep_it(left: bool) -> None:
    torch.manual_seed(0)
    network = adopted(Encoder(masked=left), texts([40, 20, 3], left=left), pool="mean")
    assert not network.spec.cuts_padding
    x = texts([3, 9], left=left)
    assert torch.equal(fast_inputs(network, x), x)


def test_networks_of_one_length_keep_the_padding() -> None:
    network = adopted(WholeLength(), texts([40, 20, 3]), head=None)
    assert not network.spec.cuts_padding


class Flat(nn.Module):
    """A convolution whose outputs are flattened, by `view`, which asks for channels first, or by `flatten`."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.view = view
        self.body, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 36, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        scores: Tensor = self.head(x.view(len(x), -1) if self.view else x.flatten(1))
        return scores


@pytest.mark.parametrize("view", [False, True])
def test_channels_are_last_only_where_the_code_takes_it(view: bool) -> None:
    torch.manual_seed(0)
    module, x = Flat(view).eval(), torch.randn(5, 3, 6, 6)
    stored = adopt_module(module, x, described(module), head=None, num_outputs=None)
    network = build(stored.network, (3, 6, 6), 2, seed=0)
    load(network, stored.params, stored.buffers)
    spec = adopted_spec(stored.network)
    assert spec is not None
    assert spec.channels_last != view
    assert fast_inputs(network, x).is_contiguous(memory_format=torch.channels_last) != view
    with torch.no_grad():
        assert torch.allclose(in_passes(network, x, network), module(x), atol=1e-6)


def test_other_networks_get_their_inputs_as_they_are() -> None:
    x = torch.randn(700, 1, 28, 28)
    assert fast_inputs(nn.Flatten(), x) is x
    assert pass_size(x) == 512
    assert torch.equal(in_passes(nn.Flatten(), x, nn.Flatten()), x.flatten(1))
