"""Candidates of a ranking: trained networks from a zoo, from memory, from files, or raw inputs as a baseline."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from nearkin.core.errors import OptionError, require
from nearkin.core.rng import derived_seed, seeded
from nearkin.nets.adopted import AdoptedNetwork
from nearkin.nets.adopted_spec import AdoptedSpec, network_label
from nearkin.nets.functional import num_parameters
from nearkin.nets.hub_folder import is_hub_folder
from nearkin.nets.registry import build, create_network
from nearkin.nets.solved import Solved
from nearkin.nets.spec import NETWORKS
from nearkin.nets.trusted_code import trust_network
from nearkin.tasks.named_inputs import stored_fields
from nearkin.tasks.network_inputs import NetworkInputs
from nearkin.tasks.task import Task
from nearkin.zoo.model_file import loaded
from nearkin.zoo.preprocess import Preprocess
from nearkin.zoo.solved_tasks import SolvedTasks

PIXELS = "pixels"
"""Name of the candidate without a network: the inputs themselves are its features."""

ZOO = "zoo:"
CandidateSource: TypeAlias = nn.Module | Solved | str
CandidateList: TypeAlias = Sequence[CandidateSource] | Mapping[str, CandidateSource]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A network that is ranked; it is loaded only if its features are not known.

    Attributes:
        name: in the table.
        inputs: how inputs are prepared for it.
        load: loads it; its memory is freed after its features are computed.
        digest: hash of its weights and of its inputs.
        parameters: number of its weights.
        label: of its network.
        metric: on the task it was trained on; None if it is not known.
        licence: empty if it is not known.
        probe: network, input shape and seed of a task in a zoo; candidates that share them are of one architecture.
        in_memory: whether it is a module of the caller, whose code may change.
    """

    name: str
    inputs: Callable[[], NetworkInputs]
    load: Callable[[], nn.Module]
    digest: Callable[[], str]
    parameters: int
    label: str = ""
    metric: float | None = None
    licence: str = ""
    probe: tuple[Any, ...] | None = None
    in_memory: bool = False


def read_candidates(
    candidates: CandidateList, task: Task, zoo: SolvedTasks | None, preprocess: Preprocess
) -> Iterator[Candidate]:
    """Candidates with unique names; nothing is loaded yet."""
    named = list(candidates.items()) if isinstance(candidates, Mapping) else [("", item) for item in candidates]
    require(bool(named), "got no candidate; name networks of the zoo, files, or pixels")
    seen: dict[str, int] = {}
    for name, source in named:
        candidate = _candidate(name, source, task, zoo, preprocess)
        count = seen[candidate.name] = seen.get(candidate.name, 0) + 1
        if count > 1:
            candidate = Candidate(**{**vars(candidate), "name": f"{candidate.name} ({count})"})
        yield candidate


def _candidate(
    name: str, source: CandidateSource, task: Task, zoo: SolvedTasks | None, preprocess: Preprocess
) -> Candidate:
    if isinstance(source, nn.Module):
        return _of_module(name or type(source).__name__, source, task, preprocess, type(source).__name__)
    if isinstance(source, Solved):
        return _of_solved(name or source.name, source)
    require(isinstance(source, str), f"a candidate is a {type(source).__name__}, expected a network or a name")
    if source == PIXELS:
        inputs = NetworkInputs(task.input_shape)
        return Candidate(name or PIXELS, lambda: inputs, nn.Flatten, lambda: PIXELS, 0, "inputs")
    stored = source.removeprefix(ZOO)
    if zoo is not None and (source.startswith(ZOO) or stored in zoo):
        return _of_zoo(name or stored, stored, zoo)
    require(
        not source.startswith(ZOO), f"got the candidate {source}, but no zoo; give one: nk.rank(…, zoo=nk.Zoo(path))"
    )
    path = Path(source)
    if path.suffix == ".safetensors" and path.is_file():
        return _of_solved(name or path.stem, loaded(path))
    require(not is_hub_folder(source), f"{source} is a folder of a model; adopt it first: nearkin adopt NAME {source}")
    if ":" in source or source.partition("?")[0] in NETWORKS:
        trust_network(source)
        return _of_module(name or source.rpartition(":")[2], _new(source, task), task, preprocess, "random weights")
    known = f"; the zoo has {', '.join(zoo.names()[:8])}" if zoo is not None and len(zoo) else ""
    raise OptionError(
        f"unknown candidate {source[:200]!r}; expected a network of the zoo, a model file, package.module:Name or "
        f"{PIXELS}{known}"
    )


def _new(network: str, task: Task) -> nn.Module:
    """A network with random weights, the same in every call."""
    if network.partition("?")[0] in NETWORKS:
        return build(network, task.input_shape, task.num_outputs, seed=0)
    with seeded(derived_seed(0, "init", 0)):
        return create_network(network)


def _of_zoo(name: str, stored: str, zoo: SolvedTasks) -> Candidate:
    record = zoo.record(stored)

    def digest() -> str:
        weights = [item.digest for item in zoo.catalogue.artifacts(stored, kind="weights") if item.trial == 0]
        return _digest({}, repr((record.network, weights)), zoo.network_inputs(record))

    return Candidate(
        name,
        lambda: zoo.network_inputs(record),
        lambda: zoo.solved(stored).model(),
        digest,
        record.parameters,
        network_label(record.network),
        record.metric if record.trials else None,
        str(record.facts.get("adopted", {}).get("licence", "")),
        (record.network, record.input_shape, record.seed) if record.trials else None,
    )


def _of_solved(name: str, solved: Solved) -> Candidate:
    params = solved.trials[0].params
    return Candidate(
        name, lambda: solved.inputs, solved.model, lambda: _digest(params, solved.network, solved.inputs),
        sum(value.numel() for value in params.values()), network_label(solved.network), solved.metric,
    )  # fmt: skip


def _of_module(name: str, module: nn.Module, task: Task, preprocess: Preprocess, label: str) -> Candidate:
    inputs = preprocess.inputs(task) or NetworkInputs(task.input_shape)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    named = stored_fields(task.preprocessing)
    model = module
    if named or preprocess.order == "bgr":
        spec = AdoptedSpec(label=label, layers={}, fields=named, reversed_channels=preprocess.order == "bgr")
        model = AdoptedNetwork(module, spec, 1)
    return Candidate(
        name,
        lambda: inputs,
        lambda: model,
        lambda: _digest(tensors, repr(model), inputs),
        num_parameters(module),
        label,
        in_memory=True,
    )


def _digest(tensors: Mapping[str, Tensor], network: str, inputs: NetworkInputs) -> str:
    """Hash of a network's weights and of how its inputs are prepared."""
    digest = hashlib.sha256(repr((network, inputs.facts())).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()
