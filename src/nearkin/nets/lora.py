r"""LoRA: adapters of low rank beside the frozen weights of linear layers and convolutions (Hu et al. 2022).

A layer with the weight W `[O, D]` computes with $W + \frac{α}{r} B A$, where A is `[r, D]` and B `[O, r]`. For a
convolution D counts the values of a patch. A convolution with G groups has one A and one B for each group.

At the start B = 0, so the network gives the outputs it gave without adapters. The rows of A are orthogonal with squared
length D/r, so that $A^⊤ A$ is the identity in the mean over seeds, and exactly so for r = D. Then a step of B changes W
as much as a step of W itself would, and the usual learning rates fit.
"""

import copy
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from nearkin.core.errors import MismatchError, OptionError, require
from nearkin.core.rng import Streams

Adapted: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
ADAPTED = (nn.Linear, NonDynamicallyQuantizableLinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Classes of layers that get an adapter; a subclass does if it passes `fits_adapter`."""

RANK = 4


@dataclass(frozen=True)
class Lora:
    """Options of LoRA.

    Attributes:
        rank: r; a layer with fewer inputs D has rank D.
        alpha: α (default: r, so that the factor α/r is 1).

    >>> Lora.parse("lora?r=8&alpha=16"), str(Lora(rank=2))
    (Lora(rank=8, alpha=16.0), 'lora?r=2')
    """

    rank: int = RANK
    alpha: float | None = None

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"the rank of LoRA is 1 or more, got {self.rank}")
        positive = self.alpha is None or (self.alpha > 0 and math.isfinite(self.alpha))
        require(positive, f"alpha of LoRA is a number above 0, got {self.alpha}")

    @property
    def factor(self) -> float:
        """α/r."""
        return 1.0 if self.alpha is None else self.alpha / self.rank

    @classmethod
    def parse(cls, text: str) -> "Lora":
        """Read `lora`, `lora?r=4` or `lora?r=4&alpha=8`."""
        options: dict[str, str] = {}
        for item in filter(None, text.partition("?")[2].split("&")):
            name, _, value = item.partition("=")
            require(name in ("r", "alpha"), f"LoRA has no option {name!r}; it has r and alpha, as in lora?r=4&alpha=8")
            require(name not in options, f"{text}: option {name} is given twice; give it once")
            options[name] = value
        try:
            alpha = float(options["alpha"]) if "alpha" in options else None
            return cls(int(options.get("r", RANK)), alpha)
        except ValueError:
            raise OptionError(f"got {text!r}, expected numbers, as in lora?r=4&alpha=8; write it so") from None

    def __str__(self) -> str:
        return f"lora?r={self.rank}" + ("" if self.alpha is None else f"&alpha={self.alpha:g}")


class LoraLayer(nn.Module):
    """A linear layer or convolution with an adapter: `base(x) + factor · up(down(x))`.

    Code that reads `weight` gets the sum; other attributes are those of the base.

    Attributes:
        base: the layer itself.
        down: A, a layer from D inputs to r values.
        up: B, a layer from r values to O outputs.
        factor: α/r.
    """

    base: nn.Module
    down: nn.Module
    up: nn.Module

    def __init__(self, base: Adapted, options: Lora, generator: torch.Generator) -> None:
        super().__init__()
        self.factor = options.factor
        size, like = base.weight[0].numel(), {"device": base.weight.device, "dtype": base.weight.dtype}
        rank = min(options.rank, size)
        groups = 1 if isinstance(base, nn.Linear) else base.groups
        down: Any = _without_weights(base)  # the same class, since a subclass may pad in its own way
        down.weight = nn.Parameter(base.weight.new_empty(rank * groups, *base.weight.shape[1:]))
        if isinstance(base, nn.Linear):
            down.out_features = rank
            up: Any = nn.utils.skip_init(nn.Linear, rank, base.out_features, bias=False, **like)
        else:
            down.out_channels = rank * groups
            kind = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(base, kind))
            up = nn.utils.skip_init(kind, rank * groups, base.out_channels, 1, groups=groups, bias=False, **like)
        self.base, self.down, self.up = base, down.train(base.training), up.train(base.training)
        with torch.no_grad():
            drawn = torch.randn(groups, size, rank, generator=generator, dtype=torch.float64)
            rows = torch.linalg.qr(drawn).Q.transpose(1, 2) * math.sqrt(size / rank)
            down.weight.copy_(rows.reshape(down.weight.shape))
            up.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the base and its adapter."""
        outputs: Tensor = self.base(x) + self.factor * self.up(self.down(x))
        return outputs

    @property
    def weight(self) -> Tensor:
        """W + (α/r) B A, in the shape of W."""
        base, down, up = (cast(Adapted, layer).weight for layer in (self.base, self.down, self.up))
        groups = getattr(self.base, "groups", 1)
        b = up.reshape(groups, -1, len(down) // groups)  # [G, O/G, r]
        return base + self.factor * (b @ down.reshape(groups, b.shape[2], -1)).reshape(base.shape)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("base", "weight"):
                raise
            return getattr(self.base, name)


def _without_weights(base: Adapted) -> nn.Module:
    """A copy of a layer without its weight and bias."""
    kept = {id(value): None for value in (base.weight, base.bias)}
    layer = copy.deepcopy(base, kept)
    layer.bias = None
    return layer


def fits_adapter(layer: nn.Module) -> bool:
    """Whether an adapter beside this layer computes what the layer would compute with B A added to its weight.

    This is so for layers of `ADAPTED`. A subclass, such as a convolution that pads in its own way, is tried on random
    inputs; what its weight has beside it, or a parametrization, leaves it out.

    >>> fits_adapter(nn.Linear(2, 3)), fits_adapter(nn.ReLU()), fits_adapter(nn.ConvTranspose1d(1, 1, 1))
    (True, False, False)
    """
    if type(layer) in ADAPTED:
        return True
    if not isinstance(layer, ADAPTED) or {name for name, _ in layer.named_parameters()} - {"weight", "bias"}:
        return False
    generator = torch.Generator().manual_seed(0)
    shape: tuple[int, ...] = (layer.in_features,) if isinstance(layer, nn.Linear) else (
        layer.in_channels, *(2 * d * (k - 1) + 2 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)),
    )  # fmt: skip
    changed = copy.deepcopy(layer).eval()
    try:
        adapted = LoraLayer(copy.deepcopy(changed), Lora(rank=2), generator)
        with torch.no_grad():
            up = cast(Adapted, adapted.up).weight
            up.copy_(torch.randn(up.shape, generator=generator))
            changed.weight.copy_(adapted.weight)
            x = torch.randn(3, *shape, generator=generator).to(changed.weight)
            outputs = changed(x)
            return bool(torch.allclose(adapted(x), outputs, rtol=1e-3, atol=1e-4 * float(outputs.abs().max())))
    except Exception:  # code of others
        return False


def with_lora(model: nn.Module, options: Lora | None = None, *, skip: Collection[str] = (), seed: int = 0) -> nn.Module:
    """A copy of a network with adapters, which gives the same outputs.

    Linear layers and convolutions get one. Left out are: layers in `skip`, layers whose weight is shared with another
    layer (merging would separate them), parametrized layers, subclasses that compute something else (`fits_adapter`),
    transposed convolutions, and the weights `in_proj_weight` of `nn.MultiheadAttention`, which belong to no linear
    layer.

    Args:
        model: the network; it is not changed.
        options: rank and alpha.
        skip: names of layers without an adapter, such as the head.
        seed: of A.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> adapted, x = with_lora(net, Lora(rank=2), skip=["2"]), torch.ones(1, 3)
    >>> [name for name, _ in adapted.named_parameters()][:4], bool(torch.equal(adapted(x), net(x)))
    (['0.base.weight', '0.base.bias', '0.down.weight', '0.up.weight'], True)
    """
    options, changed = options or Lora(), copy.deepcopy(model)
    unknown = sorted(set(skip) - {name for name, _ in changed.named_modules()})
    require(not unknown, f"{type(model).__name__} has no layer {', '.join(unknown)}; see model.named_modules()")
    own = [value for module in changed.modules() for value in module._parameters.values() if value is not None]
    uses = {id(value): sum(value is other for other in own) for value in own}
    names = {
        name: module
        for name, module in changed.named_modules()
        if name not in skip and uses.get(id(module._parameters.get("weight"))) == 1 and fits_adapter(module)
    }
    require(
        bool(names),
        f"{type(model).__name__} has no linear layer or convolution for LoRA besides its head; choose other weights",
        MismatchError,
    )
    streams = Streams(seed)
    layers = {id(base): LoraLayer(cast(Adapted, base), options, streams.at("lora", n)) for n, base in names.items()}
    return _replaced(changed, layers)


def merge_lora(model: nn.Module) -> nn.Module:
    """A copy of a network with each adapter added to its layer's weight: the original architecture, the same outputs.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> merge_lora(with_lora(net))
    Sequential(
      (0): Linear(in_features=3, out_features=5, bias=True)
      (1): ReLU()
      (2): Linear(in_features=5, out_features=2, bias=True)
    )
    """
    changed = copy.deepcopy(model)
    merged: dict[int, nn.Module] = {}
    with torch.no_grad():
        for layer in [module for module in changed.modules() if isinstance(module, LoraLayer)]:
            cast(Adapted, layer.base).weight.copy_(layer.weight)
            merged[id(layer)] = layer.base
    return _replaced(changed, merged)


def unmoved_names(model: nn.Module) -> set[str]:
    """Names of the weights A of adapters with B = 0: their gradients are zero."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]
    return {
        ".".join(filter(None, (name, "down.weight")))
        for name, layer in layers
        if not bool(cast(Adapted, layer.up).weight.any())
    }


def _replaced(model: nn.Module, others: dict[int, Any]) -> nn.Module:
    """The network with other modules in place of some of its own, given by id, everywhere they are registered."""
    if id(model) in others:
        return cast(nn.Module, others[id(model)])
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if id(child) in others and parent is not others[id(child)]:
                setattr(parent, name, others[id(child)])
    return model
