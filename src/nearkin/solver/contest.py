"""The contest: search and train every contender, score it on held-out data, and train the selected ones to the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from nearkin.core.clock import LoadMeter
from nearkin.core.errors import NearkinError
from nearkin.core.events import Caution, Note, Work
from nearkin.core.rng import derived_seed
from nearkin.core.state import State
from nearkin.distance.forecasting.past_runs import RecordedRun
from nearkin.nets.solved import Solved
from nearkin.run.stages import StageCache
from nearkin.search.registry import PROXY, SearchProblem, searcher
from nearkin.search.searcher import SearchResult, run_search, stored_method
from nearkin.solver.allocation import SCORING
from nearkin.solver.contenders import (
    HAND_MADE,
    Contender,
    Trained,
    made_title,
    result_of,
    search_skeleton,
    searched_networks,
    train_contender,
    trained_from,
)
from nearkin.solver.ensemble import Member, combined
from nearkin.solver.finetuning_forecast import ForecastFacts, compared, forecast_finetuning
from nearkin.solver.model_outputs import metric_on_test
from nearkin.solver.plan import SEARCH_SHARE, Plan
from nearkin.solver.quality import metric_difference
from nearkin.solver.result import Result, ordered
from nearkin.solver.selection import averaged, clearly_better, greedy_weights, select_single
from nearkin.solver.sizing import FEWEST_STEPS, SizedNetwork, size_network, with_time_limit
from nearkin.solver.splits import Splits
from nearkin.solver.validation import Margin, ValidationOutputs, common_rows, lead, merged
from nearkin.tasks.metrics import metric_for
from nearkin.tasks.task import Task
from nearkin.zoo.search import SearchDomain

ENSEMBLE = "ensemble"
TEST_PASSES = 2  # over the test set: at the end of the final training, and for the report; a frozen encoder has one


@dataclass
class Contest:
    """State of a contest.

    Attributes:
        task: the target task.
        metric: by which the answer is selected.
        learn: the same task with the training data split: `train` for training, `test` for validation.
        plan: options of the run.
        stages: cache of finished stages.
        allowance: seconds of each contender.
        results: results in order of execution.
        trained: trained models of each contender, by name; an average of networks has several.
        weights: weights of the contenders in the ensemble; empty without one.
        outcomes: results of the searches, by name.
        why: how the time was divided, and why.
        left_out: positions of validation samples that the related task learned from whose weights are used.
        meter: of the load, if wall time is limited.
        recorded: runs of the zoo, from which a forecast of fine-tuning learns.
        forecasts: of the contenders that are fine-tuned, by name.
        waited: seconds in which workers did stages, whose own times are counted.
        workers: number of workers, if there are any.
    """

    task: Task
    plan: Plan
    stages: StageCache
    allowance: float | None = None
    results: list[Result] = field(default_factory=list)
    trained: dict[str, list[Trained]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, SearchResult] = field(default_factory=dict)
    why: str = ""
    left_out: tuple[int, ...] = ()
    meter: LoadMeter | None = None
    recorded: Sequence[RecordedRun] = ()
    forecasts: dict[str, ForecastFacts] = field(default_factory=dict)
    waited: float = 0.0
    workers: int = 0

    def __post_init__(self) -> None:
        self.images = len(self.task.input_shape) == 3
        self.metric = metric_for(self.plan.metric, self.task.form.metric, self.task.name)
        self.cross_validated = self.plan.cross_validates(self.task)
        seed = derived_seed(self.plan.seed, "choice")
        self.splits = Splits.of(self.task, self.plan.validation, seed, self.cross_validated)
        self.learn = self.splits.task(self.task)

    @property
    def slowdown(self) -> float:
        """Seconds of the time limit for each second of processor time so far; 1 if wall time is not limited."""
        return 1.0 if self.meter is None else self.meter.read()

    @property
    def left(self) -> float:
        """Seconds left of a run with a time limit, without those for the test set, the report and the zoo."""
        best = next((result.name for result in ordered(self.results) if result.name in self.trained), None)
        scored = list(self.weights) or ([] if best is None else [best])
        passes = sum(
            run.pass_seconds * (TEST_PASSES if run.contender.encoder is None else 1)
            for name in scored
            for run in self.trained[name]
        )
        reserved = self.plan.reserved(self.slowdown) + self.plan.elapsed + len(self.task.test) * passes
        return (self.plan.seconds or 0.0) - reserved - self.stages.elapsed

    def validation(self, name: str) -> ValidationOutputs:
        """Outputs of a contender for samples that it did not learn from."""
        if name == ENSEMBLE:
            return averaged(self._validations(), self.weights)
        return merged([run.validation for run in self.trained[name]])

    def _validations(self) -> dict[str, ValidationOutputs]:
        return {name: self.validation(name) for name in self.trained}

    def selected(self) -> str | None:
        """Name of the selected contender; None if none could be trained.

        Without a time limit the best validation score wins. With one, see `selection.select_single`; the ensemble is
        selected if its loss is clearly lower than that of the selected single model. A metric that the user chose
        decides alone among single models.
        """
        if not self.trained:
            return None
        singles = [result for result in ordered(self.results) if result.name != ENSEMBLE]
        if not self.plan.focused:
            return singles[0].name
        usual = self.metric.name == self.task.form.metric
        single = select_single(self._validations()) if usual else singles[0].name
        if self.weights and clearly_better(self.validation(ENSEMBLE), self.validation(single)):
            return ENSEMBLE if usual or self.lead(ENSEMBLE, single)[0] > 0 else single
        return single

    def lead(self, first: str, second: str) -> Margin:
        """How much better one contender is than another on the held-out samples of both, with a 95 % interval."""
        ours, theirs = self.validation(first), self.validation(second)
        if self.metric.name == self.task.form.metric:
            return lead(ours, theirs)
        rows = common_rows(ours, theirs)
        (outputs, targets), (others, _) = (self._in_units(item.on(rows)) for item in (ours, theirs))
        return metric_difference(self.metric, outputs, others, targets)

    def contenders_of(self, name: str) -> list[Contender]:
        """The contender of a result, or those in the ensemble."""
        return [self.trained[inner][0].contender for inner in (self.weights if name == ENSEMBLE else [name])]

    def add_ensemble(self) -> Work[None]:
        """Add the average of the best few models as a contender, if the selection takes more than one."""
        alike = {
            name: self.validation(name)
            for name, runs in self.trained.items()
            if runs[0].contender.task.input_shape == self.task.input_shape and runs[0].contender.reads_target
        }
        weights = greedy_weights(alike) if len(alike) > 1 else {}
        if len(weights) < 2:
            return
        self.weights = weights
        members = {result.name: result for result in self.results if result.name in weights}
        scores = self.validation(ENSEMBLE).scores()
        shares = sorted(weights.items(), key=lambda item: -item[1])
        title = f"ensemble of {', '.join(f'{members[name].title} ({share:.0%})' for name, share in shares)}"
        result = Result(
            name=ENSEMBLE, title=title, kind=ENSEMBLE, loss=scores.loss, metric=self.metric.name,
            validation=self._metric_of(self.validation(ENSEMBLE)),
            parameters=sum(member.parameters for member in members.values()),
            multiply_adds=sum(member.multiply_adds for member in members.values()),
            seconds=sum(member.seconds for member in members.values()),
            samples=min((member.samples or 0) for member in members.values()), settings={"weights": weights},
        )  # fmt: skip
        self.results.append(result)
        yield Note(f"{title}: {result.validation:.4f} on validation data")

    def learned_all(self, runs: Sequence[Trained]) -> bool:
        """Whether the models of a contender together learned from all training data, so that no training is left."""
        return runs[0].contender.cross_validated or len(runs) == len(self.splits) > 1

    def average(self, runs: Sequence[Trained]) -> Solved:
        """The model of one training, or the average of the models of several."""
        if len(runs) == 1:
            return runs[0].solved
        scores, seconds = (
            merged([run.validation for run in runs]).scores(),
            sum(r.solved.trials[0].seconds for r in runs),
        )
        return combined([Member(run.solved, 1 / len(runs)) for run in runs], scores, seconds)

    def temperature(self, name: str) -> float:
        """Temperature of a contender's class scores, fitted on held-out samples; 1 if these are too few."""
        return self.validation(name).temperature()

    def margins(self, chosen: str) -> dict[str, Margin]:
        """Lead of the selected contender over the best other and over the best simple model, with 95 % intervals."""
        others = [result for result in ordered(self.results) if result.name != chosen]
        simple = [result for result in others if result.kind == "simple"][:1]
        return {name: self.lead(chosen, name) for name in sorted({result.name for result in (*others[:1], *simple)})}

    def judge(self, contender: Contender, members: int = 1, most_members: int = 1) -> Work[None]:
        """Train a contender and score it on held-out samples; if it cannot run, its result holds the reason.

        Args:
            contender: what to train.
            members: number of networks, each trained on another split, that are averaged.
            most_members: if above 1, as many networks as the time allows for, up to this number.
        """
        before = self.stages.elapsed
        if self.plan.focused:
            contender = replace(contender, budget=self.plan.seconds)
        try:
            if contender.domain is not None:
                contender = yield from self._searched(contender, contender.domain)
            if contender.networks:
                contender = yield from self._sized(contender, most_members)
                yield from self._forecast(contender)
            runs = yield from self._train_members(
                contender, max(members, contender.sized.members if contender.sized else 1)
            )
        except NearkinError as error:
            yield Caution(f"{contender.title} was left out: {error}")
            refused = Result(name=contender.name, title=contender.title, kind=contender.kind, refused=str(error))
            self.results.append(refused)
            return
        self.trained[contender.name] = runs
        solved, settings = self.average(runs), dict(runs[0].settings)
        if len(runs) > 1:
            settings["networks"] = len(runs)
            contender = replace(contender, title=f"average of {len(runs)} networks: {contender.title}")
        whole = None if self.plan.focused else contender.whole_of(self.task)
        result = self._scored(result_of(contender, solved, settings, whole, self.stages.elapsed - before), solved)
        if (known := self.forecasts.get(contender.name)) and contender.sized is not None:
            history = runs[0].solved.trials[0].history
            result = replace(result, forecast=compared(known, contender.sized.recipe, history))
        self.results.append(result)
        yield Note(
            f"{result.title}: {result.validation:.4f} on validation data, {result.parameters:,} parameters, "
            f"{result.seconds:.1f} s"
        )

    def _forecast(self, contender: Contender) -> Work[None]:
        """Forecast a fine-tuning from a new head before its time is spent, unless time is short."""
        source, sized = contender.source, contender.sized
        if source is None or sized is None or contender.pretrained or self.plan.hurried:
            return
        work = lambda _: forecast_finetuning(contender.task, source, sized.recipe, self.recorded)  # noqa: E731
        inputs = {**contender.facts(), "runs": len(self.recorded)}
        done = yield from self.stages.stage("forecast", inputs, work, key=f"forecast-{contender.name}")
        self.forecasts[contender.name] = done.read(ForecastFacts)

    def _scored(self, result: Result, solved: Solved) -> Result:
        """The result with its scores by the chosen metric."""
        if self.metric.name == self.task.form.metric:
            return replace(result, metric=self.metric.name)
        test = None if result.test is None else metric_on_test(self.task, solved, self.metric)
        return replace(
            result, metric=self.metric.name, validation=self._metric_of(self.validation(result.name)), test=test
        )

    def _metric_of(self, validation: ValidationOutputs) -> float:
        """The chosen metric on held-out samples."""
        if self.metric.name == self.task.form.metric:
            return validation.scores().metric
        return self.metric.compute(*self._in_units(validation))

    def _in_units(self, validation: ValidationOutputs) -> tuple[Tensor, Tensor]:
        """Logits and classes, or predicted and true values in the units of the data."""
        if validation.classes:
            return validation.outputs, validation.targets
        back = self.task.train.target_scaling.inverse
        return back(validation.means.clone()), back(validation.targets.clone())

    def _train_members(self, contender: Contender, members: int) -> Work[list[Trained]]:
        """Train one model, or several networks on the splits in turn while time is left."""
        runs: list[Trained] = []
        for number in range(members):
            if runs and members < len(self.splits) and self.plan.focused and self.left <= 0:
                yield Note(f"{contender.title}: no time is left for more than {len(runs)} of {members} networks")
                break
            one = contender
            if number:
                task = self.splits.task(contender.whole_of(self.task), number)
                one = replace(contender, task=task, seed=derived_seed(contender.seed, "member", number))
            state = yield from self.train(one, f"training: {contender.title}", number)
            runs.append(trained_from(state, one, self.splits.rows(number) if one.rows is None else one.rows))
        return runs

    def train(self, contender: Contender, stage: str, number: int = 0) -> Work[State]:
        """State of the training of a contender, or of its network of this number; stored and read again."""
        work = lambda start: train_contender(contender, start, self.plan.device)  # noqa: E731
        inputs = contender.facts() | ({"member": number} if number else {})
        return (yield from self.stages.stage(stage, inputs, work, key=f"train-{contender.name}"))

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

    def _sized(self, contender: Contender, most_members: int = 1) -> Work[Contender]:
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
                sized = with_time_limit(
                    sized.network, recipe, task, contender.seconds, count, most, most_members, contender.pretrained
                )
            return State({}, sized.to_dict())

        inputs = {
            "data": task.fingerprint(), "networks": list(contender.networks),
            "seconds": contender.budget or contender.seconds,
            "usual": contender.usual, "recipe": recipe.to_dict(), "fewest": fewest, "focused": self.plan.focused,
        }  # fmt: skip
        done = yield from self.stages.stage(f"training: {contender.title}", inputs, work, key=f"pace-{contender.name}")
        sized = done.read(SizedNetwork)
        title = made_title(sized.network) if contender.name in HAND_MADE else contender.title
        return replace(contender, sized=sized, title=title)
