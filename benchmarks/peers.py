"""Other libraries for Fisher information from PyPI, each used as its documentation says, on the same batches.

A peer is a function `(model, x, y)` that does its set-up and returns the call to be timed. Results have the form that
the library returns, one vector `[P]` or a list of tensors, in the order of `model.parameters()` and averaged over the
samples. A peer may change the model: give it a copy. Notation: N samples, P weights, C classes.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.utils.data import DataLoader, TensorDataset

from nearkin.nets.deep import PooledNetwork, ResidualBlock

Call: TypeAlias = Callable[[], Any]
Peer: TypeAlias = Callable[[nn.Module, Tensor, Tensor], Call]

BATCH = 128


def slices(x: Tensor, y: Tensor, size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(x.split(size), y.split(size), strict=True)


class Slices(DataLoader):
    """A data loader that slices tensors, so that loading takes almost no time for any library."""

    def __init__(self, x: Tensor, y: Tensor, size: int = BATCH) -> None:
        super().__init__(TensorDataset(x, y), batch_size=size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return slices(*self.dataset.tensors, size=self.batch_size)


def plain(model: nn.Module, x: Tensor, y: Tensor, size: int = BATCH) -> Call:
    """The reference for time and memory: forward and backward pass of the mean loss."""

    def work() -> None:
        for xs, ys in slices(x, y, size):
            model.zero_grad()
            F.cross_entropy(model(xs), ys).backward()
        model.zero_grad()

    return work


def flat(result: Any) -> Tensor:
    """A result as one vector."""
    return result.flatten() if isinstance(result, Tensor) else torch.cat([tensor.flatten() for tensor in result])


def zeros_for(weights: Iterable[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(weight) for weight in weights]


# Diagonals of the empirical Fisher


def loop_diagonal(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """The simplest correct method: a loop over batches of one sample."""
    weights = list(model.parameters())

    def work() -> Any:
        sums = zeros_for(weights)
        for xs, ys in slices(x, y, 1):
            for total, gradient in zip(sums, torch.autograd.grad(F.cross_entropy(model(xs), ys), weights), strict=True):
                total.addcmul_(gradient, gradient)
        return [total / len(x) for total in sums]

    return work


def vmap_diagonal(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """`torch.func`: per-sample gradients of a batch, squared."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(weights: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, (weights, buffers), (one_x[None],)), one_y[None])

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))

    def work() -> Any:
        sums = {name: torch.zeros_like(value) for name, value in weights.items()}
        for xs, ys in slices(x, y):
            for name, gradients in per_sample(weights, xs, ys).items():
                sums[name] += gradients.square().sum(0)
        return [total / len(x) for total in sums.values()]

    return work


