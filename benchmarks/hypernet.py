"""Hypernetwork in the interleaved search: memory and quality against stored weights.

    python benchmarks/hypernet.py [--seeds 3] [--epochs 6]

Three tasks of digits take turns in two rounds. Memory is the peak of all tensors of a search, made and run for one
pass, from the records of torch's allocator, relative to PC-DARTS on the first task. Quality is the accuracy of the
supernets on all validation samples after equal numbers of steps. Figures go to `benchmarks/hypernet.json` and
`docs/figures/hypernet.md`.
"""

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import nearkin as nk
from measure import peak_bytes, process_seconds
from nearkin.core.events import finish
from nearkin.core.rng import Streams
from nearkin.multitask.encoder_transfer import EncoderTransfer
from nearkin.multitask.hypernet_search import IMAGES_AT_ONCE, HypernetInterleave, HypernetOptions
from nearkin.multitask.interleave import Interleave, InterleaveOptions
from nearkin.search.methods.darts.gradient_options import PARTIAL, GradientOptions
from nearkin.search.methods.darts.gradient_search import PCDarts
from nearkin.search.methods.darts.guards import Guards
from nearkin.search.methods.path_evaluation import evaluate_path
from nearkin.search.plasticity.forgetting_options import ForgettingOptions
from nearkin.search.spaces.base import Space
from nearkin.search.spaces.darts import DartsSpace
from nearkin.search.spaces.nasbench201 import nasbench201
from nearkin.search.supernet.reference import Frame
from nearkin.tasks.batches import epoch_batches
from results import interval, keep, table

PAGE = Path(__file__).parents[1] / "docs" / "figures" / "hypernet.md"
TASKS = {"low": "digits?classes=0,1,2,3,4", "high": "digits?classes=5,6,7,8,9", "all": "digits"}
COMPARED = ("stored", "hypernetwork")  # with transfer
SAMPLES = 300  # of each task in the comparison of quality
SPACE, SMALL_SPACE = DartsSpace(), nasbench201()
ALONE, MATCHED = EncoderTransfer(transfer="none"), EncoderTransfer(every=1)


def options(channels: int, cells: int, batch_size: int, **changes: Any) -> GradientOptions:
    """PC-DARTS on digits; forgetting is not watched."""
    frame = Frame(channels=channels, num_cells=cells, channel_fraction=0.25)
    quiet = {"guards": Guards(entropy=0.0), "forgetting": ForgettingOptions(watched=1)}
    return replace(PARTIAL, frame=frame, batch_size=batch_size, **{**quiet, **changes})


def searches(
    gradient: GradientOptions, transfer: EncoderTransfer, space: Space = SPACE
) -> dict[str, Callable[[list[nk.Task]], Interleave]]:
    """Ways to store the weights of three tasks and two rounds."""
    given: dict[str, Any] = {"gradient": gradient, "transfer": transfer, "num_rounds": 2}
    small = given | {"transfer": replace(transfer, images_at_once=IMAGES_AT_ONCE)}  # the default of the method
    return {
        "stored": lambda tasks: Interleave(tasks, space, InterleaveOptions(**given)),
        "stored for every round": lambda tasks: Interleave(tasks, space, InterleaveOptions(**given, literal=True)),
        "hypernetwork": lambda tasks: HypernetInterleave(tasks, space, HypernetOptions(**small)),
        "printed hypernetwork": lambda tasks: HypernetInterleave(tasks, space, HypernetOptions(**small, printed=True)),
    }


def peak(searcher: Any) -> float:
    """Peak MiB of the tensors of a search that is made and takes one pass."""
    for learner in searcher.learners if isinstance(searcher, Interleave) else [searcher.learner]:
        learner.split(Streams(0))  # made once, and not counted
    return peak_bytes(lambda: finish(searcher.step(searcher.init(0)))) / 2**20


def memory(tasks: list[nk.Task], channels: int, cells: int, batch_size: int) -> dict[str, Any]:
    """Peak memory of every way, in MiB and relative to PC-DARTS on one task."""
    gradient = options(channels, cells, batch_size, warmup=0)
    single = peak(PCDarts(tasks[0], SPACE, gradient))
    figures: dict[str, Any] = {
        "channels": channels,
        "cells": cells,
        "batch_size": batch_size,
        "single": round(single, 2),
    }
    for label, transfer in (("alone", ALONE), ("matched", MATCHED)):
        for name, make in searches(gradient, transfer).items():
            if transfer is MATCHED and name not in COMPARED:
                continue
            searcher = make(tasks)
            figures[f"{name}, {label}"] = round(peak(searcher), 2)
            figures[f"weights, {name}"] = searcher.num_weights(searcher.init(0))
            print(channels, name, label, figures[f"{name}, {label}"], flush=True)
    return figures


def seconds(tasks: list[nk.Task]) -> dict[str, float]:
    """Process time of a pass without transfer."""
    times: dict[str, float] = {}
    for name, make in searches(options(8, 3, 64, warmup=0), ALONE).items():
        searcher = make(tasks)
        state = finish(searcher.step(searcher.init(0)))
        spent = [process_seconds(lambda: finish(searcher.step(state))) for _ in range(3)]  # noqa: B023
        times[name] = round(sorted(spent)[1], 3)
    return times


