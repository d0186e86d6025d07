"""Resumable cache of training trials: finished ones, and an interrupted one."""

from dataclasses import dataclass
from typing import Any

import torch

from nearkin.core.events import Note, Work
from nearkin.core.rng import derived_seed
from nearkin.core.state import State
from nearkin.nets.data_parallel import ALONE, DataParallel
from nearkin.nets.functional import check
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build, default_network
from nearkin.nets.solved import fit_facts, fit_from, fit_state
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.training_loop import Fit, fit
from nearkin.nets.trusted_code import require_trusted, trust_network
from nearkin.run.checkpoints import SUFFIX, Checkpoints, MemoryCheckpoints, facts_digest, read_stored, resume
from nearkin.store.records import TaskRecord
from nearkin.tasks.task import Task
from nearkin.zoo.parallel_checkpoints import for_all


@dataclass(frozen=True)
class TrialCache:
    """Trials of one task, network, recipe and seed; the name of the cache is a digest of these.

    With several processes (`parallel`), all train every trial together, and the first one has the cache.
    """

    checkpoints: Checkpoints
    task: Task
    network: str
    recipe: Recipe
    seed: int
    parallel: DataParallel = ALONE

    @classmethod
    def of(
        cls, work: Checkpoints, task: Task, network: str, recipe: Recipe, seed: int, *, restart: bool = False,
        parallel: DataParallel = ALONE,
    ) -> "TrialCache":  # fmt: skip
        """The cache for these facts; `restart` clears it. A network whose code is not trusted is refused first."""
        require_trusted(network)
        facts: dict[str, Any] = {
            "name": task.name,
            "data": task.source,
            "fingerprint": task.fingerprint(),
            "network": network,
            "recipe": recipe.to_dict(),
            "seed": seed,
            "torch": torch.__version__,
        }
        cache = cls(for_all(work, parallel).within(facts_digest(facts)), task, network, recipe, seed, parallel)
        if restart:
            cache.clear()
        return cache

    def trial(self, trial: int, trials: int, device: torch.device) -> Work[Fit]:
        """Result of one trial: read if it is finished, resumed if it was interrupted, else trained from scratch."""
        done = yield from read_stored(
            self.checkpoints, f"trial-{trial}{SUFFIX}", lambda state: fit_from(state, state.facts)
        )
        if done is not None:
            yield Note(f"'{self.task.name}': trial {trial + 1} of {trials} was finished before")
            return done

        def begin(start: State | None) -> Work[Fit]:
            model = build(self.network, self.task.input_shape, self.task.num_outputs, self.seed, trial)
            check(model, self.task.input_shape, self.task.num_outputs, self.task.likelihood)
            return fit.work(
                model,
                self.task,
                self.recipe,
                seed=derived_seed(self.seed, "trial", trial),
                device=device,
                resume=start,
                stage=f"{self.task.name}, trial {trial + 1} of {trials}",
                parallel=self.parallel,
            )

        result = yield from resume(self.checkpoints, f"training-{trial}{SUFFIX}", begin)
        self.checkpoints.write(f"trial-{trial}{SUFFIX}", State(fit_state(result).tensors, fit_facts(result)))
        return result

    def unfinished(self, trials: range) -> list[int]:
        """Those of these trials that are not stored."""
        stored = set(self.checkpoints.names())
        return [trial for trial in trials if f"trial-{trial}{SUFFIX}" not in stored]

    def made(self, record: TaskRecord, trials: int) -> bool:
        """Whether a stored task is the one that so many of these trials make."""
        ours = (self.network, self.seed, trials, self.task.fingerprint(), self.recipe.to_dict())
        return ours == (record.network, record.seed, record.trials, record.fingerprint, record.facts.get("recipe"))

    def clear(self) -> None:
        """Remove the stored states of all trials."""
        self.checkpoints.clear()


def help_train(
    task: Task, network: str | None, trials: int, recipe: Recipe, seed: int, device: torch.device,
    parallel: DataParallel,
) -> Work[None]:  # fmt: skip
    """Do a process's part of the trials that `Zoo.add` trains and stores in the first of several processes."""
    if network is not None:
        trust_network(network)
    spec = str(NetworkSpec.parse(network or default_network(task)).anchored())
    cache = TrialCache.of(MemoryCheckpoints(), task, spec, recipe, seed, parallel=parallel)
    for trial in range(trials):
        yield from cache.trial(trial, trials, device)
