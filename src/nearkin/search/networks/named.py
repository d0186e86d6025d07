"""Genotypes as network strings, which can be used wherever a network is named: `add`, `train`, `evaluate`.

`nearkin.search.named:searched?channels=8&genotype=normal(0):1~conv3(0);out~1&num_cells=2`
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch import nn

from nearkin.core.errors import MismatchError, require
from nearkin.nets.spec import NetworkSpec, Value
from nearkin.nets.trusted_code import SEARCHED
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.build import blueprint
from nearkin.search.networks.skeleton import Skeleton

PATH = SEARCHED
TRAINING_ONLY = ("auxiliary", "auxiliary_weight", "drop_path")
"""Fields of a skeleton that are used only in training and do not change the network."""


def searched(
    *,
    genotype: str,
    input_shape: Sequence[int],
    num_outputs: int,
    channels: int = 16,
    num_cells: int = 8,
    reductions: int | tuple[int, ...] | str | None = None,
    growth: int = 2,
    between: str = "residual",
    stem_factor: int = 1,
    stem_stride: int = 1,
    stages: int | tuple[int, ...] | None = None,
    dropout: float = 0.0,
    weight_drop: float = 0.0,
    dense: bool = False,
) -> nn.Module:
    """Network of a genotype that is written with `~` for `=` and without spaces; see `Skeleton` for the other options.

    >>> net = searched(genotype="normal(0):1~conv3(0);out~1", input_shape=(1, 8, 8), num_outputs=3, num_cells=2)
    >>> type(net).__name__
    'CellNetwork'
    """
    more: dict[str, Any] = {} if stages is None else {"stages": _sizes(stages)}
    skeleton = Skeleton(
        channels=channels, num_cells=num_cells, reductions=None if reductions is None else _sizes(reductions),
        growth=growth, between=between, stem_factor=stem_factor, stem_stride=stem_stride, dropout=float(dropout),
        weight_drop=float(weight_drop), dense=dense,
        **more,
    )  # fmt: skip
    factory, options = blueprint(decode_genotype(genotype), skeleton, tuple(input_shape), num_outputs)
    return factory(**options)  # weights come from torch's global generator, as for every network


def encode_genotype(genotype: Genotype) -> str:
    """Text of a genotype as an option of a network string.

    >>> encode_genotype(Genotype.parse("normal(0): 1 = conv3(0); out = 1"))
    'normal(0):1~conv3(0);out~1'
    """
    return "".join(str(genotype).split()).replace("=", "~")


def decode_genotype(text: str) -> Genotype:
    """The inverse of `encode_genotype`."""
    return Genotype.parse(text.replace("~", "="))


def network_string(genotype: Genotype, skeleton: Skeleton) -> str:
    """Network string of a genotype in a skeleton.

    >>> genotype = Genotype.parse("normal(0): 1 = conv3(0); out = 1")
    >>> text = network_string(genotype, Skeleton(channels=8, num_cells=2, drop_path=0.2))
    >>> text
    'nearkin.search.named:searched?channels=8&genotype=normal(0):1~conv3(0);out~1&num_cells=2'
    >>> parse_network(text) == (genotype, Skeleton(channels=8, num_cells=2))
    True
    """
    plain, as_deep = Skeleton(), Skeleton(num_cells=skeleton.num_cells, dense=skeleton.dense)  # its own reductions
    options: dict[str, Value] = {"genotype": encode_genotype(genotype)}
    for field in fields(Skeleton):
        value, usual = getattr(skeleton, field.name), as_deep if field.name == "reductions" else plain
        if field.name not in TRAINING_ONLY and value != getattr(usual, field.name):
            single = isinstance(value, tuple) and len(value) < 2
            options[field.name] = (value[0] if value else "none") if single else value
    return str(NetworkSpec(PATH, tuple(options.items())))


def parse_network(network: str) -> tuple[Genotype, Skeleton]:
    """The inverse of `network_string`; raises for the string of another network."""
    spec = NetworkSpec.parse(network)
    require(spec.name == PATH, f"{network} is not a searched network; nearkin search makes one", MismatchError)
    options: dict[str, Any] = dict(spec.options)
    genotype = decode_genotype(str(options.pop("genotype", "")))
    for name in ("reductions", "stages"):
        if name in options:
            options[name] = _sizes(options[name])
    return genotype, Skeleton.from_dict(options)


def _sizes(value: int | tuple[int, ...] | str) -> tuple[int, ...]:
    if isinstance(value, str):
        return ()
    return value if isinstance(value, tuple) else (value,)
