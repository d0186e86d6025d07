"""Independent searches: one architecture for each task.

`run_searches` runs several searches one after the other. So a method for several tasks is a tuple of searchers: one
that finds an architecture for all tasks, or one for each task.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch

from nearkin.core.budget import Budget
from nearkin.core.errors import TrainingError, require
from nearkin.core.events import Work, operation
from nearkin.core.state import State, change_checkpoints
from nearkin.multitask.joint.joint_search import Joint, JointOptions
from nearkin.search.searcher import Searcher, SearchResult, run_search
from nearkin.search.spaces.base import Space
from nearkin.tasks.task import Task


def independent_searches(
    tasks: Sequence[Task], space: Space, options: JointOptions, *, device: torch.device | None = None
) -> tuple[Joint, ...]:
    """One search for each task; with `steps_per_pass=1` each is PC-DARTS bit for bit.

    An epoch of a task has as many passes as it has batches, so a smaller task than the others gets fewer steps than in
    a joint search.
    """
    return tuple(Joint([task], space, options, device=device) for task in tasks)


class _Searches(TypedDict):
    """Entry of a checkpoint: number of searches, and the results of those that have ended."""

    count: int
    results: list[dict[str, Any]]


@operation
def run_searches(
    searchers: Sequence[Searcher[Any]],
    budget: Budget,
    *,
    seed: int = 0,
    resume: State | None = None,
    known: Mapping[int, SearchResult] | None = None,
) -> Work[tuple[SearchResult, ...]]:
    """Run searches one after the other, each with the whole budget; yields a `Checkpoint` after every step.

    Args:
        searchers: the searches.
        budget: limits of each search.
        seed: seed of every search.
        resume: state from a `Checkpoint` of the same searches.
        known: results of searches that other processes did, by number.
    """
    results: list[SearchResult] = []
    inner: State | None = None
    if resume is not None:
        results, inner = _resumed(searchers, resume)
    for number in range(len(results), len(searchers)):
        if inner is None and known is not None and number in known:
            results.append(known[number])
            continue
        searcher = searchers[number]
        work = run_search.work(searcher, budget, seed=seed, resume=inner)
        ended, inner = [result.to_dict() for result in results], None

        def with_results(state: State, ended: list[dict[str, Any]] = ended) -> State:
            return State(state.tensors, {**state.facts, "searches": {"count": len(searchers), "results": ended}})

        results.append((yield from change_checkpoints(work, with_results)))
    return tuple(results)


def _resumed(searchers: Sequence[Searcher[Any]], saved: State) -> tuple[list[SearchResult], State]:
    """Results of the searches that have ended, and the checkpoint of the next one."""
    require(
        "searches" in saved.facts, "this checkpoint is not one of several searches; start again without it",
        TrainingError,
    )  # fmt: skip
    stored: _Searches = saved.facts["searches"]
    require(
        stored["count"] == len(searchers),
        f"the checkpoint was made with {stored['count']} searches, expected {len(searchers)}; start again (--restart), "
        f"or give the same tasks",
        TrainingError,
    )
    facts = {name: value for name, value in saved.facts.items() if name != "searches"}
    results = [SearchResult.from_dict(result) for result in stored["results"]]
    return results, State(saved.tensors, facts, saved.origin)
