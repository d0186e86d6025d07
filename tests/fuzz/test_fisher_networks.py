"""Fisher diagonals, per-sample gradients and tangent kernels of generated networks against a loop over samples."""

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from fuzz.mutation import INPUTS, SEED, FuzzCount
from fuzz.networks import Case, generated, reference_diagonal, reference_kernel, sample_gradients
from nearkin.fisher import diagonal, tangent_kernel
from nearkin.fisher.scores import sample_gradients as measured_gradients
from nearkin.tasks.likelihood import likelihood

NETWORKS = 320 * INPUTS // 2000
TOLERANCE = 1e-6


ROUNDING = 1e-7  # of the largest gradient: a bias before a norm has a zero gradient, of which rounding is left


def distance(found: Tensor, truth: Tensor, largest: float) -> float:
    """Relative to the truth, or to the largest tensor of the network's gradients where the truth is zero."""
    return float((found - truth).norm() / (truth.norm() + ROUNDING * largest + 1e-9))


def errors(case: Case) -> Iterator[tuple[str, float]]:
    """What was measured, and how far it is from the definition."""
    options = {"likelihood": case.likelihood, "batch_size": case.batch_size}
    for labels in ("observed", "expected"):
        truth = reference_diagonal(case, labels)
        found = diagonal(case.model, case.x, case.y, labels=labels, **options)
        largest = max(float(value.norm()) for value in truth.values())
        for name, value in truth.items():
            yield f"{labels} diagonal of {name}", distance(found.values[name], value, largest)
    slope = likelihood(case.likelihood).slope
    rows = sample_gradients(case, lambda outputs, number: iter([slope(outputs, case.y[number : number + 1])]))
    blocks = list(measured_gradients(case.model, case.x, case.y, **options))
    truths = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    largest = max(float(value.norm()) for value in truths.values())
    for name, value in truths.items():
        found_rows = torch.cat([block[name] for block in blocks])
        yield f"sample gradients of {name}", distance(found_rows, value, largest)
    kernel = tangent_kernel(case.model, case.x, batch_size=case.batch_size)
    yield "tangent kernel", distance(kernel, reference_kernel(case), 0.0)


@pytest.mark.slow
def test_generated_networks(count_inputs: Callable[[FuzzCount], FuzzCount]) -> None:
    for number in range(NETWORKS):
        case = generated(random.Random(f"fisher/{SEED}/{number}"))
        for what, error in errors(case):
            assert error <= TOLERANCE, f"network {number} of seed {SEED}, {case}: {what} is wrong by {error:.2g}"
    count_inputs(FuzzCount("fisher networks", NETWORKS, NETWORKS, 0))
