"""A tape that follows a plan, checks it on every batch, and stops using formulas that do not fit."""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from nearkin.fisher.autodiff import single_outputs
from nearkin.fisher.control_flow import depends_on_values
from nearkin.fisher.gradient_plan import GradientPlan, state_of, structural_plan
from nearkin.fisher.tape import Network, Receiver, Tape
from nearkin.fisher.verification import spread_samples, verified_plan

SAMPLES = 4  # samples on which a new plan is verified
LATER_SAMPLES = 2  # samples of a later batch
EVERY = 1024  # maximum number of batches between two verifications


@dataclass
class PlanRecord:
    """A network's plan, and the number of batches it was used for."""

    state: Hashable
    plan: GradientPlan
    batches: int = 0


_remembered: WeakKeyDictionary[nn.Module, PlanRecord] = WeakKeyDictionary()


def plan_for(model: Network, weights: Mapping[str, Tensor], x: Tensor, names: Collection[str]) -> GradientPlan:
    """The plan for a network, verified on some of the inputs `[B, *input_shape]`.

    The plan is cached, not on the network, until anything changes that decides what the network computes.
    """
    return _record(model, weights, x, names).plan


class PlannedTape:
    """Outputs of a network, with a record of the layers that have formulas.

    On every batch the structure is compared with the plan: which layers were called and how often, with how many rows,
    and which parameters are used outside of the layers. On the 4th, 16th, 64th, ... batch, formulas are compared with
    autograd. Layers that do not fit are removed from the plan before `receive` is called for the batch.

    Args:
        model: the network.
        weights: all its parameters and buffers, detached.
        x: the first inputs `[B, *input_shape]`.
        names: parameters to differentiate by.
        receive: see `Receiver`; called for layers of the plan.

    Attributes:
        plan: how gradients are computed, as of the last batch.
    """

    def __init__(
        self, model: Network, weights: Mapping[str, Tensor], x: Tensor, names: Collection[str], receive: Receiver
    ) -> None:
        self._model, self._weights, self._receive = model, weights, receive
        self._record = _record(model, weights, x, names)
        self._follow(self._record.plan)

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs for `[B, *input_shape]`; without a graph if every sample runs alone."""
        x = x.detach()
        self._record.batches += 1
        number = self._record.batches
        if isinstance(self._model, nn.Module) and len(x) > 0 and _is_due(number):
            self._follow(
                verified_plan(self.plan, self._model, self._weights, spread_samples(x, LATER_SAMPLES, number % len(x)))
            )
        while not self.plan.alone:
            outputs = self._tape(x)
            fitted = self.plan.fitted(self._tape)
            if fitted is self.plan:
                return outputs
            self._follow(fitted)
        return single_outputs(self._model, self._weights, x)

    def _follow(self, plan: GradientPlan) -> None:
        self.plan = self._record.plan = plan
        self._tape = Tape(self._model, plan.layers, self._receive, self._weights, plan.watched)


def _record(model: Network, weights: Mapping[str, Tensor], x: Tensor, names: Collection[str]) -> PlanRecord:
    x = x.detach()
    if not isinstance(model, nn.Module):  # what a function depends on cannot be seen
        return PlanRecord(None, _new_plan(model, weights, spread_samples(x, SAMPLES), names))
    state, record = state_of(model, x, names), _remembered.get(model)
    if record is None or record.state != state:
        record = _remembered[model] = PlanRecord(state, _new_plan(model, weights, spread_samples(x, SAMPLES), names))
    return record


def _new_plan(model: Network, weights: Mapping[str, Tensor], x: Tensor, names: Collection[str]) -> GradientPlan:
    """The plan for samples `[K, *input_shape]`."""
    alone = any(depends_on_values(model, weights, some) for some in (x[:1], x)[: len(x)])
    if alone or not isinstance(model, nn.Module):
        return GradientPlan(tuple(names), (), (), {}, tuple(names), alone=alone)
    return verified_plan(structural_plan(model, x[:1], names), model, weights, x)


def _is_due(number: int) -> bool:
    """Whether a batch is the 4th, 16th, 64th, ..., or one of every 1024.

    >>> [number for number in range(1, 100) if _is_due(number)]
    [4, 16, 64]
    """
    return number % EVERY == 0 or (number > 1 and number & (number - 1) == 0 and number.bit_length() % 2 == 1)
