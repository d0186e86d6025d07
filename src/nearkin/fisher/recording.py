"""Record the operations of forward-mode differentiation on tangents, and replay them with other tangents.

Forward mode computes the network and its tangent together. At fixed weights the network's values are always the same,
so the operations that read a tangent are recorded once, with the activations they read as constants. Replaying them
with other tangents gives other products Jv at the cost of the tangent alone. `torch.func.linearize` does the same by
symbolic tracing, which takes seconds; this takes one pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True, eq=False)
class RecordedOperation:
    """One operation on tangents: its arguments are slots, or constants where the slot is None."""

    operation: Any
    slots: list[int | None]
    constants: list[Any]
    form: TreeSpec
    results: list[int]


class Recording(TorchDispatchMode):
    """Records every operation that reads a tangent while forward-mode differentiation runs.

    Args:
        tangents: the first tangents, of the weights; they take the first slots.
    """

    def __init__(self, tangents: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.slots: Any = WeakTensorKeyDictionary()
        self.steps: list[RecordedOperation] = []
        self.num_slots = 0
        self.given = {tangent.untyped_storage().data_ptr() for tangent in tangents}
        self.playable = True
        for tangent in tangents:
            self._slot(tangent)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, because torch would import its compiler in order to skip it, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation; record it if one of its arguments is a tangent."""
        kwargs = kwargs or {}
        flat, form = tree_flatten((args, kwargs))
        slots = [self.slots.get(value) if isinstance(value, Tensor) else None for value in flat]
        known = any(slot is not None for slot in slots)
        if known and func._schema.is_mutable:
            self.playable &= all(self._own(value) for value in _written(func, args, kwargs))
        outcome = func(*args, **kwargs)
        if known:
            constants = [value if slot is None else None for value, slot in zip(flat, slots, strict=True)]
            results = [self._slot(value) for value in tree_leaves(outcome)]
            self.steps.append(RecordedOperation(func, slots, constants, form, results))
        return outcome

    def playback(self, tangent: Tensor) -> Callable[[list[Tensor]], Tensor] | None:
        """A function from tangents of the weights to this tangent; None if it cannot be replayed.

        >>> from torch.autograd import forward_ad
        >>> w, v = torch.tensor([3.0]), torch.tensor([1.0])
        >>> recording = Recording([v])
        >>> with forward_ad.dual_level(), recording:
        ...     tangent = forward_ad.unpack_dual(forward_ad.make_dual(w, v) ** 2).tangent
        >>> play = recording.playback(tangent)
        >>> play([torch.tensor([2.0])])
        tensor([12.])
        """
        end = self.slots.get(tangent)
        if end is None or not self.playable:
            return None
        steps = _needed(self.steps, end)
        last_uses = _last_uses(steps, end)

        @torch.no_grad()
        def play(tangents: list[Tensor]) -> Tensor:
            values: dict[int, Any] = dict(enumerate(tangents))
            for step, unused in zip(steps, last_uses, strict=True):
                pairs = zip(step.slots, step.constants, strict=True)
                flat = [value if slot is None else values[slot] for slot, value in pairs]
                args, kwargs = tree_unflatten(flat, step.form)
                values.update(zip(step.results, tree_leaves(step.operation(*args, **kwargs)), strict=True))
                for slot in unused:
                    del values[slot]
            result: Tensor = values[end]
            return result

        return play

    def _slot(self, value: Any) -> int:
        """The slot of a value; a new slot for a new tensor and for any other object."""
        number: int | None = self.slots.get(value) if isinstance(value, Tensor) else None
        if number is None:
            number, self.num_slots = self.num_slots, self.num_slots + 1
            if isinstance(value, Tensor):
                self.slots[value] = number
        return number

    def _own(self, value: Tensor) -> bool:
        """Whether a tensor that is changed in place is the result of a recorded step, which a replay creates again."""
        return value in self.slots and value.untyped_storage().data_ptr() not in self.given


def _written(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Arguments that an operation changes."""
    named = {argument.name: value for argument, value in zip(operation._schema.arguments, args, strict=False)} | kwargs
    changed = {argument.name for argument in operation._schema.arguments if argument.is_write}
    return [leaf for name in changed & set(named) for leaf in tree_leaves(named[name]) if isinstance(leaf, Tensor)]


def _needed(steps: list[RecordedOperation], end: int) -> list[RecordedOperation]:
    """The steps that the last slot depends on, and all steps that change a tensor in place."""
    slots, needed = {end}, []
    for step in reversed(steps):
        if step.operation._schema.is_mutable or not slots.isdisjoint(step.results):
            needed.append(step)
            slots.update(slot for slot in step.slots if slot is not None)
    return needed[::-1]


def _last_uses(steps: list[RecordedOperation], end: int) -> list[list[int]]:
    """For every step the slots that are not read after it."""
    last = {slot: number for number, step in enumerate(steps) for slot in (*step.slots, *step.results)}
    unused: list[list[int]] = [[] for _ in steps]
    for slot, number in last.items():
        if slot is not None and slot != end:
            unused[number].append(slot)
    return unused
