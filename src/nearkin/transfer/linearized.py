r"""A network's first-order expansion around its source weights, $f(θ + v) ≈ f(θ) + J v$ (Maddox et al. 2019).

Notation: N and M samples, C outputs of the network (axes behind the first are flattened), P weights that are free to
move, J the Jacobian `[N, C, P]` in them. There are three choices for how outputs share the weights:

- `"sum"`: one kernel $K = \frac1C \sum_c J_c J_c^⊤$ `[N, M]` for every target. It fits a target task with other classes
  or values than the source.
- `"all"`: $K = J J^⊤$ `[N·C, M·C]`, one vector of weights for all outputs; there must be as many targets as outputs.
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
from nearkin.nets.heads import head_name, with_fewer_outputs, with_start
from nearkin.nets.lora import unmoved_names
from nearkin.nets.weight_subset import Weights, free_weights, layers_of

BATCH = 256  # samples in one forward pass
BLOCK = 64  # samples in one block of the kernel, of which only the diagonal is used
DENSE_BYTES = 2**30  # largest dense Jacobian
MOST_OUTPUTS = 8  # of a source whose classes are not those of the target


class LeadingOutputs(nn.Module):
    """A network reduced to its first `count` outputs, such as the means without the log variances.

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
    """A network as a linear function of the weights that are free to move; returned by `linearize`.

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
        """P, the number of free weights."""
        return sum(value.numel() for value in self.params.values())

    @cached_property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """Names of the free weights by layer."""
        return layers_of(self.names)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all weights, free names and outputs, by which a stored posterior recognises its network."""
        digest = hashlib.sha256(repr((self.names, self.outputs)).encode())
        for name, value in self.model.state_dict().items():
            digest.update(name.encode() + value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:32]

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs in the dtype and on the device of the weights; refused if there are none or some are not finite."""
        require(isinstance(x, Tensor), f"inputs are a tensor [N, ...], got a {type(x).__name__}", DataError)
        require(x.dim() > 0 and len(x) > 0, "got no samples, expected one or more; give some", DataError)
        like, x = next(iter(self.params.values())), x.detach()
        if not x.is_floating_point():
            return x.to(like.device)
        require_finite(x, "the inputs are", "fix or remove this sample")
        return x.to(like.device, like.dtype)

    def num_outputs(self, x: Tensor) -> int:
        """C, the number of outputs for these inputs."""
        return outputs_of(self.model, self.inputs(x[:1]))[0].numel()

    def mean(self, x: Tensor) -> Tensor:
        """f(θ) `[N, C]`, the network's own outputs, in float64."""
        batches = [outputs_of(self.model, batch) for batch in self.inputs(x).split(BATCH)]
        outputs = torch.cat([batch.reshape(len(batch), -1) for batch in batches]).double()
        require_finite(outputs, "the network's outputs are", "fix its weights")
        return outputs

    @operation
    def kernel(
        self, x: Tensor, x2: Tensor | None = None, names: Collection[str] | None = None, memory: int = MEMORY_BYTES
    ) -> Work[Tensor]:
        """K(x, x2) in float64: `[N, M]`, or `[N·C, M·C]` for `outputs="all"`; exactly symmetric without `x2`.

        `names` selects some of the free weights (default: all).
        """
        left, right = self.inputs(x), None if x2 is None else self.inputs(x2)
        chosen = self.names if names is None else tuple(names)
        kernel = yield from tangent_kernel.work(self.model, left, right, self.outputs, chosen, memory=memory)
        if self.outputs == "all":
            return kernel.flatten(2).flatten(0, 1).double()
        return kernel.double() / (self.num_outputs(left) if self.outputs == "sum" else 1)

    def layer_kernels(self, x: Tensor, x2: Tensor | None = None) -> dict[str, Tensor]:
        """Kernels of the single layers by name; their sum is `kernel`.

        >>> flat = linearize(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
        >>> kernels = flat.layer_kernels(torch.eye(2))
        >>> list(kernels), bool(torch.allclose(sum(kernels.values()), flat.kernel(torch.eye(2))))
        (['0', '2'], True)
        """
        return {layer: self.kernel(x, x2, names) for layer, names in self.layers.items()}

    def diagonal(self, x: Tensor, names: Collection[str] | None = None) -> Tensor:
        """The diagonal of K(x, x), `[N]` or `[N·C]`, without the full matrix."""
        return torch.cat([self.kernel(block, None, names).diagonal() for block in x.split(BLOCK)])

    def jacobian(self, x: Tensor) -> Tensor:
        """The dense J in float64, for few weights: `[N, C, P]`, or `[N, 1, P]` for one output."""
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
        jacobians: list[Tensor] = []
        for batch in x.split(BATCH):
            features(seen, batch, 1, lambda _, feature: jacobians.append(feature.g[:, 0, :, 0].double()))
        return torch.cat(jacobians)

    def features(self, x: Tensor) -> Tensor:
        r"""The matrix Φ with $K = Φ Φ^⊤$: `[N·C, P]` for `"all"`, `[N, C·P]` for `"sum"`, `[N, P]` for one output."""
        jacobian = self.jacobian(x)
        if self.outputs == "sum":
            return jacobian.flatten(1) / math.sqrt(jacobian.shape[1])
        return jacobian.flatten(0, 1)

    def jacobian_operator(self, x: Tensor) -> JacobianOperator:
        """J `[N·C, P]` of all outputs as a `linear_operator.LinearOperator`, which only computes products."""
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
        changes = [
            Jacobian(self.model, batch, params=self.params).push(step).reshape(len(batch), -1).double()
            for batch in self.inputs(x).split(BATCH)
        ]
        return self.mean(x) + torch.cat(changes)


