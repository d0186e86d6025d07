"""A target task as a source's network sees it: what most measures are made of.

Networks and tasks meet in one input shape. Images of another size or number of channels are brought to the network's
(`fitted_to`): resized, reduced to their luma, or grey repeated as red, green and blue. What cannot be brought there
is refused with a reason.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError
from nearkin.core.types import Params
from nearkin.nets.functional import evaluating
from nearkin.nets.heads import features, head_name
from nearkin.tasks.examples import Batch
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.task import Task

PASS = 512  # samples in one forward pass


@dataclass(frozen=True, eq=False)
class Sight:
    """What a network makes of a task.

    Attributes:
        model: a network in evaluation mode.
        task: the target, in the input shape of the network.
        own: the likelihood that the network was trained with.
        num_train: training samples that are looked at, drawn once and for all. The test part is never looked at, so no
            measure can depend on its labels.
        source: name of the network's own task.
        metric: of the network on its own task, where it is known.
        source_task: the network's own task, for measures that look at its inputs.
        embeddings: Task2Vec embeddings of the source and of the target, for measures that compare them.
    """

    model: nn.Module
    task: Task
    own: Likelihood
    num_train: int = 1000
    source: str = ""
    metric: float | None = None
    source_task: Task | None = None
    embeddings: tuple[Params, Params] | None = None

    @cached_property
    def train(self) -> Batch:
        """Training samples."""
        return self.task.train.glance(self.num_train)

    @cached_property
    def head(self) -> str:
        """Name of the last linear layer."""
        return head_name(self.model, self.train.x[:1])

    @cached_property
    def train_features(self) -> Tensor:
        """What the head reads of the training samples `[N, D]`."""
        return self._features(self.train.x)

    @cached_property
    def source_features(self) -> Tensor:
        """What the head reads of the source's own training samples `[M, D]`."""
        if self.source_task is None:
            raise MismatchError("this measure looks at the source's own inputs, which are not given")
        return self._features(self.source_task.train.glance(self.num_train).x)

    @cached_property
    def train_outputs(self) -> Tensor:
        """What the network answers to the training samples."""
        with evaluating(self.model):
            return torch.cat([self.model(part) for part in self.train.x.split(PASS)])

    def _features(self, x: Tensor) -> Tensor:
        with evaluating(self.model):
            return torch.cat([features(self.model, part, self.head) for part in x.split(PASS)])
