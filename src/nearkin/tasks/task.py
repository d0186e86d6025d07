"""Task: a data set with its likelihood; what every room of the house is about."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Dataset

from nearkin.core.errors import DataError, require
from nearkin.tasks.arrays import interpreted
from nearkin.tasks.datasets import DatasetInputs, dataset_targets
from nearkin.tasks.examples import Examples, Scaling
from nearkin.tasks.likelihood import Likelihood, likelihood
from nearkin.tasks.metrics import ACCURACY
from nearkin.tasks.rows import glance, in_memory
from nearkin.tasks.split import split_index

DIGEST_SAMPLES = 2048  # of rows that must be decoded
TEST_SHARE = 0.2  # of a data set that comes without a test part


@dataclass(frozen=True, eq=False)
class Task:
    """A learning task, checked at birth.

    Attributes:
        name: what people call it.
        train: examples to learn from.
        test: examples to judge by, of the same shape.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        classes: names of the C classes, words, target columns or output channels.
        input_shape: shape of one input: `(C, H, W)` images, `(D,)` tables, `(T,)` tokens.
        source: the data string that reads it again; empty for arrays.

    >>> x = torch.arange(16.0).view(8, 2) - 7
    >>> task = Task.from_arrays("sign", x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    >>> task.likelihood, task.classes, task.input_shape
    ('categorical', ('0', '1'), (2,))
    """

    name: str
    train: Examples
    test: Examples
    likelihood: str
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    source: str = ""

    def __post_init__(self) -> None:
        likelihood(self.likelihood)
        for part, examples in (("training", self.train), ("test", self.test)):
            require(
                len(examples) > 0,
                f"{self.name}: there is no {part} sample; add some, or choose more classes",
                DataError,
            )
            require(
                examples.inputs.shape == self.input_shape,
                f"{self.name}: {part} inputs have shape {examples.inputs.shape}, expected {self.input_shape}; "
                f"bring both parts to one shape",
                DataError,
            )
        require(
            self.train.targets.shape == self.test.targets.shape,
            f"{self.name}: training targets have shape {self.train.targets.shape}, test targets "
            f"{self.test.targets.shape}; they must agree",
            DataError,
        )
        if self.likelihood == "categorical":
            self._check_classes()

    def _check_classes(self) -> None:
        require(
            len(self.classes) >= 2,
            f"{self.name}: a classification task needs two classes or more, got "
            f"{list(self.classes)}; add examples of another class",
            DataError,
        )
        for part, examples in (("training", self.train), ("test", self.test)):
            labels = examples.labels()
            low, high = int(labels.min()), int(labels.max())
            require(
                low >= 0 and high < len(self.classes),
                f"{self.name}: {part} labels run from {low} to {high}, but there are {len(self.classes)} classes "
                f"(0 to {len(self.classes) - 1}); mend the labels or name all classes",
                DataError,
            )
        counts = torch.bincount(self.train.labels(), minlength=len(self.classes))
        empty = [self.classes[i] for i in torch.nonzero(counts == 0).flatten().tolist()]
        require(
            not empty,
            f"{self.name}: no training sample of class {', '.join(empty[:5])}"
            f"{' and others' if len(empty) > 5 else ''}; add some or leave the class out",
            DataError,
        )

    @property
    def form(self) -> Likelihood:
        """The likelihood as an object: its loss, its metric, its samples."""
        return likelihood(self.likelihood)

    @property
    def num_outputs(self) -> int:
        """Width of the last layer of a network for this task."""
        return self.form.num_outputs(len(self.classes))

    def constant_inputs(self) -> str:
        """One sentence on input columns or channels that are constant and so teach nothing; empty if there are none.

        >>> x = torch.stack([torch.arange(10.0), torch.ones(10)], 1)
        >>> Task.from_arrays("toy", x, torch.arange(10) % 2).constant_inputs()
        '1 of 2 input columns is constant in the training data, within the precision of float32, and is not used: \
column 1.'
        """
        places = self.train.scaling.constant
        if not places:
            return ""
        noun = "channel" if len(self.input_shape) == 3 else "column"
        shown = ", ".join(map(str, places[:10])) + (" and others" if len(places) > 10 else "")
        verb, plural = ("is", "") if len(places) == 1 else ("are", "s")
        return (
            f"{len(places)} of {self.input_shape[0]} input {noun}s {verb} constant in the training data, within the "
            f"precision of float32, and {verb} not used: {noun}{plural} {shown}."
        )

    def guess(self) -> float:
        """Test metric of the majority class of the training labels; 0 for R², which the mean of the values has."""
        if self.form.metric != ACCURACY:
            return 0.0
        counts = torch.bincount(self.train.labels().flatten(), minlength=len(self.classes))
        return float((self.test.labels() == counts.argmax()).double().mean())

    def best_constant(self) -> float:
        """Test metric of the best constant answer, which only the test labels tell; at least that of `guess`."""
        if self.form.metric != ACCURACY:
            return 0.0
        labels = self.test.labels().flatten()
        return float(torch.bincount(labels).max()) / len(labels)

    def fingerprint(self) -> str:
        """A hash of shapes, targets and 256 inputs of each part: two tasks that differ in data differ here."""
        digest = hashlib.sha256(repr((self.likelihood, self.classes, self.input_shape)).encode())
        for examples in (self.train, self.test):
            digest.update(str(len(examples)).encode())
            some = examples.glance(256)
            digest.update(some.x.contiguous().numpy().tobytes())
            labels = examples.labels() if self.likelihood == "categorical" else some.y
            digest.update(labels.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def digest(self) -> str:
        """A hash of every input and target; of inputs that must be decoded, those of 2,048 samples of each part."""
        found = hashlib.sha256(self.fingerprint().encode())
        for examples in (self.train, self.test):
            count = len(examples) if in_memory(examples.inputs) else DIGEST_SAMPLES
            for index in glance(len(examples), count).split(1024):
                found.update(examples.inputs.take(index).contiguous().numpy().tobytes())
                found.update(examples.targets.take(index).contiguous().numpy().tobytes())
        return found.hexdigest()[:16]

    def facts(self) -> dict[str, Any]:
        """What the zoo keeps of a task beside its data: plain JSON values."""
        return {
            "likelihood": self.likelihood,
            "classes": list(self.classes),
            "input_shape": list(self.input_shape),
            "source": self.source,
            "num_train": len(self.train),
            "num_test": len(self.test),
            "scaling": self.train.scaling.to_dict(),
            "target_scaling": self.train.target_scaling.to_dict(),
        }

    @classmethod
    def of(
        cls,
        name: str,
        train: Examples,
        test: Examples | None,
        *,
        likelihood: str,
        classes: Sequence[str],
        source: str = "",
        standardise: bool = True,
    ) -> "Task":
        """A task from examples as a reader found them; a missing test part is set aside, the training part scales."""
        if test is None:
            labels = train.labels() if likelihood == "categorical" else None
            learn, judge = split_index(labels, len(train), TEST_SHARE, seed=0)
            train, test = train.chosen(learn), train.chosen(judge)
        task = cls(name, train, test, likelihood, tuple(classes), train.inputs.shape, source)
        return task.standardised() if standardise else task

    def rescaled(self) -> "Task":
        """The same task, scaled anew where it was scaled; what is read as it is stays so."""
        scaled = (self.train.scaling, self.train.target_scaling)
        return self.standardised() if any(one.mean is not None for one in scaled) else self

    def standardised(self) -> "Task":
        """The same task, scaled by mean and deviation of its training part."""
        inputs, targets = Scaling.of(self.train.inputs), Scaling.of(self.train.targets)
        return replace(
            self,
            train=replace(self.train, scaling=inputs, target_scaling=targets),
            test=replace(self.test, scaling=inputs, target_scaling=targets),
        )

    @classmethod
    def from_arrays(
        cls,
        name: str,
        x: Any,
        y: Any,
        x_test: Any = None,
        y_test: Any = None,
        *,
        likelihood: str | None = None,
        classes: Sequence[str] | None = None,
        standardise: bool = True,
    ) -> "Task":
        """A task from arrays or tensors.

        Args:
            name: what to call it.
            x: images `[N, H, W]`, `[N, C, H, W]` or `[N, H, W, C]`, bytes or floats; or a table `[N, D]`.
            y: classes (numbers or strings) `[N]`, or real values `[N]` or `[N, K]`, or images.
            x_test: inputs to judge by; without them a fifth of the samples is set aside, the same for every class.
            y_test: their targets.
            likelihood: read off the targets when not given: whole numbers and strings are classes, floats are values.
            classes: names of the classes, in the order of their numbers.
            standardise: scale inputs and real targets by mean and deviation of the training part.
        """
        found = interpreted(name, x, y, x_test, y_test, likelihood=likelihood, classes=classes)
        return cls.of(
            name, found.train, found.test, likelihood=found.likelihood, classes=found.classes, standardise=standardise
        )

    @classmethod
    def from_dataset(
        cls,
        name: str,
        train: Dataset[Any],
        test: Dataset[Any] | None = None,
        *,
        likelihood: str | None = None,
        classes: Sequence[str] | None = None,
    ) -> "Task":
        """A task from torch data sets of `(input, target)` pairs; inputs are read as they are needed."""
        parts = [train] if test is None else [train, test]
        pairs = [value for part in parts for value in (DatasetInputs.of(part, name), dataset_targets(part, name))]
        found = interpreted(name, *pairs, likelihood=likelihood, classes=classes)
        return cls.of(name, found.train, found.test, likelihood=found.likelihood, classes=found.classes)
