"""A trained network as one safetensors file: weights, and the facts that rebuild the network around them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nearkin.core.errors import DataError, require
from nearkin.core.events import Caution, Note, Work, operation
from nearkin.core.state import State, add_facts
from nearkin.nets.functional import check
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build, default_network
from nearkin.nets.solved import Solved, fit_facts, fit_state, solved_from
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.training_loop import fit
from nearkin.nets.trusted_code import remember
from nearkin.run.checkpoints import FolderCheckpoints, resume
from nearkin.tasks.task import Task

FORMAT = "nearkin-model"


@operation
def train(
    task: Task, network: str | None, recipe: Recipe, seed: int, device: torch.device, out: Path, restart: bool = False
) -> Work[Solved]:
    """Train one network on a task and write it to `out`.

    Until then the checkpoint is beside it, in `out` with `.part` appended. The same call continues from there; a
    checkpoint of another task, network, recipe or seed is not used, and neither is any with `restart`.
    """
    spec = str(NetworkSpec.parse(network or default_network(task)).anchored())
    model = build(spec, task.input_shape, task.num_outputs, seed)
    check(model, task.input_shape, task.num_outputs, task.likelihood)
    question = {
        "data": task.fingerprint(), "network": spec, "recipe": recipe.to_dict(), "seed": seed,
        "torch": torch.__version__,
    }  # fmt: skip
    beside, checkpoint = FolderCheckpoints(out.parent), f"{out.name}.part"
    if restart:
        beside.remove(checkpoint)

    def trained(start: State | None) -> Work[Solved]:
        changed = [] if start is None else _changes(start, question)
        if changed:
            yield Note(
                f"{out.parent / checkpoint} is of a training with other {', '.join(changed)}; this one starts anew and "
                f"replaces it"
            )
            start = None
        model = build(spec, task.input_shape, task.num_outputs, seed)
        result = yield from fit.work(model, task, recipe, seed=seed, device=device, resume=start)
        solved = Solved(task.name, spec, task.facts(), seed, (result,))
        saved(solved, out)  # before `resume` removes the checkpoint
        if warning := remember(spec):
            yield Caution(warning)
        return solved

    return (yield from resume(beside, checkpoint, lambda start: add_facts(trained(start), {"question": question})))


def _changes(checkpoint: State, question: Mapping[str, Any]) -> list[str]:
    """Names of what differs between the training that wrote a checkpoint and this one."""
    asked = checkpoint.facts.get("question")
    known = asked if isinstance(asked, dict) else {}
    return sorted(name for name in question if known.get(name) != question[name])


def saved(solved: Solved, file: Path, trial: int = 0) -> None:
    """Write one trial of a solved task to a file."""
    done = solved.trials[trial]
    facts = {
        "format": FORMAT, "name": solved.name, "network": solved.network, "task": dict(solved.facts),
        "seed": solved.seed, "trial": trial, "fit": fit_facts(done),
    }  # fmt: skip
    State(fit_state(done).tensors, facts).save(file)


def facts_of(file: Path) -> Mapping[str, Any]:
    """What a file says of itself, its format first."""
    return State.load(file).facts


def loaded(file: Path) -> Solved:
    """A solved task of one trial from such a file."""
    state = State.load(file)
    require(
        state.facts.get("format") == FORMAT, f"{file} holds no model of nearkin; nearkin train writes one", DataError
    )
    return solved_from(state, state.facts)
