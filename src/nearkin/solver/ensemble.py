r"""Ensembles: several trained models as one torch module, stored as a network string and tensors like every network.

Classes: logits $\log \sum_m w_m \mathrm{softmax}(f_m(x) / T_m)$; values: $\sum_m w_m f_m(x)$. The weights sum to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

import torch
from torch import Tensor, nn

from nearkin.core.errors import require
from nearkin.core.state import copied
from nearkin.nets.evaluate import Scores
from nearkin.nets.history import History
from nearkin.nets.registry import build
from nearkin.nets.solved import Solved
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.training_loop import Fit
from nearkin.nets.trusted_code import ENSEMBLE

MOST_MEMBERS = 64
SMALLEST = 1e-12  # probability


@dataclass(frozen=True, eq=False)
class Member:
    """A model of an ensemble with its weight, and the temperature that divides its class scores."""

    solved: Solved
    weight: float
    temperature: float = 1.0


class Ensemble(nn.Module):
    """Weighted average of models with the same inputs and outputs: `[N, ...]` to `[N, C]`.

    Args:
        members: the models.
        networks: their network strings.
        weights: `[M]`, positive; they are divided by their sum.
        temperatures: `[M]`, for classes.
        classes: whether outputs are logits, whose probabilities are averaged.

    >>> half = torch.ones(2) / 2
    >>> pair = nn.ModuleList([nn.Identity(), nn.Identity()])
    >>> Ensemble(pair, ["a", "b"], half, torch.ones(2), True)(torch.zeros(1, 4)).exp()
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    weights: Tensor
    temperatures: Tensor

    def __init__(
        self, members: nn.ModuleList, networks: Sequence[str], weights: Tensor, temperatures: Tensor, classes: bool
    ) -> None:
        super().__init__()
        self.members, self.networks, self.classes = members, tuple(networks), classes
        self.register_buffer("weights", weights)
        self.register_buffer("temperatures", temperatures)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C]` of inputs `[N, ...]`."""
        shares = self.weights / self.weights.sum()
        if not self.classes:
            return torch.stack([share * member(x) for share, member in zip(shares, self.members, strict=True)]).sum(0)
        parts = zip(shares, self.temperatures, self.members, strict=True)
        mean = torch.stack([share * (member(x) / heat).softmax(1) for share, heat, member in parts]).sum(0)
        return mean.clamp_min(SMALLEST).log()

    @property
    def network(self) -> str:
        """The network string that builds an ensemble of these networks."""
        names = ",".join(quote(network, safe="") for network in self.networks)
        return str(NetworkSpec(ENSEMBLE, (("classes", self.classes), ("members", names))))


def ensemble(*, members: str, classes: bool, input_shape: Sequence[int], num_outputs: int) -> Ensemble:
    """An ensemble of new networks, into which stored tensors are loaded."""
    networks = [unquote(network) for network in members.split(",")]
    require(1 <= len(networks) <= MOST_MEMBERS, f"an ensemble has 1 to {MOST_MEMBERS} members, got {len(networks)}")
    require(
        not any(network.strip().startswith(ENSEMBLE) for network in networks),
        f"got an ensemble as member of an ensemble, expected another network: {members[:200]}",
    )
    models = nn.ModuleList(build(network, tuple(input_shape), num_outputs, seed=0) for network in networks)
    return Ensemble(models, networks, torch.ones(len(networks)), torch.ones(len(networks)), classes)


def combined(members: Sequence[Member], scores: Scores, seconds: float) -> Solved:
    """One solved task whose model is the weighted average of others; members that are ensembles are resolved.

    Args:
        members: with equal inputs, scaling and classes.
        scores: of the average on the validation set.
        seconds: training time of all members.
    """
    first = members[0].solved
    flat = [inner for member in members for inner in _flattened(member)]
    model = Ensemble(
        nn.ModuleList(module for module, _, _, _ in flat),
        [network for _, network, _, _ in flat],
        torch.tensor([weight for _, _, weight, _ in flat]),
        torch.tensor([temperature for _, _, _, temperature in flat]),
        first.facts["likelihood"] == "categorical",
    )
    tensors = copied(dict(model.named_parameters())), copied(dict(model.named_buffers()))
    fit = Fit(*tensors, History(torch.zeros(0)), scores, seconds, reached=True)
    return Solved(first.name, model.network, first.facts, first.seed, (fit,))


def _flattened(member: Member) -> list[tuple[nn.Module, str, float, float]]:
    """Model, network string, weight and temperature of a member, or of each model in it if it is an ensemble."""
    model = member.solved.model()
    if not isinstance(model, Ensemble):
        return [(model, member.solved.network, member.weight, member.temperature)]
    shares = member.weight * model.weights / model.weights.sum()
    return [
        (inner, network, float(share), float(heat) * member.temperature)
        for inner, network, share, heat in zip(model.members, model.networks, shares, model.temperatures, strict=True)
    ]
