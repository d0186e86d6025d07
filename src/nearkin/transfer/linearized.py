r"""A network's first-order expansion around its source weights, $f(θ + v) ≈ f(θ) + J v$ (Maddox et al. 2019).

Notation: N and M samples, C outputs of the network (axes behind the first are flattened), P weights that are free to
move, J the Jacobian `[N, C, P]` in them. How outputs share the weights is a choice:

- `"sum"`: one kernel $K = \frac1C \sum_c J_c J_c^⊤$ `[N, M]` for every target, whatever the targets are; this is what
  a target with other classes or values needs.
- `"all"`: $K = J J^⊤$ `[N·C, M·C]`, one vector of weights for all outputs; targets must be as many as outputs.
- an index c: $K = J_c J_c^⊤$ `[N, M]`.
"""

import copy
import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, MismatchError, require
from nearkin.core.events import Work, operation
from nearkin.core.types import Params
from nearkin.fisher.gradient_plan import require_evaluation_mode
from nearkin.fisher.jacobian import Jacobian
from nearkin.fisher.operators import JacobianOperator, jacobian_operator
from nearkin.fisher.tangent import MEMORY_BYTES, Outputs, tangent_kernel
from nearkin.fisher.tangent_features import TangentPlan, features
from nearkin.fisher.tape import detached_weights
from nearkin.fisher.vectors import unflat
from nearkin.nets.functional import outputs_of
from nearkin.transfer.subset import Weights, chosen_names, layers_of

BATCH = 256  # samples in one pass where only outputs are wanted
BLOCK = 64  # samples whose kernels with each other are computed for the sake of the diagonal
DENSE_BYTES = 2**30  # of a Jacobian written out


class LeadingOutputs(nn.Module):
    """A network whose outputs after the first `count` are left out, such as log variances beside means.

    >>> LeadingOutputs(nn.Linear(3, 4), 2)(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, network: nn.Module, count: int) -> None:
        super().__init__()
        self.network, self.count = network, int(count)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, count]` of inputs `[N, ...]`."""
        outputs: Tensor = self.network(x)
        return outputs[:, : self.count]


@dataclass(frozen=True, eq=False)
class Linearized:
    """A network as a linear function of the weights that are free to move; made by `linearize`.

    Attributes:
        model: a copy of the network, in evaluation mode.
        names: the weights that are free to move.
        outputs: `"sum"`, `"all"` or an index.

    >>> flat = linearize(nn.Linear(2, 1), outputs=0)
    >>> flat.kernel(torch.tensor([[1.0, 0.0], [2.0, 3.0]]))  # x xᵀ + 1
    tensor([[ 2.,  3.],
            [ 3., 14.]], dtype=torch.float64)
    """

    model: nn.Module
    names: tuple[str, ...]
    outputs: Outputs

    @cached_property
    def params(self) -> Params:
        """The free weights θ by name."""
        own = dict(self.model.named_parameters())
        return {name: own[name].detach() for name in self.names}

    @property
    def means(self) -> int | None:
        """How many of the network's first outputs are linearized; None for all."""
        return self.model.count if isinstance(self.model, LeadingOutputs) else None

    @property
    def num_weights(self) -> int:
        """P."""
        return sum(value.numel() for value in self.params.values())

    @cached_property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """Names of the free weights by layer."""
        return layers_of(self.names)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all weights and of the choices, by which kept posteriors know their network again."""
        found = hashlib.sha256(repr((self.names, self.outputs)).encode())
        for name, value in self.model.state_dict().items():
            found.update(name.encode() + value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()[:32]

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs in the dtype and on the device of the weights; refused if there are none or some are not finite."""
        require(isinstance(x, Tensor), f"inputs are a tensor [N, ...], got a {type(x).__name__}", DataError)
        require(x.dim() > 0 and len(x) > 0, "there are no samples; give one or more", DataError)
        like = next(iter(self.params.values()))
        if not x.is_floating_point():
            return x.detach().to(like.device)
        broken = (~x.detach().isfinite()).flatten(1).any(1) if x.dim() > 1 else ~x.detach().isfinite()
        require(
            not bool(broken.any()),
            f"the inputs are not finite at sample {int(broken.int().argmax())}; mend the data or leave it out",
            DataError,
        )
        return x.detach().to(like.device, like.dtype)

    def num_outputs(self, x: Tensor) -> int:
        """C, for inputs like these."""
        return outputs_of(self.model, self.inputs(x[:1]))[0].numel()

    def mean(self, x: Tensor) -> Tensor:
        """f(θ) `[N, C]`, the network's own outputs, in float64."""
        parts = [outputs_of(self.model, part) for part in self.inputs(x).split(BATCH)]
        found = torch.cat([part.reshape(len(part), -1) for part in parts]).double()
        broken = ~found.isfinite().all(1)
        require(
            not bool(broken.any()),
            f"the network's outputs are not finite at sample {int(broken.int().argmax())}; mend its weights",
            DataError,
        )
        return found

    @operation
    def kernel(
        self, x: Tensor, x2: Tensor | None = None, names: Collection[str] | None = None, memory: int = MEMORY_BYTES
    ) -> Work[Tensor]:
        """K(x, x2) in float64: `[N, M]`, or `[N·C, M·C]` for `outputs="all"`; exactly symmetric without `x2`.

        `names` are some of the free weights; by default all of them.
        """
        left, right = self.inputs(x), None if x2 is None else self.inputs(x2)
        chosen = self.names if names is None else tuple(names)
        found = yield from tangent_kernel.work(self.model, left, right, self.outputs, chosen, memory=memory)
        if self.outputs == "all":
            return found.flatten(2).flatten(0, 1).double()
        return found.double() / (self.num_outputs(left) if self.outputs == "sum" else 1)

    def layer_kernels(self, x: Tensor, x2: Tensor | None = None) -> dict[str, Tensor]:
        """Kernels of the single layers by name; their sum is `kernel`.

        >>> flat = linearize(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
        >>> parts = flat.layer_kernels(torch.eye(2))
        >>> list(parts), bool(torch.allclose(sum(parts.values()), flat.kernel(torch.eye(2))))
        (['0', '2'], True)
        """
        return {layer: self.kernel(x, x2, names) for layer, names in self.layers.items()}

    def diagonal(self, x: Tensor, names: Collection[str] | None = None) -> Tensor:
        """The diagonal of K(x, x), `[N]` or `[N·C]`, without the rest of it."""
        return torch.cat([self.kernel(part, None, names).diagonal() for part in x.split(BLOCK)])

    def jacobian(self, x: Tensor) -> Tensor:
        """J written out in float64 for few weights: `[N, C, P]`, or `[N, 1, P]` for one output."""
        x = self.inputs(x)
        require_evaluation_mode(self.model)
        chosen = chosen_outputs(self.outputs, self.num_outputs(x))
        size = len(x) * len(chosen) * self.num_weights * 8
        require(
            size <= DENSE_BYTES,
            f"a Jacobian of {len(x):,} samples, {len(chosen)} outputs and {self.num_weights:,} weights takes "
            f"{size / 2**30:,.1f} GiB; use jacobian_operator, or free fewer weights",
        )
        seen = TangentPlan(self.model, detached_weights(self.model), {}, {}, self.names, chosen, False)
        parts: list[Tensor] = []
        for part in x.split(BATCH):
            features(seen, part, 1, lambda _, one: parts.append(one.g[:, 0, :, 0].double()))
        return torch.cat(parts)

    def features(self, x: Tensor) -> Tensor:
        r"""The matrix Φ with $K = Φ Φ^⊤$: `[N·C, P]` for `"all"`, `[N, C·P]` for `"sum"`, `[N, P]` for one output."""
        jacobian = self.jacobian(x)
        if self.outputs == "sum":
            return jacobian.flatten(1) / math.sqrt(jacobian.shape[1])
        return jacobian.flatten(0, 1)

    def jacobian_operator(self, x: Tensor) -> JacobianOperator:
        """J `[N·C, P]` of all outputs by its products alone, as a `linear_operator.LinearOperator`."""
        return jacobian_operator(self.model, self.inputs(x), params=self.params)

    def at(self, v: Params | Tensor, x: Tensor) -> Tensor:
        """The expansion f(θ) + J v `[N, C]` of all outputs, for a step v by name or flat `[P]`.

        >>> flat = linearize(nn.Linear(2, 1, bias=False))
        >>> step, x = {"weight": torch.tensor([[1.0, 2.0]])}, torch.eye(2)
        >>> bool(torch.allclose(flat.at(step, x) - flat.mean(x), torch.tensor([[1.0], [2.0]]).double()))
        True
        """
        like = next(iter(self.params.values()))
        step = unflat(v.to(like), self.params) if isinstance(v, Tensor) else {n: t.to(like) for n, t in v.items()}
        moved = [
            Jacobian(self.model, part, params=self.params).push(step).reshape(len(part), -1).double()
            for part in self.inputs(x).split(BATCH)
        ]
        return self.mean(x) + torch.cat(moved)


