"""Distances between tasks: Fréchet on Fisher information, cheap baselines, all pairs, screening."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.distance.fisher_based.frechet import frechet as frechet
    from nearkin.distance.fisher_based.frechet import full_frechet as full_frechet
    from nearkin.distance.matrix import DistanceMatrix as DistanceMatrix
    from nearkin.distance.ranking import Kin as Kin
    from nearkin.distance.ranking import Ranking as Ranking
else:
    __getattr__, __dir__, __all__ = exports(
        __name__,
        {
            "fisher_based.frechet": ("frechet", "full_frechet"),
            "matrix": ("DistanceMatrix",),
            "ranking": ("Kin", "Ranking"),
        },
    )
