"""Page of the benchmark of the interleaved search."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from interleave_runs import ABLATIONS, BOXES, CLASSES, Section
from interleave_tables import (
    Run,
    agreement_figures,
    agreement_rows,
    agreements,
    compared,
    costs,
    differences,
    error_on,
    group,
    mean_error,
    precision_of,
    precisions,
    rank_of,
    rows_of,
    verdict,
)
from results import span, table

OURS = "interleave"
GAIN = 0.08  # of the agreement, the goal
GROUPS = {
    "Kind of transfer": {
        "default": "mmd (default)", "transfer l2-weights": "l2-weights", "transfer l2-embedding": "l2-embedding",
        "transfer similarity": "similarity", "transfer none": "none",
    },
    "Rounds": {"rounds 1": "1", "default": "2 (default)", "rounds 3": "3", "rounds 20": "20, a tenth of the epochs"},
    "Order of the tasks": {
        "default": "low, high, fashion (default)", "order 120": "high, fashion, low", "order 201": "fashion, low, high",
        "order 021": "low, fashion, high", "order 102": "high, low, fashion", "order 210": "fashion, high, low",
    },
    "Size C of an augmentation set": {
        "transfer none": "0", "augmentations 3": "3", "augmentations 10": "10", "default": "20 (default)",
        "augmentations 40": "40",
    },
    "Threshold τ": {
        "quantile 0.1": "quantile 0.1", "quantile 0.25": "quantile 0.25", "default": "quantile 0.5 (default)",
        "quantile 0.75": "quantile 0.75", "quantile 0.9": "quantile 0.9", "threshold 5": "5, as printed",
    },
    "Other": {
        "default": "default", "literal": "as printed (`literal`)", "every 1": "transfer in every pass",
        "order 2": "exact gradient of the architecture", "random": "a random cell",
    },
}  # fmt: skip
NOTES = {
    "Rounds": "More rounds mean more steps of the weights for each step of the architecture. With 20 rounds and a "
    "tenth of the epochs the number of steps of the weights is that of 2 rounds; the architecture takes a tenth of the "
    "steps, and there is no warm-up.",
    "Order of the tasks": "Every task learns from the one before it, and the first from the last of the round before. "
    "So there are two loops with three starts each: the first three rows are one loop, the other three are the "
    "other. Rows of one loop differ in the start only: the first turn of a pass has no teacher.",
    "Size C of an augmentation set": "C = 0 is no transfer.",
    "Threshold τ": "With the printed threshold of 5 nothing is active, so this search is the one without transfer.",
    "Other": "As printed, encoders of later turns see no training loss.",
}


def page(runs: Mapping[str, Run]) -> str:
    """All sections that have runs, as Markdown."""
    parts = {"classes": _classes, "detection": _detection, "ablations": _ablations, "agreement": _agreement,
             "speed": _speed}  # fmt: skip
    done = {key.split("/")[0] for key in runs}
    text = "\n\n".join(part(runs) for name, part in parts.items() if name in done)
    return f"""# Interleaved search compared with its baselines

Made by `python benchmarks/interleave.py`; one thread, CPU time. Every method takes the same number of steps of the
weights of every task. What a search finds is retrained from scratch for each task by one recipe, and the test error
of these networks is compared. *Difference* is the mean over seeds of the method minus that of the reference, with its
95 % interval; p is that of the paired t-test over seeds, and *Holm* is p after Holm's correction for all methods of a
table.

The tables have their second setting. With the first one (seed 10; cells of DARTS for the classes) the retrained
networks had hardly learned: about 18 % error on MNIST, 74 % on CIFAR-10, an average precision of 0.06, where a random
cell was best. After this look, space and sizes were chosen by running time, and learning rates on few runs: that of
the retraining from four, with cells of DARTS, on held-out training data of two seeds (100 and 101); that of the
architecture from two, on the same data, with differences within noise (3e-2 better for interleave, not for
architecture only); that of the detector from three, one run each, on scenes of Fashion-MNIST. The seeds of the tables
were not looked at before, but the tasks and their test sets are those of seed 10.

{text}
"""


def _setting(section: Section) -> str:
    frame, gradient, after = section.gradient.frame, section.gradient, section.evaluation
    data = ", ".join(f"`{text}`" for text in section.data.values())
    return (
        f"Tasks: {data}, up to {section.num_test:,} test samples each. Search: space {section.space}, PC-DARTS, "
        f"{frame.channels} channels, {frame.num_cells} cells, stem stride {frame.stem_stride}, batches of "
        f"{gradient.batch_size}, {gradient.epochs} epochs ({gradient.warmup} of them warm-up), M = "
        f"{section.num_rounds}, learning rate of the architecture {gradient.architecture_rate:g}. Retraining: "
        f"{after.channels} channels, {after.num_cells} cells, {after.epochs} epochs, learning rate "
        f"{after.learning_rate:g}, no augmentation."
    )


def _few(title: str) -> str:
    """A section with too few seeds for an interval."""
    return f"{title}\n\nNot finished: a table needs two seeds with all rows."


def _classes(runs: Mapping[str, Run]) -> str:
    rows, seeds = rows_of(runs, "classes")
    title = f"## Three classification tasks\n\n{_setting(CLASSES)} {len(seeds)} of {len(CLASSES.seeds)} seeds."
    if len(seeds) < 2:
        return _few(title)
    place = rank_of(rows, mean_error, OURS)
    tables = [f"### {task}, test error in percent\n\n{compared(rows, error_on(task), OURS, 'method')}"
              for task in CLASSES.data]  # fmt: skip
    return f"""{title}

