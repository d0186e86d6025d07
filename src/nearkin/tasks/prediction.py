"""Prediction: what a model says of some inputs, in the units of the data."""

from dataclasses import dataclass

from torch import Tensor

from nearkin.core.errors import MismatchError, require


@dataclass(frozen=True, eq=False)
class Prediction:
    """Answers to N inputs.

    Attributes:
        mean: class scores `[N, C]`, or values `[N, K]` in the units of the data.
        variance: of the mean, of the same shape; None where the model does not say.
        probabilities: of the classes `[N, C]`; None for values.
        classes: names of the classes, or of the columns of values.

    >>> import torch
    >>> said = Prediction(torch.tensor([[0.0, 1.4]]), probabilities=torch.tensor([[0.2, 0.8]]), classes=("no", "yes"))
    >>> said.names, len(said)
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
        """Numbers of the classes with the highest scores `[N]`; probabilities can tie by rounding, scores do not."""
        require(self.probabilities is not None, "values have no class; read `mean`", MismatchError)
        return self.mean.argmax(1)

    @property
    def names(self) -> list[str]:
        """Names of the most probable classes."""
        return [self.classes[place] for place in self.labels.tolist()]
