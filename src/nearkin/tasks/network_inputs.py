"""How the inputs of a task become those of a network: size and channels of images, fixed scaling, tokens of texts.

A network that a zoo trained scales its inputs by the statistics of each task. A network that was trained elsewhere has
preprocessing of its own, which is applied to every task. A network with named inputs reads tasks with the same ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict

import torch

from nearkin.core.errors import MismatchError, require
from nearkin.core.plain import typed
from nearkin.tasks.examples import Scaling
from nearkin.tasks.input_fields import InputField
from nearkin.tasks.named_inputs import described_fields, require_fields, stored_fields
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.task import Task
from nearkin.tasks.texts import Tokenizer, is_text, require_no_text, tokenised

NETWORK_INPUTS = "network_inputs"
"""Key among the facts of a task under which a network has preprocessing of its own."""


def needs_adopted_network(task: Task) -> bool:
    """Whether only adopted networks read the inputs of a task: texts, and named inputs."""
    return is_text(task) or bool(stored_fields(task.preprocessing))


def require_plain_inputs(task: Task, what: str) -> None:
    """Refuse a task of texts or of named inputs for a network or model that reads one tensor of numbers."""
    require_no_text(task, what)
    fields = stored_fields(task.preprocessing)
    require(
        not fields,
        f"'{task.name}' has {described_fields(fields)}, {what} reads one tensor; use a network that takes these inputs "
        f"by name (zoo.adopt)",
        MismatchError,
    )


class InputFacts(TypedDict):
    """The keys of `NetworkInputs.facts`."""

    shape: list[int]
    mean: list[float] | None
    std: list[float] | None
    tokenizer: NotRequired[dict[str, Any]]


@dataclass(frozen=True)
class NetworkInputs:
    """Inputs of a network.

    Attributes:
        shape: of one input.
        mean: subtracted from each channel or column, in units of the raw inputs (images in [0, 1]); None if the task's
            own scaling is used.
        std: by which they are then divided.
        tokenizer: of a network that reads texts.
        fields: its named inputs, empty if it reads one tensor; None if any named inputs of that shape are read.
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    tokenizer: Tokenizer | None = None
    fields: tuple[InputField, ...] | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "NetworkInputs":
        """Inputs of a stored network, from the facts of its task: its own ones, or those of the task."""
        stored = facts.get(NETWORK_INPUTS)
        fields = stored_fields(facts.get("preprocessing", {}))
        if stored is None:
            return cls(tuple(facts["input_shape"]), fields=fields)
        known = typed(InputFacts, stored, "the inputs of the network")
        mean, std = (None if values is None else tuple(values) for values in (known["mean"], known["std"]))
        tokenizer = known.get("tokenizer")
        reader = None if tokenizer is None else Tokenizer.from_facts(tokenizer)
        return cls(tuple(known["shape"]), mean, std, reader, fields)

    def facts(self) -> dict[str, Any]:
        """The inputs as JSON values."""
        tokenizer = {} if self.tokenizer is None else {"tokenizer": self.tokenizer.facts()}
        return {
            "shape": list(self.shape), "mean": None if self.mean is None else list(self.mean),
            "std": None if self.std is None else list(self.std), **tokenizer,
        }  # fmt: skip

    def __call__(self, task: Task) -> Task:
        """The task as the network reads it.

        >>> task = Task.from_arrays("noise", torch.rand(10, 3, 8, 8), torch.arange(10) % 2)
        >>> seen = NetworkInputs((3, 4, 4), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))(task)
        >>> seen.input_shape, seen.train.scaling.mean.tolist()
        ((3, 4, 4), [0.5, 0.5, 0.5])
        """
        if self.tokenizer is not None:
            return tokenised(task, self.tokenizer)
        require_no_text(task, "the network, which has no tokenizer,")
        if self.fields is not None:
            require_fields(stored_fields(task.preprocessing), self.fields, task.name)
        if self.mean is None or self.std is None:
            return fitted_to(task, self.shape)
        unscaled = _with_scaling(task, Scaling())  # so that statistics of converted images are not computed
        return _with_scaling(fitted_to(unscaled, self.shape), Scaling(torch.tensor(self.mean), torch.tensor(self.std)))


def _with_scaling(task: Task, scaling: Scaling) -> Task:
    train, test = (replace(examples, scaling=scaling) for examples in (task.train, task.test))
    return replace(task, train=train, test=test)
