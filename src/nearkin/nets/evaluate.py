"""Metric and loss of a network on examples."""

from dataclasses import dataclass

import torch
from torch import nn

from nearkin.nets.forward_passes import in_passes
from nearkin.nets.functional import evaluation_mode
from nearkin.tasks.batches import ordered_batches
from nearkin.tasks.examples import Examples
from nearkin.tasks.likelihood import Likelihood


@dataclass(frozen=True)
class Scores:
    """Metric (accuracy or R²; 1 is best), mean loss, and number of samples."""

    metric: float
    loss: float
    count: int

    def to_dict(self) -> dict[str, float | int]:
        """The scores as plain JSON values."""
        return {"metric": self.metric, "loss": self.loss, "count": self.count}


def evaluate(
    model: nn.Module, examples: Examples, form: Likelihood, *, batch_size: int = 256, device: torch.device | None = None
) -> Scores:
    """Metric and loss of a model on examples, in evaluation mode; the model's own mode is restored.

    >>> from nearkin.tasks.task import Task
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
    >>> toy = Task.from_arrays("toy", x, x.argmax(1), x, x.argmax(1), standardise=False)
    >>> evaluate(nn.Identity(), toy.test, toy.form).metric
    1.0
    """
    tally, loss = torch.zeros((), dtype=torch.float64), 0.0
    with evaluation_mode(model), torch.inference_mode():
        for x, y in ordered_batches(examples, batch_size):
            x, y = x.to(device), y.to(device)  # None leaves them where they are
            outputs = in_passes(model, x, model).float()
            tally = tally + form.tally(outputs, y)
            loss += form.loss(outputs, y).item() * len(y)
    return Scores(form.score(tally), loss / len(examples), len(examples))
