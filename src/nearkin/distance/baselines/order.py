"""Random values and a random order, as the chance level for measures."""

from collections.abc import Iterable

import torch

from nearkin.core.rng import Streams, derived_seed


def random_value(*names: str) -> float:
    """A number in [0, 1) that depends on the names only.

    >>> random_value("a", "b") == random_value("a", "b") != random_value("b", "a")
    True
    """
    return derived_seed(0, "random value", *names) / 2**63


def random_order(names: Iterable[str], seed: int) -> list[str]:
    """Names in a random order that depends on the seed and on the set of names, not on their given order.

    Every measure must do better: the Spearman correlation of this order with any other is 0 in expectation.

    >>> random_order(["b", "a", "c"], 0) == random_order(["c", "a", "b"], 0)
    True
    >>> sorted(random_order(["b", "a", "c"], 1))
    ['a', 'b', 'c']
    """
    known = sorted(names)
    drawn = torch.randperm(len(known), generator=Streams(seed).at("order"))
    return [known[index] for index in drawn.tolist()]
