"""Plan how the per-sample gradients of each weight are computed: by a layer's formula, or by automatic differentiation.

A layer's formula holds if the layer computes what its class does, its weights are used nowhere else, and row b of its
inputs and outputs belongs to sample b. This is decided by structure, which does not depend on values of gradients:

* the layer is of a known class, with its own forward method and its own weights (no parametrization);
* it is called with one tensor that has as many rows as there are samples, alone and in a batch;
* the outputs depend on its weights only through the layer (`Tape` inspects the graph);
* the values of the inputs do not decide what is computed (`control_flow`); if they do, every sample runs alone.

`verification` then compares the formulas with autograd on several samples. The structure is checked again on every
batch, the values on some batches (`planned_tape`). Weights that do not fit are left to automatic differentiation.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nearkin.core.errors import OptionError, require
from nearkin.fisher.layers import rule_for
from nearkin.fisher.tape import Tape


@dataclass(frozen=True)
class GradientPlan:
    """How per-sample gradients are computed for each weight.

    Attributes:
        names: selected parameters.
        single: layers called once that do not share weights: squares are summed without forming gradients.
        shared: layers called several times or with tied weights: gradients are summed over the calls, then squared.
        owners: for every layer, the full name of each parameter by its local name; tied parameters have one full name.
        rest: parameters left to automatic differentiation.
        idle: parameters that no sample has used so far; they are watched because a later sample may use them.
        alone: whether every sample runs as a batch of one; then there are no layers.
    """

    names: tuple[str, ...]
    single: tuple[str, ...]
    shared: tuple[str, ...]
    owners: Mapping[str, Mapping[str, str]]
    rest: tuple[str, ...]
    idle: tuple[str, ...] = ()
    alone: bool = False

    @property
    def layers(self) -> tuple[str, ...]:
        """All layers that the tape records."""
        return (*self.single, *self.shared)

    @property
    def covered(self) -> tuple[str, ...]:
        """Parameters with a formula."""
        owned = {name for own in self.owners.values() for name in own.values()}
        return tuple(name for name in self.names if name in owned)

    @property
    def watched(self) -> tuple[str, ...]:
        """Parameters that must not be used outside of the layers."""
        return (*self.covered, *self.idle)

    def without(self, names: Collection[str]) -> "GradientPlan":
        """The plan with these parameters, and all others of their layers, left to automatic differentiation.

        >>> owners = {"a": {"w": "a.w"}, "b": {"w": "b.w"}}
        >>> plan = GradientPlan(("a.w", "b.w", "c", "d"), ("a", "b"), (), owners, ("c",), ("d",))
        >>> less = plan.without(["b.w", "d"])
        >>> less.layers, less.rest, less.idle
        (('a',), ('c', 'b.w', 'd'), ())
        """
        if not names:
            return self
        out, owners = set(names), {name: set(own.values()) for name, own in self.owners.items()}
        while True:  # if a layer is removed, so are the layers that share its weights
            removed = [own for own in owners.values() if own & out]
            owners = {name: own for name, own in owners.items() if not own & out}
            if not removed:
                break
            out.update(*removed)
        return replace(
            self,
            single=tuple(name for name in self.single if name in owners),
            shared=tuple(name for name in self.shared if name in owners),
            owners={name: self.owners[name] for name in owners},
            rest=(*self.rest, *(name for name in self.watched if name in out)),
            idle=tuple(name for name in self.idle if name not in out),
        )

    def sample_by_sample(self) -> "GradientPlan":
        """The plan in which every sample runs as a batch of one."""
        return GradientPlan(self.names, (), (), {}, self.names, alone=True)

    def fitted(self, tape: Tape) -> "GradientPlan":
        """The plan itself if the last run of a tape fits it; otherwise a plan without the layers that do not fit."""
        if set(tape.calls) != set(self.layers):
            return self.sample_by_sample()
        if len(tape.calls) == len(self.layers) and not tape.unfit and not tape.loose:
            return self
        calls = Counter(tape.calls)
        unfit = [*tape.unfit, *(name for name in self.single if calls[name] > 1)]
        return self.without({*tape.loose, *(name for layer in unfit for name in self.owners[layer].values())})


def wanted_names(model: nn.Module, names: Collection[str] | None = None) -> tuple[str, ...]:
    """Parameters to measure: those in `names`, by default those that require gradients."""
    known = dict(model.named_parameters())
    require(bool(known), f"{type(model).__name__} has no parameters; there is no Fisher information to measure")
    if names is not None:
        missing = sorted(set(names) - set(known))
        require(not missing, f"there is no parameter {', '.join(missing[:3])}; see model.named_parameters()")
        return tuple(name for name in known if name in set(names))
    trainable = tuple(name for name, value in known.items() if value.requires_grad)
    require(bool(trainable), "all parameters are frozen (requires_grad=False); unfreeze some, or select them by name")
    return trainable


def require_evaluation_mode(model: nn.Module) -> None:
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


def state_of(model: nn.Module, x: Tensor, names: Collection[str]) -> Hashable:
    """Everything that decides what a network computes: classes, plain attributes, hooks and parameters of modules."""
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
    return tuple(names), tuple(x.shape[1:]), x.dtype, len(x) > 1, modules


def structural_plan(model: nn.Module, x: Tensor, names: Collection[str]) -> GradientPlan:
    """The plan for one sample `[1, *input_shape]`, by the structure alone."""
    owner = _owners(model)
    known = {name: _own(name, module, owner) for name, module in model.named_modules() if _is_known(module)}
    known = {name: own for name, own in known.items() if not set(names).isdisjoint(own.values())}
    tape = Tape(model, known, lambda *_: None, watch=names)
    outputs = tape(x)
    require(isinstance(outputs, Tensor), f"the network gives {type(outputs).__name__}, expected one tensor [N, ...]")
    calls = Counter(tape.calls)
    layers = {name: known[name] for name in known if calls[name]}
    uses = Counter(parameter for own in layers.values() for parameter in own.values())
    single = tuple(n for n, own in layers.items() if calls[n] == 1 and all(uses[name] == 1 for name in own.values()))
    shared = tuple(n for n in layers if n not in single)
    others = [name for name in names if name not in uses]
    rest, idle = (tuple(n for n in others if (n in tape.loose) == used) for used in (True, False))
    return GradientPlan(tuple(names), single, shared, layers, rest, idle).fitted(tape)


def _is_known(module: nn.Module) -> bool:
    """Whether a layer may have a formula: a known class with its own forward method and plain weights."""
    own_weights = {"weight", "bias"}.issuperset(module._parameters)
    return rule_for(module) is not None and own_weights and "forward" not in vars(module)


def local_tensors(layer: nn.Module) -> dict[str, Tensor]:
    """A layer's own parameters and buffers, detached, by their local names."""
    own = (*layer._parameters.items(), *layer._buffers.items())
    return {name: value.detach() for name, value in own if value is not None}


def _owners(model: nn.Module) -> dict[str, str]:
    """For every name of a parameter the first name of the same parameter: tied weights have several names."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(value), name) for name, value in model.named_parameters(remove_duplicate=False)}


def _own(layer: str, module: nn.Module, owner: Mapping[str, str]) -> dict[str, str]:
    """The owners of a layer's parameters, by local name."""
    start = f"{layer}." if layer else ""
    return {local: owner[start + local] for local, value in module._parameters.items() if value is not None}
