"""Detect networks in which the values of the inputs decide what is computed.

A network may branch on a value of its inputs, as in `if x.sum() > 0`, select samples by a mask, or reorder them. Then
its result for a sample alone may differ from the result in a batch, and formulas that hold for some samples may not
hold for others.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from nearkin.fisher.tape import Network, network_outputs

READS = frozenset(
    (
        "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__array__",
        "__contains__", "is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select", "unique",
        "unique_consecutive", "bincount", "take",
    )
)  # fmt: skip
"""Functions that return values to Python, or whose result has a shape that depends on values."""

AXES = {
    "sort": 1, "topk": 2, "kthvalue": 2, "index_select": 1, "gather": 1, "take_along_dim": 2, "scatter": 1,
    "scatter_add": 1, "scatter_reduce": 1, "index_add": 1, "index_copy": 1, "index_fill": 1,
}  # fmt: skip
"""Functions that move entries along an axis by value, and the position of the axis argument."""


def depends_on_values(network: Network, weights: Mapping[str, Tensor], x: Tensor) -> bool:
    """Whether the values of the inputs `[B, *input_shape]` decide which operations run, or the order of samples.

    >>> depends_on_values(lambda p, x: x.relu(), {}, torch.ones(2, 3))
    False
    >>> depends_on_values(lambda p, x: x.relu() if x.sum() > 0 else x, {}, torch.ones(2, 3))
    True
    """
    if isinstance(network, nn.Module) and any(isinstance(m, torch.jit.ScriptModule) for m in network.modules()):
        return True  # compiled code cannot be inspected
    x = x.detach()
    detector = _ReadDetector(x)
    with torch.no_grad(), detector:
        network_outputs(network, weights, x)
    return detector.detected


class _ReadDetector(TorchFunctionMode):
    """Detects functions that read values of tensors computed from the inputs."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.detected = False
        self._derived: dict[int, Tensor] = {}  # by storage; tensors are kept, so that their storage is not used again
        self._add(x)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function; check whether it reads values, and register its results."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        derived = any(self._has(value) for value in tree_leaves((args, kwargs)))
        if derived and self._reads(name, args, kwargs):
            self.detected = True
        result = func(*args, **kwargs)
        if derived:
            changed = args[:1] if name == "__setitem__" or name[-1:] == "_" != name[-2:-1] or name[:3] == "__i" else ()
            for value in tree_leaves((result, changed, kwargs.get("out"))):
                self._add(value)
        return result

    def _has(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.untyped_storage().data_ptr() in self._derived

    def _add(self, value: Any) -> None:
        if isinstance(value, Tensor) and value.numel() > 0:
            self._derived[value.untyped_storage().data_ptr()] = value

    def _reads(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether values decide which operations run, the shape of the result, or the order of samples."""
        name = name if name.endswith("__") else name.removesuffix("_")
        if name in READS or (name == "where" and len(args) + len(kwargs) == 1):
            return True
        if name in ("__getitem__", "__setitem__", "index_put"):
            index = args[1] if isinstance(args[1], tuple | list) else (args[1],)
            masks = [entry.dtype in (torch.bool, torch.uint8) for entry in index if self._has(entry)]
            if name == "__getitem__" and any(masks):
                return True
            return self._has(args[0]) and self._has(index[0]) and not masks[0]
        if name == "repeat_interleave":
            return len(args) + len(kwargs) == 1 or any(map(self._has, tree_leaves((args[1:], kwargs))))
        if name not in AXES or not isinstance(args[0], Tensor) or not self._has(args[0]):
            return False
        axis = kwargs.get("dim", args[AXES[name]] if len(args) > AXES[name] else -1)
        by_value = name in ("sort", "topk", "kthvalue") or any(map(self._has, tree_leaves((args[1:], kwargs))))
        return by_value and (axis is None or axis % max(1, args[0].dim()) == 0)
