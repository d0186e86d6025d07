"""Pull a model from a folder that `push` wrote: verify its files, build its network, and store it.

Nothing of the folder is run. Code that its network names must be trusted already (`nets.trusted_code`). The data of its
task are not in the folder: without a task the model is stored like one that was adopted without a task.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.clock import now
from nearkin.core.errors import DataError, MismatchError, NearkinError, require
from nearkin.core.events import Caution, Note, Work
from nearkin.core.state import State
from nearkin.nets.adopted import AdoptedNetwork
from nearkin.nets.adopted_spec import ADOPTED, ADOPTED_FACTS, adopted_spec, network_label
from nearkin.nets.adoption import AdoptedModel, probe_inputs
from nearkin.nets.evaluate import Scores
from nearkin.nets.functional import blank, differences, outputs_of
from nearkin.nets.heads import head_name
from nearkin.nets.history import History
from nearkin.nets.hub_folder import TOKENIZER_FILE
from nearkin.nets.solved import Solved, task_facts
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.training_loop import Fit
from nearkin.nets.trusted_code import absolute, remember, require_trusted, trust_network
from nearkin.nets.weight_files import WHOLE_FILE
from nearkin.store.records import TaskRecord, require_plain
from nearkin.tasks.likelihood import likelihood
from nearkin.tasks.network_inputs import NETWORK_INPUTS, NetworkInputs
from nearkin.tasks.task import Task
from nearkin.tasks.texts import Tokenizer
from nearkin.zoo.adopted_rows import LONGEST_TEXT, model_row, store_with_task
from nearkin.zoo.candidate_names import require_model_name
from nearkin.zoo.licences import licence_caution
from nearkin.zoo.preprocess import ORDERS
from nearkin.zoo.push_model import PREFIX, PULLED
from nearkin.zoo.pushed_files import EXTRA, TASK_KEYS, PushedFacts, read_folder
from nearkin.zoo.solved_tasks import TOKENIZER, SolvedTasks

CLOSE = 1e-4  # relative difference of two scalings that are taken as the same


def pull_model(
    zoo: SolvedTasks, folder: str | Path, name: str | None = None, task: Task | None = None, code: str = ""
) -> Work[TaskRecord]:
    """Store the model of a folder.

    Args:
        zoo: the zoo.
        folder: that `push` wrote.
        name: of the model (default: the one in the folder).
        task: that it was trained on, or another one with the same classes; its metric and Fisher information are
            measured (default: it is stored as a model without a task).
        code: module or file of its class on this machine, if the folder names another one; it is trusted.
    """
    start = now()
    zoo.catalogue.database.require_writable()
    pushed, files = read_folder(folder)
    origin = f"the model in {folder}"
    name = pushed["name"] if name is None else name
    require_model_name(name)
    zoo.catalogue.claimable(name)
    _require_texts(pushed, origin)
    network = _with_code(pushed["network"], code) if code else pushed["network"]
    require_trusted(network)
    solved = _solved(name, network, pushed, files, origin)
    adopted = _adopted(solved, origin)
    if warning := licence_caution(name, pushed["licence"]):
        yield Caution(warning)
    facts = {
        ADOPTED_FACTS: {
            "label": adopted.label, "licence": pushed["licence"], "source": pushed["source"],
            "features": adopted.num_features, "channel_order": pushed["channel_order"],
        },
        PULLED: {key: pushed[key] for key in ("name", "data", "figures", "kin", "versions")},
    }  # fmt: skip
    if task is None:
        form = likelihood(solved.facts["likelihood"])
        known = {**solved.facts, **facts, "metric_name": form.metric}
        row = model_row(name, adopted, solved.inputs.shape, known, now() - start, solved.trials[0].scores, solved.seed)
        record = zoo.catalogue.add(*row)
    else:
        inputs = _inputs_for(task, solved)
        own = {} if inputs is None else {NETWORK_INPUTS: inputs.facts()}
        seen = task if inputs is None else inputs(task)
        record = yield from store_with_task(zoo, replace(task, name=name), seen, adopted, own, facts, start)
    yield Note(f"'{name}': {adopted.label}, pulled from {folder} in {now() - start:.1f} s")
    if warning := remember(network):
        yield Caution(warning)
    return record


def _require_texts(pushed: PushedFacts, origin: str) -> None:
    """Refuse texts that cannot be shown or stored."""
    for key in ("network", "label", "licence", "source", "data"):
        value: str = pushed[key]
        require_plain(f"{key} of {origin}", value)
        longest = 2**21 if key == "network" else LONGEST_TEXT
        require(
            len(value) <= longest, f"{origin}: {key} has {len(value)} characters, expected {longest} at most", DataError
        )
    order = pushed["channel_order"]
    require(order in ORDERS, f"{origin}: the order of channels is {order[:40]!r}, expected rgb or bgr", DataError)


def _with_code(network: str, code: str) -> str:
    """The network string with the class of the same name from another module or file, which the user typed."""
    spec = adopted_spec(network)
    inner = NetworkSpec.parse(network if spec is None else spec.network or "mlp")
    require(
        ":" in inner.name and not inner.name.startswith("nearkin."),
        f"got the code {code}, but {network_label(network)[:80]} needs no code; leave it out",
    )
    changed = str(replace(inner, name=absolute(f"{code}:{inner.name.rpartition(':')[2]}")))
    result = changed if spec is None else replace(spec, network=changed).network_string
    trust_network(result)
    return result


def _solved(name: str, network: str, pushed: PushedFacts, files: Mapping[str, bytes], origin: str) -> Solved:
    """The network with its tensors, as a solved task; its parts are checked when it is built."""
    prefix = PREFIX if network.startswith(f"{ADOPTED}?") else ""
    own = _tensors(files[WHOLE_FILE], f"{WHOLE_FILE} of {origin}")
    extra = _tensors(files[EXTRA], f"{EXTRA} of {origin}") if EXTRA in files else {}
    tensors = {f"{prefix}{key}": value for key, value in own.items()}
    twice = sorted(set(tensors) & set(extra))
    require(not twice, f"{origin} has {twice[:1]} in two files; push it again", DataError)
    task = {"source": "", **{key: value for key, value in pushed["task"].items() if key in TASK_KEYS}}
    stored = task.get(NETWORK_INPUTS)
    if isinstance(stored, dict) and TOKENIZER in stored:
        require(TOKENIZER_FILE in files, f"{origin} has no {TOKENIZER_FILE}; push it again", DataError)
        task[NETWORK_INPUTS] = {**stored, TOKENIZER: _tokenizer(stored[TOKENIZER], files[TOKENIZER_FILE], origin)}
    facts = task_facts(task, origin)
    try:
        inputs, form = NetworkInputs.of(facts), likelihood(facts["likelihood"])
    except (TypeError, ValueError, KeyError) as odd:
        raise DataError(f"{origin}: the inputs of its network are damaged ({odd}); push it again") from odd
    fits = 1 <= len(inputs.shape) <= 4 and min(inputs.shape) >= 1 and form.num_outputs(len(facts["classes"])) >= 1
    require(fits, f"{origin}: its inputs have the shape {inputs.shape}, which no network has; push it again", DataError)
    fit = pushed["fit"]
    scores = Scores(fit["metric"], fit["loss"], fit["count"])
    trial = Fit({**tensors, **extra}, {}, History(torch.zeros(0)), scores, fit["seconds"], fit["reached"])
    return Solved(name, network, facts, pushed["seed"], (trial,))


def _tensors(content: bytes, origin: str) -> dict[str, Tensor]:
    tensors = dict(State.from_bytes(content, origin).tensors)
    odd = [name for name, value in tensors.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    require(not odd, f"{origin}: {', '.join(odd[:3])} has values that are not finite; push it again", DataError)
    return tensors


def _tokenizer(stored: Any, content: bytes, origin: str) -> dict[str, Any]:
    """Facts of a tokenizer with its content."""
    valid = isinstance(stored, dict) and isinstance(stored.get("fields"), list) and type(stored.get("length")) is int
    require(valid, f"{origin}: its tokenizer is not described; push it again", DataError)
    return Tokenizer.from_facts({**stored, "content": content.decode("utf-8", "replace")}).facts()


def _adopted(solved: Solved, origin: str) -> AdoptedModel:
    """Build the network, and compare names, shapes and types of the tensors with it."""
    model, tensors = solved.model(), solved.trials[0].params
    params, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    wrong = differences(tensors, {**params, **buffers}, types=True)
    require(not wrong, f"the weights of {origin} do not fit its network: {wrong}; push it again", MismatchError)
    return AdoptedModel(
        solved.network,
        network_label(solved.network),
        solved.num_outputs,
        _num_features(model, solved.inputs),
        {key: tensors[key] for key in params},
        {key: tensors[key] for key in buffers},
    )


def _num_features(model: nn.Module, inputs: NetworkInputs) -> int:
    """Number of inputs of the head; 0 for a network that does not end in a linear layer."""
    if isinstance(model, AdoptedNetwork):
        outputs_of(model, probe_inputs(inputs, inputs.shape, model.spec.fields))
        path = model.head_path
    else:
        try:
            path = head_name(model, blank(model, inputs.shape))
        except NearkinError:
            return 0
    head = dict(model.named_modules()).get(path)
    return head.in_features if isinstance(head, nn.Linear) else 0


def _inputs_for(task: Task, solved: Solved) -> NetworkInputs | None:
    """Inputs of the network on a task; None if those of the task are the same. A task of another kind is refused."""
    facts, measured = solved.facts, solved.trials[0].scores.count > 0
    for title, own, other in (
        ("likelihood", facts["likelihood"], task.likelihood),
        ("number of classes", len(facts["classes"]), len(task.classes)),
        ("classes", list(facts["classes"]) if measured else list(task.classes), list(task.classes)),
        ("encoding of columns", dict(facts.get("preprocessing") or task.preprocessing), dict(task.preprocessing)),
    ):
        require(
            own == other,
            f"'{solved.name}' has {title} {str(own)[:80]}, '{task.name}' has {str(other)[:80]}; give the task it was "
            f"trained on, or pull it without a task",
            MismatchError,
        )
    own_targets, targets = facts["target_scaling"], task.train.target_scaling.to_dict()
    require(
        _same(own_targets, targets),
        f"'{solved.name}' was trained with another scaling of the targets than '{task.name}' has; give the task it was "
        f"trained on, or pull it without a task",
        MismatchError,
    )
    if NETWORK_INPUTS in facts:
        return solved.inputs
    scaling, shape = facts["scaling"], tuple(facts["input_shape"])
    if not measured or (shape == task.input_shape and _same(scaling, task.train.scaling.to_dict(), 0)):
        return None
    scaling = scaling or {"mean": [0.0], "std": [1.0]}
    mean, std = (tuple(values) * (shape[0] if len(values) == 1 else 1) for values in (scaling["mean"], scaling["std"]))
    return NetworkInputs(shape, mean, std)


def _same(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None, tolerance: float = CLOSE) -> bool:
    """Whether two scalings are equal up to a relative difference."""
    if first is None or second is None:
        return first is second
    pairs = [(list(first[key]), list(second[key])) for key in ("mean", "std")]
    return all(
        len(a) == len(b) and all(abs(x - y) <= tolerance * (abs(x) + abs(y)) for x, y in zip(a, b, strict=True))
        for a, b in pairs
    )
