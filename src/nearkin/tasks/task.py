"""Task: training and test examples with their likelihood."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import Dataset

from nearkin.core.errors import DataError
from nearkin.tasks.arrays import read_arrays
from nearkin.tasks.boxes import check_boxes, read_boxes, require_every_class
from nearkin.tasks.datasets import DatasetInputs, dataset_targets
from nearkin.tasks.examples import Examples, Scaling
from nearkin.tasks.frames import frame_cells
from nearkin.tasks.likelihood import Likelihood, likelihood
from nearkin.tasks.metrics import ACCURACY
from nearkin.tasks.named_inputs import named_rows
from nearkin.tasks.packed_texts import KIND, TEXT, text_notes, text_rows
from nearkin.tasks.rows import in_memory, subset_index
from nearkin.tasks.split import held_out_split
from nearkin.tasks.table_examples import mark_positions, read_table
from nearkin.tasks.weights import read_weights, with_weights

DIGEST_SAMPLES = 2048  # where rows must be decoded


@dataclass(frozen=True, eq=False)
class Task:
    """A learning task; its shapes and labels are checked when it is created.

    Attributes:
        name: name of the task, for people.
        train: training examples.
        test: test examples, of the same shape.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense`, `language` or `detection`.
        classes: names of the C classes, words, target columns or output channels.
        input_shape: shape of one input: `(C, H, W)` images, `(D,)` tables, `(T,)` tokens.
        source: data string that reads the task again; empty for arrays.
        preprocessing: how raw inputs become the inputs of the task, as JSON values; empty if they are the same.
        notes: what was done to the data when it was read, one line each.

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
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        likelihood(self.likelihood)
        for split, examples in (("training", self.train), ("test", self.test)):
            if len(examples) == 0:
                raise DataError(f"{self.name}: there is no {split} sample; add some, or choose more classes")
            if examples.inputs.shape != self.input_shape:
                raise DataError(
                    f"{self.name}: {split} inputs have shape {examples.inputs.shape}, expected {self.input_shape}; "
                    f"give training and test inputs the same shape"
                )
        if self.train.targets.shape != self.test.targets.shape:
            raise DataError(
                f"{self.name}: training targets have shape {self.train.targets.shape}, test targets "
                f"{self.test.targets.shape}; give both the same shape"
            )
        if self.likelihood == "categorical":
            self._check_classes()
        if self.likelihood == "detection":
            for split, examples in (("training", self.train), ("test", self.test)):
                check_boxes(self.name, examples.targets, split, self.input_shape, len(self.classes))

    def _check_classes(self) -> None:
        count = len(self.classes)
        if count < 2:
            raise DataError(
                f"{self.name}: got the classes {list(self.classes)}, a classification task needs two or more; add "
                f"examples of another class"
            )
        for split, examples in (("training", self.train), ("test", self.test)):
            low, high = (int(bound) for bound in examples.labels().aminmax())
            if low < 0 or high >= count:
                raise DataError(
                    f"{self.name}: {split} labels run from {low} to {high}, but there are {count} classes "
                    f"(0 to {count - 1}); fix the labels or name all classes"
                )
        sizes = torch.bincount(self.train.labels(), minlength=count)
        empty = [self.classes[i] for i in torch.nonzero(sizes == 0).flatten().tolist()]
        if empty:
            raise DataError(
                f"{self.name}: no training sample of class {', '.join(empty[:5])}"
                f"{' and others' if len(empty) > 5 else ''}; add some or leave the class out"
            )

    @property
    def form(self) -> Likelihood:
        """The likelihood object, with its loss, metric and sampling."""
        return likelihood(self.likelihood)

    @property
    def num_outputs(self) -> int:
        """Width of the last layer of a network for this task."""
        return self.form.num_outputs(len(self.classes))

    def constant_inputs(self) -> str:
        """Name the constant input columns or channels, which are not used, in one sentence; empty without any.

        >>> x = torch.stack([torch.arange(10.0), torch.ones(10)], 1)
        >>> Task.from_arrays("toy", x, torch.arange(10) % 2).constant_inputs()
        '1 of 2 input columns is constant in the training data, within the precision of float32, and is not used: \
column 1.'
        """
        positions = self.train.scaling.constant
        if not positions:
            return ""
        noun = "channel" if len(self.input_shape) == 3 else "column"
        shown = ", ".join(map(str, positions[:10])) + (" and others" if len(positions) > 10 else "")
        verb, plural = ("is", "") if len(positions) == 1 else ("are", "s")
        return (
            f"{len(positions)} of {self.input_shape[0]} input {noun}s {verb} constant in the training data, within the "
            f"precision of float32, and {verb} not used: {noun}{plural} {shown}."
        )

    def majority_baseline(self) -> float:
        """Test accuracy of the majority class of the training labels; for real targets and boxes 0."""
        if self.form.metric != ACCURACY:
            return 0.0
        counts = torch.bincount(self.train.labels().flatten(), minlength=len(self.classes))
        return float((self.test.labels() == counts.argmax()).double().mean())

    def guess(self) -> float:
        """Old name of `majority_baseline`."""
        warnings.warn("Task.guess is now Task.majority_baseline", DeprecationWarning, stacklevel=2)
        return self.majority_baseline()

    def best_constant(self) -> float:
        """Test metric of the best constant prediction, from the test labels; at least that of `majority_baseline`."""
        if self.form.metric != ACCURACY:
            return 0.0
        labels = self.test.labels().flatten()
        return float(torch.bincount(labels).max()) / len(labels)

    def fingerprint(self) -> str:
        """Hash of the shapes, the targets and 256 inputs of each split: it differs for tasks of different data."""
        digest = hashlib.sha256(repr((self.likelihood, self.classes, self.input_shape)).encode())
        for examples in (self.train, self.test):
            digest.update(str(len(examples)).encode())
            batch = examples.fixed_subset(256)
            digest.update(batch.x.contiguous().numpy().tobytes())
            labels = examples.labels() if self.likelihood == "categorical" else batch.y
            digest.update(labels.contiguous().numpy().tobytes())
        if self.train.weights is not None:
            digest.update(self.train.weights.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def digest(self) -> str:
        """Hash of every input and target; where inputs must be decoded, of 2,048 samples of each split."""
        digest = hashlib.sha256(self.fingerprint().encode())
        for examples in (self.train, self.test):
            count = len(examples) if in_memory(examples.inputs) else DIGEST_SAMPLES
            for index in subset_index(len(examples), count).split(1024):
                digest.update(examples.inputs.take(index).contiguous().numpy().tobytes())
                digest.update(examples.targets.take(index).contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def facts(self) -> dict[str, Any]:
        """The JSON values that the zoo stores for a task, besides its data."""
        return {
            "likelihood": self.likelihood,
            "classes": list(self.classes),
            "input_shape": list(self.input_shape),
            "source": self.source,
            "num_train": len(self.train),
            "num_test": len(self.test),
            "scaling": self.train.scaling.to_dict(),
            "target_scaling": self.train.target_scaling.to_dict(),
            **({"preprocessing": dict(self.preprocessing)} if self.preprocessing else {}),
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
        preprocessing: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> "Task":
        """A task from a reader's examples; without a test set, a fifth of the training examples becomes one."""
        if test is None:
            labels = train.labels() if likelihood == "categorical" else None
            train_index, test_index = held_out_split(labels, len(train))
            train, test = train.chosen(train_index), train.chosen(test_index)
        train, test = with_weights(train, train.weights), replace(test, weights=None)
        shape = train.inputs.shape
        task = cls(name, train, test, likelihood, tuple(classes), shape, source, preprocessing or {}, tuple(notes))
        if likelihood == "detection":
            require_every_class(name, train.targets, task.classes)
        return task.standardised() if standardise else task

    def rescaled(self) -> "Task":
        """The same task with the scalings that it has computed again."""
        train = self.train
        return self._scaled(train.scaling.mean is not None, train.target_scaling.mean is not None)

    def standardised(self) -> "Task":
        """The same task, scaled by mean and standard deviation of its training set; marks in tables keep theirs.

        Boxes stay in pixels.
        """
        return self._scaled(inputs=True, targets=self.likelihood != "detection")

    def _scaled(self, inputs: bool, targets: bool) -> "Task":
        """The same task, inputs and targets scaled by the statistics of its training set, or not scaled."""
        unscaled = mark_positions(self.preprocessing, self.name)
        scaling = Scaling.of(self.train.inputs, unscaled) if inputs else Scaling()
        target_scaling = Scaling.of(self.train.targets) if targets else Scaling()
        train, test = (
            replace(examples, scaling=scaling, target_scaling=target_scaling) for examples in (self.train, self.test)
        )
        return replace(self, train=train, test=test)

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
        sample_weight: Any = None,
    ) -> "Task":
        """A task from arrays or tensors.

        Args:
            name: name of the task.
            x: images `[N, H, W]`, `[N, C, H, W]` or `[N, H, W, C]`, bytes or floats; or a table `[N, D]`; or a
                dictionary of named inputs `[N, ...]`, such as tokens and their mask, which are packed into one tensor.
            y: classes (numbers or strings) `[N]`, or real values `[N]` or `[N, K]`, or images.
            x_test: test inputs; without them a fifth of every class becomes the test set.
            y_test: test targets.
            likelihood: (default: whole numbers and strings are classes, floats are real values).
            classes: names of the classes, in the order of their numbers.
            standardise: scale inputs and real targets by mean and standard deviation of the training set.
            sample_weight: weights `[N]` of the samples of x in training (default: all 1).
        """
        preprocessing: dict[str, Any] = {}
        if isinstance(x, Mapping):
            x, x_test, preprocessing = named_rows(name, x, x_test)
            standardise = False
        arrays = read_arrays(name, x, y, x_test, y_test, likelihood=likelihood, classes=classes)
        if sample_weight is not None:
            weights = read_weights(name, sample_weight, len(arrays.train))
            arrays = arrays._replace(train=replace(arrays.train, weights=weights))
        return cls.of(name, **arrays._asdict(), standardise=standardise, preprocessing=preprocessing)

    @classmethod
    def from_texts(
        cls,
        name: str,
        texts: Sequence[str],
        y: Any,
        texts_test: Sequence[str] | None = None,
        y_test: Any = None,
        *,
        likelihood: str | None = None,
        classes: Sequence[str] | None = None,
        sample_weight: Any = None,
    ) -> "Task":
        """A task of texts, for networks that bring a tokenizer; each text is stored as its UTF-8 bytes.

        Args:
            name: name of the task.
            texts: one text for each sample; those of more than 64 KiB are cut.
            y: classes (numbers or strings) `[N]`, or real values `[N]` or `[N, K]`.
            texts_test: test texts; without them a fifth of every class becomes the test set.
            y_test: test targets.
            likelihood: (default: whole numbers and strings are classes, floats are real values).
            classes: names of the classes, in the order of their numbers.
            sample_weight: weights `[N]` of the training texts (default: all 1).

        >>> task = Task.from_texts("mood", ["good", "bad", "fine", "awful"] * 5, ["+", "-", "+", "-"] * 5)
        >>> task.classes, task.input_shape, bytes(task.train.first(1).x[0, :4].numpy())
        (('+', '-'), (5,), b'good')
        """
        x, x_test = text_rows(name, texts, texts_test)
        arrays = read_arrays(name, x, y, x_test, y_test, likelihood=likelihood, classes=classes)
        if sample_weight is not None:
            weights = read_weights(name, sample_weight, len(arrays.train))
            arrays = arrays._replace(train=replace(arrays.train, weights=weights))
        notes = text_notes([*texts, *(texts_test or ())])
        return cls.of(name, **arrays._asdict(), preprocessing={KIND: TEXT}, notes=notes)

    @classmethod
    def from_boxes(
        cls,
        name: str,
        x: Any,
        boxes: Sequence[Any],
        labels: Sequence[Any],
        x_test: Any = None,
        boxes_test: Sequence[Any] | None = None,
        labels_test: Sequence[Any] | None = None,
        *,
        classes: Sequence[str] | None = None,
        standardise: bool = True,
    ) -> "Task":
        """A detection task: images with the boxes and classes of the objects in them.

        Args:
            name: name of the task.
            x: images of one size, as in `from_arrays`.
            boxes: for each image x1, y1, x2, y2 of its boxes `[n, 4]` in pixels; an image may have none.
            labels: for each image the classes (numbers or strings) of its boxes `[n]`.
            x_test: test images; without them a fifth of the images becomes the test set.
            boxes_test: their boxes.
            labels_test: their classes.
            classes: names of the classes, in the order of their numbers.
            standardise: scale images by mean and standard deviation of the training set.

        >>> images = torch.rand(5, 1, 8, 8)
        >>> task = Task.from_boxes("cats", images, [[[0, 0, 4, 6]]] * 5, [["cat"]] * 5)
        >>> task.classes, task.train.all().y[0]
        (('cat',), tensor([[0., 0., 0., 4., 6.]]))
        """
        test = (x_test, boxes_test, labels_test)
        if x_test is None or boxes_test is None or labels_test is None:
            if any(value is not None for value in test):
                raise DataError(f"{name}: give x_test, boxes_test and labels_test, or none (a fifth is then set aside)")
            return cls.of(name, **read_boxes(name, [(x, boxes, labels)], classes)._asdict(), standardise=standardise)
        splits = [(x, boxes, labels), (x_test, boxes_test, labels_test)]
        return cls.of(name, **read_boxes(name, splits, classes)._asdict(), standardise=standardise)

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
        """A task from torch data sets of `(input, target)` pairs; inputs are read when they are needed."""
        splits = [train] if test is None else [train, test]
        arrays = [value for data in splits for value in (DatasetInputs.of(data, name), dataset_targets(data, name))]
        return cls.of(name, **read_arrays(name, *arrays, likelihood=likelihood, classes=classes)._asdict())

    @classmethod
    def from_frame(
        cls,
        name: str,
        frame: Any,
        target: str | Sequence[str],
        test: Any = None,
        *,
        likelihood: str | None = None,
        drop: Sequence[str] = (),
        keep: Sequence[str] = (),
        sample_weight: Any = None,
    ) -> "Task":
        """A task from a pandas DataFrame with columns of any kind, encoded as those of a csv file.

        Args:
            name: name of the task.
            frame: the rows; those without a target are left out.
            target: the target column, or several columns of real values.
            test: a DataFrame of test rows; without it a fifth of the rows becomes the test set.
            likelihood: (default: categorical for text and up to 20 distinct whole numbers, else gaussian).
            drop: names of columns to leave out.
            keep: names of columns that are not dropped as identifiers.
            sample_weight: name of a column, which is then no input, or values `[N]`: weights of the rows in training.
        """
        targets = [target] if isinstance(target, str) else list(target)
        cells, test_cells = frame_cells(frame, name), None if test is None else frame_cells(test, name)
        table = read_table(
            name, cells, targets, test_cells, likelihood=likelihood, drop=drop, keep=keep, weight=sample_weight
        )
        return cls.of(name, **table._asdict())
