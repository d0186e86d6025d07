"""Random small networks, and their per-sample gradients by the definition: one sample, one backward pass.

A network is a chain of blocks between an input (a vector, a sequence or an image) and a linear head. Blocks share and
tie weights, use them outside of their layers, branch on values, work in place, and do whatever else breaks formulas
that look at single layers.
"""

import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from nearkin.tasks.likelihood import likelihood

WIDTH = 4
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (torch.tanh, F.relu, F.silu, torch.sin, F.gelu)


NEEDS_MORE = ("layer norm", "norm called twice", "nested", "list of modules", "unrolled list with sharing",
              "tied to a list", "parameters", "branches")  # fmt: skip


class Changed(nn.Linear):
    """A subclass of a known layer that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.square(), self.bias)


class Doubled(torch.autograd.Function):
    """A function with a backward pass of its own."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return x @ weight * 2

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Tensor, Tensor]:
        (x, weight), (g,) = context.saved_tensors, gradients
        return g @ weight.t() * 2, x.flatten(0, -2).t() @ g.flatten(0, -2) * 2


class Block(nn.Module):
    """One step of a network on `[B, …, 4]`, by the name of what it does."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        super().__init__()
        self.kind, self.activation = kind, rng.choice(ACTIVATIONS)
        bias = rng.random() < 0.7
        self.a, self.b = nn.Linear(WIDTH, WIDTH, bias=bias), nn.Linear(WIDTH, WIDTH)
        if kind in NEEDS_MORE or rng.random() < 0.2:  # else unused
            self.norm = nn.LayerNorm(WIDTH)
            self.scale = nn.Parameter(torch.randn(WIDTH))
            self.list = nn.ParameterList([torch.randn(WIDTH), torch.randn(WIDTH)])
            self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
            inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH))
            self.named = nn.ModuleDict({"inner": inner})
        self.register_buffer("offset", torch.randn(WIDTH))
        self.threshold = rng.uniform(-1, 1)
        if kind == "tied":
            self.b.weight = self.a.weight
        elif kind == "tied to a list":
            self.a.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
            self.list.append(self.a.weight)
        elif kind == "subclass":
            self.a = Changed(WIDTH, WIDTH, bias=bias)
        elif kind == "weight norm":
            self.a = parametrizations.weight_norm(self.a)
        elif kind == "spectral norm":
            self.a = parametrizations.spectral_norm(self.a)
        elif kind == "old weight norm":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.a = nn.utils.weight_norm(self.a)
        elif kind == "old spectral norm":
            self.a = nn.utils.spectral_norm(self.a)
        elif kind == "own forward":
            layer = self.a
            layer.forward = lambda x: F.linear(x, layer.weight * 2, layer.bias)  # type: ignore[method-assign]
        elif kind == "forward hook":
            self.a.register_forward_hook(lambda layer, _, outputs: outputs * 2)
        elif kind == "forward hook with the weight":
            self.a.register_forward_hook(lambda layer, _, outputs: outputs + layer.weight.sum(0))
        elif kind == "forward pre-hook":
            self.a.register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 2,))

    def forward(self, x: Tensor) -> Tensor:
        """One step; `x` itself is never changed."""
        a, b, act = self.a, self.b, self.activation
        first = x.flatten(1)[:, 0].view(-1, *[1] * (x.dim() - 1))  # a number of every sample
        match self.kind:
            case "plain" | "tied" | "subclass" | "own forward" | "forward pre-hook":
                return act(b(act(a(x))))
            case "weight norm" | "spectral norm" | "old weight norm" | "old spectral norm":
                return act(b(act(a(x))))
            case "forward hook" | "forward hook with the weight":
                return act(a(x))
            case "layer norm":
                return act(self.norm(a(x)))
            case "called twice":
                return act(a(act(a(x))))
            case "norm called twice":
                return self.norm(act(a(self.norm(x))))
            case "nested":
                return x + self.named["inner"](x)
            case "list of modules":
                for layer in self.layers:
                    x = x + act(layer(x))
                return x
            case "unrolled list with sharing":
                for layer in (*self.layers, self.layers[0]):
                    x = act(layer(x))
                return x
            case "tied to a list":
                return act(a(x) + x @ self.list[2])
            case "parameters":
                return act(x * self.scale + self.list[0]) * self.list[1] + self.offset
            case "weight by F.linear":
                return act(a(x)) + F.linear(x, a.weight)
            case "weight transposed":
                return act(a(x)) @ a.weight.t()
            case "weight squared":
                return act(a(x)) + (a.weight * 2).square().sum()
            case "weight view":
                return act(a(x)) + a.weight.view(-1)[:WIDTH]
            case "bias elsewhere":
                return act(b(x)) + b.bias
            case "weight in a function":
                return act(a(x)) + Doubled.apply(x, a.weight)
            case "weight by where":
                return torch.where(first > self.threshold, F.linear(x, a.weight), a(x))
            case "rare second use":
                return a(x) + (first > 1).to(x.dtype) * F.linear(x, a.weight)
            case "where":
                return torch.where(first > self.threshold, a(x), b(x))
            case "second use if positive":
                h = a(x)
                return h + F.linear(act(x), a.weight) if x.sum() > 0 else h
            case "second call if positive":
                h = a(x)
                return act(a(act(h))) if float(x.detach().sum()) > self.threshold else h
            case "module by value":
                return act(a(x) if x.mean().item() > 0 else b(x))
            case "module by list of values":
                return act(a(x) if x.detach().flatten().tolist()[0] > 0 else b(x))
            case "gain by value":
                return a(x) * (2 if bool((x > self.threshold).any()) else 1)
            case "routed":
                mask = first.flatten() > self.threshold
                out = torch.zeros_like(x)
                out[mask] = a(x[mask])
                out[~mask] = b(x[~mask])
                return out
            case "sorted":
                order = first.flatten().argsort()
                return act(a(act(a(x))[order]))[order.argsort()]
            case "reversed":
                return act(a(act(a(x)).flip(0))).flip(0)
            case "stepwise":
                return torch.stack([act(a(sample)) for sample in x])
            case "one sample at a time":
                return torch.cat([act(a(sample)) for sample in x.split(1)])
            case "in place":
                h = a(x)
                h += self.offset
                h.relu_()
                return b(h)
            case "in place rows":
                h = a(x).clone()
                h[..., 0] = 0
                h[..., 1] *= 2
                return b(h)
            case "in place activation":
                return b(F.relu(a(x), inplace=True))
            case "without gradient":
                with torch.no_grad():
                    h = a(x)
                return x + h + b(x)
            case "partly without gradient":
                with torch.no_grad():
                    h = act(a(x))
                return h + a(x)
            case "detached":
                return x + a(x).detach() + a(x) * 0.5
            case "keyword":
                return act(a(input=x)) + b(x)
            case "direct forward":
                return act(a.forward(x)) + a(x)
            case "positions first":
                return act(a(x.transpose(0, 1)).transpose(0, 1))
            case "folded":
                return act(a(x.reshape(-1, WIDTH))).view(x.shape)
            case "one row":
                return act(a(x[None])[0])
            case "branches":
                return a(x) * torch.sigmoid(b(x)) + self.named["inner"](x)
            case "dead":
                return x + b(F.relu(a(x) - 100))
            case "unused":
                return act(x)
        raise AssertionError(self.kind)


KINDS = (
    "plain", "tied", "subclass", "own forward", "forward pre-hook", "weight norm", "spectral norm", "old weight norm",
    "old spectral norm", "forward hook", "forward hook with the weight", "layer norm", "called twice",
    "norm called twice", "nested", "list of modules", "unrolled list with sharing", "tied to a list", "parameters",
    "weight by F.linear", "weight transposed", "weight squared", "weight view", "bias elsewhere",
    "weight in a function", "weight by where", "rare second use", "where", "second use if positive",
    "second call if positive", "module by value", "module by list of values", "gain by value", "routed", "sorted",
    "reversed", "stepwise", "one sample at a time", "in place", "in place rows", "in place activation",
    "without gradient", "partly without gradient", "detached", "keyword", "direct forward", "positions first",
    "folded", "one row", "branches", "dead", "unused",
)  # fmt: skip


class Images(nn.Module):
    """Convolutions and norms on `[B, 4, 5, 6]` that end in `[B, 4]`."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        groups = rng.choice((1, 2, 4))
        options: dict[str, Any] = {"stride": rng.choice((1, 2)), "groups": groups, "bias": rng.random() < 0.7}
        options |= {"dilation": rng.choice((1, 2)), "padding": rng.choice((0, 1, 2))}
        if rng.random() < 0.3:
            options["padding_mode"] = rng.choice(("reflect", "circular", "replicate"))
        norm = rng.choice((nn.BatchNorm2d(WIDTH), nn.GroupNorm(2, WIDTH), nn.InstanceNorm2d(WIDTH, affine=True)))
        self.first = nn.Conv2d(WIDTH, WIDTH, rng.choice((1, 2, (1, 3))), **options)
        self.norm, self.second = norm, nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.up = nn.ConvTranspose2d(WIDTH, WIDTH, 2, stride=2)
        self.slope = nn.PReLU(rng.choice((1, WIDTH)))
        kinds = ("plain", "twice", "up", "in place", "weight by F.conv2d", "residual", "no norm", "pooled")
        self.kind = rng.choice(kinds)

    def forward(self, x: Tensor) -> Tensor:
        """Maps, then their means."""
        x = self.first(x)
        match self.kind:
            case "twice":
                x = self.norm(self.second(torch.tanh(self.second(self.norm(x)))))
            case "up":
                x = self.slope(self.norm(self.up(x)))
            case "in place":
                x = self.norm(x)
                x += 1
                x = self.second(F.relu(x, inplace=True))
            case "weight by F.conv2d":
                x = self.second(self.norm(x)) + F.conv2d(x, self.second.weight.flip(3), padding=1)
            case "residual":
                x = x + self.second(F.relu(self.norm(x)))
            case "no norm":
                x = self.slope(self.second(x))
            case "pooled":
                x = F.max_pool2d(F.relu(self.norm(self.second(x))), 2, ceil_mode=True)
            case _:
                x = torch.tanh(self.norm(x))
        return x.mean((2, 3))