*hard* with uncertainty, gradient-norm, PCGrad and AlignedMTL is hard sharing with learned loss weights or a gradient
aggregator. *random* is a random cell of the space: a control that the paper does not have. For *branched* and
*fused-columns* the cell is retrained, not the connections between tasks. Only *independent* has a cell for each task.

Mean over the three tasks: {OURS} is {place} by the mean. After Holm's correction: {verdict(rows, mean_error, OURS)}.
The smallest share of active pairs in a pass of {OURS} is {min(run["smallest_active"] for run in rows[OURS]):.3f}.

### Mean over tasks, test error in percent

{compared(rows, mean_error, OURS, "method")}

{(chr(10) * 2).join(tables)}

### Cost

{costs(rows)}"""


def _detection(runs: Mapping[str, Run]) -> str:
    rows, seeds = rows_of(runs, "detection")
    limits = BOXES.limits
    assert limits is not None
    title = (
        f"## Classification and detection\n\n{_setting(BOXES)} {len(seeds)} of {len(BOXES.seeds)} seeds. Boxes with an "
        f"area below {limits.small:g}² pixels are small, below {limits.medium:g}² medium. Average precision in "
        "percent, larger is better."
    )
    if len(seeds) < 2:
        return _few(title)
    precision = precision_of("mean")
    return f"""{title}

By AP, {OURS} is {rank_of(rows, precision, OURS, larger=True)}; after Holm's correction:
{verdict(rows, precision, OURS, larger=True)}. By the error of classification it is {rank_of(rows, mean_error, OURS)};
{verdict(rows, mean_error, OURS)}.

### Average precision of the detector

{precisions(rows)}

### AP compared

{compared(rows, precision, OURS, "method")}

### Test error of the classification in percent

{compared(rows, mean_error, OURS, "method")}

### Cost

{costs(rows)}"""


def _ablations(runs: Mapping[str, Run]) -> str:
    rows, seeds = rows_of(runs, "ablations")
    title = f"## Ablations\n\n{_setting(ABLATIONS)} {len(seeds)} of {len(ABLATIONS.seeds)} seeds. Errors in percent."
    if len(seeds) < 2:
        return _few(title)
    parts = []
    for name, labels in GROUPS.items():
        note = f"{NOTES[name]}\n\n" if name in NOTES else ""
        parts.append(f"### {name}\n\n{note}{group(rows, labels)}")
    return f"""{title} *Smallest active* is the smallest share, over seeds and passes, of pairs of augmentation sets
on which student and teacher disagree. Against the default, after Holm's correction for all rows:
{verdict(rows, mean_error, "default")}.

{(chr(10) * 2).join(parts)}"""


def _agreement(runs: Mapping[str, Run]) -> str:
    rows, _ = agreement_rows(runs)
    parts = []
    for kind in (name for name in rows if name != "none"):
        found = agreement_figures(runs, kind)
        held = "it holds" if found["below"] == 0 else "it does not hold"
        parts.append(
            f"Transfer {kind}: gain {found['mean']:+.3f} ± {found['half']:.3f}, the smallest of {found['seeds']} seeds "
            f"{found['smallest']:+.3f}; the goal was 0.08 or more: {_in_words(found)}. Active pairs: 10 % or below in "
            f"{found['below']:.1%} of {found['transfers']} transfers, the smallest share "
            f"{found['smallest_active']:.3f}; the goal was above 10 % in all: {held}."
        )
    return f"""## Agreement of student and teacher

Three tasks of 8x8 images with 400 samples (low digits, high digits, fashion), space nasbench201, 8 channels, 3 cells, 6
epochs, batches of 32, M = 2, λ = 1. At the end of the search, students and teachers are compared on fresh augmentation
sets, 20 sets of 20 images, 3 times for each pair: the share of pairs of sets which both call alike or both different.

{_former(runs)}

{(chr(10) * 2).join(parts)}

