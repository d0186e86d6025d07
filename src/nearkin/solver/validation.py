"""Outputs of a contender for training samples that it did not learn from, by which the answer is selected.

Notation: M samples, C outputs, K target columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearkin.nets.evaluate import Scores
from nearkin.nets.forward_passes import in_passes
from nearkin.nets.functional import evaluation_mode
from nearkin.solver.quality import fitted_temperature
from nearkin.tasks.batches import ordered_batches
from nearkin.tasks.examples import Examples
from nearkin.tasks.likelihood import Gaussian, Likelihood
from nearkin.tasks.metrics import CONFIDENCE

FEWEST_FOR_TEMPERATURE = 20
SMALLEST = 1e-12  # probability
BATCH = 256

Margin = tuple[float, float, float]
"""A difference of validation scores, and both ends of its 95 % interval."""


@dataclass(frozen=True, eq=False)
class ValidationOutputs:
    """Outputs for held-out samples.

    Attributes:
        rows: positions in the training set `[M]`, rising.
        outputs: logits, or values in scaled units `[M, C]`.
        targets: classes `[M]`, or values in scaled units `[M, K]`.
        form: the likelihood.
    """

    rows: Tensor
    outputs: Tensor
    targets: Tensor
    form: Likelihood

    @property
    def classes(self) -> bool:
        """Whether targets are classes."""
        return not isinstance(self.form, Gaussian)

    @property
    def means(self) -> Tensor:
        """Logits `[M, C]`, or predicted values `[M, K]`."""
        return self.form.means(self.outputs) if isinstance(self.form, Gaussian) else self.outputs

    def on(self, rows: Tensor) -> "ValidationOutputs":
        """The outputs for some of its rows."""
        index = torch.searchsorted(self.rows, rows)
        return ValidationOutputs(rows, self.outputs[index], self.targets[index], self.form)

    def scores(self) -> Scores:
        """Metric and mean loss."""
        metric = self.form.score(self.form.tally(self.outputs, self.targets))
        return Scores(metric, float(self.form.loss(self.outputs, self.targets)), len(self.rows))

    def temperature(self) -> float:
        """Temperature with the largest likelihood; 1 for values and for few samples."""
        if not self.classes or len(self.rows) < FEWEST_FOR_TEMPERATURE:
            return 1.0
        return fitted_temperature(self.outputs, self.targets)

    def gains(self) -> Tensor:
        """One number for each sample `[M]` whose mean is the accuracy, or R² minus 1."""
        if self.classes:
            return (self.outputs.argmax(1) == self.targets).double()
        spread = (self.targets - self.targets.mean(0)).square().mean().clamp_min(1e-12)
        return -((self.means - self.targets).square().mean(1) / spread).double()

    def losses(self) -> Tensor:
        """Negative log-likelihood of every sample after calibration `[M]`; for values the squared error."""
        if self.classes:
            return self.form.nll(self.outputs.double() / self.temperature(), self.targets)
        return -self.gains()


def common_rows(first: ValidationOutputs, *others: ValidationOutputs) -> Tensor:
    """Rows that all of them have."""
    rows = first.rows
    for other in others:
        rows = rows[torch.isin(rows, other.rows)]
    return rows


def difference(first: Tensor, second: Tensor) -> Margin:
    """Mean of `first - second` over samples, with its 95 % interval."""
    gap = (first - second).double()
    half = CONFIDENCE * float(gap.std()) / len(gap) ** 0.5 if len(gap) > 1 else 0.0
    mean = float(gap.mean()) if len(gap) else 0.0
    return mean, mean - half, mean + half


def lead(first: ValidationOutputs, second: ValidationOutputs) -> Margin:
    """How far the metric of the first is above that of the second on the samples that both have."""
    rows = common_rows(first, second)
    return difference(first.on(rows).gains(), second.on(rows).gains())


def merged(parts: Sequence[ValidationOutputs]) -> ValidationOutputs:
    """Outputs of an average of models: for each sample, the average over the models that did not learn from it."""
    if len(parts) == 1:
        return parts[0]
    rows = torch.cat([part.rows for part in parts]).unique()
    outputs = torch.zeros(len(rows), parts[0].outputs.shape[1], dtype=torch.float64)
    targets = torch.zeros(len(rows), *parts[0].targets.shape[1:], dtype=parts[0].targets.dtype)
    counts = torch.zeros(len(rows), 1, dtype=torch.float64)
    for part in parts:
        index = torch.searchsorted(rows, part.rows)
        outputs[index] += part.outputs.double().softmax(1) if part.classes else part.outputs.double()
        targets[index] = part.targets
        counts[index] += 1
    mean = outputs / counts
    return ValidationOutputs(
        rows, (mean.clamp_min(SMALLEST).log() if parts[0].classes else mean).float(), targets, parts[0].form
    )


def validation_outputs(model: nn.Module, examples: Examples, rows: Tensor, form: Likelihood) -> ValidationOutputs:
    """Outputs of a model for the validation examples at these rows of the training set."""
    outputs, targets = [], []
    with evaluation_mode(model), torch.inference_mode():
        for x, y in ordered_batches(examples, BATCH):
            outputs.append(in_passes(model, x, model).float())
            targets.append(y)
    return ValidationOutputs(rows, torch.cat(outputs).clone(), torch.cat(targets), form)
