"""Importance of shared weights for one path of a network, measured on validation samples."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.core.events import Work
from nearkin.core.types import Params
from nearkin.search.plasticity.importance import evaluating, measure_importance
from nearkin.search.plasticity.plasticity_options import PlasticityOptions
from nearkin.search.supernet.fused.supernet import Supernet

PER_SAMPLE = ("observed", "sampled", "expected")


class PathModel(nn.Module):
    """A network with shared weights along one path, as a function of the inputs alone."""

    def __init__(self, net: nn.Module, path: Any) -> None:
        super().__init__()
        self.net, self.path = net, path

    def forward(self, x: Tensor) -> Tensor:
        """Inputs to outputs."""
        outputs: Tensor = self.net(x, self.path)
        return outputs


def path_importance(net: nn.Module, path: Any, x: Tensor, y: Tensor, options: PlasticityOptions) -> Work[Params]:
    """Importance of the weights on a path, by name; weights that the path does not use are left out or have zeros.

    Args:
        net: network with shared weights, called with inputs and a path.
        path: the path.
        x: validation inputs.
        y: their targets.
        options: kind of importance. Gradients of single samples need fixed statistics in batch norms: those of `x`.
    """
    if options.importance not in PER_SAMPLE:
        return (yield from _measured(net, path, x, y, options))
    if isinstance(net, Supernet):  # its stacked layers have no formulas for single samples
        plain = net.plain()
        with fixed_statistics(plain, path, x):
            values = yield from _measured(plain, path, x, y, options)
        return net.stacked(values)
    with fixed_statistics(net, path, x):
        return (yield from _measured(net, path, x, y, options))


def _measured(net: nn.Module, path: Any, x: Tensor, y: Tensor, options: PlasticityOptions) -> Work[Params]:
    names = {f"net.{name}": name for name, _ in net.named_parameters()}
    blocks = yield from measure_importance.work(PathModel(net, path), names, x, y, options)
    return {name: value for block in blocks for name, value in block.diagonal().items()}


@contextmanager
def fixed_statistics(net: nn.Module, path: Any, x: Tensor) -> Iterator[None]:
    """In the block, batch norms in evaluation mode use the statistics that they have on `x`."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    statistics = {norm: (torch.zeros(norm.num_features), torch.ones(norm.num_features)) for norm in norms}

    def record(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        variance, mean = torch.var_mean(inputs[0].detach(), (0, 2, 3), correction=0)
        statistics[norm] = (mean, variance)  # type: ignore[index]

    former = [(norm, norm.running_mean, norm.running_var) for norm in norms]
    hooks = [norm.register_forward_pre_hook(record) for norm in norms]
    try:
        for norm in norms:
            norm.running_mean = norm.running_var = None
        with torch.no_grad(), evaluating(net):
            net(x, path)
        for hook in hooks:
            hook.remove()
        for norm, (mean, variance) in statistics.items():
            norm.running_mean, norm.running_var = mean, variance
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for norm, old_mean, old_variance in former:
            norm.running_mean, norm.running_var = old_mean, old_variance
