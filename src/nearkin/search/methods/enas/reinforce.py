r"""REINFORCE: gradient steps of the controller towards decisions with high rewards.

The controller with parameters $\theta$ maximises
$J(\theta) = \mathbb{E}_{a \sim \pi_\theta}[R(a)] + \lambda H(\pi_\theta)$. With $\hat H$ the sum of the entropies of
the distributions along a sample, $\mathbb{E}[\hat H] = H(\pi_\theta)$ and

$$\nabla J = \mathbb{E}\big[(R + \lambda \hat H - b)\, \nabla \log \pi_\theta(a) + \lambda \nabla \hat H\big]$$

for every baseline $b$ that does not depend on the sample. $b$ is a moving average of $R + \lambda \hat H$ over earlier
steps, which lowers the variance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from nearkin.core.errors import require
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.methods.enas.controller import Controller, Rollout
from nearkin.search.methods.enas.decisions import decision_sequence
from nearkin.search.spaces.base import Space

DRAWS = 200
"""Number of samples of the controller that are drawn to find one within the limits of a space."""


@dataclass(frozen=True, kw_only=True)
class ControllerOptions:
    """Controller and its training.

    Attributes:
        controller_size: size of the LSTM.
        temperature: divisor of the scores of all options; larger is closer to uniform sampling.
        tanh_constant: largest magnitude of a score; none for no limit.
        entropy_weight: λ, weight of the entropy of the controller beside the reward.
        baseline_decay: weight of the earlier value in the moving average of rewards.
        controller_rate: learning rate of Adam on the controller.
        controller_clip: largest norm of the gradient of the controller.
        controller_steps: number of steps of the controller in an epoch.
        controller_samples: number of genotypes that are sampled and measured in each of them.
    """

    controller_size: int = 64
    temperature: float = 5.0
    tanh_constant: float | None = 2.5
    entropy_weight: float = 1e-4
    baseline_decay: float = 0.95
    controller_rate: float = 3.5e-3
    controller_clip: float = 5.0
    controller_steps: int = 20
    controller_samples: int = 5

    def __post_init__(self) -> None:
        for name in ("controller_size", "controller_steps", "controller_samples"):
            require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("temperature", "controller_rate", "controller_clip"):
            require(getattr(self, name) > 0, f"{name} must be above 0, got {getattr(self, name)}")
        require(
            self.tanh_constant is None or self.tanh_constant > 0,
            f"tanh_constant must be above 0 or none, got {self.tanh_constant}",
        )
        require(self.entropy_weight >= 0, f"entropy_weight must be 0 or more, got {self.entropy_weight}")
        require(0 <= self.baseline_decay < 1, f"baseline_decay must lie in [0, 1), got {self.baseline_decay}")

    def controller(self, space: Space) -> Controller:
        """New controller for a space, with weights from torch's global generator."""
        return Controller(decision_sequence(space), self.controller_size, self.temperature, self.tanh_constant)


def policy_loss(rollout: Rollout, rewards: Tensor, baseline: float, entropy_weight: float = 0.0) -> Tensor:
    r"""Scalar whose gradient is an estimate of $-\nabla J$ from M samples with rewards `[M]`.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> logs = logits.log_softmax(0)
    >>> rollout = Rollout(torch.tensor([[1]]), logs[1:], torch.zeros(1))
    >>> policy_loss(rollout, torch.ones(1), baseline=0.0).backward()
    >>> logits.grad  # descending it raises the probability of option 1, which had the reward 1
    tensor([ 0.5000, -0.5000])
    """
    advantage = rewards + entropy_weight * rollout.entropy.detach() - baseline
    return -(advantage * rollout.log_probability + entropy_weight * rollout.entropy).mean()


def sample_genotypes(controller: Controller, space: Space, count: int, rng: Generator) -> tuple[list[Genotype], Tensor]:
    """Genotypes of a space from the controller, and their decisions `[count, D]`.

    Samples outside a limit of the space are drawn again; after `DRAWS` draws, the space itself draws the rest.
    """
    sequence = controller.sequence
    genotypes: list[Genotype] = []
    rows: list[Tensor] = []
    for _ in range(DRAWS):
        with torch.no_grad():
            drawn = controller.sample(count - len(rows), rng).decisions
        for row in drawn:
            genotype = sequence.genotype(row.tolist())
            if space.contains(genotype):
                genotypes.append(genotype)
                rows.append(row)
        if len(rows) == count:
            break
    for _ in range(count - len(rows)):
        genotypes.append(space.sample(rng))
        rows.append(torch.tensor(sequence.decisions(genotypes[-1])))
    return genotypes, torch.stack(rows)


def improve_controller(
    controller: Controller,
    optimiser: torch.optim.Optimizer,
    space: Space,
    reward: Callable[[Sequence[Genotype]], Sequence[float]],
    baseline: float | None,
    options: ControllerOptions,
    rng: Generator,
) -> tuple[float, float]:
    """One step of the controller; returns the mean reward of its samples and the new baseline.

    Args:
        controller: the controller; it is changed in place.
        optimiser: optimiser of its weights.
        space: space of the genotypes.
        reward: rewards of sampled genotypes.
        baseline: moving average of earlier rewards; None before the first step, which uses the mean of its own.
        options: weight of the entropy, decay of the baseline, number of samples.
        rng: generator of the samples.
    """
    genotypes, decisions = sample_genotypes(controller, space, options.controller_samples, rng)
    rewards = torch.tensor(reward(genotypes), dtype=torch.float32)
    rollout = controller.replay(decisions)
    gain = float((rewards + options.entropy_weight * rollout.entropy.detach()).mean())
    before = gain if baseline is None else baseline
    optimiser.zero_grad()
    loss: Tensor = policy_loss(rollout, rewards, before, options.entropy_weight)
    loss.backward()
    nn.utils.clip_grad_norm_(controller.parameters(), options.controller_clip)
    optimiser.step()
    return float(rewards.mean()), options.baseline_decay * before + (1 - options.baseline_decay) * gain