def linearize(
    model: nn.Module,
    weights: Weights = "all",
    outputs: Outputs = "sum",
    *,
    x: Tensor | None = None,
    dtype: torch.dtype | None = torch.float64,
    means: int | None = None,
    seed: int = 0,
) -> Linearized:
    """The first-order expansion of a network around its weights.

    Args:
        model: any network that processes samples independently; it is copied, so later training changes nothing here.
        weights: the ones that are free to move: `all`, `head` (the last linear layer), `norm` (normalisation layers and
            the head), `lora?r=4` (new adapters of rank 4 and the head), `adapters` (names with "adapter" or "lora"),
            names of parameters or layers, or a regular expression. New adapters have B = 0, so that the derivative by A
            is zero, and the kernel of a layer is that of B: the layer's input in a random projection to r dimensions.
        outputs: `"sum"`, `"all"` or an index; see the module.
        x: some inputs, with which the head is determined exactly.
        dtype: of the copy. None keeps the dtype of the network, which is faster and less exact.
        means: how many of the first outputs are linearized (default: all). A heteroscedastic network of K targets has
            K means and K log variances; only the means predict targets, so kernel and mean use them alone.
        seed: of the projections of `lora`.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> linearize(net, "head").names, linearize(net).num_weights
    (('2.weight', '2.bias'), 13)
    """
    require(isinstance(model, nn.Module), f"a network is an nn.Module, got a {type(model).__name__}", MismatchError)
    whole = isinstance(outputs, int) and not isinstance(outputs, bool) and outputs >= 0
    require(outputs in ("sum", "all") or whole, f"outputs is 'sum', 'all' or the number of an output, got {outputs!r}")
    require(means is None or means >= 1, f"means is the number of outputs to linearize, 1 or more, got {means}")
    free = free_weights(model, weights, x, seed)
    model = (copy.deepcopy(model) if free.model is model else free.model).eval()
    unmoved = unmoved_names(model)
    names = tuple(name for name in free.names if name not in unmoved)
    if means is not None:
        model, names = LeadingOutputs(model, means), tuple(f"network.{name}" for name in names)
    if dtype is not None:
        model = model.to(dtype)
    broken = [name for name, value in model.named_parameters() if not bool(value.isfinite().all())]
    require(not broken, f"the weights of {', '.join(broken[:1])} are not finite; fix or train the network", DataError)
    return Linearized(model, names, outputs)


def transfer_source(
    model: nn.Module, x: Tensor, num_targets: int, weights: Weights = "all", seed: int = 0
) -> nn.Module:
    """The network that is linearized for targets of its own width or another one; mostly the given one.

    A kernel that is a mean over outputs takes one backward pass for each. A network of many outputs gets
    `MOST_OUTPUTS` random combinations of them; if only the head is free, where all outputs have one kernel, a single
    one. A head of zeros, as that of an adopted network without a trained head, would leave no kernel of the other
    weights; it is drawn as at the start of fine-tuning.

    Args:
        model: the network; it is not changed.
        x: inputs of the targets, at most 256 of which scale a drawn head.
        num_targets: classes, or columns of values.
        weights: the ones that are free to move.
        seed: of what is drawn.
    """
    try:
        head = head_name(model, x[:1])
    except MismatchError:
        return model
    layer = model.get_submodule(head)
    assert isinstance(layer, nn.Linear)
    if not bool(layer.weight.any()):
        return with_start(model, 1 if weights == "head" else min(num_targets, MOST_OUTPUTS), seed, x)
    if layer.out_features in range(MOST_OUTPUTS + 1) or layer.out_features == num_targets:
        return model
    return with_fewer_outputs(model, 1 if weights == "head" else MOST_OUTPUTS, seed, head)


def chosen_outputs(outputs: Outputs, size: int) -> range:
    """Indices of the outputs that are linearized, of a network with `size` outputs."""
    if isinstance(outputs, str):
        return range(size)
    require(
        outputs < size,
        f"got outputs={outputs}, the network has {size} outputs; give an index below {size}",
        MismatchError,
    )
    return range(outputs, outputs + 1)


def require_finite(values: Tensor, subject: str, advice: str) -> None:
    """Refuse samples `[N, ...]` that are not finite, naming the first of them."""
    broken = ~values.isfinite().reshape(len(values), -1).all(1)
    require(not bool(broken.any()), f"{subject} not finite at sample {int(broken.int().argmax())}; {advice}", DataError)
