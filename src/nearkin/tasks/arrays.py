"""Arrays as examples: what shape an image has, what counts as a class, what is refused."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearkin.core.errors import DataError, require
from nearkin.tasks.examples import Examples
from nearkin.tasks.rows import Pixels, Rows, Values

IMAGE_CHANNELS = (1, 3, 4)
PARTS = ("training", "test")


class Interpreted(NamedTuple):
    """Examples of both parts, the likelihood that their targets call for, and the names of the classes."""

    train: Examples
    test: Examples | None
    likelihood: str
    classes: tuple[str, ...]


def interpreted(
    name: str,
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    likelihood: str | None = None,
    classes: Sequence[str] | None = None,
) -> Interpreted:
    """Read arrays as `Task.from_arrays` promises; inputs may also be rows already.

    >>> import numpy as np
    >>> found = interpreted("pets", np.zeros((3, 8, 8), np.uint8), np.array(["cat", "dog", "cat"]))
    >>> found.classes, found.train.inputs.shape, found.likelihood
    (('cat', 'dog'), (1, 8, 8), 'categorical')
    """
    require(
        (x_test is None) == (y_test is None),
        f"{name}: give both x_test and y_test, or neither (a fifth is then set aside)",
        DataError,
    )
    given = [_as_numpy(y, name)] if y_test is None else [_as_numpy(y, name), _as_numpy(y_test, name)]
    kind = likelihood or _kind(given[0])
    if kind == "categorical":
        targets, names = _class_numbers(name, given, classes)
    else:
        axes = (3, 4) if kind == "dense" else (1, 2)
        targets = [_real_targets(name, values, part, axes) for values, part in zip(given, PARTS, strict=False)]
        width = targets[0].shape[1]
        names = tuple(classes) if classes is not None else tuple(f"y{i}" for i in range(width))
        require(len(names) == width, f"{name}: {len(names)} names for {width} target columns; name each one", DataError)
    inputs = [_inputs(x, name)] if x_test is None else [_inputs(x, name), _inputs(x_test, name)]
    parts = [_paired(name, *four) for four in zip(PARTS, inputs, targets, strict=False)]
    return Interpreted(parts[0], parts[1] if len(parts) > 1 else None, kind, names)


def _inputs(x: Any, name: str) -> Rows:
    return x if isinstance(x, Rows) and not hasattr(x, "__array__") else input_rows(x, name)


def input_rows(x: Any, name: str) -> Rows:
    """Inputs as rows: bytes of images stay bytes, everything else becomes float32; NaN and infinity are refused.

    >>> input_rows(torch.zeros(2, 5, 5, 3), "x").shape
    (3, 5, 5)
    """
    array = _as_numpy(x, name)
    require(
        _is_number(array),
        f"{name}: inputs must be numbers, got an array of {array.dtype}; convert them first",
        DataError,
    )
    require(
        array.ndim in (2, 3, 4),
        f"{name}: inputs must be a table [N, D] or images [N, H, W], [N, C, H, W] or "
        f"[N, H, W, C]; got shape {list(array.shape)}",
        DataError,
    )
    require(
        0 not in array.shape[1:],
        f"{name}: inputs of shape {list(array.shape[1:])} hold no values; give some",
        DataError,
    )
    if array.ndim == 2:
        return Values(_float32(name, array))
    tensor = _tensor(array)
    if tensor.dtype != torch.uint8:
        tensor = _float32(name, array)
    tensor = tensor[:, None] if tensor.dim() == 3 else _channels_first(tensor)
    return Pixels(tensor) if tensor.dtype == torch.uint8 else Values(tensor)


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor over the array's own memory, a mapped file included; copies only what torch cannot view."""
    if not array.dtype.isnative or not array.flags.writeable or min(array.strides, default=1) < 0:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(array)


def _channels_first(images: Tensor) -> Tensor:
    """`[N, C, H, W]`; channels are taken to be last only where the second axis cannot be the channels."""
    if images.shape[1] not in IMAGE_CHANNELS and images.shape[3] in IMAGE_CHANNELS:
        return images.permute(0, 3, 1, 2)
    return images


