"""A limit on the size of nearkin's own networks, checked before memory is allocated.

Sizes are options of network strings and genotypes, which are also read from files: a file with `mlp?hidden=999999999`
must cause an error and not use up the memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from nearkin.core.errors import OptionError, require

MAX_NUMBERS = 2**29
"""Maximum number of values in the parameters and buffers of a network: 2 GiB in single precision."""

MAX_LAYERS = 20_000
"""Maximum number of modules in a network."""


def require_numbers(count: int, subject: str) -> None:
    """Refuse a network with more values than the limit.

    >>> require_numbers(2**40, "mlp?hidden=999999999")
    Traceback (most recent call last):
    nearkin.core.errors.OptionError: mlp?hidden=999999999 has more than 536,870,912 numbers, the limit of nearkin's \
own networks; make it smaller
    """
    require(
        count <= MAX_NUMBERS,
        f"{subject} has more than {MAX_NUMBERS:,} numbers, the limit of nearkin's own networks; make it smaller",
    )


def require_size(subject: str, make: Callable[[], nn.Module]) -> None:
    """Create a network on the meta device, which uses no memory, and stop when it exceeds a limit."""
    with _count_registrations(subject), torch.device("meta"), _WithoutInitialisation():
        make()


class _WithoutInitialisation(TorchFunctionMode):
    """Skip random initialisation: the meta device has no values, and the first random draw takes a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "").endswith(("normal_", "uniform_")):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def _count_registrations(subject: str) -> Iterator[None]:
    """Count the parameters, buffers and submodules that modules on the meta device register."""
    numbers = layers = 0

    def count_numbers(module: nn.Module, name: str, value: Tensor | None) -> None:
        nonlocal numbers
        if value is not None and value.is_meta:
            numbers += value.numel()
            require_numbers(numbers, subject)

    def count_layers(module: nn.Module, name: str, child: nn.Module | None) -> None:
        nonlocal layers
        layers += 1
        if layers > MAX_LAYERS:
            raise OptionError(f"{subject} has more than {MAX_LAYERS:,} layers; make it smaller")

    with ExitStack() as stack:
        stack.enter_context(hooks.register_module_parameter_registration_hook(count_numbers))
        stack.enter_context(hooks.register_module_buffer_registration_hook(count_numbers))
        stack.enter_context(hooks.register_module_module_registration_hook(count_layers))
        yield
