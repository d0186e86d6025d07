"""A plan for a network: which layers' formulas can be trusted, and which weights are left to automatic differentiation.

A layer's formula holds if the layer does what its class does, its weights are used nowhere else, and samples do not
mix. The plan looks at the structure first, and then compares every formula with autograd on one sample: what does not
agree is left to autograd. Nothing is ever wrong for being unusual, only slower.
"""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.fisher.layers import rule_for
from nearkin.fisher.tape import Tape, pull_back

_remembered: WeakKeyDictionary[nn.Module, tuple[Hashable, "Plan"]] = WeakKeyDictionary()

AGREEMENT = 1e-3  # of a formula with autograd, relative to the largest gradient of the tensor


@dataclass(frozen=True)
class Plan:
    """How each weight's per-sample gradients are had.

    Attributes:
        single: layers called once, whose weights are theirs alone: squares are summed without forming gradients.
        shared: layers called several times or with tied weights: gradients are summed over the calls, then squared.
        owners: for every layer, the parameter behind each of its local names; tied names have one owner.
        rest: parameters left to automatic differentiation.
        idle: parameters that the first sample did not use; they are watched, should another sample use them.
    """

    single: tuple[str, ...]
    shared: tuple[str, ...]
    owners: Mapping[str, Mapping[str, str]]
    rest: tuple[str, ...]
    idle: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """All layers that the tape listens to."""
        return (*self.single, *self.shared)


def wanted_names(model: nn.Module, names: Collection[str] | None = None) -> tuple[str, ...]:
    """Parameters to measure: those named, else those that require gradients."""
    known = dict(model.named_parameters())
    require(bool(known), f"{type(model).__name__} has no parameters; there is no Fisher information to measure")
    if names is not None:
        missing = sorted(set(names) - set(known))
        require(not missing, f"there is no parameter {', '.join(missing[:3])}; see model.named_parameters()")
        return tuple(name for name in known if name in set(names))
    found = tuple(name for name, value in known.items() if value.requires_grad)
    require(bool(found), "all parameters are frozen (requires_grad=False); unfreeze those to measure, or name them")
    return found


def require_steady(model: nn.Module) -> None:
    """Refuse modes in which the gradient of one sample is not defined or not repeatable."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            raise OptionError(
                f"batch normalisation {name or type(module).__name__} is in training mode: its outputs depend on the "
                f"whole batch, so one sample has no gradient of its own; call model.eval() first"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise OptionError(f"dropout {name} is in training mode and draws at random; call model.eval() first")
    half = [n for n, value in model.named_parameters() if value.dtype == torch.float16 and value.device.type == "cpu"]
    require(not half, f"{half[:1]} is float16 on the CPU, which has no kernels for it; use model.float()")


def planned(model: nn.Module, weights: Mapping[str, Tensor], x: Tensor, names: Collection[str]) -> Plan:
    """The plan for a network, made on the first of some inputs `[B, *input_shape]`.

    It is remembered, beside the network and not on it, until anything that its course may depend on has changed.
    """
    state = _state(model, x, names)
    kept = _remembered.get(model)
    if kept is None or kept[0] != state:
        kept = _remembered[model] = (state, _made(model, weights, x, names))
    return kept[1]


def _state(model: nn.Module, x: Tensor, names: Collection[str]) -> Hashable:
    """Kinds, plain attributes, hooks and parameters of all modules: what decides which way a network's inputs take."""
    plain = (bool, int, float, str, tuple, type(None))
    modules = tuple(
        (
            name,
            type(module),
            type(module).forward,
            module.__dict__.get("forward"),
            tuple((key, str(value)) for key, value in vars(module).items() if isinstance(value, plain)),
            tuple(id(value) for value in module._parameters.values()),
            len(module._forward_hooks) + len(module._forward_pre_hooks),
        )
        for name, module in model.named_modules()
    )
    return tuple(names), tuple(x.shape[1:]), x.dtype, modules


def _made(model: nn.Module, weights: Mapping[str, Tensor], x: Tensor, names: Collection[str]) -> Plan:
    owner = _owners(model)
    known = {name: _own(name, module, owner) for name, module in model.named_modules() if rule_for(module)}
    known = {name: own for name, own in known.items() if own}
    calls: Counter[str] = Counter()
    formula: dict[str, Tensor] = {}

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        calls[name] += 1
        if not read.shape[:1] == g.shape[:1] == (1,):  # its first axis is not that of samples, or this one passed it by
            return
        for local, value in _shadows(name, layer, weights, read, g).items():
            mine = known[name][local]
            formula[mine] = formula[mine] + value if mine in formula else value

    outputs = Tape(model, known, receive)(x[:1])
    _require_apart(model, weights, x, outputs)
    cotangent = torch.ones_like(outputs).cumsum(-1).div_(outputs.shape[-1])  # no two outputs alike
    pull_back(outputs, cotangent)
    truth = _autograd(model, weights, x[:1], cotangent)
    trusted = {name for name, value in formula.items() if _agree(value, truth[name])}
    layers = _closed({name: set(known[name].values()) for name in known if calls[name]}, trusted)
    uses = Counter(mine for name in layers for mine in known[name].values())
    single = tuple(n for n in layers if calls[n] == 1 and all(uses[mine] == 1 for mine in known[n].values()))
    covered = set(uses)
    open_ = [name for name in names if name not in covered]
    rest, idle = ([n for n in open_ if (truth[n] is None) == unused] for unused in (False, True))
    shared = tuple(n for n in layers if n not in single)
    return Plan(single, shared, {n: known[n] for n in layers}, tuple(rest), tuple(idle))


