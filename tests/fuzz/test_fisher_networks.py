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


def distance(found: Tensor, truth: Tensor) -> float:
    """Relative to the truth, or absolute where that is zero."""
    return float((found - truth).norm() / (truth.norm() + 1e-9))


def errors(case: Case) -> Iterator[tuple[str, float]]:
    """What was measured, and how far it is from the definition."""
    options = {"likelihood": case.likelihood, "batch_size": case.batch_size}
    for labels in ("observed", "expected"):
        truth = reference_diagonal(case, labels)
        found = diagonal(case.model, case.x, case.y, labels=labels, **options)
        for name, value in truth.items():
            yield f"{labels} diagonal of {name}", distance(found.values[name], value)
    slope = likelihood(case.likelihood).slope
    rows = sample_gradients(case, lambda outputs, number: iter([slope(outputs, case.y[number : number + 1])]))
    blocks = list(measured_gradients(case.model, case.x, case.y, **options))
    for name in rows[0]:
        found_rows = torch.cat([block[name] for block in blocks])
        yield f"sample gradients of {name}", distance(found_rows, torch.stack([row[name] for row in rows]))
    kernel = tangent_kernel(case.model, case.x, batch_size=case.batch_size)
    yield "tangent kernel", distance(kernel, reference_kernel(case))


@pytest.mark.slow
def test_generated_networks(count_inputs: Callable[[FuzzCount], FuzzCount]) -> None:
    for number in range(NETWORKS):
        case = generated(random.Random(f"fisher/{SEED}/{number}"))
        for what, error in errors(case):
            assert error <= TOLERANCE, f"network {number} of seed {SEED}, {case}: {what} is wrong by {error:.2g}"
    count_inputs(FuzzCount("fisher networks", NETWORKS, NETWORKS, 0))
