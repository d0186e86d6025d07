"""Solve a task beside a zoo: data checks, related tasks, a contest under equal time, one answer."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.solver.encoder_head import with_fitted_head as with_fitted_head
    from nearkin.solver.estimator import NearkinClassifier as NearkinClassifier
    from nearkin.solver.estimator import NearkinRegressor as NearkinRegressor
    from nearkin.solver.plan import Plan as Plan
    from nearkin.solver.solution import Solution as Solution
    from nearkin.solver.solving import solve as solve
else:
    __getattr__, __dir__, __all__ = exports(__name__)
