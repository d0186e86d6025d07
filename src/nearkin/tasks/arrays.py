"""Examples from arrays: the shapes of images and tables, class labels, and the checks of both."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Pixels, Rows, Values

IMAGE_CHANNELS = (1, 3, 4)
SPLITS = ("training", "test")


class ArrayExamples(NamedTuple):
    """Training and test examples, the likelihood that fits their targets, and the names of the classes."""

    train: Examples
    test: Examples | None
    likelihood: str
    classes: tuple[str, ...]


def read_arrays(
    name: str,
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    likelihood: str | None = None,
    classes: Sequence[str] | None = None,
) -> ArrayExamples:
    """Read arrays as `Task.from_arrays` describes; inputs may also be `Rows`.

    >>> import numpy as np
    >>> arrays = read_arrays("pets", np.zeros((3, 8, 8), np.uint8), np.array(["cat", "dog", "cat"]))
    >>> arrays.classes, arrays.train.inputs.shape, arrays.likelihood
    (('cat', 'dog'), (1, 8, 8), 'categorical')
    """
    if (x_test is None) != (y_test is None):
        raise DataError(f"{name}: give both x_test and y_test, or neither (a fifth is then set aside)")
    labels = [_as_numpy(values, name) for values in ((y,) if y_test is None else (y, y_test))]
    kind = likelihood or _likelihood_of(labels[0])
    if kind == "categorical":
        targets, names = numbered_classes(name, labels, classes)
    else:
        axes = (3, 4) if kind == "dense" else (1, 2)
        targets = [_real_targets(name, values, split, axes) for values, split in zip(labels, SPLITS, strict=False)]
        width = targets[0].shape[1]
        names = tuple(classes) if classes is not None else tuple(f"y{i}" for i in range(width))
        if len(names) != width:
            raise DataError(f"{name}: {len(names)} names for {width} target columns; name each one")
    inputs = [
        values if isinstance(values, Rows) and not hasattr(values, "__array__") else input_rows(values, name)
        for values in ((x,) if x_test is None else (x, x_test))
    ]
    train, *test = (_examples(name, *values) for values in zip(SPLITS, inputs, targets, strict=False))
    return ArrayExamples(train, test[0] if test else None, kind, names)


def input_rows(x: Any, name: str) -> Rows:
    """Inputs as rows: byte images stay bytes, everything else becomes float32; NaN and infinity are refused.

    >>> input_rows(torch.zeros(2, 5, 5, 3), "x").shape
    (3, 5, 5)
    """
    array = _as_numpy(x, name)
    if not _is_number(array):
        raise DataError(f"{name}: inputs must be numbers, got an array of {array.dtype}; convert them first")
    if array.ndim not in (2, 3, 4):
        raise DataError(
            f"{name}: inputs must be a table [N, D] or images [N, H, W], [N, C, H, W] or "
            f"[N, H, W, C]; got shape {list(array.shape)}"
        )
    if 0 in array.shape[1:]:
        raise DataError(f"{name}: inputs of shape {list(array.shape[1:])} hold no values; give some")
    if array.ndim == 2:
        return Values(_float32(name, array))
    tensor = _tensor(array)
    if tensor.dtype != torch.uint8:
        tensor = _float32(name, array)
    tensor = tensor[:, None] if tensor.dim() == 3 else _channels_first(tensor)
    return Pixels(tensor) if tensor.dtype == torch.uint8 else Values(tensor)


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor that shares the array's memory, also of a mapped file; copies only what torch cannot view."""
    if not array.dtype.isnative or not array.flags.writeable or min(array.strides, default=1) < 0:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(array)


def _channels_first(images: Tensor) -> Tensor:
    """`[N, C, H, W]`; the last axis is taken as channels only if the second axis cannot be."""
    if images.shape[1] not in IMAGE_CHANNELS and images.shape[3] in IMAGE_CHANNELS:
        return images.permute(0, 3, 1, 2)
    return images


def _as_numpy(values: Any, name: str) -> np.ndarray[Any, Any]:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError as ragged:
        raise DataError(f"{name}: the samples differ in shape ({ragged}); give all the same shape") from ragged


def _is_number(array: np.ndarray[Any, Any]) -> bool:
    """Whether torch has the type: integers and floats of at most 64 bits."""
    return array.dtype.kind in "biuf" and array.dtype.itemsize <= 8


