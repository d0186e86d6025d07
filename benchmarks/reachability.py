"""Which task can be reached from which? Predicted and measured steps of fine-tuning between nine tasks.

    python benchmarks/reachability.py [--only runs,static,page]

The experiment of figure 2 of Achille, Mbeng & Soatto (2019) on small images. Every network is fine-tuned on every
target; the steps are forecast from what is measured before, without any run on the target's data set. The seeds are not
those of the shipped runs, and nothing was chosen on these results. Figures go to `benchmarks/reachability.json` after
every stage, the page to `docs/figures/reachability.md`.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import nn

import nearkin as nk
from nearkin.core.rng import derived_seed
from nearkin.distance.forecasting.curve import RunCurve
from nearkin.distance.forecasting.forecasts import LIKELY, UNLIKELY, PlannedRun, runs_for
from nearkin.distance.forecasting.model import TimeModel
from nearkin.distance.forecasting.past_runs import Goal, RecordedRun
from nearkin.distance.forecasting.prior import shipped_runs
from nearkin.distance.forecasting.signals import measure_signals
from nearkin.distance.information.static_distance import StaticOptions, TaskSamples, fitted_complexity, two_heads
from nearkin.distance.reachability.descent_noise import gradient_noise
from nearkin.distance.source_on_target import SourceOnTarget
from nearkin.nets.heads import SCALE_SAMPLES, with_start
from nearkin.nets.recipe import Recipe
from nearkin.nets.training_loop import fit
from nearkin.tasks import derive
from nearkin.tasks.task import Task
from prediction_tasks import SHAPE, Name, pools
from reachability_page import write_page
from results import keep

TASKS = {
    "digits": Name("digits", ""),
    "MNIST": Name("mnist", ""),
    "MNIST parity": Name("mnist", "parity"),
    "Fashion": Name("fashion", ""),
    "inverted Fashion": Name("fashion", "invert"),
    "CIFAR-10": Name("cifar10", ""),
    "CIFAR-10 artificial": Name("cifar10", "classes=airplane,automobile,ship,truck"),
    "CIFAR-10 natural": Name("cifar10", "classes=bird,cat,deer,dog,frog,horse"),
    "CIFAR-100 coarse": Name("cifar100", ""),
}
UNTRAINED = "untrained"
NETWORK = "mlp?hidden=128-64"
SEEDS = (2, 3)  # of data, weights and batches; shipped runs have seed 0, their benchmark seed 1
SAMPLES = {"source": 1000, "target": 400}
SOURCE = Recipe(steps=300, learning_rate=2e-3)
PLAN = PlannedRun(steps=400)
GOALS = (Goal(), Goal(0.1))
NOISE_SAMPLES = 200
STATIC = StaticOptions()
ORDERS = (
    "forecast", "forecast with runs", "short fine-tuning loss", "LogME", "complexity of the target", "static distance",
    "Kramers form",
)  # fmt: skip
Row = dict[str, Any]


@cache
def data(name: str, role: str, seed: int) -> Task:
    """Samples of a task as a source or as a target; the two never share a sample."""
    return derive.limited(pools(TASKS[name])[role], SAMPLES[role], seed=seed)


@cache
def networks(seed: int) -> dict[str, nn.Module]:
    """The trained network of every task, and an untrained one, all from the same initial weights."""
    models = {}
    for name in TASKS:
        task = data(name, "source", seed)
        model = nk.build(NETWORK, SHAPE, task.num_outputs, seed)
        fit(model, task, SOURCE, seed=derived_seed(seed, "source", name))
        models[name] = model.eval()
    return {**models, UNTRAINED: nk.build(NETWORK, SHAPE, 10, seed).eval()}


def fine_tuned(model: nn.Module, source: str, target: str, seed: int) -> tuple[RecordedRun, float]:
    """A run up to the budget with what was measured before it, and D of SGD at its first weights."""
    task = data(target, "target", seed)
    signals = measure_signals(SourceOnTarget(model, task, task.form), PLAN.batch_size)
    own = derived_seed(seed, "fine-tuning", source, target)
    start = with_start(model, task.num_outputs, own, task.train.fixed_subset(SCALE_SAMPLES).x)
    noise = gradient_noise(start.eval(), *task.train.fixed_subset(NOISE_SAMPLES))
    recipe = Recipe(
        steps=int(PLAN.steps or 0), batch_size=PLAN.batch_size, optimiser=PLAN.optimiser, learning_rate=PLAN.rate,
        schedule="constant", warmup=0.0,
    )  # fmt: skip
    history = fit(start, task, recipe, seed=own).history
    record = RecordedRun(
        source, target, NETWORK, PLAN.optimiser, PLAN.batch_size, signals, RunCurve.of(history, recipe)
    )
    return record, noise.diffusion(PLAN.rate, PLAN.batch_size)


def static_distances(models: dict[str, nn.Module], seed: int) -> dict[tuple[str, str], float]:
    """d(source → target) of all pairs, as the measure `complexity` computes it."""
    distances = {}
    for source in TASKS:
        model, own = models[source], samples(source, "source", seed)
        alone = fitted_complexity(model, [own], STATIC).complexity
        for target in TASKS:
            wide, both = two_heads(
                model, own, samples(target, "target", seed), data(target, "target", seed).num_outputs
            )
            distances[source, target] = fitted_complexity(wide, both, STATIC).complexity - alone
    return distances


def own_complexities(seed: int) -> dict[str, float]:
    """C of every target alone, after the same fit from the untrained network."""
    return {
        target: fitted_complexity(
            nk.build(NETWORK, SHAPE, data(target, "target", seed).num_outputs, seed),
            [samples(target, "target", seed)],
            STATIC,
        ).complexity
        for target in TASKS
    }


def samples(name: str, role: str, seed: int) -> TaskSamples:
    """Samples for a complexity."""
    return TaskSamples(*data(name, role, seed).train.fixed_subset(STATIC.limit))


def data_set(target: str) -> str:
    """The data set of a task, by the name that this page or a shipped run has for it."""
    return TASKS[target].data if target in TASKS else target.partition("?")[0]


def time_models(runs: Sequence[RecordedRun]) -> dict[tuple[str, Goal], TimeModel]:
    """Models of the shipped runs and of some own runs, without the runs on each data set, by data set and goal."""
    models: dict[tuple[str, Goal], TimeModel] = {}
    for name in {task.data for task in TASKS.values()}:
        own, shipped = ([run for run in part if data_set(run.target) != name] for part in (runs, shipped_runs()))
        same, others = runs_for(PLAN, NETWORK, own, shipped)
        models |= {(name, goal): TimeModel.of(others, same, goal) for goal in GOALS}
    return models


def predicted(model: TimeModel, run: RecordedRun) -> Row:
    """Median, 80 % interval and probability within the budget, as `forecast_run` has them."""
    found = model.forecast(run.signals)
    low, middle, high = (math.exp(found.quantile(share)) / PLAN.rate for share in (0.1, 0.5, 0.9))
    return {"steps": brief(middle), "low": brief(low), "high": brief(high) if math.isfinite(high) else None,
            "probability": brief(found.probability(math.log((PLAN.steps or 0.0) * PLAN.rate)))}  # fmt: skip


def brief(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def rows_of(seed: int) -> list[Row]:
    """All runs of a seed with their forecasts."""
    found = [fine_tuned(model, source, target, seed) for source, model in networks(seed).items() for target in TASKS]
    runs, rows = [run for run, _ in found], []
    models = {"forecast": time_models([]), "forecast with runs": time_models(runs)}
    for run, diffusion in found:
        goals: Row = {}
        for goal in GOALS:
            log_clock, reached = run.log_time(goal)
            goals[f"{goal.share:g}"] = {
                **{name: predicted(by_data[data_set(run.target), goal], run) for name, by_data in models.items()},
                "measured": brief(math.exp(log_clock) / PLAN.rate) if reached else None,
            }
        rows.append({
            "seed": seed, "source": run.source, "target": run.target, "diffusion": brief(diffusion),
            "short fine-tuning loss": brief(run.signals.distance / run.signals.constant_loss),
            "LogME": brief(run.signals.complexity or 0.0), "goals": goals,
        })  # fmt: skip
    return rows


def add_static(rows: Sequence[Row], seed: int) -> None:
    """Add static distances, complexities of targets and the Kramers form to the rows of a seed."""
    distances, own = static_distances(networks(seed), seed), own_complexities(seed)
    for row in rows:
        if row["seed"] == seed and row["source"] in TASKS:
            static = distances[row["source"], row["target"]]
            row |= {"static distance": brief(static), "Kramers form": brief(static / row["diffusion"]),
                    "complexity of the target": brief(own[row["target"]])}  # fmt: skip


def order_value(row: Row, goal: str, name: str) -> float:
    """What a method orders pairs by: predicted steps, or its own value."""
    return float(row["goals"][goal][name]["steps"] if name in row["goals"][goal] else row[name])


def spearman(rows: Sequence[Row], goal: str, name: str) -> float:
    """Rank correlation with the measured steps; runs that did not reach the goal share the last rank."""
    times = [row["goals"][goal]["measured"] or math.inf for row in rows]
    values = [order_value(row, goal, name) for row in rows]
    if min(len(set(times)), len(set(values))) < 2:
        return math.nan
    return float(stats.spearmanr(stats.rankdata(times), values).statistic)


def correlations(rows: Sequence[Row], goal: str, name: str) -> Row:
    """Rank correlations over all pairs of different tasks, by seed, and the mean of those within one target."""
    known = [row for row in rows if name in {**row, **row["goals"][goal]}]
    pairs = [row for row in known if row["source"] not in (row["target"], UNTRAINED)]
    seeds = sorted({row["seed"] for row in pairs})
    groups = [[row for row in pairs if (row["seed"], row["target"]) == (seed, target)]
              for seed in seeds for target in TASKS]  # fmt: skip
    within = [value for group in groups if not math.isnan(value := spearman(group, goal, name))]
    return {
        "all": brief(spearman(pairs, goal, name)),
        "by seed": [brief(spearman([row for row in pairs if row["seed"] == seed], goal, name)) for seed in seeds],
        "runs": len(pairs),
        "within a target": brief(statistics.fmean(within)) if within else None,
        "targets": len(within),
    }


def judged(rows: Sequence[Row], goal: str, name: str) -> Row:
    """How good forecasts are: errors, intervals, and runs that do not reach the goal."""
    budget, pairs = PLAN.steps or 0.0, [(row["goals"][goal][name], row["goals"][goal]["measured"]) for row in rows]
    inside = [
        found["low"] <= measured <= (found["high"] or math.inf) if measured else (found["high"] or math.inf) > budget
        for found, measured in pairs
    ]
    ratios = [math.log(found["steps"] / measured) for found, measured in pairs if measured]
    chances = [[found["probability"] for found, measured in pairs if bool(measured) is side] for side in (True, False)]
    wins = [(high > low) + (high == low) / 2 for high in chances[0] for low in chances[1]]
    return {
        "runs": len(pairs), "reached": len(ratios), "inside": sum(inside),
        "reached and inside": sum(ok and measured is not None for ok, (_, measured) in zip(inside, pairs, strict=True)),
        "error": brief(statistics.fmean(map(abs, ratios))) if ratios else None,
        "ratio": brief(math.exp(statistics.fmean(ratios))) if ratios else None,
        "unreachable": {f"{limit:g}": [sum(chance < limit for chance in part) for part in reversed(chances)]
                        for limit in (UNLIKELY, LIKELY)},
        "auroc": brief(statistics.fmean(wins)) if wins else None,
    }  # fmt: skip


def summary(rows: Sequence[Row]) -> Row:
    """Scores of every goal."""
    seeds = sorted({row["seed"] for row in rows})
    known = {name for row in rows for name in (*row, *ORDERS[:2])}
    return {
        goal: {
            "forecasts": {name: judged(rows, goal, name) for name in ORDERS[:2]},
            "by seed": [judged([row for row in rows if row["seed"] == seed], goal, ORDERS[0]) for seed in seeds],
            "by target": {
                name: judged([row for row in rows if row["target"] == name], goal, ORDERS[0]) for name in TASKS
            },
            "correlations": {name: correlations(rows, goal, name) for name in ORDERS if name in known},
        }
        for goal in (f"{goal.share:g}" for goal in GOALS)
    }


def save(rows: list[Row], seconds: float) -> None:
    """Store rows, their scores and the settings."""
    settings = {"tasks": list(TASKS), "network": NETWORK, "seeds": sorted({row["seed"] for row in rows}),
                "budget": PLAN.steps, "samples": SAMPLES, "seconds": round(seconds)}  # fmt: skip
    keep(__file__, {**settings, "summary": summary(rows), "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="runs,static,page", help="stages: runs, static, page")
    stages = parser.parse_args().only.split(",")
    torch.set_num_threads(1)
    file, rows, spent = Path(__file__).with_suffix(".json"), [], 0.0
    if "runs" in stages:
        for seed in SEEDS:
            rows += rows_of(seed)
            print(f"seed {seed}: {len(rows)} runs after {time.process_time():.0f} s", flush=True)
            save(rows, time.process_time())
    else:
        stored = json.loads(file.read_text())
        rows, spent = stored["rows"], stored["seconds"]
    if "static" in stages:
        for seed in SEEDS:
            add_static(rows, seed)
            print(f"seed {seed}: static distances after {time.process_time():.0f} s", flush=True)
            save(rows, spent + time.process_time())
    if "page" in stages:
        save(rows, spent + time.process_time() if "runs" in stages or "static" in stages else spent)
        write_page(json.loads(file.read_text()))


if __name__ == "__main__":
    main()
