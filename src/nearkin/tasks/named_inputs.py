"""Named inputs, such as tokens and their mask, packed in the order of their names into one row for each sample."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.plain import typed
from nearkin.tasks.input_fields import InputField
from nearkin.tasks.rows import Values

LARGEST_EXACT = 2**24  # whole numbers up to it are exact in float32
KIND, NAMED = "kind", "named inputs"


def pack_inputs(inputs: Mapping[str, Tensor], fields: Sequence[InputField]) -> Tensor:
    """Named inputs `[N, *shape]` as one tensor `[N, K]`: int64 if all of them are, else float32.

    >>> fields = (InputField("ids", (2,)), InputField("mask", (2,)))
    >>> pack_inputs({"ids": torch.tensor([[5, 6]]), "mask": torch.tensor([[1, 0]])}, fields)
    tensor([[5, 6, 1, 0]])
    """
    names = [field.name for field in fields]
    require(
        sorted(inputs) == sorted(names),
        f"got the inputs {', '.join(sorted(inputs))}, expected {', '.join(sorted(names))}; give these",
        MismatchError,
    )
    whole = all(field.dtype == "int64" for field in fields)
    for field in fields:
        values = inputs[field.name]
        shape, integers = tuple(values.shape[1:]), field.dtype == "int64"
        require(
            shape == field.shape,
            f"the input {field.name} has shape {shape} for one sample, expected {field.shape}; pad or cut it",
            MismatchError,
        )
        require(
            not integers or not values.is_floating_point(),
            f"the input {field.name} has real numbers, expected whole numbers; convert it",
            MismatchError,
        )
        require(
            whole or not integers or not bool(((values > LARGEST_EXACT) | (values < -LARGEST_EXACT)).any()),
            f"the input {field.name} has numbers beyond ±{LARGEST_EXACT:,}, which are not exact beside inputs of real "
            f"numbers; renumber it",
            MismatchError,
        )
    dtype = torch.int64 if whole else torch.float32
    return torch.cat([inputs[field.name].reshape(-1, field.size).to(dtype) for field in fields], 1)


def unpack_inputs(x: Tensor, fields: Sequence[InputField]) -> dict[str, Tensor]:
    """The inverse of `pack_inputs`; real numbers keep their precision, such as float64."""
    real = x.dtype if x.is_floating_point() else torch.float32
    columns = x.split([field.size for field in fields], 1)
    return {
        field.name: values.reshape(len(x), *field.shape).to(torch.int64 if field.dtype == "int64" else real)
        for field, values in zip(fields, columns, strict=True)
    }


def fields_of(inputs: Mapping[str, Any], name: str) -> tuple[tuple[InputField, ...], dict[str, Tensor]]:
    """Fields, in the order of their names, and tensors of named inputs; whole numbers become int64, others float32.

    Args:
        inputs: arrays or tensors `[N, ...]` by name.
        name: of the task, for errors.

    >>> fields_of({"ids": [[1, 2]]}, "toy")
    ((InputField(name='ids', shape=(2,), dtype='int64'),), {'ids': tensor([[1, 2]])})
    """
    require(bool(inputs), f"{name}: got a dictionary without inputs; give some", DataError)
    fields, tensors = [], {}
    for key, values in sorted(inputs.items(), key=lambda item: str(item[0])):  # dictionaries are equal in any order
        try:
            tensor = torch.as_tensor(values).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as wrong:
            reason = " ".join(str(wrong).split())[:120]
            raise DataError(
                f"{name}: the input {key} is no array of numbers ({reason}); pad rows to one length"
            ) from None
        require(tensor.dim() >= 1, f"{name}: the input {key} is one number, expected a row for each sample", DataError)
        real = tensor.is_floating_point()
        tensors[key] = tensor.to(torch.float32 if real else torch.int64)
        require(bool(tensors[key].isfinite().all()) if real else True,
                f"{name}: the input {key} has NaN or infinity; fix or remove these samples", DataError)  # fmt: skip
        fields.append(InputField(str(key), tuple(tensor.shape[1:]), "float32" if real else "int64"))
    lengths = {len(value) for value in tensors.values()}
    require(
        len(lengths) == 1, f"{name}: the inputs have {sorted(lengths)} rows, expected one number for all", DataError
    )
    return tuple(fields), tensors


def named_rows(
    name: str, x: Mapping[str, Any], x_test: Mapping[str, Any] | None
) -> tuple[Values, Values | None, dict[str, Any]]:
    """Named inputs of a training and a test set as rows, and the facts that tell their fields."""
    fields, tensors = fields_of(x, name)
    facts = fields_facts(fields)
    if x_test is None:
        return Values(pack_inputs(tensors, fields)), None, facts
    require(isinstance(x_test, Mapping), f"{name}: x has named inputs, x_test has none; give both the same", DataError)
    _, test = fields_of(x_test, name)
    return Values(pack_inputs(tensors, fields)), Values(pack_inputs(test, fields)), facts


def fields_facts(fields: Sequence[InputField]) -> dict[str, Any]:
    """The preprocessing of a task with these named inputs, as JSON values; the inverse of `stored_fields`."""
    return {KIND: NAMED, "fields": [asdict(field) | {"shape": list(field.shape)} for field in fields]}


def stored_fields(preprocessing: Mapping[str, Any]) -> tuple[InputField, ...]:
    """The named inputs of a task, from its preprocessing; empty if it has none."""
    if preprocessing.get(KIND) != NAMED:
        return ()
    return typed(tuple[InputField, ...], preprocessing.get("fields"), "the description of the named inputs")


def require_fields(task_fields: Sequence[InputField], fields: Sequence[InputField], name: str) -> None:
    """Refuse a task whose named inputs are not those of a network.

    Args:
        task_fields: named inputs of the task; empty if it has one input without a name.
        fields: those of the network, likewise.
        name: of the task, for the error.
    """
    require(
        tuple(task_fields) == tuple(fields),
        f"'{name}' has {described_fields(task_fields)}, the network reads {described_fields(fields)}; use a task with "
        f"the inputs of the network",
        MismatchError,
    )


def described_fields(fields: Sequence[InputField]) -> str:
    """Names, shapes and types of named inputs as text.

    >>> described_fields([InputField("ids", (6,)), InputField("age", (), "float32")])
    'the inputs ids (6,) int64, age () float32'
    """
    listed = ", ".join(f"{field.name} {field.shape} {field.dtype}" for field in fields)
    return f"the inputs {listed}" if listed else "one input without a name"
