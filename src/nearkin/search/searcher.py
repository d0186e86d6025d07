"""Interface of searchers, and the driver that runs, saves, resumes and stops them.

A searcher stores nothing itself: everything that a search has learned is in its state. The driver passes the state from
step to step and saves it in between. Law (tests/laws/searcher.py): a search that is killed after any step and resumed
ends in the same genotype and the same history, bit for bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Generic, TypedDict, TypeVar

from nearkin.core.budget import Budget
from nearkin.core.clock import now
from nearkin.core.errors import TrainingError, require
from nearkin.core.events import Checkpoint, Note, Progress, Work, operation
from nearkin.core.memory import resident_mebibytes
from nearkin.core.plain import typed
from nearkin.core.state import State, restoring
from nearkin.search.genotypes.genotype import Genotype
from nearkin.search.plasticity.telemetry import Forgetting

S = TypeVar("S")

VERSION = 1
"""Version of the checkpoints that the driver writes."""

NUM_BEST = 10
"""Largest number of genotypes in a search result."""

FORMER_METHODS = {"kin": "warm-start"}
"""Current names of methods by the names that older checkpoints, results and zoos have."""


def current_method(name: str) -> str:
    """Current name of a method that is read from a file."""
    return FORMER_METHODS.get(name, name)


def stored_method(name: str) -> str:
    """Name of a method in identifiers of stored work, which do not change when a method is renamed.

    >>> stored_method("warm-start"), stored_method("random"), current_method("kin")
    ('kin', 'random', 'warm-start')
    """
    return next((former for former, current in FORMER_METHODS.items() if current == name), name)


@dataclass(frozen=True)
class ScoredGenotype:
    """A genotype with its score.

    Attributes:
        genotype: the architecture.
        score: larger is better; its meaning depends on the searcher (validation accuracy, weight among candidates).
        facts: further figures as plain values.
    """

    genotype: Genotype
    score: float
    facts: Mapping[str, float | str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, read by `from_dict`."""
        return {"genotype": str(self.genotype), "score": self.score, "facts": dict(self.facts)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "ScoredGenotype":
        """The inverse of `to_dict`."""
        return typed(cls, dict(facts), "the best genotype of a search")


class Searcher(ABC, Generic[S]):
    """A search method for one task and space, which works in steps on a state."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the method."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Plain JSON values that determine the search; a checkpoint with other settings is refused."""

    @abstractmethod
    def init(self, seed: int) -> S:
        """Return the state before the first step."""

    @abstractmethod
    def step(self, state: S) -> Work[S]:
        """Take one step and yield events if it is long. The given state may be changed; do not use it again."""

    @abstractmethod
    def best(self, state: S) -> ScoredGenotype | None:
        """Best genotype so far; None before the first one."""

    @abstractmethod
    def ended(self, state: S) -> str:
        """Reason why the search has converged or cannot continue; empty while it can."""

    @abstractmethod
    def evaluations(self, state: S) -> int:
        """Number of genotypes that were measured so far."""

    @abstractmethod
    def capture(self, state: S) -> State:
        """Copy the whole state."""

    @abstractmethod
    def restore(self, saved: State) -> S:
        """Return the state that `capture` copied."""

    foresees: ClassVar[bool] = False
    """Whether `upcoming` names genotypes; not if genotypes share weights or are trained together."""

    def upcoming(self, state: S, most: int, guesses: int) -> list[Genotype]:
        """Genotypes that the next steps measure one at a time, in order; the state does not change.

        Args:
            state: the state.
            most: largest number of genotypes, if no score of one before them can change them.
            guesses: largest number, if they are those that follow if the ones before them score worst.
        """
        return []

    def top(self, state: S, count: int) -> list[ScoredGenotype]:
        """Best genotypes, best first; a searcher that tracks one genotype returns only that one."""
        best = self.best(state)
        return [] if best is None else [best]

    def figures(self, state: S) -> Mapping[str, float]:
        """Current figures for progress displays: a loss, the entropy of the architecture weights."""
        return {}

    def forgetting(self, state: S) -> Sequence[Forgetting]:
        """How much architectures that share weights forgot in each epoch; empty if they share none."""
        return ()

    def details(self, state: S) -> Mapping[str, Any]:
        """Further results of the method as plain JSON values."""
        return {}


@dataclass(frozen=True)
class SearchResult:
    """Result of a finished search.

    Attributes:
        best: best genotype with score and facts.
        method: name of the searcher.
        steps: number of steps.
        evaluations: number of genotypes that were measured.
        seconds: computing time, summed over interruptions.
        reason: why the search ended.
        history: after each step, the evaluations so far and the best score.
        found: the best genotypes, best first.
        forgetting: how much architectures that share weights forgot, in each epoch.
        details: further results of the method as plain JSON values.
    """

    best: ScoredGenotype
    method: str
    steps: int
    evaluations: int
    seconds: float
    reason: str
    history: tuple[tuple[int, float], ...] = ()
    found: tuple[ScoredGenotype, ...] = ()
    forgetting: tuple[Forgetting, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", current_method(self.method))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, read by `from_dict`."""
        plain = {name: getattr(self, name) for name in ("method", "steps", "evaluations", "seconds", "reason")}
        history, top = [list(row) for row in self.history], [scored.to_dict() for scored in self.found]
        forgetting = [epoch.to_dict() for epoch in self.forgetting]
        details = {"details": dict(self.details)} if self.details else {}
        return {
            "best": self.best.to_dict(), **plain, "history": history, "found": top, "forgetting": forgetting, **details,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "SearchResult":
        """The inverse of `to_dict`.

        >>> best = ScoredGenotype(Genotype.parse("chain: skip"), 0.5, {"loss": 1.0})
        >>> result = SearchResult(best, "random", 3, 3, 1.5, "3 steps", ((1, 0.25), (2, 0.5)), (best,))
        >>> SearchResult.from_dict(result.to_dict()) == result
        True
        """
        return typed(cls, dict(facts), "the result of a search")


@dataclass
class _Run:
    """Progress of a search that the driver counts."""

    steps: int = 0
    seconds: float = 0.0
    history: list[tuple[int, float]] = field(default_factory=list)


@operation
def run_search(
    searcher: Searcher[S],
    budget: Budget,
    *,
    seed: int = 0,
    resume: State | None = None,
    prepare: Callable[[S], Work[float]] | None = None,
) -> Work[SearchResult]:
    """Run a searcher until it ends or its budget is used; yields a `Progress` and a `Checkpoint` after every step.

    Args:
        searcher: the search method with its task and space.
        budget: limits on time, steps and evaluations.
        seed: seed of all random choices.
        resume: state from a `Checkpoint` of the same searcher and seed.
        prepare: called before each step, for measurements by other processes; returns the seconds that they took for
            this step, which count as its own.
    """
    run = _Run()
    if resume is None:
        state = searcher.init(seed)
    else:
        run, state = _resumed(searcher, seed, resume)
        yield Note(f"resumed after step {run.steps}")
    clock = now if budget.cpu_minutes is None else budget.clock()
    while not (reason := searcher.ended(state) or budget.spent(run.seconds, run.steps, searcher.evaluations(state))):
        elsewhere = 0.0 if prepare is None else (yield from prepare(state))
        start = clock()
        state = yield from searcher.step(state)
        run.steps += 1
        run.seconds += elsewhere + clock() - start
        best = searcher.best(state)
        if best is not None:
            run.history.append((searcher.evaluations(state), best.score))
        yield _progress(searcher, state, run, budget, best)
        yield Checkpoint(lambda state=state: _captured(searcher, state, run, seed))  # type: ignore[misc]
    best = searcher.best(state)
    if best is None:
        raise TrainingError(f"{searcher.name} ended ({reason}) before it measured a genotype; give it a larger budget")
    top = tuple(searcher.top(state, NUM_BEST))
    return SearchResult(
        best, searcher.name, run.steps, searcher.evaluations(state), run.seconds, reason, tuple(run.history), top,
        tuple(searcher.forgetting(state)), searcher.details(state),
    )  # fmt: skip


def _progress(searcher: Searcher[S], state: S, run: _Run, budget: Budget, best: ScoredGenotype | None) -> Progress:
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
    """Entries of a checkpoint that the driver writes."""

    version: int
    method: str
    seed: int
    settings: dict[str, Any]
    steps: int
    seconds: float
    history: list[tuple[int, float]]


def _resumed(searcher: Searcher[S], seed: int, saved: State) -> tuple[_Run, S]:
    require("search" in saved.facts, "this checkpoint is not one of a search; start again without it", TrainingError)
    facts = typed(_RunFacts, saved.facts["search"], saved.origin)
    require(
        facts["version"] == VERSION,
        f"the checkpoint has version {facts['version']}, expected {VERSION}; start again (--restart), or use the "
        f"version that wrote it",
        TrainingError,
    )
    stored = {**facts, "method": current_method(facts["method"])}
    for name, expected in (("method", searcher.name), ("seed", seed), ("settings", dict(searcher.settings()))):
        require(
            stored[name] == expected,
            f"the checkpoint was made with another {name}: {stored[name]}, expected {expected}; start again "
            f"(--restart), or use the stored {name}",
            TrainingError,
        )
    run = _Run(facts["steps"], facts["seconds"], facts["history"])
    with restoring(saved.origin):
        return run, searcher.restore(State(saved.tensors, saved.facts["state"], saved.origin))
