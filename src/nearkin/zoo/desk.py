"""Desk: where unfinished work of a zoo lies, so that it can go on: trials that are done, and the one in the making."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nearkin.core.checkpoints import resumed, stored
from nearkin.core.events import Note, Work
from nearkin.core.files import write_durably
from nearkin.core.rng import derived_seed
from nearkin.core.state import State
from nearkin.nets.functional import check
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.solved import fit_facts, fit_from, fit_state
from nearkin.nets.training_loop import Fit, fit
from nearkin.nets.trusted_code import require_trusted
from nearkin.tasks.task import Task


@dataclass(frozen=True)
class Desk:
    """A folder below the zoo's `work/`, named by all that decides the outcome: other data, another desk."""

    folder: Path
    task: Task
    network: str
    recipe: Recipe
    seed: int

    @classmethod
    def of(cls, work: Path, task: Task, network: str, recipe: Recipe, seed: int, *, restart: bool = False) -> "Desk":
        """The desk for this very work; with `restart` what lies there is discarded.

        A network whose code is not trusted leaves no trace.
        """
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
        text = json.dumps(facts, sort_keys=True)
        desk = cls(work / hashlib.sha256(text.encode()).hexdigest()[:16], task, network, recipe, seed)
        if restart:
            desk.clear()
        write_durably(desk.folder / "work.json", text.encode())
        return desk

    def trial(self, trial: int, trials: int, device: torch.device) -> Work[Fit]:
        """One trial: as it was finished before, from where it stopped, or from the beginning."""
        done = yield from stored(self._file(f"trial-{trial}"), lambda state: fit_from(state, state.facts))
        if done is not None:
            yield Note(f"{self.task.name}: trial {trial + 1} of {trials} was done before")
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
            )

        result = yield from resumed(begin, self._file(f"training-{trial}"))
        State(fit_state(result).tensors, fit_facts(result)).save(self._file(f"trial-{trial}"))
        return result

    def clear(self) -> None:
        """The work is in the zoo; its traces are not needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"
