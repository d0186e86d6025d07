r"""Data a batch at a time, and the vectors at the outputs that stand for its labels.

A cotangent `c` `[B, *outputs]` is pulled back through the network: the gradient of sample b is $J_b^\top c_b$. One
cotangent, the gradient of the loss, stands for observed or sampled labels; several, with
$\sum_k c_k c_k^\top = \Lambda$, for the exact expectation over the model's own.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

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


def batches(data: Data, targets: Tensor | None, size: int, labels: str) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Batches of whatever the data is."""
    if isinstance(data, Examples):
        yield from ordered_batches(data, size)
    elif isinstance(data, Tensor):
        require(
            labels != "observed" or targets is not None,
            "observed labels were asked for and none given; give targets, or use labels='sampled' or 'expected'",
        )
        require(
            targets is None or len(targets) == len(data),
            f"{len(data)} inputs but {0 if targets is None else len(targets)} targets; give each its own",
            DataError,
        )
        for part in sample_blocks(len(data), size):
            yield data[part], None if targets is None else targets[part]
    else:
        yield from data


Cotangents: TypeAlias = Callable[[Tensor, slice], Iterator[Tensor]]
"""From the outputs of a part of a batch to the vectors that are pulled back through the network."""


def cotangents(form: Likelihood, labels: str, y: Tensor | None, num_samples: int, rng: Generator) -> Cotangents:
    """A function from outputs to the vectors whose pulled-back squares add up to the Fisher information."""

    def score(outputs: Tensor, labels_: Tensor) -> Tensor:
        _require_labels(form, outputs, labels_)
        return form.slope(outputs, labels_)

    def found(outputs: Tensor, part: slice) -> Iterator[Tensor]:
        if labels == "expected":
            yield from _factors(form, outputs)
        elif labels == "sampled":
            require(
                bool(outputs.isfinite().all()),
                "the network answers with NaN or infinite numbers, from which no label can be drawn; look at its "
                "inputs and the weights",
                MismatchError,
            )
            for _ in range(num_samples):
                yield score(outputs, form.sample(outputs, rng))
        elif y is not None:
            yield score(outputs, y[part])

    return found


def _factors(form: Likelihood, outputs: Tensor) -> Iterator[Tensor]:
    size = outputs[0].numel()
    require(
        size <= MOST_FACTORS,
        f"the exact expectation over {size:,} outputs would take as many backward passes; use labels='sampled'",
    )
    return form.factors(outputs)


def _require_labels(form: Likelihood, outputs: Tensor, labels: Tensor) -> None:
    if form.metric == "accuracy":
        low, high = (int(end) for end in labels.aminmax())
        require(
            low >= 0 and high < outputs.shape[-1],
            f"labels run from {low} to {high}, but the network has {outputs.shape[-1]} outputs; mend the labels",
            DataError,
        )
    elif labels.dim() != outputs.dim():
        raise DataError(
            f"targets of shape {list(labels.shape)} for outputs of shape {list(outputs.shape)}; give targets one row a "
            f"sample, as in y[:, None]"
        )


def sample_blocks(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover `count` samples.

    >>> list(sample_blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    return (slice(start, start + size) for start in range(0, count, size))


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples, and whose labels the expectation is over; the fields are the arguments of `fisher_matrix`.

    >>> from torch import eye
    >>> [len(batch) for batch, _ in Samples(eye(2), None, "gaussian", "expected", batch_size=1).batches()]
    [1, 1]
    """

    data: Data
    targets: Tensor | None
    likelihood: str
    labels: str
    batch_size: int = 128
    num_samples: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.labels in LABELS, f"labels must be one of {', '.join(LABELS)}, got {self.labels!r}")
        require(self.num_samples >= 1, f"num_samples must be 1 or more, got {self.num_samples}")
        require(self.batch_size >= 1, f"batch_size must be 1 or more, got {self.batch_size}")

    def batches(self) -> Iterator[tuple[Tensor, Cotangents]]:
        """Inputs and, from their outputs, cotangents; empty batches are left out."""
        form, rng = likelihood_named(self.likelihood), Streams(self.seed)["labels"]
        empty = True
        for x, y in batches(self.data, self.targets, self.batch_size, self.labels):
            if len(x) > 0:
                yield x, cotangents(form, self.labels, y, self.num_samples, rng)
                empty = False
        require(not empty, "there is no sample to measure on; the data is empty", DataError)

    @property
    def draws(self) -> int:
        """Draws that a sum over cotangents is to be divided by."""
        return self.num_samples if self.labels == "sampled" else 1
