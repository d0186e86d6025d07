"""Closed-form transfer: a linearized network as a Gaussian process with its tangent kernel."""

from typing import TYPE_CHECKING, Any

from nearkin.transfer.gaussian_process import gaussian
from nearkin.transfer.hierarchy.family import Family, family
from nearkin.transfer.hyper import Hyper, Learning
from nearkin.transfer.linearized import Linearized, linearize
from nearkin.transfer.marginal_likelihood import learn, learn_pooled
from nearkin.transfer.posterior import Posterior, restored

if TYPE_CHECKING:
    from nearkin.transfer.gpytorch_kernel import TangentKernel

__all__ = [
    "Family", "Hyper", "Learning", "Linearized", "Posterior", "TangentKernel", "family", "gaussian", "learn",
    "learn_pooled", "linearize", "restored",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "TangentKernel":  # GPyTorch is an extra, and slow to import
        from nearkin.transfer.gpytorch_kernel import TangentKernel

        return TangentKernel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
