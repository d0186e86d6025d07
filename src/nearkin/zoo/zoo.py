"""Zoo: solved tasks in a folder or a shared zoo, and the long operations on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from nearkin.core.budget import Budget
from nearkin.core.device import device as chosen_device
from nearkin.core.errors import ZooError, require
from nearkin.core.events import Caution, Note, Work, operation
from nearkin.core.lazy import Lazy
from nearkin.distance.matrix import DistanceMatrix
from nearkin.distance.questions import DEFAULT_QUESTION, question_named
from nearkin.distance.ranking import Ranking
from nearkin.distance.registry import DEFAULT, STRUCTURE
from nearkin.nets.data_parallel import ALONE, DataParallel
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import default_network, path_of
from nearkin.nets.solved import Solved
from nearkin.nets.spec import NetworkSpec
from nearkin.nets.training_loop import Fit
from nearkin.nets.trusted_code import remember, trust_network
from nearkin.run.stages import StageCache
from nearkin.store.records import TaskRecord
from nearkin.tasks.task import Task
from nearkin.zoo.comparison import Comparison
from nearkin.zoo.near import MOST_PAIRED, compare_all, map_names, rank_by_question, rank_sources
from nearkin.zoo.recorded_runs import training_runs
from nearkin.zoo.solved_tasks import SolvedTasks
from nearkin.zoo.trials import TrialCache

if TYPE_CHECKING:
    from nearkin.distance.forecasting.forecasts import Forecast
    from nearkin.run.queued import QueueRunner
    from nearkin.run.runner import Runner
    from nearkin.search.networks.build import Skeleton
    from nearkin.zoo import adopt as adoption
    from nearkin.zoo import adopt_arguments as arguments
    from nearkin.zoo import best_cells, search_jobs, zoo_jobs, zoo_runner
    from nearkin.zoo import complexity as task_complexity
    from nearkin.zoo import connect as mode_connectivity
    from nearkin.zoo import forecast as finetuning_forecast
    from nearkin.zoo import interleaving as shared_architecture
    from nearkin.zoo import preprocess as preprocessing
    from nearkin.zoo import pull_model as pulling
    from nearkin.zoo import push_model as pushing
    from nearkin.zoo import search as architecture_search
    from nearkin.zoo import transfer as closed_form_transfer
else:  # they import packages that the other operations do not need
    adoption, arguments = Lazy("nearkin.zoo.adopt"), Lazy("nearkin.zoo.adopt_arguments")
    preprocessing = Lazy("nearkin.zoo.preprocess")
    pushing, pulling = Lazy("nearkin.zoo.push_model"), Lazy("nearkin.zoo.pull_model")
    architecture_search, closed_form_transfer = Lazy("nearkin.zoo.search"), Lazy("nearkin.zoo.transfer")
    finetuning_forecast = Lazy("nearkin.zoo.forecast")
    shared_architecture = Lazy("nearkin.zoo.interleaving")
    zoo_runner, zoo_jobs = Lazy("nearkin.zoo.zoo_runner"), Lazy("nearkin.zoo.zoo_jobs")
    search_jobs = Lazy("nearkin.zoo.search_jobs")
    mode_connectivity = Lazy("nearkin.zoo.connect")
    task_complexity = Lazy("nearkin.zoo.complexity")


class Zoo(SolvedTasks):
    """Solved tasks, stored in a folder or in a shared zoo.

    Args:
        path: the folder, or the address `postgresql://…` of a shared zoo.
        create: create the zoo if there is none.
        blobs: folder or URL of the blobs of a shared zoo; needed to create it.
        workers: number of workers over which trainings and distances are spread (default: all in this process).
        runner: starts the workers: local (processes), ray, ray://HOST:PORT or slurm. A runner of the caller's own does
            the jobs instead; the caller closes it.

    >>> import tempfile
    >>> from nearkin.tasks.sources import task
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Zoo(folder.name + "/zoo") as zoo:
    ...     record = zoo.add(task("digits?detect=0&limit=200", name="zero"), "mlp", trials=1)
    ...     zoo.names(), zoo.solved("zero").model()(torch.zeros(1, 1, 8, 8)).shape
    (['zero'], torch.Size([1, 2]))
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | Path = "nearkin-zoo",
        create: bool = True,
        *,
        blobs: str = "",
        workers: int = 1,
        runner: "Runner | str" = "local",
    ) -> None:
        require(workers >= 1, f"the number of workers must be 1 or more, got {workers}")
        super().__init__(path, create, blobs)
        self._given_runner, self._workers = runner, workers
        self._own_runner: QueueRunner | None = None
        self._alone = False

    def __enter__(self) -> "Zoo":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def runner(self) -> "Runner | None":
        """Who does jobs of operations, opened at its first use; None if this process does all."""
        kind = None if self._alone else self._given_runner
        if not isinstance(kind, str):
            return kind
        if self._own_runner is None and (self._workers > 1 or kind != "local") and self.catalogue.writable:
            self._own_runner = zoo_runner.open_runner(self, kind, self._workers)
        return self._own_runner

    @contextmanager
    def alone(self) -> Iterator[None]:
        """In the block this process does all work itself."""
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before

    def close(self) -> None:
        """Stop the workers and close the database; the end of a `with` block does it too."""
        if self._own_runner is not None:
            self._own_runner.close()
        self.catalogue.close()

    @operation
    def add(
        self,
        task: Task,
        network: str | Callable[..., torch.nn.Module] | None = None,
        *,
        trials: int = 3,
        recipe: Recipe | None = None,
        seed: int = 0,
        device: str = "auto",
        restart: bool = False,
        from_file: bool = False,
        parallel: DataParallel = ALONE,
    ) -> Work[TaskRecord]:
        """Train networks on a task and store both; the same call resumes an interrupted one, or finds it complete.

        Args:
            task: the task; its name must not be in use for another one.
            network: a network string, a class or function that can be imported, or None for one that suits the task.
            trials: independent trainings; trial t starts from the same weights for every task.
            recipe: of the training (default: one that suits the task's size).
            seed: of all random numbers.
            device: `auto`, `cpu` or `cuda`.
            restart: discard the trainings that an interrupted call left.
            from_file: the network string was read from a file: code that it names must be trusted already. A string
                of the caller's own is trusted (`nearkin.nets.trusted_code`).
            parallel: this process as the first of several; the others call `nearkin.zoo.trials.help_train`.
        """
        if isinstance(network, str) and not from_file:
            trust_network(network)
        self.catalogue.database.require_writable()  # before anything is trained
        known = self.record(task.name) if task.name in self else None
        require(trials >= 1, f"trials must be 1 or more, got {trials}")
        text = path_of(network) if callable(network) else network or default_network(task)
        spec = str(NetworkSpec.parse(text).anchored())
        recipe = recipe or Recipe.suited(task)
        cache = TrialCache.of(self.work, task, spec, recipe, seed, restart=restart, parallel=parallel)
        if known is not None and not restart and parallel.size == 1 and cache.made(known, trials):
            yield Note(f"'{task.name}' is in the zoo, from the same call: nothing was changed")
            cache.clear()
            return known
        self.catalogue.claimable(task.name)
        for line in task.notes:
            yield Note(line)
        for line in self.catalogue.cautions():
            yield Caution(line)
        if unused := task.constant_inputs():
            yield Caution(f"'{task.name}': {unused}")
        if self.runner is not None:
            named, missing = zoo_jobs.named_task(self, task), cache.unfinished(range(trials))
            yield from zoo_jobs.spread_trials(self.runner, cache, named, missing, trials, chosen_device(device))
        fits: list[Fit] = []
        for trial in range(trials):
            fits.append((yield from cache.trial(trial, trials, parallel.device(device))))
        solved = Solved(task.name, spec, task.facts(), seed, tuple(fits))
        runs = yield from training_runs(task, solved, recipe)
        record = yield from self.store(task, solved, recipe, runs)
        cache.clear()
        if warning := remember(spec):
            yield Caution(warning)
        return record

    @operation
    def adopt(
        self,
        name: str,
        model: torch.nn.Module | str | Path,
        *,
        weights: "str | Path | torch.nn.Module | Mapping[str, torch.Tensor] | None" = None,
        head: str | None = None,
        task: Task | str | None = None,
        preprocess: "Mapping[str, Any] | str | None" = None,
        licence: str = "",
        source: str = "",
        output: str | int = "",
        pool: str = "",
        from_file: bool = False,
    ) -> Work[TaskRecord]:
        """Store a trained model, without training.

        Args:
            name: of the model in the zoo.
            model: a module in memory, a network string `package.module:factory?option=value`, or a folder in the
                layout of the Hugging Face hub (`config.json` and safetensors).
            weights: a safetensors file, a file of `torch.save`, a folder, a state_dict, or a module with these weights;
                needed for a network string.
            head: name of the last linear layer (default: found), or `new` if the model returns features.
            task: that it was trained on, or the name of one in the zoo; with it the model takes part in all
                comparisons (default: only in `rank`).
            preprocess: of raw inputs, as `nearkin.zoo.preprocess.Preprocess`: size, mean, std, order, tokenizer, …
            licence: of the model; one that restricts use gives a warning.
            source: where it comes from.
            output: name or position of the output to use, if the model returns several.
            pool: of a sequence of outputs: `mean`, `first` or `max`.
            from_file: the network string was read from a file: code that it names must be trusted already.
        """
        arguments.require_texts(head=head or "", pool=pool, licence=licence, source=source)
        how = adoption.AdoptOptions(
            weights=arguments.weights_argument(weights), head=head,
            preprocess=preprocessing.Preprocess.of(preprocess), output=arguments.output_argument(output), pool=pool,
            licence=licence, source=source,
        )  # fmt: skip
        known = self.task(task) if isinstance(task, str) else arguments.task_argument(task)
        return adoption.adopt_model(self, name, arguments.model_argument(model), known, how, from_file)

    @operation
    def push(
        self, name: str, folder: str | Path, *, trial: int = 0, overwrite: bool = False, licence: str = ""
    ) -> "Work[pushing.PushedModel]":
        """Write a trained network to a folder in the layout of the Hugging Face hub; nothing is uploaded.

        Args:
            name: of a task or model of the zoo.
            folder: to write; it must be empty or absent.
            trial: which of its networks.
            overwrite: replace the files of a model in the folder; other files stay.
            licence: of the model (default: the stored one).
        """
        require(str(folder) != "", "got an empty folder, expected a path; name the folder to write")
        return pushing.push_model(self, name, folder, trial=trial, overwrite=overwrite, licence=licence)

    @operation
    def pull(
        self, folder: str | Path, name: str | None = None, *, task: Task | str | None = None, code: str = ""
    ) -> Work[TaskRecord]:
        """Store the model of a folder that `push` wrote, with the same weights; code of the folder is never run.

        Args:
            folder: the folder.
            name: of the model in the zoo (default: the name in the folder).
            task: that it was trained on, or the name of one in the zoo; with it the model takes part in all
                comparisons (default: only in `rank`, `transfer` and `predict`).
            code: module or `.py` file of its class on this machine, if the folder names another one; it is trusted.
        """
        known = self.task(task) if isinstance(task, str) else task
        return pulling.pull_model(self, folder, name, known, code)

    @operation
    def near(
        self,
        target: Task | str,
        measure: str | None = None,
        *,
        question: str | None = None,
        top: int | None = None,
        device: str = "auto",
        how: Comparison | None = None,
        **options: Any,
    ) -> Work[Ranking]:
        """Rank the tasks of the zoo by their distance to a target, nearest first.

        Args:
            target: a new task, or the name of one in the zoo.
            measure: a name of `nearkin.distance.registry`; or give a question.
            question: a name of `nearkin.distance.questions`, whose measures are used: `final` for the lowest error
                after fine-tuning (default), `speed` for the fastest fall of the loss.
            top: number of tasks (default: all).
            device: where missing networks are trained.
            how: replaces measure, device and options.
            **options: of `nearkin.zoo.comparison.Comparison` (samples, trials, epsilon, screen) and of the measure.
        """
        require(
            question is None or measure is None,
            f"got the measure {measure} and the question {question}, expected one of them; leave one out",
        )
        asked = question is not None or (measure is None and how is None)
        how = how or Comparison.of(measure or DEFAULT, device=chosen_device(device), **options)
        yield from self._cautions()
        if asked:
            chosen = question_named(question or DEFAULT_QUESTION)
            return (yield from rank_by_question(self, target, chosen, how, runner=self.runner)).top(top)
        return (yield from rank_sources(self, target, how, runner=self.runner)).top(top)

    @operation
    def matrix(
        self,
        names: Sequence[str] | None = None,
        measure: str = STRUCTURE,
        *,
        device: str = "auto",
        how: Comparison | None = None,
        **options: Any,
    ) -> Work[DistanceMatrix]:
        """Distances of all pairs of tasks (default: all of the zoo); the other arguments are those of `near`.

        In a zoo of more than `MOST_PAIRED` tasks names are needed.
        """
        how = how or Comparison.of(measure, device=chosen_device(device), **options)
        yield from self._cautions()
        require(
            bool(names) or len(self) <= MOST_PAIRED,
            f"the zoo has {len(self)} tasks, whose pairs are too many to measure, expected at most {MOST_PAIRED}; name "
            f"the tasks, or draw a sample with nearkin map",
            ZooError,
        )
        chosen = list(names) if names else [record.name for record in self.records()]
        return (yield from compare_all(self, chosen, how, self.runner))

    @operation
    def map_names(self) -> Work[list[str]]:
        """Names of the tasks that a map shows: all, or in a large zoo a sample of tasks far from each other."""
        return (yield from map_names(self))

    def _cautions(self) -> Work[None]:
        for line in self.catalogue.cautions():
            yield Caution(line)
        if not self.catalogue.writable:
            yield Caution(f"the zoo {self.address} is read-only: measured values are not stored")

    @operation
    def search_cells(
        self, name: str, skeleton: "Skeleton", budget: Budget, **options: Any
    ) -> "Work[best_cells.BestCells]":
        """Search the best cells for a task and store them; the same call resumes an interrupted one.

        Args:
            name: of the task.
            skeleton: macro-architecture in which cells are compared.
            budget: of the search.
            **options: of `nearkin.zoo.search.search_cells`: method, options of the method, proxy, seed, restart.
        """
        task = self.task(name)
        jobs = search_jobs.EvaluationJobs.of(self, self.runner, task) if self.runner else None
        cells = yield from architecture_search.search_cells(task, self.work, skeleton, budget, jobs=jobs, **options)
        self.keep_cells(name, cells)
        return cells

    @operation
    def search(
        self,
        target: Task | str,
        how: "architecture_search.Search",
        *,
        seed: int = 0,
        device: str = "auto",
        restart: bool = False,
    ) -> "Work[architecture_search.Architecture]":
        """Search an architecture for a new task or one of the zoo; the same call resumes an interrupted one."""
        return architecture_search.search_architecture(
            self, target, how, seed=seed, device=chosen_device(device), restart=restart, runner=self.runner
        )

    @operation
    def interleave(
        self,
        targets: Sequence[Task | str],
        num_rounds: int = 2,
        *,
        how: "shared_architecture.Interleaving | None" = None,
        seed: int = 0,
        device: str = "auto",
        restart: bool = False,
        **options: Any,
    ) -> "Work[shared_architecture.InterleavedSearch]":
        """Search one architecture for several tasks, and train it for each; the same call resumes an interrupted one.

        Args:
            targets: new tasks, or names of tasks in the zoo; two or more, in the order of their turns.
            num_rounds: turns of every task in a pass.
            how: replaces num_rounds and options.
            seed: of all random numbers.
            device: where the final networks are trained.
            restart: discard the unfinished work of an interrupted call.
            **options: of `nearkin.zoo.interleaving.Interleaving`: method, space, order, measure, budget, options,
                evaluation.
        """
        how = how or shared_architecture.Interleaving(num_rounds=num_rounds, **options)
        return shared_architecture.interleave_tasks(
            self, targets, how, seed=seed, device=chosen_device(device), restart=restart, runner=self.runner
        )

    @operation
    def transfer(
        self,
        source: str,
        target: Task | str,
        shots: int | None = None,
        seed: int = 0,
        *,
        how: "closed_form_transfer.TransferOptions | None" = None,
        stages: StageCache | None = None,
        **options: Any,
    ) -> "Work[closed_form_transfer.Transfer]":
        """Learn a target from few labels in closed form, with the network of a solved task, and compare with baselines.

        Args:
            source: name of the solved task.
            target: a new task, or the name of one in the zoo.
            shots: labels per class, for values samples in all (default: all, but at most 2,000).
            seed: of the drawn labels.
            how: replaces shots and options.
            stages: cache of finished stages.
            **options: of `nearkin.zoo.transfer.TransferOptions`: method, weights, how, trial, samples, steps,
                baselines.
        """
        how = how or closed_form_transfer.TransferOptions(shots=shots, **options)
        return closed_form_transfer.transfer_network(self, source, target, how, seed, stages)

    @operation
    def complexity(
        self,
        task: Task | str,
        beta: float = 1.0,
        *,
        seed: int = 0,
        device: str = "auto",
        how: "task_complexity.ComplexityOptions | None" = None,
        **options: Any,
    ) -> "Work[task_complexity.TaskComplexity]":
        """Measure the complexity of a task and its structure function; a network for a new task is trained first.

        Args:
            task: a new task, or the name of one in the zoo, whose trained network is used.
            beta: price of one nat of information.
            seed: of the training of a new task.
            device: where a network for a new task is trained.
            how: replaces beta and options.
            **options: of `nearkin.zoo.complexity.ComplexityOptions`: network, samples, steps, curvature, given, refit,
                decay, trial.
        """
        how = how or task_complexity.ComplexityOptions(beta=beta, **options)
        return task_complexity.measure_complexity(self, task, how, seed, chosen_device(device))

    @operation
    def forecast(
        self,
        source: str,
        target: Task | str,
        to: str = "",
        *,
        how: "finetuning_forecast.ForecastOptions | None" = None,
    ) -> "Work[Forecast]":
        """Forecast what fine-tuning the network of a solved task on a target will cost.

        Args:
            source: name of the solved task.
            target: a new task, or the name of one in the zoo.
            to: what to reach, such as `loss=0.3` or `accuracy=0.9` (default: a fifth of a constant answer's loss).
            how: replaces `to`; also optimiser, learning rate, batch size and budget. Its `check` has no effect on the
                result, but records the run; `zoo.forecast.forecast_finetuning` also returns the run.
        """
        how = how or finetuning_forecast.ForecastOptions(to=to)
        return (yield from finetuning_forecast.forecast_finetuning.work(self, source, target, how)).forecast

    @operation
    def connect(
        self,
        start: str,
        end: str | None = None,
        *,
        how: "mode_connectivity.ConnectOptions | None" = None,
        **options: Any,
    ) -> "Work[mode_connectivity.Connection]":
        """Find a path of low loss between two solutions; the same call resumes an interrupted one.

        Args:
            start: name of a solved task.
            end: name of another one with the same network (default: the same task, for two of its trials).
            how: replaces the options.
            **options: of `nearkin.zoo.connect.ConnectOptions`: trials, data, align, samples, images, iterations.
        """
        how = how or mode_connectivity.ConnectOptions(**options)
        return mode_connectivity.connect_solutions(self, start, start if end is None else end, how)
