"""What every searcher is, and the one driver that runs, saves, resumes and stops them all.

A searcher is a value without memory: all that a search knows is in its state, which the driver hands from step to step
and captures between steps. Law (tests/laws/searcher.py): killed after any step and resumed, a search ends in the same
genotype and the same history, bit for bit.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypedDict, TypeVar, cast

from nearkin.core.budget import Budget
from nearkin.core.errors import TrainingError, require
from nearkin.core.events import Checkpoint, Note, Progress, Work, operation
from nearkin.core.memory import resident_mebibytes
from nearkin.core.plain import typed
from nearkin.core.state import State, restoring
from nearkin.search.genotypes.genotype import Genotype

S = TypeVar("S")

VERSION = 1
"""Of the checkpoints that the driver writes."""

KEPT = 10
"""Genotypes that an outcome names, at the most."""


@dataclass(frozen=True)
class Best:
    """A genotype and what speaks for it.

    Attributes:
        genotype: the best of a search so far.
        score: larger is better; what it is, a searcher says (validation accuracy, weight among candidates).
        facts: plain figures beside it.
    """

    genotype: Genotype
    score: float
    facts: Mapping[str, float | str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Best.from_dict` makes it again."""
        return {"genotype": str(self.genotype), "score": self.score, "facts": dict(self.facts)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Best":
        """The inverse of `to_dict`."""
        return typed(cls, dict(facts), "the best genotype of a search")


class Searcher(ABC, Generic[S]):
    """A way of looking for a genotype, in steps over a state of its own."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the method is called."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Plain JSON values that decide what the search does; a checkpoint made with others is refused."""

    @abstractmethod
    def init(self, seed: int) -> S:
        """The state before the first step."""

    @abstractmethod
    def step(self, state: S) -> Work[S]:
        """One step further; long ones yield events. The state given may be changed and must not be used again."""

    @abstractmethod
    def best(self, state: S) -> Best | None:
        """The best so far; None before there is any."""

    @abstractmethod
    def ended(self, state: S) -> str:
        """Why the search has come to an end of its own accord, in words; empty while it has not."""

    @abstractmethod
    def evaluations(self, state: S) -> int:
        """Genotypes whose worth was measured so far."""

    @abstractmethod
    def capture(self, state: S) -> State:
        """A copy of the whole state."""

    @abstractmethod
    def restore(self, saved: State) -> S:
        """The state that was captured."""

    def several(self, state: S, count: int) -> list[Best]:
        """The best few, best first; those that know of one only give that one."""
        best = self.best(state)
        return [] if best is None else [best]

    def figures(self, state: S) -> Mapping[str, float]:
        """Figures of the moment for whoever watches: entropy of the architecture weights, a loss."""
        return {}


@dataclass(frozen=True)
class Outcome:
    """What a search came to.

    Attributes:
        best: genotype, score and facts.
        method: the searcher's name.
        steps: taken.
        evaluations: genotypes whose worth was measured.
        seconds: of work, added up over interruptions.
        reason: why it ended.
        history: after each step the evaluations so far and the best score.
        found: the best few, best first.
    """

    best: Best
    method: str
    steps: int
    evaluations: int
    seconds: float
    reason: str
    history: tuple[tuple[int, float], ...] = ()
    found: tuple[Best, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Outcome.from_dict` makes it again."""
        plain = {name: getattr(self, name) for name in ("method", "steps", "evaluations", "seconds", "reason")}
        history, found = [list(row) for row in self.history], [one.to_dict() for one in self.found]
        return {"best": self.best.to_dict(), **plain, "history": history, "found": found}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Outcome":
        """The inverse of `to_dict`.

        >>> best = Best(Genotype.parse("chain: skip"), 0.5, {"loss": 1.0})
        >>> outcome = Outcome(best, "random", 3, 3, 1.5, "3 steps", ((1, 0.25), (2, 0.5)), (best,))
        >>> Outcome.from_dict(outcome.to_dict()) == outcome
        True
        """
        return typed(cls, dict(facts), "the outcome of a search")


@dataclass
class _Run:
    """What the driver adds to a searcher's state."""

    steps: int = 0
    seconds: float = 0.0
    history: list[tuple[int, float]] = field(default_factory=list)


@operation
def run_search(searcher: Searcher[S], budget: Budget, *, seed: int = 0, resume: State | None = None) -> Work[Outcome]:
    """Run a searcher to its end or that of its budget; after every step a `Progress` and a `Checkpoint`.

    Args:
        searcher: any.
        budget: what ends the search besides itself.
        seed: the one seed.
        resume: what a `Checkpoint` of the same searcher and seed captured.
    """
    run = _Run()
    if resume is None:
        state = searcher.init(seed)
    else:
        run, state = _resumed(searcher, seed, resume)
        yield Note(f"going on after step {run.steps}")
    while not (reason := searcher.ended(state) or budget.spent(run.seconds, run.steps, searcher.evaluations(state))):
        start = time.perf_counter()
        state = yield from searcher.step(state)
        run.steps += 1
        run.seconds += time.perf_counter() - start
        best = searcher.best(state)
        if best is not None:
            run.history.append((searcher.evaluations(state), best.score))
        yield _progress(searcher, state, run, budget, best)
        yield Checkpoint(lambda state=state: _captured(searcher, state, run, seed))  # type: ignore[misc]
    best = searcher.best(state)
    if best is None:
        raise TrainingError(
            f"{searcher.name} ended ({reason}) before it had measured anything; give it a larger budget"
        )
    found = tuple(searcher.several(state, KEPT))
    return Outcome(
        best, searcher.name, run.steps, searcher.evaluations(state), run.seconds, reason, tuple(run.history), found
    )


def _progress(searcher: Searcher[S], state: S, run: _Run, budget: Budget, best: Best | None) -> Progress:
    values = {**({} if best is None else {"best": best.score}), **searcher.figures(state)}
    values["MiB"] = resident_mebibytes()
    share = budget.share(run.seconds, run.steps, searcher.evaluations(state))
    if share:
        values["seconds left"] = run.seconds * (1 - share) / share
    return Progress(f"search, {searcher.name}", run.steps, budget.steps, values)


def _captured(searcher: Searcher[S], state: S, run: _Run, seed: int) -> State:
    saved = searcher.capture(state)
    mine = {"version": VERSION, "method": searcher.name, "seed": seed, "settings": dict(searcher.settings())}
    return State(saved.tensors, {"search": {**mine, **asdict(run)}, "state": dict(saved.facts)})


class _RunFacts(TypedDict):
    """What the driver's part of a checkpoint says."""

    version: int
    method: str
    seed: int
    settings: dict[str, Any]
    steps: int
    seconds: float
    history: list[tuple[int, float]]


def _resumed(searcher: Searcher[S], seed: int, saved: State) -> tuple[_Run, S]:
    require("search" in saved.facts, "this checkpoint is not one of a search; start anew without it", TrainingError)
    facts = typed(_RunFacts, saved.facts["search"], saved.origin)
    require(
        facts["version"] == VERSION,
        f"the checkpoint is of version {facts['version']}, this is {VERSION}; begin again (--restart), or use "
        f"the version that wrote it",
        TrainingError,
    )
    for name, mine in (("method", searcher.name), ("seed", seed), ("settings", dict(searcher.settings()))):
        given = cast(Mapping[str, Any], facts)[name]
        require(
            given == mine,
            f"the checkpoint was made with another {name} ({given}, not {mine}); begin again (--restart), or give that "
            f"one",
            TrainingError,
        )
    run = _Run(facts["steps"], facts["seconds"], facts["history"])
    with restoring(saved.origin):
        return run, searcher.restore(State(saved.tensors, saved.facts["state"], saved.origin))
