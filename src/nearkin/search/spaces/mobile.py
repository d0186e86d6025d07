"""The mobile space: a chain of inverted bottlenecks with choices of kernel and expansion."""

import itertools
import math
from dataclasses import dataclass
from typing import cast

from nearkin.core.errors import require
from nearkin.search.genotypes.block import Block
from nearkin.search.genotypes.genotype import SKIP, Chain, Genotype
from nearkin.search.spaces.base import Space, digits, require_distinct

MOBILE_STAGES = (2, 4, 4, 4, 4, 1)
"""Blocks in each stage, 19 in all."""


@dataclass(frozen=True)
class MobileSpace(Space):
    r"""Chains of blocks `mbconv(expansion=…, kernel=…)` in stages; a block may be skipped unless it opens a stage.

    The first block of a stage changes width or stride, so that nothing can stand in for it: with $m$ pairs of kernel
    and expansion, $s$ stages and $n$ blocks there are $m^s (m+1)^{n-s}$ chains. Paper 002 prints 7 choices for each of
    19 layers; `skip_first=True` gives that count, and leaves it to the builder how a stage may open without a block.
    Neighbours differ in one block.

    Attributes:
        stages: the number of blocks in each stage.
        kernels: sides of the depthwise convolution.
        expansions: ratios of the inner to the outer width.
        skip_first: whether the first block of a stage may be skipped as well.
        name: what the space is called.

    >>> MobileSpace().size() == 6**6 * 7**13, MobileSpace(skip_first=True).size() == 7**19
    (True, True)
    """

    stages: tuple[int, ...] = MOBILE_STAGES
    kernels: tuple[int, ...] = (3, 5, 7)
    expansions: tuple[int, ...] = (3, 6)
    skip_first: bool = False
    name: str = "mobile"

    def __post_init__(self) -> None:
        require(len(self.stages) > 0 < min(self.stages), f"every stage has at least one block, got {self.stages}")
        require_distinct(self.kernels, "kernels")
        require_distinct(self.expansions, "expansions")

    def choices(self) -> tuple[tuple[Block, ...], ...]:
        """The blocks that may stand at each place, `skip` last."""
        pairs = itertools.product(self.expansions, self.kernels)
        blocks = tuple(Block("mbconv", {"expansion": expansion, "kernel": kernel}) for expansion, kernel in pairs)
        skippable = (*blocks, Block(SKIP))
        first = skippable if self.skip_first else blocks
        return tuple(first if place == 0 else skippable for stage in self.stages for place in range(stage))

    def size(self) -> int:
        """The product of the choices of all blocks."""
        return math.prod(map(len, self.choices()))

    def at(self, index: int) -> Chain:
        """The last block changes fastest."""
        choices = self.choices()
        chosen = digits(index, list(map(len, choices)))
        return Chain(tuple(blocks[digit] for blocks, digit in zip(choices, chosen, strict=True)))

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is no chain of this space."""
        if not isinstance(genotype, Chain):
            return "the space has chains"
        choices = self.choices()
        if len(genotype.blocks) != len(choices):
            return f"it has {len(genotype.blocks)} blocks, the space has {len(choices)}"
        for place, (block, allowed) in enumerate(zip(genotype.blocks, choices, strict=True)):
            if block not in allowed:
                return f"block {place} is {block}, the space has {', '.join(map(str, allowed))} there"
        return ""

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """Those with one other block."""
        self.require_member(genotype)
        blocks = cast(Chain, genotype).blocks
        return tuple(
            Chain((*blocks[:place], other, *blocks[place + 1 :]))
            for place, allowed in enumerate(self.choices())
            for other in allowed
            if other != blocks[place]
        )

    def unique_key(self, genotype: Genotype) -> str:
        """The chain with the skips of each stage at its end: blocks after the first of a stage are alike in shape.

        >>> chain = Genotype.parse("chain: mbconv(expansion=3, kernel=3); skip; mbconv(expansion=6, kernel=5)")
        >>> MobileSpace((3,)).unique_key(chain)
        'chain: mbconv(expansion=3, kernel=3); mbconv(expansion=6, kernel=5); skip'
        """
        self.require_member(genotype)
        blocks = iter(cast(Chain, genotype).blocks)
        ordered: list[Block] = []
        for stage in self.stages:
            first, *rest = itertools.islice(blocks, stage)
            ordered += [first, *sorted(rest, key=lambda block: block.name == SKIP)]
        return str(Chain(tuple(ordered)))
