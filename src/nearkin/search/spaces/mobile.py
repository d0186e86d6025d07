"""The mobile space: a chain of inverted bottlenecks with a choice of kernel and expansion for each."""

import itertools
import math
from dataclasses import dataclass
from typing import cast

from nearkin.core.errors import require
from nearkin.search.genotypes.block import Block
from nearkin.search.genotypes.genotype import SKIP, Chain, Genotype
from nearkin.search.spaces.base import Space, digits, require_distinct

MOBILE_STAGES = (2, 4, 4, 4, 4, 1)
"""Number of blocks in each stage, 19 in total."""


@dataclass(frozen=True)
class MobileSpace(Space):
    r"""Chains of blocks `mbconv(expansion=…, kernel=…)` in stages; all blocks but the first of a stage may be skipped.

    The first block of a stage changes width or stride and cannot be skipped: with $m$ pairs of kernel and expansion,
    $s$ stages and $n$ blocks there are $m^s (m+1)^{n-s}$ chains. Paper 002 has 7 choices for each of 19 layers;
    `skip_first=True` gives that number, and the network builder then replaces a skipped first block.
    Neighbours differ in one block.

    Attributes:
        stages: number of blocks in each stage.
        kernels: kernel sizes of the depthwise convolution.
        expansions: ratios of the inner to the outer width.
        skip_first: whether the first block of a stage may be skipped too.
        name: name of the space.

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
        """Allowed blocks at each position, `skip` last."""
        pairs = itertools.product(self.expansions, self.kernels)
        blocks = tuple(Block("mbconv", {"expansion": expansion, "kernel": kernel}) for expansion, kernel in pairs)
        skippable = (*blocks, Block(SKIP))
        first = skippable if self.skip_first else blocks
        return tuple(first if block == 0 else skippable for stage in self.stages for block in range(stage))

    def size(self) -> int:
        """Product of the numbers of choices of all blocks."""
        return math.prod(map(len, self.choices()))

    def at(self, index: int) -> Chain:
        """Chain with a number; the last block changes fastest."""
        choices = self.choices()
        chosen = digits(index, list(map(len, choices)))
        return Chain(tuple(blocks[digit] for blocks, digit in zip(choices, chosen, strict=True)))

    def objection(self, genotype: Genotype) -> str:
        """Why a genotype is not a chain of this space."""
        if not isinstance(genotype, Chain):
            return "the space has chains"
        choices = self.choices()
        if len(genotype.blocks) != len(choices):
            return f"it has {len(genotype.blocks)} blocks, the space has {len(choices)}"
        for number, (block, allowed) in enumerate(zip(genotype.blocks, choices, strict=True)):
            if block not in allowed:
                return f"block {number} is {block}, the space has {', '.join(map(str, allowed))} there"
        return ""

    def neighbours(self, genotype: Genotype) -> tuple[Genotype, ...]:
        """Chains with one other block."""
        self.require_member(genotype)
        blocks = cast(Chain, genotype).blocks
        return tuple(
            Chain((*blocks[:number], other, *blocks[number + 1 :]))
            for number, allowed in enumerate(self.choices())
            for other in allowed
            if other != blocks[number]
        )

    def unique_key(self, genotype: Genotype) -> str:
        """The chain with the skips of each stage at its end: all blocks after the first of a stage have one shape.

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
