r"""Loss of one encoder with a head for each of several tasks, as a potential.

$$U(e, h_1, \dots, h_T) = \frac1T \sum_t L_t(e, h_t)$$

A point has the weights of the encoder once and the weights of every head.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, require
from nearkin.core.types import Params
from nearkin.distance.baselines.linear_head import fitted_head
from nearkin.distance.reachability.potentials import NetworkPotential, PointwisePotential
from nearkin.fisher.vectors import flat, unflat
from nearkin.nets.functional import differences, evaluation_mode
from nearkin.nets.heads import features, head_name, split, with_head
from nearkin.tasks.likelihood import Likelihood


class SharedEncoderPotential(PointwisePotential):
    """Mean of the losses of several tasks, whose networks have one encoder and a head each.

    Args:
        parts: loss of each task, for networks that differ in their heads only.
        head: name of the head, a linear layer.

    >>> nets = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, size)) for size in (1, 3)]
    >>> x = torch.zeros(4, 2)
    >>> parts = [NetworkPotential(net, x, torch.zeros(4, len(net[1].bias)), "gaussian") for net in nets]
    >>> SharedEncoderPotential(parts, "1").point([dict(net.named_parameters()) for net in nets]).shape
    torch.Size([18])
    """

    def __init__(self, parts: Sequence[NetworkPotential], head: str) -> None:
        encoders, heads = zip(*(split(part.weights, head) for part in parts), strict=True)
        for other in encoders[1:]:
            found = differences(other, encoders[0])
            require(not found, f"the encoders differ: {found}; use networks of one architecture", MismatchError)
        self.encoder = tuple(encoders[0])
        self.weights = self._joined(encoders[0], heads)

        def potential(w: Tensor) -> Tensor:
            params = unflat(w, self.weights)
            losses = [
                part.value(flat({name: params.get(name, params.get(f"{name} {number}")) for name in part.weights}))  # type: ignore[misc]
                for number, part in enumerate(parts)
            ]
            return torch.stack(losses).mean()

        super().__init__(potential)

    @staticmethod
    def _joined(encoder: Mapping[str, Tensor], heads: Sequence[Mapping[str, Tensor]]) -> Params:
        own = {f"{name} {number}": value for number, head in enumerate(heads) for name, value in head.items()}
        return {**encoder, **own}

    def point(self, params: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """Weights of the networks, one for each task and all with the same encoder, as a point `[P]`."""
        heads = [{name: value for name, value in values.items() if name not in self.encoder} for values in params]
        joined = self._joined({name: params[0][name] for name in self.encoder}, heads)
        return flat({name: joined[name].detach() for name in self.weights})


def with_fitted_head(model: nn.Module, x: Tensor, y: Tensor, form: Likelihood, num_classes: int) -> nn.Module:
    """A copy of a network whose head is replaced by one that is fitted to data of a task, with a fixed encoder.

    Args:
        model: the network, in evaluation mode; it is not changed.
        x: inputs `[N, *input_shape]`.
        y: targets.
        form: likelihood of the task: categorical, gaussian or heteroscedastic.
        num_classes: classes of the task, or its number of target values.
    """
    name = head_name(model, x[:1])
    with evaluation_mode(model):
        fitted = fitted_head(features(model, x, name), y, form, num_classes=num_classes)
    changed = with_head(model, form.num_outputs(num_classes), 0, name)
    layer = changed.get_submodule(name)
    with torch.no_grad():
        for own, value in (("weight", fitted.weight), ("bias", fitted.bias)):
            if getattr(layer, own) is not None:
                getattr(layer, own).copy_(value)
    return changed
