"""Small types that every room speaks."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
"""Weights by the names of `model.named_parameters()`."""

Buffers: TypeAlias = dict[str, Tensor]
"""Running statistics and the like, by the names of `model.named_buffers()`."""

Facts: TypeAlias = Mapping[str, Any]
"""Plain JSON values by name."""
