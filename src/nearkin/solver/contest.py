"""The contest: searches and trainings under one allowance of time, judged on data that none of them learned from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nearkin.core.errors import NearkinError, require
from nearkin.core.events import Caution, Note, Work
from nearkin.core.rng import derived_seed
from nearkin.core.state import State
from nearkin.nets.registry import default_network
from nearkin.nets.solved import Solved
from nearkin.run.stages import StageCache
from nearkin.search.registry import PROXY, SearchProblem, searcher
from nearkin.search.searcher import SearchResult, run_search
from nearkin.solver.contenders import (
    HAND_MADE,
    TITLES,
    USUAL_CELLS,
    USUAL_WIDTH,
    Contender,
    hand_made_networks,
    made_title,
    result_of,
    samples_learned,
    search_skeleton,
    searched_networks,
    train_contender,
    trained_network,
)
from nearkin.solver.pace import FEWEST_STEPS, Pace, paced
from nearkin.solver.plan import SEARCH_SHARE, Plan
from nearkin.solver.quality import temperature
from nearkin.solver.result import Result, ordered
from nearkin.solver.simple.models import SIMPLE
from nearkin.solver.simple.models import title as simple_title
from nearkin.solver.solution import answers
from nearkin.tasks.derive import held_out
from nearkin.tasks.metrics import CONFIDENCE
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.prediction import Prediction
from nearkin.tasks.task import Task
from nearkin.zoo.search import Ground

FEWEST_FOR_HEAT = 50  # samples below which a temperature is no better than none


@dataclass
class Contest:
    """What has been tried so far.

    Attributes:
        task: the target whole.
        learn: the same, its training data split into what is learned from and what the answer is chosen by.
        plan: what was asked.
        stages: where stages lie.
        allowance: seconds of each contender.
        results: in the order of their turn.
        contenders: those that ran, by name.
        solved: their trained networks, by name.
        outcomes: of the searches, by name.
    """

    task: Task
    plan: Plan
    stages: StageCache
    allowance: float | None = None
    results: list[Result] = field(default_factory=list)
    contenders: dict[str, Contender] = field(default_factory=dict)
    solved: dict[str, Solved] = field(default_factory=dict)
    outcomes: dict[str, SearchResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learn = self._learn_in(self.task.input_shape)

    def _learn_in(self, input_shape: tuple[int, ...]) -> Task:
        """The split task in another input shape; its scaling is that of all training data, as in the last training."""
        whole = fitted_to(self.task, input_shape)
        return held_out(whole, self.plan.validation, derived_seed(self.plan.seed, "choice"))

    def run(self, searches: Sequence[Contender], kin: Solved | None) -> Work[None]:
        """Search, size and train every contender that the plan takes."""
        known = [*searches, *self._contenders(kin)]
        if self.plan.hurried:
            known = [contender for contender in known if contender.kind == "simple"]
        contenders = [contender for contender in known if self.plan.takes(contender.name)]
        require(
            bool(contenders),
            f"none of {', '.join(self.plan.only)} can take part; there are "
            f"{', '.join(contender.name for contender in known)}",
        )
        self.allowance = self.plan.allowance(self.stages.seconds, len(contenders))
        if self.allowance is not None:
            yield Note(f"{len(contenders)} contenders have {self.allowance:.1f} s each")
        for contender in contenders:
            yield from self._judge(replace(contender, seconds=self.allowance))

    def search(self, name: str, title: str, domain: Ground, method: str) -> Contender:
        """A contender whose architecture is searched."""
        return Contender(
            name=name, title=title, kind="searched", task=self.learn, domain=domain, method=method,
            usual=USUAL_CELLS, seed=self.plan.seed,
        )  # fmt: skip

    def _contenders(self, kin: Solved | None) -> Iterator[Contender]:
        """All contenders whose architecture is known, in the order of their turn."""
        if kin is not None:
            seen, told = self._learn_in(tuple(kin.facts["input_shape"])), {"settings": {"kin": kin.name}}
            yield Contender(
                name="finetune", title=f"{kin.network} of {kin.name}, fine-tuned", kind="tuned", task=seen,
                networks=(kin.network,), source=kin, seed=kin.seed, told=told,
            )  # fmt: skip
            yield Contender(
                name="transfer", title=f"{kin.network} of {kin.name}, in closed form", kind="transfer", task=seen,
                source=kin, seed=self.plan.seed, told=told,
            )  # fmt: skip
        images = len(self.task.input_shape) == 3
        for name in (default_network(self.task), *(self.plan.hand_made if images else ())):
            networks = hand_made_networks(name, self.plan.width) if name in HAND_MADE else [name]
            yield Contender(
                name=name, title=TITLES.get(name, name), kind="made", task=self.learn, networks=tuple(networks),
                usual=USUAL_WIDTH, seed=self.plan.seed,
            )  # fmt: skip
        for name in SIMPLE:
            title = simple_title(name, self.task.likelihood)
            yield Contender(name=name, title=title, kind="simple", task=self.learn, seed=self.plan.seed)

    def final(self, name: str) -> Work[tuple[Solved, int]]:
        """A contender trained once more, as before, with all training data at hand; and from how many it learned."""
        old = self.contenders[name]
        whole = fitted_to(self.task, old.task.input_shape)
        told = old.told.get("settings", {})
        result = next(result for result in self.results if result.name == name)
        chosen = {key: value for key, value in result.settings.items() if key not in told}
        fixed = chosen if old.pace is None else None
        contender = replace(old, task=whole, fixed=fixed, title=f"{old.title}, trained again")
        state = yield from self._trained(contender, f"final: {old.title}")
        solved, settings = trained_network(state, whole, old.seed)
        return solved, samples_learned(settings, whole)

    def heat(self, name: str) -> float:
        """The temperature of a contender's class scores, learned on the validation set; 1 where that is too small."""
        judge = self.learn.test
        if self.task.likelihood != "categorical" or len(judge) < FEWEST_FOR_HEAT:
            return 1.0
        return temperature(self._said(name).mean, judge.labels())

    def margins(self) -> dict[str, tuple[float, float, float]]:
        """How far the best is ahead of the next and of the best simple model, with 95 % intervals, sample by sample."""
        ranked = ordered(self.results)
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
        return answers(self.solved[name], self.learn.test, 1.0)

    def _judge(self, contender: Contender) -> Work[None]:
        """One contender's turn; its result holds the reason where it could not run."""
        before = self.stages.seconds
        try:
            if contender.domain is not None:
                contender = yield from self._searched(contender, contender.domain)
            if contender.networks:
                contender = yield from self._sized(contender)
            state = yield from self._trained(contender, f"training: {contender.title}")
        except NearkinError as error:
            yield Caution(f"{contender.title} takes no part: {error}")
            refused = Result(name=contender.name, title=contender.title, kind=contender.kind, refused=str(error))
            self.results.append(refused)
            return
        whole = fitted_to(self.task, contender.task.input_shape)
        solved, settings = trained_network(state, contender.task, contender.seed)
        result = result_of(contender, solved, settings, whole, self.stages.seconds - before)
        self.results.append(result)
        self.contenders[contender.name], self.solved[contender.name] = contender, solved
        yield Note(
            f"{result.title}: {result.validation:.4f} on validation data, {result.parameters:,} parameters, "
            f"{result.seconds:.1f} s"
        )

    def _trained(self, contender: Contender, stage: str) -> Work[State]:
        work = lambda start: train_contender(contender, start, self.plan.device)  # noqa: E731
        return (yield from self.stages.stage(stage, contender.facts(), work, key=f"train-{contender.name}"))

    def _searched(self, contender: Contender, domain: Ground) -> Work[Contender]:
        """The contender with the best architecture that its search finds."""
        skeleton, budget = search_skeleton(self.learn), self.plan.search_budget(self.allowance)
        own = derived_seed(self.plan.seed, "solve", contender.name)  # no search may draw what another one begins with
        ask = SearchProblem(
            task=self.learn, space=domain.space, skeleton=skeleton, first=domain.first, seed=self.plan.seed
        )
        inputs: dict[str, Any] = {
            "data": self.learn.fingerprint(), "method": contender.method, "space": domain.space.name,
            "first": [str(genotype) for genotype in domain.first], "skeleton": skeleton.to_dict(),
            "proxy": PROXY.to_dict(), "budget": vars(budget), "seed": own,
        }  # fmt: skip

        def work(start: State | None) -> Work[State]:
            outcome = yield from run_search.work(searcher(contender.method, ask), budget, seed=own, resume=start)
            return State({}, outcome.to_dict())

        done = yield from self.stages.stage(contender.title, inputs, work, key=f"search-{contender.name}")
        outcome = done.read(SearchResult)
        self.outcomes[contender.name] = outcome
        best = outcome.best.genotype
        settings = {"space": domain.space.name, "seed_cells": bool(domain.first)}
        return replace(
            contender,
            networks=tuple(searched_networks(best, self.learn)),
            seconds=None if self.allowance is None else (1 - SEARCH_SHARE) * self.allowance,
            told={"genotype": str(best), "search": outcome.to_dict(), "settings": settings},
        )

    def _sized(self, contender: Contender) -> Work[Contender]:
        """The contender with a network and steps that fit its time, decided once: a resumed run keeps them.

        A searched network learns as fast as it did while it was compared, and no shorter.
        """
        task, recipe, fewest = contender.task, self.plan.recipe(contender.task), FEWEST_STEPS
        if contender.domain is not None:
            rate = self.plan.training.get("learning_rate", PROXY.learning_rate)
            recipe, fewest = replace(recipe, learning_rate=rate), PROXY.steps or FEWEST_STEPS

        def work(_: State | None) -> Work[State]:
            yield from ()
            pace = paced(contender.networks, task, recipe, contender.seconds, contender.usual, fewest)
            return State({}, pace.to_dict())

        inputs = {
            "data": task.fingerprint(), "networks": list(contender.networks), "seconds": contender.seconds,
            "usual": contender.usual, "recipe": recipe.to_dict(), "fewest": fewest,
        }  # fmt: skip
        done = yield from self.stages.stage(f"training: {contender.title}", inputs, work, key=f"pace-{contender.name}")
        pace = done.read(Pace)
        title = made_title(pace.network) if contender.kind == "made" else contender.title
        return replace(contender, pace=pace, title=title)