{agreements(runs)}"""


def _former(runs: Mapping[str, Run]) -> str:
    """The measurement before the factor of the transfer was changed."""
    rows, seeds = rows_of(runs, "former agreement")
    if not seeds:
        return ""
    gains = [b["agreement"] - a["agreement"] for a, b in zip(rows["none"], rows["mmd"], strict=True)]
    return (
        f"This is the second measurement. In the first one, on seeds {seeds[0]} to {seeds[-1]}, a transfer in every\n"
        f"eighth pass counted once. The gain was {span(gains)}, by seed {min(gains):.3f} to {max(gains):.3f}: below\n"
        "the goal. Since then it counts eight times, so that λ is the mean factor over passes, and the figures below\n"
        "are from seeds that had no part in this change."
    )


def _in_words(found: Mapping[str, float]) -> str:
    if found["smallest"] >= GAIN:
        return "it holds for every seed"
    return "it holds for the mean, not for every seed" if found["mean"] >= GAIN else "it does not hold"


def goals(figures: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Figures of speed with their goals: name, value, largest allowed value."""
    return [
        (f"a pass (mean over {figures['every']}) over K·M weight steps and one architecture step",
         figures["pass_over_steps"], 1.5),
        ("matching of given embeddings, share of a pass", figures["share_of_matching"], 0.15),
        ("matching with the embeddings of 400 images by both encoders, share of a pass", figures["share_of_transfer"],
         0.15),
        ("pass with the exact gradient over a pass of first order", figures["exact_over_first_order"], 3.5),
    ]  # fmt: skip


def _speed(runs: Mapping[str, Run]) -> str:
    figures, memory = runs["speed/time/0"], runs["speed/memory/0"]
    spent = figures["seconds"]
    rows = [[name, f"{value:.3g}", f"≤ {limit:g}", "yes" if value <= limit else "no"]
            for name, value, limit in goals(figures)]  # fmt: skip
    one = memory["one task, PC-DARTS"]
    sizes = [
        [name, f"{row['state']:.2f}", f"{row['pass']:.1f}",
         f"{(row['state'] + row['pass']) / (one['state'] + one['pass']):.2f}"]
        for name, row in memory.items()
    ]  # fmt: skip
    names = {
        "pass_with_transfer": "pass with transfer", "pass_without_transfer": "pass without transfer",
        "exact_pass_with_transfer": "pass with transfer, exact gradient",
        "exact_pass_without_transfer": "pass without transfer, exact gradient",
        "weight_steps": "K·M weight steps", "architecture_step": "architecture step, first order",
        "exact_architecture_step": "architecture step, exact gradient",
        "transfers": "transfers of a pass, with sets and embeddings",
        "matching": "matching of a pass, of given embeddings",
    }  # fmt: skip
    return f"""## Speed and memory

Low digits, high digits and fashion, 8x8 images, darts space, PC-DARTS with 8 channels, 3 cells, batches of 64; K = 3,
M = 2. Medians of {figures["repeats"]} repeats in one process in which all take turns. By default the transfer takes
place in one of {figures["every"]} passes, and the figures are means over these. With a transfer in every pass, a pass
takes {figures["pass_over_steps_every_1"]:.2f} times the steps, and the matching of given embeddings is
{figures["share_of_matching_every_1"]:.1%} of it. Without transfer the exact gradient makes a pass
{figures["exact_over_first_order_without"]:.1f} times as long.

{table(["", "measured", "goal", "holds"], rows)}

{table(["", "CPU s"], [[names[name], f"{value:.3f}"] for name, value in spent.items()])}

Memory of tensors in MiB: *state* is weights, running statistics and momentum; *pass* is the peak of one pass beyond
them, from the records of torch's allocator; *ratio* is their sum over that of one task. The transfer embeds 400
images at once, where a batch has 64.

{table(["", "state", "pass", "ratio"], sizes)}"""


def summary(runs: Mapping[str, Run]) -> dict[str, Any]:
    """Main figures of the page, from which its summary is written."""
    figures: dict[str, Any] = {}
    for section, figure, larger in (
        ("classes", mean_error, False), ("detection", precision_of("mean"), True), ("ablations", mean_error, False),
    ):  # fmt: skip
        rows, seeds = rows_of(runs, section)
        if len(seeds) < 2:
            continue
        reference = "default" if section == "ablations" else OURS
        summaries, _ = differences(rows, figure, reference)
        best = (max if larger else min)(summaries, key=lambda name: summaries[name].mean)
        chosen = {"reference": reference, "best": best, "random": "random"}
        figures[section] = {
            "seeds": len(seeds), "methods": len(rows), "place": rank_of(rows, figure, reference, larger),
            "verdict": verdict(rows, figure, reference, larger), "best": best,
            "seconds": round(sum(run["search_seconds"] + run["retraining_seconds"] for row in rows.values()
                                 for run in row)),
            **{f"{role}_mean": asdict(summaries[name]) for role, name in chosen.items()},
        }  # fmt: skip
    kinds = [kind for kind in agreement_rows(runs)[0] if kind != "none"]
    if kinds:
        figures["agreement"] = {kind: agreement_figures(runs, kind) for kind in kinds}
    if "speed/time/0" in runs:
        figures["speed"] = [list(goal) for goal in goals(runs["speed/time/0"])]
    return figures
