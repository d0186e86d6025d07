"""Arguments of `zoo.adopt` as Python callers give them: checked, and converted where that is plain."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nearkin.core.errors import OptionError, require
from nearkin.nets.weight_files import HALF
from nearkin.tasks.task import Task


class StateDict(nn.Module):
    """Weights by name in the form of a module."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._tensors = {
            name: value.detach().float() if value.dtype in HALF else value.detach() for name, value in tensors.items()
        }

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        """The weights."""
        return dict(self._tensors)


def model_argument(model: object) -> nn.Module | str:
    """The model: a module, or the text of a network string or of a folder's path."""
    if isinstance(model, nn.Module | str):
        return model
    if isinstance(model, Path):
        return str(model)
    if isinstance(model, type):
        raise OptionError(f"the model is the class {model.__name__}, expected a module; give an instance")
    if isinstance(model, Mapping):
        raise OptionError(
            "the model is a state_dict, expected a module or a network string; give that, and this as weights=…"
        )
    raise OptionError(f"the model is {_shown(model)}, expected a module, a network string or the path of a folder")


def weights_argument(weights: object) -> str | Path | nn.Module | None:
    """The weights: a path, a module, or nothing; a state_dict in the form of a module."""
    if isinstance(weights, Mapping):
        tensors = bool(weights) and all(isinstance(name, str) for name in weights)
        require(
            tensors and all(isinstance(value, Tensor) for value in weights.values()),
            "the weights are a dictionary with other values than tensors by name; give model.state_dict()",
        )
        return StateDict(weights)
    if weights is None or isinstance(weights, str | Path | nn.Module):
        return weights
    raise OptionError(f"the weights are {_shown(weights)}, expected a path, a module or a state_dict")


def output_argument(output: object) -> str:
    """Name or position of an output as text."""
    if isinstance(output, str):
        return output
    require(type(output) is int and output >= 0, f"the output is {_shown(output)}, expected a name or a position")
    return str(output)


def task_argument(task: object) -> Task | None:
    """The task, or nothing."""
    if task is None or isinstance(task, Task):
        return task
    raise OptionError(f"the task is {_shown(task)}, expected a task, or the name of one in the zoo")


def require_texts(**values: object) -> None:
    """Refuse other values than text."""
    for name, value in values.items():
        require(isinstance(value, str), f"the {name} is {_shown(value)}, expected text")


def _shown(value: object) -> str:
    return f"{str(value)[:40]!r} ({type(value).__name__})"
