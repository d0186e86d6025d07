"""Adopt a trained model: it becomes a member of the zoo without training.

With the task it was trained on, its metric and Fisher information are measured, and it takes part in all comparisons.
Without one it is a candidate of `rank`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.clock import now
from nearkin.core.errors import DataError, MismatchError, OptionError, require
from nearkin.core.events import Caution, Note, Work
from nearkin.core.rng import seeded
from nearkin.core.text import counted
from nearkin.nets.adopted_spec import ADOPTED_FACTS, AdoptedSpec
from nearkin.nets.adoption import NEW, adopt_module, copied_module, probe_inputs, require_shapes, token_fields
from nearkin.nets.heads import head_name
from nearkin.nets.hub_folder import FEATURES, TOKENIZER_FILE, HubFolder, is_hub_folder
from nearkin.nets.module_source import described, unwrapped
from nearkin.nets.registry import build, create_network
from nearkin.nets.spec import NETWORKS, NetworkSpec
from nearkin.nets.trusted_code import remember, trust_network
from nearkin.nets.weight_files import load_weights, read_weights, without_prefix
from nearkin.store.records import TaskRecord, require_plain
from nearkin.tasks.input_fields import InputField
from nearkin.tasks.named_inputs import fields_facts
from nearkin.tasks.network_inputs import NETWORK_INPUTS, NetworkInputs
from nearkin.tasks.task import Task
from nearkin.zoo.adopted_rows import LONGEST_TEXT, model_row, store_with_task, stored_model
from nearkin.zoo.candidate_names import require_model_name
from nearkin.zoo.licences import licence_caution
from nearkin.zoo.preprocess import Preprocess, input_fields
from nearkin.zoo.solved_tasks import SolvedTasks


@dataclass(frozen=True, kw_only=True)
class AdoptOptions:
    """Options of an adoption.

    Attributes:
        weights: file or folder of the weights, or a module that has them; needed for a network string.
        head: name of the last linear layer, or `new` if the model returns features (default: found).
        preprocess: of raw inputs (default: that of the task, or of the folder).
        output: name or position of the output to use, if the model returns several.
        pool: of a sequence of outputs: `mean`, `first` or `max`.
        licence: of the model, such as apache-2.0 (default: that of the model card).
        source: where the model comes from.
    """

    weights: str | Path | nn.Module | None = None
    head: str | None = None
    preprocess: Preprocess = field(default_factory=Preprocess)
    output: str = ""
    pool: str = ""
    licence: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for key in ("licence", "source"):
            value = getattr(self, key)
            require_plain(key, value)
            require(
                len(value) <= LONGEST_TEXT, f"the {key} has {len(value)} characters, expected {LONGEST_TEXT} at most"
            )


def adopt_model(
    zoo: SolvedTasks, name: str, model: nn.Module | str, task: Task | None, how: AdoptOptions, from_file: bool = False
) -> Work[TaskRecord]:
    """Store a trained model under a name.

    Args:
        zoo: the zoo.
        name: of the model.
        model: a module, a folder in the layout of the hub, or a network string whose options define it wholly.
        task: that it was trained on (default: it takes part in `rank` only).
        how: options.
        from_file: the network string was read from a file, so that its code must be trusted already.
    """
    start = now()
    zoo.catalogue.database.require_writable()
    require_model_name(name)
    model, how = unwrapped(model), replace(how, weights=unwrapped(how.weights))
    if isinstance(model, str) and not from_file and not is_hub_folder(model):
        trust_network(model)
    folder = HubFolder.read(model) if isinstance(model, str) and is_hub_folder(model) else None
    if folder is not None and folder.config.get("model_type") == "nearkin":
        raise OptionError(f"{model} is a folder that nearkin push wrote; store its model with nearkin pull {model}")
    preprocess, how = _from_folder(folder, how)
    inputs = preprocess.inputs(task)
    with seeded(0):  # building networks draws random numbers
        module = _module(model, folder, how, inputs, task)
        tokens = token_fields(module, preprocess.shape) if preprocess.shape is not None and task is None else ()
    fields = input_fields(inputs, task) or tokens
    spec = _spec(model, module, folder, how, preprocess, fields)
    inputs = _with_padding(inputs, module, folder)
    seen = None if task is None else task if inputs is None else inputs(task)
    shape = _input_shape(name, inputs, seen, folder)
    probe = _probe(seen, inputs, shape, spec)
    head = how.head if how.head is not None else NEW if folder is not None and spec.output in FEATURES else None
    outputs, advice = None if task is None else task.num_outputs, _advice(preprocess, module, fields, shape)
    with seeded(0):
        adopted = adopt_module(module, probe, spec, head=head, num_outputs=outputs, advice=advice)
    if task is not None and adopted.num_outputs != task.num_outputs:
        raise MismatchError(
            f"{adopted.label} has {counted(adopted.num_outputs, 'output')}, its task needs {task.num_outputs}; give "
            f"the task it was trained on, or adopt it without a task and rank it"
        )
    if warning := licence_caution(name, how.licence):
        yield Caution(warning)
    about = {
        "label": adopted.label, "licence": how.licence, "source": how.source, "features": adopted.num_features,
        "channel_order": preprocess.order,
    }  # fmt: skip
    own: dict[str, Any] = {} if inputs is None else {NETWORK_INPUTS: inputs.facts()}
    own |= {"preprocessing": fields_facts(tokens)} if tokens else {}
    is_stored = name in zoo
    if is_stored:
        record = stored_model(zoo, name, adopted, shape, task, {**own, ADOPTED_FACTS: about})
    elif task is None:
        record = zoo.catalogue.add(*model_row(name, adopted, shape, {**own, ADOPTED_FACTS: about}, now() - start))
    else:
        assert seen is not None
        record = yield from store_with_task(
            zoo, replace(task, name=name), seen, adopted, own, {ADOPTED_FACTS: about}, start
        )
    done = "in the zoo, from the same call: nothing was changed" if is_stored else f"adopted in {now() - start:.1f} s"
    yield Note(f"'{name}': {adopted.label}, {adopted.num_features} features, {done}")
    if warning := remember(adopted.network):
        yield Caution(warning)
    return record


def _input_shape(
    name: str, inputs: NetworkInputs | None, seen: Task | None, folder: HubFolder | None
) -> tuple[int, ...]:
    """Shape of an input of the model; refused if neither preprocessing nor a task tell it."""
    if inputs is not None:
        return inputs.shape
    if seen is not None:
        return seen.input_shape
    if folder is not None and "vocab_size" in folder.config:
        raise DataError(
            f"{folder.path} has no {TOKENIZER_FILE}, which a model of texts needs; add the file, or give "
            f"tokenizer=FILE among the preprocessing, or a task of tokens"
        )
    raise OptionError(
        f"the inputs of '{name}' are not known; give the task it was trained on, or its preprocessing, such as "
        f"size=224&mean=0.5&std=0.5 for images or shape=16 for tables"
    )


def _from_folder(folder: HubFolder | None, how: AdoptOptions) -> tuple[Preprocess, AdoptOptions]:
    """Preprocessing and options, with what a folder says where the caller says nothing."""
    if folder is None:
        return how.preprocess, how
    preprocess = how.preprocess
    if preprocess == Preprocess():
        tokenizer, images = folder.tokenizer, folder.image_preprocessing
        if tokenizer is not None:
            preprocess = Preprocess(tokenizer=tokenizer, length=folder.length)
        elif images:
            preprocess = Preprocess.of(images)
    origin = how.source or str(folder.config.get("_name_or_path") or folder.path.name)[:LONGEST_TEXT]
    return preprocess, replace(how, licence=how.licence or folder.licence, source=origin)


def _advice(preprocess: Preprocess, module: nn.Module, fields: tuple[InputField, ...], shape: tuple[int, ...]) -> str:
    """What to do if a model cannot read its inputs."""
    names = ", ".join(field.name for field in fields)
    if preprocess.tokenizer is not None:
        return f"it gets {names} of {preprocess.length} tokens; change length=… or types=… of the preprocessing"
    if fields:
        return f"the inputs {names} are passed by name; give them the names of its arguments"
    if len(shape) == 3 and preprocess.size is None and preprocess.shape is None:
        return "give its preprocessing, such as size=224"
    if len(shape) == 1 and any(isinstance(layer, nn.Embedding) for layer in module.modules()):
        return "give tokens by the name of its argument: Task.from_arrays(name, {'ids': tokens}, labels)"
    return "check its preprocessing and its code"


def _spec(
    model: nn.Module | str,
    module: nn.Module,
    folder: HubFolder | None,
    how: AdoptOptions,
    preprocess: Preprocess,
    fields: tuple[InputField, ...],
) -> AdoptedSpec:
    """What builds the model, and its inputs and outputs."""
    if folder is not None:
        known = folder.spec(how.output, how.pool, how.head == NEW)
    elif isinstance(model, nn.Module):
        known = described(model)
    else:
        network = NetworkSpec.parse(model).anchored()
        label = type(module).__name__ if ":" in network.name else network.name
        known = AdoptedSpec(label=label, network=str(network))
    return replace(
        known,
        fields=fields,
        output=how.output or known.output,
        pool=how.pool or known.pool,
        reversed_channels=preprocess.order == "bgr",
    )


def _module(
    model: nn.Module | str, folder: HubFolder | None, how: AdoptOptions, inputs: NetworkInputs | None, task: Task | None
) -> nn.Module:
    """The module with its trained weights."""
    if isinstance(model, nn.Module):
        if how.weights is None:
            return model
        module = copied_module(model)  # that of the caller is not changed
        _load(module, how.weights)
        return module
    if folder is not None:
        module = folder.network(folder.spec(how.output, how.pool, how.head == NEW), how.head == NEW)
        _load(module, how.weights or folder.path)
        return module
    spec = NetworkSpec.parse(model)
    text = str(spec.anchored())
    if how.weights is None:
        raise OptionError(
            f"{model[:200]} is code without trained weights; give them: --weights FILE, in Python weights=…"
        )
    module = _own_network(spec, how, inputs, task) if spec.name in NETWORKS else create_network(text)
    _load(module, how.weights)
    return module


def _own_network(spec: NetworkSpec, how: AdoptOptions, inputs: NetworkInputs | None, task: Task | None) -> nn.Module:
    """One of nearkin's own networks, with as many outputs as the weights have."""
    shape = inputs.shape if inputs is not None else None if task is None else task.input_shape
    if shape is None:
        raise OptionError(f"the input shape of {spec} is not known; give a task, or preprocess='shape=1,28,28'")
    first = build(spec, shape, 2, seed=0)
    head = f"{head_name(first, probe_inputs(inputs, shape))}.weight"
    tensors = without_prefix(_tensors(how.weights), first.state_dict())
    return build(spec, shape, len(tensors[head]) if head in tensors else 2, seed=0)


