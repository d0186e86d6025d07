"""Closed-form transfer: a linearized network as a Gaussian process with its tangent kernel."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.transfer.classifier import LinearizedClassifier as LinearizedClassifier
    from nearkin.transfer.gaussian_process import gaussian as gaussian
    from nearkin.transfer.gpytorch_kernel import TangentKernel as TangentKernel
    from nearkin.transfer.hierarchy.family import Family as Family
    from nearkin.transfer.hierarchy.family import family as family
    from nearkin.transfer.hyper import Hyper as Hyper
    from nearkin.transfer.hyper import Learning as Learning
    from nearkin.transfer.linearized import Linearized as Linearized
    from nearkin.transfer.linearized import linearize as linearize
    from nearkin.transfer.marginal_likelihood import learn as learn
    from nearkin.transfer.marginal_likelihood import learn_pooled as learn_pooled
    from nearkin.transfer.outcome import TransferScores as TransferScores
    from nearkin.transfer.posterior import Posterior as Posterior
    from nearkin.transfer.posterior import restored as restored
    from nearkin.transfer.regressor import LinearizedRegressor as LinearizedRegressor
else:
    __getattr__, __dir__, __all__ = exports(__name__)
