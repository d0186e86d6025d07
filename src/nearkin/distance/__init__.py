"""Distances between tasks: Fréchet on Fisher information, cheap baselines, all pairs, screening."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.distance.fisher_based.frechet import frechet as frechet
    from nearkin.distance.fisher_based.frechet import full_frechet as full_frechet
    from nearkin.distance.matrix import DistanceMatrix as DistanceMatrix
    from nearkin.distance.measure import Measure as Measure
    from nearkin.distance.measure import Need as Need
    from nearkin.distance.pair import Pair as Pair
    from nearkin.distance.pair import Source as Source
    from nearkin.distance.pair import Target as Target
    from nearkin.distance.ranking import Kin as Kin
    from nearkin.distance.ranking import Ranking as Ranking
    from nearkin.distance.registry import MEASURES as MEASURES
    from nearkin.distance.registry import measure_named as measure_named
else:
    __getattr__, __dir__, __all__ = exports(__name__)
