"""Export a trained model to safetensors, ONNX or Python, with notes on inputs and outputs.

`onnx` and `python` include the preprocessing: raw inputs to probabilities, or to values in the units of the data.
`torch` is the network alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.state import State
from nearkin.nets.functional import evaluation_mode
from nearkin.nets.solved import Solved
from nearkin.search.networks.named import PATH, parse_network
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.network_inputs import NETWORK_INPUTS
from nearkin.tasks.new_inputs import is_inverted
from nearkin.tasks.table_examples import TABLE, column_titles
from nearkin.transfer.machine import TangentMachine
from nearkin.zoo.export_formats import agreement, export_onnx, export_python, export_torch, load_network, sample
from nearkin.zoo.predictor import MEANS, PROBABILITIES, VALUES, Predictor
from nearkin.zoo.python_source import Preprocessing

SUFFIXES = {"torch": ".safetensors", "onnx": ".onnx", "python": ".py"}
"""File suffixes by format."""

MANY = 100  # names or numbers in a note; a vocabulary has thousands
BYTES = " (bytes of images divided by 255)"

OUTPUTS = {
    "categorical": "logits of the classes",
    "language": "logits of the next token at every position, of the vocabulary",
    "gaussian": "predictions of the columns",
    "heteroscedastic": "predictions, and then log variances, of the columns",
    "dense": "images of the channels",
}
ANSWERS = {
    "categorical": (PROBABILITIES, "probabilities of the classes"),
    "language": (PROBABILITIES, "probabilities of the next token at every position, of the vocabulary"),
    "gaussian": (VALUES, "values of the columns, in the units of the data,"),
    "heteroscedastic": (MEANS, "values of the columns, in the units of the data,"),
    "dense": (VALUES, "images of the channels, in the units of the data,"),
}
"""Answer of a predictor by likelihood, and its description."""


def files(to: str, file: Path) -> list[Path]:
    """The files that `exported` writes.

    >>> [str(path) for path in files("python", Path("net.py"))]
    ['net.py', 'net.safetensors']
    """
    return [file, file.with_suffix(SUFFIXES["torch"])] if to == "python" else [file]


def exported(
    solved: Solved,
    to: str,
    file: Path,
    trial: int = 0,
    *,
    temperature: float = 1.0,
    task: Mapping[str, Any] | None = None,
    as_bytes: bool = False,
) -> dict[str, Any]:
    """Write the model of one trial; returns the files and the largest difference of their outputs.

    Args:
        solved: the solved task.
        to: `torch`, `onnx`, or `python` with its weights in a safetensors file of the same name.
        file: to write.
        trial: index of the trial.
        temperature: of a solution; divides class scores before the softmax.
        task: facts of the task that raw inputs belong to (default: those of the network).
        as_bytes: the ONNX file takes images as bytes instead of floats.
    """
    require(to in SUFFIXES, f"the format is one of {', '.join(SUFFIXES)}, got {to!r}")
    require(file.suffix == SUFFIXES[to], f"a file for {to} ends in {SUFFIXES[to]}, got {file}; rename it")
    require(
        0 <= trial < len(solved.trials),
        f"'{solved.name}' has trials 0 to {len(solved.trials) - 1}, got {trial}; choose one of these",
    )
    model, facts = solved.model(trial), dict(task or solved.facts)
    if to != "torch":
        solved = _with_network_inputs(solved, to)
    require(
        not as_bytes or (to == "onnx" and len(facts["input_shape"]) == 3),
        f"got --bytes for {to} and inputs of shape {tuple(facts['input_shape'])}; use it for images and --to onnx",
    )
    if to == "torch":
        return _export_weights(solved, model, file, trial)
    require(
        not any(isinstance(module, TangentMachine) for module in model.modules()),
        f"'{solved.name}' is solved in closed form with derivatives of a network, which neither ONNX nor a Python file "
        f"can represent; use --to torch, or solve it without transfer",
        MismatchError,
    )
    shape, model_shape = tuple(facts["input_shape"]), tuple(solved.facts["input_shape"])
    options = preprocessing_options(solved, facts)
    predictor = complete(solved, model, options, temperature)
    lines = complete_notes(solved, facts, trial)
    about = {"task": facts, "made_by": solved.network, "notes": lines, "answer": predictor.answer}
    if to == "onnx":
        details = {"notes": "\n".join(lines), "classes": json.dumps(facts["classes"]), **_column_names(facts)}
        return {"files": [str(file)], "error": export_onnx(predictor, file, shape, details, as_bytes=as_bytes)}
    weights = file.with_suffix(SUFFIXES["torch"])
    error = export_python(
        predictor, file, solved.network, shape, solved.num_outputs, options, model_shape=model_shape, notes=lines
    )
    State(predictor.state_dict(), {**about, "invert": is_inverted(facts)}).save(weights)
    return {"files": [str(file), str(weights)], "error": error}


def _with_network_inputs(solved: Solved, to: str) -> Solved:
    """A solved task whose facts have the input shape and the scaling of its network, if it has its own."""
    if NETWORK_INPUTS not in solved.facts:
        return solved
    inputs = solved.inputs
    require(
        to == "onnx" and inputs.tokenizer is None,
        f"'{solved.name}' was adopted, so that a file for {to} would need code or a tokenizer of others; use "
        f"{'nearkin push' if inputs.tokenizer else '--to onnx, or nearkin push'}",
        MismatchError,
    )
    own = {} if inputs.mean is None else {"scaling": {"mean": inputs.mean, "std": inputs.std}}
    return replace(solved, facts={**solved.facts, "input_shape": list(inputs.shape), **own})


def preprocessing_options(solved: Solved, facts: Mapping[str, Any]) -> Preprocessing:
    """Options of the predictor of a solved task for raw inputs of a task."""
    shape, model_shape = tuple(facts["input_shape"]), tuple(solved.facts["input_shape"])
    scaling, targets = solved.facts["scaling"], solved.facts["target_scaling"]
    is_table = TABLE in facts.get("preprocessing", {})
    is_files = len(shape) == 3 and shape[0] in (1, 3)
    return Preprocessing(
        ANSWERS[facts["likelihood"]][0],
        0 if facts["likelihood"] == "language" else len(shape),
        1 if scaling is None else len(scaling["mean"]),
        1 if targets is None else len(targets["mean"]),
        None if shape == model_shape else model_shape,
        "table" if is_table else "images" if is_files else "arrays",
    )


def complete(solved: Solved, network: nn.Module, options: Preprocessing, temperature: float) -> Predictor:
    """A network with the scaling of its task and a temperature."""
    predictor = Predictor(network, *options[:5])
    for prefix, scaling in (("", solved.facts["scaling"]), ("target_", solved.facts["target_scaling"])):
        for name in ("mean", "std") if scaling is not None else ():
            buffer = predictor.get_buffer(prefix + name)
            buffer.copy_(torch.tensor(scaling[name]).view_as(buffer))
    predictor.temperature.fill_(temperature)
    return predictor.eval()


def complete_notes(solved: Solved, facts: Mapping[str, Any], trial: int = 0) -> list[str]:
    """Sentences for users of a model with its preprocessing: inputs, order of outputs, metric."""
    shape = tuple(facts["input_shape"])
    if facts["likelihood"] == "language":
        inputs = "Inputs are indices of tokens, in the order of the outputs."
    elif TABLE in facts.get("preprocessing", {}):
        inputs = (
            f"Inputs x [N, {shape[0]}] are the numbers of a table after its encoding, without scaling; the encoding of "
            f"the columns is stored with the model."
        )
    elif len(shape) == 3:
        inputs = f"Inputs [N, {', '.join(map(str, shape))}] are raw images: bytes, or floats in the units of training."
    else:
        inputs = f"Inputs [N, {', '.join(map(str, shape))}] are the values of the data, without scaling."
    outputs = f"Outputs are {ANSWERS[facts['likelihood']][1]} {_names(facts)}, in this order."
    return [inputs, outputs, _metric(solved, trial)]


def notes(solved: Solved, trial: int = 0) -> list[str]:
    """Sentences for users of the network alone: scaling of inputs, order of outputs, metric."""
    facts = solved.facts
    scaling, of_targets = facts["scaling"], facts["target_scaling"]
    if facts["likelihood"] == "language":
        inputs = "Inputs are indices of tokens, in the order of the outputs."
    elif scaling is None:
        inputs = f"Inputs are the values of the data{BYTES}, without scaling."
    else:
        axis = "channel" if len(facts["input_shape"]) == 3 else "column"
        inputs = f"Inputs are (x − mean) / deviation for each {axis}, x the values of the data{BYTES}: "
        inputs += _scaled(scaling)
    outputs = f"Outputs are {OUTPUTS[facts['likelihood']]} {_names(facts)}, in this order."
    if of_targets is not None:
        outputs += f" In the units of the data a prediction is output · deviation + mean: {_scaled(of_targets)}"
    return [inputs, outputs, _metric(solved, trial)]


def _metric(solved: Solved, trial: int) -> str:
    scores, metric = solved.trials[trial].scores, likelihood(solved.facts["likelihood"]).metric
    return f"On the {scores.count} test examples of '{solved.name}': {metric} {scores.metric:.4f}."


def _names(facts: Mapping[str, Any]) -> str:
    return _listed([json.dumps(name, ensure_ascii=False) for name in facts["classes"]])


def _scaled(scaling: Mapping[str, Sequence[float]]) -> str:
    mean, deviation = (_listed([f"{value:.7g}" for value in scaling[name]]) for name in ("mean", "std"))
    return f"mean {mean}; deviation {deviation}."


def _listed(items: Sequence[str]) -> str:
    more = f", … ({len(items)} in all, in the weights' metadata)" if len(items) > MANY else ""
    return ", ".join(items[:MANY]) + more


def _column_names(facts: Mapping[str, Any]) -> dict[str, str]:
    """For a table: what each number of an encoded row holds, and the encoding, as JSON."""
    stored = facts.get("preprocessing", {}).get(TABLE)
    if stored is None:
        return {}
    return {"columns": json.dumps(column_titles(facts["preprocessing"])), "table_encoding": json.dumps(stored)}


def _export_weights(solved: Solved, model: nn.Module, file: Path, trial: int) -> dict[str, Any]:
    """Write all weights and buffers of the network by name, with the facts of the task."""
    facts = {"task": dict(solved.facts), "made_by": solved.network, "notes": notes(solved, trial)}
    shape = tuple(solved.facts["input_shape"])
    if not solved.network.startswith(PATH):
        State(model.state_dict(), facts).save(file)
        return {"files": [str(file)], "error": 0.0}
    export_torch(model, file, *parse_network(solved.network), shape, solved.num_outputs, facts)
    loaded, x = load_network(file), sample(model, shape, 3)
    with evaluation_mode(loaded):
        return {"files": [str(file)], "error": agreement(model, x, loaded(x), "the file")}
