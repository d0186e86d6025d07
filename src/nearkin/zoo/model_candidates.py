"""Candidates of a ranking: trained networks from a zoo, from memory, from files, or raw inputs as a baseline."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.rng import derived_seed, seeded
from nearkin.nets.adopted import AdoptedNetwork
from nearkin.nets.adopted_spec import ADOPTED_FACTS, AdoptedSpec, network_label
from nearkin.nets.functional import num_parameters
from nearkin.nets.hub_folder import is_hub_folder
from nearkin.nets.registry import build, create_network
from nearkin.nets.solved import Solved
from nearkin.nets.spec import NETWORKS
from nearkin.nets.trusted_code import code_digest, require_trusted, trust_network
from nearkin.tasks.network_inputs import NetworkInputs
from nearkin.tasks.task import Task
from nearkin.tasks.texts import is_text
from nearkin.zoo.candidate_names import PIXELS, ZOO
from nearkin.zoo.model_file import loaded
from nearkin.zoo.preprocess import Preprocess, input_fields
from nearkin.zoo.solved_tasks import SolvedTasks

CandidateSource: TypeAlias = nn.Module | Solved | str
CandidateList: TypeAlias = CandidateSource | Sequence[CandidateSource] | Mapping[str, CandidateSource]


@dataclass(frozen=True)
class CandidateFacts:
    """What a ranking tells about a candidate besides its scores.

    Attributes:
        label: of its network.
        parameters: number of its weights.
        metric: on the task it was trained on; None if it is not known.
        licence: empty if it is not known.
        stored: its name in the zoo; empty for others.
    """

    label: str
    parameters: int
    metric: float | None = None
    licence: str = ""
    stored: str = ""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A network that is ranked; one of a zoo is loaded only if its features are not known.

    Attributes:
        inputs: how inputs are prepared for it.
        load: loads it; its memory is freed after its features are computed.
        digest: hash of its weights and of its inputs.
        facts: that the ranking tells.
        by_code: whether the code of the network, which is not part of the digest, may change.
    """

    inputs: NetworkInputs
    load: Callable[[], nn.Module]
    digest: str
    facts: CandidateFacts
    by_code: bool = False


CandidateReader: TypeAlias = Callable[[], Candidate]


def candidate_readers(
    candidates: CandidateList, task: Task, zoo: SolvedTasks | None, preprocess: Preprocess
) -> dict[str, CandidateReader]:
    """Functions that read the candidates, by unique names; an unknown name is refused before anything is read."""
    if isinstance(candidates, nn.Module | Solved | str):
        candidates = [candidates]
    require(
        isinstance(candidates, Iterable),
        f"the candidates are a {type(candidates).__name__}, expected networks or names; give a list",
    )
    named = list(candidates.items()) if isinstance(candidates, Mapping) else [("", item) for item in candidates]
    require(bool(named), "got no candidate; name networks of the zoo, files, or pixels")
    by_name: dict[str, list[tuple[CandidateSource, CandidateReader]]] = {}
    for given, source in named:
        require(isinstance(given, str), f"the name of a candidate is {given!r}, expected text")
        known, read = _reader(source, task, zoo, preprocess)
        by_name.setdefault(given or known, []).append((source, read))
    readers: dict[str, CandidateReader] = {}
    for name, same in by_name.items():
        if len(same) > 1:
            same.sort(key=lambda candidate: _number_key(candidate[0]))
        numbered = (f"{name} ({count})" for count in itertools.count(2))
        unused = (unique for unique in itertools.chain([name], numbered) if unique == name or unique not in by_name)
        readers |= {unique: read for unique, (_, read) in zip(unused, same, strict=False)}
    return readers


def _number_key(source: CandidateSource) -> tuple[bool, str]:
    """Order in which candidates of one name are numbered: named ones first, others by a hash of their weights."""
    if isinstance(source, str):
        return False, source
    tensors = _tensors(source) if isinstance(source, nn.Module) else source.trials[0].params
    try:
        return True, _digest(tensors, str(source) if isinstance(source, nn.Module) else source.network)
    except MismatchError:  # it is refused later
        return True, ""


