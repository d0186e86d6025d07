"""The state of a training run: it advances step by step and can be captured in a checkpoint and restored."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from nearkin.core.errors import DataError, TrainingError, require
from nearkin.core.rng import Streams, derived_seed
from nearkin.core.state import State, copied, prefixed, restoring
from nearkin.nets.data_parallel import ALONE, DataParallel
from nearkin.nets.forward_passes import fast_inputs
from nearkin.nets.history import Measurement, measurements_from
from nearkin.nets.recipe import Recipe
from nearkin.tasks.examples import Batch
from nearkin.tasks.likelihood import Likelihood

_ADAM = ("step", "exp_avg", "exp_avg_sq")
MOMENTS = {"adam": _ADAM, "adam-l2": _ADAM, "sgd": ("momentum_buffer",)}
"""The tensors that each optimiser stores for a weight."""


class Training:
    """Weights, optimiser, running average and losses of a run; `step` does one step.

    `capture` copies everything that the rest of the run depends on; `restore` loads it. A run that was interrupted and
    restored ends with the same bits as one that was not. Of several processes (`parallel`) each does its share of
    every step. They have the same weights after each step; the first one has what `capture` stores. The layers
    `frozen_norms` stay in evaluation mode, so that they use their running statistics and keep them.
    """

    def __init__(
        self, model: nn.Module, form: Likelihood, recipe: Recipe, total: int, seed: int, device: torch.device,
        parallel: DataParallel = ALONE, frozen_norms: Collection[nn.Module] = (),
    ) -> None:  # fmt: skip
        self.model = model.to(device)
        self.form, self.recipe, self.total, self.device = form, recipe, total, device
        self.parallel, self._frozen_norms = parallel, tuple(frozen_norms)
        self._network: nn.Module | None = self.model if parallel.size == 1 else None
        self.streams = Streams(seed)
        self.weights = {name: value for name, value in model.named_parameters() if value.requires_grad}
        require(bool(self.weights), "the network has no weights that can be trained; unfreeze some", TrainingError)
        self.optimiser = _optimiser(list(self.weights.values()), recipe)
        self.done = 0
        self.losses = torch.zeros(total, device=device)
        self.measured: tuple[Measurement, ...] = ()
        self.seconds = 0.0
        self.elapsed = 0.0
        self.average: list[Tensor] = []
        self.num_averaged = 0
        self.best: dict[str, Tensor] = {}
        self.rng = ScopedRng(derived_seed(seed, "dropout"))
        self._first_averaged = total - round(recipe.averaging * total)
        dtype = _precision(recipe.precision, device)
        self._cast: AbstractContextManager[Any] = nullcontext() if dtype is None else torch.autocast(device.type, dtype)
        self._scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16 and device.type == "cuda")

    @property
    def position(self) -> float:
        """Steps done, or the same share of all steps as the elapsed share of the recipe's time if that is larger."""
        if self.recipe.seconds is None:
            return self.done
        return max(self.done, self.total * self.elapsed / self.recipe.seconds)

    def train_mode(self) -> None:
        """Set the network to training mode, except the frozen normalisation layers."""
        self.model.train()
        for norm in self._frozen_norms:
            norm.eval()

    def step(self, batch: Batch, weights: Tensor | None = None, share: float = 1.0) -> None:
        """One step of the optimiser on one batch, whose samples may have weights `[B]`.

        With several processes the batch is this process's `share` of the whole batch. The loss of the whole batch is
        the sum of share times loss over the processes; `sum_losses` computes it later for several steps.
        """
        x, y = batch
        if self.device.type != "cpu":
            x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
            weights = None if weights is None else weights.to(self.device)
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate(self.position, self.total)
        self.optimiser.zero_grad(set_to_none=True)
        if not self.parallel.first:  # other dropout than in the first process, from a state that is not stored
            torch.manual_seed(derived_seed(self.streams.seed, "dropout", self.parallel.rank, self.done))
        if self._network is None:
            self._network = self.parallel.wrapped(self.model, self.device, self._has_unused_weights(x[:1], y[:1]))
        network = self._network
        with self.parallel.connected():
            with self._cast:
                loss = self.form.loss(network(fast_inputs(self.model, x)), y, self.recipe.smoothing, weights)
            factor = share * self.parallel.size  # the mean over processes is the gradient of the whole batch
            # without float16 the scaler changes nothing
            self._scaler.scale(loss if factor == 1 else factor * loss).backward()
        self._scaler.unscale_(self.optimiser)
        if self.recipe.clip > 0:
            nn.utils.clip_grad_norm_(self.weights.values(), self.recipe.clip)
        self._scaler.step(self.optimiser)
        self._scaler.update()
        self.losses[self.done] = share * loss.detach()
        self.done += 1
        if self.recipe.averaging > 0 and self.position > self._first_averaged:
            self._average()

    def _has_unused_weights(self, x: Tensor, y: Tensor) -> bool:
        """Whether there are weights that the loss of one sample does not depend on."""
        weights = list(self.weights.values())
        self.model.eval()  # batch normalisation accepts one sample, and cuDNN has no backward pass of recurrent layers
        with torch.random.fork_rng([]), torch.backends.cudnn.flags(enabled=False):
            gradients = torch.autograd.grad(self.form.loss(self.model(x), y), weights, allow_unused=True)
        self.train_mode()
        return any(gradient is None for gradient in gradients)

    @torch.no_grad()
    def _average(self) -> None:
        r"""Update the mean of the weights, $\bar\theta \leftarrow \bar\theta + (\theta - \bar\theta)/n$."""
        self.num_averaged += 1
        if not self.average:
            self.average = [value.detach().clone() for value in self.weights.values()]
            return
        for mean, value in zip(self.average, self.weights.values(), strict=True):
            mean.lerp_(value, 1 / self.num_averaged)

    def sum_losses(self, since: int) -> None:
        """Add up the shares of the losses from step `since` on over the processes."""
        self.parallel.add_up(self.losses[since : self.done])

    def check(self, since: int) -> None:
        """Raise an error if a loss from step `since` on is not finite."""
        bad = torch.nonzero(~torch.isfinite(self.losses[since : self.done]))
        if len(bad):
            step = since + int(bad[0, 0])
            raise TrainingError(
                f"the loss became {self.losses[step].item()} at step {step + 1} of {self.total}; lower the learning "
                f"rate ({self.recipe.learning_rate:g}) or set a clip"
            )

    def keep_best(self) -> None:
        """Copy the current weights and buffers as the best so far."""
        self.best = copied(self.model.state_dict())

    @torch.no_grad()
    def load_final_weights(self, batches: Iterator[Batch]) -> None:
        """Load the averaged or the best weights; for averaged weights the batch statistics are computed again."""
        if self.best:
            self.model.load_state_dict(self.best)
        if self.average and self.parallel.first:
            for value, mean in zip(self.weights.values(), self.average, strict=True):
                value.copy_(mean)
            self._update_statistics(batch.x.to(self.device) for batch in batches)
        self.parallel.broadcast(self.model.state_dict().values())

    def _update_statistics(self, batches: Iterable[Tensor]) -> None:
        """Compute the running statistics of batch normalisation as means over all batches, except the frozen ones."""
        norms = [module for module in self.model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        momenta = {norm: norm.momentum for norm in norms if norm not in self._frozen_norms}
        if not momenta:
            return
        mode = self.model.training
        self.train_mode()
        try:
            for norm in momenta:
                norm.reset_running_stats()
                norm.momentum = None
            for x in batches:
                self.model(x)
        finally:
            for norm, momentum in momenta.items():
                norm.momentum = momentum
            self.train_mode() if mode else self.model.eval()

    def capture(self) -> State:
        """A copy of everything that the rest of the run depends on."""
        inner = self.optimiser.state_dict()["state"]
        moments = {f"{i}/{key}": torch.as_tensor(value) for i, entry in inner.items() for key, value in entry.items()
                   if value is not None}  # fmt: skip
        tensors = {
            **prefixed("model", self.model.state_dict()),
            **prefixed("moments", moments),
            **prefixed("best", self.best),
            **{f"average/{i}": value for i, value in enumerate(self.average)},
            "losses": self.losses[: self.done],
            "dice": self.rng.state,
        }
        facts = {
            "done": self.done,
            "total": self.total,
            "seed": self.streams.seed,
            "recipe": self.recipe.to_dict(),
            "trained": list(self.weights),
            "measured": [list(row) for row in self.measured],
            "num_averaged": self.num_averaged,
            "seconds": self.seconds,
            "scaler": self._scaler.state_dict(),
        }
        return State(copied(tensors), facts)

    def restore(self, state: State) -> None:
        """Continue from a captured state; a state of another run or a damaged one is refused."""
        for name, own in (("recipe", self.recipe.to_dict()), ("total", self.total), ("seed", self.streams.seed)):
            stored = state.facts.get(name)
            require(stored == own, f"the checkpoint was made with another {name}; start again", TrainingError)
        trained = list(self.weights)
        same = state.facts.get("trained", trained) == trained  # older checkpoints do not name them
        require(same, "the checkpoint was made with other trained weights; start again", TrainingError)
        facts = state.read(_CheckpointFacts)
        with restoring(state.origin):
            self._restore_tensors(state, facts["done"])
            self.done, self.num_averaged, self.seconds = facts["done"], facts["num_averaged"], facts["seconds"]
            self.elapsed = self.seconds
            self.measured = measurements_from(facts["measured"])
            self._scaler.load_state_dict(facts["scaler"])

    def _moment_shapes(self, weight: Tensor) -> dict[str, torch.Size]:
        return {name: torch.Size() if name == "step" else weight.shape for name in MOMENTS[self.recipe.optimiser]}

    def _restore_tensors(self, state: State, done: int) -> None:
        """Restore weights, moments, averages and random state; tensors of wrong shapes are an error."""
        self.model.load_state_dict(state.section("model"))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in state.section("moments").items():
            index, key = name.split("/")
            moments.setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        averages, weights = state.section("average"), list(self.weights.values())
        self.average = [averages[name].to(self.device) for name in sorted(averages, key=int)]
        self.best = state.section("best")
        fits = 0 <= done <= self.total and len(state.tensors["losses"]) == done
        fits = fits and all(_shapes(entry) == self._moment_shapes(weights[i]) for i, entry in moments.items())
        fits = fits and [value.shape for value in self.average] in ([], [weight.shape for weight in weights])
        fits = fits and _shapes(self.best) in ({}, _shapes(self.model.state_dict()))
        require(fits, f"{state.origin}: its tensors are not those of this run; remove it and start again", DataError)
        self.losses[:done] = state.tensors["losses"].to(self.device)
        self.rng.state = torch.Generator().set_state(state.tensors["dice"]).get_state()


class _CheckpointFacts(TypedDict):
    """The values of a checkpoint that are not tensors."""

    done: int
    num_averaged: int
    seconds: float
    measured: list[tuple[int, float, float]]
    scaler: dict[str, Any]


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


class ScopedRng:
    """torch's global random generator, from which dropout draws, with a run's own state between `enter` and `leave`."""

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()
        self._outside: Tensor | None = None

    def enter(self) -> None:
        """Set the global generator to the run's state."""
        self._outside = torch.get_rng_state()
        torch.set_rng_state(self.state)

    def leave(self) -> None:
        """Store the run's state and restore the former state of the global generator."""
        if self._outside is not None:
            self.state = torch.get_rng_state()
            torch.set_rng_state(self._outside)
            self._outside = None


def _optimiser(weights: list[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW, Adam or SGD with fused kernels, which were the fastest on the CPU as well."""
    fused = all(weight.is_floating_point() and weight.device.type in ("cpu", "cuda") for weight in weights)
    rate, decay, momentum = recipe.learning_rate, recipe.weight_decay, recipe.momentum
    if recipe.optimiser == "adam":
        return torch.optim.AdamW(weights, rate, weight_decay=decay, fused=fused)
    if recipe.optimiser == "adam-l2":
        return torch.optim.Adam(weights, rate, weight_decay=decay, fused=fused)
    return torch.optim.SGD(weights, rate, momentum, weight_decay=decay, nesterov=momentum > 0, fused=fused)


def load_optimiser() -> None:
    """Load what torch imports at the first optimiser, about 1.5 s, before time is measured or divided."""
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.SGD([weight], 0.0).step()


def _precision(name: str, device: torch.device) -> torch.dtype | None:
    """The dtype for mixed precision, or None for float32."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else None
    return None if name == "float32" else getattr(torch, name)
