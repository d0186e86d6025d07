"""Options of ENAS besides those of the controller."""

from dataclasses import dataclass

from nearkin.core.errors import require
from nearkin.search.methods.enas.shared_options import SharedOptions


@dataclass(frozen=True, kw_only=True)
class EnasOptions(SharedOptions):
    """Training of the shared weights, after each epoch of which the controller is trained, and selection.

    Attributes:
        selection_samples: number of genotypes that are sampled at the end of an epoch to select the best one.
    """

    selection_samples: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.selection_samples >= 1, f"selection_samples must be 1 or more, got {self.selection_samples}")