def _as_numpy(values: Any, name: str) -> np.ndarray[Any, Any]:
    """NumPy's view of arrays, tensors, lists and data frames."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError as ragged:
        raise DataError(f"{name}: the samples do not have one shape ({ragged}); bring them to one size") from ragged


def _is_number(array: np.ndarray[Any, Any]) -> bool:
    """Whether torch knows the type: whole numbers and floats of at most 64 bits."""
    return array.dtype.kind in "biuf" and array.dtype.itemsize <= 8


def _float32(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    """The array as float32; what is not finite is refused with its number and its first place."""
    tensor = _tensor(array).to(torch.float32)
    for start in range(0, len(tensor), 4096):
        bad = ~torch.isfinite(tensor[start : start + 4096])
        if bad.any():
            place = torch.nonzero(bad)[0].tolist()
            value, sample = array[start + place[0]][tuple(place[1:])], start + place[0]
            if np.isfinite(value):
                raise DataError(
                    f"{name}: the value {value:g} in sample {sample} is beyond float32 (3.4e+38); rescale the data"
                )
            count = int((~torch.isfinite(tensor)).sum())
            raise DataError(
                f"{name}: {count} values are NaN or infinite, the first in sample {sample}; fill or remove them"
            )
    return tensor


def _kind(targets: np.ndarray[Any, Any]) -> str:
    """Categorical for whole numbers and text, dense for images, gaussian for other floats."""
    if targets.dtype.kind == "f":
        return "dense" if targets.ndim in (3, 4) else "gaussian"
    return "categorical"


def _class_numbers(
    name: str, parts: list[np.ndarray[Any, Any]], classes: Sequence[str] | None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Labels as int64 class numbers `[N]`, one tensor a part, and the names of the classes."""
    flat = [_labels(name, labels, part) for labels, part in zip(parts, PARTS, strict=False)]
    require(
        len({labels.dtype.kind == "U" for labels in flat}) == 1,
        f"{name}: training and test labels must both be numbers or both be text; make them agree",
        DataError,
    )
    if classes is not None and flat[0].dtype.kind != "U":
        return [torch.from_numpy(labels.astype(np.int64)) for labels in flat], tuple(classes)
    if classes is not None:
        numbers = {text: number for number, text in enumerate(classes)}
        unknown = sorted({text for labels in flat for text in labels.tolist()} - numbers.keys())
        require(not unknown, f"{name}: labels {unknown[:5]} are not among the classes {list(classes)[:10]}", DataError)
        return [torch.tensor([numbers[text] for text in labels.tolist()]) for labels in flat], tuple(classes)
    values = np.unique(np.concatenate(flat))
    found = [torch.from_numpy(np.searchsorted(values, labels).astype(np.int64)) for labels in flat]
    return found, tuple(str(value) for value in values.tolist())


def _labels(name: str, labels: np.ndarray[Any, Any], part: str) -> np.ndarray[Any, Any]:
    """Class labels `[N]` of one part as int64, booleans or text; real and missing values are refused."""
    require(
        labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1),
        f"{name}: class labels must be one column [N], got shape {list(labels.shape)}; for several real "
        f"values a sample use floats",
        DataError,
    )
    labels = labels.reshape(-1)
    if labels.dtype == object:
        labels = _plain_labels(name, labels, part)
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8", "replace")
    if labels.dtype.kind in "Ub":
        return labels
    require(_is_number(labels), f"{name}: {part} labels must be text or 64-bit numbers, got {labels.dtype}", DataError)
    if labels.dtype.kind == "f":
        _refuse_missing(name, np.isnan(labels), part)
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    wrong = np.flatnonzero(whole != labels)
    if len(wrong):
        raise DataError(
            f"{name}: {part} label {labels[wrong[0]]:g} of sample {wrong[0]} is not a whole number, so it is no class; "
            f"round the labels, or use likelihood=gaussian for real values"
        )
    return whole


def _plain_labels(name: str, labels: np.ndarray[Any, Any], part: str) -> np.ndarray[Any, Any]:
    """Labels that came as Python objects: all text or all numbers, none missing."""
    _refuse_missing(name, np.array([_is_missing(label) for label in labels], np.bool_), part)
    texts = [isinstance(label, str) for label in labels]
    numbers = [isinstance(label, int | float | np.number | np.bool_) for label in labels]
    require(
        all(texts) or all(numbers),
        f"{name}: {part} labels mix types or are neither text nor numbers, as in "
        f"{sorted({type(label).__name__ for label in labels})[:5]}; convert them to one type",
        DataError,
    )
    return np.array(labels.tolist(), str if all(texts) else None)


def _is_missing(label: object) -> bool:
    """Whether a label is None, NaN, or what pandas puts in their place."""
    if isinstance(label, float | np.floating):
        return bool(np.isnan(label))
    return label is None or type(label).__name__ in ("NAType", "NaTType")


def _refuse_missing(name: str, missing: np.ndarray[Any, Any], part: str) -> None:
    require(
        not missing.any(),
        f"{name}: {int(missing.sum())} {part} labels are missing (None or NaN), the first in sample "
        f"{int(missing.argmax()) if len(missing) else 0}; fill them in or remove those samples",
        DataError,
    )


def _real_targets(name: str, targets: np.ndarray[Any, Any], part: str, axes: tuple[int, ...]) -> Tensor:
    """Real targets as float32 `[N, K]`, or images `[N, C, H, W]` for a dense likelihood."""
    require(_is_number(targets), f"{name}: {part} targets must be numbers, got {targets.dtype}", DataError)
    wanted = "values [N] or [N, K]" if 1 in axes else "images [N, H, W] or [N, C, H, W]"
    require(
        targets.ndim in axes and 0 not in targets.shape[1:],
        f"{name}: {part} targets must be {wanted}, got shape {list(targets.shape)}; choose another likelihood",
        DataError,
    )
    tensor = _float32(f"{name}: {part} targets", targets)
    if tensor.dim() in (1, 3):
        return tensor[:, None]
    return _channels_first(tensor) if tensor.dim() == 4 else tensor


def _paired(name: str, part: str, inputs: Rows, targets: Tensor) -> Examples:
    require(len(inputs) > 0, f"{name}: there is no {part} sample; check the data", DataError)
    require(
        len(inputs) == len(targets),
        f"{name}: {len(inputs)} {part} inputs but {len(targets)} labels; each input needs its own label",
        DataError,
    )
    return Examples(inputs, Values(targets))