def _tensors(weights: str | Path | nn.Module | None) -> Mapping[str, Tensor]:
    if isinstance(weights, nn.Module):
        return dict(weights.state_dict())
    assert weights is not None
    return read_weights(weights)


def _load(module: nn.Module, weights: str | Path | nn.Module) -> None:
    origin = type(weights).__name__ if isinstance(weights, nn.Module) else str(weights)
    for initialised in (module, weights):
        if isinstance(initialised, nn.Module):
            require_shapes(initialised)
    load_weights(module, _tensors(weights), origin)


def _with_padding(inputs: NetworkInputs | None, module: nn.Module, folder: HubFolder | None) -> NetworkInputs | None:
    """The inputs with the padding token of the model, for a tokenizer that has none of its own."""
    if inputs is None or inputs.tokenizer is None:
        return inputs
    config = getattr(module, "config", None)
    inputs.tokenizer.require_words(getattr(config, "vocab_size", None))
    number = getattr(config, "pad_token_id", None)
    if type(number) is not int or number < 0:
        token = None if folder is None else folder.pad_token
        number = None if token is None else inputs.tokenizer.id_of(token)
    return replace(inputs, tokenizer=replace(inputs.tokenizer, pad_id=number))


def _probe(seen: Task | None, inputs: NetworkInputs | None, shape: tuple[int, ...], spec: AdoptedSpec) -> Tensor:
    """A few inputs of the network: samples of the task, or random ones; of texts, one that has all tokens."""
    if seen is None:
        return probe_inputs(inputs, shape, spec.fields)
    samples = seen.train.first(8).x
    tokenizer = None if inputs is None else inputs.tokenizer
    return samples if tokenizer is None else torch.cat([samples, tokenizer.probe(1)])
