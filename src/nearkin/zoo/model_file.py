"""Model files: a trained network as one safetensors file, with the facts to build the network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nearkin.core.errors import DataError, require
from nearkin.core.events import Caution, Note, Work, operation
from nearkin.core.state import State, add_facts
from nearkin.nets.data_parallel import ALONE, DataParallel
from nearkin.nets.functional import check
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build, default_network
from nearkin.nets.solved import Solved, fit_facts, fit_state, solved_from
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.training_loop import fit as train_network
from nearkin.nets.trusted_code import remember
from nearkin.run.checkpoints import FolderCheckpoints, resume
from nearkin.tasks.task import Task
from nearkin.zoo.parallel_checkpoints import for_all

FORMAT = "nearkin-model"


@operation
def train(
    task: Task, network: str | None, recipe: Recipe, seed: int, device: torch.device, out: Path, restart: bool = False,
    parallel: DataParallel = ALONE,
) -> Work[Solved]:  # fmt: skip
    """Train one network on a task and write it to `out`.

    The checkpoint of an unfinished training is in the same folder, named `out` with `.part` appended. The same call
    resumes from it; a checkpoint of another task, network, recipe or seed is not used, and none is with `restart`. Of
    several processes the first one reads and writes files.
    """
    for line in task.notes:
        yield Note(line)
    spec = str(NetworkSpec.parse(network or default_network(task)).anchored())
    model = build(spec, task.input_shape, task.num_outputs, seed)
    check(model, task.input_shape, task.num_outputs, task.likelihood)
    facts = {
        "data": task.fingerprint(), "network": spec, "recipe": recipe.to_dict(), "seed": seed,
        "torch": torch.__version__,
    }  # fmt: skip
    folder, checkpoint = for_all(FolderCheckpoints(out.parent), parallel), f"{out.name}.part"
    if restart:
        folder.remove(checkpoint)

    def trained(start: State | None) -> Work[Solved]:
        changed = [] if start is None else _changes(start, facts)
        if changed:
            yield Note(
                f"{out.parent / checkpoint} belongs to a training with other {', '.join(changed)}; this one starts "
                f"from the beginning and replaces it"
            )
            start = None
        model = build(spec, task.input_shape, task.num_outputs, seed)
        result = yield from train_network.work(
            model, task, recipe, seed=seed, device=device, resume=start, parallel=parallel
        )
        solved = Solved(task.name, spec, task.facts(), seed, (result,))
        if parallel.first:
            saved(solved, out, recipe=recipe)  # before `resume` removes the checkpoint
            if warning := remember(spec):
                yield Caution(warning)
        return solved

    return (yield from resume(folder, checkpoint, lambda start: add_facts(trained(start), {"question": facts})))


def _changes(checkpoint: State, facts: Mapping[str, Any]) -> list[str]:
    """Names of facts that differ between the training of a checkpoint and this one."""
    stored = checkpoint.facts.get("question")
    known = stored if isinstance(stored, dict) else {}
    return sorted(name for name in facts if known.get(name) != facts[name])


def saved(solved: Solved, file: Path, trial: int = 0, recipe: Recipe | None = None) -> None:
    """Write one trial of a solved task to a file, with its loss curve and, if it is known, its recipe."""
    fit = solved.trials[trial]
    facts = {
        "format": FORMAT, "name": solved.name, "network": solved.network, "task": dict(solved.facts),
        "seed": solved.seed, "trial": trial, "fit": fit_facts(fit),
        **({} if recipe is None else {"recipe": recipe.to_dict()}),
    }  # fmt: skip
    State(fit_state(fit).tensors, facts).save(file)


def facts_of(file: Path) -> Mapping[str, Any]:
    """The facts of a model file or a solution file."""
    return State.load(file).facts


def loaded(file: Path) -> Solved:
    """Read a solved task with one trial from a model file."""
    state = State.load(file)
    require(
        state.facts.get("format") == FORMAT,
        f"{file} is not a model file of nearkin; write one with nearkin train",
        DataError,
    )
    return solved_from(state, state.facts)