def linearize(
    model: nn.Module,
    weights: Weights = "all",
    outputs: Outputs = "sum",
    *,
    x: Tensor | None = None,
    dtype: torch.dtype | None = torch.float64,
    means: int | None = None,
) -> Linearized:
    """The first-order expansion of a network around its weights.

    Args:
        model: any network that treats samples apart; a copy is kept, so that training it further changes nothing here.
        weights: which are free to move: `all`, `head` (the last linear layer), `norm` (of normalisation layers),
            `adapters` (names with "adapter" or "lora"), names of parameters or layers, or a regular expression.
        outputs: `"sum"`, `"all"` or an index; see the module.
        x: some inputs, by which the head is found for sure.
        dtype: of the copy; None leaves the network's own, which is quicker and rounds the kernel to that.
        means: how many of the first outputs are linearized; all if None. A heteroscedastic network of K targets has K
            means and K log variances; only the means say where targets lie, so they alone give kernel and mean.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> linearize(net, "head").names, linearize(net).num_weights
    (('2.weight', '2.bias'), 13)
    """
    require(isinstance(model, nn.Module), f"a network is an nn.Module, got a {type(model).__name__}", MismatchError)
    whole = isinstance(outputs, int) and not isinstance(outputs, bool) and outputs >= 0
    require(outputs in ("sum", "all") or whole, f"outputs is 'sum', 'all' or the number of an output, got {outputs!r}")
    require(means is None or means >= 1, f"means is the number of outputs to linearize, 1 or more, got {means}")
    names = chosen_names(model, weights, x)
    kept = copy.deepcopy(model).eval()
    if means is not None:
        kept, names = LeadingOutputs(kept, means), tuple(f"network.{name}" for name in names)
    if dtype is not None:
        kept = kept.to(dtype)
    broken = [name for name, value in kept.named_parameters() if not bool(value.isfinite().all())]
    require(not broken, f"the weights of {', '.join(broken[:1])} are not finite; mend or train the network", DataError)
    return Linearized(kept, names, outputs)


def chosen_outputs(outputs: Outputs, size: int) -> range:
    """The outputs of a network that count."""
    if isinstance(outputs, str):
        return range(size)
    require(outputs < size, f"outputs={outputs} of a network with {size}; give an index below {size}", MismatchError)
    return range(outputs, outputs + 1)