def nngeometry_diagonal(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from nngeometry.backend import TorchHooksJacobianBackend
    from nngeometry.layercollection import LayerCollection
    from nngeometry.object import PMatDiag

    layers = LayerCollection.from_model(model)

    def log_likelihood(xs: Tensor, ys: Tensor) -> Tensor:
        return F.log_softmax(model(xs), 1).gather(1, ys[:, None])

    def work() -> Any:
        backend = TorchHooksJacobianBackend(model=model, function=log_likelihood, layer_collection=layers)
        return PMatDiag(generator=backend, examples=Slices(x, y)).get_diag()

    return work


def _backpack(model: nn.Module, x: Tensor, y: Tensor, extension: Any, attribute: str, whole: nn.Module) -> Call:
    from backpack import backpack, extend

    extend(whole)
    loss_function = extend(nn.CrossEntropyLoss(reduction="sum"))
    weights = list(model.parameters())

    def work() -> Any:
        sums = zeros_for(weights)
        for xs, ys in slices(x, y):
            model.zero_grad()
            loss = loss_function(whole(xs), ys)
            with backpack(extension()):
                loss.backward()
            for total, weight in zip(sums, weights, strict=True):
                total += getattr(weight, attribute)
                delattr(weight, attribute)
        return [total / len(x) for total in sums]

    return work


def backpack_diagonal(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from backpack.extensions import SumGradSquared

    return _backpack(model, x, y, SumGradSquared, "sum_grad_squared", model)


def laplace_diagonal(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """laplace-torch with its default backend, curvlinops; its BackPACK backend is measured as BackPACK."""
    from laplace import DiagLaplace
    from laplace.curvature import CurvlinopsEF

    def work() -> Any:
        posterior = DiagLaplace(model, "classification", backend=CurvlinopsEF)
        posterior.fit(Slices(x, y))
        return posterior.H / len(x)

    return work


def opacus_diagonal(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """Opacus works in training mode only, and refuses batch norm there."""
    from opacus.grad_sample import GradSampleModule

    sampled = GradSampleModule(model.train(), loss_reduction="sum")
    weights = list(sampled.parameters())

    def work() -> Any:
        sums = zeros_for(weights)
        for xs, ys in slices(x, y):
            sampled.zero_grad()
            F.cross_entropy(sampled(xs), ys, reduction="sum").backward()
            for total, weight in zip(sums, weights, strict=True):
                total += weight.grad_sample.square().sum(0)
                weight.grad_sample = None
        return [total / len(x) for total in sums]

    return work


def _asdl(model: nn.Module, x: Tensor, y: Tensor, kind: str) -> Call:
    from asdl import fisher, matrices
    from asdl.grad_maker import LOSS_CROSS_ENTROPY

    config = fisher.FisherConfig(
        fisher_type=kind, loss_type=LOSS_CROSS_ENTROPY, fisher_shapes=[matrices.SHAPE_DIAG], data_size=len(x)
    )
    owners = [(module, name) for module in model.modules() for name, _ in module.named_parameters(recurse=False)]

    def work() -> Any:
        maker = fisher.get_fisher_maker(model, config)
        for number, (xs, ys) in enumerate(slices(x, y)):
            outputs = maker.setup_model_call(model, xs)
            if kind == matrices.FISHER_EMP:
                maker.setup_loss_call(F.cross_entropy, outputs, ys, reduction="sum")
            maker.forward_and_backward(accumulate=number > 0)
        return [maker.get_fisher_tensor(module, matrices.SHAPE_DIAG, name) for module, name in owners]

    return work


def asdl_diagonal(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    return _asdl(model, x, y, "fisher_emp")


# Diagonals of the model's Fisher: one sampled label, or the expectation over all classes


def modules_only(model: nn.Module) -> nn.Module:
    """The same network and weights as `Sequential` modules only, which BackPACK's second-order extensions need."""
    from backpack.custom_module.branching import Parallel

    def rebuilt(block: nn.Module) -> nn.Module:
        if not isinstance(block, ResidualBlock):
            return block
        branch = nn.Sequential(block.first, nn.ReLU(), block.second)
        return nn.Sequential(Parallel(branch, block.shortcut), nn.ReLU())

    if not isinstance(model, PooledNetwork):
        return nn.Sequential(*model.children())
    features = [rebuilt(block) for block in model.features]
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.head).eval()


def backpack_sampled(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from backpack.extensions import DiagGGNMC

    return _backpack(model, x, y, lambda: DiagGGNMC(mc_samples=1), "diag_ggn_mc", modules_only(model))


def backpack_expected(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from backpack.extensions import DiagGGNExact

    return _backpack(model, x, y, DiagGGNExact, "diag_ggn_exact", modules_only(model))


def nngeometry_sampled(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from nngeometry.metrics import FIM_MonteCarlo
    from nngeometry.object import PMatDiag

    return lambda: FIM_MonteCarlo(model, Slices(x, y), PMatDiag, variant="classif_logits", trials=1).get_diag()


def nngeometry_expected(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from nngeometry.metrics import FIM
    from nngeometry.object import PMatDiag

    return lambda: FIM(model, Slices(x, y), PMatDiag, variant="classif_logits").get_diag()


def asdl_sampled(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    return _asdl(model, x, y, "fisher_mc")


def asdl_expected(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    return _asdl(model, x, y, "fisher_exact")


def loop_expected(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    r"""The oracle $\sum_c p_c (\partial \log p_c)^2$, one sample and one class at a time."""
    weights = list(model.parameters())

    def work() -> Any:
        sums = zeros_for(weights)
        for sample in x.split(1):
            logs = F.log_softmax(model(sample), 1)[0]
            for log in logs:
                gradients = torch.autograd.grad(log, weights, retain_graph=True)
                for total, gradient in zip(sums, gradients, strict=True):
                    total.addcmul_(gradient, gradient, value=log.exp().item())
        return [total / len(x) for total in sums]

    return work


# Fisher-vector products, all samples in one batch; the vector is `direction(model)`


def direction(model: nn.Module) -> list[Tensor]:
    """A fixed random vector with about the norm of the weights."""
    weights, rng = [weight.detach() for weight in model.parameters()], torch.Generator().manual_seed(5)
    squares = sum(float(weight.square().sum()) for weight in weights)
    scale = math.sqrt(squares / sum(weight.numel() for weight in weights))
    return [torch.randn(weight.shape, generator=rng).mul_(scale).to(weight.dtype) for weight in weights]


def curvlinops_product(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """The operator is created once; curvlinops runs the network again for every product."""
    from curvlinops import GGNLinearOperator

    weights, loss = list(model.parameters()), nn.CrossEntropyLoss()
    operator = GGNLinearOperator(model, loss, weights, [(x, y)], check_deterministic=False)
    vector = direction(model)
    return lambda: operator @ vector


def forward_reverse_product(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """`torch.func`: Jv by jvp, the softmax's information, then Jᵀ by vjp."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    buffers = dict(model.named_buffers())
    vector = dict(zip(weights, direction(model), strict=True))

    def outputs(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(model, (weights, buffers), (x,))

    def work() -> Any:
        logits, change = jvp(outputs, (weights,), (vector,))
        p = logits.softmax(1)
        information = p * change - p * (p * change).sum(1, keepdim=True)
        _, pull = vjp(outputs, weights)
        return list(pull(information / len(x))[0].values())

    return work


def double_backward_product(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """The Hessian of KL(p₀ ‖ p) by autograd twice: what the paper's code does."""
    weights, vector = list(model.parameters()), direction(model)

    def work() -> Any:
        logs = F.log_softmax(model(x), 1)
        loss = F.kl_div(logs, logs.detach(), log_target=True, reduction="batchmean")
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        inner = sum((g * v).sum() for g, v in zip(gradients, vector, strict=True))
        return torch.autograd.grad(inner, weights)

    return work


# Gram matrices of the tangent kernel, [N, N], of the first output


def jacobian_gram(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """`torch.func`: the whole Jacobian `[N, P]` of the first output, times itself."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def first_output(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(model, (weights, buffers), (sample[None],))[0, 0]

    rows = vmap(grad(first_output), in_dims=(None, 0))

    def work() -> Any:
        kernel = x.new_zeros(len(x), len(x))
        jacobians = [rows(weights, xs) for xs in x.split(BATCH)]
        for name in weights:
            jacobian = torch.cat([tensor.pop(name).flatten(1) for tensor in jacobians])
            kernel.addmm_(jacobian, jacobian.t())
        return kernel

    return work


def nngeometry_gram(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from nngeometry.gram import GramMatrix
    from nngeometry.layercollection import LayerCollection

    layers = LayerCollection.from_model(model)

    def work() -> Any:
        kernel = GramMatrix(
            model, Slices(x, y, len(x)), function=lambda xs, _: model(xs)[:, :1], layer_collection=layers
        )
        return kernel.to_torch().view(len(x), len(x))

    return work


DIAGONALS: dict[str, Peer] = {
    "nngeometry": nngeometry_diagonal,
    "BackPACK": backpack_diagonal,
    "asdfghjkl": asdl_diagonal,
    "torch.func vmap": vmap_diagonal,
    "laplace-torch": laplace_diagonal,
    "opacus": opacus_diagonal,
    "loop, batch of 1": loop_diagonal,
}
SAMPLED: dict[str, Peer] = {
    "BackPACK": backpack_sampled,
    "nngeometry": nngeometry_sampled,
    "asdfghjkl": asdl_sampled,
}
EXPECTED: dict[str, Peer] = {
    "BackPACK": backpack_expected,
    "nngeometry": nngeometry_expected,
    "asdfghjkl": asdl_expected,
}
PRODUCTS: dict[str, Peer] = {
    "curvlinops": curvlinops_product,
    "torch.func jvp + vjp": forward_reverse_product,
    "KL, double backward": double_backward_product,
}
GRAMS: dict[str, Peer] = {
    "nngeometry": nngeometry_gram,
    "torch.func Jacobian": jacobian_gram,
}