def accuracy(searcher: Interleave, state: Any) -> float:
    """Mean accuracy of the supernets on all validation samples, with the weights of the last round."""
    scores = []
    for task, learner in enumerate(searcher.learners):
        last = searcher.options.num_rounds - 1
        filled = searcher._filled(state, task, last) if isinstance(searcher, HypernetInterleave) else nullcontext()
        batches = list(epoch_batches(learner.split(state.streams)[1], 64, Streams(0), 0))
        with filled:
            net = searcher._final(state)[task].supernet
            scores.append(evaluate_path(net, searcher._constants(state, task), batches, learner.task.form).score)
    return fmean(scores)


def quality(seeds: int, epochs: int) -> dict[str, Any]:
    """Accuracy of every way after the same number of steps, by seed."""
    tasks = [nk.task(f"{text}{'&' if '?' in text else '?'}limit={SAMPLES}", name=name) for name, text in TASKS.items()]
    gradient = options(8, 3, 32, epochs=epochs, warmup=epochs // 3)
    transfer = EncoderTransfer(num_sets=8, num_augmentations=8)
    ways = searches(gradient, transfer, SMALL_SPACE)
    ways.pop("stored for every round")
    figures: dict[str, Any] = {name: [] for name in ways}
    steps = 0
    for seed in range(seeds):
        for name, make in ways.items():
            searcher = make(tasks)
            state = searcher.init(seed)
            while not searcher.ended(state):
                state = finish(searcher.step(state))
            steps = state.done * searcher.options.num_rounds
            figures[name].append(round(accuracy(searcher, state), 4))
            print(seed, name, figures[name][-1], flush=True)
    return {"epochs": epochs, "steps_of_a_task": steps, "accuracy": figures}


def relative(row: dict[str, Any], name: str) -> str:
    """Peak memory, and its ratio to that of one task."""
    return f"{row[name]:.1f} ({row[name] / row['single']:.2f})" if name in row else "not measured"


def page(figures: dict[str, Any]) -> str:
    """The whole page, without the summary that `docs/summaries.py` adds."""
    names = list(searches(PARTIAL, ALONE))
    rows = [
        [f"{row['channels']} channels, {row['cells']} cells, batch {row['batch_size']}", how, f"{row['single']:.1f}",
         *(relative(row, f"{name}, {how}") for name in names)]
        for row in figures["memory"] for how in ("alone", "matched")
    ]  # fmt: skip
    sizes = [[f"{row['channels']} channels, {row['cells']} cells", *(f"{row[f'weights, {name}']:,}" for name in names)]
             for row in figures["memory"] if f"weights, {names[0]}" in row]  # fmt: skip
    done, quality = figures["quality"], []
    for name, values in done["accuracy"].items():
        mean, half = interval(values)
        quality.append([name, ", ".join(f"{value:.3f}" for value in values), f"{mean:.3f} ± {half:.3f}"])
    times = [[name, f"{value:.2f}" if value else "not measured"] for name, value in figures["seconds"].items()]
    return f"""# Hypernetwork in the interleaved search

Made by `python benchmarks/hypernet.py`. Tasks: digits 0 to 4, digits 5 to 9, all digits; two rounds; the DARTS space
with a quarter of the channels in the operations (PC-DARTS) for memory and time, cells of NAS-Bench-201 for quality.

## Memory

Peak of all tensors of a search that is made and takes one pass with a step of the architecture, in MiB, and in
brackets relative to PC-DARTS on the first task (*one task*). *alone*: without transfer. *matched*: with the transfer
of every turn, which embeds 20 sets of 20 images, with a hypernetwork 64 at a time, else all at once. *stored*: one
encoder for each task. *stored for every round*: the printed form, one encoder for each task and round.

In the first pass most stored weights have no momentum yet, and later ones were not measured, so the peaks of stored
weights are lower bounds. Without transfer the encoders of the printed form do not learn after the first turn.

{table(["supernet", "transfer", "one task", *names], rows)}

Stored weights:

{table(["supernet", *names], sizes)}

## Quality

Accuracy of the supernets on all validation samples, mean over the tasks, after {done["epochs"]} epochs
({done["steps_of_a_task"]} steps of every task), by seed and with a 95 % interval. Every task has {SAMPLES} training
samples, half of them for validation; batches of 32; the supernets have 8 channels and 3 cells.

{table(["weights", "accuracy by seed", "mean"], quality)}

## Time

Process time of a pass without transfer, in seconds; 8 channels, 3 cells, batches of 64.

{table(["weights", "seconds"], times)}
"""


def write(figures: dict[str, Any]) -> None:
    """Write figures and page."""
    keep(__file__, figures)
    PAGE.write_text(page(figures))


def main() -> None:
    """Measure memory, time and quality."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tasks = [nk.task(text, name=name) for name, text in TASKS.items()]
    measured = [memory(tasks, *shape) for shape in ((8, 3, 64), (16, 3, 64))]
    print(measured, flush=True)
    times = seconds(tasks)
    print(times, flush=True)
    write({"seeds": given.seeds, "memory": measured, "seconds": times, "quality": quality(given.seeds, given.epochs)})


if __name__ == "__main__":
    main()
