"""What meets in a round of FUSE: networks that share stem and head, and two parts of the data.

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
    """Networks that share their stem and their head, and differ in between.

    A `stem` that all of them have in one shape is kept once and run once; then a `head` is kept once among those of one
    shape as well. The networks given are changed to that end.

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
        """`[K, N, *]`: what each candidate makes of `x`."""
        shared = self.stem(x)
        return torch.stack([network(shared) for network in self.networks])


def _shapes(module: nn.Module | None) -> object:
    """What two modules have in common that can stand in for each other."""
    return module and (type(module), tuple((name, p.shape) for name, p in module.named_parameters()))


@dataclass(frozen=True)
class SearchSplit:
    """Data of a round: one part for weights, another one to judge by."""

    learn: Examples
    judge: Examples
    form: Likelihood


def split_for_search(task: Task, share: float) -> SearchSplit:
    """The training part of a task in two, always the same: to learn from, and a share to judge by."""
    labels = task.train.labels() if task.likelihood == "categorical" else None
    learn, judge = split_index(labels, len(task.train), share, seed=0)
    return SearchSplit(task.train.chosen(learn).ready(), task.train.chosen(judge).ready(), task.form)
