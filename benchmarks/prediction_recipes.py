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
    """Spearman with the area under each recipe's loss: LogME, `kin`, and `kin` at the pace that covers its way."""
    data = all_parts(SEED)
    stack = sources(cache, NETWORK, SEED, data)
    columns = [Column(NETWORK, SEED, target) for target in range(len(NAMES))]
    kept = [torch.load(cache / "measures" / f"{NETWORK}-{SEED}-{target}.pt") for target in range(len(NAMES))]
    found = {}
    for name, run in RECIPES.items():
        replicas = [areas(curves, run) for curves in truth(cache, NETWORK, SEED, data, run, name)]
        middle = [values.mean(0) for values in replicas]
        measures = {
            "logme": [one["logme"]["value"].numpy() for one in kept],
            "kin": [at_pace(stack, part, column, SCHEDULE) for part, column in zip(data, columns, strict=True)],
        }
        if run.optimiser == "adam":
            pace = FinetuneSchedule(learning_rate=run.rate * run.steps / SCHEDULE.steps)
            measures["kin, its pace"] = [
                at_pace(stack, part, column, pace) for part, column in zip(data, columns, strict=True)
            ]
        found[name] = {
            measure: {group: round(float(correlations(columns, values, middle, group).mean()), 4) for group in GROUPS}
            for measure, values in measures.items()
        }
        found[name]["repeat"] = {group: repeat(columns, replicas, group) for group in GROUPS}
    return found


def repeat(columns: list[Column], replicas: list[Array], group: str) -> float:
    pairs = [(values[:, column.rows(group)]) for column, values in zip(columns, replicas, strict=True)]
    return round(float(np.mean([spearman(first, second) for first, second in pairs])), 4)


def at_pace(stack: Stack, part: Parts, column: Column, pace: FinetuneSchedule) -> Array:
    """`kin` of every source."""
    seed, (x, y) = derived_seed(column.seed, "kin", column.target), part.target
    rows = range(SCRATCH + 1)
    return np.array(
        [
            short_finetune_loss(stack.row(row), x, y, num_outputs=part.num_outputs, schedule=pace, seed=seed)
            for row in rows
        ]
    )
