"""Export a trained network to safetensors, ONNX or Python, with notes on inputs and outputs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.state import State
from nearkin.nets.functional import evaluation_mode
from nearkin.nets.solved import Solved
from nearkin.search.networks.named import PATH, parse_network
from nearkin.tasks.likelihood import likelihood
from nearkin.transfer.machine import TangentMachine
from nearkin.zoo.export_formats import agreement, export_onnx, export_python, export_torch, load_network, sample

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


def files(to: str, file: Path) -> list[Path]:
    """The files that `exported` writes.

    >>> [str(path) for path in files("python", Path("net.py"))]
    ['net.py', 'net.safetensors']
    """
    return [file, file.with_suffix(SUFFIXES["torch"])] if to == "python" else [file]


def exported(solved: Solved, to: str, file: Path, trial: int = 0) -> dict[str, Any]:
    """Write the network of one trial; returns the files and the largest difference of their outputs.

    Args:
        solved: the solved task; only searched networks can be written as a Python file.
        to: `torch`, `onnx`, or `python` with its weights in a safetensors file of the same name.
        file: to write.
        trial: index of the trial.
    """
    require(to in SUFFIXES, f"the format is one of {', '.join(SUFFIXES)}, got {to!r}")
    require(file.suffix == SUFFIXES[to], f"a file for {to} ends in {SUFFIXES[to]}, got {file}; rename it")
    require(
        0 <= trial < len(solved.trials),
        f"'{solved.name}' has trials 0 to {len(solved.trials) - 1}, got {trial}; choose one of these",
    )
    model, shape = solved.model(trial), tuple(solved.facts["input_shape"])
    if to == "onnx":
        require(
            not isinstance(model, TangentMachine),
            f"'{solved.name}' is solved in closed form with derivatives of a network, which ONNX cannot represent; use "
            f"--to torch, or solve it without transfer",
            MismatchError,
        )
        return {"files": [str(file)], "error": export_onnx(model, file, shape)}
    searched = solved.network.startswith(PATH)
    weights, lines = file.with_suffix(SUFFIXES["torch"]), notes(solved, trial)
    if to == "python":
        require(
            searched,
            f"'{solved.name}' has the network {solved.network}, but only searched networks can be written as a "
            f"Python file; use --to onnx or --to torch",
            MismatchError,
        )
        error = export_python(model, file, *parse_network(solved.network), shape, solved.num_outputs, notes=lines)
        _write_weights(solved, model, weights, shape, lines)
        return {"files": [str(file), str(weights)], "error": error}
    _write_weights(solved, model, weights, shape, lines)
    if not searched:
        return {"files": [str(weights)], "error": 0.0}
    loaded, x = load_network(weights), sample(model, shape, 3)
    with evaluation_mode(loaded):
        return {"files": [str(weights)], "error": agreement(model, x, loaded(x), "the file")}


def notes(solved: Solved, trial: int = 0) -> list[str]:
    """Sentences for users of the exported network: scaling of inputs, order of outputs, metric."""
    facts, scores = solved.facts, solved.trials[trial].scores
    scaling, of_targets = facts["scaling"], facts["target_scaling"]
    if facts["likelihood"] == "language":
        inputs = "Inputs are indices of tokens, in the order of the outputs."
    elif scaling is None:
        inputs = f"Inputs are the values of the data{BYTES}, without scaling."
    else:
        axis = "channel" if len(facts["input_shape"]) == 3 else "column"
        inputs = f"Inputs are (x − mean) / deviation for each {axis}, x the values of the data{BYTES}: "
        inputs += _scaled(scaling)
    names = _listed([json.dumps(name, ensure_ascii=False) for name in facts["classes"]])
    outputs = f"Outputs are {OUTPUTS[facts['likelihood']]} {names}, in this order."
    if of_targets is not None:
        outputs += f" In the units of the data a prediction is output · deviation + mean: {_scaled(of_targets)}"
    metric = likelihood(facts["likelihood"]).metric
    return [inputs, outputs, f"On the {scores.count} test examples of '{solved.name}': {metric} {scores.metric:.4f}."]


def _scaled(scaling: Mapping[str, Sequence[float]]) -> str:
    mean, deviation = (_listed([f"{value:.7g}" for value in scaling[name]]) for name in ("mean", "std"))
    return f"mean {mean}; deviation {deviation}."


def _listed(items: Sequence[str]) -> str:
    more = f", … ({len(items)} in all, in the weights' metadata)" if len(items) > MANY else ""
    return ", ".join(items[:MANY]) + more


def _write_weights(solved: Solved, model: nn.Module, file: Path, shape: tuple[int, ...], lines: list[str]) -> None:
    """Write all weights and buffers by name, with the facts of the task."""
    facts = {"task": dict(solved.facts), "made_by": solved.network, "notes": lines}
    if solved.network.startswith(PATH):
        export_torch(model, file, *parse_network(solved.network), shape, solved.num_outputs, facts)
    else:
        State(model.state_dict(), facts).save(file)
