"""Prediction of fine-tuning runs with other recipes by `short-finetune`, on the smallest network."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin.core.rng import derived_seed
from nearkin.distance.short_finetune import SCHEDULE, FinetuneSchedule, short_finetune_loss
from prediction_score import GROUPS, SCRATCH, Array, Column, areas, correlations, spearman
from prediction_tasks import NAMES, Parts
from prediction_truth import Run, Stack, all_parts, sources, truth

NETWORK, SEED = "mlp", 0
RECIPES = {
    "SGD, 60 steps at 0.01": Run(rate=0.01, optimiser="sgd"),
    "Adam, 60 steps at 3e-4": Run(rate=3e-4),
    "Adam, 200 steps at 1e-3": Run(grid=(0, 8, 25, 60, 100, 150, 200)),
}


def recipes(cache: Path) -> dict[str, Any]:
    """Spearman correlation with the area under each recipe's loss: LogME, `kin`, and `kin` with its learning rate."""
    data = all_parts(SEED)
    stack = sources(cache, NETWORK, SEED, data)
    columns = [Column(NETWORK, SEED, target) for target in range(len(NAMES))]
    kept = [torch.load(cache / "measures" / f"{NETWORK}-{SEED}-{target}.pt") for target in range(len(NAMES))]
    results = {}
    for name, run in RECIPES.items():
        replicas = [areas(curves, run) for curves in truth(cache, NETWORK, SEED, data, run, name)]
        middle = [values.mean(0) for values in replicas]
        measures = {
            "logme": [row["logme"]["value"].numpy() for row in kept],
            "kin": [
                at_pace(stack, task_data, column, SCHEDULE) for task_data, column in zip(data, columns, strict=True)
            ],
        }
        if run.optimiser == "adam":
            pace = FinetuneSchedule(learning_rate=run.rate * run.steps / SCHEDULE.steps)
            measures["kin, its pace"] = [
                at_pace(stack, task_data, column, pace) for task_data, column in zip(data, columns, strict=True)
            ]
        results[name] = {
            measure: {group: round(float(correlations(columns, values, middle, group).mean()), 4) for group in GROUPS}
            for measure, values in measures.items()
        }
        results[name]["repeat"] = {group: repeat(columns, replicas, group) for group in GROUPS}
    return results


def repeat(columns: list[Column], replicas: list[Array], group: str) -> float:
    pairs = [(values[:, column.rows(group)]) for column, values in zip(columns, replicas, strict=True)]
    return round(float(np.mean([spearman(first, second) for first, second in pairs])), 4)


def at_pace(stack: Stack, task_data: Parts, column: Column, pace: FinetuneSchedule) -> Array:
    """`kin` of every source with this schedule."""
    seed, (x, y) = derived_seed(column.seed, "kin", column.target), task_data.target
    rows = range(SCRATCH + 1)
    return np.array(
        [
            short_finetune_loss(stack.row(row), x, y, num_outputs=task_data.num_outputs, schedule=pace, seed=seed)
            for row in rows
        ]
    )
