r"""Gradient of the validation loss with respect to the architecture, through a pass of one-step updates.

A pass is a chain of stages $s = 1, \dots, S$. Stage $s$ takes one step of the weights $W_k$ of its student $k$, and its
loss may depend on the weights $W_t$ of a teacher $t$ that earlier stages have changed:

$$\widehat W_k = W_k - \eta_s \left(\nabla_{W_k} L_s(W_k, W_t, A) + u_k\right),$$

where $u$ is the part of the step that does not depend on $A$: momentum and weight decay. The gradient is taken at a
fixed teacher, but $\widehat W_k$ depends on $A$ through $W_t$ too. The derivatives of the paper (eqs. 17-24) are, for
$\Phi = \sum_k L_k^{(val)}(A, \widehat W_k)$ at the weights after the last stage,

$$\frac{d\Phi}{dA} = \frac{\partial \Phi}{\partial A} + \sum_k \frac{d\widehat W_k}{dA} \frac{\partial \Phi}{\partial
  \widehat W_k}, \qquad \frac{d\widehat W_k}{dA} = \frac{dW_k}{dA} \left(I - \eta_s \nabla^2_{W_k W_k} L_s\right)
  - \eta_s \frac{dW_t}{dA} \nabla^2_{W_t W_k} L_s - \eta_s \nabla^2_{A W_k} L_s.$$

Corrected: eq. 13 is a step along the loss, here along its gradient; eq. 23 differentiates $\nabla_A L$ where $L$ is
meant. Added: the term $dW_k / dA$. In the print every round has its own weights, so that this term is zero; here a
round starts from the weights of the round before. With one slot for every task and round the equations are those of
the print. A head may be a slot of its own, whose teacher is its encoder (eqs. 12, 14, 16, 18 and 24).

The matrices are never formed: $\partial\Phi / \partial\widehat W$ is multiplied from the last stage to the first.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from nearkin.core.errors import MismatchError, require
from nearkin.search.methods.darts.architecture_step import Tensors, loss_and_gradient
from nearkin.search.supernet.fused.fused_convolution import fixed_weights

StageLoss: TypeAlias = Callable[[Tensors, Tensors | None, Tensors], Tensor]
"""(weights of the student, weights of the teacher, architecture) → a scalar; the same for the same arguments."""

ValidationLoss: TypeAlias = Callable[[Sequence[Tensors], Tensors], Tensor]
"""(weights of all slots, architecture) → a scalar; the same for the same arguments."""

Slots: TypeAlias = Sequence[Mapping[str, Tensor]]
"""Weights by name for every slot: a task, or a task in a round."""

Drifts: TypeAlias = Sequence[Mapping[str, Tensor] | None]
"""For every slot the part of a step that does not depend on the architecture; None for 0."""


@dataclass(frozen=True)
class Stage:
    """One step of the weights of a slot.

    Attributes:
        student: number of the slot whose weights are replaced.
        teacher: number of the slot whose weights the loss reads as they are before this stage; None for none.
        loss: the training loss, with the transfer loss if there is a teacher.
        rate: learning rate, 0 or more.
    """

    student: int
    teacher: int | None
    loss: StageLoss
    rate: float

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.rate) and self.rate >= 0,
            f"the learning rate of a stage must be 0 or more and finite, got {self.rate}",
        )


class ChainGradient(NamedTuple):
    """Result of a pass: the validation loss, its gradient, and the weights of all slots after the last stage."""

    loss: float
    gradients: Tensors
    weights: list[Tensors]


def first_order(
    validation: ValidationLoss, weights: Slots, architecture: Mapping[str, Tensor]
) -> tuple[float, Tensors]:
    r"""The validation loss and $\partial \Phi / \partial A$ at the given weights.

    >>> validation = lambda slots, a: sum(slot["w"] for slot in slots) * a["a"].square()
    >>> first_order(validation, [{"w": torch.tensor(1.0)}, {"w": torch.tensor(2.0)}], {"a": torch.tensor(2.0)})
    (12.0, {'a': tensor(12.)})
    """
    fixed = [_detached(slot) for slot in weights]
    return loss_and_gradient(lambda _, free: validation(fixed, free), {}, architecture)


def chain_gradient(
    stages: Sequence[Stage],
    validation: ValidationLoss,
    weights: Slots,
    architecture: Mapping[str, Tensor],
    *,
    drift: Drifts | None = None,
    checkpoint: bool = False,
) -> tuple[float, Tensors]:
    r"""The validation loss after all stages and its exact gradient $d\Phi / dA$.

    Args:
        stages: the stages in order.
        validation: $\Phi$.
        weights: weights of all slots before the first stage; they are not changed.
        architecture: $A$.
        drift: $u$ of every slot, the same in all its stages; None for 0.
        checkpoint: whether to keep only the weights before each stage and to compute each stage a second time, so that
            memory for graphs does not grow with the number of stages.

    >>> step = Stage(0, None, lambda w, _, a: (w["w"] * a["a"]).sum(), 0.5)
    >>> validation = lambda slots, a: slots[0]["w"].square()  # (w - a/2)²
    >>> chain_gradient([step], validation, [{"w": torch.tensor(3.0)}], {"a": torch.tensor(2.0)})
    (4.0, {'a': tensor(-2.)})
    """
    result = run_chain(stages, validation, weights, architecture, drift=drift, checkpoint=checkpoint)
    return result.loss, result.gradients


def run_chain(
    stages: Sequence[Stage],
    validation: ValidationLoss,
    weights: Slots,
    architecture: Mapping[str, Tensor],
    *,
    drift: Drifts | None = None,
    checkpoint: bool = False,
) -> ChainGradient:
    """As `chain_gradient`, and the weights after the last stage, so that no step is computed a second time."""
    _check(stages, weights, drift)
    run = _stage_by_stage if checkpoint else _one_graph
    return run(stages, validation, weights, architecture, drift or [None] * len(weights))


def _one_graph(
    stages: Sequence[Stage],
    validation: ValidationLoss,
    weights: Slots,
    architecture: Mapping[str, Tensor],
    drift: Drifts,
) -> ChainGradient:
    """All stages in one graph, which is differentiated once."""
    free, current = _leaves(architecture), [_detached(slot) for slot in weights]
    for stage in stages:
        student, teacher = current[stage.student], _teacher(stage, current)
        slopes = _slopes(stage, _inner_leaves(student), teacher, free, graph=stage.rate > 0)
        current[stage.student] = _stepped(stage, student, slopes, drift)
    loss, total, adjoints = _validation_gradients(stages, validation, current, free)
    outputs = [(current[slot][name], v) for slot, vector in adjoints.items() for name, v in vector.items()]
    earlier = [{before.student for before in stages[:number]} for number in range(len(stages))]
    fixed = all(slots.isdisjoint({stage.student, stage.teacher}) for stage, slots in zip(stages, earlier, strict=True))
    _add(total, _products(outputs, [free], fixed)[0])
    return ChainGradient(loss, total, [_detached(slot) for slot in current])


def _stage_by_stage(
    stages: Sequence[Stage],
    validation: ValidationLoss,
    weights: Slots,
    architecture: Mapping[str, Tensor],
    drift: Drifts,
) -> ChainGradient:
    """Only the weights before each stage are kept; from the last stage to the first, each has a graph of its own."""
    fixed, current, before = _detached(architecture), [_detached(slot) for slot in weights], []
    for stage in stages:
        student, teacher = current[stage.student], _teacher(stage, current)
        before.append((student, teacher))
        slopes = _slopes(stage, _leaves(student), teacher, fixed, graph=False)
        current[stage.student] = _stepped(stage, student, slopes, drift)
    loss, total, adjoints = _validation_gradients(stages, validation, current, _leaves(architecture))
    for number in reversed(range(len(stages))):
        stage, earlier = stages[number], {stage.student for stage in stages[:number]}
        if stage.rate > 0:
            _pull_back(stage, *before[number], _leaves(architecture), earlier, total, adjoints)
    return ChainGradient(loss, total, current)


def _pull_back(
    stage: Stage,
    student: Tensors,
    teacher: Tensors | None,
    free: Tensors,
    earlier: set[int],
    total: Tensors,
    adjoints: dict[int, Tensors],
) -> None:
    r"""Multiply by the derivatives of one stage.

    Args:
        stage: the stage.
        student: $W_k$ before the stage.
        teacher: $W_t$ before the stage.
        free: $A$.
        earlier: slots that earlier stages change; those of others do not depend on $A$.
        total: the gradient so far; $-\eta \nabla^2_{A W_k} L\, v$ is added.
        adjoints: $v = \partial\Phi / \partial\widehat W$ by slot, after the stage; it becomes that before the stage.
    """
    student = _leaves(student)
    moving = teacher is not None and stage.teacher in earlier
    teacher = _leaves(teacher) if teacher is not None and moving else teacher
    slopes = _slopes(stage, student, teacher, free, graph=True)
    outputs = [(slopes[name], -stage.rate * v) for name, v in adjoints[stage.student].items()]
    owners = [(total, free)]
    if stage.student in earlier:
        owners.append((adjoints[stage.student], student))
    if teacher is not None and stage.teacher is not None and moving:
        owners.append((adjoints[stage.teacher], teacher))
    products = _products(outputs, [inputs for _, inputs in owners], len(owners) == 1)
    for (sums, _), product in zip(owners, products, strict=True):
        _add(sums, product)


def _validation_gradients(
    stages: Sequence[Stage], validation: ValidationLoss, weights: Sequence[Tensors], architecture: Tensors
) -> tuple[float, Tensors, dict[int, Tensors]]:
    """The validation loss, its gradients in the architecture, and in the weights of every slot that has a stage."""
    slots = [_leaves(slot) for slot in weights]
    changed = sorted({stage.student for stage in stages})
    loss = validation(slots, architecture)
    direct, *vectors = _gradients(loss, [architecture, *(slots[slot] for slot in changed)])
    return float(loss.detach()), direct, dict(zip(changed, vectors, strict=True))


def _products(outputs: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensors], fixed: bool) -> list[Tensors]:
    """Gradients of the inner product of tensors and constant vectors; `fixed` if they need no gradients of kernels."""
    moving = [(value, vector) for value, vector in outputs if value.requires_grad]
    if not moving:
        return [{name: torch.zeros_like(value) for name, value in part.items()} for part in inputs]
    values, vectors = zip(*moving, strict=True)
    with fixed_weights() if fixed else nullcontext():
        return _gradients(values, inputs, vectors)


def _slopes(stage: Stage, student: Tensors, teacher: Tensors | None, architecture: Tensors, graph: bool) -> Tensors:
    r"""$\nabla_{W_k} L_s$ at a fixed teacher."""
    return _gradients(stage.loss(student, teacher, architecture), [student], graph=graph)[0]


def _stepped(stage: Stage, student: Tensors, slopes: Tensors, drift: Drifts) -> Tensors:
    """The weights of the student after the stage."""
    constant = drift[stage.student]
    return {name: value - stage.rate * (slopes[name] + (0 if constant is None else constant[name]))
            for name, value in student.items()}  # fmt: skip


def _teacher(stage: Stage, weights: Sequence[Tensors]) -> Tensors | None:
    return None if stage.teacher is None else weights[stage.teacher]


def _gradients(
    outputs: Tensor | Sequence[Tensor],
    inputs: Sequence[Tensors],
    vectors: Sequence[Tensor] | None = None,
    graph: bool = False,
) -> list[Tensors]:
    leaves = [value for part in inputs for value in part.values()]
    gradients = iter(torch.autograd.grad(outputs, leaves, vectors, create_graph=graph, materialize_grads=True))
    return [{name: next(gradients) for name in part} for part in inputs]


def _add(sums: Tensors, terms: Tensors) -> None:
    for name, value in terms.items():
        sums[name] = sums[name] + value


def _detached(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: value.detach() for name, value in tensors.items()}


def _leaves(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: value.detach().requires_grad_() for name, value in tensors.items()}


def _inner_leaves(tensors: Tensors) -> Tensors:
    """Copies for an inner gradient, which must not follow the path through a teacher that depends on the same weights.

    The copies share memory with the originals and pass on derivatives to them.
    """
    return {name: value.view_as(value) if value.requires_grad else value.detach().requires_grad_()
            for name, value in tensors.items()}  # fmt: skip


def _check(stages: Sequence[Stage], weights: Slots, drift: Drifts | None) -> None:
    """Raise if a stage names a slot without weights, or if drift and weights do not fit."""
    for slot in sorted({slot for stage in stages for slot in (stage.student, stage.teacher) if slot is not None}):
        require(0 <= slot < len(weights), f"a stage names slot {slot}, expected 0 to {len(weights) - 1}", MismatchError)
    if drift is None:
        return
    require(len(drift) == len(weights),
            f"got drift for {len(drift)} slots and weights for {len(weights)}, expected equally many",
            MismatchError)  # fmt: skip
    for number, (given, constant) in enumerate(zip(weights, drift, strict=True)):
        missing = [] if constant is None else sorted(set(given) - set(constant))
        require(not missing, f"the drift of slot {number} has no {', '.join(missing)}, expected all its weights",
                MismatchError)  # fmt: skip
