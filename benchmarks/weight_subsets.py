"""Which weights to change with few labels: head, norms, LoRA or all, in closed form and by fine-tuning.

    python benchmarks/weight_subsets.py [--page]

A CNN with batch normalisation learns the digits 0 to 4; then 10 or 50 labels of each of the digits 5 to 9 are used by
every method, which is tested on all their test images. Seeds change the source's network, the labels and the adapters.
About 5 minutes of one core. Figures go to `benchmarks/weight_subsets.json`, the table to
`docs/figures/weight-subsets.md`; `--page` writes the page alone.
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nearkin as nk
from nearkin.core.events import finish
from nearkin.nets.recipe import Recipe
from nearkin.nets.registry import build
from nearkin.nets.training_loop import fit
from nearkin.nets.weight_subset import free_weights
from nearkin.transfer.closed_form import closed_form
from nearkin.transfer.finetune import fine_tuned
from nearkin.transfer.linearized import linearize
from nearkin.zoo.transfer import with_shots
from results import interval, keep, span, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "weight-subsets.md"
LOW, HIGH = "digits?classes=0,1,2,3,4&rest=drop", "digits?classes=5,6,7,8,9&rest=drop"
SUBSETS = ("head", "norm", "lora?r=1", "lora?r=4", "lora?r=16", "all")
SHOTS = (10, 50)
SEEDS = tuple(range(5))
SOURCE_STEPS, STEPS = 300, 200


def source(seed: int) -> tuple[nn.Module, float]:
    """A CNN that was trained on the source, and its test accuracy."""
    low = nk.task(LOW)
    network = build("cnn", low.input_shape, low.num_outputs, seed=seed)
    return network, fit(network, low, Recipe(steps=SOURCE_STEPS), seed=seed).scores.metric


def measured(model: nn.Module, weights: str, shots: int, seed: int) -> dict[str, Any]:
    """Both methods with one subset on one random draw of labels."""
    few = with_shots(nk.task(HIGH), shots, seed)
    x = few.train.first(1).x
    free = free_weights(model, weights, x)
    sizes = {name: value.numel() for name, value in free.model.named_parameters()}
    row: dict[str, Any] = {"weights": weights, "shots": shots, "seed": seed, "num_test": len(few.test)}
    works = {
        "closed form": (
            closed_form(model, few, weights=weights, seed=seed),
            linearize(model, weights, x=x).num_weights,
        ),
        "fine-tuning": (fine_tuned(model, few, STEPS, seed, weights), sum(sizes[name] for name in free.names)),
    }
    for name, (work, num_weights) in works.items():
        start = time.process_time()
        scores = finish(work)
        row[name] = {
            "metric": round(scores.metric, 5), "nll": round(scores.nll, 5), "ece": round(scores.ece, 5),
            "seconds": round(time.process_time() - start, 3), "weights": num_weights,
        }  # fmt: skip
    return row


def page(figures: dict[str, Any]) -> str:
    """The page of the figures."""
    parts = []
    for shots in figures["shots"]:
        rows = []
        for method, weights in itertools.product(("closed form", "fine-tuning"), figures["subsets"]):
            own = [row[method] for row in figures["rows"] if (row["weights"], row["shots"]) == (weights, shots)]
            spans = [span([scores[name] for scores in own]) for name in ("metric", "nll", "ece")]
            seconds = interval([scores["seconds"] for scores in own])[0]
            rows.append([method, f"`{weights}`", f"{own[0]['weights']:,}", *spans, f"{seconds:.2f}"])
        head = ["method", "weights", "number", "accuracy", "nll", "ece", "seconds"]
        parts.append(f"## {shots} labels a class\n\n{table(head, rows)}\n")
    accuracy = sum(figures["source"]) / len(figures["source"])
    return (
        "<!-- written by benchmarks/weight_subsets.py -->\n# Which weights to change\n\n"
        "Made by `python benchmarks/weight_subsets.py`; figures in `benchmarks/weight_subsets.json`.\n\n"
        f"A CNN with batch normalisation learns the digits 0 to 4 in {figures['source_steps']} steps (mean test "
        f"accuracy {accuracy:.3f}). Then both methods learn the digits 5 to 9 from the labels and are tested on "
        f"{figures['rows'][0]['num_test']} images. Fine-tuning takes {figures['steps']} steps of Adam at the default "
        f"learning rate, with a new head. Means over {len(figures['seeds'])} seeds, which change the source's network, "
        "the labels and the adapters; ± is half a 95 % interval (Student). The number of weights in closed form counts "
        "B alone for LoRA, and the head of the source. Seconds are process time of one thread, fit and predictions, on "
        "a machine where other programs ran. No setting was tuned, no learning rate either. The rank in the claim was "
        "chosen after these figures were seen.\n\n" + "\n".join(parts)
    )


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", action="store_true", help="write the page alone, from the figures that are there")
    arguments = parser.parse_args()
    if not arguments.page:
        rows, accuracies = [], []
        for seed in SEEDS:
            model, accuracy = source(seed)
            accuracies.append(round(accuracy, 5))
            if seed == SEEDS[0]:
                measured(model, "head", SHOTS[0], seed)  # loads what the first run imports
            for weights, shots in itertools.product(SUBSETS, SHOTS):
                rows.append(measured(model, weights, shots, seed))
                print(rows[-1], file=sys.stderr, flush=True)
        keep(__file__, {
            "subsets": list(SUBSETS), "shots": list(SHOTS), "seeds": list(SEEDS), "source_steps": SOURCE_STEPS,
            "steps": STEPS, "source": accuracies, "rows": rows,
        })  # fmt: skip
    PAGE.write_text(page(json.loads(Path(__file__).with_suffix(".json").read_text())))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
