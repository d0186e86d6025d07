"""Baseline `all weights` of `nearkin transfer` from the three starts, on the first pair of `transfer_classes.py`."""

from dataclasses import replace

from nearkin.core.rng import derived_seed
from nearkin.nets.heads import HEAD_STARTS, SCALE_SAMPLES, with_start
from nearkin.nets.recipe import Recipe
from nearkin.nets.training_loop import fit
from nearkin.tasks.rows import subset_index
from nearkin.transfer.finetune import STEPS
from nearkin.zoo.transfer import with_shots
from transfer_classes import PAIRS, SEEDS, SHOTS, TEST, source, task

PAIR = next(iter(PAIRS))
__all__ = ["PAIR", "SEEDS", "SHOTS", "baseline"]


def baseline(shots: int, seed: int) -> dict[str, float]:
    """Test accuracy by start; source, labels, draw and batches are those of `transfer_classes.py`."""
    model, _ = source(PAIR, seed)
    few = with_shots(task(PAIRS[PAIR][1]), shots, seed)
    few = replace(few, test=few.test.chosen(subset_index(len(few.test), TEST)))
    x, found = few.train.first(SCALE_SAMPLES).x, {}
    for start in HEAD_STARTS:
        network = with_start(model, few.num_outputs, derived_seed(seed, "all weights"), x, start)
        found[start] = round(fit(network, few, Recipe(steps=STEPS), seed=seed).scores.metric, 5)
    return found
