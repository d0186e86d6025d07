"""A trained network as one safetensors file: weights, and the facts that rebuild the network around them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nearkin.core.checkpoints import resumed
from nearkin.core.errors import DataError, require
from nearkin.core.events import Caution, Work
from nearkin.core.state import State
from nearkin.nets.fit import Fit, fitting
from nearkin.nets.functional import check
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build, default_network
from nearkin.nets.solved import Solved, fit_facts, fit_state, solved_from
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.trusted_code import remember
from nearkin.tasks.task import Task

FORMAT = "nearkin-model"


def training(
    task: Task, network: str | None, recipe: Recipe, seed: int, device: torch.device, out: Path, resume: bool = False
) -> Work[Solved]:
    """Train one network on a task and write it to `out`; its state lies beside it until then, for `resume`."""
    spec = str(NetworkSpec.parse(network or default_network(task)).anchored())
    model = build(spec, task.input_shape, task.num_outputs, seed)
    check(model, task.input_shape, task.num_outputs, task.likelihood)
    half = out.with_name(out.name + ".part")

    def begin(start: State | None) -> Work[Fit]:
        model = build(spec, task.input_shape, task.num_outputs, seed)
        return fitting(model, task, recipe, seed=seed, device=device, resume=start)

    done = yield from resumed(begin, half, resume=resume)
    solved = Solved(task.name, spec, task.facts(), seed, (done,))
    saved(solved, out)
    if warning := remember(spec):
        yield Caution(warning)
    return solved


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
