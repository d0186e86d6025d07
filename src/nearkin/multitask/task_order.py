"""Order in which tasks take turns: near tasks follow each other.

Every task learns from the one before it, and the first from the last, so an order is a loop. The best loop has the
smallest sum of distances from each task to the next.
"""

import itertools
from collections.abc import Sequence

from torch import Tensor

from nearkin.core.errors import MismatchError, require

EXACT = 8  # largest number of tasks for which all loops are compared


def loop_length(distances: Tensor, order: Sequence[int]) -> float:
    """Sum of the distances from each task to the next, and from the last to the first.

    >>> import torch
    >>> loop_length(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), [0, 1])
    3.0
    """
    return sum(float(distances[a, b]) for a, b in zip(order, [*order[1:], order[0]], strict=True))


def order_by_distance(distances: Tensor) -> list[int]:
    """Order of the tasks in the shortest loop, from task 0; beyond eight tasks, the best loop of greedy insertion.

    Args:
        distances: `[K, K]`, from the task in the row to the one in the column; pairs that could not be compared (NaN)
            count as the largest distance.

    >>> import torch
    >>> order_by_distance(torch.tensor([[0.0, 9.0, 1.0, 2.0], [9.0, 0, 1, 1], [1, 1, 0, 9], [1, 1, 9, 0]]))
    [0, 2, 1, 3]
    """
    require(
        distances.dim() == 2 and distances.shape[0] == distances.shape[1] >= 1,
        f"distances have shape {tuple(distances.shape)}, expected a square matrix",
        MismatchError,
    )
    known = distances.double()
    largest = float(known.nan_to_num(0.0).max())
    known = known.nan_to_num(largest)
    others = range(1, len(known))
    if len(known) <= EXACT:
        loops: Sequence[list[int]] = [[0, *rest] for rest in itertools.permutations(others)]
        return min(loops, key=lambda order: loop_length(known, order))
    order = [0]
    for task in others:
        places = [[*order[:place], task, *order[place:]] for place in range(1, len(order) + 1)]
        order = min(places, key=lambda loop: loop_length(known, loop))
    return order
