"""Networks: build them from a string, train them, call them as functions of their weights, split encoder and head."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.nets.evaluate import Scores as Scores
    from nearkin.nets.history import History as History
    from nearkin.nets.recipe import Recipe as Recipe
    from nearkin.nets.registry import build as build
    from nearkin.nets.registry import default_network as default_network
    from nearkin.nets.solved import Solved as Solved
    from nearkin.nets.spec import NetworkSpec as NetworkSpec
    from nearkin.nets.training_loop import Fit as Fit
    from nearkin.nets.training_loop import fit as fit
    from nearkin.nets.trusted_code import trust as trust
else:
    __getattr__, __dir__, __all__ = exports(__name__)
