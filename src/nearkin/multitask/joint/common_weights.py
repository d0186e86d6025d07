"""Supernets of several tasks that have weights in common.

The weights are the same objects; every task has running statistics of its own. Tasks differ in the distribution of
their inputs, and a mean over all of them is that of none. While a supernet is trained its norms use the statistics of
the batch, so this choice does not change the search.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from torch import nn

from nearkin.core.errors import OptionError, require
from nearkin.search.methods.darts.gradient_options import GradientOptions
from nearkin.search.methods.darts.supernet_learner import LearnerState, weight_optimiser
from nearkin.search.supernet.reference import AnySupernet, StackedCells

M = TypeVar("M", bound=nn.Module)


def with_same_weights(module: M) -> M:
    """A module with the same weights and a copy of everything else.

    >>> layer = nn.BatchNorm2d(2)
    >>> other = with_same_weights(layer)
    >>> other.weight is layer.weight, other.running_mean is layer.running_mean
    (True, False)
    """
    return copy.deepcopy(module, {id(weight): weight for weight in module.parameters()})


def shared_slots(
    slots: Sequence[LearnerState], supernets: Sequence[AnySupernet], options: GradientOptions
) -> list[LearnerState]:
    """The slots with other supernets; each optimiser has the weights that no earlier one has."""
    known: set[nn.Parameter] = set()
    made = []
    for slot, supernet in zip(slots, supernets, strict=True):
        own = [weight for weight in supernet.parameters() if weight not in known]
        known.update(own)
        made.append(replace(slot, supernet=supernet.train(), weight_optimiser=weight_optimiser(own, options)))
    return made


def require_no_plasticity(options: GradientOptions) -> None:
    """Raise if weights that several tasks share would be pulled to an anchor of each."""
    require(
        not options.forgetting.plasticity,
        "plasticity is on, and tasks share weights, which would be pulled once for each task; turn it off, or give "
        "every task weights of its own",
    )


def apply_shared_gradients(slots: Sequence[LearnerState], options: GradientOptions) -> None:
    """Step of all weights along the gradients that they have; the norm of all gradients together is limited."""
    if options.clip > 0:
        weights = {weight: None for slot in slots for weight in slot.supernet.parameters()}
        nn.utils.clip_grad_norm_(list(weights), options.clip)
    for slot in slots:
        slot.weight_optimiser.step()


def stacked_cells(slot: LearnerState) -> StackedCells:
    """The supernet of a slot, whose cells other tasks use too; raises for a chain."""
    supernet = slot.supernet
    if not isinstance(supernet, StackedCells):
        raise OptionError("connections between tasks are searched between cells, and the space has chains; use a space "
                          "of cells, such as darts")  # fmt: skip
    return supernet
