"""Layers and blocks of a supernet of chains, and its architecture weights.

Notation: L layers, O blocks of a layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Generator, Tensor

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.search.genotypes.block import Block
from nearkin.search.genotypes.genotype import SKIP, Chain, Genotype
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.limited import without_limits
from nearkin.search.spaces.mobile import MobileSpace
from nearkin.search.spaces.restricted import ANY, RestrictedSpace
from nearkin.search.supernet.choice_layout import Architecture, ChoiceLayout, ChoiceWeights, Row

CHAIN = "chain"
"""Kind of the only table of architecture weights."""


@dataclass(frozen=True)
class ChainLayout(ChoiceLayout):
    """Blocks to choose from in every layer of a chain.

    Attributes:
        stages: number of layers in each stage.
        choices: blocks of each layer.

    >>> layout = ChainLayout.of(MobileSpace())
    >>> layout.num_rows, layout.num_choices("chain")[:3]
    (19, [6, 7, 6])
    """

    stages: tuple[int, ...]
    choices: tuple[tuple[Block, ...], ...]

    @classmethod
    def of(cls, space: Space) -> "ChainLayout":
        """Layout of a mobile space, which may be restricted or have limits."""
        whole = without_limits(space)
        if isinstance(whole, RestrictedSpace) and isinstance(whole.space, MobileSpace):
            return cls(whole.space.stages, _restricted_choices(whole.space, whole))
        if isinstance(whole, MobileSpace):
            return cls(whole.stages, whole.choices())
        raise OptionError(f"the space {space.name} has no chains with stages; use the space mobile")

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks of all layers, each once: the columns of α."""
        return tuple(dict.fromkeys(block for layer in self.choices for block in layer))

    @cached_property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Blocks as text."""
        return {CHAIN: tuple(map(str, self.blocks))}

    @property
    def num_rows(self) -> int:
        """Number of layers L."""
        return len(self.choices)

    def num_choices(self, kind: str) -> list[int]:
        """Number of blocks that each layer may have."""
        return list(map(len, self.choices))

    @cached_property
    def missing(self) -> Tensor:
        """Whether a layer lacks a block `[L, O]`."""
        return torch.tensor([[block not in layer for block in self.blocks] for layer in self.choices])

    def initial(self, rng: Generator, *, edges: bool = False, scale: float = 1e-3) -> dict[str, Tensor]:
        """Architecture weights near zero. One edge enters a layer, so its weight is 1, and there is no β."""
        return {f"alpha/{CHAIN}": scale * torch.randn(self.num_rows, len(self.blocks), generator=rng)}

    def weights(self, architecture: Architecture) -> dict[str, tuple[Tensor, Tensor]]:
        r"""$\mathrm{softmax}(\alpha_l)$ `[L, O]` over the blocks that a layer has, and ones `[L]`."""
        self.check(architecture)
        alpha = architecture[f"alpha/{CHAIN}"]
        shares = alpha.masked_fill(self.missing.to(alpha.device), -torch.inf).softmax(-1)
        return {CHAIN: (shares, alpha.new_ones(self.num_rows))}

    def path(self, architecture: Architecture, rng: Generator) -> Chain:
        """Draw one block of every layer, with the probabilities softmax(α)."""
        shares, _ = self.weights(architecture)[CHAIN]
        drawn = torch.multinomial(shares.detach().cpu(), 1, generator=rng).flatten().tolist()
        return Chain(tuple(self.blocks[column] for column in drawn))

    def strongest(self, weights: ChoiceWeights) -> Chain:
        """The strongest block of every layer."""
        table = weights[CHAIN].masked_fill(self.missing, -1.0)
        return Chain(tuple(self.blocks[column] for column in table.argmax(1).tolist()))

    def rows(self, genotype: Genotype) -> dict[str, list[Row]] | None:
        """One row for each block; None for another number of blocks, and for no chain."""
        if not isinstance(genotype, Chain) or len(genotype.blocks) != self.num_rows:
            return None
        return {key: [Row(CHAIN, number) for number in range(self.num_rows)] for key in genotype.operations()}

    def skip_groups(self, genotype: Genotype) -> list[list[tuple[Row, str]]]:
        """Skipped blocks of each stage."""
        layers, groups = enumerate(cast(Chain, genotype).blocks), []
        for count in self.stages:
            stage = [next(layers) for _ in range(count)]
            groups.append([(Row(CHAIN, number), SKIP) for number, block in stage if block.name == SKIP])
        return groups

    def chosen(self, chain: Chain) -> list[int]:
        """Number of the block of every layer among its choices; raises if a chain is not a path of the supernet."""
        require(
            len(chain.blocks) == self.num_rows,
            f"the chain has {len(chain.blocks)} blocks, the supernet {self.num_rows}; use a genotype of its space",
            MismatchError,
        )
        for number, (block, layer) in enumerate(zip(chain.blocks, self.choices, strict=True)):
            require(
                block in layer,
                f"block {number} of the chain is {block}, the supernet has {', '.join(map(str, layer))} there; use a "
                f"genotype of its space",
                MismatchError,
            )
        return [layer.index(block) for block, layer in zip(chain.blocks, self.choices, strict=True)]


def _restricted_choices(space: MobileSpace, restricted: RestrictedSpace) -> tuple[tuple[Block, ...], ...]:
    """Blocks of every layer that a structure of a restricted space has."""
    free = [name for _, names in restricted.operations for name in names]
    choices = []
    for layer, known in enumerate(space.choices()):
        names = {str(form.blocks[layer]) for form in restricted.structures if isinstance(form, Chain)}
        allowed = {*names, *(free if ANY in names else ())}
        choices.append(tuple(block for block in known if str(block) in allowed))
    return tuple(choices)
