"""Export formats: safetensors weights, ONNX, and a standalone Python file; outputs are compared with the network's."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, optional, require
from nearkin.core.files import write_durably
from nearkin.core.plain import typed
from nearkin.core.state import State, restoring
from nearkin.nets.functional import blank, evaluation_mode
from nearkin.nets.size_limit import require_size
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.networks.build import build_network
from nearkin.search.networks.skeleton import Skeleton
from nearkin.zoo.predictor import Predictor
from nearkin.zoo.python_source import Preprocessing, python_source

TOLERANCE = 1e-5
VERSION = 1
"""Version of the facts in an exported safetensors file."""


def agreement(model: nn.Module, x: Tensor, outputs: Tensor, origin: str = "the export") -> float:
    r"""$\max |f(x) - g(x)| / \max(1, \max |f(x)|)$ of a network f and other outputs g for the same inputs.

    Raises an error if it is above 1e-5, or if shapes differ.

    >>> model = nn.Linear(2, 1)
    >>> x = torch.ones(3, 2)
    >>> agreement(model, x, model(x))
    0.0
    """
    with evaluation_mode(model):
        wanted = model(x)
    require(
        wanted.shape == outputs.shape,
        f"{origin} gives outputs of shape {tuple(outputs.shape)}, the network {tuple(wanted.shape)}; do not use it",
        MismatchError,
    )
    difference = float((outputs.detach().to(wanted) - wanted).abs().max() / wanted.abs().max().clamp_min(1))
    require(
        difference <= TOLERANCE,
        f"{origin} differs from the network by {difference:.2g}, at most {TOLERANCE:g} is allowed; do not use it",
        MismatchError,
    )
    return difference


def export_torch(
    model: nn.Module,
    path: Path,
    genotype: Genotype,
    skeleton: Skeleton,
    input_shape: Sequence[int],
    num_outputs: int,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write the weights as safetensors, with genotype and skeleton; `load_network` reads them.

    Args:
        model: built by `build_network` from the same values.
        path: of the file.
        genotype: of the network.
        skeleton: macro-architecture of the network.
        input_shape: shape of one input.
        num_outputs: width of the head.
        facts: further plain values to store, such as the names of classes and the scaling of inputs.
    """
    network = {
        "version": VERSION,
        "genotype": str(genotype),
        "skeleton": skeleton.to_dict(),
        "input_shape": list(input_shape),
        "num_outputs": num_outputs,
    }
    State(dict(model.state_dict()), {"network": network, **(facts or {})}).save(path)


def load_network(path: Path) -> nn.Module:
    """The network of an exported safetensors file, in evaluation mode."""
    state = State.load(path)
    facts = state.facts.get("network")
    if not isinstance(facts, dict):
        raise DataError(f"{path} is not an exported network; write one with export-model --to torch")
    require(
        facts.get("version") == VERSION,
        f"{path} has version {facts.get('version')}, expected {VERSION}; export it again",
        DataError,
    )
    known = typed(_NetworkFacts, facts, str(path))
    with restoring(str(path)):
        skeleton, genotype = Skeleton.from_dict(known["skeleton"]), Genotype.parse(known["genotype"])
        shape, num_outputs = known["input_shape"], known["num_outputs"]
        require_size(str(path), lambda: build_network(genotype, skeleton, shape, num_outputs))
        model = build_network(genotype, skeleton, shape, num_outputs)
    try:
        model.load_state_dict(dict(state.tensors))
    except RuntimeError as mismatch:
        raise DataError(f"{path}: the weights do not fit the genotype in the file; export it again") from mismatch
    return model.eval()


class _NetworkFacts(TypedDict):
    """Facts of the network in an exported file."""

    genotype: str
    skeleton: dict[str, Any]
    input_shape: list[int]
    num_outputs: int


def export_onnx(
    model: nn.Module,
    path: Path,
    input_shape: Sequence[int],
    details: Mapping[str, str] | None = None,
    *,
    as_bytes: bool = False,
) -> float:
    """Write an ONNX file with a batch axis of any size; returns its difference from the model.

    Before it is written it is run with onnxruntime on two batches, and must agree to 1e-5.

    Args:
        model: the network, or a predictor with its preprocessing.
        path: of the file.
        input_shape: shape of one input.
        details: text by name for the metadata of the file.
        as_bytes: inputs are uint8 instead of float32.
    """
    for package in ("onnx", "onnxscript"):
        optional(package, "export", "writing ONNX")
    runtime = optional("onnxruntime", "export", "checking ONNX")
    batch = torch.export.Dim("batch")
    name = getattr(model, "answer", "outputs")
    try:
        with evaluation_mode(model), _quiet("torch.onnx"):
            program = torch.onnx.export(
                model, (sample(model, input_shape, 2, as_bytes),), dynamo=True, dynamic_shapes=({0: batch},),
                verbose=False, input_names=["x"], output_names=["values" if name == "means" else name],
            )  # fmt: skip
    except Exception as failed:
        reason = " ".join(str(failed.__cause__ or failed).split())[:160]
        raise MismatchError(f"torch cannot convert this model to ONNX ({reason}); use --to python") from failed
    assert program is not None
    proto = program.model_proto
    for key, text in (details or {}).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, text
    data: bytes = proto.SerializeToString()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    worst = 0.0
    for size in (1, 3):
        x = sample(model, input_shape, size, as_bytes)
        (outputs,) = session.run(None, {"x": x.numpy()})
        worst = max(worst, agreement(model, x, torch.from_numpy(outputs), "the ONNX file"))
    write_durably(path, data)
    return worst


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Suppress warnings, and messages of a logger below errors."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def export_python(
    model: Predictor, path: Path, network: str, input_shape: Sequence[int], num_outputs: int,
    preprocessing: Preprocessing, *, model_shape: Sequence[int] | None = None, notes: Sequence[str] = (),
) -> float:  # fmt: skip
    """Write `python_source` to a file, after a check that it builds the same model; returns the difference.

    The weights are not in it: write the `state_dict` of the model; `load` in the file reads them. The notes are
    sentences for its docstring.
    """
    source = python_source(network, input_shape, num_outputs, preprocessing, model_shape=model_shape, notes=notes)
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
        other = module.build()
        other.load_state_dict(model.state_dict())
    except Exception as failed:
        reason = " ".join(f"{type(failed).__name__}: {failed}".split())[:160]
        raise MismatchError(
            f"the code of {network[:80]} cannot be copied into one Python file ({reason}); use --to onnx"
        ) from failed
    x = sample(model, input_shape, 3)
    with evaluation_mode(other):
        difference = agreement(model, x, other(x), "the Python file")
    write_durably(path, source.encode())
    return difference


def sample(model: nn.Module, input_shape: Sequence[int], size: int, as_bytes: bool = False) -> Tensor:
    """Inputs for a comparison: noise in the units of the model, bytes, or tokens that every vocabulary has."""
    x, rng = blank(model, input_shape, size).cpu(), torch.Generator().manual_seed(0)
    if not x.is_floating_point():
        return x
    if as_bytes:
        return torch.randint(256, x.shape, generator=rng).to(torch.uint8)
    noise = torch.randn(x.shape, generator=rng)
    return noise * model.std + model.mean if isinstance(model, Predictor) and model.resize is None else noise
