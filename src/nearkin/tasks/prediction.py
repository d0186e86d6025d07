"""Predictions of a model, in the units of the data."""

from dataclasses import dataclass

from torch import Tensor

from nearkin.core.errors import MismatchError, require

ABSTAIN = "abstain"
"""Answer in place of a class whose probability is too low."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions for N inputs.

    Attributes:
        mean: class scores `[N, C]`, or values `[N, K]` in the units of the data.
        variance: variance of the mean, of the same shape; None if the model has none.
        probabilities: class probabilities `[N, C]`; None for values.
        classes: names of the classes, or of the columns of values.
        rows: names of the inputs, such as files; empty if they have none.
        interval: ends of 95 % intervals of the values, two tensors `[N, K]`; None for classes, and if unknown.
        notes: one line for each column of a table with cells that the model does not know.

    >>> import torch
    >>> answer = Prediction(torch.tensor([[0.0, 1.4]]), probabilities=torch.tensor([[0.2, 0.8]]), classes=("no", "yes"))
    >>> answer.names, len(answer), answer.abstaining(0.9)
    (['yes'], 1, ['abstain'])
    """

    mean: Tensor
    variance: Tensor | None = None
    probabilities: Tensor | None = None
    classes: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    interval: tuple[Tensor, Tensor] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def labels(self) -> Tensor:
        """Class numbers `[N]` of the highest scores, as probabilities can be equal after rounding."""
        require(self.probabilities is not None, "a prediction of values has no classes; use `mean`", MismatchError)
        return self.mean.argmax(1)

    @property
    def names(self) -> list[str]:
        """Names of the most probable classes."""
        return [self.classes[number] for number in self.labels.tolist()]

    def abstaining(self, threshold: float) -> list[str]:
        """Names of the most probable classes, and `abstain` where their probability is below the threshold."""
        require(
            0 <= threshold <= 1,
            f"got the threshold {threshold}, expected a probability from 0 to 1; choose one such as 0.8",
        )
        labels = self.labels
        assert self.probabilities is not None
        certain = self.probabilities.gather(1, labels[:, None])[:, 0] >= threshold
        return [name if sure else ABSTAIN for name, sure in zip(self.names, certain.tolist(), strict=True)]
