"""Description of an adopted network as data: what builds it, its head, its inputs and its outputs.

It is written into the network string of the model, `nearkin.nets.adopted:adopted?spec=…`, so that adopted networks are
stored, compared, exported and refused like all others. It names code only as a network string, whose code must be
trusted (`nets.trusted_code`).
"""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.plain import json_object, typed
from nearkin.tasks.input_fields import MOST_VALUES, InputField, are_tokens

ADOPTED = "nearkin.nets.adopted:adopted"  # as a network string names it
ADOPTED_FACTS = "adopted"  # key among the facts of a row for label, licence and origin of an adopted model
LARGEST_SPEC = 2**20  # bytes of JSON
_EMPTY: tuple[Any, ...] = ("", 0, (), None, False)

Pool: TypeAlias = Literal["", "mean", "first", "max"]
POOLS: tuple[Pool, ...] = get_args(Pool)


@dataclass(frozen=True, kw_only=True)
class AdoptedSpec:
    """An adopted network as data. One of `network`, `layers` and `config` says what builds it.

    Attributes:
        label: name for people, such as the name of its class.
        network: a network string.
        layers: layers of `torch.nn` (`nets.layer_tree`).
        config: configuration of a model of the library transformers.
        head: name of its last linear layer; empty if a new head follows it.
        width: number of features that a new head reads; 0 without one.
        fields: its named inputs, packed into one tensor in this order; empty if it takes one tensor.
        output: name or position of the output that is used; empty if it returns one tensor.
        pool: how the outputs of a sequence become those of a sample; empty if they are not pooled.
        reversed_channels: whether it reads images as blue, green, red.
        probabilities: whether a softmax follows its head; the outputs are then the logarithms of the probabilities.
        cuts_padding: whether it reads texts, and its outputs do not depend on their padding.
        channels_last: whether it reads images with the channels last in memory too, which is faster.
    """

    label: str
    network: str = ""
    layers: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    head: str = ""
    width: int = 0
    fields: tuple[InputField, ...] = ()
    output: str = ""
    pool: str = ""
    reversed_channels: bool = False
    probabilities: bool = False
    cuts_padding: bool = False
    channels_last: bool = False

    def __post_init__(self) -> None:
        given = [bool(self.network), self.layers is not None, self.config is not None]
        require(sum(given) == 1, "an adopted network is built by a network string, by layers or by a configuration")
        require(self.pool in POOLS, f"pool must be one of {', '.join(filter(None, POOLS))}, got {self.pool!r}")
        require(0 <= self.width <= MOST_VALUES, f"the number of features must be 1 or more, got {self.width}")
        names = [field.name for field in self.fields]
        require(len(set(names)) == len(names), f"an input is named twice: {', '.join(names)}; name each once")
        require(not self.cuts_padding or are_tokens(self.fields), "only padding of tokens with a mask can be cut")

    @property
    def is_plain(self) -> bool:
        """Whether the network string alone builds the same network, with the head as its last layer."""
        wrapped = self.width or self.fields or self.output or self.pool or self.reversed_channels or self.probabilities
        return bool(self.network) and not wrapped

    def to_text(self) -> str:
        """The specification as one word, for a network string.

        >>> spec = AdoptedSpec(label="LeNet", network="lenet", head="head")
        >>> AdoptedSpec.parse(spec.to_text()) == spec
        True
        """
        written = {key: value for key, value in asdict(self).items() if value not in _EMPTY}
        text = json.dumps(written, sort_keys=True, separators=(",", ":")).encode()
        require(len(text) <= LARGEST_SPEC, f"{self.label} has a description of {len(text):,} bytes, which is too long")
        return base64.urlsafe_b64encode(zlib.compress(text, 9)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "AdoptedSpec":
        """The inverse of `to_text`."""
        try:
            packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            reader = zlib.decompressobj()
            content = reader.decompress(packed, LARGEST_SPEC)
            require(reader.eof, "it is cut off or too long")
            return typed(cls, json_object(content, "the description"), "the description")
        except (binascii.Error, zlib.error, ValueError, OptionError, DataError) as broken:
            reason = " ".join(str(broken).split())[:200]
            raise DataError(f"the description of an adopted network is damaged ({reason}); fetch it again") from None

    @property
    def network_string(self) -> str:
        """The network string that builds the network with its wrapper."""
        return f"{ADOPTED}?spec={self.to_text()}"


def adopted_spec(network: str) -> AdoptedSpec | None:
    """The specification in a network string; None for other networks.

    >>> adopted_spec("lenet") is None
    True
    """
    name, _, rest = network.strip().partition("?")
    if name != ADOPTED:
        return None
    options = dict(option.partition("=")[::2] for option in rest.split("&"))
    return AdoptedSpec.parse(options.get("spec", ""))


def network_label(network: str) -> str:
    """A network string for people: that of an adopted network is replaced by its label.

    >>> network_label("lenet"), network_label(AdoptedSpec(label="BertModel", config={}).network_string)
    ('lenet', 'BertModel')
    """
    try:
        spec = adopted_spec(network)
    except DataError:
        return "damaged description of an adopted network"
    return network if spec is None else spec.label
