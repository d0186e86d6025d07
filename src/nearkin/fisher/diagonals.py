r"""The exact diagonal of the Fisher information, at little more than the cost of one backward pass.

$$F_{ii} = \frac1N \sum_n \mathbb{E}_{y}\left[\left(\partial_i \log p(y \mid f_\theta(x_n))\right)^2\right]$$

The expectation is over the observed labels (the empirical Fisher), over labels sampled from the model, or exact:
with $\Lambda_n = \sum_k s_k s_k^\top$ the information of the outputs, $F_{ii} = \frac1N \sum_n \sum_k (J_n^\top
s_k)_i^2$, which takes one forward pass and one backward pass per factor $s_k$.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.events import Note, Progress, Work, operation
from nearkin.core.types import Params
from nearkin.fisher.autodiff import autodiff_gradients, chunk_size
from nearkin.fisher.cotangents import Cotangents, Data, Samples, sample_blocks
from nearkin.fisher.gradient_plan import GradientPlan, local_tensors, require_evaluation_mode, wanted_names
from nearkin.fisher.layers import rule_for
from nearkin.fisher.planned_tape import PlannedTape
from nearkin.fisher.tape import Network, detached_weights, pull_back
from nearkin.fisher.values import FisherDiagonal

STACKED_FLOATS = 1 << 21  # values of a layer's output gradients that are collected before they are squared together


@operation
def diagonal(
    model: Network,
    data: Data,
    targets: Tensor | None = None,
    *,
    likelihood: str = "categorical",
    labels: str = "observed",
    batch_size: int = 128,
    num_samples: int = 1,
    seed: int = 0,
    names: Collection[str] | None = None,
    params: Params | None = None,
) -> Work[FisherDiagonal]:
    """The diagonal Fisher information of a network on data.

    Args:
        model: the network, in evaluation mode; or a function `f(params, x)`, with `params`.
        data: inputs `[N, *input_shape]` with `targets`, examples of a task, or any iterable of `(x, y)` batches.
        targets: labels, for `observed`; ignored for `sampled` and `expected`.
        likelihood: `categorical`, `gaussian`, `heteroscedastic`, `dense` or `language`.
        labels: `observed`, `sampled` (from the model, `num_samples` times) or `expected` (exact).
        batch_size: samples in a batch, if the data is a tensor or examples.
        num_samples: labels drawn for each sample, for `sampled`.
        seed: seed of the drawn labels.
        names: parameters to measure (default: all that require gradients).
        params: weights by name, for a function; a module has its own.

    >>> net = nn.Linear(2, 1)
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> diagonal(net, x, likelihood="gaussian", labels="expected").values["weight"]
    tensor([[5., 2.]])
    """
    samples = Samples(data, targets, likelihood, labels, batch_size, num_samples, seed)
    sums: Accumulator | None = None
    last_note = ""
    for number, (x, cotangents) in enumerate(samples.batches()):
        if sums is None:
            sums = Accumulator(model, x, names, params)
        sums.add(x, cotangents)
        if sums.note != last_note:
            last_note = sums.note
            yield Note(last_note)
        sums.check(number)
        yield Progress("Fisher diagonal", sums.count)
    assert sums is not None  # empty data is refused above
    return FisherDiagonal(sums.means(samples.draws), labels, sums.count)


class Accumulator:
    """Sums of squared per-sample gradients over batches; the memory does not grow with the number of batches."""

    def __init__(
        self, model: Network, x: Tensor, names: Collection[str] | None = None, params: Params | None = None
    ) -> None:
        self.model, self.count = model, 0
        if isinstance(model, nn.Module):
            require_evaluation_mode(model)
            self.weights, self.names = detached_weights(model), wanted_names(model, names)
        else:
            require(bool(params), "got a function f(params, x) without params; give its weights by name")
            self.weights = {name: value.detach() for name, value in (params or {}).items()}
            self.names = tuple(names) if names is not None else tuple(self.weights)
        self.tape = PlannedTape(model, self.weights, x, self.names, self._receive)
        plan = self.plan
        owned = [name for own in plan.owners.values() for name in own.values()]
        self.sums = {name: torch.zeros_like(self.weights[name]) for name in dict.fromkeys((*owned, *self.names))}
        self.into = {layer: {local: self.sums[name] for local, name in plan.owners[layer].items()}
                     for layer in plan.single}  # fmt: skip
        modules = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
        self.local = {layer: local_tensors(modules[layer]) for layer in plan.layers}
        self._shared_gradients: dict[str, Tensor] = {}
        self._stacks: dict[str, tuple[nn.Module, Tensor, list[Tensor]]] = {}
        self._last = True

    @property
    def plan(self) -> GradientPlan:
        """How gradients are computed, as of the last batch."""
        return self.tape.plan

    @property
    def note(self) -> str:
        """Message about weights without a formula; "" if all have one."""
        if self.plan.alone:
            return "the values of the inputs decide what the network computes: differentiated sample by sample"
        rest = ", ".join(self.plan.rest[:5])
        return f"no formula for {rest}: differentiated sample by sample" if rest else ""

    def add(self, x: Tensor, cotangents: Cotangents) -> None:
        """Add a batch: one forward pass, and one backward pass per cotangent."""
        shared = tuple(name for layer in self.plan.shared for name in self.plan.owners[layer].values())
        size = min(len(x), chunk_size(self.weights, shared)) if shared else len(x)
        for block in sample_blocks(len(x), size):
            outputs = self.tape(x[block])
            previous: Tensor | None = None
            for cotangent in cotangents(outputs.detach(), block):
                if previous is not None:
                    self._pull_back(outputs, x[block], previous, last=False)
                previous = cotangent
            if previous is not None:
                self._pull_back(outputs, x[block], previous, last=True)
        self.count += len(x)

    def _pull_back(self, outputs: Tensor, x: Tensor, cotangent: Tensor, last: bool) -> None:
        self._last = last
        pull_back(outputs, cotangent, retain_graph=not last)
        for name, gradient in self._shared_gradients.items():
            self.sums[name] += gradient.square().sum(0)
        self._shared_gradients.clear()
        for layer in list(self._stacks) if last else ():  # layers that this pass did not reach
            self._add_stack(layer)
        for rest in sample_blocks(len(x), chunk_size(self.weights, self.plan.rest)) if self.plan.rest else ():
            rows = (x[rest], cotangent[rest], self.plan.alone)
            for name, gradient in autodiff_gradients(self.model, self.weights, self.plan.rest, *rows).items():
                self.sums[name] += gradient.square().sum(0)

    def _receive(self, name: str, layer: nn.Module, x: Tensor, g: Tensor) -> bool:
        rule = rule_for(layer)
        if rule is None:
            return False
        if name not in self.into:
            for local, gradient in rule.gradients(layer, self.local[name], x, g).items():
                owner, sums = self.plan.owners[name][local], self._shared_gradients
                sums[owner] = sums[owner] + gradient if owner in sums else gradient
            return False
        if self._last and name not in self._stacks:
            rule.add_squares(layer, self.local[name], x, (g,), self.into[name])
            return True
        gradients = self._stacks.setdefault(name, (layer, x, []))[2]
        gradients.append(g)
        if self._last or (len(gradients) + 1) * g.numel() > STACKED_FLOATS:
            self._add_stack(name)
        return self._last

    def _add_stack(self, name: str) -> None:
        """Add the squares of the gradients of several backward passes at one layer: together they cost less."""
        layer, x, gradients = self._stacks.pop(name)
        rule = rule_for(layer)
        if rule is not None:
            rule.add_squares(layer, self.local[name], x, gradients, self.into[name])

    def check(self, number: int) -> None:
        """Raise an error with the layer and the number of the batch if gradients are not finite."""
        self._require_finite(self._smallest_tensors(), f"in batch {number}")

    def _require_finite(self, names: Collection[str], where: str) -> None:
        totals = dict(zip(names, torch.stack([self.sums[name].sum() for name in names]).tolist(), strict=True))
        if not all(map(math.isfinite, totals.values())):
            name = next(name for name, total in totals.items() if not math.isfinite(total))
            raise MismatchError(f"gradients of {name} are NaN or infinite {where}; check its inputs and the weights")

    def _smallest_tensors(self) -> list[str]:
        """The smallest tensor of every layer: if a gradient at the layer's output is NaN, it is NaN there too."""
        owned = [list(own.values()) for own in self.plan.owners.values()]
        smallest = [min(names, key=lambda name: self.sums[name].numel()) for names in owned]
        covered = {name for names in owned for name in names}
        return list(dict.fromkeys([*smallest, *(name for name in self.sums if name not in covered)]))

    def means(self, draws: int = 1) -> dict[str, Tensor]:
        """Sums divided by samples and draws, by name; computed in place, so that no batch can be added afterwards."""
        self._require_finite(list(self.sums), "in some batch: their squares are too large for their dtype")
        return {name: self.sums.pop(name).div_(self.count * draws) for name in self.names}