class Network(nn.Module):
    """A stem, blocks, and a head."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.form = rng.choice(("vector", "vector", "sequence", "image"))
        self.stem = Images(rng) if self.form == "image" else nn.Identity()
        self.kinds = [rng.choice(KINDS) for _ in range(rng.choice((1, 1, 2, 3)))]
        if self.form != "sequence":  # vectors have no positions
            self.kinds = ["called twice" if kind == "positions first" else kind for kind in self.kinds]
        self.blocks = nn.Sequential(*(Block(kind, rng) for kind in self.kinds))
        if self.form == "vector" and rng.random() < 0.3:
            self.blocks.append(nn.BatchNorm1d(WIDTH))
        self.head = nn.Linear(WIDTH, rng.choice((1, 2, 3)))
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `[B, C]`."""
        x = self.blocks(self.stem(x))
        return self.head(x.sum(1) if x.dim() == 3 else x)


@dataclass(frozen=True)
class Case:
    """A network with inputs, labels and options."""

    model: Network
    x: Tensor
    y: Tensor
    likelihood: str
    batch_size: int

    def __str__(self) -> str:
        network = f"{self.model.form}: {self.model.kinds} {getattr(self.model.stem, 'kind', '')}"
        return f"{network}, {len(self.x)} samples in batches of {self.batch_size}"


