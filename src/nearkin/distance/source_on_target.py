"""Features and outputs of a source network on a target task.

Images of another size or number of channels are converted to the input shape of the network (`fitted_to`): resized,
reduced to their luma, or grey repeated as red, green and blue. Other inputs that do not fit are refused with a reason.
"""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from nearkin.core.errors import MismatchError, NearkinError, require
from nearkin.distance.baselines.feature_table import FeatureTable
from nearkin.nets.forward_passes import in_passes, pass_size
from nearkin.nets.functional import evaluation_mode
from nearkin.nets.heads import features, head_name
from nearkin.tasks.examples import Batch
from nearkin.tasks.likelihood import Likelihood
from nearkin.tasks.task import Task


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
            outputs = in_passes(self.model, self.train.x, self.model)
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
                return in_passes(self.model, x, lambda batch: features(self.model, batch, head))
        except NearkinError:
            raise
        except Exception as failed:  # code of the network
            reason = " ".join(f"{type(failed).__name__}: {failed}".split())[:160]
            raise MismatchError(
                f"{type(self.model).__name__} fails on {min(len(x), pass_size(x))} inputs of shape "
                f"{tuple(x.shape[1:])} ({reason}); use a network that reads them"
            ) from failed
