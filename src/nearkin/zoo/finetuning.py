"""Fine-tune a solved task's network on a target, and record the run."""

from dataclasses import dataclass

from nearkin.core.events import Work
from nearkin.core.rng import derived_seed
from nearkin.distance.forecasting.forecasts import PlannedRun
from nearkin.distance.forecasting.signals import Signals
from nearkin.distance.pair import Pair
from nearkin.nets.heads import SCALE_SAMPLES, with_start
from nearkin.nets.recipe import Recipe
from nearkin.nets.training_loop import Fit, fit
from nearkin.zoo.recorded_runs import record_run
from nearkin.zoo.solved_tasks import SolvedTasks

VALIDATION = 0.2
NEVER = 2.0  # a metric that stops no run, so that every epoch is validated


@dataclass(frozen=True)
class FinetunedRun:
    """A fine-tuning run and what it reached.

    Attributes:
        fit: weights, history and scores.
        recipe: of the run.
    """

    fit: Fit
    recipe: Recipe


def finetune_network(
    zoo: SolvedTasks, pair: Pair, plan: PlannedRun, steps: int, signals: Signals, seed: int, *, validated: bool = False
) -> Work[FinetunedRun]:
    """Fine-tune all weights of a source's network at a constant learning rate, and record the run in the zoo.

    Args:
        zoo: the zoo, which has the source.
        pair: source and target.
        plan: optimiser, learning rate and batch size.
        steps: number of steps.
        signals: what was measured before.
        seed: of the new head and the batches.
        validated: keep a fifth of the training samples to measure the metric after every epoch.
    """
    task, source = pair.task, pair.source
    x = task.train.fixed_subset(SCALE_SAMPLES).x
    model = with_start(pair.view.model, task.num_outputs, derived_seed(seed, "head"), x)
    recipe = Recipe(
        steps=steps, batch_size=plan.batch_size, optimiser=plan.optimiser, learning_rate=plan.rate,
        schedule="constant", warmup=0.0, validation=VALIDATION, target=NEVER if validated else None,
    )  # fmt: skip
    done = yield from fit.work(model, task, recipe, seed=derived_seed(seed, "fine-tuning"), stage="fine-tuning")
    record_run(zoo, source.name, task, source.network, recipe, done.history, signals)
    return FinetunedRun(done, recipe)