def generated(rng: random.Random) -> Case:
    """A random network in float64 and evaluation mode, on one to six samples, the first one often zero."""
    torch.manual_seed(rng.randrange(2**31))
    model = Network(rng).double().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    for parameter in model.parameters():
        if rng.random() < 0.1:
            parameter.requires_grad_(False)
    model.head.weight.requires_grad_(True)
    shape = {"vector": (WIDTH,), "sequence": (rng.choice((1, 2, 3)), WIDTH), "image": (WIDTH, 5, 6)}[model.form]
    x = torch.randn(rng.choice((1, 2, 3, 5, 6)), *shape, dtype=torch.float64)
    if rng.random() < 0.5:
        x[0] = 0
    if rng.random() < 0.3:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)  # not contiguous
    outputs = model.head.out_features
    form = "gaussian" if outputs == 1 else "categorical"
    y = torch.randn(len(x), 1, dtype=torch.float64) if outputs == 1 else torch.randint(outputs, (len(x),))
    return Case(model, x, y, form, rng.choice((1, 2, 3, 8)))


def sample_gradients(case: Case, cotangents: Callable[[Tensor, int], Iterator[Tensor]]) -> list[dict[str, Tensor]]:
    """Gradients of every sample and cotangent, by name; parameters that a sample does not use have zeros."""
    chosen = {name: value for name, value in case.model.named_parameters() if value.requires_grad}
    rows = []
    for number in range(len(case.x)):
        outputs = case.model(case.x[number : number + 1])
        for c in cotangents(outputs.detach(), number):
            found = torch.autograd.grad(outputs, list(chosen.values()), c, retain_graph=True, materialize_grads=True)
            rows.append(dict(zip(chosen, found, strict=True)))
    return rows


def reference_diagonal(case: Case, labels: str) -> dict[str, Tensor]:
    """The mean of squared per-sample gradients, with `observed` or `expected` labels."""
    form = likelihood(case.likelihood)

    def cotangents(outputs: Tensor, number: int) -> Iterator[Tensor]:
        if labels == "expected":
            yield from form.factors(outputs)
        else:
            yield form.slope(outputs, case.y[number : number + 1])

    rows = sample_gradients(case, cotangents)
    return {name: sum(row[name].square() for row in rows) / len(case.x) for name in rows[0]}


def reference_kernel(case: Case) -> Tensor:
    """J Jᵀ `[N, C, N, C]`."""
    outputs = case.model.head.out_features

    def cotangents(f: Tensor, number: int) -> Iterator[Tensor]:
        yield from torch.eye(outputs, dtype=f.dtype)[:, None]

    rows = [torch.cat([value.flatten() for value in row.values()]) for row in sample_gradients(case, cotangents)]
    jacobian = torch.stack(rows)
    return (jacobian @ jacobian.t()).view(len(case.x), outputs, len(case.x), outputs)
