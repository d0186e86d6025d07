"""Select the answer of a run, and the members of an ensemble, by outputs for held-out samples."""

from collections.abc import Mapping

import torch
from torch import Tensor

from nearkin.solver.validation import SMALLEST, ValidationOutputs, common_rows, difference, lead
from nearkin.tasks.metrics import CONFIDENCE

ROUNDS = 20  # of the greedy selection of an ensemble
CANDIDATES = 6  # models that can be part of an ensemble: those with the lowest loss


def averaged(validation: Mapping[str, ValidationOutputs], weights: Mapping[str, float]) -> ValidationOutputs:
    """Outputs of a weighted average of calibrated models, on the samples that all of them have."""
    rows = common_rows(*(validation[name] for name in weights))
    parts = {name: validation[name].on(rows) for name in weights}
    first = next(iter(parts.values()))
    outputs = torch.stack(
        [weight * _calibrated(parts[name], validation[name]) for name, weight in weights.items()]
    ).sum(0)
    mean = outputs / sum(weights.values())
    return ValidationOutputs(rows, mean.clamp_min(SMALLEST).log() if first.classes else mean, first.targets, first.form)


def _calibrated(part: ValidationOutputs, whole: ValidationOutputs) -> Tensor:
    """Probabilities, or values, of a part of a model's outputs."""
    return (part.outputs / whole.temperature()).softmax(1) if part.classes else part.outputs


def greedy_weights(validation: Mapping[str, ValidationOutputs]) -> dict[str, float]:
    """Weights of an ensemble by greedy selection with replacement (Caruana et al. 2004).

    Starts with the model of the lowest loss and adds, again and again, the model that lowers the loss of the average
    most. Losses are those of calibrated models on the samples that all have.
    """
    rows = common_rows(*validation.values())
    if not len(rows):
        return {}
    losses = {name: float(item.on(rows).losses().mean()) for name, item in validation.items()}
    names = sorted(losses, key=lambda name: losses[name])[:CANDIDATES]
    parts = {name: _calibrated(validation[name].on(rows), validation[name]).double() for name in names}
    first = validation[names[0]].on(rows)

    def loss(mean: Tensor) -> float:
        if first.classes:
            return float(first.form.nll(mean.clamp_min(SMALLEST).log(), first.targets).mean())
        return float((ValidationOutputs(rows, mean, first.targets, first.form).means - first.targets).square().mean())

    counts, total, best = {names[0]: 1}, parts[names[0]], loss(parts[names[0]])
    for number in range(1, ROUNDS):
        tried = {name: loss((total + part) / (number + 1)) for name, part in parts.items()}
        name = min(tried, key=lambda name: tried[name])
        if tried[name] >= best:
            break
        counts[name], total, best = counts.get(name, 0) + 1, total + parts[name], tried[name]
    return {name: count / sum(counts.values()) for name, count in counts.items()}


def select_single(validation: Mapping[str, ValidationOutputs]) -> str:
    """The selected model: the lowest loss among those whose metric is within one standard error of the best metric.

    A metric of few samples is noisy, and a difference within one standard error says nothing; the loss of calibrated
    probabilities distinguishes models better.
    """
    scores = {name: (item.scores().metric, -float(item.losses().mean())) for name, item in validation.items()}
    best = max(scores, key=lambda name: scores[name])
    near = []
    for name, item in validation.items():
        mean, low, _ = lead(validation[best], item)
        if name == best or mean <= (mean - low) / CONFIDENCE:
            near.append(name)
    rows = common_rows(*(validation[name] for name in near))
    if not len(rows):
        return best
    return min(near, key=lambda name: float(validation[name].on(rows).losses().mean()))


def clearly_better(first: ValidationOutputs, second: ValidationOutputs) -> bool:
    """Whether the loss of the first is lower than that of the second by more than one standard error."""
    rows = common_rows(first, second)
    if not len(rows):
        return False
    mean, low, _ = difference(second.on(rows).losses(), first.on(rows).losses())
    return mean > (mean - low) / CONFIDENCE and mean > 0
