"""Forgetting in a search with shared weights: measured in every epoch, and countered if plasticity is on."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from nearkin.core.events import Work
from nearkin.core.state import State, copied, prefixed
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.plasticity.anchor import WeightPlasticity
from nearkin.search.plasticity.forgetting_options import TRAINING, ForgettingOptions
from nearkin.search.plasticity.path_importance import path_importance
from nearkin.search.plasticity.telemetry import ForgettingLog
from nearkin.tasks.examples import Batch

_SQUARES, _COUNT = "squares", "steps"


class ForgettingControl:
    """Errors of architectures after training and at the end of an epoch, and weight plasticity.

    A search calls `after_step` after each step of the shared weights, `after_training` when an architecture was
    trained, and `end_epoch`.

    Args:
        net: network with shared weights, called with inputs and a path.
        options: which architectures are watched, and plasticity.
        likelihood: likelihood of the task.
        epochs: number of epochs of the search.
        seed: seed of drawn samples and labels.
    """

    def __init__(self, net: nn.Module, options: ForgettingOptions, likelihood: str, epochs: int, seed: int) -> None:
        self.net, self.options, self.epochs = net, options, epochs
        self.log = ForgettingLog()
        self.plasticity = (
            WeightPlasticity(net.named_parameters(), options.for_search(likelihood, epochs, seed))
            if options.plasticity
            else None
        )
        self._squares: dict[str, Tensor] = {}
        self._steps = 0

    def watches(self, number: int, total: int) -> bool:
        """Whether the architecture with this number, of `total` in an epoch, is watched."""
        count = min(self.options.watched, total)
        return any(k * total // count == number for k in range(count))

    def after_step(self, lr: float, batch_size: int) -> None:
        """Pull the weights that the step changed, and add the squares of their gradients."""
        if self.plasticity is None or self.plasticity.warming_up:
            return
        moved = {name: weight.grad for name, weight in self.plasticity.shared.items() if weight.grad is not None}
        if self.options.plasticity_importance == TRAINING:
            self._steps += 1
            for name, gradient in moved.items():
                if name in self._squares:
                    self._squares[name].addcmul_(gradient, gradient, value=batch_size)
                else:
                    self._squares[name] = gradient.square().mul_(batch_size)
        self.plasticity.pull(lr, moved)

    def after_training(
        self, genotype: Genotype, path: Any, samples: Batch, error: Callable[[Genotype], float] | None
    ) -> Work[None]:
        """Record the error of an architecture that was just trained, and anchor the weights that it uses.

        Args:
            genotype: the architecture.
            path: its path in the network.
            samples: validation samples.
            error: function that measures the error of an architecture; None if this one is not watched.
        """
        if error is not None:
            self.log.add(str(genotype), error(genotype))
        if self.plasticity is None or self.plasticity.warming_up:
            return
        if self.options.plasticity_importance == TRAINING:
            importance: Mapping[str, Tensor] = {k: square / self._steps for k, square in self._squares.items()}
            self._squares, self._steps = {}, 0
        else:
            count = self.options.plasticity_samples
            importance = yield from path_importance(
                self.net, path, samples.x[:count], samples.y[:count], self.plasticity.options
            )
        self.plasticity.remember(importance)

    def end_epoch(self, epoch: int, error: Callable[[Genotype], float]) -> Work[None]:
        """Measure the architectures of an epoch, counted from 0, once more."""
        forgetting = self.log.end_epoch({text: error(Genotype.parse(text)) for text in self.log.trained})
        if self.plasticity is not None:
            self.plasticity.end_epoch()
        if forgetting is not None:
            yield forgetting.event(epoch + 1, self.epochs)

    def capture(self) -> State:
        """Copy everything that changes."""
        tensors = {} if self.plasticity is None else prefixed("plasticity", self.plasticity.state_dict())
        tensors |= prefixed(_SQUARES, self._squares)
        return State(copied(tensors), {**self.log.to_dict(), _COUNT: self._steps})

    def restore(self, saved: State) -> None:
        """The inverse of `capture`, in place."""
        facts = dict(saved.facts)
        self._steps = facts.pop(_COUNT)
        self.log = ForgettingLog.from_dict(facts)
        self._squares = dict(saved.section(_SQUARES))
        if self.plasticity is not None:
            self.plasticity.load_state_dict(saved.section("plasticity"))