def _reader(
    source: CandidateSource, task: Task, zoo: SolvedTasks | None, preprocess: Preprocess
) -> tuple[str, CandidateReader]:
    """Name of a candidate, and a function that reads it."""
    if isinstance(source, nn.Module):
        label = type(source).__name__
        return label, partial(_of_module, source, label, task, preprocess)
    if isinstance(source, Solved):
        return source.name, partial(_of_solved, source)
    require(isinstance(source, str), f"a candidate is a {type(source).__name__}, expected a network or a name")
    if source == PIXELS:
        return PIXELS, partial(_of_pixels, task)
    stored = source.removeprefix(ZOO)
    if zoo is not None and stored in zoo:
        return stored, partial(_of_zoo, stored, zoo)
    in_zoo = source.startswith(ZOO)
    require(
        zoo is not None or not in_zoo, f"got the candidate {source}, but no zoo; give one: nk.rank(…, zoo=nk.Zoo(path))"
    )
    path = Path(source)
    if path.suffix == ".safetensors" and path.is_file():
        return path.stem, lambda: _of_solved(loaded(path))
    require(not is_hub_folder(source), f"{source} is a folder of a model; adopt it first: nearkin adopt NAME {source}")
    if not in_zoo and (":" in source or source.partition("?")[0] in NETWORKS):
        trust_network(source)
        return source.rpartition(":")[2], partial(_of_string, source, task, preprocess)
    names = f"; the zoo has {', '.join(zoo.names()[:8])}" if zoo is not None and len(zoo) else ""
    raise OptionError(
        f"unknown candidate {source[:200]!r}; expected a network of the zoo, a model file, package.module:Name or "
        f"{PIXELS}{names}"
    )


def _of_pixels(task: Task) -> Candidate:
    require(
        not is_text(task),
        f"the raw inputs of '{task.name}' are texts, which have no features; leave {PIXELS} out",
        MismatchError,
    )
    return Candidate(NetworkInputs(task.input_shape), nn.Flatten, PIXELS, CandidateFacts("inputs", 0))


def _of_zoo(stored: str, zoo: SolvedTasks) -> Candidate:
    record = zoo.record(stored)
    require_trusted(record.network)  # before features of earlier code are read
    inputs = zoo.network_inputs(record)
    weights = [item.digest for item in zoo.catalogue.artifacts(stored, kind="weights") if item.trial == 0]
    facts = CandidateFacts(
        network_label(record.network),
        record.parameters,
        record.metric if record.trials else None,
        str(record.facts.get(ADOPTED_FACTS, {}).get("licence", "")),
        stored,
    )
    digest = _digest({}, repr((record.network, weights, code_digest(record.network))), inputs)
    return Candidate(inputs, lambda: zoo.solved(stored).model(), digest, facts)


def _of_solved(solved: Solved) -> Candidate:
    require_trusted(solved.network)
    params = solved.trials[0].params
    count = sum(value.numel() for value in params.values())
    facts = CandidateFacts(network_label(solved.network), count, solved.metric)
    network = repr((solved.network, code_digest(solved.network)))
    return Candidate(solved.inputs, solved.model, _digest(params, network, solved.inputs), facts)


def _of_string(network: str, task: Task, preprocess: Preprocess) -> Candidate:
    """A network with random weights, the same in every call."""
    if network.partition("?")[0] in NETWORKS:
        inputs = preprocess.inputs(task) or NetworkInputs(task.input_shape)
        module = build(network, inputs.shape, task.num_outputs, seed=0)
    else:
        with seeded(derived_seed(0, "init", 0)):
            module = create_network(network)
    return _of_module(module, "random weights", task, preprocess)


def _of_module(module: nn.Module, label: str, task: Task, preprocess: Preprocess) -> Candidate:
    inputs = preprocess.inputs(task) or NetworkInputs(task.input_shape)
    reverse = preprocess.order == "bgr"
    spec = AdoptedSpec(label=label, layers={}, fields=input_fields(inputs, task), reversed_channels=reverse)
    model = AdoptedNetwork(module, spec, 1) if spec.fields or reverse else module
    digest = _digest(_tensors(module), f"{module} {spec}", inputs)
    return Candidate(inputs, lambda: model, digest, CandidateFacts(label, num_parameters(module)), by_code=True)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _digest(tensors: Mapping[str, Tensor], network: str, inputs: NetworkInputs | None = None) -> str:
    """Hash of a network's weights and of how its inputs are prepared."""
    digest = hashlib.sha256(repr((network, inputs and inputs.facts())).encode())
    for name in sorted(tensors):
        try:
            value = tensors[name].detach().cpu().contiguous()
        except (RuntimeError, ValueError) as failed:  # of a lazy layer, or on the device meta
            raise MismatchError(f"its weights {name} have no values yet; load them, or call it once") from failed
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()
