"""Weights of training samples: a sample of weight 2 counts as two samples in every loss.

Weights are scaled to mean 1, so that they change the balance of the samples and not the strength of regularisation.
Class weights are turned into weights of samples in one place, `class_weights`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError, OptionError, require
from nearkin.core.numbers import real_number
from nearkin.tasks.examples import Examples

BALANCED = "balanced"
ClassWeight: TypeAlias = str | Mapping[str, float]
"""`balanced`, or a weight for every named class (default of a class: 1)."""


def read_weights(name: str, values: Any, count: int) -> Tensor:
    """Weights `[N]` of `count` samples as float32: finite, 0 or more, and not all 0.

    >>> read_weights("toy", [1, 3], 2)
    tensor([1., 3.])
    """
    try:
        weights = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: sample weights must be numbers ({error}); convert them") from error
    shape = list(weights.shape)
    require(shape == [count], f"{name}: got sample weights of shape {shape}, expected [{count}]; give one per sample",
            DataError)  # fmt: skip
    bad = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
    if len(bad):
        raise DataError(
            f"{name}: the weight of sample {bad[0]} is {weights[bad[0]]:g}, expected a number of 0 or more; fix "
            f"{len(bad)} of {count} weights"
        )
    require(bool((weights > 0).any()), f"{name}: all sample weights are 0, expected some above 0; fix them", DataError)
    return torch.from_numpy(weights).to(torch.float32)


def with_weights(examples: Examples, weights: Tensor | None) -> Examples:
    """Examples with these weights, scaled to mean 1; samples of weight 0 are left out.

    >>> from nearkin.tasks.rows import Values
    >>> toy = Examples(Values(torch.zeros(3, 1)), Values(torch.arange(3)))
    >>> weighted = with_weights(toy, torch.tensor([3.0, 0.0, 1.0]))
    >>> weighted.labels(), weighted.weights
    (tensor([0, 2]), tensor([1.5000, 0.5000]))
    """
    if weights is None:
        return replace(examples, weights=None)
    kept = torch.nonzero(weights > 0).flatten()
    chosen = examples if len(kept) == len(weights) else examples.chosen(kept)
    return replace(chosen, weights=weights[kept] / weights[kept].mean())


def class_weights(name: str, labels: Tensor, classes: Sequence[str], weight: ClassWeight) -> Tensor:
    r"""Weights `[N]` of samples by their class; balanced is $N / (C N_c)$, so that all classes have the same sum.

    >>> class_weights("toy", torch.tensor([0, 0, 0, 1]), ("no", "yes"), "balanced")
    tensor([0.6667, 0.6667, 0.6667, 2.0000])
    >>> class_weights("toy", torch.tensor([0, 0, 0, 1]), ("no", "yes"), {"yes": 5})
    tensor([1., 1., 1., 5.])
    """
    if isinstance(weight, str):
        sizes = torch.bincount(labels, minlength=len(classes)).clamp_min(1)
        return (len(labels) / (len(classes) * sizes))[labels]
    unknown = [text for text in weight if text not in classes]
    require(
        not unknown,
        f"{name}: class_weight names {', '.join(map(repr, unknown))}, the classes are {', '.join(classes[:12])}; "
        f"use their names",
    )
    return torch.tensor([float(weight.get(text, 1.0)) for text in classes])[labels]


def checked_class_weight(value: Any) -> ClassWeight | None:
    """`balanced`, text such as `yes=5,no=1`, or a mapping of weights above 0; None stays None.

    >>> checked_class_weight("yes=5,no=1"), checked_class_weight("balanced")
    ({'yes': 5.0, 'no': 1.0}, 'balanced')
    """
    if value is None or value == BALANCED:
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        pairs = [pair.rpartition("=")[::2] for pair in value.split(",")]
        value = {name.strip(): real_number(number) for name, number in pairs}
    fits = (
        isinstance(value, Mapping)
        and value
        and all(isinstance(number, int | float) and 0 < number < float("inf") for number in value.values())
    )
    if not fits:
        raise OptionError(
            f"class_weight must be balanced, or weights above 0 by class such as yes=5,no=1, got {value!r}"
        )
    return {str(name): float(number) for name, number in value.items()}
