r"""Samples in batches, and the vectors at the outputs that represent their labels.

A cotangent `c` `[B, *outputs]` is a vector at the outputs; the gradient of sample b is $J_b^\top c_b$. For observed or
sampled labels there is one cotangent per label, the gradient of the loss. For the exact expectation over the labels of
the model there are several, with $\sum_k c_k c_k^\top = \Lambda$.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from torch import Generator, Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.rng import Streams
from nearkin.tasks.batches import ordered_batches
from nearkin.tasks.examples import Examples
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.likelihood import likelihood as likelihood_named

LABELS = ("observed", "sampled", "expected")
MOST_FACTORS = 1000

Data: TypeAlias = Tensor | Examples | Iterable[tuple[Tensor, Tensor]]
Cotangents: TypeAlias = Callable[[Tensor, slice], Iterator[Tensor]]
"""From the outputs of a slice of a batch to the cotangents whose squared gradients add up to the Fisher information."""


class SampleOptions(TypedDict, total=False):
    """Keyword options of the functions that measure Fisher information: the fields of `Samples`."""

    likelihood: str
    labels: str
    batch_size: int
    num_samples: int
    seed: int


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples, and the labels over which the expectation is taken.

    Attributes:
        data: inputs `[N, *input_shape]` with `targets`, examples of a task, or any iterable of `(x, y)` batches.
        targets: labels, for `observed`; ignored for `sampled` and `expected`.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        labels: `observed`, `sampled` (from the model, `num_samples` times) or `expected` (exact).
        batch_size: samples in a batch, if the data is a tensor or examples.
        num_samples: labels drawn for each sample, for `sampled`.
        seed: seed of the drawn labels.

    >>> from torch import eye
    >>> [len(batch) for batch, _ in Samples(eye(2), None, "gaussian", "expected", batch_size=1).batches()]
    [1, 1]
    """

    data: Data
    targets: Tensor | None = None
    likelihood: str = "categorical"
    labels: str = "observed"
    batch_size: int = 128
    num_samples: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.labels in LABELS, f"labels must be one of {', '.join(LABELS)}, got {self.labels!r}")
        require(self.num_samples >= 1, f"num_samples must be 1 or more, got {self.num_samples}")
        require(self.batch_size >= 1, f"batch_size must be 1 or more, got {self.batch_size}")

    @property
    def draws(self) -> int:
        """Number of labels per sample, by which a sum over cotangents is divided."""
        return self.num_samples if self.labels == "sampled" else 1

    def batches(self) -> Iterator[tuple[Tensor, Cotangents]]:
        """Inputs of each batch, and the function that gives the cotangents; empty batches are left out."""
        form, rng = likelihood_named(self.likelihood), Streams(self.seed)["labels"]
        empty = True
        for x, y in self._pairs():
            if len(x) > 0:
                yield x, self._cotangents(form, y, rng)
                empty = False
        require(not empty, "there is no sample to measure on; the data is empty", DataError)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Batches of inputs and labels."""
        data, targets = self.data, self.targets
        if isinstance(data, Examples):
            yield from ordered_batches(data, self.batch_size)
        elif isinstance(data, Tensor):
            require(
                self.labels != "observed" or targets is not None,
                "labels='observed' needs targets, got none; give targets, or use labels='sampled' or 'expected'",
            )
            require(
                targets is None or len(targets) == len(data),
                f"{len(data)} inputs but {0 if targets is None else len(targets)} targets; give one target per input",
                DataError,
            )
            for block in sample_blocks(len(data), self.batch_size):
                yield data[block], None if targets is None else targets[block]
        else:
            yield from data

    def _cotangents(self, form: Likelihood, y: Tensor | None, rng: Generator) -> Cotangents:
        def slope(outputs: Tensor, labels: Tensor) -> Tensor:
            _require_labels(form, outputs, labels)
            return form.slope(outputs, labels)

        def cotangents(outputs: Tensor, block: slice) -> Iterator[Tensor]:
            if self.labels == "expected":
                yield from _factors(form, outputs)
            elif self.labels == "sampled":
                require(
                    bool(outputs.isfinite().all()),
                    "the network's outputs are NaN or infinite, so no label can be drawn; check its inputs and weights",
                    MismatchError,
                )
                for _ in range(self.num_samples):
                    yield slope(outputs, form.sample(outputs, rng))
            elif y is not None:
                yield slope(outputs, y[block])

        return cotangents


def _factors(form: Likelihood, outputs: Tensor) -> Iterator[Tensor]:
    size = outputs[0].numel()
    require(
        size <= MOST_FACTORS,
        f"the exact expectation over {size:,} outputs needs one backward pass each; use labels='sampled'",
    )
    return form.factors(outputs)


def _require_labels(form: Likelihood, outputs: Tensor, labels: Tensor) -> None:
    if form.metric == "accuracy":
        low, high = (int(end) for end in labels.aminmax())
        require(
            low >= 0 and high < outputs.shape[-1],
            f"labels range from {low} to {high}, but the network has {outputs.shape[-1]} outputs; fix the labels",
            DataError,
        )
    elif labels.dim() != outputs.dim():
        raise DataError(
            f"targets of shape {list(labels.shape)} for outputs of shape {list(outputs.shape)}; give targets one row "
            f"per sample, as in y[:, None]"
        )


def sample_blocks(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover `count` samples.

    >>> list(sample_blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    return (slice(start, start + size) for start in range(0, count, size))
