"""Options of NAO besides those of encoder, predictor and decoder."""

from dataclasses import dataclass

from nearkin.core.errors import require
from nearkin.search.methods.enas.shared_options import SharedOptions


@dataclass(frozen=True, kw_only=True)
class NaoOptions(SharedOptions):
    """Training of the shared weights, and the pool of genotypes.

    Attributes:
        pool: number of genotypes in the pool.
        replaced: number of worst genotypes of the pool that new ones replace in a round.
        round_epochs: number of epochs in a round; then the pool is ranked, and the worst genotypes are replaced.
    """

    pool: int = 40
    replaced: int = 15
    round_epochs: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.pool >= 2, f"pool must be 2 or more, got {self.pool}")
        require(self.round_epochs >= 1, f"round_epochs must be 1 or more, got {self.round_epochs}")
        require(
            1 <= self.replaced < self.pool,
            f"replaced must lie between 1 and pool - 1 = {self.pool - 1}, got {self.replaced}",
        )
