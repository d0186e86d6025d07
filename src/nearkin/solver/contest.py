"""The contest: search and train every contender with equal time, and score it on a validation set."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nearkin.core.errors import NearkinError, require
from nearkin.core.events import Caution, Note, Work
from nearkin.core.rng import derived_seed
from nearkin.core.state import State
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import default_network
from nearkin.nets.solved import Solved
from nearkin.run.stages import StageCache
from nearkin.search.registry import PROXY, SearchProblem, searcher
from nearkin.search.searcher import SearchResult, run_search, stored_method
from nearkin.solver.allocation import (
    CONTINUED,
    JOINING,
    LEAST_FURTHER,
    LEAST_QUICK,
    MAIN,
    QUICK,
    REPORT,
    SCORING,
    Role,
    cnn_recipe,
    continued,
    further_rank,
    regime,
    shifts,
)
from nearkin.solver.contenders import (
    CNNS,
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
from nearkin.solver.flips import SAMPLES, THRESHOLD, mirror_ratio
from nearkin.solver.paired import paired_difference
from nearkin.solver.plan import LONG_SECONDS, SEARCH_SHARE, Plan
from nearkin.solver.quality import fitted_temperature
from nearkin.solver.result import Result, ordered
from nearkin.solver.simple.models import SIMPLE
from nearkin.solver.simple.models import title as simple_title
from nearkin.solver.sizing import FEWEST_STEPS, SizedNetwork, size_network, with_time_limit
from nearkin.solver.solution import predictions
from nearkin.tasks.derive import held_out
from nearkin.tasks.pixels import fitted_to
from nearkin.tasks.prediction import Prediction
from nearkin.tasks.task import Task
from nearkin.zoo.search import SearchDomain

FEWEST_FOR_TEMPERATURE = 50  # validation samples; with fewer the temperature is 1


@dataclass
class Contest:
    """State of a contest.

    Attributes:
        task: the target task.
        learn: the same task with the training data split: `train` for training, `test` for validation.
        plan: options of the run.
        stages: cache of finished stages.
        allowance: seconds of each contender.
        results: results in order of execution.
        contenders: contenders that ran, by name.
        solved: their trained networks, by name.
        outcomes: results of the searches, by name.
        left_out: positions of validation samples that the related task learned from whose weights are used.
    """

    task: Task
    plan: Plan
    stages: StageCache
    allowance: float | None = None
    results: list[Result] = field(default_factory=list)
    contenders: dict[str, Contender] = field(default_factory=dict)
    solved: dict[str, Solved] = field(default_factory=dict)
    outcomes: dict[str, SearchResult] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.learn = self._learn_in(self.task.input_shape)

    def _learn_in(self, input_shape: tuple[int, ...]) -> Task:
        """The split task in another input shape, scaled by all training data as in the final training."""
        whole = fitted_to(self.task, input_shape)
        return held_out(whole, self.plan.validation, derived_seed(self.plan.seed, "choice"))

    def run(self, searches: Sequence[Contender], kin: Solved | None) -> Work[None]:
        """Search, size and train every contender of the plan."""
        flip = yield from self._flips()
        known = [*searches, *self._contenders(kin, flip)]
        if self.plan.hurried:
            known = [contender for contender in known if contender.kind == "simple"]
        contenders = [contender for contender in known if self.plan.takes(contender.name)]
        require(
            bool(contenders),
            f"none of the contenders {', '.join(self.plan.only)} is available here; choose from "
            f"{', '.join(contender.name for contender in known)}",
        )
        if self.plan.focused:
            yield from self._run_focused(contenders)
            return
        self.allowance = self.plan.allowance(self.stages.seconds, len(contenders))
        if self.allowance is not None:
            yield Note(f"{len(contenders)} contenders with {self.allowance:.1f} s each")
        for contender in contenders:
            yield from self._judge(replace(contender, seconds=self.allowance))

    def _run_focused(self, contenders: Sequence[Contender]) -> Work[None]:
        """Train the main contenders for most of the time; see `solver.allocation`."""
        seconds = self.plan.seconds or 0.0
        favoured = regime(self.task, any(contender.name == "finetune" for contender in contenders))
        yield Note(favoured.why)
        by_role: dict[Role, list[Contender]] = {role: [] for role in Role}
        for contender in contenders:
            by_role[favoured.role(contender.name, contender.kind)].append(contender)
        for contender in by_role[Role.QUICK]:
            yield from self._judge(replace(contender, seconds=max(LEAST_QUICK, QUICK * seconds)))
        share = MAIN * self._remaining() / max(1, len(by_role[Role.MAIN]))
        for contender in by_role[Role.MAIN]:
            yield from self._judge(replace(contender, seconds=share))
        left = self._remaining() - self._final_seconds()
        further = sorted(by_role[Role.FURTHER], key=lambda contender: further_rank(contender.name))[
            : max(0, int(left // LEAST_FURTHER))
        ]
        self.allowance = left / max(1, len(further))
        for contender in further:
            yield from self._judge(replace(contender, seconds=self.allowance / (1 + CONTINUED)))

    def _remaining(self) -> float:
        """Seconds left for trainings, after those for the zoo and the report."""
        reserved = REPORT + (JOINING if self.plan.join else 0.0)
        return max(0.0, (self.plan.seconds or 0.0) * (1 - reserved) - self.stages.seconds)

    def _final_seconds(self) -> float:
        """Largest time of a final training of the contenders so far."""
        limits = [contender.sized.recipe.seconds or 0.0 for contender in self.contenders.values() if contender.sized]
        return CONTINUED * max(limits, default=0.0)

    def search(self, name: str, title: str, domain: SearchDomain, method: str) -> Contender:
        """Contender with a searched architecture."""
        return Contender(
            name=name, title=title, kind="searched", task=self.learn, domain=domain, method=method,
            usual=USUAL_CELLS, seed=self.plan.seed,
        )  # fmt: skip

    def _contenders(self, kin: Solved | None, flip: bool) -> Iterator[Contender]:
        """All contenders with a known architecture, in order of execution."""
        if kin is not None:
            learn = self._learn_in(tuple(kin.facts["input_shape"]))
            extra = {"settings": {"kin": kin.name, "left_out": len(self.left_out)}}
            learn = replace(learn, test=learn.test.chosen(self._scored(kin=True)))
            yield Contender(
                name="finetune", title=f"{kin.network} of '{kin.name}', fine-tuned", kind="tuned", task=learn,
                networks=(kin.network,), recipe=self._finetune_recipe(learn), source=kin, seed=kin.seed, extra=extra,
            )  # fmt: skip
            yield Contender(
                name="transfer", title=f"{kin.network} of '{kin.name}', closed-form transfer", kind="transfer",
                task=learn, source=kin, seed=self.plan.seed, extra=extra,
            )  # fmt: skip
        images = len(self.task.input_shape) == 3
        if images:
            for name, network in CNNS.items():
                yield Contender(
                    name=name, title=TITLES[name], kind="made", task=self.learn, networks=(network,),
                    recipe=replace(cnn_recipe(self.task, flip), **self.plan.options()), seed=self.plan.seed,
                )  # fmt: skip
        for name in (default_network(self.task), *(self.plan.hand_made if images else ())):
            networks = hand_made_networks(name, self.plan.width) if name in HAND_MADE else [name]
            yield Contender(
                name=name, title=TITLES.get(name, name), kind="made", task=self.learn, networks=tuple(networks),
                usual=USUAL_WIDTH, seed=self.plan.seed,
            )  # fmt: skip
        for name in SIMPLE:
            title = simple_title(name, self.task.likelihood)
            yield Contender(name=name, title=title, kind="simple", task=self.learn, seed=self.plan.seed)

    def _finetune_recipe(self, task: Task) -> Recipe:
        """Recipe of fine-tuning: that of the plan, with random shifts of images when time is limited."""
        recipe = self.plan.recipe(task)
        images = len(task.input_shape) == 3
        return replace(recipe, augment=shifts(task)) if self.plan.focused and images and not recipe.augment else recipe

    def _flips(self) -> Work[bool]:
        """Whether the CNNs are trained with random flips; decided once."""
        if len(self.task.input_shape) != 3 or self.task.likelihood != "categorical" or self.plan.hurried:
            return False
        samples = SAMPLES if self.plan.seconds is None or self.plan.seconds >= LONG_SECONDS else SAMPLES // 2

        def work(_: State | None) -> Work[State]:
            yield from ()
            return State({}, {"ratio": mirror_ratio(self.learn, self.plan.seed, samples)})

        inputs = {"data": self.learn.fingerprint(), "seed": self.plan.seed, "samples": samples}
        done = yield from self.stages.stage("check of flips", inputs, work, key="flips")
        return float(done.facts["ratio"]) > THRESHOLD

    def final(self, name: str) -> Work[tuple[Solved, int]]:
        """Train a contender again on all training data; returns the network and the number of samples used."""
        old = self.contenders[name]
        whole = fitted_to(self.task, old.task.input_shape)
        extra = old.extra.get("settings", {})
        result = next(result for result in self.results if result.name == name)
        chosen = {key: value for key, value in result.settings.items() if key not in extra}
        fixed = chosen if old.sized is None else None
        contender = replace(old, task=whole, fixed=fixed, title=f"{old.title}, final training")
        if old.sized is not None and old.sized.recipe.seconds is not None:  # continues the first training on all data
            recipe = continued(old.sized.recipe)
            contender = replace(contender, start=self.solved[name], sized=replace(old.sized, recipe=recipe))
        state = yield from self._trained(contender, f"final: {old.title}")
        solved, settings = trained_network(state, whole, old.seed)
        return solved, samples_learned(settings, whole)

    def temperature(self, name: str) -> float:
        """Temperature of a contender's class scores, fitted on the validation set; 1 if that is too small."""
        rows = self._scored(self.contenders[name].source is not None)
        if self.task.likelihood != "categorical" or len(rows) < FEWEST_FOR_TEMPERATURE:
            return 1.0
        return fitted_temperature(self._predictions(name).mean[rows], self.learn.test.labels()[rows])

    def margins(self) -> dict[str, tuple[float, float, float]]:
        """Lead of the best over the second and over the best simple model, with paired 95 % intervals."""
        ranked = ordered(self.results)
        simple = [result for result in ranked if result.kind == "simple"][:1]
        rivals = {result.name for result in (*ranked[1:2], *simple)} - {ranked[0].name}
        return {name: self.ahead(ranked[0].name, name) for name in sorted(rivals)}

    def ahead(self, first: str, second: str) -> tuple[float, float, float]:
        """Validation metric of one contender minus that of another on the same samples, with its 95 % interval."""
        rows = self._scored(any(self.contenders[name].source is not None for name in (first, second)))
        return paired_difference(self._predictions(first), self._predictions(second), self.learn.test.labels(), rows)

    def _scored(self, kin: bool) -> Tensor:
        """Positions of the validation samples on which contenders are scored, with the weights of a kin or without."""
        kept = torch.ones(len(self.learn.test), dtype=torch.bool)
        kept[list(self.left_out) if kin else []] = False
        return torch.nonzero(kept).flatten()

    def _predictions(self, name: str) -> Prediction:
        return predictions(self.solved[name], self.learn.test, 1.0)

    def _judge(self, contender: Contender) -> Work[None]:
        """Run one contender; if it cannot run, its result holds the reason."""
        before = self.stages.seconds
        try:
            if contender.domain is not None:
                contender = yield from self._searched(contender, contender.domain)
            if contender.networks:
                contender = yield from self._sized(contender)
            state = yield from self._trained(contender, f"training: {contender.title}")
        except NearkinError as error:
            yield Caution(f"{contender.title} was left out: {error}")
            refused = Result(name=contender.name, title=contender.title, kind=contender.kind, refused=str(error))
            self.results.append(refused)
            return
        solved, settings = trained_network(state, contender.task, contender.seed)
        whole = None if self.plan.focused else fitted_to(self.task, contender.task.input_shape)
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

    def _searched(self, contender: Contender, domain: SearchDomain) -> Work[Contender]:
        """The contender with the best architecture of its search."""
        skeleton, budget = search_skeleton(self.learn), self.plan.search_budget(self.allowance)
        own = derived_seed(self.plan.seed, "solve", contender.name)  # each search has its own draws
        problem = SearchProblem(
            task=self.learn, space=domain.space, skeleton=skeleton, first=domain.first, seed=self.plan.seed
        )
        inputs: dict[str, Any] = {
            "data": self.learn.fingerprint(), "method": stored_method(contender.method), "space": domain.space.name,
            "first": [str(genotype) for genotype in domain.first], "skeleton": skeleton.to_dict(),
            "proxy": PROXY.to_dict(), "budget": vars(budget), "seed": own,
        }  # fmt: skip

        def work(start: State | None) -> Work[State]:
            outcome = yield from run_search.work(searcher(contender.method, problem), budget, seed=own, resume=start)
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
            extra={"genotype": str(best), "search": outcome.to_dict(), "settings": settings},
        )

    def _sized(self, contender: Contender) -> Work[Contender]:
        """The contender with a network and number of steps for its time; decided once, a resumed run keeps them.

        A searched network has the learning rate of the search, and at least as many steps.
        """
        task, fewest = contender.task, FEWEST_STEPS
        recipe = contender.recipe or self.plan.recipe(task)
        if contender.domain is not None:
            rate = self.plan.training.get("learning_rate", PROXY.learning_rate)
            recipe, fewest = replace(recipe, learning_rate=rate), PROXY.steps or FEWEST_STEPS

        def work(_: State | None) -> Work[State]:
            yield from ()
            sized = size_network(contender.networks, task, recipe, contender.seconds, contender.usual, fewest)
            if self.plan.focused and contender.seconds is not None:
                count, most = len(self.task.test), SCORING * (self.plan.seconds or 0.0)
                sized = with_time_limit(sized.network, recipe, task, contender.seconds, count, most)
            return State({}, sized.to_dict())

        inputs = {
            "data": task.fingerprint(), "networks": list(contender.networks), "seconds": contender.seconds,
            "usual": contender.usual, "recipe": recipe.to_dict(), "fewest": fewest, "focused": self.plan.focused,
        }  # fmt: skip
        done = yield from self.stages.stage(f"training: {contender.title}", inputs, work, key=f"pace-{contender.name}")
        sized = done.read(SizedNetwork)
        title = made_title(sized.network) if contender.kind == "made" else contender.title
        return replace(contender, sized=sized, title=title)
