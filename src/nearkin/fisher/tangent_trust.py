"""Which layers' kernel formulas can be trusted in a network.

A formula holds if the layer does what its class does, is called once, has its weights to itself, and samples lie along
the first axis. The structure is looked at first; then every formula is compared with autograd on two samples, each of
them alone. Parameters of all other layers are left to automatic differentiation: slower, never wrong.

Notation: B samples, C outputs, P weights of a layer.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.core.errors import MismatchError
from nearkin.core.types import Params
from nearkin.fisher.layer_kernels import KNOWN, add_kernel, feature
from nearkin.fisher.tape import outputs_on_tape

AGREEMENT = {torch.float64: 1e-8, torch.float32: 1e-3}  # with autograd, relative to the largest number
ROUGH_AGREEMENT = 3e-2  # for shorter dtypes

Calls = dict[str, list[tuple[Tensor, Tensor]]]


@dataclass(frozen=True, eq=False)
class Sight:
    """A network as the tangent kernel sees it.

    Attributes:
        model: the network.
        weights: its parameters and buffers, detached.
        layers: trusted layers, each with the local names of its parameters that count.
        exact: parameters left to automatic differentiation.
        outputs: which of the outputs to differentiate, C of them.
        summed: whether the kernel is summed over them.
        to_inputs: whether gradients run on to the inputs, as they must where a first layer's output is written into.
    """

    model: nn.Module
    weights: Mapping[str, Tensor]
    layers: Mapping[str, frozenset[str]]
    exact: tuple[str, ...]
    outputs: range
    summed: bool
    to_inputs: bool = False

    def without(self, layer: str) -> "Sight":
        """The same with one layer's parameters left to automatic differentiation."""
        rest = {name: own for name, own in self.layers.items() if name != layer}
        return replace(self, layers=rest, exact=(*self.exact, *full_names(layer, self.layers[layer])))

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs as the tape wants them."""
        return x.detach().requires_grad_() if self.to_inputs else x.detach()


def sight(
    model: nn.Module, weights: Mapping[str, Tensor], names: Iterable[str], outputs: range, summed: bool, x: Tensor
) -> Sight:
    """How to see a network, judged on two of its inputs, `x` `[2, …]` (or one).

    >>> net = nn.Sequential(nn.Linear(3, 2), nn.PReLU())
    >>> weights = {name: value.detach() for name, value in net.named_parameters()}
    >>> seen = sight(net, weights, weights, range(2), False, torch.ones(1, 3))
    >>> list(seen.layers), seen.exact
    (['0'], ('1.weight',))
    """
    layers = _plain_layers(model, frozenset(names))
    covered = {full for name, own in layers.items() for full in full_names(name, own)}
    exact = tuple(name for name in names if name not in covered)
    return _verified(Sight(model, weights, layers, exact, outputs, summed), x)


def full_names(layer: str, own: Iterable[str]) -> tuple[str, ...]:
    """Names in the network of a layer's own parameters.

    >>> full_names("body.1", ("weight", "bias"))
    ('body.1.bias', 'body.1.weight')
    """
    return tuple(sorted(f"{layer}.{local}" if layer else local for local in own))


def near(found: Tensor, truth: Tensor) -> bool:
    """Whether numbers agree as far as their dtype lets them, or the truth is not finite."""
    close = (found - truth).abs().max() <= AGREEMENT.get(truth.dtype, ROUGH_AGREEMENT) * truth.abs().max()
    return bool(close) or not bool(truth.isfinite().all())


def _plain_layers(model: nn.Module, names: frozenset[str]) -> dict[str, frozenset[str]]:
    """Layers with a formula and parameters that no other module holds, and which of those parameters count."""
    holders = Counter(id(value) for _, value in model.named_parameters(remove_duplicate=False))
    found: dict[str, frozenset[str]] = {}
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        counted = frozenset(local for local in own if full_names(name, (local,))[0] in names)
        plain = (
            type(module) in KNOWN
            and own.keys() <= {"weight", "bias"}
            and all(holders[id(p)] == 1 for p in own.values())
        )
        if isinstance(module, nn.Embedding):
            plain = plain and module.max_norm is None and not module.scale_grad_by_freq
        if plain and counted:
            found[name] = counted
    return found


def _verified(seen: Sight, x: Tensor) -> Sight:
    """The same without those layers whose formula differs from autograd's answer."""
    if not seen.layers:
        return seen
    with torch.no_grad():
        outputs = functional_call(seen.model, dict(seen.weights), (x[:1],)).flatten()
    cotangent = torch.zeros_like(outputs)
    cotangent[seen.outputs.start : seen.outputs.stop] = torch.linspace(0.5, 1.5, len(seen.outputs))  # no two alike
    uses, rows = _autograd(seen, x, cotangent)
    try:
        seen, calls = _heard(seen, x, cotangent)
    except (RuntimeError, MismatchError):  # the network writes into what its layers read
        calls = {}
    for name, own in list(seen.layers.items()):
        names, heard = full_names(name, own), calls.get(name, [])
        once = len(heard) == 1 and all(uses[full] == 1 for full in names)
        if not once or not _agrees(seen, name, *heard[0], _gram([rows[full] for full in names])):
            seen = seen.without(name)
    return seen


