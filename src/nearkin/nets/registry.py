"""From a network string to a network, with the one initialisation that a trial's tasks share."""

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
from torch.nn.parameter import UninitializedParameter

from nearkin.core.errors import NearkinError, OptionError, require
from nearkin.core.rng import derived_seed, seeded
from nearkin.nets.functional import blank, load_common, outputs_of
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
from nearkin.tasks.task import Task

Factory: TypeAlias = Callable[..., nn.Module]

HEADED = frozenset(NETWORKS) - {"autoencoder", "recurrent"}  # the number of outputs touches the layer `head` alone
INPUT_NAME = "input_shape"
OUTPUT_NAMES = ("num_outputs", "num_classes", "out_features", "outputs", "classes", "vocabulary")
REFERENCE_OUTPUTS = 10


def _module(place: str) -> ModuleType:
    """The module of an import path, or of a file; a file that has changed is read anew."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    source = Path(place).read_bytes()
    name = "nearkin_network_" + hashlib.sha256(str(Path(place).resolve()).encode() + source).hexdigest()[:16]
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = place
        sys.modules[name] = module  # before the code runs, as the import system does: dataclasses look for it
        try:
            exec(compile(source, place, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _named(path: str) -> Any:
    """What `place:Name` names; it imports, so strings from files pass `require_trusted` before."""
    place, _, attribute = path.rpartition(":")
    try:
        module = _module(place)
    except Exception as broken:
        raise OptionError(
            f"network {path}: cannot import {place} ({_line(broken)}); check the name, or give the path of its file"
        ) from broken
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"did you mean {near[0]}?" if near else "check the name"
        raise OptionError(f"network {path}: {place} has no {attribute!r}; {hint}") from None


def _factory(name: str) -> Factory:
    """The class or function that makes the networks of this name, if its code is trusted."""
    if ":" not in name:
        return NETWORKS[name]
    require_trusted(name)
    factory = _named(OWN.get(name, name))
    proper = issubclass(factory, nn.Module) if inspect.isclass(factory) else callable(factory)
    require(
        proper and not isinstance(factory, nn.Module),
        f"network {name} is {_kind(factory)}, expected an nn.Module class or a function that returns a new module",
    )
    _require_defined_there(name, factory)
    return cast(Factory, factory)


def _require_defined_there(name: str, factory: object) -> None:
    """Refuse what a trusted module merely imports: trust in one that imports `os` is no trust in `os.system`."""
    if is_named(name):
        return
    place, module = name.rpartition(":")[0], str(getattr(factory, "__module__", None))
    if not (module in (_module(place).__name__, place) or is_trusted_module(module)):
        raise TrustError(
            f"network {name} is defined in module {module}, which is not trusted on this machine; if you trust it: "
            f"nearkin --trust {module} …, in Python nk.trust({module!r})"
        )


def _kind(thing: object) -> str:
    return f"the class {thing.__name__}" if inspect.isclass(thing) else f"an object of {type(thing).__name__}"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _slots(factory: Factory) -> tuple[str | None, str | None]:
    """Names of the keywords that take the input shape and the number of outputs, where there are any."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return None, None
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    outputs = next((name for name in OUTPUT_NAMES if name in named), OUTPUT_NAMES[0] if anything else None)
    return INPUT_NAME if INPUT_NAME in named or anything else None, outputs


def _made(spec: NetworkSpec, factory: Factory, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """A new module from its factory, with parameters that wait for a first input drawn too."""
    keywords: dict[str, Any] = dict(spec.options)
    for slot, value in zip(_slots(factory), (input_shape, num_outputs), strict=True):
        if slot is not None:
            require(slot not in keywords, f"network {spec}: the task sets {slot}; leave it out of the options")
            keywords[slot] = value
    try:
        model = factory(**keywords)
    except NearkinError:
        raise
    except Exception as failed:
        given = ", ".join(f"{name}={value!r}" for name, value in keywords.items()) or "no options"
        raise OptionError(f"network {spec} cannot be made with {given}: {_line(failed)}; mend its options") from failed
    require(isinstance(model, nn.Module), f"network {spec} made {_kind(model)}, expected an nn.Module; return one")
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        outputs_of(model, blank(model, input_shape))
    return model


@functools.lru_cache(maxsize=256)
def _require_size(spec: NetworkSpec, input_shape: tuple[int, ...], num_outputs: int) -> None:
    """Refuse one of nearkin's own networks that is too large, before memory is taken for it.

    The models of `solve` and `transfer` are a few tables, whose sizes are checked where they are made.
    """
    if spec.name in NETWORKS or spec.name == SEARCHED:
        require_size(str(spec), lambda: _made(spec, _factory(spec.name), input_shape, num_outputs))


def build(
    spec: str | NetworkSpec, input_shape: Sequence[int], num_outputs: int, seed: int, trial: int = 0
) -> nn.Module:
    """A new network; all weights that the number of outputs does not shape are the trial's, the same for every task.

    The network is drawn from the trial's stream `init` with a fixed number of outputs; a head of the wanted width comes
    from a stream of its own. A network that may use the number of outputs elsewhere too (the autoencoder, the recurrent
    one, anyone's that takes it) is made again from that stream, and what kept its shape is taken from the first.

    Args:
        spec: a network string.
        input_shape: shape of one input.
        num_outputs: width of the last layer.
        seed: the one seed.
        trial: which of its initialisations.

    >>> two, ten = (build("lenet?width=0.5", (1, 8, 8), outputs, seed=0) for outputs in (2, 10))
    >>> bool((two.body[1].weight == ten.body[1].weight).all()), two.head.out_features, ten.head.out_features
    (True, 2, 10)
    """
    spec = NetworkSpec.parse(spec) if isinstance(spec, str) else spec
    shape = tuple(input_shape)
    require(
        all(isinstance(side, int) and side >= 1 for side in shape),
        f"an input shape is made of whole numbers from 1 on, got {shape}",
    )
    require(num_outputs >= 1, f"a network has one output or more, got {num_outputs}")
    _require_size(spec, shape, max(num_outputs, REFERENCE_OUTPUTS))
    factory = _factory(spec.name)  # before the seed is set: a module that draws numbers when imported draws them once
    own = derived_seed(seed, "head", trial, num_outputs)
    with seeded(derived_seed(seed, "init", trial)):
        first = _made(spec, factory, shape, REFERENCE_OUTPUTS)
    if spec.name in HEADED:
        return with_head(first, num_outputs, own, "head")
    if _slots(factory)[1] is None:
        return with_head(first, num_outputs, own, head_name(first, blank(first, shape)))
    with seeded(own):
        second = _made(spec, factory, shape, num_outputs)
    load_common(second, first)
    return second


def default_network(task: Task) -> str:
    """The network a task gets when none is asked for: small, and fit for its inputs and outputs."""
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
        again = module != "__main__" and _named(f"{module}:{name}") is factory
    except OptionError:
        again = False
    require(
        again,
        f"{name or repr(factory)} of {module} cannot be imported again by its name; define it at the top level of a "
        f"file and import it from there, or pass 'path/to/file.py:Name'",
    )
    trust_network(f"{module}:{name}")  # its code runs in this process already
    return f"{module}:{name}"