def _float32(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    tensor = _tensor(array).to(torch.float32)
    for start in range(0, len(tensor), 4096):
        bad = ~torch.isfinite(tensor[start : start + 4096])
        if bad.any():
            row, *position = torch.nonzero(bad)[0].tolist()
            value, sample = array[start + row][tuple(position)], start + row
            if np.isfinite(value):
                raise DataError(
                    f"{name}: the value {value:g} in sample {sample} is beyond float32 (3.4e+38); rescale the data"
                )
            count = int((~torch.isfinite(tensor)).sum())
            raise DataError(
                f"{name}: {count} values are NaN or infinite, the first in sample {sample}; fill or remove them"
            )
    return tensor


def _likelihood_of(targets: np.ndarray[Any, Any]) -> str:
    """Categorical for whole numbers and text, dense for images, gaussian for other floats."""
    if targets.dtype.kind == "f":
        return "dense" if targets.ndim in (3, 4) else "gaussian"
    return "categorical"


def numbered_classes(
    name: str, targets: list[np.ndarray[Any, Any]], classes: Sequence[str] | None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Class numbers `[N]` as int64 from the labels of each split, and the names of the classes."""
    splits = [_labels(name, labels, split) for labels, split in zip(targets, SPLITS, strict=False)]
    if len({labels.dtype.kind == "U" for labels in splits}) > 1:
        raise DataError(f"{name}: training and test labels must both be numbers or both be text; convert one of them")
    if classes is not None and splits[0].dtype.kind != "U":
        return [torch.from_numpy(labels.astype(np.int64)) for labels in splits], tuple(classes)
    if classes is not None:
        numbers = {text: number for number, text in enumerate(classes)}
        unknown = sorted({text for labels in splits for text in labels.tolist()} - numbers.keys())
        if unknown:
            raise DataError(
                f"{name}: labels {unknown[:5]} are not among the classes {list(classes)[:10]}; fix them or add classes"
            )
        return [torch.tensor([numbers[text] for text in labels.tolist()]) for labels in splits], tuple(classes)
    values = np.unique(np.concatenate(splits))
    class_numbers = [torch.from_numpy(np.searchsorted(values, labels).astype(np.int64)) for labels in splits]
    return class_numbers, tuple(str(value) for value in values.tolist())


def _labels(name: str, labels: np.ndarray[Any, Any], split: str) -> np.ndarray[Any, Any]:
    """Class labels `[N]` of one split as int64, booleans or text."""
    if labels.ndim != 1 and not (labels.ndim == 2 and labels.shape[1] == 1):
        raise DataError(
            f"{name}: class labels must be one column [N], got shape {list(labels.shape)}; for several real "
            f"values per sample use floats"
        )
    labels = labels.reshape(-1)
    if labels.dtype == object:
        labels = _plain_labels(name, labels, split)
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8", "replace")
    if labels.dtype.kind in "Ub":
        return labels
    if not _is_number(labels):
        raise DataError(f"{name}: {split} labels must be text or 64-bit numbers, got {labels.dtype}; convert them")
    if labels.dtype.kind == "f":
        _refuse_missing(name, np.isnan(labels), split)
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    wrong = np.flatnonzero(whole != labels)
    if len(wrong):
        raise DataError(
            f"{name}: {split} label {labels[wrong[0]]:g} of sample {wrong[0]} is not a whole number, so it is not a "
            f"class; round the labels, or use likelihood=gaussian for real values"
        )
    return whole


def _plain_labels(name: str, labels: np.ndarray[Any, Any], split: str) -> np.ndarray[Any, Any]:
    """Labels that came as Python objects, as an array of text or numbers."""
    _refuse_missing(name, np.array([_is_missing(label) for label in labels], np.bool_), split)
    texts = all(isinstance(label, str) for label in labels)
    if not texts and not all(isinstance(label, int | float | np.number | np.bool_) for label in labels):
        raise DataError(
            f"{name}: {split} labels mix types or are neither text nor numbers, as in "
            f"{sorted({type(label).__name__ for label in labels})[:5]}; convert them to one type"
        )
    return np.array(labels.tolist(), str if texts else None)


def _is_missing(label: object) -> bool:
    """Whether a label is None, NaN, or the mark of pandas for them."""
    if isinstance(label, float | np.floating):
        return bool(np.isnan(label))
    return label is None or type(label).__name__ in ("NAType", "NaTType")


def _refuse_missing(name: str, missing: np.ndarray[Any, Any], split: str) -> None:
    if missing.any():
        raise DataError(
            f"{name}: {int(missing.sum())} {split} labels are missing (None or NaN), the first in sample "
            f"{int(missing.argmax())}; fill them in or remove those samples"
        )


def _real_targets(name: str, targets: np.ndarray[Any, Any], split: str, axes: tuple[int, ...]) -> Tensor:
    """Real targets as float32 `[N, K]`, or images `[N, C, H, W]` for a dense likelihood."""
    if not _is_number(targets):
        raise DataError(f"{name}: {split} targets must be numbers, got {targets.dtype}; convert them")
    if targets.ndim not in axes or 0 in targets.shape[1:]:
        expected = "values [N] or [N, K]" if 1 in axes else "images [N, H, W] or [N, C, H, W]"
        raise DataError(
            f"{name}: {split} targets must be {expected}, got shape {list(targets.shape)}; choose another likelihood"
        )
    tensor = _float32(f"{name}: {split} targets", targets)
    if tensor.dim() in (1, 3):
        return tensor[:, None]
    return _channels_first(tensor) if tensor.dim() == 4 else tensor


def _examples(name: str, split: str, inputs: Rows, targets: Tensor) -> Examples:
    if len(inputs) == 0:
        raise DataError(f"{name}: there is no {split} sample; check the data")
    if len(inputs) != len(targets):
        raise DataError(f"{name}: {len(inputs)} {split} inputs but {len(targets)} labels; give one label per input")
    return Examples(inputs, Values(targets))
