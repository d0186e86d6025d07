"""Closed-form transfer: a linearized network as a Gaussian process with its tangent kernel."""

from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hierarchy.family import Family, family
from nearkin.transfer.hyper import Hyper, Learning
from nearkin.transfer.linearized import Linearized, linearize
from nearkin.transfer.marginal_likelihood import learn, learn_pooled
from nearkin.transfer.posterior import Posterior, restored

__all__ = [
    "Family", "Hyper", "Learning", "Linearized", "Posterior", "family", "gaussian", "learn", "learn_pooled",
    "linearize", "restored",
]  # fmt: skip