def locally(layer: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A layer's own parameters and buffers, by their local names."""
    start = f"{layer}." if layer else ""
    found = ((name.removeprefix(start), value) for name, value in weights.items() if name.startswith(start))
    return {name: value for name, value in found if "." not in name}


def _owners(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter, and the first name of the same parameter: tied weights have several."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(value), name) for name, value in model.named_parameters(remove_duplicate=False)}


def _own(layer: str, module: nn.Module, owner: Mapping[str, str]) -> dict[str, str]:
    """The owners of a layer's parameters, by local name."""
    start = f"{layer}." if layer else ""
    return {local: owner[start + local] for local, value in module.named_parameters(recurse=False)}


def _require_apart(model: nn.Module, weights: Mapping[str, Tensor], x: Tensor, alone: Tensor) -> None:
    """Refuse a network whose answer for one sample depends on the others."""
    if len(x) < 2:
        return
    with torch.no_grad():
        together = functional_call(model, dict(weights), (x[:2],))
    scale = float(alone.detach().abs().max()) + 1e-30
    far = float((together[:1] - alone.detach()).abs().max()) / scale
    require(
        len(together) == 2 and (far < AGREEMENT or math.isnan(far)),
        "the network's answer for one sample depends on the others of its batch, so one sample has no gradient of its "
        "own; use a network that treats samples apart",
        MismatchError,
    )


def _autograd(
    model: nn.Module, weights: Mapping[str, Tensor], x: Tensor, cotangent: Tensor
) -> dict[str, Tensor | None]:
    """Gradients of ⟨outputs, cotangent⟩ as autograd has them; None for parameters that are not used."""
    names = [name for name, _ in model.named_parameters()]
    free = {name: weights[name].detach().requires_grad_() for name in names}
    with torch.enable_grad():
        outputs = functional_call(model, {**weights, **free}, (x,))
        if not outputs.requires_grad:
            return dict.fromkeys(names)
        found = torch.autograd.grad((outputs * cotangent).sum(), list(free.values()), allow_unused=True)
    return {name: one if one is None else one.to_dense() for name, one in zip(names, found, strict=True)}


def _shadows(name: str, layer: nn.Module, weights: Mapping[str, Tensor], read: Tensor, g: Tensor) -> dict[str, Tensor]:
    """What a layer's formula says of one sample's gradients, each times a random vector: a shadow `[O]` tells as much.

    A linear layer's shadow is had without its gradient, which would be as large as the layer.
    """
    rule = rule_for(layer)
    if rule is None:
        return {}
    if isinstance(layer, nn.Linear) and g.dim() == 2:
        found = {"weight": g[0] * (read[0] @ _direction(layer.in_features, g)), "bias": g[0]}
        return {local: value for local, value in found.items() if getattr(layer, local) is not None}
    gradients = rule.gradients(layer, locally(name, weights), read, g)
    return {local: _shadow(gradient[0]) for local, gradient in gradients.items()}


def _shadow(gradient: Tensor) -> Tensor:
    """A gradient times a fixed random vector over all its axes but the first."""
    if gradient.dim() < 2:
        return gradient
    rows = gradient.flatten(1)
    return rows @ _direction(rows.shape[1], gradient)


def _direction(size: int, like: Tensor) -> Tensor:
    return torch.randn(size, generator=Generator().manual_seed(size), dtype=like.dtype).to(like.device)


def _agree(formula: Tensor, truth: Tensor | None) -> bool:
    """Whether a layer's formula gives what autograd gives."""
    if truth is None:
        return False
    seen = _shadow(truth)
    far, size = float(torch.dist(formula, seen)), float(seen.norm())
    return far <= AGREEMENT * size or math.isnan(size)


def _closed(layers: dict[str, set[str]], trusted: set[str]) -> tuple[str, ...]:
    """Layers all of whose parameters are trusted, and shared with such layers only."""
    while True:
        doubtful = set().union(*(own for own in layers.values() if not own <= trusted), set())
        if not doubtful:
            return tuple(layers)
        trusted = trusted - doubtful
        layers = {name: own for name, own in layers.items() if own <= trusted}
