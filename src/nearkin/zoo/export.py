"""A trained network out of the house: plain weights, ONNX, or a Python file, each compared with ours when written."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.state import State
from nearkin.nets.functional import evaluation_mode
from nearkin.nets.solved import Solved
from nearkin.search.networks.named import PATH, parsed
from nearkin.tasks.likelihood import likelihood
from nearkin.transfer.machine import TangentMachine
from nearkin.zoo.export_formats import agreement, export_onnx, export_python, export_torch, load_network, sample

SUFFIXES = {"torch": ".safetensors", "onnx": ".onnx", "python": ".py"}
"""Endings of what is written, by its kind."""

MANY = 100  # things listed in a note; a vocabulary has thousands
BYTES = " (bytes of images divided by 255)"

OUTPUTS = {
    "categorical": "logits of the classes",
    "language": "logits of the next token at every position, of the vocabulary",
    "gaussian": "predictions of the columns",
    "heteroscedastic": "predictions, and then log variances, of the columns",
    "dense": "images of the channels",
}


def files(to: str, file: Path) -> list[Path]:
    """What `exported` writes.

    >>> [str(one) for one in files("python", Path("net.py"))]
    ['net.py', 'net.safetensors']
    """
    return [file, file.with_suffix(SUFFIXES["torch"])] if to == "python" else [file]


def exported(solved: Solved, to: str, file: Path, trial: int = 0) -> dict[str, Any]:
    """Write one trial's network; returns the files and by how much the outputs differ from ours.

    Args:
        solved: any; a Python file can be written of a searched network only.
        to: `torch`, `onnx` or `python`, which has its weights beside it in a safetensors file.
        file: to write.
        trial: which one.
    """
    require(to in SUFFIXES, f"a model is written to {', '.join(SUFFIXES)}; got {to!r}")
    require(
        file.suffix == SUFFIXES[to], f"what is written to {to} ends in {SUFFIXES[to]}, got {file}; name the file so"
    )
    require(
        0 <= trial < len(solved.trials),
        f"{solved.name} has trials 0 to {len(solved.trials) - 1}, got {trial}; choose one of these",
    )
    model, shape = solved.model(trial), tuple(solved.facts["input_shape"])
    if to == "onnx":
        require(
            not isinstance(model, TangentMachine),
            f"{solved.name} is answered in closed form, by derivatives of a network, for which ONNX has no form; use "
            f"--to torch, or solve it without transfer",
            MismatchError,
        )
        return {"files": [str(file)], "error": export_onnx(model, file, shape)}
    ours = solved.network.startswith(PATH)
    weights, told = file.with_suffix(SUFFIXES["torch"]), notes(solved, trial)
    if to == "python":
        require(
            ours,
            f"{solved.name} is solved by {solved.network}, whose code is where that name says; a Python file is "
            f"written of networks that were searched, so use --to onnx or --to torch",
            MismatchError,
        )
        error = export_python(model, file, *parsed(solved.network), shape, solved.num_outputs, notes=told)
        _weights(solved, model, weights, shape, told)
        return {"files": [str(file), str(weights)], "error": error}
    _weights(solved, model, weights, shape, told)
    if not ours:
        return {"files": [str(weights)], "error": 0.0}
    again, x = load_network(weights), sample(model, shape, 3)
    with evaluation_mode(again):
        return {"files": [str(weights)], "error": agreement(model, x, again(x), "the file")}


def notes(solved: Solved, trial: int = 0) -> list[str]:
    """What one must know to use the network without nearkin: scaling, order of outputs, how good it is."""
    facts, scores = solved.facts, solved.trials[trial].scores
    scaling, of_targets = facts["scaling"], facts["target_scaling"]
    if facts["likelihood"] == "language":
        inputs = "Inputs are the numbers of tokens, which are counted as outputs are."
    elif scaling is None:
        inputs = f"Inputs are the values of the data{BYTES}, without scaling."
    else:
        what = "channel" if len(facts["input_shape"]) == 3 else "column"
        inputs = f"Inputs are (x − mean) / deviation, {what} by {what}, of the values x of the data{BYTES}: "
        inputs += _scaled(scaling)
    names = _listed([json.dumps(name, ensure_ascii=False) for name in facts["classes"]])
    outputs = f"Outputs are {OUTPUTS[facts['likelihood']]} {names}, in this order."
    if of_targets is not None:
        outputs += f" In the units of the data a prediction is output · deviation + mean: {_scaled(of_targets)}"
    metric = likelihood(facts["likelihood"]).metric
    return [inputs, outputs, f"On the {scores.count} test examples of {solved.name}: {metric} {scores.metric:.4f}."]


def _scaled(scaling: Mapping[str, Sequence[float]]) -> str:
    mean, deviation = (_listed([f"{value:.7g}" for value in scaling[name]]) for name in ("mean", "std"))
    return f"mean {mean}; deviation {deviation}."


def _listed(items: Sequence[str]) -> str:
    more = f", … ({len(items)} in all, in the weights' metadata)" if len(items) > MANY else ""
    return ", ".join(items[:MANY]) + more


def _weights(solved: Solved, model: nn.Module, file: Path, shape: tuple[int, ...], told: list[str]) -> None:
    """All weights and buffers by their names, with what is known of the task."""
    facts = {"task": dict(solved.facts), "made_by": solved.network, "notes": told}
    if solved.network.startswith(PATH):
        export_torch(model, file, *parsed(solved.network), shape, solved.num_outputs, facts)
    else:
        State(model.state_dict(), facts).save(file)
