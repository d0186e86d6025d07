"""Build a network from its string, with initial weights that all tasks of a trial share."""

import difflib
import functools
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, cast

from torch import nn

from nearkin.core.errors import NearkinError, OptionError, require
from nearkin.core.rng import derived_seed, seeded
from nearkin.nets.adopted_spec import ADOPTED
from nearkin.nets.functional import blank, initialise, load_common
from nearkin.nets.heads import head_name, with_head
from nearkin.nets.size_limit import require_size
from nearkin.nets.spec import NETWORKS, NetworkSpec
from nearkin.nets.trusted_code import (
    OWN,
    SEARCHED,
    TrustError,
    is_named,
    is_trusted_module,
    require_trusted,
    trust_network,
)
from nearkin.tasks.likelihood import require_one_output
from nearkin.tasks.network_inputs import require_plain_inputs
from nearkin.tasks.task import Task

Factory: TypeAlias = Callable[..., nn.Module]

HEADED = frozenset(NETWORKS) - {"autoencoder", "recurrent"}  # only the layer `head` depends on the number of outputs
INPUT_NAME = "input_shape"
OUTPUT_NAMES = ("num_outputs", "num_classes", "out_features", "outputs", "classes", "vocabulary")
REFERENCE_OUTPUTS = 10


def _module(origin: str) -> ModuleType:
    """The module of an import path or of a file; a file that has changed is read again."""
    if not origin.endswith(".py"):
        return importlib.import_module(origin)
    source = Path(origin).read_bytes()
    name = "nearkin_network_" + hashlib.sha256(str(Path(origin).resolve()).encode() + source).hexdigest()[:16]
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = origin
        sys.modules[name] = module  # before the code runs, as the import system does: dataclasses look it up
        try:
            exec(compile(source, origin, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _imported(path: str) -> Any:
    """The object `module:Name` or `file.py:Name`. This imports code: check strings with `require_trusted` before."""
    origin, _, attribute = path.rpartition(":")
    try:
        module = _module(origin)
    except Exception as broken:
        raise OptionError(
            f"network {path}: cannot import {origin} ({_line(broken)}); check the name, or give the path of its file"
        ) from broken
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"did you mean {near[0]}?" if near else "check the name"
        raise OptionError(f"network {path}: {origin} has no {attribute!r}; {hint}") from None


def _factory(name: str) -> Factory:
    """The class or function that creates the networks of this name, if its code is trusted.

    An object that a trusted module only imports is refused: trust in a module that imports `os` does not include
    `os.system`.
    """
    if ":" not in name:
        return NETWORKS[name]
    require_trusted(name)
    factory = _imported(OWN.get(name, name))
    valid = issubclass(factory, nn.Module) if inspect.isclass(factory) else callable(factory)
    require(
        valid and not isinstance(factory, nn.Module),
        f"network {name} is {_kind(factory)}, expected an nn.Module class or a function that returns a new module",
    )
    origin, module = name.rpartition(":")[0], str(getattr(factory, "__module__", None))
    if not (is_named(name) or module in (_module(origin).__name__, origin) or is_trusted_module(module)):
        raise TrustError(
            f"network {name} is defined in module {module}, which is not trusted on this machine; if you trust it: "
            f"nearkin --trust {module} …, in Python nk.trust({module!r})"
        )
    return cast(Factory, factory)


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if inspect.isclass(value) else f"an object of {type(value).__name__}"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _task_keywords(factory: Factory) -> tuple[str | None, str | None]:
    """Names of the keywords for the input shape and the number of outputs; None if the factory has no such keyword."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return None, None
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
    outputs = next((name for name in OUTPUT_NAMES if name in names), OUTPUT_NAMES[0] if any_keyword else None)
    return INPUT_NAME if INPUT_NAME in names or any_keyword else None, outputs


def _keywords(spec: NetworkSpec, factory: Factory, input_shape: tuple[int, ...], num_outputs: int) -> dict[str, Any]:
    """The options of a network, with the input shape and the number of outputs that the task sets."""
    keywords: dict[str, Any] = dict(spec.options)
    for keyword, value in zip(_task_keywords(factory), (input_shape, num_outputs), strict=True):
        if keyword is not None:
            require(keyword not in keywords, f"network {spec}: the task sets {keyword}; leave it out of the options")
            keywords[keyword] = value
    return keywords


def creation(network: str, input_shape: tuple[int, ...], num_outputs: int) -> tuple[Factory, dict[str, Any]]:
    """Class or function of a network and the keywords that create it with this number of outputs.

    >>> creation("lenet?width=0.5", (1, 8, 8), 3)[1]
    {'width': 0.5, 'input_shape': (1, 8, 8), 'num_outputs': 3}
    """
    spec = NetworkSpec.parse(network)
    factory = _factory(spec.name)
    require(
        _task_keywords(factory)[1] is not None,
        f"network {spec} takes no number of outputs ({', '.join(OUTPUT_NAMES)}), so its head was replaced and no call "
        f"creates it; add num_outputs to its constructor, or export it as ONNX",
    )
    return factory, _keywords(spec, factory, input_shape, num_outputs)


def _create(spec: NetworkSpec, factory: Factory, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Call the factory; parameters that are initialised by a first input are initialised as well."""
    return initialise(_called(spec, factory, _keywords(spec, factory, input_shape, num_outputs)), input_shape)


def _called(spec: NetworkSpec, factory: Factory, keywords: dict[str, Any]) -> nn.Module:
    """The module that the factory makes; an error of one line if it fails."""
    try:
        model = factory(**keywords)
    except NearkinError:
        raise
    except Exception as failed:
        options = ", ".join(f"{name}={value!r}" for name, value in keywords.items()) or "no options"
        raise OptionError(f"network {spec} cannot be made with {options}: {_line(failed)}; fix its options") from failed
    require(isinstance(model, nn.Module), f"network {spec} made {_kind(model)}, expected an nn.Module; return one")
    return model


def create_network(network: str) -> nn.Module:
    """The network of a string as its options alone define it: the task sets neither inputs nor outputs.

    >>> trust_network("torch.nn:Linear")
    >>> create_network("torch.nn:Linear?in_features=3&out_features=2")
    Linear(in_features=3, out_features=2, bias=True)
    """
    spec = NetworkSpec.parse(network)
    return _called(spec, _factory(spec.name), dict(spec.options))


@functools.lru_cache(maxsize=256)
def _require_size(spec: NetworkSpec, input_shape: tuple[int, ...], num_outputs: int) -> None:
    """Refuse one of nearkin's own networks that is too large, before memory is allocated for it.

    The sizes of the models of `solve` and `transfer` are checked by their constructors.
    """
    if spec.name in NETWORKS or spec.name == SEARCHED:
        require_size(str(spec), lambda: _create(spec, _factory(spec.name), input_shape, num_outputs))


def build(
    spec: str | NetworkSpec, input_shape: Sequence[int], num_outputs: int, seed: int, trial: int = 0
) -> nn.Module:
    """A new network; all tasks of a trial have the same initial weights, except where the number of outputs matters.

    The network is drawn from the trial's random stream `init` with a fixed number of outputs. A head of the right width
    is drawn from a stream of its own. A network that may use the number of outputs in other layers too (the
    autoencoder, the recurrent network, user networks that take it) is created again from that stream; then all values
    of equal shape are copied from the first network.

    Args:
        spec: a network string.
        input_shape: shape of one input.
        num_outputs: width of the last layer.
        seed: the user's seed.
        trial: number of the initialisation under this seed.

    >>> two, ten = (build("lenet?width=0.5", (1, 8, 8), outputs, seed=0) for outputs in (2, 10))
    >>> bool((two.body[1].weight == ten.body[1].weight).all()), two.head.out_features, ten.head.out_features
    (True, 2, 10)
    """
    spec = NetworkSpec.parse(spec) if isinstance(spec, str) else spec
    shape = tuple(input_shape)
    require(
        all(isinstance(side, int) and side >= 1 for side in shape),
        f"got the input shape {shape}, expected whole numbers >= 1; change the input shape",
    )
    require(num_outputs >= 1, f"a network has one output or more, got {num_outputs}")
    _require_size(spec, shape, max(num_outputs, REFERENCE_OUTPUTS))
    factory = _factory(spec.name)  # before the seed is set: a module may draw random numbers when it is imported
    head_seed = derived_seed(seed, "head", trial, num_outputs)
    if spec.name == ADOPTED:  # its weights are stored, so nothing is drawn for comparison with other tasks
        with seeded(head_seed):
            return _create(spec, factory, shape, num_outputs)
    with seeded(derived_seed(seed, "init", trial)):
        first = _create(spec, factory, shape, REFERENCE_OUTPUTS)
    if spec.name in HEADED:
        return with_head(first, num_outputs, head_seed, "head")
    if _task_keywords(factory)[1] is None:
        return with_head(first, num_outputs, head_seed, head_name(first, blank(first, shape)))
    with seeded(head_seed):
        second = _create(spec, factory, shape, num_outputs)
    load_common(second, first)
    return second


def default_network(task: Task) -> str:
    """The default network of a task: a small one that fits its inputs and outputs; detection has none."""
    require_one_output(task.likelihood)
    require_plain_inputs(task, "a default network")
    by_likelihood = {"dense": "autoencoder", "language": "recurrent"}
    return by_likelihood.get(task.likelihood, "lenet" if len(task.input_shape) == 3 else "mlp")


def path_of(factory: Factory) -> str:
    """The network string of a class or function, so that another process can build it.

    >>> path_of(NETWORKS["lenet"]), path_of(nn.Bilinear)
    ('lenet', 'torch.nn.modules.linear:Bilinear')
    """
    known = next((name for name, network in NETWORKS.items() if network is factory), None)
    if known is not None:
        return known
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    try:
        importable = module != "__main__" and _imported(f"{module}:{name}") is factory
    except OptionError:
        importable = False
    require(
        importable,
        f"{name or repr(factory)} of {module} cannot be imported again by its name; define it at the top level of a "
        f"file and import it from there, or pass 'path/to/file.py:Name'",
    )
    trust_network(f"{module}:{name}")  # its code runs in this process already
    return f"{module}:{name}"
