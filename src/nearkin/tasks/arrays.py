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
        targets = [_real_targets(name, values, part) for values, part in zip(given, PARTS, strict=False)]
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
        array.dtype != object and array.dtype.kind in "biuf",
        f"{name}: inputs must be numbers, got an array of {array.dtype}; convert them first",
        DataError,
    )
    require(
        array.ndim in (2, 3, 4),
        f"{name}: inputs must be a table [N, D] or images [N, H, W], [N, C, H, W] or "
        f"[N, H, W, C]; got shape {list(array.shape)}",
        DataError,
    )
    if array.ndim == 2:
        return Values(_finite(name, _tensor(array).to(torch.float32)))
    tensor = _tensor(array)
    tensor = tensor[:, None] if tensor.dim() == 3 else _channels_first(tensor)
    if tensor.dtype == torch.uint8:
        return Pixels(tensor)
    return Values(_finite(name, tensor.to(torch.float32)))


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


def _finite(name: str, tensor: Tensor) -> Tensor:
    """The tensor itself, or an error that counts what is not a number and says where the first one is."""
    for start in range(0, len(tensor), 4096):
        good = torch.isfinite(tensor[start : start + 4096])
        if not good.all():
            bad = int((~torch.isfinite(tensor)).sum())
            sample = start + int(torch.nonzero(~good)[0, 0])
            raise DataError(
                f"{name}: {bad} values are NaN or infinite, the first in sample {sample}; fill or remove them"
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
    for labels in parts:
        require(
            labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1),
            f"{name}: class labels must be one column [N], got shape {list(labels.shape)}; for several real "
            f"values a sample use floats",
            DataError,
        )
    flat = [labels.reshape(-1) for labels in parts]
    for labels in flat:
        require(
            labels.dtype.kind != "f" or bool(np.isfinite(labels).all()),
            f"{name}: some labels are NaN; remove those samples",
            DataError,
        )
    if classes is not None and flat[0].dtype.kind in "biuf":
        return [torch.from_numpy(labels.astype(np.int64)) for labels in flat], tuple(classes)
    if classes is not None:
        values = np.asarray(list(classes))
        unknown = sorted(set(np.concatenate(flat).tolist()) - set(values.tolist()))
        require(not unknown, f"{name}: labels {unknown[:5]} are not among the classes {list(classes)[:10]}", DataError)
        order = np.argsort(values)
        numbers = [order[np.searchsorted(values, labels, sorter=order)] for labels in flat]
        return [torch.from_numpy(n.astype(np.int64)) for n in numbers], tuple(classes)
    values = np.unique(np.concatenate([labels.astype(str) if labels.dtype == object else labels for labels in flat]))
    numbers = [np.searchsorted(values, labels.astype(values.dtype)) for labels in flat]
    if values.dtype.kind == "f" and bool((values == np.round(values)).all()):
        values = values.astype(np.int64)
    return [torch.from_numpy(n.astype(np.int64)) for n in numbers], tuple(str(v) for v in values.tolist())


def _real_targets(name: str, targets: np.ndarray[Any, Any], part: str) -> Tensor:
    """Real targets as float32 `[N, K]` or images `[N, C, H, W]`."""
    require(targets.dtype.kind in "biuf", f"{name}: {part} targets must be numbers, got {targets.dtype}", DataError)
    tensor = _finite(f"{name}: {part} targets", _tensor(targets).to(torch.float32))
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