def _agrees(seen: Sight, name: str, x: Tensor, g: Tensor, truth: Tensor) -> bool:
    """Whether a layer's formula, in either form, gives the kernel `[B, B]` that autograd gives."""
    if x.dim() < 1 or g.dim() < 2 or len(x) != len(truth) or len(g) != len(truth):
        return False
    layer, own = seen.model.get_submodule(name), seen.layers[name]
    forms = (feature(layer, x, g[:, None], own, False, partners) for partners in (1, 2**20))
    for made in {type(form): form for form in forms}.values():
        out = torch.zeros_like(truth)
        add_kernel(out, made, made)
        if not near(out, truth):
            return False
    return True


def _gram(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """Inner products `[B, B]` of B gradients, summed over parameters; the gradients are not copied."""
    grams = [torch.stack([torch.stack([a.dot(b) for b in each]) for a in each]) for each in rows]
    return torch.stack(grams).sum(0)


def _autograd(seen: Sight, x: Tensor, cotangent: Tensor) -> tuple[Counter[str], dict[str, list[Tensor]]]:
    """How often parameters of layers are used, and their B gradients `[P]`, by autograd on each sample alone."""
    names = [full for name, own in seen.layers.items() for full in full_names(name, own)]
    free = {name: seen.weights[name].detach().requires_grad_() for name in names}
    uses: Counter[str] = Counter()
    rows: dict[str, list[Tensor]] = defaultdict(list)
    for one in x.detach().split(1):
        with torch.enable_grad():
            total = (functional_call(seen.model, {**seen.weights, **free}, (one,)).flatten() * cotangent).sum()
        uses |= _uses(total, free)
        found = torch.autograd.grad(total, list(free.values()), allow_unused=True) if total.requires_grad else ()
        for name, gradient in zip(names, found or [None] * len(names), strict=True):
            dense = torch.zeros_like(free[name]) if gradient is None else gradient.detach()
            rows[name].append((dense.to_dense() if dense.is_sparse else dense).flatten())
    return uses, rows


def _uses(root: Tensor, free: Params) -> Counter[str]:
    """How many operations of a graph read each parameter."""
    named = {id(value): name for name, value in free.items()}
    counts: Counter[str] = Counter()
    waiting, known = [root.grad_fn], {root.grad_fn}
    while waiting:
        node = waiting.pop()
        for after, _ in () if node is None else node.next_functions:
            if after is not None and hasattr(after, "variable"):
                counts[named[id(after.variable)]] += 1
            elif after is not None and after not in known:
                known.add(after)
                waiting.append(after)
    return counts


def _heard(seen: Sight, x: Tensor, cotangent: Tensor) -> tuple[Sight, Calls]:
    """Input and output's gradient of every call of a layer; gradients run to the inputs if they cannot start later."""
    calls: Calls = defaultdict(list)

    def receive(name: str, layer: nn.Module, read: Tensor, g: Tensor) -> None:
        calls[name].append((read, g))

    def run(seen: Sight) -> None:
        calls.clear()
        with torch.enable_grad():
            outputs = outputs_on_tape(seen.model, seen.weights, seen.inputs(x), seen.layers, receive)
            if outputs.requires_grad:
                outputs.backward(cotangent.expand(len(x), -1).reshape(outputs.shape))

    try:
        run(seen)
    except RuntimeError:
        if not x.is_floating_point():
            raise
        seen = replace(seen, to_inputs=True)
        run(seen)
    return seen, calls
