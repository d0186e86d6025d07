"""A trained network as one safetensors file: weights, and the facts that rebuild the network around them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nearkin.core.errors import DataError, require
from nearkin.core.events import Note, Work, kept
from nearkin.core.resume import recovered, signed
from nearkin.core.state import State
from nearkin.nets.fit import fitting
from nearkin.nets.functional import check
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build, default_network
from nearkin.nets.solved import Solved, fit_facts, fit_from, fit_state
from nearkin.nets.spec import NetworkSpec
from nearkin.tasks.task import Task

FORMAT = "nearkin-model"


def training(
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
    checkpoint = out.with_name(out.name + ".part")
    if restart:
        checkpoint.unlink(missing_ok=True)
    start = yield from _checkpoint(checkpoint, question)

    def trained() -> Work[Solved]:
        fit = yield from fitting(model, task, recipe, seed=seed, device=device, resume=start)
        solved = Solved(task.name, spec, task.facts(), seed, (fit,))
        saved(solved, out)  # before `kept` removes the checkpoint
        return solved

    return (yield from kept(signed(trained(), {"question": question}), checkpoint))


def _checkpoint(file: Path, question: Mapping[str, Any]) -> Work[State | None]:
    """What an interrupted training of this very question left."""
    state = yield from recovered(file)
    if state is None:
        return None
    asked = state.facts.get("question", {})
    if asked == question:
        return state
    changed = sorted(name for name in question if asked.get(name) != question[name])
    yield Note(f"{file} is of a training with other {', '.join(changed)}; this one starts anew and replaces it")
    return None


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
    facts = state.facts
    return Solved(facts["name"], facts["network"], facts["task"], facts["seed"], (fit_from(state, facts["fit"]),))
