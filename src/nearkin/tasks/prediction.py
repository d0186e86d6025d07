"""Predictions of a model, in the units of the data."""

from dataclasses import dataclass

from torch import Tensor

from nearkin.core.errors import MismatchError, require


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions for N inputs.

    Attributes:
        mean: class scores `[N, C]`, or values `[N, K]` in the units of the data.
        variance: variance of the mean, of the same shape; None if the model has none.
        probabilities: class probabilities `[N, C]`; None for values.
        classes: names of the classes, or of the columns of values.

    >>> import torch
    >>> answer = Prediction(torch.tensor([[0.0, 1.4]]), probabilities=torch.tensor([[0.2, 0.8]]), classes=("no", "yes"))
    >>> answer.names, len(answer)
    (['yes'], 1)
    """

    mean: Tensor
    variance: Tensor | None = None
    probabilities: Tensor | None = None
    classes: tuple[str, ...] = ()

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
