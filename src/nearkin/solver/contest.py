"""The contest: searches and trainings under one allowance of time, judged on data that none of them learned from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from nearkin.core.errors import NearkinError, require
from nearkin.core.events import Caution, Note, Work
from nearkin.core.rng import derived_seed
from nearkin.core.state import State
from nearkin.distance.source_on_target import fitted_to
from nearkin.nets.registry import default_network
from nearkin.nets.solved import Solved
from nearkin.run.stages import StageCache
from nearkin.search.evaluate import held_out
from nearkin.search.registry import PROXY, Ask, searcher
from nearkin.search.searcher import Outcome, run_search
from nearkin.solver.contenders import (
    HAND_MADE,
    TITLES,
    USUAL_CELLS,
    USUAL_WIDTH,
    Contender,
    Trained,
    hand_made_networks,
    made_title,
    samples_learned,
    search_skeleton,
    searched_networks,
    standing,
    train_contender,
)
from nearkin.solver.pace import FEWEST_STEPS, Pace, paced
from nearkin.solver.plan import SEARCH_SHARE, Plan
from nearkin.solver.quality import temperature
from nearkin.solver.simple.models import SIMPLE
from nearkin.solver.simple.models import title as simple_title
from nearkin.solver.solution import answers
from nearkin.solver.standing import Standing, ordered
from nearkin.tasks.metrics import CONFIDENCE
from nearkin.tasks.prediction import Prediction
from nearkin.tasks.task import Task
from nearkin.zoo.search import Ground

FEWEST_FOR_HEAT = 50  # samples below which a temperature is no better than none


@dataclass(frozen=True)
class Lot:
    """A search of the contest: what it is called, where it looks, and how."""

    name: str
    title: str
    ground: Ground
    method: str


@dataclass(frozen=True)
class Entry:
    """Someone who could take part: name, title, kind, and the work that makes it ready for its training."""

    name: str
    title: str
    kind: str
    ready: Callable[[], Work[Contender]]


@dataclass
class Contest:
    """What has been tried so far.

    Attributes:
        task: the target whole.
        learn: the same, its training data split into what is learned from and what the answer is chosen by.
        plan: what was asked.
        stages: where stages lie.
        allowance: seconds of each contender.
        standings: in the order of their turn.
        trained: weights of those that ran, by name.
        contenders: those, by name.
        outcomes: of the searches, by name.
    """

    task: Task
    plan: Plan
    stages: StageCache
    allowance: float | None = None
    standings: list[Standing] = field(default_factory=list)
    trained: dict[str, Trained] = field(default_factory=dict)
    contenders: dict[str, Contender] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learn = self._learn_in(self.task.input_shape)

    def _learn_in(self, input_shape: tuple[int, ...]) -> Task:
        """The split task in another input shape; its scaling is that of all training data, as in the last training."""
        whole = fitted_to(self.task, input_shape)
        return held_out(whole, self.plan.validation, derived_seed(self.plan.seed, "choice"))

    def run(self, lots: Sequence[Lot], kin: Solved | None) -> Work[None]:
        """All searches, then everyone's training."""
        entries = [entry for entry in self._entries(lots, kin) if self.plan.takes(entry.name)]
        require(
            bool(entries),
            f"none of {', '.join(self.plan.only)} can take part; there are "
            f"{', '.join(entry.name for entry in self._entries(lots, kin))}",
        )
        self.allowance = self.plan.allowance(self.stages.seconds, len(entries))
        if self.allowance is not None:
            yield Note(f"{len(entries)} contenders have {self.allowance:.1f} s each")
        for entry in entries:
            yield from self._entered(entry)

    def _entries(self, lots: Sequence[Lot], kin: Solved | None) -> Iterator[Entry]:
        """Everyone who could take part, in the order of their turn."""
        if not self.plan.hurried:
            for lot in lots:
                yield Entry(lot.name, lot.title, "searched", partial(self._searched, lot))
            if kin is not None:
                title = f"{kin.network} of {kin.name}, fine-tuned"
                yield Entry("finetune", title, "tuned", partial(self._tuned, kin, title))
                title = f"{kin.network} of {kin.name}, in closed form"
                yield Entry("transfer", title, "transfer", partial(self._closed, kin, title))
            images = len(self.task.input_shape) == 3
            for name in (default_network(self.task), *(self.plan.hand_made if images else ())):
                title = TITLES.get(name, name)
                yield Entry(name, title, "made", partial(self._made, name, title))
        for kind in SIMPLE:
            title = simple_title(kind, self.task.likelihood)
            yield Entry(kind, title, "simple", partial(self._simple, kind, title))

    def final(self, name: str) -> Work[tuple[Solved, int]]:
        """A contender trained once more, as before, with all training data at hand; and from how many it learned."""
        old = self.contenders[name]
        whole = fitted_to(self.task, old.task.input_shape)
        fixed = self.trained[name].settings if old.pace is None else None
        contender = replace(old, task=whole, fixed=fixed, title=f"{old.title}, trained again")
        state = yield from self._trained(contender, f"final: {old.title}")
        trained = Trained.from_state(state)
        return trained.solved(whole, old.seed), samples_learned(trained, whole)

    def heat(self, name: str) -> float:
        """The temperature of a contender's class scores, learned on the data of the choice; 1 where that is too few."""
        judge = self.learn.test
        if self.task.likelihood != "categorical" or len(judge) < FEWEST_FOR_HEAT:
            return 1.0
        return temperature(self._said(name).mean, judge.labels())

    def margins(self) -> dict[str, tuple[float, float, float]]:
        """How far the best is ahead of the next and of the best simple model, with 95 % intervals, sample by sample."""
        ranked = ordered(self.standings)
        simple = [one for one in ranked if one.kind == "simple"][:1]
        rivals = {one.name for one in (*ranked[1:2], *simple)} - {ranked[0].name}
        return {name: self._ahead(ranked[0].name, name) for name in sorted(rivals)}

    def _ahead(self, one: str, other: str) -> tuple[float, float, float]:
        targets = self.learn.test.labels()
        if self.task.likelihood == "categorical":
            gains = [(self._said(name).labels == targets).double() for name in (one, other)]
        else:  # R² is one minus the mean of these
            spread = (targets - targets.mean(0)).square().mean().clamp_min(1e-12)
            gains = [-((self._said(name).mean - targets).square().mean(1) / spread).double() for name in (one, other)]
        difference = gains[0] - gains[1]
        half = CONFIDENCE * float(difference.std()) / len(difference) ** 0.5 if len(difference) > 1 else 0.0
        ahead = float(difference.mean())
        return ahead, ahead - half, ahead + half

    def _said(self, name: str) -> Prediction:
        contender = self.contenders[name]
        return answers(self.trained[name].solved(contender.task, contender.seed), self.learn.test, 1.0)

    def _entered(self, entry: Entry) -> Work[None]:
        """One contender's turn; what keeps it from running is told in its standing."""
        before = self.stages.seconds
        try:
            contender = yield from entry.ready()
            state = yield from self._trained(contender, f"training: {contender.title}")
        except NearkinError as error:
            yield Caution(f"{entry.title} takes no part: {error}")
            refused = Standing(name=entry.name, title=entry.title, kind=entry.kind, refused=str(error))
            self.standings.append(refused)
            return
        trained = Trained.from_state(state)
        whole = fitted_to(self.task, contender.task.input_shape)
        found = standing(contender, trained, whole, self.stages.seconds - before)
        self.standings.append(found)
        self.trained[entry.name], self.contenders[entry.name] = trained, contender
        yield Note(
            f"{found.title}: {found.validation:.4f} on validation data, {found.parameters:,} parameters, "
            f"{found.seconds:.1f} s"
        )

    def _trained(self, contender: Contender, stage: str) -> Work[State]:
        work = lambda start: train_contender(contender, start, self.plan.device)  # noqa: E731
        return (yield from self.stages.stage(stage, contender.facts(), work, key=f"train-{contender.name}"))

    def _searched(self, lot: Lot) -> Work[Contender]:
        outcome = yield from self._outcome(lot)
        self.outcomes[lot.name] = outcome
        best = outcome.best.genotype
        settings = {"space": lot.ground.space.name, "seed_cells": bool(lot.ground.first)}
        told = {"genotype": str(best), "search": outcome.to_dict(), "settings": settings}
        left = None if self.allowance is None else (1 - SEARCH_SHARE) * self.allowance
        pace = yield from self._paced(
            lot.name, lot.title, searched_networks(best, self.learn), self.learn, left, USUAL_CELLS, searched=True
        )
        return Contender(
            name=lot.name, title=lot.title, kind="searched", task=self.learn, pace=pace, seed=self.plan.seed, told=told
        )

    def _outcome(self, lot: Lot) -> Work[Outcome]:
        skeleton, budget = search_skeleton(self.learn), self.plan.search_budget(self.allowance)
        own = derived_seed(self.plan.seed, "solve", lot.name)  # a search from nothing must not draw the kin's own cells
        ask = Ask(
            task=self.learn, space=lot.ground.space, skeleton=skeleton, first=lot.ground.first, seed=self.plan.seed
        )
        inputs: dict[str, Any] = {
            "data": self.learn.fingerprint(), "method": lot.method, "space": lot.ground.space.name,
            "first": [str(one) for one in lot.ground.first], "skeleton": skeleton.to_dict(), "proxy": PROXY.to_dict(),
            "budget": vars(budget), "seed": own,
        }  # fmt: skip

        def work(start: State | None) -> Work[State]:
            outcome = yield from run_search.work(searcher(lot.method, ask), budget, seed=own, resume=start)
            return State({}, outcome.to_dict())

        done = yield from self.stages.stage(lot.title, inputs, work, key=f"search-{lot.name}")
        return done.read(Outcome)

    def _tuned(self, kin: Solved, title: str) -> Work[Contender]:
        seen = self._learn_in(tuple(kin.facts["input_shape"]))
        pace = yield from self._paced("finetune", title, [kin.network], seen, self.allowance)
        return Contender(
            name="finetune", title=title, kind="tuned", task=seen, pace=pace, source=kin, seed=kin.seed,
            told={"settings": {"kin": kin.name}},
        )  # fmt: skip

    def _closed(self, kin: Solved, title: str) -> Work[Contender]:
        yield from ()
        return Contender(
            name="transfer", title=title, kind="transfer", task=self._learn_in(tuple(kin.facts["input_shape"])),
            source=kin, seconds=self.allowance, seed=self.plan.seed, told={"settings": {"kin": kin.name}},
        )  # fmt: skip

    def _made(self, name: str, title: str) -> Work[Contender]:
        networks = hand_made_networks(name, self.plan.width) if name in HAND_MADE else [name]
        pace = yield from self._paced(name, title, networks, self.learn, self.allowance, USUAL_WIDTH)
        title = made_title(pace.network)
        return Contender(name=name, title=title, kind="made", task=self.learn, pace=pace, seed=self.plan.seed)

    def _simple(self, kind: str, title: str) -> Work[Contender]:
        yield from ()
        return Contender(
            name=kind, title=title, kind="simple", task=self.learn, seconds=self.allowance, seed=self.plan.seed
        )

    def _paced(
        self,
        name: str,
        title: str,
        networks: Sequence[str],
        task: Task,
        seconds: float | None,
        usual: int = 0,
        searched: bool = False,
    ) -> Work[Pace]:
        """Size and steps, decided once: a run that goes on later, at another speed, keeps them.

        A searched network learns as fast as it did while it was compared, and no shorter.
        """
        recipe, fewest = self.plan.recipe(task), FEWEST_STEPS
        if searched:
            rate = self.plan.training.get("learning_rate", PROXY.learning_rate)
            recipe, fewest = replace(recipe, learning_rate=rate), PROXY.steps or FEWEST_STEPS

        def work(_: State | None) -> Work[State]:
            yield from ()
            return State({}, paced(networks, task, recipe, seconds, usual, fewest).to_dict())

        inputs = {
            "data": task.fingerprint(), "networks": list(networks), "seconds": seconds, "usual": usual,
            "recipe": recipe.to_dict(), "fewest": fewest,
        }  # fmt: skip
        done = yield from self.stages.stage(f"training: {title}", inputs, work, key=f"pace-{name}")
        return done.read(Pace)
