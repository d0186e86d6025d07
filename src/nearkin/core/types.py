"""Type aliases that all packages use."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
"""Weights by the names of `model.named_parameters()`."""

Buffers: TypeAlias = dict[str, Tensor]
"""Buffers, such as running statistics, by the names of `model.named_buffers()`."""

Facts: TypeAlias = Mapping[str, Any]
"""Plain JSON values by name."""
