"""Distances between tasks: Fréchet on Fisher information, cheap baselines, all pairs, screening."""

from nearkin.distance.fisher_based.frechet import frechet, full_frechet
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.ranking import Kin, Ranking

__all__ = ["DistanceMatrix", "Kin", "Ranking", "frechet", "full_frechet"]
