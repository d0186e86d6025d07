"""Candidates of a FUSE round: networks that share stem and head. Split of a task for searching.

Notation: K candidates, N samples; outputs are `[N, *]`, such as logits `[N, C]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearkin.tasks.examples import Examples
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.split import split_index
from nearkin.tasks.task import Task


class Candidates(nn.Module):
    """Networks that share their stem and their head and differ in between.

    If all stems have the same shape, one stem is kept and run once; then heads of the same shape are shared as well.
    The given networks are changed in place.

    >>> from collections import OrderedDict
    >>> def network(width):
    ...     return nn.Sequential(OrderedDict(stem=nn.Linear(2, 3), body=nn.Linear(3, width), head=nn.Linear(width, 2)))
    >>> both = Candidates([network(5), network(5)])
    >>> both(torch.ones(4, 2)).shape, sum(p.numel() for p in both.parameters())
    (torch.Size([2, 4, 2]), 61)
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stem: nn.Module = nn.Identity()
        self.networks = nn.ModuleList(networks)
        stems = [getattr(network, "stem", None) for network in networks]
        if len(set(map(_shapes, stems))) > 1 or not isinstance(stems[0], nn.Module):
            return
        self.stem = stems[0]
        heads: dict[object, nn.Module] = {}
        for network in networks:
            network.stem = nn.Identity()
            if isinstance(head := getattr(network, "head", None), nn.Module):
                network.head = heads.setdefault(_shapes(head), head)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of all candidates, `[K, N, *]`."""
        shared = self.stem(x)
        return torch.stack([network(shared) for network in self.networks])


def _shapes(module: nn.Module | None) -> object:
    """Type and shapes of a module; modules with equal ones are interchangeable."""
    return module and (type(module), tuple((name, p.shape) for name, p in module.named_parameters()))


@dataclass(frozen=True)
class SearchSplit:
    """Training and validation examples of a search, both from the training set of a task."""

    train: Examples
    validation: Examples
    form: Likelihood


def split_for_search(task: Task, fraction: float) -> SearchSplit:
    """Set aside a fraction of a task's training set as validation set; the split is always the same."""
    labels = task.train.labels() if task.likelihood == "categorical" else None
    train, validation = split_index(labels, len(task.train), fraction, seed=0)
    return SearchSplit(task.train.chosen(train).ready(), task.train.chosen(validation).ready(), task.form)
