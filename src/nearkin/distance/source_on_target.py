"""Features and outputs of a source network on a target task.

Images of another size or number of channels are converted to the input shape of the network (`fitted_to`): resized,
reduced to their luma, or grey repeated as red, green and blue. Other inputs that do not fit are refused with a reason.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from nearkin.core.errors import MismatchError, NearkinError, require
from nearkin.distance.baselines.feature_table import FeatureTable
from nearkin.nets.functional import evaluation_mode
from nearkin.nets.heads import features, head_name
from nearkin.tasks.examples import Batch
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.task import Task

PASS, PASS_VALUES = 512, 2**19  # samples, and values of inputs, in one forward pass
PER_TOKEN = 64  # values of activations, relative to those of an image for one of its values


@dataclass(frozen=True, eq=False)
class SourceOnTarget:
    """A network and a target task; features and outputs are computed once.

    Attributes:
        model: a network in evaluation mode.
        task: the target, in the input shape of the network.
        own: the likelihood that the network was trained with.
        num_train: number of training samples that are used, a fixed subset. The test set is never used, so no measure
            can depend on its labels.
    """

    model: nn.Module
    task: Task
    own: Likelihood
    num_train: int = 1000

    @cached_property
    def train(self) -> Batch:
        """Training samples of the target, as one batch."""
        return self.task.train.fixed_subset(self.num_train)

    @cached_property
    def head(self) -> str:
        """Name of the last linear layer; only one sample is read for it."""
        return head_name(self.model, self.task.train.first(1).x)

    @cached_property
    def train_features(self) -> Tensor:
        """Inputs of the head for the training samples `[N, D]`."""
        return self.features_of(self.train.x)

    @cached_property
    def feature_table(self) -> FeatureTable:
        """The same features, with what several scores compute from them."""
        return FeatureTable.of(self.train_features)

    @cached_property
    def train_outputs(self) -> Tensor:
        """Outputs of the network for the training samples."""
        with evaluation_mode(self.model):
            outputs = torch.cat([self.model(batch) for batch in self.train.x.split(pass_size(self.train.x))])
        require(
            bool(outputs.isfinite().all()),
            f"outputs of the source's network on '{self.task.name}' are not finite; its weights diverged: add it again",
            MismatchError,
        )
        return outputs

    def features_of(self, x: Tensor) -> Tensor:
        """Inputs of the head for samples `[N, ...]`, as `[N, D]`; an error of one line if the network fails on them."""
        head = head_name(self.model, x[:1])
        try:
            with evaluation_mode(self.model):
                return torch.cat([features(self.model, batch, head) for batch in x.split(pass_size(x))])
        except NearkinError:
            raise
        except Exception as failed:  # code of the network
            reason = " ".join(f"{type(failed).__name__}: {failed}".split())[:160]
            raise MismatchError(
                f"{type(self.model).__name__} fails on {min(len(x), pass_size(x))} inputs of shape "
                f"{tuple(x.shape[1:])} ({reason}); use a network that reads them"
            ) from failed


def pass_size(x: Tensor) -> int:
    """Number of samples `[N, ...]` in one forward pass: fewer for large inputs, so that activations fit in caches.

    On a CPU, an EfficientNet-Lite takes 8.7 ms for an image of 96 pixels in passes of 16, and 21 ms in passes of 256.

    >>> pass_size(torch.empty(1, 3, 224, 224)), pass_size(torch.empty(1, 3, 96, 96)), pass_size(torch.empty(1, 28, 28))
    (3, 18, 512)
    >>> pass_size(torch.zeros(1, 256, dtype=torch.int64))  # tokens of a text, and their mask
    32
    """
    values = x[0].numel() * (1 if x.is_floating_point() else PER_TOKEN)
    return max(1, min(PASS, PASS_VALUES // max(1, values)))
